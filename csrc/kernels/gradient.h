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

/* The member's tiles of an operand. */
static void own_tiles(const struct job *job, const struct direction *d, const struct part *part,
                      const struct operand_view *o, int64_t *begin, int64_t *end)
{
    const int64_t all = tiles_of_layer(job, d->layer), n = tiles_of(o->size);
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

/* The storage rows begin..end-1 of a block, all of which have dZ in their gate rows. */
static void weight_gradient(const struct job *job, const struct direction *d, const struct part *part,
                            const struct block *k, int64_t begin, int64_t end)
{
    struct rows *list = &job->lists[part->member.index];
    for (int64_t next; begin < end; begin = next) {
        next = min_of(end, (begin / RUN_ROWS + 1) * RUN_ROWS);
        list_rows(job, d, k, begin, next, 0, 1, list);
        for (int index = 0; index <= job->cell->passes; index++) {
            const struct operand_view o = operand_at(job, d, index);
            int64_t tile_begin, tile_end;
            own_tiles(job, d, part, &o, &tile_begin, &tile_end);
            real *packed = job->run_input + o.first_tile * MAX_ROWS * RUN_ROWS;
            pack_run_input(job, list, index, o.size, packed, tile_begin * MAX_ROWS, tile_end * MAX_ROWS);
            const struct run_sum sum = {.rows = list->n,
                                        .k = o.size + 1,
                                        .a = packed,
                                        .b = gates_at(job, k, begin) + o.first * LANES,
                                        .b_panel = k->z_panel,
                                        .b_row = job->cell->slots * LANES,
                                        .ns = o.count,
                                        .run = job->run + o.offset,
                                        .total = job->total + o.offset,
                                        .opens = begin % RUN_ROWS == 0,
                                        .closes = next % RUN_ROWS == 0 || next == job->plan.real_rows};
            run_sum(&sum, job->panels, tile_begin, tile_end);
        }
    }
}

static void add_weight_gradient(const struct job *job, const struct direction *d, const struct part *part)
{
    void *const *grads = job->grads + 4 * d->index;
    for (int index = 0; index <= job->cell->passes; index++) {
        const struct operand_view o = operand_at(job, d, index);
        const int recurrent = index > 0;
        int64_t begin, end;
        own_tiles(job, d, part, &o, &begin, &end);
        unpack_gradient(job, job->total + o.offset, o.size, o.first, o.count, grads[recurrent], grads[2 + recurrent],
                        begin * MAX_ROWS, end * MAX_ROWS);
    }
}

#endif
