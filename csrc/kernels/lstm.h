/* LSTM (Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000):
 *   i, f, o = sigmoid(W x + b_ih + U h + b_hh), g = tanh(the same)
 *   c' = f c + i g        h' = o tanh(c')
 * Slots: 0 i, 1 f, 2 g, 3 o. State parts: 0 h, 1 c.
 *
 * Options: peepholes (Gers and Schmidhuber 2000), i and f look at c, o at c'; coupled gates, of which one, e, is computed
 * and the other is 1 - e (slots e g o); clipping; a projection of h' (Sak et al. 2014); layer normalisation (Ba et al.
 * 2016), where the output pass waits for the statistics of c'. */

ALWAYS_INLINE vec lstm_look(const struct step *s, const struct options *o, int k, int64_t p, int64_t v, vec c, vec a)
{
    return o->peephole >= 0 ? v_fma(unit_weight_of(s, o->peephole + k, p, v), c, a) : a;
}

ALWAYS_INLINE void lstm_forward_body(const struct step *s, struct range panels, const struct options *o)
{
    const int g_slot = o->coupled ? 1 : 2;
    FOR_EACH_VECTOR(s, panels, p, i, v) {
        real *z = slot_of(s, i, p, o->gates, v), *g_at = z + g_slot * LANES, *out_at = g_at + LANES;
        const vec before = v_load(previous_of(s, i, p, 1, v));
        vec in = activate(&o->gate, lstm_look(s, o, 0, p, v, before, v_load(z))), forget;
        v_store(z, in);
        if (o->coupled) {
            forget = v_sub(v_set1(1), in);
            if (o->coupled == RNNKERN_COUPLED_INPUT) {
                const vec e = in;
                in = forget;
                forget = e;
            }
        } else {
            forget = activate(&o->gate, lstm_look(s, o, 1, p, v, before, v_load(z + LANES)));
            v_store(z + LANES, forget);
        }
        const vec g = activate(&o->candidate, v_load(g_at));
        v_store(g_at, g);
        vec c = v_fma(forget, before, v_mul(in, masked_candidate(s, o, i, p, v, g)));
        if (o->cell_clip > 0)
            c = v_clamp(v_set1(-o->cell_clip), v_set1(o->cell_clip), c);
        const vec out = activate(&o->gate, lstm_look(s, o, g_slot, p, v, c, v_load(out_at)));
        v_store(out_at, out);
        carry_cell(s, o, i, p, v, c);
    }
    if (o->normalised)
        return;
    FOR_EACH_VECTOR(s, panels, p, i, v) { /* of its own, so that these rows' tanh(c) do not wait for their gates */
        const vec out = v_load(slot_of(s, i, p, o->gates + g_slot + 1, v));
        const vec c = v_load(current_of(s, i, p, o->fresh, v));
        v_store(current_of(s, i, p, o->out, v), v_mul(out, activate(&o->output, c)));
    }
}

ALWAYS_INLINE void lstm_backward_body(const struct step *s, struct range panels, const struct options *o)
{
    const int g_slot = o->coupled ? 1 : 2;
    FOR_EACH_VECTOR(s, panels, p, i, v) {
        real *z = slot_of(s, i, p, o->gates, v), *g_at = z + g_slot * LANES, *out_at = g_at + LANES;
        const vec e = v_load(z), rest = v_sub(v_set1(1), e), raw_g = v_load(g_at), out = v_load(out_at);
        const vec in = o->coupled == RNNKERN_COUPLED_INPUT ? rest : e;
        const vec forget = !o->coupled ? v_load(z + LANES) : o->coupled == RNNKERN_COUPLED_INPUT ? e : rest;
        const vec g = masked_candidate(s, o, i, p, v, raw_g);
        const vec before = v_load(previous_of(s, i, p, 1, v)), c = v_load(current_of(s, i, p, o->fresh, v));
        vec share, dc = carried_gradient(s, o, i, p, v, &share), dout;
        if (o->normalised) { /* lstm_output_backward and the normalisation have been there */
            dc = v_add(dc, v_load(slot_of(s, i, p, o->normalised, v)));
            dout = v_load(out_at);
        } else {
            const vec dh = v_load(gradient_of(s, i, p, o->out, v)), y = activate(&o->output, c);
            dc = v_fma(v_mul(dh, out), slope(&o->output, y), dc);
            dout = through(&o->gate, out, v_mul(dh, y));
            v_store(out_at, dout);
            give_share(s, o, i, p, v, v_zero());
        }
        if (o->peephole >= 0)
            dc = v_fma(unit_weight_of(s, o->peephole + g_slot, p, v), dout, dc);
        if (o->cell_clip > 0)
            dc = v_select(v_lt(v_abs(c), v_set1(o->cell_clip)), dc, v_zero());
        vec di = v_mul(dc, g), df = v_mul(dc, before), dbefore = v_mul(dc, forget);
        if (o->coupled == RNNKERN_COUPLED_INPUT)
            di = v_sub(df, di);
        else if (o->coupled)
            di = v_sub(di, df);
        di = through(&o->gate, e, di);
        v_store(z, di);
        if (!o->coupled) {
            df = through(&o->gate, forget, df);
            v_store(z + LANES, df);
        }
        v_store(g_at, through(&o->candidate, raw_g, masked_candidate(s, o, i, p, v, v_mul(dc, in))));
        if (o->peephole >= 0) {
            dbefore = v_fma(unit_weight_of(s, o->peephole, p, v), di, dbefore);
            if (!o->coupled)
                dbefore = v_fma(unit_weight_of(s, o->peephole + 1, p, v), df, dbefore);
        }
        v_store(gradient_of(s, i, p, 1, v), o->fresh == 1 ? dbefore : v_add(share, dbefore));
    }
}

static const struct options lstm_usual = {
    .gate = {RNNKERN_SIGMOID}, .candidate = {RNNKERN_TANH}, .output = {RNNKERN_TANH}, .peephole = -1, .fresh = 1};

INSTANCES(lstm_forward, lstm_usual)
INSTANCES(lstm_backward, lstm_usual)

/* The output where c' is normalised: its group of one slot (norm.h) holds gain x value + bias, then the activation. */
static void lstm_output_forward(const struct step *s, struct range panels)
{
    const struct options *o = s->options;
    const int out_slot = o->gates + (o->coupled ? 2 : 3);
    FOR_EACH_VECTOR(s, panels, p, i, v) {
        real *y = slot_of(s, i, p, o->normalised + 1, v);
        v_store(y, activate(&o->output, v_load(y)));
        v_store(current_of(s, i, p, o->out, v), v_mul(v_load(slot_of(s, i, p, out_slot, v)), v_load(y)));
    }
}

static void lstm_output_backward(const struct step *s, struct range panels)
{
    const struct options *o = s->options;
    const int out_slot = o->gates + (o->coupled ? 2 : 3);
    FOR_EACH_VECTOR(s, panels, p, i, v) {
        real *y_at = slot_of(s, i, p, o->normalised + 1, v), *out_at = slot_of(s, i, p, out_slot, v);
        const vec dh = v_load(gradient_of(s, i, p, o->out, v)), y = v_load(y_at), out = v_load(out_at);
        v_store(y_at, through(&o->output, y, v_mul(dh, out)));
        v_store(out_at, through(&o->gate, out, v_mul(dh, y)));
        give_share(s, o, i, p, v, v_zero());
    }
}

static const struct cell lstm_cell = {
    .gates = 4,
    .slots = 4,
    .parts = 2,
    .states = 2,
    .x_count = 4,
    .biased = 4,
    .gate_of_slot = {0, 1, 2, 3},
    .trace_count = 4,
    .passes = 1,
    .pass = {{PREVIOUS, .count = 4, .cont = 4, .adds = 1, .point = {POINT(lstm)}}},
    .usual = &lstm_usual,
};
