/* A problem: everything that one forward and backward call works on, made from a line of the table of cases.
 *
 * Its numbers come from a counter-based integer generator and are exact in both dtypes, so that any language can repeat
 * them (src/rnnkern/check.py does):
 *   mix(x)               splitmix64's output function of x + 0x9E3779B97F4A7C15
 *   draw(seed, array, i) = mix(((seed*64 + array) << 32) + i)
 *   element i            = ((draw >> 43) - 2^20) 2^-20, in -1..1, times the array's scale, a power of two
 * Weights of kind k (rnnkern_weight) of the n-th layer and direction are the elements from (k/4) 2^24 on of array
 * 16 + 4n + k%4, what their gradients are added to those of array 40 + 4n + k%4. Scales: of weight_ih, weight_hh and
 * weight_hr the largest that is at most 1 and 2/sqrt(columns), where IndRNN's weight_hh counts as a column; of other
 * vectors 1/2; of gains of a normalisation 1/4, and 1 is added.
 * Results are compared by
 *   digest(elements)     = sum over i of mix(bits of element i + i*0xD1342543DE82EF95), modulo 2^64
 */
#ifndef TEST_PROBLEM_H
#define TEST_PROBLEM_H

#include "check.h"
#include "rnnkern.h"

#define MAX_WEIGHTS (3 * 2 * RNNKERN_WEIGHTS) /* layers, directions, kinds */

/* A case as the table and the digest file write it:
 *   cell L D I H B T bias lengths resets restart hx dropout options
 * cell: a name; rnn_tanh and rnn_relu are rnn with this activation.
 * bias, hx: "bias", "hx" or "-". lengths: none; full (all T); ragged (from 1); zeros (from 0, with a 0 among them).
 * resets: none, sparse (about one a row), dense (half of all), all. restart: none, shared, rows.
 * options: "-", or words with commas between them, p being a probability:
 *   proj=N peephole input forget (coupled gates) norm clip=X cellclip=X zh=p zc=p (zoneout)
 *   gate=F candidate=F output=F, an activation F being NAME, NAME:ALPHA or NAME:ALPHA:BETA
 *   hidden=p cand=p in=p xout=p (dropout of h in U h, candidate, x, y) variational first=N (first_step) */
struct spec {
    const char *line;
    rnnkern_net net;     /* without dtype and level */
    rnnkern_call call;   /* sizes and masks */
    int lengths, resets; /* index of the word in the lists above */
    int hx;
};

extern const char *const case_table[]; /* lines; NULL ends them */
struct spec parse_case(const char *line);

/* Sequences are dense (T, B, F), behind a length they hold NaN. States that the cell has not got are NULL. */
struct problem {
    struct pool *pool; /* owns the memory */
    rnnkern_net net;   /* its level is a mode's business, */
    rnnkern_call call; /* as are threads, split and what is kept */
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
int has_masks(const struct problem *p); /* whether training draws any, so that inference differs */
struct problem make_problem(struct pool *pool, const struct spec *spec, rnnkern_dtype dtype, uint64_t seed);

/* Runs forward, and backward unless mode->keep is RNNKERN_KEEP_NONE, in memory full of garbage; checks that guard zones,
 * gaps and inputs are untouched. The result belongs to `pool`. */
struct result run(struct pool *pool, const struct problem *p, const struct mode *mode);

/* The digest of a group of results; counts a failure where one is NaN. *given is 0 where there are none. */
uint64_t digest_of(const struct problem *p, const struct result *r, enum group group, int *given);

/* ---- sizes */

size_t item_size(const struct problem *p);
int64_t state_count(const struct problem *p);            /* L*D */
int64_t h_width(const struct problem *p);                /* P */
int64_t output_width(const struct problem *p);           /* D*P */
int64_t weight_size(const struct problem *p, int index); /* 0 where the net has none */
int64_t weight_count(const struct problem *p);           /* L*D*RNNKERN_WEIGHTS */
int has_h(const struct problem *p);                      /* as a state */
int has_c(const struct problem *p);
int64_t restart_rows(const struct problem *p);
int64_t length_of(const struct problem *p, int64_t row);

#endif
