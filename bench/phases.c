/* Calls of the package's kernels from which pieces can be left out, so that the difference of two times is a piece's time.
 * Compiled a second time with WITHOUT_POINTWISE, where activations and state updates are no loops at all. */
#include "fpmode.h"
#include "kernels.h"
#include "parallel.h"
#include "simd/simd.h"

#include "kernels/act.h"
#include "kernels/gemm.h"
#include "kernels/cell.h"

#ifdef WITHOUT_POINTWISE
#ifndef FOR_EACH_VECTOR
#error "no loop to leave out: phases.c has to follow cell.h"
#endif
#undef FOR_EACH_VECTOR
#define FOR_EACH_VECTOR(s, panels, p, i, v) for (int64_t p = 0, i = 0, v = 0; p < 0 && (s) && (panels).first; p++)
#endif

#include "variant.c"

#include <stdlib.h>

#define KINDS 4 /* of weights that a cell has without options: the first of rnnkern_weight */

struct layer {
    rnnkern_net net;
    rnnkern_call call;
    float *weights[RNNKERN_WEIGHTS], *grads[RNNKERN_WEIGHTS], *x, *y, *dx;
    void *packed, *tape, *workspace;
};

static void *memory(size_t bytes)
{
    bytes = (bytes + RNNKERN_ALIGNMENT) / RNNKERN_ALIGNMENT * RNNKERN_ALIGNMENT;
    return memset(aligned_alloc(RNNKERN_ALIGNMENT, bytes), 0, bytes);
}

/* Uniform in +-0.1: gates neither saturate nor vanish. */
static float *numbers(int64_t n)
{
    float *values = memory((size_t)n * sizeof *values);
    uint32_t seed = 1;
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 1664525 + 1013904223;
        values[i] = 0.2f * ((float)(seed >> 8) * 0x1p-24f - 0.5f);
    }
    return values;
}

/* One unidirectional layer, of an RNN, LSTM or GRU, with numbers of its own; training keeps the gates. */
struct layer *phases_open(int cell, int64_t steps, int64_t rows, int64_t inputs, int64_t hidden, int threads,
                          int training)
{
    struct layer *l = memory(sizeof *l);
    l->net = (rnnkern_net){.cell = (rnnkern_cell)cell,
                           .bias = 1,
                           .input_size = inputs,
                           .hidden_size = hidden,
                           .num_layers = 1,
                           .num_directions = 1};
    l->call = (rnnkern_call){
        .steps = steps, .rows = rows, .threads = threads, .keep = training ? RNNKERN_KEEP_GATES : RNNKERN_KEEP_NONE};
    struct cell variant;
    const int64_t gates = job_for(&l->net, NULL, &variant).cell->gates * hidden;
    const int64_t size[KINDS] = {gates * inputs, gates * hidden, gates, gates};
    for (int i = 0; i < KINDS; i++) {
        l->weights[i] = numbers(size[i]);
        l->grads[i] = numbers(size[i]);
    }
    l->x = numbers(steps * rows * inputs);
    l->dx = numbers(steps * rows * inputs);
    l->y = numbers(steps * rows * hidden);
    rnnkern_sizes_t bytes;
    sizes(&l->net, &l->call, &bytes);
    l->packed = memory(bytes.packed);
    l->tape = training ? memory(bytes.tape) : NULL;
    l->workspace = memory(bytes.forward_workspace + bytes.backward_workspace);
    pack(&l->net, (const void *const *)l->weights, l->packed);
    return l;
}

void phases_close(struct layer *l)
{
    for (int i = 0; i < KINDS; i++) {
        free(l->weights[i]);
        free(l->grads[i]);
    }
    free(l->x);
    free(l->dx);
    free(l->y);
    free(l->packed);
    free(l->tape);
    free(l->workspace);
    free(l);
}

static rnnkern_rows rows_of(const struct layer *l, float *data, int64_t features)
{
    return (rnnkern_rows){.data = data, .step = l->call.rows * features, .row = features};
}

void phases_pack(struct layer *l) { pack(&l->net, (const void *const *)l->weights, l->packed); }

void phases_forward(struct layer *l)
{
    const rnnkern_states none = {0};
    forward(&l->net, &l->call, l->packed, rows_of(l, l->x, l->net.input_size), none, none,
            rows_of(l, l->y, l->net.hidden_size), none, l->tape, l->workspace);
}

/* y serves as dy. */
void phases_backward(struct layer *l, int need_dw, int need_dx)
{
    const rnnkern_states none = {0};
    backward(&l->net, &l->call, l->packed, rows_of(l, l->x, l->net.input_size), l->tape,
             rows_of(l, l->y, l->net.hidden_size), none, rows_of(l, need_dx ? l->dx : NULL, l->net.input_size), none,
             none, need_dw ? (void *const *)l->grads : NULL, l->workspace);
}
