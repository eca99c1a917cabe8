/* Weight gradients: for each operand (the input, then that of each pass), the sum over real rows of operand x dZ, in the
 * order and the runs of the contract. A bias is one more input that is always 1. Members share out the register tiles of
 * the operands' elements, so no two write the same sum. */
#ifndef RK_GRADIENT_H
#define RK_GRADIENT_H

struct operand_view {
    int64_t size, first_tile, offset; /* size: elements; offset: in run and total */
    int first, count;                 /* slots */
};

/* Operand 0 is the input, 1.. those of the passes. */
static struct operand_view operand_at(const struct job *job, const struct direction *d, int index)
{
    struct operand_view o = {.size = d->input, .first = job->cell->x_first, .count = job->cell->x_count};
    for (int k = 0; k < index; k++) {
        o.first_tile += tiles_of(o.size);
        o.offset += job->part * (o.size + 1) * o.count;
        o.size = job->hidden;
        o.first = job->cell->pass[k].first;
        o.count = job->cell->pass[k].count;
    }
    return o;
}

static const real *operand_row(const struct job *job, const struct rows *list, int index, int64_t i)
{
    if (index == 0)
        return list->x[i];
    return job->cell->pass[index - 1].operand == PREVIOUS_H ? list->previous[i] : list->current[i] + job->part;
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
                    const struct rows *list, const real *b, int64_t b_panel, int opens, int closes)
{
    for (int index = 0; index <= job->cell->passes; index++) {
        const struct operand_view o = operand_at(job, d, index);
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
                                    .opens = opens,
                                    .closes = closes};
        run_sum(&sum, job->panels, begin, end);
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
        sum_run(job, d, part, job->sums, list, gates_at(job, k, begin), k->z_panel, begin % RUN_ROWS == 0,
                next % RUN_ROWS == 0 || next == job->plan.real_rows);
    }
}

/* Into the caller's arrays, or those of one row. */
static void add_weight_gradient(const struct job *job, const struct direction *d, const struct part *part,
                                const struct sums *sums, int64_t row)
{
    void *const *grads = job->grads + 4 * d->index;
    for (int index = 0; index <= job->cell->passes; index++) {
        const struct operand_view o = operand_at(job, d, index);
        const int recurrent = index > 0;
        const int64_t units = job->cell->gates * job->hidden;
        real *weight = grads[recurrent], *bias = grads[2 + recurrent];
        int64_t begin, end;
        own_tiles(job, d, part, &o, &begin, &end);
        unpack_gradient(job, sums->total + o.offset, o.size, o.first, o.count, weight + row * units * o.size,
                        bias ? bias + row * units : NULL, begin * MAX_ROWS, end * MAX_ROWS);
    }
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
        memset(sums->total, 0, (size_t)gradient_size(job, d->layer) * sizeof(real));
        for (int64_t end = last, begin; end > first; end = begin) {
            begin = max_of(first, end - RUN_ROWS);
            list_rows(job, d, k, stored(plan, d->reverse, end), stored(plan, d->reverse, begin), j, plan->rows, list);
            for (int64_t p = 0; p < job->panels; p++)
                for (int64_t i = 0; i < list->n; i++)
                    memcpy(sums->gates + p * panel + i * size, list->z[i] + p * k->z_panel,
                           (size_t)size * sizeof(real));
            sum_run(job, d, NULL, sums, list, sums->gates, panel, 1, 1);
        }
        add_weight_gradient(job, d, NULL, sums, plan->order[j]);
    }
}

#endif
