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

/* [tile][RUN_ROWS][MAX_ROWS], with 1 behind the last element; a tile's place depends on no run, since members are at
 * different ones */
static void pack_run_input(const struct job *job, const struct rows *list, int index, const struct operand_view *o,
                           real *packed, int64_t tile_begin, int64_t tile_end)
{
    for (int64_t i = 0; i < list->n; i++) {
        const real *row = operand_row(job, list, index, i);
        for (int64_t n = tile_begin; n < tile_end; n++) {
            real *to = packed + (n * RUN_ROWS + i) * MAX_ROWS;
            const int64_t left = o->size - n * MAX_ROWS;
            if (left >= MAX_ROWS)
                memcpy(to, row + n * MAX_ROWS, MAX_ROWS * sizeof *to);
            else {
                memcpy(to, row + n * MAX_ROWS, (size_t)left * sizeof *to);
                to[left] = 1;
            }
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
        for (int index = 0; index <= job->cell->passes; index++) {
            const struct operand_view o = operand_at(job, d, index);
            int64_t tile_begin, tile_end;
            own_tiles(job, d, part, &o, &tile_begin, &tile_end);
            real *packed = job->run_input + o.first_tile * MAX_ROWS * RUN_ROWS;
            pack_run_input(job, list, index, &o, packed, tile_begin, tile_end);
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
