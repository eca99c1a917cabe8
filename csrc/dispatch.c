/* The compiled SIMD levels, best first, and whether this machine has them. */
#include "kernels.h"

#if defined __x86_64__
extern const struct rk_kernels rk_avx512_f32, rk_avx512_f64, rk_avx2_f32, rk_avx2_f64;

/* __builtin_cpu_supports asks the CPU and whether the operating system saves the registers. */
static int has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("fma");
}
static int has_avx2(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
#elif defined __aarch64__
extern const struct rk_kernels rk_neon_f32, rk_neon_f64;
#endif

extern const struct rk_kernels rk_scalar_f32, rk_scalar_f64;
static int always(void) { return 1; }

static const struct {
    const char *name;
    int (*supported)(void);
    const struct rk_kernels *kernels[2]; /* by dtype */
} levels[] = {
#if defined __x86_64__
    {"avx512", has_avx512, {&rk_avx512_f32, &rk_avx512_f64}},
    {"avx2", has_avx2, {&rk_avx2_f32, &rk_avx2_f64}},
#elif defined __aarch64__
    {"neon", always, {&rk_neon_f32, &rk_neon_f64}},
#endif
    {"scalar", always, {&rk_scalar_f32, &rk_scalar_f64}},
};
#define LEVELS ((int)(sizeof levels / sizeof *levels))

const char *rnnkern_level_name(int level) { return level >= 0 && level < LEVELS ? levels[level].name : NULL; }

int rnnkern_level_supported(int level) { return level >= 0 && level < LEVELS && levels[level].supported(); }

const struct rk_kernels *rk_find_kernels(int level, rnnkern_dtype dtype)
{
    return rnnkern_level_supported(level) ? levels[level].kernels[dtype] : NULL;
}
