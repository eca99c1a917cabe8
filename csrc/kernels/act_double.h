#define EXP_LOWEST -745.2
#define LOG2E 0x1.71547652b82fep+0
#define LN2_HI 0x1.62e42fefa0000p-1
#define LN2_LO 0x1.cf79abc9e3b39p-40
#define TANH_ONE 22.0
#define TANH_SMALL 0.55
static const real exp_q[] = {1/2., 1/6., 1/24., 1/120., 1/720., 1/5040., 1/40320., 1/362880., 1/3628800., 1/39916800., 1/479001600.};
static const real tanh_r[] = {-1/3., 2/15., -17/315., 62/2835., -1382/155925., 21844/6081075., -929569/638512875., 6404582/10854718875.};
