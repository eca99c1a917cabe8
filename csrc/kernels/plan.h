/* Which rows are active when, where their data lies, and who works on them.
 *
 * Rows are stably sorted by length, longest first, so the active rows of a step are a prefix in both directions
 * (forward, rows leave; in the reverse direction they join). Sorted position j is row order[j] of the caller.
 *
 * A direction counts its steps by q in the order of processing: t = q forward, t = steps-1-q reverse. The R real rows
 * (t, j) of a direction are stored in the order in which backward meets them: q falling, j rising. So the rows of step
 * q lie at storage rows stored(q+1) .. stored(q), a run of the weight gradient is a range of storage rows, and
 * a part of the sequence (a chunk, a segment) is a contiguous range too.
 *
 *   storage row   0 ..                                         R
 *   step q        steps-1 | steps-2 | ...          | 1  | 0    |       stored(steps) = 0, stored(0) = R
 */
#ifndef RK_PLAN_H
#define RK_PLAN_H

struct plan {
    int64_t steps, rows, real_rows; /* longest length, B, R */
    int64_t *before;                /* [steps+2] real rows of the steps before t; the last is scratch of plan_rows */
    int64_t *length;                /* [rows] by sorted position, falling */
    int32_t *order;                 /* [rows] sorted position -> row */
    const uint8_t *resets;          /* (T, rows) or NULL */
};

static inline int64_t stored(const struct plan *p, int reverse, int64_t q)
{
    return reverse ? p->before[p->steps - q] : p->real_rows - p->before[q];
}
static inline int64_t step_of(const struct plan *p, int reverse, int64_t q) { return reverse ? p->steps - 1 - q : q; }
static inline int64_t active(const struct plan *p, int reverse, int64_t q)
{
    return stored(p, reverse, q) - stored(p, reverse, q + 1);
}

/* Does the row at sorted position j restart before this direction processes step t? */
static inline int restarts(const struct plan *p, int reverse, int64_t t, int64_t j)
{
    int64_t border = t + reverse;
    return p->resets && border < p->length[j] && p->resets[border * p->rows + p->order[j]];
}

/* The q whose rows hold storage row r. */
static int64_t step_holding(const struct plan *p, int reverse, int64_t r)
{
    int64_t low = 0, high = p->steps - 1; /* stored(high+1) <= r < stored(low) */
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (stored(p, reverse, middle + 1) <= r)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static int64_t call_length(const rnnkern_call *call, int64_t b)
{
    return call->lengths ? call->lengths[b] : call->steps;
}

static void plan_sizes(struct plan *p, const rnnkern_call *call)
{
    p->rows = call->rows;
    p->resets = call->resets;
    for (int64_t b = 0; b < call->rows; b++) {
        const int64_t n = call_length(call, b);
        p->steps = n > p->steps ? n : p->steps;
        p->real_rows += n;
    }
}

/* Fills the arrays, a counting sort. */
static void plan_rows(struct plan *p, const rnnkern_call *call)
{
    int64_t *before = p->before, *equal = before + 1; /* equal[n], n = 0..steps: rows of length n */
    memset(before, 0, (size_t)(p->steps + 2) * sizeof *before);
    for (int64_t b = 0; b < p->rows; b++)
        equal[call_length(call, b)]++;
    for (int64_t n = p->steps, longer = 0; n >= 0; n--) { /* from here on equal[n]: where rows of length n go */
        const int64_t rows = equal[n];
        equal[n] = longer;
        longer += rows;
    }
    for (int64_t b = 0; b < p->rows; b++) {
        const int64_t n = call_length(call, b), j = equal[n]++;
        p->order[j] = (int32_t)b;
        p->length[j] = n;
    }
    /* Now equal[n] counts the rows of length >= n, so step t has equal[t+1] active rows; before[t+1] is that slot's left
     * neighbour and has been read when it is written. */
    for (int64_t t = 0; t < p->steps; t++)
        before[t + 1] = before[t] + equal[t + 1];
}

/* A bump allocator over a block of the caller's; with base NULL it only measures. api.c has bounded the sizes. */
struct arena {
    char *base;
    size_t used;
};

static void *arena_take(struct arena *a, int64_t count, size_t size)
{
    void *at = a->base ? a->base + a->used : NULL;
    a->used += ((size_t)count * size + RNNKERN_ALIGNMENT - 1) / RNNKERN_ALIGNMENT * RNNKERN_ALIGNMENT;
    return at;
}

/* What a member of the team works on: rows first, first+stride, ... of each step, and a range of panels. */
struct part {
    struct rk_member member;
    int64_t first, stride;
    int split_units;
};

static inline int64_t own_rows(const struct part *part, int64_t n)
{
    return (n - part->first + part->stride - 1) / part->stride;
}
static inline struct range own_share(const struct part *part, int64_t n) /* of n panels or tiles */
{
    return (struct range){n * part->member.index / part->member.count,
                          n * (part->member.index + 1) / part->member.count};
}
static inline struct range own_panels(const struct part *part, int64_t n) /* of n in each step */
{
    return part->split_units ? own_share(part, n) : (struct range){0, n};
}

/* Members that split units read each other's units; members that split rows do not. */
static inline void sync_units(const struct part *part)
{
    if (part->split_units)
        rk_barrier(&part->member);
}

#endif
