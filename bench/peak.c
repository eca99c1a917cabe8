/* The machine's peak of fused multiply-adds at one SIMD level and dtype: chains in registers, nothing from memory. */
#include "parallel.h"
#include "simd/simd.h"

#define CHAINS 12 /* hides the latency of two units of 4 to 5 cycles, and leaves registers free at every level */

static void multiply_add(void *context, const struct rk_member *member)
{
    (void)member;
    static volatile real factor = 0.5f;
    const vec a = v_set1(factor), b = v_set1(factor);
    vec sum[CHAINS];
    for (int j = 0; j < CHAINS; j++)
        sum[j] = v_set1((real)j);
    for (int64_t i = *(const int64_t *)context; i > 0; i--) {
        _Pragma("GCC unroll 12") /* or the sums would live in memory */
            for (int j = 0; j < CHAINS; j++) sum[j] = v_fma(sum[j], a, b);
    }
    for (int j = 1; j < CHAINS; j++)
        sum[0] = v_add(sum[0], sum[j]);
    real total[VL];
    v_store(total, sum[0]);
    factor = total[0] < 0 ? total[0] : factor; /* never: so that the sums are wanted */
}

/* Returns the number of operations, two for each fused multiply-add. */
double peak_run(int threads, int64_t iterations)
{
    rk_team_run(threads, 1000000, multiply_add, &iterations);
    return 2.0 * threads * CHAINS * VL * (double)iterations;
}
