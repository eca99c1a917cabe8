/* What the numerical contract promises about a row and its time, to the last bit:
 *   a row gives the same alone, in a part of the batch and in the whole; padded and not;
 *   in one call and in pieces with the state handed over; with resets and as separate sequences.
 * Masks depend on a row's number and on the step in the whole sequence: where there are any, the part of a batch has to
 * begin with its first row, and a piece says at which step it does. */
#include "problem.h"

#include <stdio.h>
#include <string.h>

static const char *current_case;

static int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }

#define CHECK_BITS(a, b, bytes, what) \
    CHECK(!memcmp(a, b, bytes), "%s differs: %s, case %s", what, __func__, current_case)

/* ---- parts of problems */

struct slice {
    int64_t row, rows, step, steps, padding; /* padding: steps that are added behind */
};

/* Rows that a part may begin with. */
static int64_t first_rows(const struct problem *p, const struct mode *mode)
{
    return has_masks(p) && mode->keep != RNNKERN_KEEP_NONE ? min_of(1, p->call.rows) : p->call.rows;
}

static char *element(const struct problem *p, void *sequence, int64_t features, int64_t t, int64_t b)
{
    return (char *)sequence + (size_t)((t * p->call.rows + b) * features) * item_size(p);
}

static void *cut_sequence(const struct problem *p, struct problem *part, void *from, int64_t features, struct slice s)
{
    const size_t bytes = (size_t)features * item_size(p);
    char *to = pool_take(part->pool, (size_t)(part->call.steps * part->call.rows) * bytes);
    fill_block(to, (size_t)(part->call.steps * part->call.rows) * bytes, UNWRITTEN, item_size(p));
    for (int64_t t = 0; t < s.steps; t++)
        memcpy(element(part, to, features, t, 0), element(p, from, features, s.step + t, s.row),
               (size_t)s.rows * bytes);
    return to;
}

static void *cut_rows(const struct problem *p, struct pool *pool, void *from, int64_t width, struct slice s)
{
    const size_t bytes = (size_t)width * item_size(p);
    char *to = from ? pool_take(pool, (size_t)(state_count(p) * s.rows) * bytes) : NULL;
    for (int64_t k = 0; from && k < state_count(p); k++)
        memcpy(to + (size_t)(k * s.rows) * bytes, (char *)from + (size_t)(k * p->call.rows + s.row) * bytes,
               (size_t)s.rows * bytes);
    return to;
}

static rnnkern_states cut_states(const struct problem *p, struct pool *pool, rnnkern_states from, struct slice s)
{
    return (rnnkern_states){cut_rows(p, pool, from.h, h_width(p), s), cut_rows(p, pool, from.c, p->net.hidden_size, s)};
}

static const int64_t *cut_lengths(const struct problem *p, struct pool *pool, struct slice s)
{
    int64_t *lengths = p->call.lengths || s.padding ? pool_take(pool, (size_t)s.rows * sizeof *lengths) : NULL;
    for (int64_t b = 0; lengths && b < s.rows; b++) {
        const int64_t left = length_of(p, s.row + b) - s.step;
        lengths[b] = left < 0 ? 0 : min_of(left, s.steps);
    }
    return lengths;
}

static const uint8_t *cut_resets(const struct problem *p, struct pool *pool, struct slice s)
{
    const size_t bytes = (size_t)((s.steps + s.padding) * s.rows);
    uint8_t *resets = p->call.resets ? pool_take(pool, bytes) : NULL;
    if (resets)
        memset(resets, 1, bytes); /* marks behind a length are ignored */
    for (int64_t t = 0; resets && t < s.steps; t++)
        memcpy(resets + t * s.rows, p->call.resets + (s.step + t) * p->call.rows + s.row, (size_t)s.rows);
    return resets;
}

static struct problem cut(struct pool *pool, const struct problem *p, struct slice s)
{
    struct problem part = *p;
    part.pool = pool;
    part.call.rows = s.rows;
    part.call.steps = s.steps + s.padding;
    part.call.first_step += s.step;
    part.call.lengths = cut_lengths(p, pool, s);
    part.call.resets = cut_resets(p, pool, s);
    part.x = cut_sequence(p, &part, p->x, p->net.input_size, s);
    part.dy = cut_sequence(p, &part, p->dy, output_width(p), s);
    part.hx = cut_states(p, pool, p->hx, s);
    part.dhx_n = cut_states(p, pool, p->dhx_n, s);
    if (p->call.restart_kind == RNNKERN_RESTART_PER_ROW)
        part.restart = cut_states(p, pool, p->restart, s);
    return part;
}

/* ---- comparison of a part's results with those of the whole */

static void check_sequence(const struct problem *p, void *whole, const struct problem *part, void *got,
                           int64_t features, struct slice s, const char *what)
{
    const size_t bytes = (size_t)(s.rows * features) * item_size(p);
    for (int64_t t = 0; t < s.steps; t++)
        CHECK_BITS(element(part, got, features, t, 0), element(p, whole, features, s.step + t, s.row), bytes, what);
    const char *padding = element(part, got, features, s.steps, 0);
    for (size_t i = 0; i < (size_t)s.padding * bytes; i++)
        CHECK(!padding[i], "%s is not zero behind a length: case %s", what, current_case);
}

static void check_states(const struct problem *p, rnnkern_states whole, rnnkern_states got, struct slice s,
                         const char *what)
{
    struct pool pool = {NULL};
    const rnnkern_states want = cut_states(p, &pool, whole, s);
    const size_t bytes = (size_t)(state_count(p) * s.rows) * item_size(p);
    if (want.h)
        CHECK_BITS(want.h, got.h, bytes * (size_t)h_width(p), what);
    if (want.c)
        CHECK_BITS(want.c, got.c, bytes * (size_t)p->net.hidden_size, what);
    pool_release(&pool);
}

static void check_rows(const struct problem *p, const struct result *whole, const struct problem *part,
                       const struct result *got, struct slice s)
{
    check_sequence(p, whole->y, part, got->y, output_width(p), s, "y");
    check_states(p, whole->hx_n, got->hx_n, s, "hx_n");
    if (!whole->dx) /* inference */
        return;
    check_sequence(p, whole->dx, part, got->dx, p->net.input_size, s, "dx");
    check_states(p, whole->dhx, got->dhx, s, "dhx");
    if (p->call.restart_kind == RNNKERN_RESTART_PER_ROW)
        check_states(p, whole->drestart, got->drestart, s, "drestart");
}

/* ---- the promises */

static void test_alone(const struct problem *p, const struct result *whole, const struct mode *mode)
{
    static const int64_t sizes[] = {1, 5};
    for (int i = 0; i < 2; i++)
        for (int64_t b = 0, step = p->call.rows > 40 ? 37 : 1; b < first_rows(p, mode) && b + sizes[i] <= p->call.rows;
             b += step) {
            struct pool pool = {NULL};
            const struct slice s = {.row = b, .rows = sizes[i], .steps = p->call.steps};
            const struct problem part = cut(&pool, p, s);
            const struct result got = run(&pool, &part, mode);
            check_rows(p, whole, &part, &got, s);
            pool_release(&pool);
        }
}

static void test_padded(const struct problem *p, const struct result *whole, const struct mode *mode)
{
    struct pool pool = {NULL};
    const struct slice s = {.rows = p->call.rows, .steps = p->call.steps, .padding = 3};
    const struct problem part = cut(&pool, p, s);
    const struct result got = run(&pool, &part, mode);
    check_rows(p, whole, &part, &got, s);
    for (int i = 0; i < weight_count(p); i++)
        if (got.grads[i])
            CHECK_BITS(whole->grads[i], got.grads[i], (size_t)weight_size(p, i) * item_size(p), "grads");
    pool_release(&pool);
}

static void test_pieces(const struct problem *p, const struct result *whole, const struct mode *mode)
{
    static const int64_t sizes[] = {1, 3};
    struct mode pieces = *mode;
    if (!has_masks(p)) /* or inference is not the same */
        pieces.keep = RNNKERN_KEEP_NONE;
    for (int i = 0; i < 2 && p->net.num_directions == 1; i++) {
        struct pool pool = {NULL};
        rnnkern_states state = p->hx;
        for (int64_t t = 0; t < p->call.steps; t += sizes[i]) {
            const struct slice s = {.rows = p->call.rows, .step = t, .steps = min_of(sizes[i], p->call.steps - t)};
            struct problem part = cut(&pool, p, s);
            part.hx = state;
            const struct result got = run(&pool, &part, &pieces);
            check_sequence(p, whole->y, &part, got.y, output_width(p), s, "y");
            state = got.hx_n;
        }
        if (p->call.steps)
            check_states(p, whole->hx_n, state, (struct slice){.rows = p->call.rows}, "hx_n");
        pool_release(&pool);
    }
}

/* States of one row, (L*D, 1, width): of the directions that `use` names from `from`, of the others from `other`; NULL is
 * 0. */
static void *mix_states(const struct problem *p, struct pool *pool, int64_t width, const int use[2], void *from,
                        void *other)
{
    const size_t bytes = (size_t)width * item_size(p);
    char *to = pool_take(pool, (size_t)state_count(p) * bytes);
    for (int64_t k = 0; k < state_count(p); k++) {
        const char *source = use[k % p->net.num_directions] ? from : other;
        if (source)
            memcpy(to + (size_t)k * bytes, source + (size_t)k * bytes, bytes);
    }
    return to;
}

static rnnkern_states mixed(const struct problem *p, struct pool *pool, const int use[2], rnnkern_states from,
                            rnnkern_states other)
{
    return (rnnkern_states){.h = has_h(p) ? mix_states(p, pool, h_width(p), use, from.h, other.h) : NULL,
                            .c = has_c(p) ? mix_states(p, pool, p->net.hidden_size, use, from.c, other.c) : NULL};
}

static void check_state_of(const struct problem *p, void *whole, void *got, int64_t width, int64_t k, const char *what)
{
    const size_t bytes = (size_t)width * item_size(p);
    if (whole)
        CHECK_BITS((char *)whole + (size_t)k * bytes, (char *)got + (size_t)k * bytes, bytes, what);
}

static void check_direction(const struct problem *p, rnnkern_states whole, rnnkern_states got, int reverse,
                            const char *what)
{
    for (int64_t k = reverse; k < state_count(p); k += p->net.num_directions) {
        check_state_of(p, whole.h, got.h, h_width(p), k, what);
        check_state_of(p, whole.c, got.c, p->net.hidden_size, k, what);
    }
}

/* A row whose sequence is cut at its resets: no gradient crosses a border, and the pieces know nothing of each other. */
static void test_resets_of_row(const struct problem *q, const struct result *whole, const struct mode *mode)
{
    const rnnkern_states none = {NULL};
    const int64_t length = length_of(q, 0);
    for (int64_t t = 0, end; t < length; t = end) {
        for (end = t + 1; end < length && !q->call.resets[end]; end++)
            ;
        struct pool pool = {NULL};
        const struct slice s = {.rows = 1, .step = t, .steps = end - t};
        struct problem part = cut(&pool, q, s);
        const int first = t == 0, last = end == length;
        const int enters[2] = {first && !q->call.resets[0], last}, leaves[2] = {last, first};
        part.call.resets = NULL;
        part.call.lengths = NULL;
        part.hx = mixed(q, &pool, enters, q->hx, q->restart);
        part.dhx_n = mixed(q, &pool, leaves, q->dhx_n, none);
        const struct result got = run(&pool, &part, mode);
        check_sequence(q, whole->y, &part, got.y, output_width(q), s, "y");
        check_sequence(q, whole->dx, &part, got.dx, q->net.input_size, s, "dx");
        for (int reverse = 0; reverse < q->net.num_directions; reverse++) {
            if (leaves[reverse])
                check_direction(q, whole->hx_n, got.hx_n, reverse, "hx_n");
            if (enters[reverse])
                check_direction(q, whole->dhx, got.dhx, reverse, "dhx");
        }
        pool_release(&pool);
    }
}

static void test_resets(const struct problem *p, const struct mode *mode)
{
    for (int64_t b = 0, step = p->call.rows > 40 ? 37 : 3; p->call.resets && b < first_rows(p, mode); b += step) {
        struct pool pool = {NULL};
        const struct problem row = cut(&pool, p, (struct slice){.row = b, .rows = 1, .steps = p->call.steps});
        const struct result whole = run(&pool, &row, mode);
        test_resets_of_row(&row, &whole, mode);
        pool_release(&pool);
    }
}

/* The level of this case: each in turn. */
static int next_level(int number)
{
    int levels[8], n = 0;
    for (int level = 0; n < 8 && rnnkern_level_name(level); level++)
        if (rnnkern_level_supported(level))
            levels[n++] = level;
    return levels[number % n];
}

static void test_parts(const struct problem *p, const struct mode *mode)
{
    struct pool pool = {NULL};
    const struct result whole = run(&pool, p, mode);
    test_padded(p, &whole, mode);
    test_alone(p, &whole, mode);
    test_pieces(p, &whole, mode);
    if (mode->keep != RNNKERN_KEEP_NONE)
        test_resets(p, mode);
    pool_release(&pool);
}

static void forget_masks(struct problem *p)
{
    p->net.zoneout_h = p->net.zoneout_c = 0;
    p->call.dropout = p->call.input_dropout = p->call.output_dropout = 0;
    p->call.hidden_dropout = p->call.candidate_dropout = 0;
}

static void test_case(int number, rnnkern_dtype dtype)
{
    struct pool pool = {NULL};
    const struct spec spec = parse_case(case_table[number]);
    struct problem p = make_problem(&pool, &spec, dtype, (uint64_t)number);
    const struct mode mode = {.level = next_level(number / 2 + (int)dtype),
                              .keep = RNNKERN_KEEP_GATES,
                              .segment = 1,
                              .threads = 1,
                              .backward_threads = 1,
                              .rows_first = number % 2};
    current_case = spec.line;
    test_parts(&p, &mode);
    if (has_masks(&p)) {
        struct mode inference = mode;
        inference.keep = RNNKERN_KEEP_NONE;
        test_parts(&p, &inference);
        forget_masks(&p);
        test_parts(&p, &mode);
    }
    pool_release(&pool);
}

int main(void)
{
    for (int number = 0; case_table[number]; number++) {
        test_case(number, RNNKERN_FLOAT32);
        test_case(number, RNNKERN_FLOAT64);
    }
    printf("contract: %d failures\n", failures());
    return failures() > 0;
}
