/* The kernels for one SIMD level and dtype: compiled once for each, with RK_LEVEL_* and RK_DOUBLE set, into one table. */
#include "fpmode.h"
#include "kernels.h"
#include "parallel.h"
#include "simd/simd.h"

#include "kernels/act.h"
#include "kernels/gemm.h"
#include "kernels/cell.h"
#include "kernels/rnn.h"
#include "kernels/lstm.h"
#include "kernels/gru.h"
#include "kernels/mgu.h"
#include "kernels/indrnn.h"
#include "kernels/sru.h"
#include "kernels/mingru.h"
#include "kernels/cells.h"
#include "kernels/plan.h"
#include "kernels/job.h"
#include "kernels/pack.h"
#include "kernels/mask.h"
#include "kernels/norm.h"
#include "kernels/rows.h"
#include "kernels/trace.h"
#include "kernels/sequence.h"
#include "kernels/gradient.h"
#include "kernels/backward.h"

static rnnkern_status sizes(const rnnkern_net *net, const rnnkern_call *call, rnnkern_sizes_t *out)
{
    struct arena packed = {0}, tape = {0}, forward_work = {0}, backward_work = {0};
    struct cell variant;
    struct job job = job_for_call(net, call, &variant);
    arena_take(&packed, packed_size(&job), sizeof(real));
    if (call->keep != RNNKERN_KEEP_NONE) {
        layout_kept(&job, &tape);
        layout_backward(&job, &backward_work);
    }
    layout_forward(&job, &forward_work);
    *out = (rnnkern_sizes_t){packed.used, tape.used, forward_work.used, backward_work.used};
    return RNNKERN_OK;
}

static void plan(const rnnkern_net *net, const rnnkern_call *call, rnnkern_plan_t *out)
{
    struct cell variant;
    const struct job job = job_for_call(net, call, &variant);
    *out = (rnnkern_plan_t){.own_functions = !job.options,
                            .reason = job.reason,
                            .threads = job.threads,
                            .tile_rows = MAX_ROWS,
                            .tile_columns = TILE_COLUMNS,
                            .vector_lanes = VL,
                            .chunk_rows = job.project_rows};
}

static void activate_all(rnnkern_function function, int64_t n, const void *x, void *y)
{
    const struct activation a = activation_of(function, NULL, 0);
    rk_fpmode mode = rk_flush_subnormals();
    for (int64_t i = 0; i < n; i += VL) {
        const int64_t lanes = clamp_lanes(n - i);
        vec v = v_load_n((const real *)x + i, lanes);
        v_store_n((real *)y + i, lanes, activate(&a, v));
    }
    rk_restore_fpmode(mode);
}

const struct rk_kernels RK_TABLE = {
    .sizes = sizes,
    .plan = plan,
    .pack = pack,
    .forward = forward,
    .backward = backward,
    .activate = activate_all,
    .draw_masks = draw_masks,
};
