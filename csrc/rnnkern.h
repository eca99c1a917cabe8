/* rnnkern: recurrent layers (RNN, LSTM, GRU) on the CPU, forward and backward.
 *
 * One call runs a whole stack of layers and directions over a batch of sequences. The library allocates nothing:
 * packed weights, tape and workspace are the caller's, their sizes come from rnnkern_sizes, and each block must be
 * aligned to RNNKERN_ALIGNMENT bytes. It has no mutable state but a team of threads (parallel.c), so calls may come
 * from any number of threads at once as long as they do not write to the same memory.
 *
 *   rnnkern_net    what is computed: the cell and the sizes of the stack
 *   rnnkern_call   on what: steps, rows, lengths, resets, threads, what to keep for backward
 *
 *   rnnkern_sizes(&net, &call, &sizes)              how much memory each block takes
 *   rnnkern_pack(&net, weights, packed)             weights into the order in which the kernels read them
 *   rnnkern_forward(&net, &call, packed, ...)       inference, or training when call.keep is not RNNKERN_KEEP_NONE
 *   rnnkern_backward(&net, &call, packed, tape...)  gradients; the tape is overwritten
 *
 * Shapes: T steps, B rows (batch), I input_size, H hidden_size, L num_layers, D num_directions (1 or 2), G gates
 * (RNN 1, LSTM 4, GRU 3). Sequences are addressed through rnnkern_rows, so that (T, B, F) and (B, T, F) are alike.
 *   states        (L*D, B, H), contiguous: h, and for the LSTM c
 *   weights       L*D groups of four pointers: weight_ih (G*H, I or D*H), weight_hh (G*H, H), bias_ih (G*H),
 *                 bias_hh (G*H), contiguous, rows in torch's gate order (LSTM i f g o, GRU r z n); biases NULL
 *                 when net.bias is 0. Index (layer*D + direction)*4.
 *   lengths       (B,) or NULL: steps of each row, 0..T. Behind a length y and dx are zero and x, dy are not read.
 *   resets        (T, B) bytes or NULL: nonzero at (t, b) is a border between steps t-1 and t of row b. The forward
 *                 direction restarts before t, the reverse direction before t-1.
 *   restart       what a restart loads: zeros, or states of shape (L*D, H) or (L*D, B, H), see restart_kind.
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

typedef enum {
    RNNKERN_RNN_TANH,
    RNNKERN_RNN_RELU,
    RNNKERN_LSTM,
    RNNKERN_GRU,
    RNNKERN_GRU_BEFORE,
    RNNKERN_CELLS
} rnnkern_cell;
typedef enum { RNNKERN_FLOAT32, RNNKERN_FLOAT64 } rnnkern_dtype;
typedef enum { RNNKERN_SIGMOID, RNNKERN_TANH } rnnkern_activation;

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
    int64_t input_size, hidden_size, num_layers, num_directions;
} rnnkern_net;

typedef struct {
    int64_t steps, rows;    /* T, B */
    const int64_t *lengths; /* (B,) or NULL */
    const uint8_t *resets;  /* (T, B) or NULL */
    rnnkern_restart restart_kind;
    rnnkern_keep keep;
    int64_t segment; /* steps between kept states, for RNNKERN_KEEP_SEGMENTS */
    double dropout;  /* between layers, 0..1; only with keep != RNNKERN_KEEP_NONE */
    uint64_t seed;   /* of the dropout masks */
    int threads;     /* at most so many, >= 1 */
    rnnkern_split split;
    void *trace;       /* forward: where gates and states of every step go, see below; NULL: nowhere */
    int row_grads;     /* backward: grads are of each row, (B, ...) each; only with RNNKERN_KEEP_GATES */
    double clip;       /* backward: cuts the gradients of states to -clip..clip at every step; 0: does not */
    void *state_norms; /* backward: where the norms of these gradients go, (L*D, S, T, B), S states; NULL: nowhere */
} rnnkern_call;

/* A trace is dense, (L*D, T, B, V, H), and zero behind lengths. The V vectors are
 *   RNN a h (a: before the activation)      LSTM i f g o h c
 *   GRU n r z u h (u = U h + b_hh of n)     GRU reset-before n r z h */

typedef struct {
    size_t packed;             /* packed weights */
    size_t tape;               /* what forward keeps for backward; 0 for inference */
    size_t forward_workspace;  /* scratch memory of rnnkern_forward */
    size_t backward_workspace; /* scratch memory of rnnkern_backward */
} rnnkern_sizes_t;

/* How a call will be done. */
typedef struct {
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

/* States: (L*D, B, H) each, or as restart_kind says. c is NULL but for the LSTM; h NULL means zeros (as an input)
 * or not wanted (as an output). */
typedef struct {
    void *h, *c;
} rnnkern_states;

/* Levels are numbered from the most to the least capable; NULL ends the list. */
const char *rnnkern_level_name(int level);
int rnnkern_level_supported(int level); /* by this CPU and its operating system */

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
 * dx.data, dhx.h, drestart.h NULL mean not wanted. grads is laid out as weights and is added into; NULL if not wanted. */
rnnkern_status rnnkern_backward(const rnnkern_net *net, const rnnkern_call *call, const void *packed, rnnkern_rows x,
                                void *tape, rnnkern_rows dy, rnnkern_states dhx_n, rnnkern_rows dx, rnnkern_states dhx,
                                rnnkern_states drestart, void *const *grads, void *workspace);

/* The kernels' sigmoid and tanh, element by element; y may be x. */
rnnkern_status rnnkern_activate(rnnkern_dtype dtype, int level, rnnkern_activation activation, int64_t n, const void *x,
                                void *y);

/* The dropout mask's factor (0 or 1/(1-p)) of units 0..n-1 at (layer, step, row), as forward applies it. */
rnnkern_status rnnkern_dropout_mask(rnnkern_dtype dtype, double dropout, uint64_t seed, int64_t layer, int64_t step,
                                    int64_t row, int64_t n, void *mask);

#ifdef __cplusplus
}
#endif
#endif
