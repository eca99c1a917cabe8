/* rnnkern: recurrent layers (RNN, LSTM, GRU and their relatives) on the CPU, forward and backward.
 *
 * One call runs a whole stack of layers and directions over a batch of sequences. The library allocates nothing:
 * packed weights, tape and workspace are the caller's, their sizes come from rnnkern_sizes, and each block must be
 * aligned to RNNKERN_ALIGNMENT bytes. It has no mutable state but a team of threads (parallel.c), so calls may come
 * from any number of threads at once as long as they do not write to the same memory.
 *
 *   rnnkern_net    what is computed: the cell, its options and the sizes of the stack
 *   rnnkern_call   on what: steps, rows, lengths, resets, dropout, threads, what to keep for backward
 *
 *   rnnkern_sizes(&net, &call, &sizes)              how much memory each block takes
 *   rnnkern_pack(&net, weights, packed)             weights into the order in which the kernels read them
 *   rnnkern_forward(&net, &call, packed, ...)       inference, or training when call.keep is not RNNKERN_KEEP_NONE
 *   rnnkern_backward(&net, &call, packed, tape...)  gradients; the tape is overwritten
 *
 * Shapes: T steps, B rows (batch), I input_size, H hidden_size, P the width of h (proj_size, or H), L num_layers, D
 * num_directions (1 or 2), G gates. Sequences are addressed through rnnkern_rows, so that (T, B, F) and (B, T, F) are alike.
 *   states        contiguous: h (L*D, B, P) and, for the LSTM and the SRU, c (L*D, B, H)
 *   weights       L*D groups of RNNKERN_WEIGHTS pointers, see rnnkern_weight; contiguous; NULL where a net has none
 *   lengths       (B,) or NULL: steps of each row, 0..T. Behind a length y and dx are zero and x, dy are not read.
 *   resets        (T, B) bytes or NULL: nonzero at (t, b) is a border between steps t-1 and t of row b. The forward
 *                 direction restarts before t, the reverse direction before t-1.
 *   restart       what a restart loads: zeros, or states without or with the axis B, see restart_kind.
 *
 * The same bits whatever the batch, thread count, level or mode: see docs/contract.md for what exactly is promised.
 * Every function returns a status; on an error nothing has been written.
 */
#ifndef RNNKERN_H
#define RNNKERN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RNNKERN_ALIGNMENT 64

typedef enum {
    RNNKERN_OK = 0,
    RNNKERN_BAD_ARGUMENT, /* a size, an enum or a required pointer is out of range */
    RNNKERN_OVERFLOW,     /* a size computed from the arguments does not fit in memory addresses */
    RNNKERN_NO_LEVEL      /* the SIMD level was not compiled in, or this CPU lacks it */
} rnnkern_status;

/* Formulas and papers: the headers of csrc/kernels. Blocks of H rows of the weights: */
typedef enum {
    RNNKERN_RNN,        /* one */
    RNNKERN_LSTM,       /* i f g o; coupled e g o, where e is the one gate that is computed */
    RNNKERN_GRU,        /* r z n, reset-after */
    RNNKERN_GRU_BEFORE, /* r z n, reset-before */
    RNNKERN_MGU,        /* f n */
    RNNKERN_INDRNN,     /* one */
    RNNKERN_SRU,        /* n f r x; its state is c alone, h is an output */
    RNNKERN_MINGRU,     /* z n */
    RNNKERN_CELLS
} rnnkern_cell;
typedef enum { RNNKERN_FLOAT32, RNNKERN_FLOAT64 } rnnkern_dtype;

typedef enum {
    RNNKERN_WEIGHT_IH, /* (G*H, I or D*P) */
    RNNKERN_WEIGHT_HH, /* (G*H, P); IndRNN (H,) */
    RNNKERN_BIAS_IH,   /* (G*H,), with net.bias */
    RNNKERN_BIAS_HH,   /* (G*H,), with net.bias; not of IndRNN, SRU, minGRU */
    RNNKERN_WEIGHT_HR, /* (P, H), with net.proj_size */
    RNNKERN_WEIGHT_CH, /* LSTM with net.peephole (3*H,) i f o, coupled (2*H,) e o; SRU (2*H,) f r */
    RNNKERN_NORM_IH, /* (G*H,), with net.layer_norm: gains of W x, of U h, and of the LSTM's c, the last with a bias */
    RNNKERN_NORM_HH, /* (G*H,) */
    RNNKERN_NORM_C,  /* (H,) */
    RNNKERN_NORM_C_BIAS,
    RNNKERN_WEIGHTS
} rnnkern_weight;

typedef enum {
    RNNKERN_USUAL, /* what the cell has by default */
    RNNKERN_SIGMOID,
    RNNKERN_TANH,
    RNNKERN_RELU,
    RNNKERN_HARD_SIGMOID,     /* 0 .. alpha x + beta .. 1 */
    RNNKERN_SOFTSIGN,         /* x / (1 + |x|) */
    RNNKERN_AFFINE,           /* alpha x + beta */
    RNNKERN_LEAKY_RELU,       /* x, below 0 alpha x; alpha >= 0 */
    RNNKERN_THRESHOLDED_RELU, /* x above alpha, else 0; alpha >= 0 */
    RNNKERN_SCALED_TANH,      /* alpha tanh(beta x); alpha not 0 */
    RNNKERN_ELU,              /* x, below 0 alpha (e^x - 1); alpha >= 0 */
    RNNKERN_SOFTPLUS,         /* log(1 + e^x) */
    RNNKERN_ACTIVATIONS
} rnnkern_activation;
typedef struct {
    rnnkern_activation kind;
    double alpha, beta;
} rnnkern_function;

typedef enum {
    RNNKERN_UNCOUPLED,
    RNNKERN_COUPLED_INPUT /* i = 1-f */,
    RNNKERN_COUPLED_FORGET /* f = 1-i */
} rnnkern_coupling;

typedef enum {
    RNNKERN_KEEP_NONE,    /* inference */
    RNNKERN_KEEP_GATES,   /* gates and states of every step: the fastest backward */
    RNNKERN_KEEP_STATES,  /* states of every step; backward recomputes the gates */
    RNNKERN_KEEP_SEGMENTS /* states every `segment` steps; backward recomputes the rest */
} rnnkern_keep;

typedef enum { RNNKERN_RESTART_ZERO, RNNKERN_RESTART_SHARED, RNNKERN_RESTART_PER_ROW } rnnkern_restart;
typedef enum { RNNKERN_SPLIT_AUTO, RNNKERN_SPLIT_ROWS, RNNKERN_SPLIT_UNITS } rnnkern_split;

/* Why a call uses one thread or a team, and how it is split. */
typedef enum {
    RNNKERN_ONE_ALLOWED,      /* the caller allows one */
    RNNKERN_ONE_SMALL_WORK,   /* waking a team would take longer */
    RNNKERN_ONE_SMALL_MATRIX, /* few rows, and one core reads the recurrent matrix fast enough */
    RNNKERN_ONE_SHARE,        /* there is one row, or one panel of 16 units */
    RNNKERN_TEAM_OF_ROWS,
    RNNKERN_TEAM_OF_UNITS
} rnnkern_reason;

typedef struct {
    rnnkern_cell cell;
    rnnkern_dtype dtype;
    int level; /* index into rnnkern_level_name */
    int bias;
    int64_t input_size, hidden_size;
    int64_t proj_size; /* of the LSTM, below hidden_size; 0: h is not projected */
    int64_t num_layers, num_directions;
    rnnkern_function gate, candidate,
        output;               /* activations: of gates; of the candidate, or the RNN's; of the LSTM's and SRU's c */
    rnnkern_coupling coupled; /* LSTM */
    int peephole;             /* LSTM */
    int layer_norm;           /* RNN, LSTM, GRU */
    double norm_eps;
    double clip;                 /* of what enters activations, to -clip..clip; 0: none */
    double cell_clip;            /* of the LSTM's c; 0: none */
    double zoneout_h, zoneout_c; /* 0..1: states keep their value with this probability; in inference the expectation */
} rnnkern_net;

typedef struct {
    int64_t steps, rows;    /* T, B */
    const int64_t *lengths; /* (B,) or NULL */
    const uint8_t *resets;  /* (T, B) or NULL */
    rnnkern_restart restart_kind;
    rnnkern_keep keep;
    int64_t segment; /* steps between kept states, for RNNKERN_KEEP_SEGMENTS */
    double dropout;  /* between layers, 0..1; this and the next: only with keep != RNNKERN_KEEP_NONE */
    int variational; /* one mask a row for all steps, also between layers */
    double input_dropout, output_dropout, hidden_dropout; /* of x, of y, of h in U h; one mask a row */
    double candidate_dropout;                             /* one mask a step */
    uint64_t seed;                                        /* of all masks */
    int64_t first_step;                                   /* what step 0 is in the whole sequence, for the masks */
    int threads;                                          /* at most so many, >= 1 */
    rnnkern_split split;
    void *trace;       /* forward: where gates and states of every step go, see below; NULL: nowhere */
    int row_grads;     /* backward: grads are of each row, (B, ...) each; only with RNNKERN_KEEP_GATES */
    double clip;       /* backward: cuts the gradients of states to -clip..clip at every step; 0: does not */
    void *state_norms; /* backward: where the norms of these gradients go, (L*D, S, T, B), S states; NULL: nowhere */
} rnnkern_call;

/* A trace is dense, (L*D, T, B, V, H), and zero behind lengths and behind a projected h. The V vectors are
 *   RNN, IndRNN a h (a: before the activation)      LSTM i f g o h c, coupled e g o h c
 *   GRU n r z u h (u = U h + b_hh of n)             GRU reset-before n r z h
 *   MGU n f h                                       SRU n f r x h c                        minGRU z n h */

typedef struct {
    size_t packed;             /* packed weights */
    size_t tape;               /* what forward keeps for backward; 0 for inference */
    size_t forward_workspace;  /* scratch memory of rnnkern_forward */
    size_t backward_workspace; /* scratch memory of rnnkern_backward */
} rnnkern_sizes_t;

/* How a call will be done. */
typedef struct {
    int own_functions; /* the cell's functions are compiled for these options, and look at none while they run */
    rnnkern_reason reason;
    int threads;
    int tile_rows, tile_columns; /* of a register tile: rows, and vectors of vector_lanes units */
    int vector_lanes;
    int64_t chunk_rows; /* (step, row) pairs whose inputs are projected ahead of the recurrence */
} rnnkern_plan_t;

/* A sequence array: element (t, b, f) is data[t*step + b*row + f]; strides count elements. Of y and dy, `layer` is the
 * stride between the sequences of all layers (before dropout); 0 where only the last layer is wanted. */
typedef struct {
    void *data;
    int64_t step, row, layer;
} rnnkern_rows;

/* States: h (L*D, B, P) and c (L*D, B, H), or as restart_kind says. NULL: zeros (as an input), or not wanted (as an
 * output), or the cell has none. */
typedef struct {
    void *h, *c;
} rnnkern_states;

/* Levels are numbered from the most to the least capable; NULL ends the list. */
const char *rnnkern_level_name(int level);
int rnnkern_level_supported(int level); /* by this CPU and its operating system */

/* Elements of an array of weights of one direction of a layer; 0 where the net has none. */
int64_t rnnkern_weight_size(const rnnkern_net *net, int64_t layer, rnnkern_weight weight);

/* Threads that the team has now, the caller among them. */
int rnnkern_team_size(void);

rnnkern_status rnnkern_sizes(const rnnkern_net *net, const rnnkern_call *call, rnnkern_sizes_t *sizes);

rnnkern_status rnnkern_plan(const rnnkern_net *net, const rnnkern_call *call, rnnkern_plan_t *plan);

rnnkern_status rnnkern_pack(const rnnkern_net *net, const void *const *weights, void *packed);

/* y.data NULL: outputs are not wanted. tape NULL exactly when call.keep is RNNKERN_KEEP_NONE. */
rnnkern_status rnnkern_forward(const rnnkern_net *net, const rnnkern_call *call, const void *packed, rnnkern_rows x,
                               rnnkern_states hx, rnnkern_states restart, rnnkern_rows y, rnnkern_states hx_n,
                               void *tape, void *workspace);

/* With the net, call, packed weights, x and tape of a forward call. dy.data NULL and dhx_n.h NULL mean zeros;
 * dx.data, dhx and drestart NULL mean not wanted. grads is laid out as weights and is added into; NULL if not wanted. */
rnnkern_status rnnkern_backward(const rnnkern_net *net, const rnnkern_call *call, const void *packed, rnnkern_rows x,
                                void *tape, rnnkern_rows dy, rnnkern_states dhx_n, rnnkern_rows dx, rnnkern_states dhx,
                                rnnkern_states drestart, void *const *grads, void *workspace);

/* An activation, element by element; y may be x. */
rnnkern_status rnnkern_activate(rnnkern_dtype dtype, int level, rnnkern_function function, int64_t n, const void *x,
                                void *y);

typedef enum {
    RNNKERN_MASK_LAYERS, /* between layers */
    RNNKERN_MASK_INPUT,
    RNNKERN_MASK_OUTPUT,
    RNNKERN_MASK_HIDDEN,
    RNNKERN_MASK_CANDIDATE,
    RNNKERN_MASK_ZONEOUT_H,
    RNNKERN_MASK_ZONEOUT_C,
    RNNKERN_MASK_WEIGHTS /* DropConnect: row and unit are those of the matrix */
} rnnkern_mask;

/* Masks (rows, n) of rows first_row.. and units 0..n-1 at a step, as forward draws them: 0 or 1/(1-p), of zoneout 1 (the
 * state is kept) or 0. */
rnnkern_status rnnkern_draw_masks(rnnkern_dtype dtype, int level, rnnkern_mask kind, double probability, uint64_t seed,
                                  int64_t layer, int direction, int64_t step, int64_t first_row, int64_t rows,
                                  int64_t n, void *mask);

#ifdef __cplusplus
}
#endif
#endif
