/* AVX-512: 16 floats or 8 doubles. */
#include <immintrin.h>

#define RK_LEVEL_NAME "avx512"
#define MAX_ROWS 6 /* 6 x 4 accumulators of 32 registers */
#if RK_DOUBLE
#define VL 8
#define V(op) _mm512_##op##_pd
#define V_INT(op) _mm512_##op##_epi64
#define V_MASK(op) _mm512_##op##_pd_mask
#define V_AS_INT _mm512_castpd_si512
#define V_AS_REAL _mm512_castsi512_pd
#define SIGN_BIT _mm512_set1_epi64(INT64_MIN)
#define ZIP(k) _mm512_setr_epi64(k, k + 8, k + 1, k + 9, k + 2, k + 10, k + 3, k + 11)
typedef __m512d vec;
typedef __mmask8 vmask;
#else
#define VL 16
#define V(op) _mm512_##op##_ps
#define V_INT(op) _mm512_##op##_epi32
#define V_MASK(op) _mm512_##op##_ps_mask
#define V_AS_INT _mm512_castps_si512
#define V_AS_REAL _mm512_castsi512_ps
#define SIGN_BIT _mm512_set1_epi32(INT32_MIN)
#define ZIP(k)                                                                                                     \
    _mm512_setr_epi32(k, k + 16, k + 1, k + 17, k + 2, k + 18, k + 3, k + 19, k + 4, k + 20, k + 5, k + 21, k + 6, \
                      k + 22, k + 7, k + 23)
typedef __m512 vec;
typedef __mmask16 vmask;
#endif

static inline vec v_zero(void) { return V(setzero)(); }
static inline vec v_set1(real r) { return V(set1)(r); }
static inline vec v_load(const real *p) { return V(loadu)(p); }
static inline void v_store(real *p, vec x) { V(storeu)(p, x); }
static inline vmask v_first(int64_t n) { return (vmask)((1u << n) - 1u); }
static inline vec v_load_n(const real *p, int64_t n) { return V(maskz_loadu)(v_first(n), p); }
static inline void v_store_n(real *p, int64_t n, vec x) { V(mask_storeu)(p, v_first(n), x); }
static inline vec v_add(vec a, vec b) { return V(add)(a, b); }
static inline vec v_sub(vec a, vec b) { return V(sub)(a, b); }
static inline vec v_mul(vec a, vec b) { return V(mul)(a, b); }
static inline vec v_div(vec a, vec b) { return V(div)(a, b); }
static inline vec v_fma(vec a, vec b, vec c) { return V(fmadd)(a, b, c); }
static inline vec v_fnma(vec a, vec b, vec c) { return V(fnmadd)(a, b, c); }
static inline vec v_max(vec a, vec b) { return V(max)(a, b); }
static inline vec v_abs(vec a) { return V_AS_REAL(_mm512_andnot_si512(SIGN_BIT, V_AS_INT(a))); }
static inline vec v_copysign(vec magnitude, vec sign)
{
    /* 0xE4: (magnitude & ~bit) | (sign & bit), one instruction */
    return V_AS_REAL(V_INT(ternarylogic)(V_AS_INT(sign), V_AS_INT(magnitude), SIGN_BIT, 0xE4));
}
static inline vmask v_lt(vec a, vec b) { return V_MASK(cmp)(a, b, _CMP_LT_OQ); }
static inline vec v_select(vmask m, vec yes, vec no) { return V(mask_blend)(m, no, yes); }
static inline vec v_scale(vec y, vec n) { return V(scalef)(y, n); }
static inline void v_zip(vec a, vec b, vec *lo, vec *hi)
{
    *lo = V(permutex2var)(a, ZIP(0), b);
    *hi = V(permutex2var)(a, ZIP(VL / 2), b);
}
