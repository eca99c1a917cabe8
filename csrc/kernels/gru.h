/* GRU (Cho et al. 2014), both forms:
 *   r, z = sigmoid(W x + b_ih + U h + b_hh)
 *   reset-after  (torch, cuDNN):  n = tanh(W x + b_ih + r (U h + b_hh))
 *   reset-before (Cho, ONNX):     n = tanh(W x + b_ih + U (r h) + b_hh)
 *   h' = (1-z) n + z h
 * Slots: 0 n, 1 r, 2 z, and in reset-after 3: U h + b_hh of n, which backward needs for dr. The input enters 0..2, h
 * enters 1..3 (reset-before: 1..2, and r h enters 0), so the slots of each product lie side by side.
 * State parts: 0 h, in reset-before 1: r h. */

static inline vec gru_mix(vec z, vec n, vec h) { return v_fma(z, h, v_mul(v_sub(v_set1(1), z), n)); }

/* dz and dn before their activations; dh becomes the direct share of the previous h. */
static inline vec gru_mix_backward(real *z_row, const real *h_row, real *dh_row)
{
    vec n = v_load(z_row), z = v_load(z_row + 2 * LANES), dh = v_load(dh_row);
    vec dn = v_mul(v_mul(dh, v_sub(v_set1(1), z)), tanh_slope(n));
    v_store(z_row + 2 * LANES, v_mul(v_mul(dh, v_sub(v_load(h_row), n)), sigmoid_slope(z)));
    v_store(z_row, dn);
    v_store(dh_row, v_mul(dh, z));
    return dn;
}

static void gru_point_forward(const struct step *s, int64_t p)
{
    FOR_EACH_VECTOR(s, i, v) {
        real *slot = slot_of(s, i, p, 0, v);
        vec r = v_sigmoid(v_load(slot + LANES)), z = v_sigmoid(v_load(slot + 2 * LANES));
        vec n = v_tanh(v_fma(r, v_load(slot + 3 * LANES), v_load(slot)));
        v_store(slot, n);
        v_store(slot + LANES, r);
        v_store(slot + 2 * LANES, z);
        v_store(current_of(s, i, p, 0, v), gru_mix(z, n, v_load(previous_of(s, i, p, 0, v))));
    }
}

static void gru_point_backward(const struct step *s, int64_t p)
{
    FOR_EACH_VECTOR(s, i, v) {
        real *slot = slot_of(s, i, p, 0, v);
        vec dn = gru_mix_backward(slot, previous_of(s, i, p, 0, v), gradient_of(s, i, p, 0, v));
        vec r = v_load(slot + LANES);
        v_store(slot + LANES, v_mul(v_mul(dn, v_load(slot + 3 * LANES)), sigmoid_slope(r)));
        v_store(slot + 3 * LANES, v_mul(dn, r));
    }
}

static void gru_before_gates_forward(const struct step *s, int64_t p)
{
    FOR_EACH_VECTOR(s, i, v) {
        real *slot = slot_of(s, i, p, 0, v);
        vec r = v_sigmoid(v_load(slot + LANES));
        v_store(slot + LANES, r);
        v_store(slot + 2 * LANES, v_sigmoid(v_load(slot + 2 * LANES)));
        v_store(current_of(s, i, p, 1, v), v_mul(r, v_load(previous_of(s, i, p, 0, v))));
    }
}

static void gru_before_candidate_forward(const struct step *s, int64_t p)
{
    FOR_EACH_VECTOR(s, i, v) {
        real *slot = slot_of(s, i, p, 0, v);
        vec n = v_tanh(v_load(slot));
        v_store(slot, n);
        v_store(current_of(s, i, p, 0, v), gru_mix(v_load(slot + 2 * LANES), n, v_load(previous_of(s, i, p, 0, v))));
    }
}

static void gru_before_candidate_backward(const struct step *s, int64_t p)
{
    FOR_EACH_VECTOR(s, i, v) {
        gru_mix_backward(slot_of(s, i, p, 0, v), previous_of(s, i, p, 0, v), gradient_of(s, i, p, 0, v));
        v_store(gradient_of(s, i, p, 1, v), v_zero());
    }
}

static void gru_before_gates_backward(const struct step *s, int64_t p)
{
    FOR_EACH_VECTOR(s, i, v) {
        real *slot = slot_of(s, i, p, 0, v), *dh = gradient_of(s, i, p, 0, v);
        vec r = v_load(slot + LANES), drh = v_load(gradient_of(s, i, p, 1, v));
        v_store(slot + LANES, v_mul(v_mul(drh, v_load(previous_of(s, i, p, 0, v))), sigmoid_slope(r)));
        v_store(dh, v_fma(drh, r, v_load(dh)));
    }
}

static const struct cell gru_cell = {
    .gates = 3,
    .slots = 4,
    .parts = 1,
    .states = 1,
    .x_first = 0,
    .x_count = 3,
    .gate_of_slot = {2, 0, 1, 2},
    .passes = 1,
    .pass = {{PREVIOUS_H, .first = 1, .count = 3, .cont = 2, gru_point_forward, gru_point_backward}},
};

static const struct cell gru_before_cell = {
    .gates = 3,
    .slots = 3,
    .parts = 2,
    .states = 1,
    .x_first = 0,
    .x_count = 3,
    .gate_of_slot = {2, 0, 1},
    .passes = 2,
    .pass = {{PREVIOUS_H, .first = 1, .count = 2, .cont = 2, gru_before_gates_forward, gru_before_gates_backward},
             {CURRENT_PART_1, .first = 0, .count = 1, .cont = 1, gru_before_candidate_forward,
              gru_before_candidate_backward}},
};
