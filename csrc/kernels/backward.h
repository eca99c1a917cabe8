/* The loop over time backward: blocks in reverse, each recomputed by the forward function where it was not kept, then
 * stepped back through, then added to the weight gradients. */
#ifndef RK_BACKWARD_H
#define RK_BACKWARD_H

/* dh, dx = start + dZ * matrix^T */
static struct product gate_product(const struct job *job, const struct direction *d, int operand, int64_t rows,
                                   real *const *z, int64_t z_panel)
{
    const int64_t units = units_of(job, operand);
    return (struct product){.rows = rows,
                            .a = (const real *const *)z,
                            .a_offset = first_of(job, operand) * LANES,
                            .k = krange_gates(units, count_of(job, operand), z_panel),
                            .b = d->transposed[operand],
                            .k_total = count_of(job, operand) * units,
                            .ns = 1,
                            .c_panel = LANES};
}

static rnnkern_rows gradient_of_inputs(const struct job *job, const struct direction *d)
{
    return d->layer ? sequence_between(job, job->dsequence, (d->layer - 1) % 2) : job->dx;
}

static void transpose_matrices(const struct job *job, const struct direction *d, const struct part *part)
{
    for (int k = gradient_of_inputs(job, d).data ? 0 : 1; k <= job->cell->passes; k++) {
        const int64_t panels = panels_of(d->size[k]);
        pack_transposed(job, d, k, d->transposed[k], own_share(part, panels));
    }
}

static void points_backward(const struct pass *pass, const struct step *s, struct range panels)
{
    const struct point *point = pass->point;
    while (point->forward)
        point++;
    while (point-- > pass->point)
        (s->options ? point->backward : point->usual_backward)(s, panels);
}

static void normalise_backward(const struct job *job, const struct part *part, const struct pass *pass,
                               const struct step *s, struct range panels)
{
    for (int n = 0; n < pass->norms; n++)
        norm_products(job, s, panels, pass->norm + n);
    sync_units(part);
    for (int n = 0; n < pass->norms; n++)
        norm_sums(job, part, s, pass->norm + n);
    sync_units(part);
    for (int n = 0; n < pass->norms; n++)
        norm_backward(job, s, panels, pass->norm + n);
}

static void step_backward(const struct job *job, const struct direction *d, const struct part *part,
                          const struct step *s)
{
    for (int i = job->cell->passes - 1; i >= 0; i--) {
        const struct pass *pass = &job->cell->pass[i];
        const struct range panels = own_panels(part, panels_of_pass(job, i));
        points_backward(pass, s, panels);
        if (pass->norms)
            normalise_backward(job, part, pass, s, panels);
        if (pass->from == NOTHING)
            continue;
        sync_units(part);
        struct product g = gate_product(job, d, i + 1, s->rows, s->z, s->z_panel);
        g.c = s->gradient;
        g.c_offset = pass->part * job->part;
        g.width = job->part;
        g.cont = pass->adds;
        g.turned = s->turned;
        product_run(&g, own_panels(part, panels_of(d->size[i + 1])));
    }
}

static rnnkern_rows gradient_of_outputs(const struct job *job, const struct direction *d)
{
    const int last = d->layer == job->layers - 1;
    return at_feature(last ? at_layer(job->dy, d->layer) : sequence_between(job, job->dsequence, d->layer % 2),
                      d->reverse * job->output);
}

/* dh += dy, between layers through the dropout mask, for list rows begin..begin+n-1. */
static void absorb_outputs(const struct job *job, const struct direction *d, const struct part *part,
                           const struct rows *list, int64_t begin, int64_t n)
{
    const rnnkern_rows dy = gradient_of_outputs(job, d), also = of_lower_layer(job, d, job->dy);
    int64_t first, units;
    own_units(job, part, 0, &first, &units);
    for (int64_t i = begin; also.data && i < begin + n; i++)
        for (int64_t u = first; u < first + units; u++)
            list->gradient[i][u] += row_at(also, list->step[i], list->row[i])[u];
    if (!dy.data)
        return;
    const struct mask mask = output_mask(job, d, job->dy);
    for (int64_t i = begin; i < begin + n; i++) {
        const real *from = row_at(dy, list->step[i], list->row[i]) + first;
        real *dh = list->gradient[i] + first;
        if (!mask.any)
            for (int64_t u = 0; u < units; u++)
                dh[u] += from[u];
        for (int64_t u0 = 0; mask.any && u0 < units; u0 += MASK_UNITS) {
            real factor[MASK_UNITS];
            const int64_t some = min_of(MASK_UNITS, units - u0);
            draw(&mask, output_mask_step(job, d, list->step[i]), list->row[i], first + u0, factor);
            for (int64_t u = 0; u < some; u++)
                dh[u0 + u] += masked(factor[u], from[u0 + u]);
        }
    }
}

/* Of n elements side by side. */
static real norm(const real *x, int64_t n)
{
    const struct values all = {.base = x, .panel = LANES, .count = 1};
    return (real)sqrt((double)sum_values(&all, n, 0, 1));
}

static real *norm_at(const struct job *job, const struct direction *d, int state, int64_t t, int64_t b)
{
    const int first = job->cell->first_state, states = job->cell->states - first;
    const int64_t place = (d->index * states + state - first) * job->call->steps + t;
    return (real *)job->call->state_norms + place * job->plan.rows + b;
}

/* Of the gradients of the states after a step. */
static void report_norms(const struct job *job, const struct direction *d, const struct part *part,
                         const struct rows *list, int64_t begin, int64_t n)
{
    if (!job->call->state_norms)
        return;
    sync_units(part);
    FOR_SHARED_ROWS(part, n, i)
        for (int s = job->cell->first_state; s < job->cell->states; s++)
            *norm_at(job, d, s, list->step[begin + i], list->row[begin + i]) =
                norm(list->gradient[begin + i] + s * job->part, state_size(job, s));
    sync_units(part);
}

static void clear_norms(const struct job *job, const struct direction *d, const struct part *part)
{
    if (job->call->state_norms)
        FOR_OWN_SEQUENCES(job, part, j)
            for (int64_t t = job->plan.length[j]; t < job->call->steps; t++)
                for (int s = job->cell->first_state; s < job->cell->states; s++)
                    *norm_at(job, d, s, t, job->plan.order[j]) = 0;
}

static void clip_gradients(const struct job *job, const struct part *part, const struct rows *list, int64_t begin,
                           int64_t n)
{
    if (!(job->call->clip > 0))
        return;
    const real clip = (real)job->call->clip;
    for (int s = 0; s < job->cell->states; s++) {
        int64_t first, units;
        own_units(job, part, s, &first, &units);
        for (int64_t i = begin; i < begin + n; i++)
            for (int64_t u = first; u < first + units; u += VL) {
                real *x = list->gradient[i] + s * job->part + u;
                v_store(x, v_clamp(v_set1(-clip), v_set1(clip), v_load(x)));
            }
    }
}

/* No gradient crosses a border: where a row restarted, the gradient belongs to the restart state. */
static void cut_at_restarts(const struct job *job, const struct part *part, const struct block *k,
                            const struct rows *list, int64_t begin, int64_t n)
{
    for (int64_t i = begin; i < begin + n; i++)
        for (int s = 0; list->restart[i] && s < job->cell->states; s++) {
            int64_t first, units;
            own_units(job, part, s, &first, &units);
            const size_t bytes = (size_t)units * sizeof(real);
            real *gradient = list->gradient[i] + s * job->part + first;
            const int64_t row = stored_at(job, k, list->z[i]) - k->gate_row0;
            if (job->drestart_rows)
                memcpy(job->drestart_rows + row * job->width + s * job->part + first, gradient, bytes);
            memset(gradient, 0, bytes);
        }
}

/* Sums the block's restart gradients: for a shared restart state in runs over all real rows, as weight gradients are; for
 * restart states of their own row by row, so that a row's sum does not depend on the others. */
static void sum_restarts(const struct job *job, const struct direction *d, const struct part *part, int64_t begin,
                         int64_t end)
{
    const struct plan *plan = &job->plan;
    const struct range panels = own_share(part, job->panels);
    const int64_t first = panels.first * LANES, n = panels.last * LANES - first;
    for (int64_t q = end - 1; q >= begin; q--)
        for (int64_t j = 0, row = stored(plan, d->reverse, q + 1); j < active(plan, d->reverse, q); j++, row++)
            for (int s = 0; s < job->cell->states; s++) {
                const int64_t at = (job->restart_rows > 1 ? j : 0) * job->width + s * job->part + first;
                real *run = job->drestart_run + at, *total = job->drestart_total + at;
                if (job->call->restart_kind == RNNKERN_RESTART_SHARED && row % RUN_ROWS == 0) {
                    add_into(total, run, n);
                    memset(run, 0, (size_t)n * sizeof *run);
                }
                if (restarts(plan, d->reverse, step_of(plan, d->reverse, q), j))
                    add_into(run,
                             job->drestart_rows + (row - stored(plan, d->reverse, end)) * job->width + s * job->part +
                                 first,
                             n);
            }
}

static void save_restart_gradient(const struct job *job, const struct direction *d, const struct part *part)
{
    for (int64_t j = part->member.index; j < job->restart_rows; j += part->member.count) {
        real *total = job->drestart_total + j * job->width;
        add_into(total, job->drestart_run + j * job->width, job->width);
        const int64_t row = job->restart_rows > 1 ? job->plan.order[j] : 0;
        save_state(job, total, job->drestart, d->index * job->restart_rows + row);
    }
}

static void chunk_backward(const struct job *job, const struct direction *d, const struct part *part,
                           const struct block *k, int64_t begin, int64_t end)
{
    struct rows *list = &job->lists[part->member.slot];
    const rnnkern_rows dx = gradient_of_inputs(job, d);
    list_own_rows(job, d, k, begin, end, part, list);
    int64_t at = 0;
    for (int64_t q = end - 1; q >= begin; q--) {
        const int64_t n = own_rows(part, active(&job->plan, d->reverse, q));
        absorb_outputs(job, d, part, list, at, n);
        report_norms(job, d, part, list, at, n);
        for (int64_t first = 0; first < n; first += BLOCK_ROWS) {
            const int64_t some = min_of(BLOCK_ROWS, n - first);
            const struct step s = step_rows(job, d, k, list, at + first, some, q + first / BLOCK_ROWS);
            step_backward(job, d, part, &s);
        }
        clip_gradients(job, part, list, at, n);
        cut_at_restarts(job, part, k, list, at, n);
        at += n;
    }
    if (dx.data) {
        sync_units(part); /* a step without a product has not waited for the others' dZ */
        struct product g = gate_product(job, d, 0, list->n, list->z, k->z_panel);
        point_at(list, dx);
        g.c = list->out;
        g.width = d->size[0];
        g.cont = d->reverse; /* the second direction adds to the first */
        product_run(&g, own_panels(part, panels_of(d->size[0])));
    }
}

/* Where the block that ends at step `end` begins: the steps whose gates are in memory together. */
static int64_t block_begin(const struct job *job, const struct direction *d, int64_t end)
{
    const rnnkern_call *call = job->call;
    return call->keep == RNNKERN_KEEP_GATES    ? 0
           : call->keep == RNNKERN_KEEP_STATES ? chunk_begin(job, d, end, 0)
                                               : (end - 1) / call->segment * call->segment;
}

/* The steps begin..end-1 with their states and gates in memory. Where all states are, the block is the whole sequence. */
static struct block block_of(const struct job *job, const struct direction *d, int64_t begin, int64_t end)
{
    struct block k = whole_block(job, d, 0);
    if (job->call->keep == RNNKERN_KEEP_GATES)
        return k;
    k.gates = job->block_gates;
    k.gate_row0 = stored(&job->plan, d->reverse, end);
    k.z_panel = job->block_rows * job->cell->slots * LANES;
    if (job->call->keep == RNNKERN_KEEP_SEGMENTS) {
        k.states = job->block_states;
        k.row0 = k.gate_row0;
        k.begin = begin;
        k.end = end;
    }
    return k;
}

static void recompute(const struct job *job, const struct direction *d, const struct part *part, const struct block *k,
                      int64_t begin, int64_t end)
{
    if (job->call->keep == RNNKERN_KEEP_SEGMENTS) {
        FOR_OWN_SEQUENCES(job, part, j)
            memcpy(carry_at(job, k, j), segment_carry(job, d, begin) + j * job->width,
                   (size_t)job->width * sizeof(real));
        sync_units(part);
    }
    for (int64_t q = begin, next; q < end; q = next) {
        next = chunk_end(job, d, q, end);
        chunk_forward(job, d, part, k, q, next);
    }
}

/* What members do together before they need what others did. */
struct phase {
    const struct job *job;
    const struct direction *d;
    int64_t begin, end; /* steps of the block */
    void (*work)(const struct phase *phase, const struct part *part);
};

static void member_phase(void *context, const struct rk_member *member)
{
    const struct phase *phase = context;
    const struct part part = part_of(phase->job, member);
    phase->work(phase, &part);
}

/* Members that split units are there, and meet behind the phase. Else this is the caller alone. */
static void run_phase(const struct phase *phase, const struct part *part)
{
    if (part->split_units) {
        phase->work(phase, part);
        rk_barrier(&part->member);
    } else
        rk_team_deal(phase->job->threads, phase->job->shares, time_of(phase->job), member_phase, (void *)phase);
}

static void begin_direction(const struct phase *phase, const struct part *part)
{
    const struct job *job = phase->job;
    const struct direction *d = phase->d;
    transpose_matrices(job, d, part);
    for (int64_t j = part->member.index; job->drestart_rows && j < job->restart_rows; j += part->member.count) {
        memset(job->drestart_run + j * job->width, 0, (size_t)job->width * sizeof(real));
        memset(job->drestart_total + j * job->width, 0, (size_t)job->width * sizeof(real));
    }
    clear_norms(job, d, part);
    FOR_OWN_SEQUENCES(job, part, j)
        load_state(job, job->dhx_n, d->index * job->plan.rows + job->plan.order[j], job->gradient + j * job->width);
}

static void step_through_block(const struct phase *phase, const struct part *part)
{
    const struct job *job = phase->job;
    const struct block k = block_of(job, phase->d, phase->begin, phase->end);
    if (job->call->keep != RNNKERN_KEEP_GATES)
        recompute(job, phase->d, part, &k, phase->begin, phase->end);
    for (int64_t q = phase->end, first; q > phase->begin; q = first) {
        first = chunk_begin(job, phase->d, q, phase->begin);
        chunk_backward(job, phase->d, part, &k, first, q);
    }
}

static void sum_block(const struct phase *phase, const struct part *part)
{
    const struct job *job = phase->job;
    const struct direction *d = phase->d;
    const struct block k = block_of(job, d, phase->begin, phase->end);
    if (job->drestart_rows)
        sum_restarts(job, d, part, phase->begin, phase->end);
    if (job->grads && job->call->row_grads)
        row_gradients(job, d, part, &k);
    else if (job->grads)
        weight_gradient(job, d, part, &k, stored(&job->plan, d->reverse, phase->end),
                        stored(&job->plan, d->reverse, phase->begin));
}

static void end_direction(const struct phase *phase, const struct part *part)
{
    const struct job *job = phase->job;
    const struct direction *d = phase->d;
    FOR_OWN_SEQUENCES(job, part, j)
        save_state(job, job->gradient + j * job->width, job->dhx, d->index * job->plan.rows + job->plan.order[j]);
    if (job->drestart_rows)
        save_restart_gradient(job, d, part);
}

static void direction_backward(const struct job *job, const struct direction *d, const struct part *part)
{
    struct phase phase = {job, d, .work = begin_direction};
    run_phase(&phase, part);
    for (phase.end = job->plan.steps; phase.end > 0; phase.end = phase.begin) {
        phase.begin = block_begin(job, d, phase.end);
        phase.work = step_through_block;
        run_phase(&phase, part);
        phase.work = sum_block;
        if (job->grads || job->drestart_rows)
            run_phase(&phase, part);
    }
    phase.work = end_direction;
    run_phase(&phase, part);
}

static void clear_input_padding(const struct phase *phase, const struct part *part)
{
    clear_padding(phase->job, part, phase->job->dx, phase->job->net->input_size);
}

static void mask_input_gradients(const struct phase *phase, const struct part *part)
{
    mask_sequences(phase->job, part, phase->job->dx, phase->job->dx);
}

static void member_backward(void *context, const struct rk_member *member)
{
    const struct job *job = context;
    const struct part part = part_of(job, member);
    struct phase phase = {job, .work = clear_input_padding};
    if (job->dx.data && job->call->lengths)
        run_phase(&phase, &part);
    for (int64_t layer = job->layers - 1; layer >= 0; layer--)
        for (int64_t i = 0; i < job->directions; i++) {
            const struct direction d = direction_at(job, layer * job->directions + i);
            direction_backward(job, &d, &part);
        }
    phase.work = mask_input_gradients;
    if (job->masked_x && job->dx.data)
        run_phase(&phase, &part);
}

static void backward(const rnnkern_net *net, const rnnkern_call *call, const void *packed, rnnkern_rows x, void *tape,
                     rnnkern_rows dy, rnnkern_states dhx_n, rnnkern_rows dx, rnnkern_states dhx,
                     rnnkern_states drestart, void *const *grads, void *workspace)
{
    struct cell variant;
    struct job job = job_for_call(net, call, &variant);
    struct arena kept = {tape, 0}, work = {workspace, 0};
    layout_kept(&job, &kept);
    layout_backward(&job, &work);
    job.packed = packed;
    job.x = x;
    job.dy = dy;
    job.dx = dx;
    job.dhx_n = dhx_n;
    job.dhx = dhx;
    job.drestart = drestart;
    job.grads = grads;
    if (!drestart.h && !drestart.c)
        job.drestart_rows = NULL;
    plan_rows(&job.plan, call);
    if (job.split_units)
        rk_team_run(job.threads, grace_of(&job), member_backward, &job);
    else
        member_backward(&job, &(struct rk_member){0, 1, 0});
}

#endif
