/* minGRU (Feng et al. 2024): z = sigmoid(W x + b_ih), n = W x + b_ih, h' = (1-z) h + z n. Slots: 0 z, 1 n. */

ALWAYS_INLINE void mingru_forward_body(const struct step *s, struct range panels, const struct options *o)
{
    FOR_EACH_VECTOR(s, panels, p, i, v) {
        real *slot = slot_of(s, i, p, 0, v);
        const vec z = activate(&o->gate, v_load(slot)), n = activate(&o->candidate, v_load(slot + LANES));
        const vec h = v_load(previous_of(s, i, p, 0, v));
        v_store(slot, z);
        v_store(slot + LANES, n);
        v_store(current_of(s, i, p, o->out, v), mix(z, masked_candidate(s, o, i, p, v, n), h));
    }
}

ALWAYS_INLINE void mingru_backward_body(const struct step *s, struct range panels, const struct options *o)
{
    FOR_EACH_VECTOR(s, panels, p, i, v) {
        real *slot = slot_of(s, i, p, 0, v);
        const vec z = v_load(slot), n = v_load(slot + LANES), dh = v_load(gradient_of(s, i, p, o->out, v));
        const vec mixed = masked_candidate(s, o, i, p, v, n), h = v_load(previous_of(s, i, p, 0, v));
        v_store(slot, through(&o->gate, z, v_mul(dh, v_sub(mixed, h))));
        v_store(slot + LANES, through(&o->candidate, n, masked_candidate(s, o, i, p, v, v_mul(dh, z))));
        give_share(s, o, i, p, v, v_mul(dh, v_sub(v_set1(1), z)));
    }
}

static const struct options mingru_usual = {.gate = {RNNKERN_SIGMOID}, .candidate = {RNNKERN_AFFINE, 1, 0}};
INSTANCES(mingru_forward, mingru_usual)
INSTANCES(mingru_backward, mingru_usual)

static const struct cell mingru_cell = {
    .gates = 2,
    .slots = 2,
    .parts = 1,
    .states = 1,
    .x_count = 2,
    .biased = 2,
    .gate_of_slot = {0, 1},
    .trace_count = 2,
    .passes = 1,
    .pass = {{NOTHING, .point = {POINT(mingru)}}},
    .usual = &mingru_usual,
};
