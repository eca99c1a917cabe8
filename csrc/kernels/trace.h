/* Gates and states of every step for the caller: of each layer and direction, step and row the cell's gates and then its
 * states, dense (L*D, T, B, gates + states, H), zero behind a row's length. */
#ifndef RK_TRACE_H
#define RK_TRACE_H

static inline int64_t trace_row(const struct job *job)
{
    return (job->cell->trace_count + job->cell->states) * job->hidden;
}

static inline real *trace_at(const struct job *job, const struct direction *d, int64_t t, int64_t b)
{
    return (real *)job->call->trace + ((d->index * job->call->steps + t) * job->plan.rows + b) * trace_row(job);
}

/* A panel of h or c; behind a projected h zeros. */
static void emit_state(const struct job *job, const real *row, int part, int64_t p, real *to)
{
    const int64_t units = units_in(job->hidden, p);
    const int64_t n = max_of(0, min_of(units, state_size(job, part) - p * LANES));
    memcpy(to, row + part * job->part + p * LANES, (size_t)n * sizeof *to);
    memset(to + n, 0, (size_t)(units - n) * sizeof *to);
}

/* Of the listed rows, a member's own panels, while they are in the cache. */
static void emit_trace(const struct job *job, const struct direction *d, const struct part *part, const struct block *k,
                       const struct rows *list)
{
    const struct cell *cell = job->cell;
    const struct range panels = own_panels(part, job->panels);
    for (int64_t i = 0; job->call->trace && i < list->n; i++) {
        real *to = trace_at(job, d, list->step[i], list->row[i]);
        for (int64_t p = panels.first; p < panels.last; p++) {
            const size_t bytes = (size_t)units_in(job->hidden, p) * sizeof *to;
            for (int slot = 0; slot < cell->trace_count; slot++)
                memcpy(to + slot * job->hidden + p * LANES,
                       list->z[i] + p * k->z_panel + (cell->trace_first + slot) * LANES, bytes);
            for (int s = 0; s < cell->states; s++)
                emit_state(job, list->current[i], s, p, to + (cell->trace_count + s) * job->hidden + p * LANES);
        }
    }
}

static void clear_trace(const struct job *job, const struct direction *d, const struct part *part)
{
    if (job->call->trace)
        FOR_OWN_SEQUENCES(job, part, j)
            for (int64_t t = job->plan.length[j]; t < job->call->steps; t++)
                memset(trace_at(job, d, t, job->plan.order[j]), 0, (size_t)trace_row(job) * sizeof(real));
}

#endif
