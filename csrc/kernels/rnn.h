/* RNN (Elman 1990): h' = act(W x + b_ih + U h + b_hh), act = tanh or relu. Slot: 0 pre-activation. */

static void rnn_tanh_forward(const struct step *s, int64_t p)
{
    FOR_EACH_VECTOR(s, i, v)
        v_store(current_of(s, i, p, 0, v), v_tanh(v_load(slot_of(s, i, p, 0, v))));
}

static void rnn_relu_forward(const struct step *s, int64_t p)
{
    FOR_EACH_VECTOR(s, i, v)
        v_store(current_of(s, i, p, 0, v), v_max(v_zero(), v_load(slot_of(s, i, p, 0, v))));
}

static void rnn_tanh_backward(const struct step *s, int64_t p)
{
    FOR_EACH_VECTOR(s, i, v) {
        real *dh = gradient_of(s, i, p, 0, v);
        vec h = v_load(current_of(s, i, p, 0, v));
        v_store(slot_of(s, i, p, 0, v), v_mul(v_load(dh), tanh_slope(h)));
        v_store(dh, v_zero());
    }
}

static void rnn_relu_backward(const struct step *s, int64_t p)
{
    FOR_EACH_VECTOR(s, i, v) {
        real *dh = gradient_of(s, i, p, 0, v);
        vec h = v_load(current_of(s, i, p, 0, v));
        vmask inactive = v_lt(h, v_set1(SMALLEST_NORMAL)); /* h = 0; false for NaN, whose slope is 1 as in torch */
        v_store(slot_of(s, i, p, 0, v), v_select(inactive, v_zero(), v_load(dh)));
        v_store(dh, v_zero());
    }
}

static const struct cell rnn_tanh_cell = {
    .gates = 1,
    .slots = 1,
    .parts = 1,
    .states = 1,
    .x_first = 0,
    .x_count = 1,
    .gate_of_slot = {0},
    .passes = 1,
    .pass = {{PREVIOUS_H, .first = 0, .count = 1, .cont = 1, rnn_tanh_forward, rnn_tanh_backward}},
};

static const struct cell rnn_relu_cell = {
    .gates = 1,
    .slots = 1,
    .parts = 1,
    .states = 1,
    .x_first = 0,
    .x_count = 1,
    .gate_of_slot = {0},
    .passes = 1,
    .pass = {{PREVIOUS_H, .first = 0, .count = 1, .cont = 1, rnn_relu_forward, rnn_relu_backward}},
};
