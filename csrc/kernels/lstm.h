/* LSTM (Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000):
 *   i, f, o = sigmoid(W x + b_ih + U h + b_hh), g = tanh(the same)
 *   c' = f c + i g        h' = o tanh(c')
 * Slots: 0 i, 1 f, 2 g, 3 o. State parts: 0 h, 1 c. */

static void lstm_point_forward(const struct step *s, int64_t p)
{
    FOR_EACH_VECTOR(s, i, v) {
        real *z = slot_of(s, i, p, 0, v);
        vec in = v_sigmoid(v_load(z)), forget = v_sigmoid(v_load(z + LANES));
        vec g = v_tanh(v_load(z + 2 * LANES)), out = v_sigmoid(v_load(z + 3 * LANES));
        vec c = v_fma(forget, v_load(previous_of(s, i, p, 1, v)), v_mul(in, g));
        v_store(z, in);
        v_store(z + LANES, forget);
        v_store(z + 2 * LANES, g);
        v_store(z + 3 * LANES, out);
        v_store(current_of(s, i, p, 1, v), c);
        v_store(current_of(s, i, p, 0, v), v_mul(out, v_tanh(c)));
    }
}

static void lstm_point_backward(const struct step *s, int64_t p)
{
    FOR_EACH_VECTOR(s, i, v) {
        real *z = slot_of(s, i, p, 0, v), *dh_row = gradient_of(s, i, p, 0, v), *dc_row = gradient_of(s, i, p, 1, v);
        vec in = v_load(z), forget = v_load(z + LANES), g = v_load(z + 2 * LANES), out = v_load(z + 3 * LANES);
        vec tanh_c = v_tanh(v_load(current_of(s, i, p, 1, v)));
        vec dh = v_load(dh_row);
        vec dc = v_fma(v_mul(dh, out), tanh_slope(tanh_c), v_load(dc_row));
        v_store(z, v_mul(v_mul(dc, g), sigmoid_slope(in)));
        v_store(z + LANES, v_mul(v_mul(dc, v_load(previous_of(s, i, p, 1, v))), sigmoid_slope(forget)));
        v_store(z + 2 * LANES, v_mul(v_mul(dc, in), tanh_slope(g)));
        v_store(z + 3 * LANES, v_mul(v_mul(dh, tanh_c), sigmoid_slope(out)));
        v_store(dc_row, v_mul(dc, forget));
        v_store(dh_row, v_zero());
    }
}

static const struct cell lstm_cell = {
    .gates = 4,
    .slots = 4,
    .parts = 2,
    .states = 2,
    .x_first = 0,
    .x_count = 4,
    .gate_of_slot = {0, 1, 2, 3},
    .passes = 1,
    .pass = {{PREVIOUS_H, .first = 0, .count = 4, .cont = 4, lstm_point_forward, lstm_point_backward}},
};
