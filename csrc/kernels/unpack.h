/* What a tape of all gates holds, as a dense array for the caller: of each layer and direction, step and row the cell's slots
 * and then its states, (L*D, T, B, slots + states, H). After forward the slots are gates, after backward their gradients dZ.
 * Zero behind a row's length. */
#ifndef RK_UNPACK_H
#define RK_UNPACK_H

struct unpacking {
    struct job job;
    real *out;
};

static void unpack_row(const struct job *job, const struct block *k, int64_t stored_row, real *to)
{
    const real *gates = gates_at(job, k, stored_row), *state = state_at(job, k, stored_row);
    for (int slot = 0; slot < job->cell->slots; slot++, to += job->hidden)
        for (int64_t p = 0; p < job->panels; p++)
            memcpy(to + p * LANES, gates + p * k->z_panel + slot * LANES,
                   (size_t)units_in(job->hidden, p) * sizeof *to);
    for (int part = 0; part < job->cell->states; part++, to += job->hidden)
        memcpy(to, state + part * job->part, (size_t)job->hidden * sizeof *to);
}

static void member_unpack(void *context, const struct rk_member *member)
{
    const struct unpacking *u = context;
    const struct job *job = &u->job;
    const struct plan *plan = &job->plan;
    const int64_t size = (job->cell->slots + job->cell->states) * job->hidden, steps = job->call->steps;
    for (int64_t index = 0; index < job->layers * job->directions; index++) {
        const struct direction d = direction_at(job, index);
        const struct block k = whole_block(job, &d);
        for (int64_t j = member->index; j < plan->rows; j += member->count)
            for (int64_t t = 0; t < steps; t++) {
                real *to = u->out + ((index * steps + t) * plan->rows + plan->order[j]) * size;
                if (t < plan->length[j])
                    unpack_row(job, &k, stored(plan, d.reverse, step_of(plan, d.reverse, t) + 1) + j, to);
                else
                    memset(to, 0, (size_t)size * sizeof *to);
            }
    }
}

static void unpack(const rnnkern_net *net, const rnnkern_call *call, void *tape, void *workspace, void *out)
{
    struct unpacking u = {.job = job_for_call(net, call), .out = out};
    struct arena kept = {tape, 0}, work = {workspace, 0};
    layout_kept(&u.job, &kept);
    layout_common(&u.job, &work);
    plan_rows(&u.job.plan, call);
    rk_team_run(u.job.threads, grace_of(&u.job), member_unpack, &u);
}

#endif
