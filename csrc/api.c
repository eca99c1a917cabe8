/* The public functions: check the arguments, then call through the table of the level. */
#include "kernels.h"

#include <stdint.h>

static int is_probability(double p) { return p >= 0 && p <= 1; }

static int sound_function(rnnkern_function f)
{
    const int never_below = f.kind == RNNKERN_LEAKY_RELU || f.kind == RNNKERN_THRESHOLDED_RELU || f.kind == RNNKERN_ELU;
    return (unsigned)f.kind < RNNKERN_ACTIVATIONS && !(never_below && !(f.alpha >= 0)) &&
           !(f.kind == RNNKERN_SCALED_TANH && f.alpha == 0);
}

/* Options that only some cells have. */
static int sound_options(const rnnkern_net *net)
{
    const int lstm = net->cell == RNNKERN_LSTM, sru = net->cell == RNNKERN_SRU;
    const int normalises = lstm || net->cell == RNNKERN_RNN || net->cell == RNNKERN_GRU;
    return (lstm || (!net->proj_size && !net->coupled && !net->peephole && !(net->cell_clip > 0))) &&
           (normalises || !net->layer_norm) && (!net->layer_norm || net->norm_eps > 0) &&
           (lstm || sru || !(net->zoneout_c > 0)) && !(sru && net->zoneout_h > 0);
}

static int sound_net(const rnnkern_net *net)
{
    return net && (unsigned)net->cell < RNNKERN_CELLS && (unsigned)net->dtype <= RNNKERN_FLOAT64 &&
           net->input_size > 0 && net->hidden_size > 0 && net->num_layers > 0 &&
           (net->num_directions == 1 || net->num_directions == 2) && net->proj_size >= 0 &&
           net->proj_size < net->hidden_size && (unsigned)net->coupled <= RNNKERN_COUPLED_FORGET &&
           sound_function(net->gate) && sound_function(net->candidate) && sound_function(net->output) &&
           net->clip >= 0 && net->cell_clip >= 0 && is_probability(net->zoneout_h) && is_probability(net->zoneout_c) &&
           sound_options(net);
}

static int has_product(const rnnkern_net *net)
{
    return net->cell != RNNKERN_INDRNN && net->cell != RNNKERN_SRU && net->cell != RNNKERN_MINGRU;
}

int64_t rnnkern_weight_size(const rnnkern_net *net, int64_t layer, rnnkern_weight weight)
{
    static const int blocks[RNNKERN_CELLS] = {
        [RNNKERN_RNN] = 1, [RNNKERN_LSTM] = 4,   [RNNKERN_GRU] = 3, [RNNKERN_GRU_BEFORE] = 3,
        [RNNKERN_MGU] = 2, [RNNKERN_INDRNN] = 1, [RNNKERN_SRU] = 4, [RNNKERN_MINGRU] = 2,
    };
    const int64_t gates = blocks[net->cell] - (net->coupled != RNNKERN_UNCOUPLED);
    const int64_t units = net->hidden_size, width = net->proj_size ? net->proj_size : units;
    switch (weight) {
    case RNNKERN_WEIGHT_IH:
        return gates * units * (layer ? net->num_directions * width : net->input_size);
    case RNNKERN_WEIGHT_HH:
        return has_product(net) ? gates * units * width : net->cell == RNNKERN_INDRNN ? units : 0;
    case RNNKERN_BIAS_IH:
        return net->bias ? gates * units : 0;
    case RNNKERN_BIAS_HH:
        return net->bias && has_product(net) ? gates * units : 0;
    case RNNKERN_WEIGHT_HR:
        return net->proj_size * units;
    case RNNKERN_WEIGHT_CH:
        return net->cell == RNNKERN_SRU ? 2 * units : net->peephole ? (gates - 1) * units : 0;
    case RNNKERN_NORM_IH:
    case RNNKERN_NORM_HH:
        return net->layer_norm ? gates * units : 0;
    case RNNKERN_NORM_C:
    case RNNKERN_NORM_C_BIAS:
        return net->layer_norm && net->cell == RNNKERN_LSTM ? units : 0;
    default:
        return 0;
    }
}

/* Dropout that a call asks for and the cell does not have. */
static int sound_dropout(const rnnkern_net *net, const rnnkern_call *call)
{
    const int candidate = net->cell != RNNKERN_RNN && net->cell != RNNKERN_INDRNN;
    return (!(call->hidden_dropout > 0) || rnnkern_weight_size(net, 0, RNNKERN_WEIGHT_HH) > 0) &&
           (!(call->candidate_dropout > 0) || candidate);
}

static int sound_call(const rnnkern_call *call)
{
    if (!call || call->steps < 0 || call->rows < 0 || (unsigned)call->restart_kind > RNNKERN_RESTART_PER_ROW ||
        (unsigned)call->keep > RNNKERN_KEEP_SEGMENTS || (unsigned)call->split > RNNKERN_SPLIT_UNITS ||
        call->threads < 1 || !is_probability(call->dropout) || !is_probability(call->input_dropout) ||
        !is_probability(call->output_dropout) || !is_probability(call->hidden_dropout) ||
        !is_probability(call->candidate_dropout) || !(call->clip >= 0) || call->first_step < 0 ||
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
    const double weights = stack * 4 * hidden * (input + hidden + 32);
    double rows = 0;
    if (call) {
        if (call->steps > INT32_MAX || call->rows > INT32_MAX)
            return 0;
        rows = ((double)call->steps + 2) * ((double)call->rows + 1024) * (stack * 64 * hidden + 2 * input + 64);
        rows += (double)call->threads * 64 * ((double)call->rows + 1024);
    }
    return (weights + rows) * 64 < 0x1p62;
}

static rnnkern_status check(const rnnkern_net *net, const rnnkern_call *call, const struct rk_kernels **kernels)
{
    if (!sound_net(net) || (call && !(sound_call(call) && sound_dropout(net, call))))
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
    for (int64_t i = 0; i < net->num_layers * net->num_directions * RNNKERN_WEIGHTS; i++)
        if (!weights[i] != !rnnkern_weight_size(net, 0, (rnnkern_weight)(i % RNNKERN_WEIGHTS)))
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

rnnkern_status rnnkern_activate(rnnkern_dtype dtype, int level, rnnkern_function function, int64_t n, const void *x,
                                void *y)
{
    const struct rk_kernels *kernels = (unsigned)dtype <= RNNKERN_FLOAT64 ? rk_find_kernels(level, dtype) : NULL;
    if (!kernels)
        return RNNKERN_NO_LEVEL;
    if (function.kind == RNNKERN_USUAL || !sound_function(function))
        return RNNKERN_BAD_ARGUMENT;
    kernels->activate(function, n, x, y);
    return RNNKERN_OK;
}

rnnkern_status rnnkern_draw_masks(rnnkern_dtype dtype, int level, rnnkern_mask kind, double probability, uint64_t seed,
                                  int64_t layer, int direction, int64_t step, int64_t first_row, int64_t rows,
                                  int64_t n, void *mask)
{
    const struct rk_kernels *kernels = (unsigned)dtype <= RNNKERN_FLOAT64 ? rk_find_kernels(level, dtype) : NULL;
    if (!kernels)
        return RNNKERN_NO_LEVEL;
    if ((unsigned)kind > RNNKERN_MASK_WEIGHTS || !is_probability(probability))
        return RNNKERN_BAD_ARGUMENT;
    kernels->draw_masks(kind, probability, seed, layer, direction, step, first_row, rows, n, mask);
    return RNNKERN_OK;
}
