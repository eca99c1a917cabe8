/* Weight gradients: for each operand (the input, then that of each pass), the sum over real rows of operand x dZ, in the
 * order and the runs of the contract. A bias is one more input that is always 1. Members share out the register tiles of
 * the operands' elements, so no two write the same sum. */
#ifndef RK_GRADIENT_H
#define RK_GRADIENT_H

struct operand_view {
    int64_t size, first_tile, offset; /* size: elements; offset: in run and total */
    int first, count;                 /* slots */
};

static struct operand_view operand_at(const struct job *job, const struct direction *d, int index)
{
    struct operand_view o = {.size = d->size[index],
                             .offset = job->cell->unit_weights * job->part,
                             .first = first_of(job, index),
                             .count = count_of(job, index)};
    for (int k = 0; k < index; k++) {
        o.first_tile += tiles_of(d->size[k]);
        o.offset += gradient_matrix_size(job, d->layer, k);
    }
    return o;
}

static const real *operand_row(const struct job *job, const struct rows *list, int index, int64_t i)
{
    if (index == 0)
        return list->x[i];
    const struct pass *pass = &job->cell->pass[index - 1];
    return (pass->from == PREVIOUS ? list->previous[i] : list->current[i]) + pass->part * job->part;
}

/* The member's tiles of an operand; all of them where part is NULL. */
static void own_tiles(const struct job *job, const struct direction *d, const struct part *part,
                      const struct operand_view *o, int64_t *begin, int64_t *end)
{
    const int64_t all = tiles_of_layer(job, d->layer), n = tiles_of(o->size);
    *begin = 0;
    *end = n;
    if (!part)
        return;
    *begin = min_of(n, max_of(0, own_begin(part, all) - o->first_tile));
    *end = min_of(n, max_of(0, own_end(part, all) - o->first_tile));
}

/* Elements begin..end-1 as [element][RUN_ROWS], the one behind the last being 1. An element's place depends on no run, since
 * members are at different ones. */
static void pack_run_input(const struct job *job, const struct rows *list, int index, int64_t size, real *packed,
                           int64_t begin, int64_t end)
{
    for (int64_t i = 0; i < list->n; i += VL) {
        const real *row[VL];
        for (int r = 0; r < VL; r++)
            row[r] = operand_row(job, list, index, min_of(i + r, list->n - 1));
        for (int64_t k = begin; k < min_of(size, end); k += VL) {
            const int64_t lanes = min_of(VL, min_of(size, end) - k);
            vec x[VL];
            UNROLL
            for (int r = 0; r < VL; r++)
                x[r] = load_lanes(row[r] + k, lanes);
            transpose_vectors(x);
            for (int64_t j = 0; j < lanes; j++)
                v_store(packed + (k + j) * RUN_ROWS + i, x[j]);
        }
        if (begin <= size && size < end) /* and not where the member has no elements */
            v_store(packed + size * RUN_ROWS + i, v_set1(1));
    }
}

/* A run, or a part of one, of the listed rows, whose gate rows lie at b, b + slots*16, ...; for the tiles of a part, NULL: all. */
static void sum_run(const struct job *job, const struct direction *d, const struct part *part, const struct sums *sums,
                    const struct rows *list, const real *b, int64_t b_panel, struct run_part run_part)
{
    for (int index = 0; index <= job->cell->passes; index++) {
        const struct operand_view o = operand_at(job, d, index);
        if (!o.size)
            continue;
        int64_t begin, end;
        own_tiles(job, d, part, &o, &begin, &end);
        real *packed = sums->input + o.first_tile * MAX_ROWS * RUN_ROWS;
        pack_run_input(job, list, index, o.size, packed, begin * MAX_ROWS, end * MAX_ROWS);
        const struct run_sum sum = {.rows = list->n,
                                    .k = o.size + 1,
                                    .a = packed,
                                    .b = b + o.first * LANES,
                                    .b_panel = b_panel,
                                    .b_row = job->cell->slots * LANES,
                                    .ns = o.count,
                                    .run = sums->run + o.offset,
                                    .total = sums->total + o.offset,
                                    .part = run_part};
        run_sum(&sum, panels_of(units_of(job, index)), begin, end);
    }
}

/* The same for weights of units, of a member's panels; NULL: all. */
static void sum_unit_weights(const struct job *job, const struct part *part, const struct sums *sums,
                             const struct rows *list, int64_t z_panel, struct run_part run_part)
{
    const int64_t begin = part ? own_begin(part, job->panels) : 0,
                  end = part ? own_end(part, job->panels) : job->panels;
    for (int k = 0; k < job->cell->unit_weights; k++) {
        const struct unit_weight *w = &job->cell->unit_weight[k];
        for (int64_t at = begin * LANES; at < end * LANES; at += VL) {
            const int64_t z_at = at / LANES * z_panel + w->slot * LANES + at % LANES,
                          part_at = w->part * job->part + at;
            vec run = run_part.opens ? v_zero() : v_load(sums->run + k * job->part + at);
            for (int64_t i = 0; i < list->n; i++) {
                const vec dz = v_load(list->z[i] + z_at);
                run = w->from == NOTHING
                          ? v_add(dz, run)
                          : v_fma(dz, v_load((w->from == PREVIOUS ? list->previous[i] : list->current[i]) + part_at),
                                  run);
            }
            real *to = (run_part.closes ? sums->total : sums->run) + k * job->part + at;
            v_store(to, run_part.closes && run_part.adds ? v_add(v_load(to), run) : run);
        }
    }
}

/* The storage rows begin..end-1 of a block, all of which have dZ in their gate rows. */
static void weight_gradient(const struct job *job, const struct direction *d, const struct part *part,
                            const struct block *k, int64_t begin, int64_t end)
{
    struct rows *list = &job->lists[part->member.index];
    for (int64_t next; begin < end; begin = next) {
        next = min_of(end, (begin / RUN_ROWS + 1) * RUN_ROWS);
        list_rows(job, d, k, begin, next, 0, 1, list);
        const struct run_part run_part = {.opens = begin % RUN_ROWS == 0,
                                          .closes = next % RUN_ROWS == 0 || next == job->plan.real_rows,
                                          .adds = begin >= RUN_ROWS};
        sum_run(job, d, part, job->sums, list, gates_at(job, k, begin), k->z_panel, run_part);
        sum_unit_weights(job, part, job->sums, list, k->z_panel, run_part);
    }
}

/* Blocks of H elements in an array of weights of units. */
static int64_t blocks_of(const struct cell *cell, rnnkern_weight weight)
{
    int blocks = 0;
    for (int k = 0; k < cell->unit_weights; k++)
        if (cell->unit_weight[k].weight == weight && cell->unit_weight[k].block >= blocks)
            blocks = cell->unit_weight[k].block + 1;
    return blocks;
}

static void add_unit_gradients(const struct job *job, const struct part *part, const struct sums *sums,
                               void *const *grads, int64_t row)
{
    const int64_t begin = part ? own_begin(part, job->panels) : 0,
                  end = part ? own_end(part, job->panels) : job->panels;
    for (int k = 0; k < job->cell->unit_weights; k++) {
        const struct unit_weight *w = &job->cell->unit_weight[k];
        if (!grads[w->weight]) /* a bias may be missing */
            continue;
        real *to = (real *)grads[w->weight] + (row * blocks_of(job->cell, w->weight) + w->block) * job->hidden;
        for (int64_t u = begin * LANES; u < min_of(job->hidden, end * LANES); u++)
            to[u] += sums->total[k * job->part + u];
    }
}

/* Into the caller's arrays, or those of one row. */
static void add_weight_gradient(const struct job *job, const struct direction *d, const struct part *part,
                                const struct sums *sums, int64_t row)
{
    void *const *grads = job->grads + RNNKERN_WEIGHTS * d->index;
    for (int index = 0; index <= job->cell->passes; index++) {
        const struct operand_view o = operand_at(job, d, index);
        if (!o.size)
            continue;
        const rnnkern_weight kind = weight_of(job, index);
        const int64_t units = kind == RNNKERN_WEIGHT_HR ? job->output : job->cell->gates * job->hidden;
        real *weight = grads[kind], *bias = NULL;
        if (kind != RNNKERN_WEIGHT_HR && !job->cell->norms) /* or the bias is a weight of units */
            bias = grads[index ? RNNKERN_BIAS_HH : RNNKERN_BIAS_IH];
        int64_t begin, end;
        own_tiles(job, d, part, &o, &begin, &end);
        unpack_gradient(job, sums->total + o.offset, o.size, index, weight + row * units * o.size,
                        bias ? bias + row * units : NULL, begin * MAX_ROWS, end * MAX_ROWS);
    }
    add_unit_gradients(job, part, sums, grads, row);
}

/* The gradient of each row by itself, as if it had been alone: a member takes all that belongs to some rows. */
static void row_gradients(const struct job *job, const struct direction *d, const struct part *part,
                          const struct block *k)
{
    const struct plan *plan = &job->plan;
    const struct sums *sums = &job->sums[part->member.index];
    struct rows *list = &job->lists[part->member.index];
    const int64_t size = job->cell->slots * LANES, panel = RUN_ROWS * size;
    FOR_OWN_SEQUENCES(job, part, j) {
        const int64_t first = d->reverse ? plan->steps - plan->length[j] : 0, last = first + plan->length[j];
        if (first == last)
            continue;
        for (int64_t end = last, begin; end > first; end = begin) {
            const struct run_part run_part = {.opens = 1, .closes = 1, .adds = end < last};
            begin = max_of(first, end - RUN_ROWS);
            list_rows(job, d, k, stored(plan, d->reverse, end), stored(plan, d->reverse, begin), j, plan->rows, list);
            for (int64_t p = 0; p < job->panels; p++)
                for (int64_t i = 0; i < list->n; i++)
                    memcpy(sums->gates + p * panel + i * size, list->z[i] + p * k->z_panel,
                           (size_t)size * sizeof(real));
            sum_run(job, d, NULL, sums, list, sums->gates, panel, run_part);
            sum_unit_weights(job, NULL, sums, list, k->z_panel, run_part);
        }
        add_weight_gradient(job, d, NULL, sums, plan->order[j]);
    }
}

#endif
