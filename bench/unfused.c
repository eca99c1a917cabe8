/* The unfused baseline: the same packed multiply and activations as the kernels, but one multiply for each gate and then
 * passes over whole matrices. Inference of one layer, one direction, no lengths; packs its weights on each call. */
#include "variant.c"

#include <stdlib.h>

struct unfused {
    rnnkern_net net;
    struct cell variant;
    struct job job;
    int64_t steps, rows;
    char *memory;
    const real **x_rows, **h_rows;
    real **out_rows, *h, *c, *reset_h, *scratch, *all_bias; /* states: [B][padded H] */
    real *packed_x[4], *packed_h[4], *bias[4], *gate[4];    /* by slot; gates: [T][B][padded H] */
};

static void multiply(const struct job *job, int64_t n, const real *const *a, int64_t k, const real *packed,
                     real *const *c, const real *bias, int cont)
{
    const struct product g = {.rows = n,
                              .a = a,
                              .k = krange_dense(k),
                              .b = packed,
                              .k_total = k,
                              .ns = 1,
                              .c = c,
                              .c_panel = LANES,
                              .width = job->part,
                              .bias = bias,
                              .bias_panel = LANES,
                              .cont = cont};
    product_run(&g, (struct range){0, job->panels});
}

static void pass_activation(real *matrix, int64_t n, vec (*activation)(vec))
{
    for (int64_t i = 0; i < n; i += VL)
        v_store(matrix + i, activation(v_load(matrix + i)));
}

static void pass_fma(real *y, const real *a, const real *b, const real *c, int64_t n) /* y = a b + c */
{
    for (int64_t i = 0; i < n; i += VL)
        v_store(y + i, v_fma(v_load(a + i), v_load(b + i), v_load(c + i)));
}

static void pass_mul(real *y, const real *a, const real *b, int64_t n)
{
    for (int64_t i = 0; i < n; i += VL)
        v_store(y + i, v_mul(v_load(a + i), v_load(b + i)));
}

static void pass_tanh_to(real *y, const real *a, int64_t n)
{
    for (int64_t i = 0; i < n; i += VL)
        v_store(y + i, v_tanh(v_load(a + i)));
}

static void pass_one_minus(real *y, const real *a, int64_t n)
{
    for (int64_t i = 0; i < n; i += VL)
        v_store(y + i, v_sub(v_set1(1), v_load(a + i)));
}

static void lstm_passes(real *const gate[4], real *h, real *c, real *scratch, int64_t n)
{
    pass_activation(gate[0], n, v_sigmoid);
    pass_activation(gate[1], n, v_sigmoid);
    pass_activation(gate[2], n, v_tanh);
    pass_activation(gate[3], n, v_sigmoid);
    pass_mul(scratch, gate[0], gate[2], n);
    pass_fma(c, gate[1], c, scratch, n);
    pass_tanh_to(scratch, c, n);
    pass_mul(h, gate[3], scratch, n);
}

static void gru_gate_passes(real *const gate[4], int64_t n)
{
    pass_activation(gate[1], n, v_sigmoid);
    pass_activation(gate[2], n, v_sigmoid);
}

static void gru_candidate_passes(real *const gate[4], real *h, real *scratch, int64_t n)
{
    pass_activation(gate[0], n, v_tanh);
    pass_one_minus(scratch, gate[2], n);
    pass_mul(scratch, scratch, gate[0], n);
    pass_fma(h, gate[2], h, scratch, n);
}

/* What follows a pass of the cell, on the gates of one step; h and c are updated in place. */
static void pointwise_passes(rnnkern_cell cell, int pass, real *const gate[4], real *h, real *c, real *reset_h,
                             real *scratch, int64_t n)
{
    switch (cell) {
    case RNNKERN_LSTM:
        lstm_passes(gate, h, c, scratch, n);
        break;
    case RNNKERN_GRU:
        gru_gate_passes(gate, n);
        pass_fma(gate[0], gate[1], gate[3], gate[0], n);
        gru_candidate_passes(gate, h, scratch, n);
        break;
    case RNNKERN_GRU_BEFORE:
        if (pass == 0) {
            gru_gate_passes(gate, n);
            pass_mul(reset_h, gate[1], h, n);
        } else
            gru_candidate_passes(gate, h, scratch, n);
        break;
    default:
        pass_tanh_to(h, gate[0], n);
    }
}

/* With base NULL only the size is found. */
static size_t place_arrays(struct unfused *u, char *base)
{
    struct arena arena = {base, 0};
    const int64_t part = u->job.part, step = u->rows * part, all = u->steps * u->rows;
    u->x_rows = arena_take(&arena, all, sizeof *u->x_rows);
    u->h_rows = arena_take(&arena, u->rows, sizeof *u->h_rows);
    u->out_rows = arena_take(&arena, all, sizeof *u->out_rows);
    u->h = arena_take(&arena, step, sizeof(real));
    u->c = arena_take(&arena, step, sizeof(real));
    u->reset_h = arena_take(&arena, step, sizeof(real));
    u->scratch = arena_take(&arena, step, sizeof(real));
    u->all_bias = arena_take(&arena, packed_bias_size(&u->job), sizeof(real));
    for (int s = 0; s < u->job.cell->slots; s++) {
        u->packed_x[s] = arena_take(&arena, part * u->net.input_size, sizeof(real));
        u->packed_h[s] = arena_take(&arena, part * u->job.hidden, sizeof(real));
        u->bias[s] = arena_take(&arena, part, sizeof(real));
        u->gate[s] = arena_take(&arena, all * part, sizeof(real));
    }
    return arena.used;
}

struct unfused *unfused_open(int cell, int64_t steps, int64_t rows, int64_t inputs, int64_t hidden)
{
    struct unfused *u = malloc(sizeof *u);
    *u = (struct unfused){.steps = steps, .rows = rows};
    u->net = (rnnkern_net){.cell = (rnnkern_cell)cell, .bias = 1, .input_size = inputs, .hidden_size = hidden};
    u->net.num_layers = u->net.num_directions = 1;
    u->job = job_for(&u->net, NULL, &u->variant);
    u->memory = aligned_alloc(64, (place_arrays(u, NULL) + 64) / 64 * 64);
    place_arrays(u, u->memory);
    return u;
}

void unfused_close(struct unfused *u)
{
    free(u->memory);
    free(u);
}

static void pack_slot(const struct job *job, const real *weight, int64_t k, int slot, real *packed)
{
    weight += job->cell->gate_of_slot[slot] * job->hidden * k;
    for (int64_t p = 0; p < job->panels; p++) {
        const real *panel = weight + p * LANES * k, *next = p + 1 < job->panels ? panel + LANES * k : panel;
        transpose_panel(panel, next, k, packed + p * k * LANES, LANES, units_in(job->hidden, p), k);
    }
}

static void pack_gates(struct unfused *u, const void *const *weights)
{
    const struct job *job = &u->job;
    pack_bias(job, weights[RNNKERN_BIAS_IH], weights[RNNKERN_BIAS_HH], u->all_bias);
    for (int s = 0; s < job->cell->slots; s++) {
        for (int64_t p = 0; p < job->panels; p++)
            memcpy(u->bias[s] + p * LANES, u->all_bias + (p * job->cell->slots + s) * LANES, LANES * sizeof(real));
        pack_slot(job, weights[RNNKERN_WEIGHT_IH], u->net.input_size, s, u->packed_x[s]);
        pack_slot(job, weights[RNNKERN_WEIGHT_HH], job->hidden, s, u->packed_h[s]);
    }
}

/* c0 NULL: the cell has none. */
static void load_states(struct unfused *u, const real *h0, const real *c0)
{
    const int64_t hidden = u->job.hidden, part = u->job.part;
    memset(u->h, 0, (size_t)(u->rows * part) * sizeof(real));
    memset(u->c, 0, (size_t)(u->rows * part) * sizeof(real));
    for (int64_t b = 0; b < u->rows; b++) {
        memcpy(u->h + b * part, h0 + b * hidden, (size_t)hidden * sizeof(real));
        if (c0)
            memcpy(u->c + b * part, c0 + b * hidden, (size_t)hidden * sizeof(real));
    }
}

static real **rows_at(struct unfused *u, real *matrix, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        u->out_rows[i] = matrix + i * u->job.part;
    return u->out_rows;
}

static void project_inputs(struct unfused *u, const real *x)
{
    const struct cell *cell = u->job.cell;
    const int64_t all = u->steps * u->rows, inputs = u->net.input_size;
    for (int64_t i = 0; i < all; i++)
        u->x_rows[i] = x + i * inputs;
    for (int s = cell->x_first; s < cell->x_first + cell->x_count; s++)
        multiply(&u->job, all, u->x_rows, inputs, u->packed_x[s], rows_at(u, u->gate[s], all), u->bias[s], 0);
}

static void step_passes(struct unfused *u, int64_t t)
{
    const struct cell *cell = u->job.cell;
    const int64_t rows = u->rows, part = u->job.part, hidden = u->job.hidden;
    real *now[4];
    for (int s = 0; s < cell->slots; s++)
        now[s] = u->gate[s] + t * rows * part;
    for (int i = 0; i < cell->passes; i++) {
        const struct pass *pass = &cell->pass[i];
        for (int64_t b = 0; b < rows; b++)
            u->h_rows[b] = (pass->from == PREVIOUS ? u->h : u->reset_h) + b * part;
        for (int s = pass->first; s < pass->first + pass->count; s++)
            multiply(&u->job, rows, u->h_rows, hidden, u->packed_h[s], rows_at(u, now[s], rows), u->bias[s],
                     in_range(s, cell->x_first, cell->x_count));
        pointwise_passes(u->net.cell, i, now, u->h, u->c, u->reset_h, u->scratch, rows * part);
    }
}

/* x (T, B, I), y (T, B, H), weights the first four of rnnkern_weight, h0 and c0 (B, H); c0 only for the LSTM. */
void unfused_forward(struct unfused *u, const void *const *weights, const real *x, const real *h0, const real *c0,
                     real *y)
{
    const int64_t hidden = u->job.hidden;
    const rk_fpmode mode = rk_flush_subnormals();
    pack_gates(u, weights);
    load_states(u, h0, c0);
    project_inputs(u, x);
    for (int64_t t = 0; t < u->steps; t++) {
        step_passes(u, t);
        for (int64_t b = 0; b < u->rows; b++)
            memcpy(y + (t * u->rows + b) * hidden, u->h + b * u->job.part, (size_t)hidden * sizeof *y);
    }
    rk_restore_fpmode(mode);
}
