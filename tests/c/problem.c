#include "problem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const cell_names[] = {"rnn_tanh", "rnn_relu", "lstm", "gru", "gru_before"};
static const char *const length_names[] = {"none", "full", "ragged", "zeros"};
static const char *const reset_names[] = {"none", "sparse", "dense", "all"};
static const char *const restart_names[] = {"none", "shared", "rows"};
const char *const group_name[GROUPS] = {"y", "hx_n", "dx", "dhx", "drestart", "grads"};

/* Nearly every pair of values of two columns meets in some line; the last block has what needs more rows or units:
 * several chunks and runs, more than 256 rows a step, more panels than threads, and nothing at all. */
const char *const case_table[] = {
    /* cell   L D  I  H  B  T bias lengths resets restart hx dropout */
    "rnn_tanh 2 2 16 9 17 1 bias ragged sparse shared hx 0",
    "rnn_tanh 1 2 17 8 16 2 - zeros sparse shared hx 0",
    "rnn_tanh 1 1 65 15 17 2 - zeros dense rows - 0",
    "rnn_tanh 1 1 33 1 3 3 - zeros none none - 0",
    "rnn_tanh 2 1 65 31 13 3 - zeros all none - 0.25",
    "rnn_tanh 3 2 3 65 1 3 bias zeros sparse shared hx 0.25",
    "rnn_tanh 2 1 9 33 7 5 bias zeros dense shared - 0",
    "rnn_tanh 2 2 3 8 2 7 bias none none none - 0.25",
    "rnn_tanh 3 1 31 7 17 11 - none none none hx 0.25",
    "rnn_tanh 3 1 8 16 5 19 - full none none hx 0",
    "rnn_tanh 2 1 1 3 33 19 bias zeros sparse rows - 0",
    "rnn_relu 1 1 65 65 33 1 bias none dense none hx 0",
    "rnn_relu 3 2 1 15 16 3 bias full sparse rows hx 0.25",
    "rnn_relu 1 2 8 33 13 3 - zeros sparse rows hx 0",
    "rnn_relu 2 2 1 7 1 5 - full none none - 0",
    "rnn_relu 1 2 15 16 2 7 - zeros sparse rows hx 0",
    "rnn_relu 2 1 15 16 16 11 bias ragged all shared - 0",
    "rnn_relu 3 1 9 9 16 19 bias none sparse rows hx 0.25",
    "lstm 3 2 17 1 3 1 bias full dense shared hx 0.25",
    "lstm 2 1 7 17 5 2 - full sparse none - 0.25",
    "lstm 3 2 9 33 1 2 - none all none hx 0.25",
    "lstm 3 1 31 3 5 7 - zeros dense rows - 0.25",
    "lstm 2 2 8 7 3 7 - ragged all none hx 0.25",
    "lstm 1 2 17 9 2 11 - zeros none none - 0",
    "lstm 1 2 7 3 17 19 - full all shared hx 0",
    "gru 3 2 15 3 3 1 - none none none hx 0",
    "gru 3 1 1 33 2 1 bias ragged dense shared hx 0",
    "gru 2 2 8 31 5 2 bias none sparse shared hx 0",
    "gru 1 2 9 7 5 3 bias ragged dense shared hx 0",
    "gru 3 1 17 9 7 5 - ragged dense rows hx 0.25",
    "gru 3 1 33 1 13 5 bias none sparse shared - 0.25",
    "gru 1 1 16 17 7 11 - full all none - 0",
    "gru 1 1 31 15 1 19 bias ragged all none - 0",
    "gru 3 1 3 8 13 19 - none all rows hx 0",
    "gru_before 3 1 16 7 13 1 bias zeros sparse rows - 0",
    "gru_before 3 1 7 16 7 1 bias none sparse shared - 0.25",
    "gru_before 3 2 65 3 13 2 bias ragged none none - 0.25",
    "gru_before 3 1 8 9 33 5 - full all rows - 0.25",
    "gru_before 1 1 15 8 33 5 - full dense none - 0",
    "gru_before 1 1 1 65 2 7 - full all rows - 0",
    "gru_before 2 1 17 15 3 7 bias none sparse shared hx 0.25",
    "gru_before 1 2 3 31 3 11 - ragged dense rows hx 0",
    "gru_before 2 2 31 1 33 11 - ragged sparse shared - 0.25",
    "gru_before 2 2 33 17 1 19 bias zeros dense rows hx 0.25",

    "rnn_tanh 1 2 3 9 33 40 bias none sparse shared hx 0",
    "rnn_tanh 1 1 5 129 2 3 bias none none none hx 0",
    "rnn_relu 2 1 2 8 33 40 - ragged sparse rows - 0",
    "rnn_relu 1 1 3 5 270 5 bias none sparse shared hx 0",
    "lstm 2 2 3 9 33 40 bias zeros sparse shared hx 0.25",
    "lstm 1 1 4 17 33 40 bias none none none hx 0",
    "lstm 1 2 2 3 300 4 bias zeros dense shared - 0",
    "lstm 1 2 9 129 2 3 bias none sparse none hx 0",
    "lstm 2 2 5 9 3 0 bias none none none hx 0",
    "gru 1 2 3 9 33 40 bias none sparse shared hx 0",
    "gru 1 2 3 8 0 4 bias none none none - 0",
    "gru 2 1 3 100 3 3 bias zeros sparse rows hx 0.5",
    "gru_before 1 1 5 17 33 35 bias none sparse shared hx 0",
    "gru_before 1 2 7 100 3 4 bias ragged none none hx 0",
    NULL,
};

static int index_of(const char *word, const char *const *names, int n)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(word, names[i]))
            return i;
    fprintf(stderr, "unknown word %s in the table of cases\n", word);
    exit(2);
}

struct spec parse_case(const char *line)
{
    char cell[16], bias[8], lengths[8], resets[8], restart[8], hx[8];
    long sizes[6];
    struct spec s = {.line = line};
    const int n = sscanf(line, "%15s %ld %ld %ld %ld %ld %ld %7s %7s %7s %7s %7s %lf", cell, &sizes[0], &sizes[1],
                         &sizes[2], &sizes[3], &sizes[4], &sizes[5], bias, lengths, resets, restart, hx, &s.dropout);
    if (n != 13) {
        fprintf(stderr, "bad case: %s\n", line);
        exit(2);
    }
    s.cell = (rnnkern_cell)index_of(cell, cell_names, RNNKERN_CELLS);
    s.layers = sizes[0];
    s.directions = sizes[1];
    s.input = sizes[2];
    s.hidden = sizes[3];
    s.rows = sizes[4];
    s.steps = sizes[5];
    s.bias = !strcmp(bias, "bias");
    s.lengths = index_of(lengths, length_names, 4);
    s.resets = index_of(resets, reset_names, 4);
    s.restart = (rnnkern_restart)index_of(restart, restart_names, 3);
    s.hx = !strcmp(hx, "hx");
    return s;
}

/* ---- sizes */

size_t item_size(const struct problem *p) { return p->net.dtype == RNNKERN_FLOAT32 ? sizeof(float) : sizeof(double); }
int64_t state_count(const struct problem *p) { return p->net.num_layers * p->net.num_directions; }
int64_t output_width(const struct problem *p) { return p->net.num_directions * p->net.hidden_size; }
int64_t weight_count(const struct problem *p) { return state_count(p) * 4; }
int64_t restart_rows(const struct problem *p) { return p->restart_kind == RNNKERN_RESTART_PER_ROW ? p->rows : 1; }
int64_t length_of(const struct problem *p, int64_t row) { return p->lengths ? p->lengths[row] : p->steps; }

static int64_t gate_rows(const struct problem *p)
{
    static const int gates[RNNKERN_CELLS] = {1, 1, 4, 3, 3};
    return gates[p->net.cell] * p->net.hidden_size;
}

static int64_t fan_in(const struct problem *p, int index)
{
    if (index % 4 > 1)
        return 1;
    return index % 4 == 1                      ? p->net.hidden_size
           : index / 4 < p->net.num_directions ? p->net.input_size
                                               : output_width(p);
}

int64_t weight_size(const struct problem *p, int index) { return gate_rows(p) * fan_in(p, index); }

/* ---- numbers */

/* Numbers of the generator's arrays; weights and the values that gradients are added to come last. */
enum {
    X,
    HX,
    RESTART = HX + 2,
    DY = RESTART + 2,
    DHX_N,
    LENGTHS = DHX_N + 2,
    RESETS,
    DROPOUT,
    WEIGHTS = 16,
    TOTALS = 40
};

uint64_t mix(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

static uint64_t draw(uint64_t seed, int array, int64_t i)
{
    return mix(((seed * 64 + (uint64_t)array) << 32) + (uint64_t)i);
}

static void put(const struct problem *p, void *block, int64_t i, double value)
{
    if (p->net.dtype == RNNKERN_FLOAT32)
        ((float *)block)[i] = (float)value;
    else
        ((double *)block)[i] = value;
}

static void *numbers(const struct problem *p, uint64_t seed, int array, int64_t count, double scale)
{
    void *block = pool_take_unaligned(p->pool, (size_t)count * item_size(p), item_size(p));
    for (int64_t i = 0; i < count; i++) {
        const int64_t n = (int64_t)(draw(seed, array, i) >> 43) - (1 << 20);
        put(p, block, i, (double)n * 0x1p-20 * scale);
    }
    return block;
}

static rnnkern_states states(const struct problem *p, uint64_t seed, int array, int64_t rows)
{
    const int64_t count = state_count(p) * rows * p->net.hidden_size;
    rnnkern_states s = {.h = numbers(p, seed, array, count, 1)};
    if (p->net.cell == RNNKERN_LSTM)
        s.c = numbers(p, seed, array + 1, count, 1);
    return s;
}

/* About 2/sqrt(fan in): neither dead nor saturated gates. */
static double weight_scale(const struct problem *p, int index)
{
    double scale = index % 4 > 1 ? 0.5 : 1;
    while (scale * scale * (double)fan_in(p, index) > 4)
        scale /= 2;
    return scale;
}

static void forget_padding(const struct problem *p, void *sequence, int64_t features)
{
    for (int64_t t = 0; t < p->steps; t++)
        for (int64_t b = 0; b < p->rows; b++)
            if (t >= length_of(p, b))
                fill_block((char *)sequence + (size_t)((t * p->rows + b) * features) * item_size(p),
                           (size_t)features * item_size(p), UNWRITTEN, item_size(p));
}

struct problem make_problem(struct pool *pool, const struct spec *s, rnnkern_dtype dtype, uint64_t seed)
{
    struct problem p = {.pool = pool,
                        .steps = s->steps,
                        .rows = s->rows,
                        .restart_kind = s->restart,
                        .dropout = s->dropout,
                        .net = {.cell = s->cell,
                                .dtype = dtype,
                                .bias = s->bias,
                                .input_size = s->input,
                                .hidden_size = s->hidden,
                                .num_layers = s->layers,
                                .num_directions = s->directions}};
    const int64_t T = s->steps, B = s->rows;
    p.dropout_seed = draw(seed, DROPOUT, 0);
    if (s->lengths) {
        p.lengths = pool_take(pool, (size_t)B * sizeof *p.lengths);
        for (int64_t b = 0; b < B; b++) {
            const uint64_t n = draw(seed, LENGTHS, b) >> 32, ragged = 1 + n % (uint64_t)T,
                           zeros = n % (uint64_t)(T + 1);
            p.lengths[b] = s->lengths == 1 ? T : (int64_t)(s->lengths == 2 ? ragged : b == B / 2 ? 0 : zeros);
        }
    }
    if (s->resets) {
        p.resets = pool_take(pool, (size_t)(T * B));
        const uint64_t every = s->resets == 1 ? (uint64_t)T : s->resets == 2 ? 2 : 1;
        for (int64_t i = 0; i < T * B; i++)
            p.resets[i] = (draw(seed, RESETS, i) >> 32) % every == 0;
    }
    p.x = numbers(&p, seed, X, T * B * s->input, 1);
    p.dy = numbers(&p, seed, DY, T * B * output_width(&p), 1);
    forget_padding(&p, p.x, s->input);
    forget_padding(&p, p.dy, output_width(&p));
    if (s->hx)
        p.hx = states(&p, seed, HX, B);
    if (s->restart)
        p.restart = states(&p, seed, RESTART, restart_rows(&p));
    p.dhx_n = states(&p, seed, DHX_N, B);
    for (int i = 0; i < weight_count(&p); i++)
        if (i % 4 < 2 || s->bias) {
            p.weights[i] = numbers(&p, seed, WEIGHTS + i, weight_size(&p, i), weight_scale(&p, i));
            p.grads[i] = numbers(&p, seed, TOTALS + i, weight_size(&p, i), 1);
        }
    return p;
}

/* ---- running */

const char *describe_mode(const struct mode *mode)
{
    static const char *const keep[] = {"none", "gates", "states", "segments"}, *const split[] = {"auto", "rows",
                                                                                                 "units"};
    static _Thread_local char text[120];
    snprintf(text, sizeof text, "level %s, keep %s (%d), threads %d then %d, split %s, %s",
             rnnkern_level_name(mode->level), keep[mode->keep], (int)mode->segment, mode->threads,
             mode->backward_threads, split[mode->split], mode->rows_first ? "rows first" : "time first");
    return text;
}

/* A sequence as the mode wants it. Gaps hold NaN. */
struct laid_out {
    rnnkern_rows rows;
    size_t bytes;
};

#define GAP 3 /* elements behind each row of a sequence that is laid out rows first */

static struct laid_out lay_out(struct pool *pool, const struct problem *p, const struct mode *mode, int64_t features)
{
    const int64_t width = features + (mode->rows_first ? GAP : 0);
    struct laid_out s = {.bytes = (size_t)(p->steps * p->rows * width) * item_size(p)};
    s.rows = (rnnkern_rows){.step = mode->rows_first ? width : p->rows * width,
                            .row = mode->rows_first ? p->steps * width : width};
    s.rows.data = pool_take_unaligned(pool, s.bytes, mode->rows_first ? 0 : item_size(p));
    fill_block(s.rows.data, s.bytes, UNWRITTEN, item_size(p));
    return s;
}

static char *row_of(const struct problem *p, rnnkern_rows s, int64_t t, int64_t b)
{
    return (char *)s.data + (t * s.step + b * s.row) * (int64_t)item_size(p);
}

static struct laid_out read_in(struct pool *pool, const struct problem *p, const struct mode *mode, const void *dense,
                               int64_t features)
{
    const struct laid_out s = lay_out(pool, p, mode, features);
    const size_t bytes = (size_t)features * item_size(p);
    for (int64_t t = 0; t < p->steps; t++)
        for (int64_t b = 0; b < p->rows; b++)
            memcpy(row_of(p, s.rows, t, b), (const char *)dense + (size_t)(t * p->rows + b) * bytes, bytes);
    return s;
}

static void *read_out(struct pool *pool, const struct problem *p, const struct mode *mode, rnnkern_rows s,
                      int64_t features)
{
    const size_t bytes = (size_t)features * item_size(p), gap = mode->rows_first ? GAP * item_size(p) : 0;
    char *dense = pool_take(pool, (size_t)(p->steps * p->rows) * bytes);
    for (int64_t t = 0; t < p->steps; t++)
        for (int64_t b = 0; b < p->rows; b++) {
            const char *row = row_of(p, s, t, b);
            memcpy(dense + (size_t)(t * p->rows + b) * bytes, row, bytes);
            for (size_t i = 0; i < gap; i++)
                CHECK((unsigned char)row[bytes + i] == 0xFF, "a gap between rows was written to: %s",
                      describe_mode(mode));
        }
    return dense;
}

static void *block_of(struct pool *pool, const struct problem *p, size_t bytes, enum fill fill)
{
    void *block = pool_take(pool, bytes);
    fill_block(block, bytes, fill, item_size(p));
    return block;
}

static rnnkern_states new_states(struct pool *pool, const struct problem *p, int64_t rows)
{
    const size_t bytes = (size_t)(state_count(p) * rows * p->net.hidden_size) * item_size(p);
    rnnkern_states s = {.h = block_of(pool, p, bytes, UNWRITTEN)};
    if (p->net.cell == RNNKERN_LSTM)
        s.c = block_of(pool, p, bytes, UNWRITTEN);
    return s;
}

static uint64_t sum_of_bytes(const void *block, size_t bytes)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < bytes; i++)
        sum = (sum ^ ((const unsigned char *)block)[i]) * 0x100000001B3u;
    return sum;
}

struct result run(struct pool *pool, const struct problem *p, const struct mode *mode)
{
    struct pool scratch = {NULL};
    struct result r = {NULL};
    rnnkern_net net = p->net;
    net.level = mode->level;
    rnnkern_call call = {.steps = p->steps,
                         .rows = p->rows,
                         .lengths = p->lengths,
                         .resets = p->resets,
                         .restart_kind = p->restart_kind,
                         .keep = mode->keep,
                         .segment = mode->segment,
                         .dropout = p->dropout,
                         .seed = p->dropout_seed,
                         .threads = mode->threads,
                         .split = mode->split};
    const int records = mode->keep != RNNKERN_KEEP_NONE;
    const struct laid_out x_in = read_in(&scratch, p, mode, p->x, net.input_size);
    const rnnkern_rows x = x_in.rows;
    const uint64_t x_sum = sum_of_bytes(x.data, x_in.bytes);
    const rnnkern_rows y = lay_out(&scratch, p, mode, output_width(p)).rows;
    rnnkern_sizes_t sizes;
    rnnkern_status status = rnnkern_sizes(&net, &call, &sizes);
    CHECK(status == RNNKERN_OK, "rnnkern_sizes returns %d", status);
    void *packed = block_of(&scratch, p, sizes.packed, GARBAGE);
    void *tape = records ? block_of(&scratch, p, sizes.tape, GARBAGE) : NULL;
    status = rnnkern_pack(&net, (const void *const *)p->weights, packed);
    CHECK(status == RNNKERN_OK, "rnnkern_pack returns %d", status);
    const uint64_t packed_sum = sum_of_bytes(packed, sizes.packed);
    r.hx_n = new_states(pool, p, p->rows);
    const size_t one_each = (size_t)(state_count(p) * p->steps * p->rows) * item_size(p);
    if (mode->rows_first)
        call.trace = block_of(&scratch, p, 6 * one_each * (size_t)net.hidden_size, GARBAGE);
    status = rnnkern_forward(&net, &call, packed, x, p->hx, p->restart, y, r.hx_n, tape,
                             block_of(&scratch, p, sizes.forward_workspace, GARBAGE));
    CHECK(status == RNNKERN_OK, "rnnkern_forward returns %d", status);
    r.y = read_out(pool, p, mode, y, output_width(p));

    if (records) {
        if (mode->rows_first) /* not always: its barriers could hide races */
            call.state_norms = block_of(&scratch, p, 2 * one_each, GARBAGE);
        call.threads = mode->backward_threads;
        rnnkern_sizes(&net, &call, &sizes);
        const rnnkern_rows dy = read_in(&scratch, p, mode, p->dy, output_width(p)).rows;
        const rnnkern_rows dx = lay_out(&scratch, p, mode, net.input_size).rows;
        r.dhx = new_states(pool, p, p->rows);
        if (p->restart.h)
            r.drestart = new_states(pool, p, restart_rows(p));
        for (int i = 0; i < weight_count(p); i++)
            if (p->grads[i]) {
                const size_t bytes = (size_t)weight_size(p, i) * item_size(p);
                r.grads[i] = memcpy(pool_take_unaligned(pool, bytes, item_size(p)), p->grads[i], bytes);
            }
        status = rnnkern_backward(&net, &call, packed, x, tape, dy, p->dhx_n, dx, r.dhx, r.drestart, r.grads,
                                  block_of(&scratch, p, sizes.backward_workspace, GARBAGE));
        CHECK(status == RNNKERN_OK, "rnnkern_backward returns %d", status);
        r.dx = read_out(pool, p, mode, dx, net.input_size);
    }
    CHECK(sum_of_bytes(x.data, x_in.bytes) == x_sum, "x was written to: %s", describe_mode(mode));
    CHECK(sum_of_bytes(packed, sizes.packed) == packed_sum, "packed was written to: %s", describe_mode(mode));
    CHECK(pool_intact(&scratch) && pool_intact(pool) && pool_intact(p->pool), "a guard zone was written to: %s",
          describe_mode(mode));
    pool_release(&scratch);
    return r;
}

/* ---- digests */

struct digest {
    uint64_t sum, count;
};

static void add_elements(const struct problem *p, struct digest *d, const void *block, int64_t count)
{
    for (int64_t i = 0; block && i < count; i++, d->count++) {
        uint64_t bits;
        if (p->net.dtype == RNNKERN_FLOAT32) {
            uint32_t single;
            memcpy(&single, (const float *)block + i, sizeof single);
            bits = single;
            CHECK((single & 0x7FFFFFFFu) <= 0x7F800000u, "a result is NaN");
        } else {
            memcpy(&bits, (const double *)block + i, sizeof bits);
            CHECK((bits & INT64_MAX) <= 0x7FF0000000000000u, "a result is NaN");
        }
        d->sum += mix(bits + d->count * 0xD1342543DE82EF95u);
    }
}

static void add_states(const struct problem *p, struct digest *d, rnnkern_states s, int64_t rows)
{
    const int64_t count = state_count(p) * rows * p->net.hidden_size;
    add_elements(p, d, s.h, count);
    add_elements(p, d, s.c, count);
}

uint64_t digest_of(const struct problem *p, const struct result *r, enum group group, int *given)
{
    struct digest d = {0, 0};
    const int64_t rows = p->steps * p->rows;
    *given = 1;
    switch (group) {
    case Y:
        add_elements(p, &d, r->y, rows * output_width(p));
        break;
    case HX_N:
        add_states(p, &d, r->hx_n, p->rows);
        break;
    case DX:
        *given = r->dx != NULL;
        add_elements(p, &d, r->dx, rows * p->net.input_size);
        break;
    case DHX:
        *given = r->dhx.h != NULL;
        add_states(p, &d, r->dhx, p->rows);
        break;
    case DRESTART:
        *given = r->drestart.h != NULL;
        add_states(p, &d, r->drestart, restart_rows(p));
        break;
    case GRADS:
        *given = r->grads[0] != NULL;
        for (int i = 0; i < weight_count(p); i++)
            add_elements(p, &d, r->grads[i], weight_size(p, i));
        break;
    case GROUPS:
        break;
    }
    return d.sum;
}
