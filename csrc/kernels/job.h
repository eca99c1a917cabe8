/* One call: its sizes, and where everything lies in the caller's memory.
 *
 * packed     for each layer and direction: bias [panel][biased][16]; weights of units [unit_weights][padded H]; the input's
 *            matrix [panel][k][x_count][16]; for each pass with a product its matrix [panel][k][count][16]
 * tape       as `keep` says, for each layer and direction: state rows, B carry rows (the states on entry) and all R, or
 *            the carry rows of each segment; gates of all R rows. Between layers: sequences (T, B, D*P). Restart rows. x
 *            behind its dropout mask.
 * workspace  plan, lists of rows, and whatever of the above is not kept
 *
 * Gate rows lie at [panel][row][slot][16], state rows at [row][part][padded H], and 16 more with layer normalisation.
 */
#ifndef RK_JOB_H
#define RK_JOB_H

/* Rows of a projection chunk: their gates should stay in L2 until the recurrence has used them. */
#define CHUNK_BYTES (1 << 19)
#define CHUNK_ROWS_MIN 64
#define CHUNK_ROWS_MAX (4 * RUN_ROWS)

/* The rows of a chunk that one member works on, in storage order: pointers to whatever belongs to each. */
struct rows {
    int64_t n;
    const real **x;        /* input */
    real **z;              /* gates, panel 0 */
    const real **previous; /* state row before */
    real **current;        /* state row after */
    real **gradient;       /* gradient row */
    real **out;            /* set by point_at where a product writes to a sequence */
    int32_t *step, *row;   /* t, b */
    uint8_t *restart;      /* 1 where the row restarts before this step */
};

/* What weight gradients are summed in, see gradient.h. */
struct sums {
    real *run, *total; /* as the gradient of a direction is laid out */
    real *input;       /* operands of a run */
    real *gates;       /* with row_grads: the gate rows of a run, side by side */
};

struct job {
    const struct cell *cell;
    const struct options *options; /* NULL: the usual ones */
    const rnnkern_net *net;
    const rnnkern_call *call;
    const real *packed;
    rnnkern_rows x, y;
    rnnkern_states hx, restart, hx_n;
    /* sizes */
    int64_t hidden, output, layers, directions; /* output: P */
    int64_t panels, part, width;                /* part: padded H; width: elements of a state row */
    int64_t gate_row, restart_rows;
    int64_t project_rows, chunk_rows, block_rows; /* of a chunk: forward, backward; of a recomputed block */
    int threads, split_units;
    int shares; /* of the rows, which are dealt to the threads */
    rnnkern_reason reason;
    struct plan plan;
    struct rows *lists; /* [threads] */
    /* kept for backward (or scratch, in inference) */
    real *restart_row; /* [layers*directions][restart_rows][width] */
    real *sequence;    /* outputs between layers, after dropout: [layers-1][T][B][D*P] */
    real *masked_x;    /* [T][B][I], NULL without dropout of the input */
    real *gates;       /* KEEP_GATES: [layers*directions], else a chunk for each scratch */
    real *states;      /* KEEP_GATES, KEEP_STATES: [layers*directions], else a chunk for each scratch */
    real *carry;       /* KEEP_SEGMENTS: [layers*directions][segments][B][width] */
    /* backward only */
    rnnkern_rows dy, dx;
    rnnkern_states dhx_n, dhx, drestart;
    void *const *grads;
    real *block_gates, *block_states;    /* where recomputed ones go */
    real *gradient;                      /* [B][width] */
    real *dsequence;                     /* [2][T][B][D*P] */
    real *transposed;                    /* the matrices of one direction as dx and dh read them */
    struct sums *sums;                   /* weight gradients: one, or with row_grads of each member */
    real *drestart_rows;                 /* [block_rows][width] gradients of a block's restarts, NULL if not wanted */
    real *drestart_run, *drestart_total; /* [restart_rows][width] */
};

/* One layer and direction of a job. */
struct direction {
    int64_t layer, index; /* index: layer*D + d */
    int reverse;
    const real *bias, *unit_weights;
    /* of each operand: */
    int64_t size[MAX_PASSES + 1];
    const real *matrix[MAX_PASSES + 1];
    real *transposed[MAX_PASSES + 1]; /* in backward */
    rnnkern_rows x, y;
};

/* A range of steps whose states are in memory, and whose gates are, from storage row gate_row0 on. */
struct block {
    int64_t begin, end; /* q */
    int64_t row0;       /* storage row of the first state row behind the carry rows */
    int64_t gate_row0, z_panel;
    real *states, *gates;
};

static inline int64_t input_of(const rnnkern_net *net, int64_t layer)
{
    return layer ? net->num_directions * (net->proj_size ? net->proj_size : net->hidden_size) : net->input_size;
}
static inline int64_t segments_of(const struct job *job)
{
    return (job->plan.steps + job->call->segment - 1) / job->call->segment;
}
static inline int keeps_all_states(const rnnkern_call *call)
{
    return call->keep == RNNKERN_KEEP_GATES || call->keep == RNNKERN_KEEP_STATES;
}

static inline int masks_input(const rnnkern_call *call)
{
    return call->keep != RNNKERN_KEEP_NONE && call->input_dropout > 0;
}

/* ---- products: operand 0 is the input, 1.. those of the passes */

/* Elements of an operand; 0 where a pass has no product. */
static inline int64_t operand_size(const struct job *job, int64_t layer, int operand)
{
    if (operand == 0)
        return input_of(job->net, layer);
    const struct pass *pass = &job->cell->pass[operand - 1];
    return pass->from == NOTHING ? 0 : pass->of_h ? job->hidden : job->output;
}

/* Units of its slots. */
static inline int64_t units_of(const struct job *job, int operand)
{
    return operand && job->cell->pass[operand - 1].of_h ? job->output : job->hidden;
}
static inline int first_of(const struct job *job, int operand)
{
    return operand ? job->cell->pass[operand - 1].first : job->cell->x_first;
}
static inline int count_of(const struct job *job, int operand)
{
    return operand ? job->cell->pass[operand - 1].count : job->cell->x_count;
}

/* ---- packed weights */

static int64_t packed_bias_size(const struct job *job) { return job->panels * job->cell->biased * LANES; }

static inline int64_t packed_matrix_size(const struct job *job, int64_t layer, int operand)
{
    return panels_of(units_of(job, operand)) * LANES * operand_size(job, layer, operand) * count_of(job, operand);
}

static int64_t packed_direction_size(const struct job *job, int64_t layer)
{
    int64_t size = packed_bias_size(job) + job->cell->unit_weights * job->part;
    for (int k = 0; k <= job->cell->passes; k++)
        size += packed_matrix_size(job, layer, k);
    return size;
}

static int64_t packed_size(const struct job *job)
{
    int64_t size = 0;
    for (int64_t layer = 0; layer < job->layers; layer++)
        size += job->directions * packed_direction_size(job, layer);
    return size;
}

/* ---- choices */

/* A second thread pays where there is enough work: below these many multiply-adds waking a worker that sleeps takes what it
 * gains. Rows are split (no barrier across time) when each member gets enough of them; else units, when U is too large for
 * one core's L1: at 64 KiB two cores gain 0 to 40 %, as far as they are from each other, at 128 KiB always. Reading U, which
 * is what few rows do, takes twice as long from beyond L2. */
#define MIN_WORK_OF_ROWS (3 << 20)
#define MIN_WORK_OF_UNITS (2 << 20)
#define MIN_BYTES_OF_UNITS (96 << 10)
#define ENOUGH_ROWS 4 /* of a member: with fewer, half of U for twice the rows is up to 1.7 times as fast */
#define FEWEST_ROWS 8 /* of a share where cores lack: with fewer U is read more often than it helps */
#define MOST_SHARES 4 /* of a thread then */
#define BYTES_BEYOND_L2 (1 << 20)

static double work_of(const struct job *job)
{
    return (double)(job->cell->gates * job->hidden * (job->hidden + job->net->input_size)) *
           (double)job->plan.real_rows * (double)(job->layers * job->directions);
}

/* What the caller waits for workers that split units, see parallel.h: an eighth of the call at 40 multiply-adds a ns, for it
 * takes about twice its time without them; and long enough for one that sleeps. */
static int64_t grace_of(const struct job *job) { return 30000 + (int64_t)(work_of(job) / 340); }

/* In ns, on one thread; backward, where there will be one, included. */
static int64_t time_of(const struct job *job)
{
    return (int64_t)(work_of(job) * (job->call->keep == RNNKERN_KEEP_NONE ? 1 : 3) / 90);
}

static int64_t bytes_of_u(const struct job *job)
{
    return job->cell->gates * job->hidden * job->hidden * (int64_t)sizeof(real);
}

static int wants_units(const struct job *job)
{
    const rnnkern_call *call = job->call;
    if (call->split != RNNKERN_SPLIT_AUTO)
        return call->split == RNNKERN_SPLIT_UNITS;
    return call->rows < (bytes_of_u(job) < MIN_BYTES_OF_UNITS ? 2 : ENOUGH_ROWS) * call->threads;
}

static rnnkern_reason reason_for(const struct job *job, int units, int64_t shares)
{
    const rnnkern_call *call = job->call;
    const int64_t bytes = bytes_of_u(job);
    const double work = work_of(job);
    const int needed = !units ? MIN_WORK_OF_ROWS : bytes > BYTES_BEYOND_L2 ? MIN_WORK_OF_UNITS / 2 : MIN_WORK_OF_UNITS;
    if (call->threads == 1)
        return RNNKERN_ONE_ALLOWED;
    if (shares < 2)
        return RNNKERN_ONE_SHARE;
    if (call->split == RNNKERN_SPLIT_AUTO && work < needed)
        return RNNKERN_ONE_SMALL_WORK;
    if (call->split == RNNKERN_SPLIT_AUTO && units && bytes < MIN_BYTES_OF_UNITS)
        return RNNKERN_ONE_SMALL_MATRIX;
    return units ? RNNKERN_TEAM_OF_UNITS : RNNKERN_TEAM_OF_ROWS;
}

static void choose_split(struct job *job)
{
    const rnnkern_call *call = job->call;
    const int units = wants_units(job);
    const int64_t shares = units ? job->panels : call->rows;
    job->reason = reason_for(job, units, shares);
    job->threads = job->reason >= RNNKERN_TEAM_OF_ROWS ? (int)min_of(call->threads, shares) : 1;
    job->split_units = job->reason == RNNKERN_TEAM_OF_UNITS;
    job->shares = job->split_units ? 1 : job->threads;
    if (job->shares > 1 && rk_team_lacks_cores())
        job->shares *= (int)min_of(MOST_SHARES, max_of(1, call->rows / (job->threads * FEWEST_ROWS)));
}

/* Members that split units share what one chunk needs; others have their own. */
static inline int64_t scratches_of(const struct job *job) { return job->split_units ? 1 : job->threads; }

/* `variant` has to live as long as the job. */
static struct job job_for(const rnnkern_net *net, const rnnkern_call *call, struct cell *variant)
{
    struct job job = {.cell = cell_of(net, call, variant),
                      .net = net,
                      .call = call,
                      .hidden = net->hidden_size,
                      .output = net->proj_size ? net->proj_size : net->hidden_size,
                      .layers = net->num_layers,
                      .directions = net->num_directions};
    job.options = job.cell == variant ? &variant->options : NULL;
    job.panels = panels_of(job.hidden);
    job.part = job.panels * LANES;
    job.width = job.cell->parts * job.part + (job.cell->norms ? LANES : 0);
    job.gate_row = job.cell->slots * job.part;
    return job;
}

static struct job job_for_call(const rnnkern_net *net, const rnnkern_call *call, struct cell *variant)
{
    struct job job = job_for(net, call, variant);
    plan_sizes(&job.plan, call);
    const int64_t real_rows = job.plan.real_rows, fit = CHUNK_BYTES / ((int64_t)sizeof(real) * job.gate_row);
    const int64_t target = max_of(CHUNK_ROWS_MIN, min_of(CHUNK_ROWS_MAX, fit / CHUNK_ROWS_MIN * CHUNK_ROWS_MIN));
    job.project_rows = min_of(max_of(target, call->rows), real_rows);
    job.chunk_rows = max_of(job.project_rows, min_of(RUN_ROWS, real_rows)); /* whole runs of the weight gradients */
    job.block_rows = call->keep == RNNKERN_KEEP_GATES ? real_rows : job.chunk_rows;
    if (call->keep == RNNKERN_KEEP_SEGMENTS)
        job.block_rows = min_of(call->rows * min_of(call->segment, job.plan.steps), real_rows);
    job.restart_rows = call->restart_kind == RNNKERN_RESTART_PER_ROW ? call->rows : 1;
    choose_split(&job);
    return job;
}

/* ---- memory */

static void layout_kept(struct job *job, struct arena *kept)
{
    const rnnkern_call *call = job->call;
    const int64_t n = job->layers * job->directions, all = job->plan.real_rows;
    const int64_t between = call->keep == RNNKERN_KEEP_NONE ? min_of(2, job->layers - 1) : job->layers - 1;
    job->restart_row = arena_take(kept, n * job->restart_rows * job->width, sizeof(real));
    job->sequence = arena_take(kept, between * call->steps * call->rows * job->directions * job->output, sizeof(real));
    if (masks_input(call))
        job->masked_x = arena_take(kept, call->steps * call->rows * job->net->input_size, sizeof(real));
    if (keeps_all_states(call))
        job->states = arena_take(kept, n * (call->rows + all) * job->width, sizeof(real));
    if (call->keep == RNNKERN_KEEP_GATES)
        job->gates = arena_take(kept, n * all * job->gate_row, sizeof(real));
    if (call->keep == RNNKERN_KEEP_SEGMENTS)
        job->carry = arena_take(kept, n * segments_of(job) * call->rows * job->width, sizeof(real));
}

static void layout_common(struct job *job, struct arena *work)
{
    const int64_t n = job->chunk_rows;
    job->plan.before = arena_take(work, job->plan.steps + 2, sizeof(int64_t));
    job->plan.length = arena_take(work, job->plan.rows, sizeof(int64_t));
    job->plan.order = arena_take(work, job->plan.rows, sizeof(int32_t));
    job->lists = arena_take(work, job->threads, sizeof(struct rows));
    for (int i = 0; i < job->threads; i++) {
        struct rows list = {.n = 0};
        list.x = arena_take(work, n, sizeof(real *));
        list.z = arena_take(work, n, sizeof(real *));
        list.previous = arena_take(work, n, sizeof(real *));
        list.current = arena_take(work, n, sizeof(real *));
        list.gradient = arena_take(work, n, sizeof(real *));
        list.out = arena_take(work, n, sizeof(real *));
        list.step = arena_take(work, n, sizeof(int32_t));
        list.row = arena_take(work, n, sizeof(int32_t));
        list.restart = arena_take(work, n, sizeof(uint8_t));
        if (work->base)
            job->lists[i] = list;
    }
}

/* Elements of a chunk's gates and states. */
static inline int64_t scratch_gates(const struct job *job) { return job->project_rows * job->gate_row; }
static inline int64_t scratch_states(const struct job *job)
{
    return (job->plan.rows + job->project_rows) * job->width;
}

static void layout_forward(struct job *job, struct arena *work)
{
    const rnnkern_call *call = job->call;
    layout_common(job, work);
    if (call->keep == RNNKERN_KEEP_NONE)
        layout_kept(job, work);
    if (call->keep != RNNKERN_KEEP_GATES)
        job->gates = arena_take(work, scratches_of(job) * scratch_gates(job), sizeof(real));
    if (!keeps_all_states(call))
        job->states = arena_take(work, scratches_of(job) * scratch_states(job), sizeof(real));
}

/* Register tiles of the weight gradients of an operand; see gradient.h. */
static inline int64_t tiles_of(int64_t operand) { return operand ? (operand + 1 + MAX_ROWS - 1) / MAX_ROWS : 0; }

static int64_t tiles_of_layer(const struct job *job, int64_t layer)
{
    int64_t tiles = 0;
    for (int k = 0; k <= job->cell->passes; k++)
        tiles += tiles_of(operand_size(job, layer, k));
    return tiles;
}

/* As packed_matrix_size, with a bias as one more input instead of the forward's start values. */
static int64_t gradient_matrix_size(const struct job *job, int64_t layer, int operand)
{
    return panels_of(units_of(job, operand)) * LANES * (operand_size(job, layer, operand) + 1) * count_of(job, operand);
}

static int64_t gradient_size(const struct job *job, int64_t layer)
{
    int64_t size = job->cell->unit_weights * job->part;
    for (int k = 0; k <= job->cell->passes; k++)
        size += gradient_matrix_size(job, layer, k);
    return size;
}

static int64_t transposed_matrix_size(const struct job *job, int64_t layer, int operand)
{
    return panels_of(operand_size(job, layer, operand)) * LANES * count_of(job, operand) * units_of(job, operand);
}

static int64_t transposed_size(const struct job *job, int64_t layer)
{
    int64_t size = 0;
    for (int k = 0; k <= job->cell->passes; k++)
        size += transposed_matrix_size(job, layer, k);
    return size;
}

static void layout_backward(struct job *job, struct arena *work)
{
    const rnnkern_call *call = job->call;
    int64_t gradient = 0, transposed = 0, tiles = 0;
    for (int64_t layer = 0; layer < min_of(2, job->layers); layer++) { /* all layers from the second on are alike */
        gradient = max_of(gradient, gradient_size(job, layer));
        transposed = max_of(transposed, transposed_size(job, layer));
        tiles = max_of(tiles, tiles_of_layer(job, layer));
    }
    layout_common(job, work);
    if (call->keep != RNNKERN_KEEP_GATES)
        job->block_gates = arena_take(work, job->block_rows * job->gate_row, sizeof(real));
    if (!keeps_all_states(call))
        job->block_states = arena_take(work, (call->rows + job->block_rows) * job->width, sizeof(real));
    const int64_t between = min_of(2, job->layers - 1);
    job->dsequence = arena_take(work, between * call->steps * call->rows * job->directions * job->output, sizeof(real));
    job->gradient = arena_take(work, call->rows * job->width, sizeof(real));
    job->transposed = arena_take(work, transposed, sizeof(real));
    const int summing = call->row_grads ? job->threads : 1;
    job->sums = arena_take(work, summing, sizeof(struct sums));
    for (int i = 0; i < summing; i++) {
        struct sums sums = {.run = arena_take(work, gradient, sizeof(real)),
                            .total = arena_take(work, gradient, sizeof(real)),
                            .input = arena_take(work, tiles * MAX_ROWS * RUN_ROWS, sizeof(real))};
        if (call->row_grads)
            sums.gates = arena_take(work, RUN_ROWS * job->gate_row, sizeof(real));
        if (work->base)
            job->sums[i] = sums;
    }
    if (call->restart_kind != RNNKERN_RESTART_ZERO) {
        job->drestart_rows = arena_take(work, job->block_rows * job->width, sizeof(real));
        job->drestart_run = arena_take(work, job->restart_rows * job->width, sizeof(real));
        job->drestart_total = arena_take(work, job->restart_rows * job->width, sizeof(real));
    }
}

/* ---- views */

static rnnkern_rows sequence_between(const struct job *job, real *base, int64_t index)
{
    const int64_t features = job->directions * job->output, step = job->call->rows * features;
    return (rnnkern_rows){.data = base + index * job->call->steps * step, .step = step, .row = features};
}

static rnnkern_rows at_layer(rnnkern_rows rows, int64_t layer)
{
    if (rows.data)
        rows.data = (real *)rows.data + layer * rows.layer;
    return rows;
}

/* The outputs of `layer`, which the next one reads; inference needs two of them at a time. */
static rnnkern_rows outputs_of(const struct job *job, int64_t layer)
{
    if (layer == job->layers - 1)
        return at_layer(job->y, layer);
    return sequence_between(job, job->sequence, job->call->keep == RNNKERN_KEEP_NONE ? layer % 2 : layer);
}

static rnnkern_rows masked_inputs(const struct job *job)
{
    const int64_t features = job->net->input_size;
    return (rnnkern_rows){.data = job->masked_x, .step = job->call->rows * features, .row = features};
}

static rnnkern_rows at_feature(rnnkern_rows rows, int64_t feature)
{
    if (rows.data)
        rows.data = (real *)rows.data + feature;
    return rows;
}

static inline real *row_at(rnnkern_rows rows, int64_t t, int64_t b)
{
    return (real *)rows.data + t * rows.step + b * rows.row;
}

static struct direction direction_at(const struct job *job, int64_t index)
{
    struct direction d = {.layer = index / job->directions, .index = index, .reverse = (int)(index % job->directions)};
    const real *at = job->packed;
    for (int64_t layer = 0; layer < d.layer; layer++)
        at += job->directions * packed_direction_size(job, layer);
    if (d.reverse)
        at += packed_direction_size(job, d.layer);
    d.bias = at;
    d.unit_weights = at + packed_bias_size(job);
    at = d.unit_weights + job->cell->unit_weights * job->part;
    real *transposed = job->transposed;
    for (int k = 0; k <= job->cell->passes; k++) {
        d.size[k] = operand_size(job, d.layer, k);
        d.matrix[k] = at;
        d.transposed[k] = transposed;
        at += packed_matrix_size(job, d.layer, k);
        if (transposed)
            transposed += transposed_matrix_size(job, d.layer, k);
    }
    if (job->call) {
        d.x = d.layer ? outputs_of(job, d.layer - 1) : job->masked_x ? masked_inputs(job) : job->x;
        d.y = at_feature(outputs_of(job, d.layer), d.reverse * job->output);
    }
    return d;
}

#endif
