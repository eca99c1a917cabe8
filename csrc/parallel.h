/* A team of threads. The only seam between the kernels and the operating system's threads. */
#ifndef RK_PARALLEL_H
#define RK_PARALLEL_H

#include <stdint.h>

struct rk_member {
    int index, count; /* member index of count; index 0 is the caller */
};

typedef void rk_work(void *context, const struct rk_member *member);

/* Runs work on up to `threads` members, the caller among them, and returns when all have ended. With one member, while
 * another caller uses the team, or where cores lack, work runs once, as member 0 of 1. Members run with subnormals
 * flushed to zero.
 * grace: the ns that the caller waits for workers to come before it begins with those that have. */
void rk_team_run(int threads, int64_t grace, rk_work *work, void *context);

/* For tests: on, the team runs even where it lacks cores and the caller would do better alone. */
void rk_team_insist(int on);

/* Every member must reach it before any goes on. */
void rk_barrier(const struct rk_member *member);

#endif
