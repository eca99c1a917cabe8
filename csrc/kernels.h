/* The seam between api.c and the kernels: one table for each (level, dtype), filled by variant.c. Arguments are those of
 * rnnkern.h, checked. */
#ifndef RK_KERNELS_H
#define RK_KERNELS_H

#include "rnnkern.h"

struct rk_kernels {
    rnnkern_status (*sizes)(const rnnkern_net *, const rnnkern_call *, rnnkern_sizes_t *);
    void (*plan)(const rnnkern_net *, const rnnkern_call *, rnnkern_plan_t *);
    void (*pack)(const rnnkern_net *, const void *const *weights, void *packed);
    void (*forward)(const rnnkern_net *, const rnnkern_call *, const void *packed, rnnkern_rows x, rnnkern_states hx,
                    rnnkern_states restart, rnnkern_rows y, rnnkern_states hx_n, void *tape, void *workspace);
    void (*backward)(const rnnkern_net *, const rnnkern_call *, const void *packed, rnnkern_rows x, void *tape,
                     rnnkern_rows dy, rnnkern_states dhx_n, rnnkern_rows dx, rnnkern_states dhx,
                     rnnkern_states drestart, void *const *grads, void *workspace);
    void (*activate)(rnnkern_function, int64_t n, const void *x, void *y);
    void (*draw_masks)(rnnkern_mask, double probability, uint64_t seed, int64_t layer, int direction, int64_t step,
                       int64_t first_row, int64_t rows, int64_t n, void *mask);
};

/* NULL where the level is not compiled in or this CPU lacks it. */
const struct rk_kernels *rk_find_kernels(int level, rnnkern_dtype dtype);

#endif
