/* Minimal gated unit (Zhou et al. 2016):
 *   f = sigmoid(W x + b_ih + U h + b_hh)      n = tanh(W x + b_ih + U (f h) + b_hh)
 *   h' = (1-f) h + f n
 * Slots: 0 n, 1 f, and 2: what df has from h', in backward. State parts: 0 h, 1: f h. */

ALWAYS_INLINE void mgu_gate_forward_body(const struct step *s, struct range panels, const struct options *o)
{
    FOR_EACH_VECTOR(s, panels, p, i, v) {
        real *slot = slot_of(s, i, p, 0, v);
        const vec f = activate(&o->gate, v_load(slot + LANES));
        v_store(slot + LANES, f);
        v_store(current_of(s, i, p, o->reset, v), v_mul(f, operand_of(s, o, i, p, v)));
    }
}

ALWAYS_INLINE void mgu_gate_backward_body(const struct step *s, struct range panels, const struct options *o)
{
    FOR_EACH_VECTOR(s, panels, p, i, v) {
        real *slot = slot_of(s, i, p, 0, v);
        const vec f = v_load(slot + LANES), dfh = v_load(gradient_of(s, i, p, o->reset, v));
        const vec df = v_fma(dfh, operand_of(s, o, i, p, v), v_load(slot + 2 * LANES));
        v_store(slot + LANES, through(&o->gate, f, df));
        give_operand(s, o, i, p, v, dfh, f);
    }
}

ALWAYS_INLINE void mgu_candidate_forward_body(const struct step *s, struct range panels, const struct options *o)
{
    FOR_EACH_VECTOR(s, panels, p, i, v) {
        real *slot = slot_of(s, i, p, 0, v);
        const vec n = activate(&o->candidate, v_load(slot)), h = v_load(previous_of(s, i, p, 0, v));
        v_store(slot, n);
        v_store(current_of(s, i, p, o->out, v), mix(v_load(slot + LANES), masked_candidate(s, o, i, p, v, n), h));
    }
}

ALWAYS_INLINE void mgu_candidate_backward_body(const struct step *s, struct range panels, const struct options *o)
{
    FOR_EACH_VECTOR(s, panels, p, i, v) {
        real *slot = slot_of(s, i, p, 0, v);
        const vec n = v_load(slot), f = v_load(slot + LANES), dh = v_load(gradient_of(s, i, p, o->out, v));
        const vec mixed = masked_candidate(s, o, i, p, v, n), h = v_load(previous_of(s, i, p, 0, v));
        v_store(slot + 2 * LANES, v_mul(dh, v_sub(mixed, h)));
        v_store(slot, through(&o->candidate, n, masked_candidate(s, o, i, p, v, v_mul(dh, f))));
        give_share(s, o, i, p, v, v_mul(dh, v_sub(v_set1(1), f)));
    }
}

static const struct options mgu_usual = {.gate = {RNNKERN_SIGMOID}, .candidate = {RNNKERN_TANH}, .reset = 1};
INSTANCES(mgu_gate_forward, mgu_usual)
INSTANCES(mgu_gate_backward, mgu_usual)
INSTANCES(mgu_candidate_forward, mgu_usual)
INSTANCES(mgu_candidate_backward, mgu_usual)

static const struct cell mgu_cell = {
    .gates = 2,
    .slots = 3,
    .parts = 2,
    .states = 1,
    .x_count = 2,
    .biased = 2,
    .gate_of_slot = {1, 0},
    .trace_count = 2,
    .passes = 2,
    .pass = {{PREVIOUS, .first = 1, .count = 1, .cont = 1, .adds = 1, .point = {POINT(mgu_gate)}},
             {CURRENT, .part = 1, .first = 0, .count = 1, .cont = 1, .point = {POINT(mgu_candidate)}}},
    .usual = &mgu_usual,
};
