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
static struct range own_tiles(const struct job *job, const struct direction *d, const struct part *part,
                              const struct operand_view *o)
{
    const int64_t n = tiles_of(o->size);
    if (!part)
        return (struct range){0, n};
    const struct range own = own_share(part, tiles_of_layer(job, d->layer));
    return (struct range){min_of(n, max_of(0, own.first - o->first_tile)),
                          min_of(n, max_of(0, own.last - o->first_tile))};
}

static inline struct range elements_of(struct range tiles)
{
    return (struct range){tiles.first * MAX_ROWS, tiles.last * MAX_ROWS};
}

/* Some elements as [element][RUN_ROWS], the one behind the last being 1. An element's place depends on no run, since
 * members are at different ones. */
static void pack_run_input(const struct job *job, const struct rows *list, int index, int64_t size, real *packed,
                           struct range elements)
{
    const int64_t begin = elements.first, end = elements.last;
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

/* Complete sums of an operand's panels and tiles into the caller's arrays, or those of one row. */
static void add_weight_gradient(const struct job *job, const struct direction *d, int index, const real *total,
                                struct range panels, struct range tiles, int64_t row)
{
    void *const *grads = job->grads + RNNKERN_WEIGHTS * d->index;
    const rnnkern_weight kind = weight_of(job, index);
    const int64_t units = kind == RNNKERN_WEIGHT_HR ? job->output : job->cell->gates * job->hidden, k = d->size[index];
    real *weight = grads[kind], *bias = NULL;
    if (kind != RNNKERN_WEIGHT_HR && !job->cell->norms) /* or the bias is a weight of units */
        bias = grads[index ? RNNKERN_BIAS_HH : RNNKERN_BIAS_IH];
    unpack_gradient(job, total, k, index, weight + row * units * k, bias ? bias + row * units : NULL, panels,
                    elements_of(tiles));
}

/* A run, or a part of one, of the listed rows, whose gate rows lie at b, b + slots*16, ...; for the tiles of a part, NULL:
 * all. A sum is added to the gradient, or to that of a row, as soon as its panels are complete: they are in a cache then. */
static void sum_run(const struct job *job, const struct direction *d, const struct part *part, const struct sums *sums,
                    const struct rows *list, const real *b, int64_t b_panel, struct run_part run_part, int64_t row)
{
    for (int index = 0; index <= job->cell->passes; index++) {
        const struct operand_view o = operand_at(job, d, index);
        if (!o.size)
            continue;
        const struct range tiles = own_tiles(job, d, part, &o), panels = {0, panels_of(units_of(job, index))};
        real *packed = sums->input + o.first_tile * MAX_ROWS * RUN_ROWS;
        pack_run_input(job, list, index, o.size, packed, elements_of(tiles));
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
        const int64_t size = panels_per_tile(o.count, TILE_COLUMNS);
        for (int64_t i = 0; i < groups_of(panels, size); i++) {
            const struct range some = turned_group(panels, size, i, 0);
            run_sum_panels(&sum, some, tiles);
            if (run_part.completes)
                add_weight_gradient(job, d, index, total_at(&sum, some.first), some, tiles, row);
        }
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

/* The same for weights of units, of a member's panels; NULL: all. */
static void sum_unit_weights(const struct job *job, const struct direction *d, const struct part *part,
                             const struct sums *sums, const struct rows *list, int64_t z_panel,
                             struct run_part run_part, int64_t row)
{
    const struct range panels = part ? own_share(part, job->panels) : (struct range){0, job->panels};
    const int64_t first = panels.first * LANES, last = panels.last * LANES;
    for (int k = 0; k < job->cell->unit_weights; k++) {
        const struct unit_weight *w = &job->cell->unit_weight[k];
        real *run = sums->run + k * job->part, *to = run_part.closes ? sums->total + k * job->part : run;
        for (int64_t at = first; at < last; at += VL) {
            const int64_t z_at = at / LANES * z_panel + w->slot * LANES + at % LANES,
                          part_at = w->part * job->part + at;
            vec sum = run_part.opens ? v_zero() : v_load(run + at);
            for (int64_t i = 0; i < list->n; i++) {
                const vec dz = v_load(list->z[i] + z_at);
                sum = w->from == NOTHING
                          ? v_add(dz, sum)
                          : v_fma(dz, v_load((w->from == PREVIOUS ? list->previous[i] : list->current[i]) + part_at),
                                  sum);
            }
            v_store(to + at, run_part.closes && run_part.adds ? v_add(v_load(to + at), sum) : sum);
        }
        real *weight = job->grads[RNNKERN_WEIGHTS * d->index + w->weight];
        if (run_part.completes && weight) { /* a bias may be missing */
            weight += (row * blocks_of(job->cell, w->weight) + w->block) * job->hidden;
            for (int64_t u = first; u < min_of(job->hidden, last); u++)
                weight[u] += to[u];
        }
    }
}

/* The storage rows begin..end-1 of a block, all of which have dZ in their gate rows. */
static void weight_gradient(const struct job *job, const struct direction *d, const struct part *part,
                            const struct block *k, int64_t begin, int64_t end)
{
    struct rows *list = &job->lists[part->member.slot];
    for (int64_t next; begin < end; begin = next) {
        next = min_of(end, (begin / RUN_ROWS + 1) * RUN_ROWS);
        list_rows(job, d, k, begin, next, 0, 1, list);
        const int completes = next == job->plan.real_rows;
        const struct run_part run_part = {.opens = begin % RUN_ROWS == 0,
                                          .closes = next % RUN_ROWS == 0 || completes,
                                          .adds = begin >= RUN_ROWS,
                                          .completes = completes};
        sum_run(job, d, part, job->sums, list, gates_at(job, k, begin), k->z_panel, run_part, 0);
        sum_unit_weights(job, d, part, job->sums, list, k->z_panel, run_part, 0);
    }
}

/* The gradient of each row by itself, as if it had been alone: a member takes all that belongs to some rows. */
static void row_gradients(const struct job *job, const struct direction *d, const struct part *part,
                          const struct block *k)
{
    const struct plan *plan = &job->plan;
    const struct sums *sums = &job->sums[part->member.slot];
    struct rows *list = &job->lists[part->member.slot];
    const int64_t size = job->cell->slots * LANES, panel = RUN_ROWS * size;
    FOR_OWN_SEQUENCES(job, part, j) {
        const int64_t first = d->reverse ? plan->steps - plan->length[j] : 0, last = first + plan->length[j];
        if (first == last)
            continue;
        for (int64_t end = last, begin; end > first; end = begin) {
            begin = max_of(first, end - RUN_ROWS);
            const struct run_part run_part = {.opens = 1, .closes = 1, .adds = end < last, .completes = begin == first};
            list_rows(job, d, k, stored(plan, d->reverse, end), stored(plan, d->reverse, begin), j, plan->rows, list);
            for (int64_t p = 0; p < job->panels; p++)
                for (int64_t i = 0; i < list->n; i++)
                    memcpy(sums->gates + p * panel + i * size, list->z[i] + p * k->z_panel,
                           (size_t)size * sizeof(real));
            sum_run(job, d, NULL, sums, list, sums->gates, panel, run_part, plan->order[j]);
            sum_unit_weights(job, d, NULL, sums, list, k->z_panel, run_part, plan->order[j]);
        }
    }
}

#endif
