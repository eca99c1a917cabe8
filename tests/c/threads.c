/* The team of threads: it grows when more are asked for, serves smaller calls too, leaves a second caller to work alone,
 * is called thousands of times in a row, lets callers work alone where it lacks cores, and starts anew in the child of a
 * fork. Every call's results are compared.
 *
 *   threads [times] [noforks]   times: how often (10); noforks: for ThreadSanitizer and qemu-user, which do not follow
 *                               threads into a child
 */
#define _POSIX_C_SOURCE 200809L

#include "parallel.h"
#include "problem.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define TIME_LIMIT 300 /* seconds: a hang is a failure */

static const char *const small_case = "gru 1 1 8 33 6 4 bias ragged sparse shared hx 0 -"; /* three panels, six rows */
static const char *const rows_case =
    "lstm 2 2 5 17 70 7 bias ragged sparse shared hx 0.25 zc=0.25"; /* shares of rows */
static const char *const option_case = /* barriers within a step, of panels of h and of the cell */
    "lstm 2 2 5 50 5 4 bias ragged sparse shared hx 0.25 "
    "proj=35,peephole,input,norm,zh=0.25,zc=0.25,hidden=0.25,in=0.25";
static const char *const other_case = "lstm 2 2 5 17 9 7 bias zeros none none hx 0 -";

/* A problem of one thread's own, and what it must give. */
struct work {
    struct pool pool;
    struct problem problem;
    uint64_t want[GROUPS];
};

static void digests(const struct problem *p, const struct mode *mode, uint64_t values[GROUPS])
{
    struct pool pool = {NULL};
    const struct result r = run(&pool, p, mode);
    int given;
    for (int g = 0; g < GROUPS; g++)
        values[g] = digest_of(p, &r, (enum group)g, &given);
    pool_release(&pool);
}

static struct mode mode_with(int threads, rnnkern_split split, rnnkern_keep keep)
{
    return (struct mode){.keep = keep,
                         .segment = 2,
                         .threads = threads,
                         .backward_threads = threads,
                         .split = split,
                         .level = rnnkern_level_supported(0)   ? 0
                                  : rnnkern_level_supported(1) ? 1
                                                               : 2};
}

static void open_work(struct work *w, const char *line)
{
    const struct spec spec = parse_case(line);
    w->pool.first = NULL;
    w->problem = make_problem(&w->pool, &spec, RNNKERN_FLOAT32, 1);
    const struct mode alone = mode_with(1, RNNKERN_SPLIT_AUTO, RNNKERN_KEEP_GATES);
    digests(&w->problem, &alone, w->want);
}

static void close_work(struct work *w) { pool_release(&w->pool); }

static void check_kept(const struct work *w, int threads, rnnkern_split split, rnnkern_keep keep, const char *when)
{
    const struct mode mode = mode_with(threads, split, keep);
    uint64_t got[GROUPS];
    digests(&w->problem, &mode, got);
    for (int g = 0; g < GROUPS; g++)
        CHECK(got[g] == w->want[g], "%s differs %s: %s", group_name[g], when, describe_mode(&mode));
}

static void check_run(const struct work *w, int threads, rnnkern_split split, const char *when)
{
    check_kept(w, threads, split, RNNKERN_KEEP_STATES, when);
}

static rnnkern_split split_of(int i) { return i % 2 ? RNNKERN_SPLIT_ROWS : RNNKERN_SPLIT_UNITS; }

static void test_grow_and_shrink(void)
{
    static const int threads[] = {1, 2, 1, 3, 2, 5, 1, 4, 3, 6, 2};
    struct work w;
    CHECK(rnnkern_team_size() == 1, "the team has %d threads before any call", rnnkern_team_size());
    open_work(&w, small_case);
    CHECK(rnnkern_team_size() == 1, "a call on one thread started a team of %d", rnnkern_team_size());
    int most = 1;
    for (int i = 0; i < (int)(sizeof threads / sizeof *threads); i++) {
        check_run(&w, threads[i], RNNKERN_SPLIT_ROWS, "in a team that grows and shrinks");
        most = threads[i] > most ? threads[i] : most;
        CHECK(rnnkern_team_size() == most, "the team has %d threads, not %d", rnnkern_team_size(), most);
    }
    close_work(&w);
}

static void test_short_calls(const char *line, int calls)
{
    struct work w;
    open_work(&w, line);
    for (int i = 0; i < calls && !failures(); i++)
        check_run(&w, 2 + i % 3, split_of(i), "in one of many short calls");
    close_work(&w);
}

/* Whatever is kept, and so computed again in blocks: shares are dealt within each. */
static void test_kept(const char *line, int calls)
{
    static const rnnkern_keep kept[] = {RNNKERN_KEEP_GATES, RNNKERN_KEEP_STATES, RNNKERN_KEEP_SEGMENTS};
    struct work w;
    open_work(&w, line);
    for (int i = 0; i < calls && !failures(); i++)
        check_kept(&w, 2 + i % 3, split_of(i), kept[i / 2 % 3], "in shares");
    close_work(&w);
}

/* Workers sleep after some 0.1 ms: calls with pauses meet them at every stage of going to sleep. */
static void test_pauses(int calls)
{
    struct work w;
    open_work(&w, small_case);
    for (int i = 0; i < calls && !failures(); i++) {
        const struct timespec pause = {.tv_nsec = i * 7919 % 400000};
        nanosleep(&pause, NULL);
        check_run(&w, 2 + i % 3, split_of(i), "after a pause");
    }
    close_work(&w);
}

/* The modes of floating point are the program's own again after a call. */
static void test_subnormals(void)
{
    struct work w;
    open_work(&w, small_case);
    check_run(&w, 3, RNNKERN_SPLIT_ROWS, "before subnormal arithmetic");
    const volatile float small = 0x1p-140f, large = 0x1p100f; /* a comparison of subnormals would flush both sides */
    CHECK(small * large > 0, "a call left subnormal operands flushed");
    const volatile float tiny = 0x1p-70f, product = tiny * tiny;
    CHECK(product * large > 0, "a call left subnormal results flushed");
    close_work(&w);
}

struct caller {
    pthread_t thread;
    const char *line;
    int calls, threads;
    const atomic_int *stop; /* or NULL: after `calls` */
};

static void *call_often(void *argument)
{
    const struct caller *c = argument;
    struct work w;
    open_work(&w, c->line);
    for (int i = 0; c->stop ? !atomic_load(c->stop) : i < c->calls; i++)
        check_run(&w, c->threads, split_of(i), "beside other callers");
    close_work(&w);
    return NULL;
}

static void start_caller(struct caller *c)
{
    if (pthread_create(&c->thread, NULL, call_often, c)) {
        perror("pthread_create");
        exit(2);
    }
}

/* Whether the team runs whatever happens or as it sees fit: calls then find it taken at first, and free in a later phase. */
static void test_callers(int calls, int insist)
{
    rk_team_insist(insist);
    const char *const lines[4] = {other_case, small_case, rows_case, option_case};
    struct caller callers[4];
    for (int i = 0; i < 4; i++) {
        callers[i] = (struct caller){.line = lines[i], .calls = calls, .threads = 2 + i % 3};
        start_caller(&callers[i]);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(callers[i].thread, NULL);
    rk_team_insist(1);
}

/* Teams of up to six beside two busy callers: calls change between the team and the caller alone. */
static void test_lack_of_cores(int calls)
{
    atomic_int stop = 0;
    struct caller busy[2];
    struct work w;
    open_work(&w, small_case);
    rk_team_insist(0);
    for (int i = 0; i < 2; i++) {
        busy[i] = (struct caller){.line = other_case, .threads = 1, .stop = &stop};
        start_caller(&busy[i]);
    }
    for (int i = 0; i < calls && !failures(); i++)
        check_run(&w, 2 + i % 5, split_of(i), "where cores lack");
    atomic_store(&stop, 1);
    for (int i = 0; i < 2; i++)
        pthread_join(busy[i].thread, NULL);
    rk_team_insist(1);
    close_work(&w);
}

/* Runs on a team in a child; and, `depth` times, in a child of its own. */
static void check_in_child(const struct work *w, int depth, const char *when)
{
    fflush(NULL);
    const pid_t child = fork();
    if (child < 0) {
        perror("fork");
        exit(2);
    }
    if (child == 0) {
        alarm(TIME_LIMIT / 5);
        CHECK(rnnkern_team_size() == 1, "the child has a team of %d", rnnkern_team_size());
        for (int i = 0; i < 4; i++)
            check_run(w, 3, split_of(i), when);
        CHECK(rnnkern_team_size() == 3, "the child's team has %d threads, not 3", rnnkern_team_size());
        if (depth > 0)
            check_in_child(w, depth - 1, when);
        _exit(failures() > 0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a child ended with status %#x %s", (unsigned)status, when);
}

static void test_fork(void)
{
    struct work w;
    open_work(&w, small_case);
    check_run(&w, 3, RNNKERN_SPLIT_ROWS, "before a fork");
    check_in_child(&w, 2, "in a child");
    check_run(&w, 3, RNNKERN_SPLIT_ROWS, "after a fork");
    close_work(&w);
}

/* The child inherits the team's locks and counters in whatever state another thread's call has put them. */
static void test_fork_in_a_call(int forks)
{
    atomic_int stop = 0;
    struct caller caller = {.line = other_case, .threads = 4, .stop = &stop};
    struct work w;
    open_work(&w, small_case);
    check_run(&w, 2, RNNKERN_SPLIT_ROWS, "before a fork");
    start_caller(&caller);
    for (int i = 0; i < forks && !failures(); i++)
        check_in_child(&w, 0, "in a child of a fork amid a call");
    atomic_store(&stop, 1);
    pthread_join(caller.thread, NULL);
    close_work(&w);
}

int main(int argc, char **argv)
{
    const int times = argc > 1 ? atoi(argv[1]) : 10;
    alarm(TIME_LIMIT);
    rk_team_insist(1);
    test_grow_and_shrink();
    test_subnormals();
    test_short_calls(small_case, 500 * times);
    test_short_calls(option_case, 50 * times);
    test_kept(rows_case, 30 * times);
    test_pauses(50 * times);
    test_callers(50 * times, 1);
    test_callers(50 * times, 0);
    test_lack_of_cores(50 * times);
    if (argc < 3) {
        test_fork();
        test_fork_in_a_call(3 * times);
    }
    printf("threads: %d failures\n", failures());
    return failures() > 0;
}
