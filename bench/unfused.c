/* The unfused baseline: the same packed multiply and activations as the kernels, but one multiply for each gate and then
 * passes over whole matrices. Inference of one layer, one direction, no lengths. Built by bench/unfused.py. */
#include "variant.c"

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
    product_run(&g, 0, job->panels);
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

/* One step: gate[] hold this step's rows; h and c are updated in place. */
static void pointwise_passes(const struct job *job, real *const gate[4], real *h, real *c, real *scratch, int64_t n)
{
    switch (job->net->cell) {
    case RNNKERN_LSTM:
        pass_activation(gate[0], n, v_sigmoid);
        pass_activation(gate[1], n, v_sigmoid);
        pass_activation(gate[2], n, v_tanh);
        pass_activation(gate[3], n, v_sigmoid);
        pass_mul(scratch, gate[0], gate[2], n);
        pass_fma(c, gate[1], c, scratch, n);
        pass_tanh_to(scratch, c, n);
        pass_mul(h, gate[3], scratch, n);
        break;
    case RNNKERN_GRU:
        pass_activation(gate[1], n, v_sigmoid);
        pass_activation(gate[2], n, v_sigmoid);
        pass_fma(gate[0], gate[1], gate[3], gate[0], n);
        pass_activation(gate[0], n, v_tanh);
        pass_one_minus(scratch, gate[2], n);
        pass_mul(scratch, scratch, gate[0], n);
        pass_fma(h, gate[2], h, scratch, n);
        break;
    default:
        pass_tanh_to(h, gate[0], n);
    }
}

/* x (T, B, I), y (T, B, H), weights as rnnkern_pack; cells: RNN tanh, LSTM, GRU reset-after. memory: see unfused_bytes. */
int64_t unfused_bytes(const rnnkern_net *net, int64_t steps, int64_t rows)
{
    const struct job job = job_for(net, NULL);
    const int64_t packed = job.part * (net->input_size + job.hidden + 1) * 4, pointers = 3 * steps * rows + 2 * rows;
    return (packed + 4 * steps * rows * job.part + 3 * rows * job.part) * (int64_t)sizeof(real) + pointers * 8 + 4096;
}

void unfused_forward(const rnnkern_net *net, int64_t steps, int64_t rows, const void *const *weights, const real *x,
                     real *y, char *memory)
{
    const struct job job = job_for(net, NULL);
    const struct cell *cell = job.cell;
    struct arena arena = {memory, 0};
    const int64_t all = steps * rows, step = rows * job.part;
    real *packed_x[4], *packed_h[4], *gate[4], *bias[4];
    const real **x_rows = arena_take(&arena, all, sizeof *x_rows), **h_rows = arena_take(&arena, rows, sizeof *h_rows);
    real **c_rows = arena_take(&arena, all, sizeof *c_rows);
    real *h = arena_take(&arena, step, sizeof(real)), *c = arena_take(&arena, step, sizeof(real));
    real *scratch = arena_take(&arena, step, sizeof(real)), *all_bias = arena_take(&arena, 4 * job.part, sizeof(real));
    const rk_fpmode mode = rk_flush_subnormals();
    memset(h, 0, (size_t)step * sizeof *h);
    memset(c, 0, (size_t)step * sizeof *c);
    pack_bias(&job, weights[2], weights[3], all_bias);
    for (int s = 0; s < cell->slots; s++) {
        packed_x[s] = arena_take(&arena, job.part * net->input_size, sizeof(real));
        packed_h[s] = arena_take(&arena, job.part * job.hidden, sizeof(real));
        gate[s] = arena_take(&arena, all * job.part, sizeof(real));
        bias[s] = arena_take(&arena, job.part, sizeof(real));
        for (int64_t p = 0; p < job.panels; p++)
            memcpy(bias[s] + p * LANES, all_bias + (p * cell->slots + s) * LANES, LANES * sizeof(real));
        pack_matrix(&job, weights[0], net->input_size, s, 1, packed_x[s]);
        pack_matrix(&job, weights[1], job.hidden, s, 1, packed_h[s]);
    }
    for (int64_t i = 0; i < all; i++)
        x_rows[i] = x + i * net->input_size;
    for (int64_t b = 0; b < rows; b++)
        h_rows[b] = h + b * job.part;
    for (int s = cell->x_first; s < cell->x_first + cell->x_count; s++) {
        for (int64_t i = 0; i < all; i++)
            c_rows[i] = gate[s] + i * job.part;
        multiply(&job, all, x_rows, net->input_size, packed_x[s], c_rows, bias[s], 0);
    }
    for (int64_t t = 0; t < steps; t++) {
        real *now[4];
        for (int s = 0; s < cell->slots; s++) {
            now[s] = gate[s] + t * step;
            if (!recurrent_slot(cell, s))
                continue;
            for (int64_t b = 0; b < rows; b++)
                c_rows[b] = now[s] + b * job.part;
            multiply(&job, rows, h_rows, job.hidden, packed_h[s], c_rows, bias[s],
                     in_range(s, cell->x_first, cell->x_count));
        }
        pointwise_passes(&job, now, h, c, scratch, step);
        for (int64_t b = 0; b < rows; b++)
            memcpy(y + (t * rows + b) * job.hidden, h + b * job.part, (size_t)job.hidden * sizeof *y);
    }
    rk_restore_fpmode(mode);
}
