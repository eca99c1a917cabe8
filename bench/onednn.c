/* oneDNN 3 driven directly: one layer, its weights in our layout and in the layouts that oneDNN prefers.
 *
 * A layer is a list of primitives. Inference reorders the weights once, when it is opened, as every serving library does;
 * training reorders them and their gradients on each call, since an optimiser steps in between. */
#include <dnnl.h>
#include <omp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum cell { RNN, LSTM, GRU, GRU_BEFORE };
enum { X, H0, C0, WX, WH, BIAS, Y, HN, CN, OPERANDS };
enum { DIFF = DNNL_ARG_DIFF_SRC_0 - DNNL_ARG_SRC_0 }; /* from an operand's argument number to its gradient's */
#define PRIMITIVES 10

static const int argument[OPERANDS] = {DNNL_ARG_SRC_LAYER,     DNNL_ARG_SRC_ITER,     DNNL_ARG_SRC_ITER_C,
                                       DNNL_ARG_WEIGHTS_LAYER, DNNL_ARG_WEIGHTS_ITER, DNNL_ARG_BIAS,
                                       DNNL_ARG_DST_LAYER,     DNNL_ARG_DST_ITER,     DNNL_ARG_DST_ITER_C};

struct run {
    dnnl_primitive_t primitive;
    int count;
    dnnl_exec_arg_t arguments[2 * OPERANDS + 1];
};

struct layer {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    int cell, threads, first, runs;
    struct run run[PRIMITIVES];
    int memories;
    dnnl_memory_t memory[6 * OPERANDS];
    dnnl_memory_desc_t user[OPERANDS], any[OPERANDS];
    int failed;
};

static void check(struct layer *l, dnnl_status_t status) { l->failed |= status != dnnl_success; }

static dnnl_memory_t new_memory(struct layer *l, const_dnnl_memory_desc_t desc, void *data)
{
    dnnl_memory_t *memory = &l->memory[l->memories++];
    check(l, dnnl_memory_create(memory, desc, l->engine, data));
    return *memory;
}

static void describe(struct layer *l, int operand, int ndims, const int64_t *size, dnnl_format_tag_t tag)
{
    dnnl_dims_t dims;
    memcpy(dims, size, (size_t)ndims * sizeof *size);
    check(l, dnnl_memory_desc_create_with_tag(&l->user[operand], ndims, dims, dnnl_f32, tag));
    const int weights = operand == WX || operand == WH;
    check(l, dnnl_memory_desc_create_with_tag(&l->any[operand], ndims, dims, dnnl_f32,
                                              weights ? dnnl_format_tag_any : tag));
}

static void describe_all(struct layer *l, int64_t steps, int64_t rows, int64_t inputs, int64_t hidden)
{
    static const int64_t gates[] = {[RNN] = 1, [LSTM] = 4, [GRU] = 3, [GRU_BEFORE] = 3};
    const int64_t state[] = {1, 1, rows, hidden}, n = gates[l->cell];
    describe(l, X, 3, (int64_t[]){steps, rows, inputs}, dnnl_tnc);
    describe(l, Y, 3, (int64_t[]){steps, rows, hidden}, dnnl_tnc);
    describe(l, WX, 5, (int64_t[]){1, 1, inputs, n, hidden}, dnnl_ldgoi);
    describe(l, WH, 5, (int64_t[]){1, 1, hidden, n, hidden}, dnnl_ldgoi);
    describe(l, BIAS, 4, (int64_t[]){1, 1, n + (l->cell == GRU), hidden}, dnnl_ldgo);
    describe(l, H0, 4, state, dnnl_ldnc);
    describe(l, HN, 4, state, dnnl_ldnc);
    if (l->cell == LSTM) {
        describe(l, C0, 4, state, dnnl_ldnc);
        describe(l, CN, 4, state, dnnl_ldnc);
    }
}

#define LEFT dnnl_unidirectional_left2right
#define FLAGS dnnl_rnn_flags_diff_weights_overwrite

static dnnl_primitive_desc_t forward_desc(struct layer *l, int training)
{
    const dnnl_memory_desc_t *m = l->any;
    const dnnl_prop_kind_t kind = training ? dnnl_forward_training : dnnl_forward_inference;
    dnnl_primitive_desc_t desc = NULL;
    switch (l->cell) {
    case LSTM:
        check(l, dnnl_lstm_forward_primitive_desc_create(&desc, l->engine, kind, LEFT, m[X], m[H0], m[C0], m[WX], m[WH],
                                                         NULL, NULL, m[BIAS], m[Y], m[HN], m[CN], FLAGS, NULL));
        break;
    case GRU:
        check(l, dnnl_lbr_gru_forward_primitive_desc_create(&desc, l->engine, kind, LEFT, m[X], m[H0], m[WX], m[WH],
                                                            m[BIAS], m[Y], m[HN], FLAGS, NULL));
        break;
    case GRU_BEFORE:
        check(l, dnnl_gru_forward_primitive_desc_create(&desc, l->engine, kind, LEFT, m[X], m[H0], m[WX], m[WH],
                                                        m[BIAS], m[Y], m[HN], FLAGS, NULL));
        break;
    default:
        check(l, dnnl_vanilla_rnn_forward_primitive_desc_create(&desc, l->engine, kind, dnnl_eltwise_tanh, LEFT, m[X],
                                                                m[H0], m[WX], m[WH], m[BIAS], m[Y], m[HN], FLAGS, 0, 0,
                                                                NULL));
    }
    return desc;
}

/* A gradient has its operand's description. */
static dnnl_primitive_desc_t backward_desc(struct layer *l, const_dnnl_primitive_desc_t hint)
{
    const dnnl_memory_desc_t *m = l->any;
    const dnnl_prop_kind_t kind = dnnl_backward;
    dnnl_primitive_desc_t desc = NULL;
    switch (l->cell) {
    case LSTM:
        check(l, dnnl_lstm_backward_primitive_desc_create(&desc, l->engine, kind, LEFT, m[X], m[H0], m[C0], m[WX],
                                                          m[WH], NULL, NULL, m[BIAS], m[Y], m[HN], m[CN], m[X], m[H0],
                                                          m[C0], m[WX], m[WH], NULL, NULL, m[BIAS], m[Y], m[HN], m[CN],
                                                          FLAGS, hint, NULL));
        break;
    case GRU:
        check(l, dnnl_lbr_gru_backward_primitive_desc_create(&desc, l->engine, kind, LEFT, m[X], m[H0], m[WX], m[WH],
                                                             m[BIAS], m[Y], m[HN], m[X], m[H0], m[WX], m[WH], m[BIAS],
                                                             m[Y], m[HN], FLAGS, hint, NULL));
        break;
    case GRU_BEFORE:
        check(l, dnnl_gru_backward_primitive_desc_create(&desc, l->engine, kind, LEFT, m[X], m[H0], m[WX], m[WH],
                                                         m[BIAS], m[Y], m[HN], m[X], m[H0], m[WX], m[WH], m[BIAS], m[Y],
                                                         m[HN], FLAGS, hint, NULL));
        break;
    default:
        check(l, dnnl_vanilla_rnn_backward_primitive_desc_create(
                     &desc, l->engine, kind, dnnl_eltwise_tanh, LEFT, m[X], m[H0], m[WX], m[WH], m[BIAS], m[Y], m[HN],
                     m[X], m[H0], m[WX], m[WH], m[BIAS], m[Y], m[HN], FLAGS, 0, 0, hint, NULL));
    }
    return desc;
}

static struct run *add_primitive(struct layer *l, const_dnnl_primitive_desc_t desc)
{
    struct run *run = &l->run[l->runs++];
    check(l, dnnl_primitive_create(&run->primitive, desc));
    return run;
}

static void add_argument(struct run *run, int number, dnnl_memory_t memory)
{
    run->arguments[run->count++] = (dnnl_exec_arg_t){number, memory};
}

static void add_reorder(struct layer *l, dnnl_memory_t from, const_dnnl_memory_desc_t from_desc, dnnl_memory_t to,
                        const_dnnl_memory_desc_t to_desc)
{
    dnnl_primitive_desc_t desc = NULL;
    check(l, dnnl_reorder_primitive_desc_create(&desc, from_desc, l->engine, to_desc, l->engine, NULL));
    if (l->failed)
        return;
    struct run *run = add_primitive(l, desc);
    add_argument(run, DNNL_ARG_FROM, from);
    add_argument(run, DNNL_ARG_TO, to);
    dnnl_primitive_desc_destroy(desc);
}

static const_dnnl_memory_desc_t preferred(const_dnnl_primitive_desc_t desc, int number)
{
    return dnnl_primitive_desc_query_md(desc, dnnl_query_exec_arg_md, number);
}

/* Memories of the operands for one primitive: the weights as it prefers them, the others the user's. */
static void prepare(struct layer *l, const_dnnl_primitive_desc_t desc, dnnl_memory_t *user, dnnl_memory_t *used)
{
    for (int i = 0; i < OPERANDS; i++) {
        used[i] = user[i];
        if (i == WX || i == WH) {
            const const_dnnl_memory_desc_t wanted = preferred(desc, argument[i]);
            used[i] = new_memory(l, wanted, DNNL_MEMORY_ALLOCATE);
            add_reorder(l, user[i], l->user[i], used[i], wanted);
        }
    }
}

static void add_operands(struct layer *l, struct run *run, int offset, dnnl_memory_t *memory)
{
    for (int i = 0; i < OPERANDS; i++)
        if (l->user[i])
            add_argument(run, argument[i] + offset, memory[i]);
}

/* Reads the gradients of y and the final state, writes all others, the weights' in the user's layout. */
static void build_backward(struct layer *l, const_dnnl_primitive_desc_t forward, dnnl_memory_t *user,
                           dnnl_memory_t workspace, float *const *gradient)
{
    dnnl_memory_t used[OPERANDS], slopes[OPERANDS] = {0};
    const dnnl_primitive_desc_t backward = backward_desc(l, forward);
    if (l->failed)
        return;
    prepare(l, backward, user, used);
    for (int i = 0; i < OPERANDS; i++) {
        const int weights = i == WX || i == WH;
        if (l->user[i])
            slopes[i] = weights ? new_memory(l, preferred(backward, argument[i] + DIFF), DNNL_MEMORY_ALLOCATE)
                                : new_memory(l, l->user[i], gradient[i]);
    }
    struct run *run = add_primitive(l, backward);
    add_operands(l, run, 0, used);
    add_operands(l, run, DIFF, slopes);
    add_argument(run, DNNL_ARG_WORKSPACE, workspace);
    for (int i = WX; i <= WH; i++) {
        const dnnl_memory_t wanted = new_memory(l, l->user[i], gradient[i]);
        add_reorder(l, slopes[i], preferred(backward, argument[i] + DIFF), wanted, l->user[i]);
    }
    dnnl_primitive_desc_destroy(backward);
}

/* data: the operands; gradient: those of the operands, NULL for inference. */
static void build(struct layer *l, float *const *data, float *const *gradient)
{
    dnnl_memory_t user[OPERANDS] = {0}, used[OPERANDS];
    for (int i = 0; i < OPERANDS; i++)
        if (l->user[i])
            user[i] = new_memory(l, l->user[i], data[i]);
    const dnnl_primitive_desc_t forward = forward_desc(l, gradient != NULL);
    if (l->failed)
        return;
    prepare(l, forward, user, used);
    l->first = gradient ? 0 : l->runs;
    struct run *run = add_primitive(l, forward);
    add_operands(l, run, 0, used);
    if (gradient) {
        const const_dnnl_memory_desc_t kept = dnnl_primitive_desc_query_md(forward, dnnl_query_workspace_md, 0);
        const dnnl_memory_t workspace = new_memory(l, kept, DNNL_MEMORY_ALLOCATE);
        add_argument(run, DNNL_ARG_WORKSPACE, workspace);
        build_backward(l, forward, user, workspace, gradient);
    }
    dnnl_primitive_desc_destroy(forward);
}

static void execute(struct layer *l, int begin, int end)
{
    omp_set_num_threads(l->threads);
    for (int i = begin; i < end; i++)
        check(l, dnnl_primitive_execute(l->run[i].primitive, l->stream, l->run[i].count, l->run[i].arguments));
    check(l, dnnl_stream_wait(l->stream));
}

/* Runs the layer; 0 when all went well. */
int onednn_run(struct layer *l)
{
    execute(l, l->first, l->runs);
    return l->failed;
}

void onednn_close(struct layer *l)
{
    for (int i = 0; i < l->runs; i++)
        dnnl_primitive_destroy(l->run[i].primitive);
    for (int i = 0; i < l->memories; i++)
        dnnl_memory_destroy(l->memory[i]);
    for (int i = 0; i < OPERANDS; i++)
        if (l->user[i]) {
            dnnl_memory_desc_destroy(l->user[i]);
            dnnl_memory_desc_destroy(l->any[i]);
        }
    dnnl_stream_destroy(l->stream);
    dnnl_engine_destroy(l->engine);
    free(l);
}

/* NULL where oneDNN does not support what is asked for. */
struct layer *onednn_open(int cell, int threads, int64_t steps, int64_t rows, int64_t inputs, int64_t hidden,
                          float *const *data, float *const *gradient)
{
    struct layer *l = calloc(1, sizeof *l);
    l->cell = cell;
    l->threads = threads;
    omp_set_num_threads(threads);
    check(l, dnnl_engine_create(&l->engine, dnnl_cpu, 0));
    check(l, dnnl_stream_create(&l->stream, l->engine, dnnl_stream_default_flags));
    describe_all(l, steps, rows, inputs, hidden);
    if (!l->failed)
        build(l, data, gradient);
    if (!l->failed)
        execute(l, 0, l->first);
    if (!l->failed)
        return l;
    onednn_close(l);
    return NULL;
}

/* major * 10000 + minor * 100 + patch */
int onednn_version(void)
{
    const dnnl_version_t *v = dnnl_version();
    return v->major * 10000 + v->minor * 100 + v->patch;
}
