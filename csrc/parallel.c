/* The team: POSIX threads that are started when first needed and kept. They spin a bounded time, at barriers and between
 * calls, then sleep: a call finds them within a microsecond or two in a busy loop, and costs a neighbour nothing soon
 * after it. All waiting is waiting for one word to change. */
#define _POSIX_C_SOURCE 200809L

#include "parallel.h"

#include "fpmode.h"
#include "rnnkern.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#if defined __x86_64__ || defined __i386__
#define PAUSE() _mm_pause()
#elif defined __aarch64__
#define PAUSE() __asm__ volatile("yield")
#else
#define PAUSE() ((void)0)
#endif

#define MAX_MEMBERS 256
#define SPINS 4000 /* of PAUSE: some 0.1 ms, longer than the uneven ends of a step, shorter than a time slice */

/* A word on its own cache line, since others spin on it. */
struct word {
    _Alignas(64) atomic_uint value;
};

struct rk_team {
    pthread_mutex_t caller; /* held for a call by the thread that uses the team */
    pthread_mutex_t sleep;  /* guards the condition below */
    pthread_cond_t changed;
    atomic_uint sleepers;
    struct word arrived;            /* members at the barrier */
    struct word phase;              /* counts barriers */
    struct word calls[MAX_MEMBERS]; /* member i starts when its count of calls changes */
    atomic_int size;                /* threads that exist: the caller and size-1 workers, members 1.. */
    int members;                    /* of this call */
    rk_work *work;
    void *context;
};

static struct rk_team team = {.caller = PTHREAD_MUTEX_INITIALIZER,
                              .sleep = PTHREAD_MUTEX_INITIALIZER,
                              .changed = PTHREAD_COND_INITIALIZER,
                              .size = 1};

/* Either the waiter sees the new value before it sleeps, or the waker sees the sleeper: both are seq_cst. */
static void wait_change(struct word *word, unsigned old)
{
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&word->value, memory_order_acquire) != old)
            return;
        PAUSE();
    }
    pthread_mutex_lock(&team.sleep);
    atomic_fetch_add(&team.sleepers, 1);
    while (atomic_load(&word->value) == old)
        pthread_cond_wait(&team.changed, &team.sleep);
    atomic_fetch_sub(&team.sleepers, 1);
    pthread_mutex_unlock(&team.sleep);
}

static void change(struct word *word)
{
    atomic_fetch_add(&word->value, 1);
    if (atomic_load(&team.sleepers)) {
        pthread_mutex_lock(&team.sleep);
        pthread_cond_broadcast(&team.changed);
        pthread_mutex_unlock(&team.sleep);
    }
}

void rk_barrier(const struct rk_member *member)
{
    if (member->count == 1)
        return;
    const unsigned phase = atomic_load(&team.phase.value);
    if (atomic_fetch_add(&team.arrived.value, 1) + 1 == (unsigned)member->count) {
        atomic_store(&team.arrived.value, 0);
        change(&team.phase);
    } else
        wait_change(&team.phase, phase);
}

static void run_member(int index)
{
    const struct rk_member member = {index, team.members};
    const rk_fpmode mode = rk_flush_subnormals();
    team.work(team.context, &member);
    rk_restore_fpmode(mode);
    rk_barrier(&member);
}

static void *worker(void *argument)
{
    struct word *calls = argument;
    for (unsigned seen = 0;; seen++) {
        wait_change(calls, seen);
        run_member((int)(calls - team.calls));
    }
    return NULL;
}

/* A child has only the thread that forked: it starts again with no workers, whatever the parent's team was doing. */
static void forget_team(void)
{
    pthread_mutex_init(&team.caller, NULL);
    pthread_mutex_init(&team.sleep, NULL);
    pthread_cond_init(&team.changed, NULL);
    atomic_store(&team.sleepers, 0);
    atomic_store(&team.arrived.value, 0);
    atomic_store(&team.size, 1);
}

/* Starts workers until there are `threads` members, or as many as the system gives; returns how many there are. Workers
 * take no signals, these belong to the program's threads. */
static int grow_team(int threads)
{
    static atomic_int registered;
    if (!atomic_exchange(&registered, 1))
        pthread_atfork(NULL, NULL, forget_team);
    threads = threads < MAX_MEMBERS ? threads : MAX_MEMBERS;
    sigset_t all, found;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &found);
    for (int i = atomic_load(&team.size); i < threads; i++) {
        pthread_t thread;
        atomic_store(&team.calls[i].value, 0);
        if (pthread_create(&thread, NULL, worker, &team.calls[i]))
            break;
        pthread_detach(thread);
        atomic_store(&team.size, i + 1);
    }
    pthread_sigmask(SIG_SETMASK, &found, NULL);
    const int size = atomic_load(&team.size);
    return size < threads ? size : threads;
}

static void run_alone(rk_work *work, void *context)
{
    const struct rk_member alone = {0, 1};
    const rk_fpmode mode = rk_flush_subnormals();
    work(context, &alone);
    rk_restore_fpmode(mode);
}

void rk_team_run(int threads, rk_work *work, void *context)
{
    if (threads <= 1 || pthread_mutex_trylock(&team.caller)) {
        run_alone(work, context);
        return;
    }
    team.members = threads <= atomic_load(&team.size) ? threads : grow_team(threads);
    team.work = work;
    team.context = context;
    for (int i = 1; i < team.members; i++)
        change(&team.calls[i]);
    run_member(0);
    pthread_mutex_unlock(&team.caller);
}

int rnnkern_team_size(void) { return atomic_load(&team.size); }
