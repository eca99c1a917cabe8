/* GRU (Cho et al. 2014), both forms:
 *   r, z = sigmoid(W x + b_ih + U h + b_hh)
 *   reset-after  (torch, cuDNN):  n = tanh(W x + b_ih + r (U h + b_hh))
 *   reset-before (Cho, ONNX):     n = tanh(W x + b_ih + U (r h) + b_hh)
 *   h' = (1-z) n + z h
 * Slots: 0 n, 1 r, 2 z, and in reset-after 3: U h + b_hh of n, which backward needs for dr. The input enters 0..2, h
 * enters 1..3 (reset-before: 1..2, and r h enters 0), so the slots of each product lie side by side.
 * State parts: 0 h, in reset-before 1: r h. */

/* h' from the candidate as it is in slot 0 */
ALWAYS_INLINE void gru_mix(const struct step *s, int64_t p, const struct options *o, int64_t i, int64_t v, vec z, vec n)
{
    const vec h = v_load(previous_of(s, i, p, 0, v));
    v_store(current_of(s, i, p, o->out, v), mix(z, h, masked_candidate(s, o, i, p, v, n)));
}

/* dz and dn before their activations; dh becomes the direct share of the previous h. */
ALWAYS_INLINE vec gru_mix_backward(const struct step *s, int64_t p, const struct options *o, int64_t i, int64_t v)
{
    real *slot = slot_of(s, i, p, o->gates, v);
    const vec n = v_load(slot), z = v_load(slot + 2 * LANES), dh = v_load(gradient_of(s, i, p, o->out, v));
    const vec h = v_load(previous_of(s, i, p, 0, v)), mixed = masked_candidate(s, o, i, p, v, n);
    const vec dmixed = v_mul(dh, v_sub(v_set1(1), z));
    const vec dn = through(&o->candidate, n, masked_candidate(s, o, i, p, v, dmixed));
    v_store(slot + 2 * LANES, through(&o->gate, z, v_mul(dh, v_sub(h, mixed))));
    v_store(slot, dn);
    give_share(s, o, i, p, v, v_mul(dh, z));
    return dn;
}

ALWAYS_INLINE void gru_forward_body(const struct step *s, struct range panels, const struct options *o)
{
    FOR_EACH_VECTOR(s, panels, p, i, v) {
        real *slot = slot_of(s, i, p, o->gates, v);
        v_store(slot + LANES, activate(&o->gate, v_load(slot + LANES)));
        v_store(slot + 2 * LANES, activate(&o->gate, v_load(slot + 2 * LANES)));
    }
    FOR_EACH_VECTOR(s, panels, p, i, v) { /* of its own, so that these rows' n do not wait for their gates */
        real *slot = slot_of(s, i, p, o->gates, v);
        const vec r = v_load(slot + LANES), z = v_load(slot + 2 * LANES);
        const vec n = activate(&o->candidate, v_fma(r, v_load(slot + 3 * LANES), v_load(slot)));
        v_store(slot, n);
        gru_mix(s, p, o, i, v, z, n);
    }
}

ALWAYS_INLINE void gru_backward_body(const struct step *s, struct range panels, const struct options *o)
{
    FOR_EACH_VECTOR(s, panels, p, i, v) {
        real *slot = slot_of(s, i, p, o->gates, v);
        const vec dn = gru_mix_backward(s, p, o, i, v), r = v_load(slot + LANES);
        v_store(slot + LANES, through(&o->gate, r, v_mul(dn, v_load(slot + 3 * LANES))));
        v_store(slot + 3 * LANES, v_mul(dn, r));
    }
}

ALWAYS_INLINE void gru_gates_forward_body(const struct step *s, struct range panels, const struct options *o)
{
    FOR_EACH_VECTOR(s, panels, p, i, v) {
        real *slot = slot_of(s, i, p, 0, v);
        const vec r = activate(&o->gate, v_load(slot + LANES));
        v_store(slot + LANES, r);
        v_store(slot + 2 * LANES, activate(&o->gate, v_load(slot + 2 * LANES)));
        v_store(current_of(s, i, p, o->reset, v), v_mul(r, operand_of(s, o, i, p, v)));
    }
}

ALWAYS_INLINE void gru_gates_backward_body(const struct step *s, struct range panels, const struct options *o)
{
    FOR_EACH_VECTOR(s, panels, p, i, v) {
        real *slot = slot_of(s, i, p, 0, v);
        const vec r = v_load(slot + LANES), drh = v_load(gradient_of(s, i, p, o->reset, v));
        v_store(slot + LANES, through(&o->gate, r, v_mul(drh, operand_of(s, o, i, p, v))));
        give_operand(s, o, i, p, v, drh, r);
    }
}

ALWAYS_INLINE void gru_candidate_forward_body(const struct step *s, struct range panels, const struct options *o)
{
    FOR_EACH_VECTOR(s, panels, p, i, v) {
        real *slot = slot_of(s, i, p, 0, v);
        const vec n = activate(&o->candidate, v_load(slot));
        v_store(slot, n);
        gru_mix(s, p, o, i, v, v_load(slot + 2 * LANES), n);
    }
}

ALWAYS_INLINE void gru_candidate_backward_body(const struct step *s, struct range panels, const struct options *o)
{
    FOR_EACH_VECTOR(s, panels, p, i, v)
        gru_mix_backward(s, p, o, i, v);
}

#define GRU_USUAL .gate = {RNNKERN_SIGMOID}, .candidate = {RNNKERN_TANH}
static const struct options gru_usual = {GRU_USUAL}, gru_before_usual = {GRU_USUAL, .reset = 1};
#undef GRU_USUAL

INSTANCES(gru_forward, gru_usual)
INSTANCES(gru_backward, gru_usual)
INSTANCES(gru_gates_forward, gru_before_usual)
INSTANCES(gru_gates_backward, gru_before_usual)
INSTANCES(gru_candidate_forward, gru_before_usual)
INSTANCES(gru_candidate_backward, gru_before_usual)

static const struct cell gru_cell = {
    .gates = 3,
    .slots = 4,
    .parts = 1,
    .states = 1,
    .x_count = 3,
    .biased = 4,
    .gate_of_slot = {2, 0, 1, 2},
    .trace_count = 4,
    .passes = 1,
    .pass = {{PREVIOUS, .first = 1, .count = 3, .cont = 2, .adds = 1, .point = {POINT(gru)}}},
    .usual = &gru_usual,
};

static const struct cell gru_before_cell = {
    .gates = 3,
    .slots = 3,
    .parts = 2,
    .states = 1,
    .x_count = 3,
    .biased = 3,
    .gate_of_slot = {2, 0, 1},
    .trace_count = 3,
    .passes = 2,
    .pass = {{PREVIOUS, .first = 1, .count = 2, .cont = 2, .adds = 1, .point = {POINT(gru_gates)}},
             {CURRENT, .part = 1, .first = 0, .count = 1, .cont = 1, .point = {POINT(gru_candidate)}}},
    .usual = &gru_before_usual,
};
