/* AVX2 with FMA: 8 floats or 4 doubles. */
#include <immintrin.h>

#define RK_LEVEL_NAME "avx2"
#define MAX_ROWS 3 /* 3 x 4 accumulators of 16 registers */
#if RK_DOUBLE
#define VL 4
#define V(op) _mm256_##op##_pd
#define V_INT(op) _mm256_##op##_epi64
#define V_AS_INT _mm256_castpd_si256
#define V_AS_REAL _mm256_castsi256_pd
#define V_INT_SET1 _mm256_set1_epi64x
#define V_LANE_NUMBERS _mm256_setr_epi64x(0, 1, 2, 3)
#define SCALE_BACK 0x1p-512
typedef __m256d vec;
#else
#define VL 8
#define V(op) _mm256_##op##_ps
#define V_INT(op) _mm256_##op##_epi32
#define V_AS_INT _mm256_castps_si256
#define V_AS_REAL _mm256_castsi256_ps
#define V_INT_SET1 _mm256_set1_epi32
#define V_LANE_NUMBERS _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)
#define SCALE_BACK 0x1p-64f
typedef __m256 vec;
#endif
typedef vec vmask;

static inline vec v_zero(void) { return V(setzero)(); }
static inline vec v_set1(real r) { return V(set1)(r); }
static inline vec v_load(const real *p) { return V(loadu)(p); }
static inline void v_store(real *p, vec x) { V(storeu)(p, x); }
static inline __m256i v_first(int64_t n) { return V_INT(cmpgt)(V_INT_SET1((real_bits)n), V_LANE_NUMBERS); }
static inline vec v_load_n(const real *p, int64_t n) { return V(maskload)(p, v_first(n)); }
static inline void v_store_n(real *p, int64_t n, vec x) { V(maskstore)(p, v_first(n), x); }
static inline vec v_add(vec a, vec b) { return V(add)(a, b); }
static inline vec v_sub(vec a, vec b) { return V(sub)(a, b); }
static inline vec v_mul(vec a, vec b) { return V(mul)(a, b); }
static inline vec v_div(vec a, vec b) { return V(div)(a, b); }
static inline vec v_fma(vec a, vec b, vec c) { return V(fmadd)(a, b, c); }
static inline vec v_fnma(vec a, vec b, vec c) { return V(fnmadd)(a, b, c); }
static inline vec v_max(vec a, vec b) { return V(max)(a, b); }
static inline vec v_abs(vec a) { return V(andnot)(v_set1((real)-0.0), a); }
static inline vec v_copysign(vec magnitude, vec sign)
{
    return V(or)(v_abs(magnitude), V (and)(v_set1((real)-0.0), sign));
}
static inline vmask v_lt(vec a, vec b) { return V(cmp)(a, b, _CMP_LT_OQ); }
static inline vec v_select(vmask m, vec yes, vec no) { return V(blendv)(no, yes, m); }

static inline void v_zip(vec a, vec b, vec *lo, vec *hi)
{
    const vec even = V(unpacklo)(a, b), odd = V(unpackhi)(a, b); /* of the pairs in each half */
    *lo = V(permute2f128)(even, odd, 0x20);
    *hi = V(permute2f128)(even, odd, 0x31);
}

/* Two factors, since 2^n alone is zero in the exponent field where y * 2^n is just above the smallest normal. */
static inline vec v_scale(vec y, vec n)
{
    __m256i bits = V_AS_INT(v_add(n, v_set1((real)(ROUND_MAGIC + SCALE_SPLIT))));
    bits = V_INT(slli)(V_INT(add)(bits, V_INT_SET1(EXPONENT_BIAS)), MANTISSA_BITS);
    return v_mul(v_mul(y, V_AS_REAL(bits)), v_set1(SCALE_BACK));
}
