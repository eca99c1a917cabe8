/* The constants of act.h for float64. Fit errors: exp 3.7e-18, tanh 2.0e-17 relative. */
#define EXP_LOWEST -745.2
#define LOG2E 0x1.71547652b82fep+0
#define LN2_HI 0x1.62e42fefa3800p-1 /* 42 bits */
#define LN2_LO 0x1.ef35793c76730p-45
#define TANH_ONE 20.0
#define TANH_SMALL 0.55
static const real exp_q[] = {0x1.000000000000ap-1,  0x1.555555555550dp-3,  0x1.55555555507bap-5,  0x1.1111111124541p-7,
                             0x1.6c16c184319eep-10, 0x1.a01a01384f478p-13, 0x1.a0199a21b85edp-16, 0x1.71df0cc4634cbp-19,
                             0x1.28ad4c235a0e4p-22, 0x1.ad9eec08b091cp-26};
static const real tanh_r[] = {-0x1.555555555549ep-2,  0x1.11111111029b1p-3,  -0x1.ba1ba1ad7372fp-5,
                              0x1.664f45c322ba2p-6,   -0x1.226ddd4e2f6edp-7, 0x1.d6c61e5b21cf6p-9,
                              -0x1.7cf3c3344d4f6p-10, 0x1.2fa2a66ed21dap-11, -0x1.b90a667e3fad3p-13,
                              0x1.ac02ba07fc84fp-15};
static const real log_s[] = {1 / 3.0,  1 / 5.0,  1 / 7.0,  1 / 9.0,  1 / 11.0, 1 / 13.0, 1 / 15.0, 1 / 17.0,
                             1 / 19.0, 1 / 21.0, 1 / 23.0, 1 / 25.0, 1 / 27.0, 1 / 29.0, 1 / 31.0, 1 / 33.0};
