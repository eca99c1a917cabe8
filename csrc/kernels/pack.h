/* Weights into the order in which the kernels read them, and weight gradients back. Layouts: job.h, gemm.h. */
#ifndef RK_PACK_H
#define RK_PACK_H

static inline int64_t units_in(int64_t hidden, int64_t panel) { return min_of(LANES, hidden - panel * LANES); }

/* dst[c][r] = src[r][c], in blocks that stay in L1 */
static void transpose(const real *src, int64_t src_row, real *dst, int64_t dst_row, int64_t rows, int64_t columns)
{
    for (int64_t c0 = 0; c0 < columns; c0 += LANES)
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = c0; c < min_of(columns, c0 + LANES); c++)
                dst[c * dst_row + r] = src[r * src_row + c];
}

/* weight: (G*H, k); slots first..first+count-1 of each panel. Padding lanes become zero. */
static void pack_matrix(const struct job *job, const real *weight, int64_t k, int first, int count, real *packed)
{
    memset(packed, 0, (size_t)(job->part * k * count) * sizeof *packed);
    for (int64_t p = 0; p < job->panels; p++)
        for (int s = 0; s < count; s++) {
            const int64_t gate = job->cell->gate_of_slot[first + s];
            transpose(weight + (gate * job->hidden + p * LANES) * k, k, packed + (p * k * count + s) * LANES,
                      count * LANES, units_in(job->hidden, p), k);
        }
}

static int in_range(int slot, int first, int count) { return slot >= first && slot < first + count; }

static int recurrent_slot(const struct cell *cell, int slot)
{
    for (int k = 0; k < cell->passes; k++)
        if (in_range(slot, cell->pass[k].first, cell->pass[k].count))
            return 1;
    return 0;
}

/* A slot starts from b_ih where the input enters it, from b_hh where h does, from their sum where both do. */
static void pack_bias(const struct job *job, const real *b_ih, const real *b_hh, real *packed)
{
    const struct cell *cell = job->cell;
    memset(packed, 0, (size_t)packed_bias_size(job) * sizeof *packed);
    if (!job->net->bias)
        return;
    for (int64_t u = 0; u < job->hidden; u++)
        for (int slot = 0; slot < cell->slots; slot++) {
            const int64_t at = cell->gate_of_slot[slot] * job->hidden + u;
            const int input = in_range(slot, cell->x_first, cell->x_count), recurrent = recurrent_slot(cell, slot);
            packed[(u / LANES * cell->slots + slot) * LANES + u % LANES] = input && recurrent ? b_ih[at] + b_hh[at]
                                                                           : input            ? b_ih[at]
                                                                                              : b_hh[at];
        }
}

static void pack(const rnnkern_net *net, const void *const *weights, void *packed)
{
    struct job job = job_for(net, NULL);
    const struct cell *cell = job.cell;
    job.packed = packed;
    rk_fpmode mode = rk_flush_subnormals();
    for (int64_t i = 0; i < job.layers * job.directions; i++, weights += 4) {
        const struct direction d = direction_at(&job, i);
        pack_bias(&job, weights[2], weights[3], (real *)d.bias);
        pack_matrix(&job, weights[0], d.input, cell->x_first, cell->x_count, (real *)d.matrix_x);
        for (int k = 0; k < cell->passes; k++)
            pack_matrix(&job, weights[1], job.hidden, cell->pass[k].first, cell->pass[k].count, (real *)d.matrix[k]);
    }
    rk_restore_fpmode(mode);
}

/* The matrix that takes dZ back to the operand: panels of 16 of the k inputs, its k the gate rows' order (krange_gates):
 * [panel of inputs][panel of units][slot][unit][16]. For the panels of inputs begin..end-1. */
static void pack_transposed(const struct job *job, const real *packed, int64_t k, int count, real *out, int64_t begin,
                            int64_t end)
{
    const int64_t rows = count * job->hidden;
    for (int64_t q = begin; q < end; q++) {
        const int64_t inputs = min_of(LANES, k - q * LANES);
        real *to = out + q * rows * LANES;
        memset(to, 0, (size_t)(rows * LANES) * sizeof *to);
        for (int64_t p = 0; p < job->panels; p++) {
            const int64_t units = units_in(job->hidden, p);
            for (int s = 0; s < count; s++, to += units * LANES)
                transpose(packed + ((p * k + q * LANES) * count + s) * LANES, count * LANES, to, LANES, inputs, units);
        }
    }
}

/* grad (G*H, k) += total [panel][k+1][count][16], for columns begin..end-1; column k is the bias. */
static void unpack_gradient(const struct job *job, const real *total, int64_t k, int first, int count, real *weight,
                            real *bias, int64_t begin, int64_t end)
{
    for (int64_t p = 0; p < job->panels; p++)
        for (int s = 0; s < count; s++) {
            const int64_t row = job->cell->gate_of_slot[first + s] * job->hidden + p * LANES;
            const real *from = total + (p * (k + 1) * count + s) * LANES;
            for (int64_t u = 0; u < units_in(job->hidden, p); u++) {
                for (int64_t c = begin; c < min_of(k, end); c++)
                    weight[(row + u) * k + c] += from[c * count * LANES + u];
                if (begin <= k && k < end && job->net->bias)
                    bias[row + u] += from[k * count * LANES + u];
            }
        }
}

#endif
