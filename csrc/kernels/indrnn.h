/* IndRNN (Li et al. 2018): h' = act(W x + b_ih + u h), u one weight a unit, act = relu. Slot: 0 pre-activation. */

ALWAYS_INLINE void indrnn_forward_body(const struct step *s, struct range panels, const struct options *o)
{
    FOR_EACH_VECTOR(s, panels, p, i, v) {
        real *slot = slot_of(s, i, p, 0, v);
        const vec a = v_fma(unit_weight_of(s, 0, p, v), operand_of(s, o, i, p, v), v_load(slot));
        v_store(slot, a);
        v_store(current_of(s, i, p, o->out, v), activate(&o->candidate, a));
    }
}

ALWAYS_INLINE void indrnn_backward_body(const struct step *s, struct range panels, const struct options *o)
{
    FOR_EACH_VECTOR(s, panels, p, i, v) {
        const vec h = v_load(current_of(s, i, p, o->out, v)), dh = v_load(gradient_of(s, i, p, o->out, v));
        const vec da = through(&o->candidate, h, dh);
        v_store(slot_of(s, i, p, 0, v), da);
        give_share(s, o, i, p, v, v_zero());
        give_operand(s, o, i, p, v, unit_weight_of(s, 0, p, v), da);
    }
}

static const struct options indrnn_usual = {.candidate = {RNNKERN_RELU}};
INSTANCES(indrnn_forward, indrnn_usual)
INSTANCES(indrnn_backward, indrnn_usual)

static const struct cell indrnn_cell = {
    .gates = 1,
    .slots = 1,
    .parts = 1,
    .states = 1,
    .x_count = 1,
    .biased = 1,
    .trace_count = 1,
    .passes = 1,
    .pass = {{NOTHING, .point = {POINT(indrnn)}}},
    .unit_weights = 1,
    .unit_weight = {{RNNKERN_WEIGHT_HH, .from = PREVIOUS}},
    .usual = &indrnn_usual,
};
