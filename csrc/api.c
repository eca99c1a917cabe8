/* The public functions: check the arguments, then call through the table of the level. */
#include "kernels.h"

#include <stdint.h>

static int sound_net(const rnnkern_net *net)
{
    return net && (unsigned)net->cell < RNNKERN_CELLS && (unsigned)net->dtype <= RNNKERN_FLOAT64 &&
           net->input_size > 0 && net->hidden_size > 0 && net->num_layers > 0 &&
           (net->num_directions == 1 || net->num_directions == 2);
}

static int sound_call(const rnnkern_call *call)
{
    if (!call || call->steps < 0 || call->rows < 0 || (unsigned)call->restart_kind > RNNKERN_RESTART_PER_ROW ||
        (unsigned)call->keep > RNNKERN_KEEP_SEGMENTS || (unsigned)call->split > RNNKERN_SPLIT_UNITS ||
        call->threads < 1 || !(call->dropout >= 0 && call->dropout <= 1) || !(call->clip >= 0) ||
        (call->keep == RNNKERN_KEEP_SEGMENTS && call->segment < 1) ||
        (call->row_grads && call->keep != RNNKERN_KEEP_GATES))
        return 0;
    for (int64_t b = 0; call->lengths && b < call->rows; b++)
        if (call->lengths[b] < 0 || call->lengths[b] > call->steps)
            return 0;
    return 1;
}

/* An upper bound of every size that the kernels compute, in floating point, where nothing overflows. Steps and rows also
 * have to fit in the 32 bits in which rows.h and the dropout counters hold them. */
static int fits(const rnnkern_net *net, const rnnkern_call *call)
{
    const double hidden = (double)net->hidden_size + 16, stack = (double)net->num_layers * (double)net->num_directions;
    const double input = (double)net->input_size + 2 * hidden + 16;
    const double weights = stack * 4 * hidden * (input + hidden);
    double rows = 0;
    if (call) {
        if (call->steps > INT32_MAX || call->rows > INT32_MAX)
            return 0;
        rows = ((double)call->steps + 2) * ((double)call->rows + 1024) * (stack * 16 * hidden + input + 64);
        rows += (double)call->threads * 64 * ((double)call->rows + 1024);
    }
    return (weights + rows) * 64 < 0x1p62;
}

static rnnkern_status check(const rnnkern_net *net, const rnnkern_call *call, const struct rk_kernels **kernels)
{
    if (!sound_net(net) || (call && !sound_call(call)))
        return RNNKERN_BAD_ARGUMENT;
    if (!fits(net, call))
        return RNNKERN_OVERFLOW;
    *kernels = rk_find_kernels(net->level, net->dtype);
    return *kernels ? RNNKERN_OK : RNNKERN_NO_LEVEL;
}

rnnkern_status rnnkern_sizes(const rnnkern_net *net, const rnnkern_call *call, rnnkern_sizes_t *sizes)
{
    const struct rk_kernels *kernels;
    if (!call || !sizes)
        return RNNKERN_BAD_ARGUMENT;
    rnnkern_status status = check(net, call, &kernels);
    return status ? status : kernels->sizes(net, call, sizes);
}

rnnkern_status rnnkern_plan(const rnnkern_net *net, const rnnkern_call *call, rnnkern_plan_t *plan)
{
    const struct rk_kernels *kernels;
    if (!call || !plan)
        return RNNKERN_BAD_ARGUMENT;
    rnnkern_status status = check(net, call, &kernels);
    if (!status)
        kernels->plan(net, call, plan);
    return status;
}

rnnkern_status rnnkern_pack(const rnnkern_net *net, const void *const *weights, void *packed)
{
    const struct rk_kernels *kernels;
    rnnkern_status status = check(net, NULL, &kernels);
    if (status)
        return status;
    if (!weights || !packed)
        return RNNKERN_BAD_ARGUMENT;
    for (int64_t i = 0; i < net->num_layers * net->num_directions * 4; i++)
        if (!weights[i] && (i % 4 < 2 || net->bias))
            return RNNKERN_BAD_ARGUMENT;
    kernels->pack(net, weights, packed);
    return RNNKERN_OK;
}

rnnkern_status rnnkern_forward(const rnnkern_net *net, const rnnkern_call *call, const void *packed, rnnkern_rows x,
                               rnnkern_states hx, rnnkern_states restart, rnnkern_rows y, rnnkern_states hx_n,
                               void *tape, void *workspace)
{
    const struct rk_kernels *kernels;
    rnnkern_status status = call ? check(net, call, &kernels) : RNNKERN_BAD_ARGUMENT;
    if (status)
        return status;
    if (!packed || !workspace || !tape != (call->keep == RNNKERN_KEEP_NONE) || (!x.data && call->steps && call->rows))
        return RNNKERN_BAD_ARGUMENT;
    kernels->forward(net, call, packed, x, hx, restart, y, hx_n, tape, workspace);
    return RNNKERN_OK;
}

rnnkern_status rnnkern_backward(const rnnkern_net *net, const rnnkern_call *call, const void *packed, rnnkern_rows x,
                                void *tape, rnnkern_rows dy, rnnkern_states dhx_n, rnnkern_rows dx, rnnkern_states dhx,
                                rnnkern_states drestart, void *const *grads, void *workspace)
{
    const struct rk_kernels *kernels;
    rnnkern_status status = call ? check(net, call, &kernels) : RNNKERN_BAD_ARGUMENT;
    if (status)
        return status;
    if (!packed || !workspace || !tape || call->keep == RNNKERN_KEEP_NONE || (!x.data && call->steps && call->rows))
        return RNNKERN_BAD_ARGUMENT;
    kernels->backward(net, call, packed, x, tape, dy, dhx_n, dx, dhx, drestart, grads, workspace);
    return RNNKERN_OK;
}

rnnkern_status rnnkern_activate(rnnkern_dtype dtype, int level, rnnkern_activation activation, int64_t n, const void *x,
                                void *y)
{
    const struct rk_kernels *kernels = (unsigned)dtype <= RNNKERN_FLOAT64 ? rk_find_kernels(level, dtype) : NULL;
    if (!kernels)
        return RNNKERN_NO_LEVEL;
    kernels->activate(activation, n, x, y);
    return RNNKERN_OK;
}

rnnkern_status rnnkern_dropout_mask(rnnkern_dtype dtype, double dropout, uint64_t seed, int64_t layer, int64_t step,
                                    int64_t row, int64_t n, void *mask)
{
    const struct rk_kernels *kernels = (unsigned)dtype <= RNNKERN_FLOAT64 ? rk_find_kernels(0, dtype) : NULL;
    for (int level = 1; !kernels && rnnkern_level_name(level); level++)
        kernels = rk_find_kernels(level, dtype);
    kernels->dropout_mask(dropout, seed, layer, step, row, n, mask);
    return RNNKERN_OK;
}
