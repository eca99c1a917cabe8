/* A level of one lane, in C99: the definition of what the other levels must reproduce. */
#define RK_LEVEL_NAME "scalar"
#define VL 1
#define MAX_ROWS 2 /* 2 x 4 accumulators: sixteen registers on any machine */

typedef real vec;
typedef int vmask;

static inline vec v_zero(void) { return 0; }
static inline vec v_set1(real r) { return r; }
static inline vec v_load(const real *p) { return *p; }
static inline void v_store(real *p, vec x) { *p = x; }
static inline vec v_load_n(const real *p, int64_t n) { return n > 0 ? *p : 0; }
static inline void v_store_n(real *p, int64_t n, vec x)
{
    if (n > 0)
        *p = x;
}
static inline vec v_add(vec a, vec b) { return a + b; }
static inline vec v_sub(vec a, vec b) { return a - b; }
static inline vec v_mul(vec a, vec b) { return a * b; }
static inline vec v_div(vec a, vec b) { return a / b; }
#if RK_DOUBLE
static inline vec v_fma(vec a, vec b, vec c) { return fma(a, b, c); }
static inline vec v_abs(vec a) { return fabs(a); }
static inline vec v_copysign(vec magnitude, vec sign) { return copysign(magnitude, sign); }
#else
static inline vec v_fma(vec a, vec b, vec c) { return fmaf(a, b, c); }
static inline vec v_abs(vec a) { return fabsf(a); }
static inline vec v_copysign(vec magnitude, vec sign) { return copysignf(magnitude, sign); }
#endif
static inline vec v_fnma(vec a, vec b, vec c) { return v_fma(-a, b, c); }
static inline vec v_max(vec a, vec b) { return a > b ? a : b; }
static inline vmask v_lt(vec a, vec b) { return a < b; }
static inline vec v_select(vmask m, vec yes, vec no) { return m ? yes : no; }

static inline void v_zip(vec a, vec b, vec *lo, vec *hi)
{
    *lo = a;
    *hi = b;
}

/* Two factors, since 2^n alone is zero in the exponent field where y * 2^n is just above the smallest normal. */
static inline vec v_scale(vec y, vec n)
{
    vec s = n + (real)(ROUND_MAGIC + SCALE_SPLIT), power;
    real_bits bits;
    memcpy(&bits, &s, sizeof bits);
#if RK_DOUBLE
    bits = (real_bits)((uint64_t)(bits + EXPONENT_BIAS) << MANTISSA_BITS);
    const real back = 0x1p-512;
#else
    bits = (real_bits)((uint32_t)(bits + EXPONENT_BIAS) << MANTISSA_BITS);
    const real back = 0x1p-64f;
#endif
    memcpy(&power, &bits, sizeof power);
    return y * power * back;
}
