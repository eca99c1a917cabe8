/* What a cell is: numbers and pointwise functions. The loop over time is in sequence.h and knows no cell.
 *
 * A gate row holds `slots` vectors of 16 units a panel: pre-activations, then activations, then (in backward) their
 * gradients dZ, all in place; and what else backward needs. A state row holds `parts` vectors of H units: part 0 is h,
 * part 1 mostly c, others are values that a later pass or backward needs; and with layer normalisation the statistics of
 * the row. The gradient row has the same parts.
 *
 * A step is a list of passes. Forward: product of the pass's operand into its slots, then its points on each panel.
 * Backward, passes in reverse: its points in reverse on each panel, then the product of its slots with the transposed
 * matrix goes to the operand's gradient.
 *
 * Options: a cell's functions are inline bodies that read `struct options`. They are compiled twice: for the usual
 * options, which are constants then, and for options that a net brings. cells.h lays out slots and parts for these.
 */
#ifndef RK_CELL_H
#define RK_CELL_H

enum { MAX_SLOTS = 32, MAX_PASSES = 4, MAX_POINTS = 3, MAX_UNIT_WEIGHTS = 24, MAX_MASKS = 4, MAX_NORMS = 3 };

struct options {
    struct activation gate, candidate, output;
    real cell_clip; /* 0: none */
    rnnkern_coupling coupled;
    int peephole;   /* first of the peepholes' unit weights, or -1 */
    int normalised; /* LSTM: slots of the normalised c (norm.h): its value, then what follows from it; 0: none */
    int gates;      /* slot of the first gate */
    int out;        /* part that takes the cell's output, before a projection and zoneout */
    int projected;  /* part that takes a projection's */
    int projection; /* slot of the projection */
    int fresh;      /* part that takes the new c, before zoneout */
    int operand;    /* part of h as products see it: 0, or h behind its dropout mask */
    int reset;      /* part of h behind the reset gate */
    int mask_hidden, mask_candidate; /* slots of masks, 0: none */
    int mask_h, mask_c;              /* of zoneout */
    real zoneout_h, zoneout_c;       /* without a mask, its expectation */
};

/* The rows of one step that one thread works on. Panel p of a gate row lies at z[i] + p*z_panel, of part k of a state
 * row at row[i] + k*part + p*LANES. */
struct step {
    const struct options *options;
    const real *unit_weights; /* [unit_weights][part] */
    int64_t rows;
    real *const *z;
    const real *const *previous; /* state rows before the step */
    real *const *current;        /* state rows after it */
    real *const *gradient;       /* gradient rows, of the state after the step on entry, before it on return */
    int64_t z_panel, part;
    int turned; /* every other step takes its panels from the last to the first, see turned_group */
};

typedef void pointwise(const struct step *s, struct range panels);

/* Functions on a panel, and what they are compiled to for the usual options. */
struct point {
    pointwise *forward, *backward, *usual_forward, *usual_backward;
};

#define POINT(name) {name##_forward, name##_backward, name##_forward_usual, name##_backward_usual}
#define INSTANCES(name, options_)                                                                       \
    static void name(const struct step *s, struct range panels) { name##_body(s, panels, s->options); } \
    static void name##_usual(const struct step *s, struct range panels) { name##_body(s, panels, &options_); }

enum operand { NOTHING, PREVIOUS, CURRENT };

struct pass {
    enum operand from; /* whose product it is: a part of the state row before or after the step */
    int part;          /* which; its gradient is that part of the gradient row */
    int first, count;  /* slots of the product */
    int cont;          /* the first so many slots continue the input projection, the others start from the bias */
    int adds;          /* in backward the product is added to a gradient that is there already */
    int of_h;          /* slots and points are of the P units of h, not of the cell's H; the matrix is weight_hr then */
    int norm, norms;   /* groups that are normalised behind the product */
    struct point point[MAX_POINTS + 1]; /* up to one without functions */
};

/* Weights that are one for each unit: their gradient is the sum over rows of slot x operand (NOTHING: 1). */
struct unit_weight {
    rnnkern_weight weight;
    int block; /* of H elements in that array */
    int slot;
    enum operand from;
    int part;
};

/* What is normalised together: `count` slots, from whose gradients dZ its unit weights' follow; see norm.h. */
struct norm {
    int first, count; /* slots of the values: raw, then normalised, then the gradient of the raw ones */
    int part;         /* where the raw values come from instead, or -1 */
    int gate;         /* first slot of gain x value + bias, then its activation, then its gradient */
    int adds;         /* the first so many are added to what is in these slots */
    int product;      /* first slot of gradient x value, in backward */
    int gain, bias;   /* first unit weights */
};

struct cell {
    int gates; /* row blocks of the weights */
    int slots, parts;
    int states;           /* parts up to the last state: 1 (h) or 2 (h, c) */
    int first_state;      /* 1 where h is an output only */
    int x_first, x_count; /* slots that the input enters */
    int biased;           /* slots of the packed bias: those of products lie before all others */
    int gate_of_slot[MAX_SLOTS];
    int trace_first, trace_count; /* slots for the caller */
    int passes;
    struct pass pass[MAX_PASSES];
    int unit_weights;
    struct unit_weight unit_weight[MAX_UNIT_WEIGHTS];
    int norms;
    struct norm norm[MAX_NORMS];
    int masks;
    struct {
        rnnkern_mask kind;
        int slot;
        double probability;
    } mask[MAX_MASKS];
    const struct options *usual;
    struct options options; /* of the net; a table of cells leaves them out */
};

/* for each panel p, each row i and each vector of the panel, v being the lane at which it starts */
#define FOR_EACH_VECTOR(s, panels, p, i, v)                  \
    for (int64_t p = (panels).first; p < (panels).last; p++) \
        for (int64_t i = 0; i < (s)->rows; i++)              \
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
static inline vec unit_weight_of(const struct step *s, int k, int64_t panel, int64_t v)
{
    return v_load(s->unit_weights + k * s->part + panel * LANES + v);
}

/* h as the products see it */
ALWAYS_INLINE vec operand_of(const struct step *s, const struct options *o, int64_t i, int64_t panel, int64_t v)
{
    return v_load(o->operand ? current_of(s, i, panel, o->operand, v) : previous_of(s, i, panel, 0, v));
}

/* a*b for the gradient of that operand, before products add to it. */
ALWAYS_INLINE void give_operand(const struct step *s, const struct options *o, int64_t i, int64_t panel, int64_t v,
                                vec a, vec b)
{
    real *dh = gradient_of(s, i, panel, o->operand, v);
    v_store(dh, v_fma(a, b, o->operand ? v_zero() : v_load(dh)));
}

/* The share of the gradient that goes straight to the h before; part 0 held dh, or holds zoneout's share. */
ALWAYS_INLINE void give_share(const struct step *s, const struct options *o, int64_t i, int64_t panel, int64_t v,
                              vec share)
{
    real *dh = gradient_of(s, i, panel, 0, v);
    v_store(dh, o->out ? v_add(v_load(dh), share) : share);
}

/* A candidate, or its gradient, through the mask. */
ALWAYS_INLINE vec masked_candidate(const struct step *s, const struct options *o, int64_t i, int64_t panel, int64_t v,
                                   vec x)
{
    return o->mask_candidate ? v_mul(v_load(slot_of(s, i, panel, o->mask_candidate, v)), x) : x;
}

static inline vec zoneout_of(const struct step *s, int slot, real expectation, int64_t i, int64_t panel, int64_t v)
{
    return slot ? v_load(slot_of(s, i, panel, slot, v)) : v_set1(expectation);
}

/* keep old + (1 - keep) new */
static inline vec mix(vec keep, vec old, vec new) { return v_fma(keep, old, v_mul(v_sub(v_set1(1), keep), new)); }

/* The c of a cell with the new one at part `fresh`: carried as it is, or through zoneout. */
ALWAYS_INLINE void carry_cell(const struct step *s, const struct options *o, int64_t i, int64_t panel, int64_t v, vec c)
{
    v_store(current_of(s, i, panel, o->fresh, v), c);
    if (o->fresh != 1) {
        const vec keep = zoneout_of(s, o->mask_c, o->zoneout_c, i, panel, v);
        v_store(current_of(s, i, panel, 1, v), mix(keep, v_load(previous_of(s, i, panel, 1, v)), c));
    }
}

/* From the gradient of the c carried: that of the new one; *old is the share of the c before. */
ALWAYS_INLINE vec carried_gradient(const struct step *s, const struct options *o, int64_t i, int64_t panel, int64_t v,
                                   vec *old)
{
    const vec dc = v_load(gradient_of(s, i, panel, 1, v));
    *old = v_zero();
    if (o->fresh == 1)
        return dc;
    const vec keep = zoneout_of(s, o->mask_c, o->zoneout_c, i, panel, v);
    *old = v_mul(keep, dc);
    return v_mul(v_sub(v_set1(1), keep), dc);
}

#endif
