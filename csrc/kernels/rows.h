/* Lists of the rows of a chunk, with pointers to what belongs to each; and the states that enter and leave a block. */
#ifndef RK_ROWS_H
#define RK_ROWS_H

static inline real *gates_at(const struct job *job, const struct block *k, int64_t stored_row)
{
    return k->gates + (stored_row - k->gate_row0) * job->cell->slots * LANES;
}
static inline int64_t stored_at(const struct job *job, const struct block *k, const real *gates)
{
    return (gates - k->gates) / (job->cell->slots * LANES) + k->gate_row0;
}
static inline real *carry_at(const struct job *job, const struct block *k, int64_t j)
{
    return k->states + j * job->width;
}
static inline real *state_at(const struct job *job, const struct block *k, int64_t stored_row)
{
    return k->states + (job->plan.rows + stored_row - k->row0) * job->width;
}
static inline real *restart_at(const struct job *job, const struct direction *d, int64_t j)
{
    return job->restart_row + (d->index * job->restart_rows + (job->restart_rows > 1 ? j : 0)) * job->width;
}

/* The state from which row j starts step q: a restart, the states on entry, or the step before. */
static const real *previous_state(const struct job *job, const struct direction *d, const struct block *k, int64_t q,
                                  int64_t j, int restart)
{
    if (restart)
        return restart_at(job, d, j);
    if (q == k->begin || j >= active(&job->plan, d->reverse, q - 1))
        return carry_at(job, k, j);
    return state_at(job, k, stored(&job->plan, d->reverse, q) + j);
}

/* Storage rows begin..end-1, of each step the rows first, first+stride, ... */
static void list_rows(const struct job *job, const struct direction *d, const struct block *k, int64_t begin,
                      int64_t end, int64_t first, int64_t stride, struct rows *list)
{
    const struct plan *plan = &job->plan;
    int64_t n = 0, q = step_holding(plan, d->reverse, begin);
    for (; begin < end; begin = stored(plan, d->reverse, q), q--) {
        const int64_t t = step_of(plan, d->reverse, q), step0 = stored(plan, d->reverse, q + 1);
        const int64_t last = min_of(end, stored(plan, d->reverse, q)) - step0;
        for (int64_t j = begin - step0 + first; j < last; j += stride, n++) {
            const int64_t b = plan->order[j], row = step0 + j;
            list->restart[n] = (uint8_t)restarts(plan, d->reverse, t, j);
            list->x[n] = row_at(d->x, t, b);
            list->z[n] = gates_at(job, k, row);
            list->previous[n] = previous_state(job, d, k, q, j, list->restart[n]);
            list->current[n] = state_at(job, k, row);
            list->gradient[n] = job->gradient ? job->gradient + j * job->width : NULL;
            list->step[n] = (int32_t)t;
            list->row[n] = (int32_t)b;
        }
    }
    list->n = n;
}

static void list_own_rows(const struct job *job, const struct direction *d, const struct block *k, int64_t q_begin,
                          int64_t q_end, const struct part *part, struct rows *list)
{
    list_rows(job, d, k, stored(&job->plan, d->reverse, q_end), stored(&job->plan, d->reverse, q_begin), part->first,
              part->stride, list);
}

static void point_at(const struct rows *list, rnnkern_rows sequence)
{
    for (int64_t i = 0; i < list->n; i++)
        list->out[i] = row_at(sequence, list->step[i], list->row[i]);
}

static struct step step_rows(const struct job *job, const struct direction *d, const struct block *k,
                             const struct rows *list, int64_t i, int64_t n, int64_t q)
{
    return (struct step){.options = job->options,
                         .unit_weights = d->unit_weights,
                         .rows = n,
                         .z = list->z + i,
                         .previous = list->previous + i,
                         .current = list->current + i,
                         .gradient = list->gradient + i,
                         .z_panel = k->z_panel,
                         .part = job->part,
                         .turned = (int)((job->call->first_step + q) % 2)};
}

/* The end of the chunk that starts at step q: as many steps as fit, at least one, not beyond `limit`. */
static int64_t chunk_end(const struct job *job, const struct direction *d, int64_t q, int64_t limit)
{
    const int64_t start = stored(&job->plan, d->reverse, q);
    int64_t end = q + 1;
    while (end < limit && start - stored(&job->plan, d->reverse, end + 1) <= job->project_rows)
        end++;
    return end;
}

/* The same from the other side: where the chunk that ends at step q begins. */
static int64_t chunk_begin(const struct job *job, const struct direction *d, int64_t q, int64_t limit)
{
    const int64_t start = stored(&job->plan, d->reverse, q);
    int64_t begin = q - 1;
    while (begin > limit && stored(&job->plan, d->reverse, begin - 1) - start <= job->chunk_rows)
        begin--;
    return begin;
}

/* ---- states */

static inline int64_t state_size(const struct job *job, int part) { return part ? job->hidden : job->output; }

/* A state row from or to the caller's h and c; `row` is its index there. */
static void load_state(const struct job *job, rnnkern_states from, int64_t row, real *to)
{
    const real *const parts[2] = {from.h, from.c};
    memset(to, 0, (size_t)job->width * sizeof *to);
    for (int k = 0; k < job->cell->states; k++)
        if (parts[k])
            memcpy(to + k * job->part, parts[k] + row * state_size(job, k), (size_t)state_size(job, k) * sizeof *to);
}

static void save_state(const struct job *job, const real *from, rnnkern_states to, int64_t row)
{
    real *const parts[2] = {to.h, to.c};
    for (int k = 0; k < job->cell->states; k++)
        if (parts[k])
            memcpy(parts[k] + row * state_size(job, k), from + k * job->part,
                   (size_t)state_size(job, k) * sizeof *from);
}

/* Row j's state after the steps of the block. */
static const real *state_after(const struct job *job, const struct direction *d, const struct block *k, int64_t j)
{
    const struct plan *plan = &job->plan;
    int64_t last = d->reverse ? k->end - 1 : min_of(k->end, plan->length[j]) - 1;
    if (last < k->begin || j >= active(plan, d->reverse, last))
        return carry_at(job, k, j);
    return state_at(job, k, stored(plan, d->reverse, last + 1) + j);
}

/* Rows j that a member loads, saves or clears. Members that split units share them out all the same, between barriers. */
#define FOR_OWN_SEQUENCES(job, part, j) \
    for (int64_t j = (part)->member.index; j < (job)->plan.rows; j += (part)->member.count)

#endif
