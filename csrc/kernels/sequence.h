/* The one loop over time, for every cell: forward here, backward in backward.h.
 *
 * A chunk of steps is projected (x W for all of its rows), then its steps follow one another. A member of the team runs
 * this loop on its share: all rows of some panels, where members meet at barriers, or all panels of some rows, where no
 * share waits for another. */
#ifndef RK_SEQUENCE_H
#define RK_SEQUENCE_H

static struct product input_product(const struct job *job, const struct direction *d, const struct block *k,
                                    const struct rows *list)
{
    const struct cell *cell = job->cell;
    return (struct product){.rows = list->n,
                            .a = list->x,
                            .k = krange_dense(d->size[0]),
                            .b = d->matrix[0],
                            .k_total = d->size[0],
                            .ns = cell->x_count,
                            .c = list->z,
                            .c_offset = cell->x_first * LANES,
                            .c_panel = k->z_panel,
                            .width = job->part,
                            .bias = d->bias + cell->x_first * LANES,
                            .bias_panel = cell->biased * LANES};
}

static struct product recurrent_product(const struct job *job, const struct direction *d, int pass_index,
                                        const struct step *s)
{
    const struct pass *pass = &job->cell->pass[pass_index];
    const int64_t size = d->size[pass_index + 1];
    return (struct product){.rows = s->rows,
                            .a = pass->from == PREVIOUS ? s->previous : (const real *const *)s->current,
                            .a_offset = pass->part * job->part,
                            .k = krange_dense(size),
                            .b = d->matrix[pass_index + 1],
                            .k_total = size,
                            .ns = pass->count,
                            .c = s->z,
                            .c_offset = pass->first * LANES,
                            .c_panel = s->z_panel,
                            .width = job->part,
                            .bias = pass->of_h ? NULL : d->bias + pass->first * LANES,
                            .bias_panel = job->cell->biased * LANES,
                            .cont = pass->cont};
}

static inline int64_t panels_of_pass(const struct job *job, int pass) { return panels_of(units_of(job, pass + 1)); }

static void points_forward(const struct pass *pass, const struct step *s, struct range panels)
{
    if (!s->options) { /* there is one */
        pass->point[0].usual_forward(s, panels);
        return;
    }
    for (const struct point *point = pass->point; point->forward; point++)
        point->forward(s, panels);
}

/* Each panel is activated while its pre-activations are in L1. `input` is NULL where the inputs have been projected. */
static void pass_forward(const struct job *job, const struct direction *d, int index, const struct product *input,
                         const struct step *s, struct range panels)
{
    const struct pass *pass = &job->cell->pass[index];
    const struct product product = recurrent_product(job, d, index, s);
    const int has_product = pass->from != NOTHING;
    const int64_t size = has_product ? panels_per_tile(product.ns, tile_columns(&product)) : 1;
    for (int64_t i = 0; i < groups_of(panels, size); i++) {
        const struct range some = turned_group(panels, size, i, s->turned);
        if (input)
            product_panels(input, some);
        if (has_product)
            product_panels(&product, some);
        if (!pass->norms)
            points_forward(pass, s, some);
    }
}

static void normalise_forward(const struct job *job, const struct part *part, const struct pass *pass,
                              const struct step *s, struct range panels)
{
    sync_units(part);
    for (int n = 0; n < pass->norms; n++)
        norm_statistics(job, part, s, pass->norm + n);
    sync_units(part);
    for (int n = 0; n < pass->norms; n++)
        norm_forward(job, s, panels, pass->norm + n);
    points_forward(pass, s, panels);
}

static void step_forward(const struct job *job, const struct direction *d, const struct part *part,
                         const struct product *input, const struct step *s)
{
    for (int i = 0; i < job->cell->passes; i++) {
        const struct pass *pass = &job->cell->pass[i];
        const struct range panels = own_panels(part, panels_of_pass(job, i));
        if (i > 0 && pass->from != NOTHING)
            sync_units(part);
        pass_forward(job, d, i, i ? NULL : input, s, panels);
        if (pass->norms)
            normalise_forward(job, part, pass, s, panels);
    }
    sync_units(part);
}

/* Of this layer's outputs. */
static struct mask output_mask(const struct job *job, const struct direction *d, rnnkern_rows y)
{
    const rnnkern_call *call = job->call;
    const int last = d->layer == job->layers - 1, none = !records(call) || (last && y.layer);
    return mask_for(last ? RNNKERN_MASK_OUTPUT : RNNKERN_MASK_LAYERS,
                    none   ? 0
                    : last ? call->output_dropout
                           : call->dropout,
                    call->seed, d->layer, d->reverse);
}

static int64_t output_mask_step(const struct job *job, const struct direction *d, int64_t t)
{
    return job->call->variational || d->layer == job->layers - 1 ? 0 : mask_step(job->call, t);
}

/* The units [first, first+n) of a member's panels of h (part 0) or c; n can be 0. */
static void own_units(const struct job *job, const struct part *part, int state, int64_t *first, int64_t *n)
{
    const int64_t units = state_size(job, state);
    const struct range panels = own_panels(part, panels_of(units));
    *first = panels.first * LANES;
    *n = max_of(0, min_of(units, panels.last * LANES) - *first);
}

/* What the caller gets, or gives, beside what one layer hands to the next: sequences of the lower layers. */
static rnnkern_rows of_lower_layer(const struct job *job, const struct direction *d, rnnkern_rows rows)
{
    if (!rows.layer || d->layer == job->layers - 1)
        return (rnnkern_rows){0};
    return at_feature(at_layer(rows, d->layer), d->reverse * job->output);
}

/* h of the rows goes to the output; between layers through dropout. */
static void emit_outputs(const struct job *job, const struct direction *d, const struct part *part,
                         const struct rows *list)
{
    int64_t first, n;
    own_units(job, part, 0, &first, &n);
    const rnnkern_rows also = of_lower_layer(job, d, job->y);
    for (int64_t i = 0; also.data && i < list->n; i++)
        memcpy(row_at(also, list->step[i], list->row[i]) + first, list->current[i] + first, (size_t)n * sizeof(real));
    if (!d->y.data)
        return;
    const struct mask mask = output_mask(job, d, job->y);
    for (int64_t i = 0; i < list->n; i++) {
        real *y = row_at(d->y, list->step[i], list->row[i]) + first;
        const real *h = list->current[i] + first;
        if (!mask.any) {
            memcpy(y, h, (size_t)n * sizeof *y);
            continue;
        }
        for (int64_t u = 0; u < n; u += MASK_UNITS) {
            real factor[MASK_UNITS];
            draw(&mask, output_mask_step(job, d, list->step[i]), list->row[i], first + u, factor);
            for (int64_t k = 0; k < min_of(MASK_UNITS, n - u); k++)
                y[u + k] = masked(factor[k], h[u + k]);
        }
    }
}

/* A member's units of the masks that the cell has slots for. */
static void draw_slots(const struct job *job, const struct direction *d, const struct part *part, const struct block *k,
                       const struct rows *list)
{
    for (int n = 0; n < job->cell->masks; n++) {
        const rnnkern_mask kind = job->cell->mask[n].kind;
        const struct mask m = mask_for(kind, job->cell->mask[n].probability, job->call->seed, d->layer, d->reverse);
        int64_t first, units;
        own_units(job, part, kind == RNNKERN_MASK_CANDIDATE || kind == RNNKERN_MASK_ZONEOUT_C, &first, &units);
        for (int64_t i = 0; i < list->n; i++)
            for (int64_t u = 0; u < units; u += MASK_UNITS) {
                real factor[MASK_UNITS];
                draw(&m, kind == RNNKERN_MASK_HIDDEN ? 0 : mask_step(job->call, list->step[i]), list->row[i], first + u,
                     factor);
                real *to = list->z[i] + (first + u) / LANES * k->z_panel + job->cell->mask[n].slot * LANES;
                for (int64_t p = 0; p < panels_of(min_of(MASK_UNITS, units - u)); p++)
                    memcpy(to + p * k->z_panel, factor + p * LANES, LANES * sizeof *to);
            }
    }
}

/* The steps begin..end-1 of the block; gates from gate_row0 on. Recomputation in backward is this same function. */
static void chunk_forward(const struct job *job, const struct direction *d, const struct part *part,
                          const struct block *k, int64_t begin, int64_t end)
{
    struct rows *list = &job->lists[part->member.slot];
    list_own_rows(job, d, k, begin, end, part, list);
    const struct product project = input_product(job, d, k, list);
    /* For one step both matrices are read in one go, and so in turns by calls of a step each. */
    const int ahead = end - begin > 1 || job->cell->pass[0].of_h;
    if (ahead)
        product_run(&project, own_panels(part, job->panels));
    draw_slots(job, d, part, k, list);
    int64_t at = list->n;
    for (int64_t q = begin; q < end; q++) {
        const int64_t n = own_rows(part, active(&job->plan, d->reverse, q));
        at -= n;
        for (int64_t first = 0; first < n; first += BLOCK_ROWS) {
            const int64_t some = min_of(BLOCK_ROWS, n - first);
            const struct product input = product_of_rows(&project, first, some);
            const struct step s = step_rows(job, d, k, list, at + first, some, q + first / BLOCK_ROWS);
            step_forward(job, d, part, ahead ? NULL : &input, &s);
        }
    }
}

/* The whole sequence as one block, as far as its states and gates are kept; the rest is in a member's scratch. */
static struct block whole_block(const struct job *job, const struct direction *d, int scratch)
{
    const int64_t all = job->plan.real_rows;
    const int gates = job->call->keep == RNNKERN_KEEP_GATES, states = keeps_all_states(job->call);
    return (struct block){
        .end = job->plan.steps,
        .z_panel = (gates ? all : job->project_rows) * job->cell->slots * LANES,
        .states =
            job->states + (states ? d->index * (job->plan.rows + all) * job->width : scratch * scratch_states(job)),
        .gates = job->gates + (gates ? d->index * all * job->gate_row : scratch * scratch_gates(job))};
}

static real *segment_carry(const struct job *job, const struct direction *d, int64_t q)
{
    const int64_t segment = d->index * segments_of(job) + q / job->call->segment;
    return job->carry + segment * job->plan.rows * job->width;
}

static void direction_forward(const struct job *job, const struct direction *d, const struct part *part)
{
    const rnnkern_call *call = job->call;
    struct rows *list = &job->lists[part->member.slot];
    const size_t row_bytes = (size_t)job->width * sizeof(real);
    struct block k = whole_block(job, d, part->split_units ? 0 : part->member.slot);
    const int64_t steps = k.end;

    clear_trace(job, d, part);
    FOR_OWN_SEQUENCES(job, part, j)
        load_state(job, job->hx, d->index * job->plan.rows + job->plan.order[j], carry_at(job, &k, j));
    sync_units(part);
    for (int64_t q = 0, end; q < steps; q = end) {
        const int segments = call->keep == RNNKERN_KEEP_SEGMENTS;
        end = chunk_end(job, d, q, segments ? min_of(steps, (q / call->segment + 1) * call->segment) : steps);
        if (segments && q % call->segment == 0)
            FOR_OWN_SEQUENCES(job, part, j)
                memcpy(segment_carry(job, d, q) + j * job->width, carry_at(job, &k, j), row_bytes);
        if (call->keep != RNNKERN_KEEP_GATES)
            k.gate_row0 = stored(&job->plan, d->reverse, end);
        if (!keeps_all_states(call)) {
            k.begin = q;
            k.end = end;
            k.row0 = k.gate_row0;
        }
        chunk_forward(job, d, part, &k, q, end);
        emit_outputs(job, d, part, list);
        emit_trace(job, d, part, &k, list);
        if (!keeps_all_states(call)) {
            FOR_OWN_SEQUENCES(job, part, j)
                if (state_after(job, d, &k, j) != carry_at(job, &k, j))
                    memcpy(carry_at(job, &k, j), state_after(job, d, &k, j), row_bytes);
            sync_units(part);
        }
    }
    if (!keeps_all_states(call))
        k.begin = k.end; /* the carry rows hold the final states */
    FOR_OWN_SEQUENCES(job, part, j)
        save_state(job, state_after(job, d, &k, j), job->hx_n, d->index * job->plan.rows + job->plan.order[j]);
    sync_units(part);
}

/* Zeros behind each row's length. */
static void clear_padding(const struct job *job, const struct part *part, rnnkern_rows rows, int64_t features)
{
    if (rows.data)
        FOR_OWN_SEQUENCES(job, part, j)
            for (int64_t t = job->plan.length[j]; t < job->call->steps; t++)
                memset(row_at(rows, t, job->plan.order[j]), 0, (size_t)features * sizeof(real));
}

/* x, or its gradient, through the input's mask, which is the same for all steps of a row; 64 units at a time. */
static void mask_sequences(const struct job *job, const struct part *part, rnnkern_rows from, rnnkern_rows to)
{
    const int64_t features = job->net->input_size;
    const struct mask m = mask_for(RNNKERN_MASK_INPUT, job->call->input_dropout, job->call->seed, 0, 0);
    FOR_OWN_SEQUENCES(job, part, j)
        for (int64_t first = 0; first < features; first += MASK_UNITS) {
            const int64_t n = min_of(MASK_UNITS, features - first), b = job->plan.order[j];
            real factor[MASK_UNITS];
            draw(&m, 0, b, first, factor);
            for (int64_t t = 0; t < job->plan.length[j]; t++)
                for (int64_t u = 0; u < n; u++)
                    row_at(to, t, b)[first + u] = masked(factor[u], row_at(from, t, b)[first + u]);
        }
}

static struct part part_of(const struct job *job, const struct rk_member *member)
{
    const int units = job->split_units && member->count > 1;
    return (struct part){.member = *member,
                         .split_units = units,
                         .first = units ? 0 : member->index,
                         .stride = units ? 1 : member->count};
}

static void member_forward(void *context, const struct rk_member *member)
{
    const struct job *job = context;
    const struct part part = part_of(job, member);
    for (int64_t layer = 0; layer < (job->y.layer ? job->layers : 1); layer++)
        clear_padding(job, &part, at_layer(job->y, layer), job->directions * job->output);
    if (job->masked_x) {
        mask_sequences(job, &part, job->x, masked_inputs(job));
        sync_units(&part);
    }
    for (int64_t i = 0; i < job->layers * job->directions; i++) {
        const struct direction d = direction_at(job, i);
        direction_forward(job, &d, &part);
    }
}

static void load_restarts(const struct job *job)
{
    const int64_t n = job->layers * job->directions;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < job->restart_rows; j++)
            load_state(job, job->restart, job->restart_rows > 1 ? i * job->restart_rows + job->plan.order[j] : i,
                       job->restart_row + (i * job->restart_rows + j) * job->width);
}

static void forward(const rnnkern_net *net, const rnnkern_call *call, const void *packed, rnnkern_rows x,
                    rnnkern_states hx, rnnkern_states restart, rnnkern_rows y, rnnkern_states hx_n, void *tape,
                    void *workspace)
{
    struct cell variant;
    struct job job = job_for_call(net, call, &variant);
    struct arena kept = {tape, 0}, work = {workspace, 0};
    if (call->keep != RNNKERN_KEEP_NONE)
        layout_kept(&job, &kept);
    layout_forward(&job, &work);
    job.packed = packed;
    job.x = x;
    job.y = y;
    job.hx = hx;
    job.hx_n = hx_n;
    job.restart = restart;
    plan_rows(&job.plan, call);
    load_restarts(&job);
    if (job.split_units)
        rk_team_run(job.threads, grace_of(&job), member_forward, &job);
    else
        rk_team_deal(job.threads, job.shares, time_of(&job), member_forward, &job);
}

#endif
