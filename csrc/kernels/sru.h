/* Simple recurrent unit (Lei et al. 2018), its highway through a matrix of its own:
 *   f, r = sigmoid(W x + b_ih + v c), v one weight a unit and gate      n, x' = W x + b_ih
 *   c' = f c + (1-f) n       h' = r c' + (1-r) x'
 * Slots: 0 n, 1 f, 2 r, 3 x'. State parts: 0 h (an output only), 1 c. */

ALWAYS_INLINE void sru_forward_body(const struct step *s, struct range panels, const struct options *o)
{
    FOR_EACH_VECTOR(s, panels, p, i, v) {
        real *slot = slot_of(s, i, p, 0, v);
        const vec before = v_load(previous_of(s, i, p, 1, v)), n = masked_candidate(s, o, i, p, v, v_load(slot));
        const vec f = activate(&o->gate, v_fma(unit_weight_of(s, 0, p, v), before, v_load(slot + LANES)));
        const vec r = activate(&o->gate, v_fma(unit_weight_of(s, 1, p, v), before, v_load(slot + 2 * LANES)));
        const vec c = mix(f, before, n);
        v_store(slot + LANES, f);
        v_store(slot + 2 * LANES, r);
        carry_cell(s, o, i, p, v, c);
        v_store(current_of(s, i, p, 0, v), mix(r, activate(&o->output, c), v_load(slot + 3 * LANES)));
    }
}

ALWAYS_INLINE void sru_backward_body(const struct step *s, struct range panels, const struct options *o)
{
    FOR_EACH_VECTOR(s, panels, p, i, v) {
        real *slot = slot_of(s, i, p, 0, v), *dh_at = gradient_of(s, i, p, 0, v);
        const vec one = v_set1(1), n = masked_candidate(s, o, i, p, v, v_load(slot));
        const vec f = v_load(slot + LANES), r = v_load(slot + 2 * LANES), x = v_load(slot + 3 * LANES);
        const vec before = v_load(previous_of(s, i, p, 1, v)), dh = v_load(dh_at);
        const vec y = activate(&o->output, v_load(current_of(s, i, p, o->fresh, v)));
        vec share, dc = carried_gradient(s, o, i, p, v, &share);
        dc = v_fma(v_mul(dh, r), slope(&o->output, y), dc);
        const vec df = through(&o->gate, f, v_mul(dc, v_sub(before, n)));
        const vec dr = through(&o->gate, r, v_mul(dh, v_sub(y, x)));
        v_store(slot, masked_candidate(s, o, i, p, v, v_mul(dc, v_sub(one, f))));
        v_store(slot + LANES, df);
        v_store(slot + 2 * LANES, dr);
        v_store(slot + 3 * LANES, v_mul(dh, v_sub(one, r)));
        share = v_fma(unit_weight_of(s, 1, p, v), dr, v_fma(unit_weight_of(s, 0, p, v), df, v_fma(dc, f, share)));
        v_store(gradient_of(s, i, p, 1, v), share);
        v_store(dh_at, v_zero());
    }
}

static const struct options sru_usual = {.gate = {RNNKERN_SIGMOID}, .output = {RNNKERN_AFFINE, 1, 0}, .fresh = 1};
INSTANCES(sru_forward, sru_usual)
INSTANCES(sru_backward, sru_usual)

static const struct cell sru_cell = {
    .gates = 4,
    .slots = 4,
    .parts = 2,
    .states = 2,
    .first_state = 1,
    .x_count = 4,
    .biased = 4,
    .gate_of_slot = {0, 1, 2, 3},
    .trace_count = 4,
    .passes = 1,
    .pass = {{NOTHING, .point = {POINT(sru)}}},
    .unit_weights = 2,
    .unit_weight = {{RNNKERN_WEIGHT_CH, .block = 0, .slot = 1, .from = PREVIOUS, .part = 1},
                    {RNNKERN_WEIGHT_CH, .block = 1, .slot = 2, .from = PREVIOUS, .part = 1}},
    .usual = &sru_usual,
};
