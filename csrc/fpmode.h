/* Flush-to-zero and denormals-are-zero, so that subnormal values never slow a step. */
#ifndef RK_FPMODE_H
#define RK_FPMODE_H

#if defined __x86_64__ || defined __i386__
#include <xmmintrin.h>
typedef unsigned rk_fpmode;
static inline rk_fpmode rk_flush_subnormals(void)
{
    rk_fpmode found = _mm_getcsr();
    _mm_setcsr(found | 0x8040); /* FTZ, DAZ */
    return found;
}
static inline void rk_restore_fpmode(rk_fpmode found) { _mm_setcsr(found); }
#elif defined __aarch64__
#include <stdint.h>
typedef uint64_t rk_fpmode;
static inline rk_fpmode rk_flush_subnormals(void)
{
    rk_fpmode found;
    __asm__ volatile("mrs %0, fpcr" : "=r"(found));
    __asm__ volatile("msr fpcr, %0" : : "r"(found | (UINT64_C(1) << 24))); /* FZ: inputs and results */
    return found;
}
static inline void rk_restore_fpmode(rk_fpmode found) { __asm__ volatile("msr fpcr, %0" : : "r"(found)); }
#else
typedef int rk_fpmode;
static inline rk_fpmode rk_flush_subnormals(void) { return 0; }
static inline void rk_restore_fpmode(rk_fpmode found) { (void)found; }
#endif

#endif
