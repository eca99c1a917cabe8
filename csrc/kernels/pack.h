/* Weights into the order in which the kernels read them, and weight gradients back. Layouts: job.h, gemm.h. */
#ifndef RK_PACK_H
#define RK_PACK_H

static inline int64_t units_in(int64_t hidden, int64_t panel) { return min_of(LANES, hidden - panel * LANES); }

/* A mask costs time. */
static inline vec load_lanes(const real *p, int64_t n) { return n < VL ? v_load_n(p, n) : v_load(p); }

/* x[r][c] becomes x[c][r]. A round of zips moves the top bit of the vector's number below its lowest and that of the lane's
 * likewise, so that log2(VL) rounds exchange the two numbers. */
static inline void transpose_vectors(vec x[VL])
{
    UNROLL
    for (int round = 1; round < VL; round *= 2) {
        vec y[VL];
        UNROLL
        for (int i = 0; i < VL / 2; i++)
            v_zip(x[i], x[i + VL / 2], &y[2 * i], &y[2 * i + 1]);
        memcpy(x, y, sizeof y);
    }
}

/* x = the transpose of up to VL x VL elements; what is missing is zero. */
static inline void load_transposed(const real *src, int64_t src_row, int64_t rows, int64_t columns, vec x[VL])
{
    UNROLL
    for (int r = 0; r < VL; r++)
        x[r] = r < rows ? load_lanes(src + r * src_row, columns) : v_zero();
    transpose_vectors(x);
}

/* dst[c][r] = src[r][c] for rows <= LANES; the lanes behind them become zero. `next`, laid out as src, is what will be
 * transposed then: rows that lie apart are too many streams for the processor to fetch ahead by itself. */
static void transpose_panel(const real *src, const real *next, int64_t src_row, real *dst, int64_t dst_row,
                            int64_t rows, int64_t columns)
{
    for (int64_t c = 0; c < columns; c += VL)
        for (int64_t r = 0; r < LANES; r += VL) {
            vec x[VL];
            for (int64_t i = r; i < min_of(rows, r + VL); i++)
                __builtin_prefetch(next + i * src_row + c);
            load_transposed(src + r * src_row + c, src_row, rows - r, columns - c, x);
            for (int64_t i = 0; i < min_of(VL, columns - c); i++)
                v_store(dst + (c + i) * dst_row + r, x[i]);
        }
}

/* dst[c][r] += src[r][c] for columns <= LANES; `next`, laid out as dst, is where that will be done then. */
static void add_transposed(const real *src, int64_t src_row, real *dst, const real *next, int64_t dst_row, int64_t rows,
                           int64_t columns)
{
    for (int64_t r = 0; r < rows; r += VL)
        for (int64_t c = 0; c < columns; c += VL) {
            const int64_t lanes = clamp_lanes(rows - r);
            vec x[VL];
            for (int64_t i = c; i < min_of(columns, c + VL); i++)
                __builtin_prefetch(next + i * dst_row + r, 1);
            load_transposed(src + r * src_row + c, src_row, rows - r, columns - c, x);
            for (int64_t i = 0; i < min_of(VL, columns - c); i++) {
                real *to = dst + (c + i) * dst_row + r;
                v_store_n(to, lanes, v_add(v_load_n(to, lanes), x[i]));
            }
        }
}

/* The row of an operand's weight (G*units, k) at which block n of a packed matrix begins; n counts slots within panels.
 * Behind the last block, that of the last. */
static int64_t row_of_block(const struct job *job, int operand, int64_t n)
{
    const int64_t units = units_of(job, operand), count = count_of(job, operand);
    n = min_of(n, panels_of(units) * count - 1);
    return job->cell->gate_of_slot[first_of(job, operand) + n % count] * units + n / count * LANES;
}

/* Not inline: gcc would make two loops of it, a quarter slower. */
NOT_INLINE void pack_matrix(const struct job *job, const struct direction *d, const real *weight, int operand)
{
    real *packed = (real *)d->matrix[operand];
    const int64_t k = d->size[operand], units = units_of(job, operand), count = count_of(job, operand);
    for (int64_t n = 0; k && n < panels_of(units) * count; n++)
        transpose_panel(weight + row_of_block(job, operand, n) * k, weight + row_of_block(job, operand, n + 1) * k, k,
                        packed + (n / count * k * count + n % count) * LANES, count * LANES, units_in(units, n / count),
                        k);
}

static int in_range(int slot, int first, int count) { return slot >= first && slot < first + count; }

static int recurrent_slot(const struct cell *cell, int slot)
{
    for (int k = 0; k < cell->passes; k++)
        if (in_range(slot, cell->pass[k].first, cell->pass[k].count))
            return 1;
    return 0;
}

/* A slot starts from b_ih where the input enters it, from b_hh where h does, from their sum where both do; from zero where
 * what is summed is normalised and biases follow as weights of units. */
static void pack_bias(const struct job *job, const real *b_ih, const real *b_hh, real *packed)
{
    const struct cell *cell = job->cell;
    memset(packed, 0, (size_t)packed_bias_size(job) * sizeof *packed);
    if (!b_ih || cell->norms)
        return;
    for (int64_t u = 0; u < job->hidden; u++)
        for (int slot = 0; slot < cell->biased; slot++) {
            const int64_t at = cell->gate_of_slot[slot] * job->hidden + u;
            const int input = in_range(slot, cell->x_first, cell->x_count), recurrent = recurrent_slot(cell, slot);
            packed[(u / LANES * cell->biased + slot) * LANES + u % LANES] = input && recurrent ? b_ih[at] + b_hh[at]
                                                                            : input            ? b_ih[at]
                                                                                               : b_hh[at];
        }
}

static void pack_unit_weights(const struct job *job, const void *const *weights, real *packed)
{
    memset(packed, 0, (size_t)(job->cell->unit_weights * job->part) * sizeof *packed);
    for (int k = 0; k < job->cell->unit_weights; k++) {
        const struct unit_weight *w = &job->cell->unit_weight[k];
        if (weights[w->weight]) /* a bias may be missing */
            memcpy(packed + k * job->part, (const real *)weights[w->weight] + w->block * job->hidden,
                   (size_t)job->hidden * sizeof *packed);
    }
}

static rnnkern_weight weight_of(const struct job *job, int operand)
{
    return operand == 0 ? RNNKERN_WEIGHT_IH : job->cell->pass[operand - 1].of_h ? RNNKERN_WEIGHT_HR : RNNKERN_WEIGHT_HH;
}

static void pack(const rnnkern_net *net, const void *const *weights, void *packed)
{
    struct cell variant;
    struct job job = job_for(net, NULL, &variant);
    job.packed = packed;
    rk_fpmode mode = rk_flush_subnormals();
    for (int64_t i = 0; i < job.layers * job.directions; i++, weights += RNNKERN_WEIGHTS) {
        const struct direction d = direction_at(&job, i);
        pack_bias(&job, weights[RNNKERN_BIAS_IH], weights[RNNKERN_BIAS_HH], (real *)d.bias);
        pack_unit_weights(&job, weights, (real *)d.unit_weights);
        for (int k = 0; k <= job.cell->passes; k++)
            pack_matrix(&job, &d, weights[weight_of(&job, k)], k);
    }
    rk_restore_fpmode(mode);
}

/* An operand's matrix that takes dZ back to it: panels of 16 of its elements, k the gate rows' order (krange_gates):
 * [panel of elements][panel of units][slot][unit][16]. For some of the panels of elements. */
static void pack_transposed(const struct job *job, const struct direction *d, int operand, real *out,
                            struct range panels)
{
    const real *packed = d->matrix[operand];
    const int64_t k = d->size[operand], all = units_of(job, operand);
    const int count = count_of(job, operand);
    for (int64_t q = panels.first; q < panels.last; q++) {
        const int64_t inputs = min_of(LANES, k - q * LANES);
        real *to = out + q * count * all * LANES;
        for (int64_t p = 0; p < panels_of(all); p++) {
            const int64_t units = units_in(all, p), panel = p + 1 < panels_of(all) ? k * count * LANES : 0;
            for (int s = 0; s < count; s++, to += units * LANES) {
                const real *from = packed + ((p * k + q * LANES) * count + s) * LANES;
                transpose_panel(from, from + panel, count * LANES, to, LANES, inputs, units);
            }
        }
    }
}

/* weight (G*units, k) += total [panel][k+1][count][16], for some panels, with the first of which `total` starts, and some
 * columns; column k is the bias, NULL: not wanted. */
static void unpack_gradient(const struct job *job, const real *total, int64_t k, int operand, real *weight, real *bias,
                            struct range panels, struct range columns)
{
    const int64_t all = units_of(job, operand), count = count_of(job, operand);
    for (int64_t n = panels.first * count; n < panels.last * count; n++) {
        const int64_t row = row_of_block(job, operand, n), next = row_of_block(job, operand, n + 1);
        const real *from = total + ((n / count - panels.first) * (k + 1) * count + n % count) * LANES;
        const int64_t units = units_in(all, n / count), begin = columns.first, end = columns.last;
        add_transposed(from + begin * count * LANES, count * LANES, weight + row * k + begin, weight + next * k + begin,
                       k, min_of(k, end) - begin, units);
        for (int64_t u = 0; begin <= k && k < end && bias && u < units; u++)
            bias[row + u] += from[k * count * LANES + u];
    }
}

#endif
