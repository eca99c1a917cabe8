/* A problem: everything that one forward and backward call works on, made from a line of the table of cases.
 *
 * Its numbers come from a counter-based integer generator and are multiples of 2^-20, exact in both dtypes, so that any
 * language can repeat them (src/rnnkern/check.py does):
 *   mix(x)               splitmix64's output function of x + 0x9E3779B97F4A7C15
 *   draw(seed, array, i) = mix(((seed*64 + array) << 32) + i)
 *   element i            = ((draw >> 43) - 2^20) 2^-20, in -1..1, times the array's scale, a power of two
 * and results are compared by
 *   digest(elements)     = sum over i of mix(bits of element i + i*0xD1342543DE82EF95), modulo 2^64
 */
#ifndef TEST_PROBLEM_H
#define TEST_PROBLEM_H

#include "check.h"
#include "rnnkern.h"

#define MAX_WEIGHTS (3 * 2 * 4) /* layers, directions, kinds */

/* A case as the table and the digest file write it:
 *   cell L D I H B T bias lengths resets restart hx dropout
 * bias, hx: "bias", "hx" or "-". lengths: none; full (all T); ragged (from 1); zeros (from 0, with a 0 among them).
 * resets: none, sparse (about one a row), dense (half of all), all. restart: none, shared, rows. */
struct spec {
    const char *line;
    rnnkern_cell cell;
    int64_t layers, directions, input, hidden, rows, steps;
    int bias, hx;
    int lengths, resets; /* index of the word in the lists above */
    rnnkern_restart restart;
    double dropout;
};

extern const char *const case_table[]; /* lines; NULL ends them */
struct spec parse_case(const char *line);

/* Sequences are dense (T, B, F), behind a length they hold NaN. states[1] is the c of an LSTM. */
struct problem {
    struct pool *pool; /* owns the memory */
    rnnkern_net net;   /* its level is a mode's business */
    int64_t steps, rows;
    int64_t *lengths; /* NULL or (B,) */
    uint8_t *resets;  /* NULL or (T, B) */
    rnnkern_restart restart_kind;
    double dropout;
    uint64_t dropout_seed;
    void *x, *dy;
    rnnkern_states hx, restart, dhx_n;
    void *weights[MAX_WEIGHTS], *grads[MAX_WEIGHTS]; /* grads: what the gradients are added to */
};

/* Dense results. What was not asked for is NULL. */
struct result {
    void *y, *dx;
    rnnkern_states hx_n, dhx, drestart;
    void *grads[MAX_WEIGHTS];
};

/* How a problem is run. Results must not depend on it. */
struct mode {
    int level;
    rnnkern_keep keep; /* RNNKERN_KEEP_NONE: forward only */
    int64_t segment;
    int threads, backward_threads;
    rnnkern_split split;
    int rows_first; /* sequences as (B, T, F) with gaps between their rows, else dense (T, B, F) */
};
const char *describe_mode(const struct mode *mode); /* in a static buffer */

enum group { Y, HX_N, DX, DHX, DRESTART, GRADS, GROUPS };
extern const char *const group_name[GROUPS];

uint64_t mix(uint64_t x);
struct problem make_problem(struct pool *pool, const struct spec *spec, rnnkern_dtype dtype, uint64_t seed);

/* Runs forward, and backward unless mode->keep is RNNKERN_KEEP_NONE, in memory full of garbage; checks that guard zones,
 * gaps and inputs are untouched. The result belongs to `pool`. */
struct result run(struct pool *pool, const struct problem *p, const struct mode *mode);

/* The digest of a group of results; counts a failure where one is NaN. *given is 0 where there are none. */
uint64_t digest_of(const struct problem *p, const struct result *r, enum group group, int *given);

/* ---- sizes */

size_t item_size(const struct problem *p);
int64_t state_count(const struct problem *p);  /* L*D */
int64_t output_width(const struct problem *p); /* D*H */
int64_t weight_size(const struct problem *p, int index);
int64_t weight_count(const struct problem *p); /* L*D*4 */
int64_t restart_rows(const struct problem *p);
int64_t length_of(const struct problem *p, int64_t row);

#endif
