/* Activations on vectors, the same bits at every level. sigmoid and tanh are within 2 ulp of the exact value (measured:
 * 1.65 and 1.50 over all float32, 1.69 and 1.52 on dense float64 samples).
 *
 * exp(na) for na <= 0:  na = n ln2 + r with |r| <= ln2/2; n is found by adding ROUND_MAGIC, n*LN2_HI is exact;
 *                       e = (1 + r (1 + r Q(r))) 2^n, Q a minimax polynomial.
 * sigmoid(x) = w or 1 - w with w = e/(1+e), e = exp(-|x|): no overflow, and accurate relative to small results.
 * tanh(x) = 1 - 2e/(1+e), e = exp(-2|x|); near 0, where that cancels, x + x (z R(z)) with z = x^2.
 * log(1+e) = 2 s (1 + s^2/3 + s^4/5 ...) with s = e/(2+e), 0 < e <= 1.
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
static const real log_s[] = {1 / 3.0f, 1 / 5.0f, 1 / 7.0f, 1 / 9.0f, 1 / 11.0f, 1 / 13.0f, 1 / 15.0f};
#endif

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))
#define ALWAYS_INLINE static inline __attribute__((always_inline))
#define NOT_INLINE static __attribute__((noinline))

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

static inline vec v_clamp(vec low, vec high, vec x) /* NaN stays */
{
    const vec above = v_max(low, x);
    return v_select(v_lt(high, above), high, above);
}

/* 1 - exp(-x) for x >= 0, without cancellation */
static inline vec v_one_minus_exp(vec x)
{
    vec e = v_exp_negative(v_max(v_set1(EXP_LOWEST), v_sub(v_zero(), x)));
    return v_mul(v_tanh(v_mul(v_set1((real)0.5), x)), v_add(v_set1(1), e));
}

static inline vec v_softplus(vec x)
{
    vec e = v_exp_negative(v_max(v_set1(EXP_LOWEST), v_copysign(x, v_set1(-1))));
    vec s = v_div(e, v_add(v_set1(2), e)), z = v_mul(s, s), twice = v_add(s, s);
    return v_add(v_max(v_zero(), x), v_fma(twice, v_mul(z, polynomial(z, log_s, COUNT(log_s))), twice));
}

/* ---- a cell's activation, by kind */

struct activation {
    rnnkern_activation kind;
    real alpha, beta;
    int clipped;    /* its input */
    real clip;      /* to -clip..clip */
    real low, high; /* the first and the last value that has a slope */
};

NOT_INLINE vec activate_rarely(const struct activation *a, vec x)
{
    const vec alpha = v_set1(a->alpha), beta = v_set1(a->beta), zero = v_zero(), one = v_set1(1);
    const vmask negative = v_lt(x, zero);
    switch (a->kind) {
    case RNNKERN_HARD_SIGMOID:
        return v_clamp(zero, one, v_fma(alpha, x, beta));
    case RNNKERN_SOFTSIGN: /* infinity over infinity would be NaN */
        x = v_clamp(v_set1((real)-1e30), v_set1((real)1e30), x);
        return v_div(x, v_add(one, v_abs(x)));
    case RNNKERN_AFFINE:
        return v_fma(alpha, x, beta);
    case RNNKERN_LEAKY_RELU:
        return v_select(negative, v_mul(alpha, x), x);
    case RNNKERN_THRESHOLDED_RELU:
        return v_select(v_lt(alpha, x), x, v_clamp(zero, zero, x)); /* NaN stays */
    case RNNKERN_SCALED_TANH:
        return v_mul(alpha, v_tanh(v_mul(beta, x)));
    case RNNKERN_ELU:
        return v_select(negative, v_sub(zero, v_mul(alpha, v_one_minus_exp(v_sub(zero, x)))), x);
    default:
        return v_softplus(x);
    }
}

ALWAYS_INLINE vec activate(const struct activation *a, vec x)
{
    if (a->clipped)
        x = v_clamp(v_set1(-a->clip), v_set1(a->clip), x);
    return a->kind == RNNKERN_SIGMOID ? v_sigmoid(x)
           : a->kind == RNNKERN_TANH  ? v_tanh(x)
           : a->kind == RNNKERN_RELU  ? v_max(v_zero(), x)
                                      : activate_rarely(a, x);
}

/* Not NaN: its slope is 1, as in torch. */
static inline vmask v_zero_or_less(vec y) { return v_lt(y, v_set1(SMALLEST_NORMAL)); }

NOT_INLINE vec slope_rarely(const struct activation *a, vec y)
{
    const vec alpha = v_set1(a->alpha), beta = v_set1(a->beta), zero = v_zero(), one = v_set1(1);
    const vmask inactive = v_zero_or_less(y);
    vec rest;
    switch (a->kind) {
    case RNNKERN_THRESHOLDED_RELU:
        return v_select(inactive, zero, one);
    case RNNKERN_HARD_SIGMOID:
        return v_select(inactive, zero, v_select(v_lt(y, one), alpha, zero));
    case RNNKERN_SOFTSIGN:
        rest = v_sub(one, v_abs(y));
        return v_mul(rest, rest);
    case RNNKERN_AFFINE:
        return alpha;
    case RNNKERN_LEAKY_RELU:
        return v_select(inactive, alpha, one);
    case RNNKERN_SCALED_TANH:
        return v_mul(beta, v_sub(alpha, v_div(v_mul(y, y), alpha)));
    case RNNKERN_ELU:
        return v_select(v_lt(y, zero), v_add(y, alpha), one);
    default:
        return v_one_minus_exp(y);
    }
}

/* The derivative, from the value y. */
ALWAYS_INLINE vec slope(const struct activation *a, vec y)
{
    vec d = a->kind == RNNKERN_SIGMOID ? v_fnma(y, y, y)
            : a->kind == RNNKERN_TANH  ? v_fnma(y, y, v_set1(1))
            : a->kind == RNNKERN_RELU  ? v_select(v_zero_or_less(y), v_zero(), v_set1(1))
                                       : slope_rarely(a, y);
    if (a->clipped) /* NaN has one too */
        d = v_select(v_lt(y, v_set1(a->low)), v_zero(), v_select(v_lt(v_set1(a->high), y), v_zero(), d));
    return d;
}

/* The gradient dy before the activation whose value is y. */
ALWAYS_INLINE vec through(const struct activation *a, vec y, vec dy)
{
    const vec d = slope(a, y), product = v_mul(dy, d);
    if (!a->clipped && (a->kind == RNNKERN_SIGMOID || a->kind == RNNKERN_TANH))
        return product;
    return v_select(v_zero_or_less(v_abs(d)), v_zero(), product); /* an infinite dy times 0 would be NaN */
}

static real activated(const struct activation *a, real x)
{
    real lanes[VL];
    v_store(lanes, activate(a, v_set1(x)));
    return lanes[0];
}

/* The next value in a direction that is not subnormal. */
static real next_after(real x, int direction)
{
    const real far = (real)direction * (real)INFINITY;
    if (x == 0)
        return (real)direction * SMALLEST_NORMAL;
    return RK_DOUBLE ? (real)nextafter((double)x, (double)far) : (real)nextafterf((float)x, (float)far);
}

static struct activation activation_of(rnnkern_function function, const struct activation *usual, double clip)
{
    struct activation a = {.kind = function.kind, .alpha = (real)function.alpha, .beta = (real)function.beta};
    if (function.kind == RNNKERN_USUAL)
        a = *usual;
    if (clip > 0) {
        const real first = activated(&a, (real)-clip), second = activated(&a, (real)clip);
        a.clipped = 1;
        a.clip = (real)clip;
        a.low = next_after(first < second ? first : second, 1);
        a.high = next_after(first < second ? second : first, -1);
    }
    return a;
}

#endif
