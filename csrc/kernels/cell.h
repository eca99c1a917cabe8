/* What a cell is: numbers and pointwise functions. The loop over time is in sequence.h and knows no cell.
 *
 * A gate row holds `slots` vectors of 16 units a panel: pre-activations, then activations, then (in backward) their
 * gradients dZ, all in place. A state row holds `parts` vectors of H units: part 0 is h, further parts are c or a value
 * that a later pass or backward needs. The gradient row has the same parts.
 *
 * A step is a list of passes. Forward: product of the pass's operand into its slots, then `forward` on each panel.
 * Backward, passes in reverse: `backward` on each panel, then the product of its slots with the transposed matrix is
 * added to the operand's gradient.
 */
#ifndef RK_CELL_H
#define RK_CELL_H

/* The rows of one step that one thread works on. Panel p of a gate row lies at z[i] + p*z_panel, of part k of a state
 * row at row[i] + k*part + p*LANES. */
struct step {
    int64_t rows;
    real *const *z;
    const real *const *previous; /* state rows before the step */
    real *const *current;        /* state rows after it */
    real *const *gradient;       /* gradient rows, of the state after the step on entry, before it on return */
    int64_t z_panel, part;
};

typedef void pointwise(const struct step *s, int64_t panel);

/* The operand of a pass: h before the step, or part 1 of the state row after it (r*h in reset-before). */
enum operand { PREVIOUS_H = 0, CURRENT_PART_1 = 1 };

struct pass {
    enum operand operand; /* its gradient is part `operand` of the gradient row */
    int first, count;     /* slots */
    int cont;             /* the first so many slots continue the input projection, the others start from the bias */
    pointwise *forward, *backward;
};

struct cell {
    int gates; /* row blocks of the weights */
    int slots, parts;
    int states;           /* parts that are states: 1 (h) or 2 (h, c) */
    int x_first, x_count; /* slots that the input enters */
    int gate_of_slot[4];
    int passes;
    struct pass pass[2];
};

/* for each row i and each vector of the panel, v being the lane at which it starts */
#define FOR_EACH_VECTOR(s, i, v)            \
    for (int64_t i = 0; i < (s)->rows; i++) \
        for (int64_t v = 0; v < LANES; v += VL)

static inline real *slot_of(const struct step *s, int64_t i, int64_t panel, int slot, int64_t v)
{
    return s->z[i] + panel * s->z_panel + slot * LANES + v;
}
static inline const real *previous_of(const struct step *s, int64_t i, int64_t panel, int part, int64_t v)
{
    return s->previous[i] + part * s->part + panel * LANES + v;
}
static inline real *current_of(const struct step *s, int64_t i, int64_t panel, int part, int64_t v)
{
    return s->current[i] + part * s->part + panel * LANES + v;
}
static inline real *gradient_of(const struct step *s, int64_t i, int64_t panel, int part, int64_t v)
{
    return s->gradient[i] + part * s->part + panel * LANES + v;
}

/* y(1-y), the sigmoid's derivative, and 1-y^2, that of tanh, from the value y */
static inline vec sigmoid_slope(vec y) { return v_fnma(y, y, y); }
static inline vec tanh_slope(vec y) { return v_fnma(y, y, v_set1(1)); }

#endif
