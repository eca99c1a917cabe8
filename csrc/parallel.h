/* A team of threads. The only seam between the kernels and the operating system's threads. */
#ifndef RK_PARALLEL_H
#define RK_PARALLEL_H

#include <stdint.h>

struct rk_member {
    int index, count; /* share `index` of `count` is this member's */
    int slot;         /* which of the threads it is, of those asked for; 0 is the caller */
};

typedef void rk_work(void *context, const struct rk_member *member);

/* Both return when all work has ended. While another caller uses the team, work runs once, as member 0 of 1. It runs with
 * subnormals flushed to zero. */

/* Runs work once on each of up to `threads` members, who meet at barriers; on the caller alone where cores lack.
 * grace: the ns that the caller waits for workers to come before it begins with those that have. */
void rk_team_run(int threads, int64_t grace, rk_work *work, void *context);

/* Deals `count` shares of work, none of which waits for another, to up to `threads` threads. The caller begins at once;
 * workers join when they come.
 * time: the ns that one thread would take, about. Too short a call leaves workers asleep, unless one follows another. */
void rk_team_deal(int threads, int count, int64_t time, rk_work *work, void *context);

/* Whether a call before lost time to a lack of cores: small shares then lose less. */
int rk_team_lacks_cores(void);

/* For tests: on, the team runs as if cores lacked, and even where the caller would do better alone. */
void rk_team_insist(int on);

/* Every member must reach it before any goes on. */
void rk_barrier(const struct rk_member *member);

#endif
