/* The cell of a net: one of the tables of the cells' headers, laid out for the net's options. What is the same for all
 * cells is added around them: a projection, zoneout and the dropout mask of h as passes and points of their own. */
#ifndef RK_CELLS_H
#define RK_CELLS_H

static struct pass *last_pass(struct cell *c) { return &c->pass[c->passes - 1]; }

static void add_point(struct pass *pass, struct point point)
{
    int n = 0;
    while (pass->point[n].forward)
        n++;
    pass->point[n] = point;
}

static int add_slots(struct cell *c, int n)
{
    c->slots += n;
    return c->slots - n;
}

static void add_unit_weight(struct cell *c, struct unit_weight weight) { c->unit_weight[c->unit_weights++] = weight; }

/* Gates side by side: e g o. */
static void couple_gates(struct cell *c, rnnkern_coupling coupled)
{
    c->options.coupled = coupled;
    c->gates = c->slots = c->x_count = c->biased = c->trace_count = c->pass[0].count = c->pass[0].cont = 3;
}

/* ---- normalisation by row: a group's slots and unit weights, see norm.h */

static void add_norm(struct cell *c, struct norm norm, rnnkern_weight gain, rnnkern_weight bias, const int *blocks)
{
    norm.product = add_slots(c, norm.count);
    norm.gain = c->unit_weights;
    norm.bias = norm.gain + norm.count;
    for (int k = 0; k < norm.count; k++)
        add_unit_weight(c, (struct unit_weight){.weight = gain, .block = blocks[k], .slot = norm.product + k});
    for (int k = 0; k < norm.count; k++)
        add_unit_weight(c, (struct unit_weight){.weight = bias, .block = blocks[k], .slot = norm.gate + k});
    c->norm[c->norms++] = norm;
}

/* W x and U h each in slots of their own, [x_count] and [count], then the cell's own slots. */
static void normalise_products(struct cell *c)
{
    struct pass *pass = &c->pass[0];
    const int inputs = c->x_count, units = pass->count, shift = pass->first, own = c->slots;
    int blocks[MAX_SLOTS];
    memcpy(blocks, c->gate_of_slot, sizeof blocks);
    memcpy(c->gate_of_slot + inputs, blocks + shift, (size_t)units * sizeof *blocks);
    c->slots = c->biased = inputs + units;
    c->trace_first = c->options.gates = add_slots(c, own);
    pass->first = inputs;
    pass->cont = 0;
    pass->norms = 2;
    add_norm(c, (struct norm){.count = inputs, .part = -1, .gate = c->options.gates}, RNNKERN_NORM_IH, RNNKERN_BIAS_IH,
             blocks);
    add_norm(c,
             (struct norm){
                 .first = inputs, .count = units, .part = -1, .gate = c->options.gates + shift, .adds = inputs - shift},
             RNNKERN_NORM_HH, RNNKERN_BIAS_HH, blocks + shift);
}

static void normalise_cell(struct cell *c)
{
    static const int block = 0;
    const int slot = c->options.normalised = add_slots(c, 2);
    c->pass[c->passes++] =
        (struct pass){.norm = c->norms, .norms = 1, .point = {{lstm_output_forward, lstm_output_backward}}};
    add_norm(c, (struct norm){.first = slot, .count = 1, .part = c->options.fresh, .gate = slot + 1}, RNNKERN_NORM_C,
             RNNKERN_NORM_C_BIAS, &block);
}

static void add_peepholes(struct cell *c)
{
    const int gates = c->options.gates;
    c->options.peephole = c->unit_weights;
    for (int k = 0; k < c->gates - 2; k++)
        add_unit_weight(c, (struct unit_weight){RNNKERN_WEIGHT_CH, k, gates + k, PREVIOUS, 1});
    add_unit_weight(
        c, (struct unit_weight){RNNKERN_WEIGHT_CH, c->gates - 2, gates + c->gates - 1, CURRENT, c->options.fresh});
}

/* ---- around any cell */

static void take_projection_forward(const struct step *s, struct range panels)
{
    FOR_EACH_VECTOR(s, panels, p, i, v)
        v_store(current_of(s, i, p, s->options->projected, v), v_load(slot_of(s, i, p, s->options->projection, v)));
}

static void take_projection_backward(const struct step *s, struct range panels)
{
    FOR_EACH_VECTOR(s, panels, p, i, v) {
        real *dh = gradient_of(s, i, p, s->options->projected, v);
        v_store(slot_of(s, i, p, s->options->projection, v), v_load(dh));
        v_store(dh, v_zero());
    }
}

static void project(struct cell *c)
{
    c->options.out = c->parts++;
    c->options.projection = add_slots(c, 1);
    c->gate_of_slot[c->options.projection] = 0; /* weight_hr is one block */
    c->pass[c->passes++] = (struct pass){.from = CURRENT,
                                         .part = c->options.out,
                                         .first = c->options.projection,
                                         .count = 1,
                                         .of_h = 1,
                                         .point = {{take_projection_forward, take_projection_backward}}};
}

/* The part of h as it comes from the cell or its projection. */
static int new_part(const struct options *o) { return o->projection ? o->projected : o->out; }

static void zoneout_forward(const struct step *s, struct range panels)
{
    const struct options *o = s->options;
    FOR_EACH_VECTOR(s, panels, p, i, v)
        v_store(current_of(s, i, p, 0, v),
                mix(zoneout_of(s, o->mask_h, o->zoneout_h, i, p, v), v_load(previous_of(s, i, p, 0, v)),
                    v_load(current_of(s, i, p, new_part(o), v))));
}

static void zoneout_backward(const struct step *s, struct range panels)
{
    const struct options *o = s->options;
    FOR_EACH_VECTOR(s, panels, p, i, v) {
        const vec keep = zoneout_of(s, o->mask_h, o->zoneout_h, i, p, v), dh = v_load(gradient_of(s, i, p, 0, v));
        v_store(gradient_of(s, i, p, new_part(o), v), v_mul(v_sub(v_set1(1), keep), dh));
        v_store(gradient_of(s, i, p, 0, v), v_mul(keep, dh));
    }
}

static void add_zoneout(struct cell *c)
{
    *(c->options.projection ? &c->options.projected : &c->options.out) = c->parts++;
    add_point(last_pass(c), (struct point){.forward = zoneout_forward, .backward = zoneout_backward});
}

static void mask_hidden_forward(const struct step *s, struct range panels)
{
    const struct options *o = s->options;
    FOR_EACH_VECTOR(s, panels, p, i, v)
        v_store(current_of(s, i, p, o->operand, v),
                v_mul(v_load(slot_of(s, i, p, o->mask_hidden, v)), v_load(previous_of(s, i, p, 0, v))));
}

static void mask_hidden_backward(const struct step *s, struct range panels)
{
    const struct options *o = s->options;
    FOR_EACH_VECTOR(s, panels, p, i, v) {
        real *dh = gradient_of(s, i, p, 0, v);
        const vec mask = v_load(slot_of(s, i, p, o->mask_hidden, v));
        v_store(dh, v_fma(mask, v_load(gradient_of(s, i, p, o->operand, v)), v_load(dh)));
    }
}

static void mask_operand(struct cell *c)
{
    const int part = c->options.operand = c->parts++;
    for (int k = c->passes++; k > 0; k--)
        c->pass[k] = c->pass[k - 1];
    c->pass[0] = (struct pass){.of_h = 1, .point = {{mask_hidden_forward, mask_hidden_backward}}};
    if (c->pass[1].from == PREVIOUS) {
        c->pass[1].from = CURRENT;
        c->pass[1].part = part;
        c->pass[1].adds = c->options.reset > 0; /* to what give_operand gave */
    }
    for (int k = 0; k < c->unit_weights; k++)
        if (c->unit_weight[k].weight == RNNKERN_WEIGHT_HH) {
            c->unit_weight[k].from = CURRENT;
            c->unit_weight[k].part = part;
        }
}

/* The slot of a mask, 0 where it masks nothing. */
static int add_mask(struct cell *c, rnnkern_mask kind, double probability)
{
    if (!(probability > 0))
        return 0;
    const int slot = add_slots(c, 1);
    c->mask[c->masks].kind = kind;
    c->mask[c->masks].slot = slot;
    c->mask[c->masks++].probability = probability;
    return slot;
}

/* ---- */

static int records(const rnnkern_call *call) { return call && call->keep != RNNKERN_KEEP_NONE; }

static int is_own(rnnkern_function f, const struct activation *usual)
{
    return f.kind == RNNKERN_USUAL ||
           (f.kind == usual->kind &&
            (f.kind != RNNKERN_AFFINE || (f.alpha == (double)usual->alpha && f.beta == (double)usual->beta)));
}

static int is_usual(const rnnkern_net *net, const rnnkern_call *call, const struct options *usual)
{
    return is_own(net->gate, &usual->gate) && is_own(net->candidate, &usual->candidate) &&
           is_own(net->output, &usual->output) && !net->coupled && !net->layer_norm && !net->peephole &&
           !net->proj_size && !(net->clip > 0) && !(net->cell_clip > 0) && !(net->zoneout_h > 0) &&
           !(net->zoneout_c > 0) && !(records(call) && (call->hidden_dropout > 0 || call->candidate_dropout > 0));
}

static void set_options(const rnnkern_net *net, struct cell *c)
{
    struct options *o = &c->options;
    *o = *c->usual;
    o->gate = activation_of(net->gate, &o->gate, net->clip);
    o->candidate = activation_of(net->candidate, &o->candidate, net->clip);
    o->output = activation_of(net->output, &o->output, net->clip);
    o->cell_clip = (real)net->cell_clip;
    o->zoneout_h = (real)net->zoneout_h;
    o->zoneout_c = (real)net->zoneout_c;
}

/* Slots, parts and passes. Masks come last, so that packed weights do not depend on the call. */
static void lay_out(const rnnkern_net *net, const rnnkern_call *call, struct cell *c)
{
    struct options *o = &c->options;
    if (net->coupled)
        couple_gates(c, net->coupled);
    if (net->zoneout_c > 0)
        o->fresh = c->parts++;
    if (net->layer_norm)
        normalise_products(c);
    if (net->layer_norm && net->cell == RNNKERN_LSTM)
        normalise_cell(c);
    if (net->peephole)
        add_peepholes(c);
    if (net->proj_size)
        project(c);
    if (net->zoneout_h > 0)
        add_zoneout(c);
    if (!records(call))
        return;
    if (call->hidden_dropout > 0)
        mask_operand(c);
    o->mask_hidden = add_mask(c, RNNKERN_MASK_HIDDEN, call->hidden_dropout);
    o->mask_candidate = add_mask(c, RNNKERN_MASK_CANDIDATE, call->candidate_dropout);
    o->mask_h = add_mask(c, RNNKERN_MASK_ZONEOUT_H, net->zoneout_h);
    o->mask_c = add_mask(c, RNNKERN_MASK_ZONEOUT_C, net->zoneout_c);
}

/* A table, or where there are options `variant`, filled. */
static const struct cell *cell_of(const rnnkern_net *net, const rnnkern_call *call, struct cell *variant)
{
    static const struct cell *const cells[RNNKERN_CELLS] = {
        [RNNKERN_RNN] = &rnn_cell, [RNNKERN_LSTM] = &lstm_cell,     [RNNKERN_GRU] = &gru_cell,
        [RNNKERN_MGU] = &mgu_cell, [RNNKERN_INDRNN] = &indrnn_cell, [RNNKERN_GRU_BEFORE] = &gru_before_cell,
        [RNNKERN_SRU] = &sru_cell, [RNNKERN_MINGRU] = &mingru_cell,
    };
    const int relu = net->cell == RNNKERN_RNN && net->candidate.kind == RNNKERN_RELU;
    const struct cell *cell = relu ? &rnn_relu_cell : cells[net->cell];
    if (is_usual(net, call, cell->usual))
        return cell;
    *variant = *cell;
    set_options(net, variant);
    lay_out(net, call, variant);
    return variant;
}

#endif
