/* sigmoid and tanh on vectors, within 2 ulp of the exact value (measured: 1.65 and 1.50 over all float32, 1.69 and 1.52
 * on dense float64 samples), and the same bits at every level.
 *
 * exp(na) for na <= 0:  na = n ln2 + r with |r| <= ln2/2; n is found by adding ROUND_MAGIC, n*LN2_HI is exact;
 *                       e = (1 + r (1 + r Q(r))) 2^n, Q a minimax polynomial.
 * sigmoid(x) = w or 1 - w with w = e/(1+e), e = exp(-|x|): no overflow, and accurate relative to small results.
 * tanh(x) = 1 - 2e/(1+e), e = exp(-2|x|); near 0, where that cancels, x + x (z R(z)) with z = x^2.
 * NaN passes through every operation; the constant comes first in v_max because of it.
 */
#ifndef RK_ACT_H
#define RK_ACT_H

#if RK_DOUBLE
#include "act_double.h"
#else
#define EXP_LOWEST -104.0f /* exp is zero in float32 below */
#define LOG2E 0x1.715476p+0f
#define LN2_HI 0x1.62e4p-1f /* 15 bits: n*LN2_HI is exact */
#define LN2_LO 0x1.7f7d1cp-20f
#define TANH_ONE 10.0f /* tanh rounds to 1 from here */
#define TANH_SMALL 0.55f
static const real exp_q[] = {0x1.fffffcp-2f, 0x1.555492p-3f, 0x1.5558f2p-5f, 0x1.123a2p-7f, 0x1.6a23dp-10f};
static const real tanh_r[] = {-0x1.555452p-2f, 0x1.10cefcp-3f, -0x1.af7d36p-5f, 0x1.0d5176p-6f};
#endif

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

static inline vec polynomial(vec x, const real *coefficients, int n)
{
    vec p = v_set1(coefficients[n - 1]);
    for (int i = n - 2; i >= 0; i--)
        p = v_fma(p, x, v_set1(coefficients[i]));
    return p;
}

/* exp(na) for na in EXP_LOWEST..0 */
static inline vec v_exp_negative(vec na)
{
    vec magic = v_set1(ROUND_MAGIC);
    vec n = v_sub(v_fma(na, v_set1(LOG2E), magic), magic);
    vec r = v_fnma(n, v_set1(LN2_LO), v_fnma(n, v_set1(LN2_HI), na));
    vec q = polynomial(r, exp_q, COUNT(exp_q));
    return v_scale(v_fma(v_fma(q, r, v_set1(1)), r, v_set1(1)), n);
}

static inline vec v_sigmoid(vec x)
{
    vec one = v_set1(1);
    vec e = v_exp_negative(v_max(v_set1(EXP_LOWEST), v_copysign(x, v_set1(-1))));
    vec w = v_div(e, v_add(one, e));
    vec numerator = v_select(v_lt(x, v_zero()), e, one);
    return v_fnma(numerator, w, numerator); /* x < 0: e - e w = e/(1+e); else 1 - w */
}

static inline vec v_tanh(vec x)
{
    vec one = v_set1(1), size = v_abs(x);
    vec e = v_exp_negative(v_max(v_set1(-2 * TANH_ONE), v_mul(v_set1(-2), size)));
    vec far = v_fma(v_set1(-2), v_div(e, v_add(one, e)), one);
    vec z = v_mul(x, x);
    vec near = v_fma(size, v_mul(z, polynomial(z, tanh_r, COUNT(tanh_r))), size);
    return v_copysign(v_select(v_lt(size, v_set1(TANH_SMALL)), near, far), x);
}

#endif
