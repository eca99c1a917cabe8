/* The SIMD vocabulary: one `vec` of VL lanes of `real`, and the few operations that the kernels use.
 *
 * A translation unit is compiled for one level (RK_LEVEL_*) and one dtype (RK_DOUBLE 0 or 1). Every level provides
 * the same names with the same results to the last bit:
 *
 *   v_zero v_set1(r)                    v_load v_store (any alignment)
 *   v_load_n(p, n) v_store_n(p, n, x)   the first n lanes, 0 <= n <= VL; others load as zero and are not stored
 *   v_add v_sub v_mul v_div
 *   v_fma(a, b, c) = a*b + c            v_fnma(a, b, c) = c - a*b         one rounding
 *   v_max(a, b)    = a > b ? a : b      so that a NaN in b passes
 *   v_abs v_copysign(magnitude, sign)
 *   v_lt(a, b) -> vmask                 v_select(mask, yes, no)
 *   v_scale(y, n)  = y * 2^n            n integral; y * 2^n may be subnormal (and then flushed)
 *   v_zip(a, b, lo, hi)                 a0 b0 a1 b1 ... in lo and hi
 *   MAX_ROWS                            rows of a register tile with four columns
 */
#ifndef RK_SIMD_H
#define RK_SIMD_H

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#if RK_DOUBLE
typedef double real;
typedef int64_t real_bits;
#define SMALLEST_NORMAL DBL_MIN
#define MANTISSA_BITS 52
#define EXPONENT_BIAS 1023
#define ROUND_MAGIC 0x1.8p52 /* adding it rounds to an integer in the low mantissa bits */
#define SCALE_SPLIT 512      /* 2^(n+512) is normal for all n that v_scale meets; see v_scale */
#else
typedef float real;
typedef int32_t real_bits;
#define SMALLEST_NORMAL FLT_MIN
#define MANTISSA_BITS 23
#define EXPONENT_BIAS 127
#define ROUND_MAGIC 0x1.8p23f
#define SCALE_SPLIT 64
#endif

#if defined RK_LEVEL_AVX512
#include "avx512.h"
#elif defined RK_LEVEL_AVX2
#include "avx2.h"
#elif defined RK_LEVEL_NEON
#include "neon.h"
#else
#include "scalar.h"
#endif

#endif
