/* RNN (Elman 1990): h' = act(W x + b_ih + U h + b_hh), act = tanh or relu. Slot: 0 pre-activation. */

ALWAYS_INLINE void rnn_forward_body(const struct step *s, struct range panels, const struct options *o)
{
    FOR_EACH_VECTOR(s, panels, p, i, v)
        v_store(current_of(s, i, p, o->out, v), activate(&o->candidate, v_load(slot_of(s, i, p, o->gates, v))));
}

ALWAYS_INLINE void rnn_backward_body(const struct step *s, struct range panels, const struct options *o)
{
    FOR_EACH_VECTOR(s, panels, p, i, v) {
        const vec h = v_load(current_of(s, i, p, o->out, v)), dh = v_load(gradient_of(s, i, p, o->out, v));
        v_store(slot_of(s, i, p, o->gates, v), through(&o->candidate, h, dh));
        give_share(s, o, i, p, v, v_zero());
    }
}

static const struct options rnn_usual = {.candidate = {RNNKERN_TANH}}, rnn_relu_usual = {.candidate = {RNNKERN_RELU}};
INSTANCES(rnn_forward, rnn_usual)
INSTANCES(rnn_backward, rnn_usual)

static void rnn_forward_relu(const struct step *s, struct range panels)
{
    rnn_forward_body(s, panels, &rnn_relu_usual);
}
static void rnn_backward_relu(const struct step *s, struct range panels)
{
    rnn_backward_body(s, panels, &rnn_relu_usual);
}

/* relu is usual too: this cell has two tables. */
#define RNN_CELL(own, ...)                                                              \
    {                                                                                   \
        .gates = 1,                                                                     \
        .slots = 1,                                                                     \
        .parts = 1,                                                                     \
        .states = 1,                                                                    \
        .x_count = 1,                                                                   \
        .biased = 1,                                                                    \
        .trace_count = 1,                                                               \
        .passes = 1,                                                                    \
        .pass = {{PREVIOUS, .count = 1, .cont = 1, .adds = 1, .point = {__VA_ARGS__}}}, \
        .usual = &own,                                                                  \
    }
static const struct cell rnn_cell = RNN_CELL(rnn_usual, POINT(rnn));
static const struct cell rnn_relu_cell =
    RNN_CELL(rnn_relu_usual, {rnn_forward, rnn_backward, rnn_forward_relu, rnn_backward_relu});
#undef RNN_CELL
