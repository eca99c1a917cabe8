/* NEON on AArch64: 4 floats or 2 doubles. */
#include <arm_neon.h>

#define RK_LEVEL_NAME "neon"
#define MAX_ROWS 6 /* 6 x 4 accumulators of 32 registers */
#if RK_DOUBLE
#define VL 2
#define V(op) v##op##q_f64
#define V_BITS(op) v##op##q_s64
#define V_AS_INT vreinterpretq_s64_f64
#define V_AS_REAL vreinterpretq_f64_s64
#define V_SIGN vdupq_n_u64(UINT64_C(1) << 63)
#define SCALE_BACK 0x1p-512
typedef float64x2_t vec;
typedef uint64x2_t vmask;
#else
#define VL 4
#define V(op) v##op##q_f32
#define V_BITS(op) v##op##q_s32
#define V_AS_INT vreinterpretq_s32_f32
#define V_AS_REAL vreinterpretq_f32_s32
#define V_SIGN vdupq_n_u32(UINT32_C(1) << 31)
#define SCALE_BACK 0x1p-64f
typedef float32x4_t vec;
typedef uint32x4_t vmask;
#endif

#if RK_DOUBLE
static inline vec v_set1(real r) { return vdupq_n_f64(r); }
#else
static inline vec v_set1(real r) { return vdupq_n_f32(r); }
#endif
static inline vec v_zero(void) { return v_set1(0); }
static inline vec v_load(const real *p) { return V(ld1)(p); }
static inline void v_store(real *p, vec x) { V(st1)(p, x); }
static inline vec v_load_n(const real *p, int64_t n)
{
    real lanes[VL] = {0};
    memcpy(lanes, p, (size_t)n * sizeof *p);
    return v_load(lanes);
}
static inline void v_store_n(real *p, int64_t n, vec x)
{
    real lanes[VL];
    v_store(lanes, x);
    memcpy(p, lanes, (size_t)n * sizeof *p);
}
static inline vec v_add(vec a, vec b) { return V(add)(a, b); }
static inline vec v_sub(vec a, vec b) { return V(sub)(a, b); }
static inline vec v_mul(vec a, vec b) { return V(mul)(a, b); }
static inline vec v_div(vec a, vec b) { return V(div)(a, b); }
static inline vec v_fma(vec a, vec b, vec c) { return V(fma)(c, a, b); }
static inline vec v_fnma(vec a, vec b, vec c) { return V(fms)(c, a, b); }
static inline vmask v_lt(vec a, vec b) { return V(clt)(a, b); }
static inline vec v_select(vmask m, vec yes, vec no) { return V(bsl)(m, yes, no); }
static inline vec v_max(vec a, vec b) { return v_select(v_lt(b, a), a, b); } /* fmax differs for NaN and -0 */
static inline vec v_abs(vec a) { return V(abs)(a); }
static inline vec v_copysign(vec magnitude, vec sign) { return V(bsl)(V_SIGN, sign, magnitude); }

static inline void v_zip(vec a, vec b, vec *lo, vec *hi)
{
    *lo = V(zip1)(a, b);
    *hi = V(zip2)(a, b);
}

/* Two factors, since 2^n alone is zero in the exponent field where y * 2^n is just above the smallest normal. */
static inline vec v_scale(vec y, vec n)
{
    vec s = v_add(n, v_set1((real)(ROUND_MAGIC + SCALE_SPLIT)));
#if RK_DOUBLE
    int64x2_t bits = vshlq_n_s64(V_BITS(add)(V_AS_INT(s), vdupq_n_s64(EXPONENT_BIAS)), MANTISSA_BITS);
#else
    int32x4_t bits = vshlq_n_s32(V_BITS(add)(V_AS_INT(s), vdupq_n_s32(EXPONENT_BIAS)), MANTISSA_BITS);
#endif
    return v_mul(v_mul(y, V_AS_REAL(bits)), v_set1(SCALE_BACK));
}
