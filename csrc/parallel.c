/* The team: POSIX threads that are started when first needed and kept. They spin a bounded time, at barriers and between
 * calls, then sleep: a call finds them within a microsecond in a busy loop, and costs a neighbour nothing soon after it.
 * All waiting is waiting for one word to change, and all sleeping is a futex on that word.
 *
 * With more busy threads than cores (other libraries' threads that spin after a call are enough) a worker may get no core
 * for milliseconds. It waits longest behind its own caller, so workers keep off the core of theirs. Work that can be dealt
 * out is done by whoever comes, at any time; where members meet at every step, by those that come soon. That can still be
 * fifty times slower than one thread: two members on one core must hand it to each other at every barrier. So a member
 * that waits in vain looks whether another one lacks a core; when such calls lose much of their time that way, the next
 * ones run on the caller alone. */
#define _GNU_SOURCE

#include "parallel.h"

#include "fpmode.h"
#include "rnnkern.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if defined __x86_64__ || defined __i386__
#define PAUSE() _mm_pause()
#elif defined __aarch64__
#define PAUSE() __asm__ volatile("yield")
#else
#define PAUSE() ((void)0)
#endif

#define MAX_MEMBERS 256
#define PATIENCE 100000   /* ns to spin: longer than the uneven ends of most steps, shorter than a time slice */
#define WAKING 90000      /* ns of a call that gains a tenth at least, as long as it takes to wake a worker */
#define LOOK 50000        /* ns to watch another member */
#define ENDURANCE 1000000 /* ns to spin within a call where members share no core: who sleeps gives a core away */
#define MAX_VOTES 6       /* a call that lost half of its time lets calls run alone for 1/16 to 4 times that time */
#define WARY 16           /* times the time of a call that lost a sixteenth of it: so long shares are small */

/* A word on its own cache line, since others spin on it. */
struct word {
    _Alignas(64) atomic_uint value;
    atomic_uint sleepers;
};

/* The caller sets CALLED, a worker that comes sets JOINED, the caller sets RUNNING, unless work is dealt out; or IDLE again,
 * where the worker has not come in time. So does the worker at its end. */
enum { IDLE, CALLED, JOINED, RUNNING };

struct seat {
    struct word state;
    pthread_t thread;
    int avoided;       /* the CPU that it keeps off */
    int index;         /* of the member, in this call */
    atomic_int asleep; /* at a barrier */
    atomic_int clock;  /* a clockid_t, of its CPU time */
};

struct rk_team {
    atomic_int taken;    /* by the caller that uses it */
    atomic_int size;     /* threads that exist: the caller and size-1 workers, in seats 1.. */
    atomic_int apart;    /* each member can have a core of its own */
    atomic_int crowded;  /* cores lack, as far as the last barriers tell */
    atomic_llong lost;   /* ns that members of this call have slept since another one had no core */
    int votes;           /* calls that lost much of their time, less those that did not */
    int64_t alone_until; /* by the monotonic clock */
    int64_t last_end;    /* of a call */
    atomic_llong wary_until;
    int members; /* of this call */
    rk_work *work;
    void *context;
    int shares;          /* to deal; 0: members run side by side */
    atomic_int next;     /* share */
    struct word arrived; /* members at the barrier */
    struct word phase;   /* counts barriers */
    _Atomic(struct seat *)
        present[MAX_MEMBERS]; /* of this call; who leaves the last barrier late may see the next call's */
    struct seat seat[MAX_MEMBERS];
};

static struct rk_team team = {.size = 1};
static atomic_int insistent;

static int64_t nanoseconds(clockid_t clock)
{
    struct timespec time = {0};
    clock_gettime(clock, &time);
    return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

static void set_clock(struct seat *seat, pthread_t thread)
{
    clockid_t clock;
    if (!pthread_getcpuclockid(thread, &clock))
        atomic_store(&seat->clock, clock);
}

static int64_t time_used(const struct seat *seat) { return nanoseconds(atomic_load(&seat->clock)); }

/* Whether the word changes within about `time` ns, and 64 looks in any case. */
static int spin(const struct word *word, unsigned old, int64_t time)
{
    for (int64_t now, end = 0;; end = end ? end : now + time) {
        for (int i = 0; i < 64; i++) {
            if (atomic_load_explicit(&word->value, memory_order_acquire) != old)
                return 1;
            PAUSE();
        }
        now = nanoseconds(CLOCK_MONOTONIC);
        if (now >= (end ? end : now + time))
            return 0;
    }
}

/* Whether the word changes before it is time to sleep. */
static int endure(const struct word *word, unsigned old)
{
    return spin(word, old, atomic_load(&team.apart) ? ENDURANCE : 0);
}

/* Either the sleeper sees the new value before it sleeps, or the waker sees the sleeper: all are seq_cst. */
static void sleep_until_changed(struct word *word, unsigned old)
{
    atomic_fetch_add(&word->sleepers, 1);
    while (atomic_load(&word->value) == old)
        syscall(SYS_futex, &word->value, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
    atomic_fetch_sub(&word->sleepers, 1);
}

static void set(struct word *word, unsigned value)
{
    atomic_store(&word->value, value);
    if (atomic_load(&word->sleepers))
        syscall(SYS_futex, &word->value, FUTEX_WAKE_PRIVATE, MAX_MEMBERS, NULL, NULL, 0);
}

/* Members form a ring in which each watches the next. One that does not sleep here and gets less than half the CPU time
 * that its watcher gets has no core. From then on waits are short, to leave it one, until members meet again at once. */
static void wait_barrier(const struct rk_member *member, unsigned phase)
{
    struct seat *own = atomic_load(&team.present[member->index]);
    struct seat *next = atomic_load(&team.present[(member->index + 1) % member->count]);
    int crowded = atomic_load_explicit(&team.crowded, memory_order_relaxed);
    if (spin(&team.phase, phase, crowded ? 0 : PATIENCE)) {
        if (crowded)
            atomic_store(&team.crowded, 0);
        return;
    }
    const int64_t start = nanoseconds(CLOCK_MONOTONIC);
    if (!crowded) {
        const int64_t used = time_used(own), used_next = time_used(next);
        if (spin(&team.phase, phase, LOOK))
            return;
        crowded = 2 * (time_used(next) - used_next) < time_used(own) - used && !atomic_load(&next->asleep);
        if (crowded)
            atomic_store(&team.crowded, 1);
    }
    atomic_store(&own->asleep, 1);
    if (!endure(&team.phase, phase))
        sleep_until_changed(&team.phase, phase);
    atomic_store(&own->asleep, 0);
    if (crowded)
        atomic_fetch_add(&team.lost, nanoseconds(CLOCK_MONOTONIC) - start);
}

void rk_barrier(const struct rk_member *member)
{
    if (member->count == 1)
        return;
    const unsigned phase = atomic_load(&team.phase.value);
    if (atomic_fetch_add(&team.arrived.value, 1) + 1 == (unsigned)member->count) {
        atomic_store(&team.arrived.value, 0);
        set(&team.phase, phase + 1);
    } else
        wait_barrier(member, phase);
}

static void run_member(const struct rk_member *member, rk_work *work, void *context)
{
    const rk_fpmode mode = rk_flush_subnormals();
    work(context, member);
    rk_restore_fpmode(mode);
}

static void run_alone(rk_work *work, void *context) { run_member(&(struct rk_member){0, 1, 0}, work, context); }

static void take_shares(int slot)
{
    for (int i; (i = atomic_fetch_add(&team.next, 1)) < team.shares;)
        run_member(&(struct rk_member){i, team.shares, slot}, team.work, team.context);
}

static void wait_until_changed(struct word *word, unsigned old)
{
    if (!spin(word, old, PATIENCE))
        sleep_until_changed(word, old);
}

static void *worker(void *argument)
{
    struct seat *seat = argument;
    for (;;) {
        wait_until_changed(&seat->state, IDLE);
        if (!atomic_compare_exchange_strong(&seat->state.value, &(unsigned){CALLED}, JOINED))
            continue; /* too late */
        if (team.shares) {
            take_shares((int)(seat - team.seat));
            set(&seat->state, IDLE);
            continue;
        }
        wait_until_changed(&seat->state, JOINED);
        const struct rk_member member = {seat->index, team.members, seat->index};
        run_member(&member, team.work, team.context);
        atomic_store(&seat->state.value, IDLE); /* before the caller can call again */
        rk_barrier(&member);
    }
    return NULL;
}

/* A child has only the thread that forked: it starts again with no workers, whatever the parent's team was doing. */
static void forget_team(void)
{
    atomic_store(&team.taken, 0);
    atomic_store(&team.size, 1);
    atomic_store(&team.arrived.value, 0);
    atomic_store(&team.phase.sleepers, 0);
    atomic_store(&team.seat[0].asleep, 0);
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
        struct seat *seat = &team.seat[i];
        pthread_t thread;
        atomic_store(&seat->state.value, IDLE);
        atomic_store(&seat->state.sleepers, 0);
        atomic_store(&seat->asleep, 0);
        if (pthread_create(&thread, NULL, worker, seat))
            break;
        set_clock(seat, thread);
        seat->thread = thread;
        seat->avoided = -1;
        pthread_detach(thread);
        atomic_store(&team.size, i + 1);
    }
    pthread_sigmask(SIG_SETMASK, &found, NULL);
    const int size = atomic_load(&team.size);
    return size < threads ? size : threads;
}

static void give_place(struct seat *seat, int index)
{
    seat->index = index;
    atomic_store(&team.present[index], seat);
}

/* Where others than the caller may run. Returns how many CPUs that are. */
static int other_cpus(int cpu, cpu_set_t *others)
{
    if (cpu < 0 || pthread_getaffinity_np(pthread_self(), sizeof *others, others))
        return 0;
    CPU_CLR((size_t)cpu, others);
    return CPU_COUNT(others);
}

/* A worker that wakes on its caller's core, as the scheduler likes it, shares that core with it. */
static void keep_workers_off(int cpu, int threads)
{
    cpu_set_t others;
    const int count = other_cpus(cpu, &others);
    atomic_store(&team.apart, count >= threads - 1);
    for (int i = 1; i < threads && count; i++)
        if (team.seat[i].avoided != cpu) {
            pthread_setaffinity_np(team.seat[i].thread, sizeof others, &others);
            team.seat[i].avoided = cpu;
        }
}

static void call_workers(int threads)
{
    keep_workers_off(sched_getcpu(), threads);
    for (int i = 1; i < threads; i++)
        set(&team.seat[i].state, CALLED);
}

/* Whether the worker has not come; it cannot any more then. */
static int dismiss(struct seat *seat)
{
    return atomic_compare_exchange_strong(&seat->state.value, &(unsigned){CALLED}, IDLE);
}

/* Returns how many members there are, the caller among them: those that come within `grace` ns. */
static int assemble(int threads, int64_t grace)
{
    const int64_t start = nanoseconds(CLOCK_MONOTONIC);
    int members = 1;
    give_place(&team.seat[0], 0);
    call_workers(threads);
    for (int i = 1; i < threads; i++) {
        struct seat *seat = &team.seat[i];
        while (!spin(&seat->state, CALLED, start + grace - nanoseconds(CLOCK_MONOTONIC)) && atomic_load(&insistent))
            ; /* not asleep: a worker that joins wakes no one */
        if (!dismiss(seat))
            give_place(seat, members++);
    }
    team.members = members;
    for (int i = 1; i < members; i++)
        set(&atomic_load(&team.present[i])->state, RUNNING);
    return members;
}

int rk_team_lacks_cores(void)
{
    return nanoseconds(CLOCK_MONOTONIC) < atomic_load(&team.wary_until) || atomic_load(&insistent);
}

/* Waits for a worker to end, and returns the ns for which it had no core. */
static int64_t wait_for(struct seat *seat)
{
    if (spin(&seat->state, JOINED, PATIENCE) || endure(&seat->state, JOINED))
        return 0;
    const int64_t start = nanoseconds(CLOCK_MONOTONIC), used = time_used(seat);
    sleep_until_changed(&seat->state, JOINED);
    return nanoseconds(CLOCK_MONOTONIC) - start - (time_used(seat) - used);
}

static void run_team(int threads, int64_t grace, int64_t start)
{
    set_clock(&team.seat[0], pthread_self());
    atomic_store(&team.crowded, 0);
    atomic_store(&team.lost, 0);
    const struct rk_member member = {0, assemble(threads, grace), 0};
    run_member(&member, team.work, team.context);
    rk_barrier(&member);
    const int64_t end = nanoseconds(CLOCK_MONOTONIC);
    if (4 * atomic_load(&team.lost) > member.count * (end - start)) {
        team.alone_until = end + (((end - start) << team.votes) >> 4);
        team.votes += team.votes < MAX_VOTES;
    } else
        team.votes -= team.votes > 0;
}

static void deal(int threads, int64_t start)
{
    int64_t lost = 0;
    atomic_store(&team.next, 0);
    call_workers(threads);
    for (int i = 1; atomic_load(&insistent) && i < threads; i++)
        while (!spin(&team.seat[i].state, CALLED, PATIENCE))
            ;
    take_shares(0);
    for (int i = 1; i < threads; i++)
        if (!dismiss(&team.seat[i]))
            lost += wait_for(&team.seat[i]);
    const int64_t end = nanoseconds(CLOCK_MONOTONIC);
    if (16 * lost > end - start)
        atomic_store(&team.wary_until, end + WARY * (end - start));
}

/* With `shares` to deal, or for members that run side by side; time: see rk_team_deal, the grace of rk_team_run. */
static void use_team(int threads, int shares, int64_t time, rk_work *work, void *context)
{
    if (threads <= 1 || atomic_exchange(&team.taken, 1)) {
        run_alone(work, context);
        return;
    }
    const int64_t start = nanoseconds(CLOCK_MONOTONIC);
    const int most = threads <= atomic_load(&team.size) ? threads : grow_team(threads);
    team.work = work;
    team.context = context;
    team.shares = shares;
    const int short_and_rare = shares && time < WAKING && start - team.last_end > PATIENCE;
    if ((short_and_rare || (!shares && start < team.alone_until)) && !atomic_load(&insistent))
        run_alone(work, context);
    else if (shares)
        deal(most, start);
    else
        run_team(most, time, start);
    team.last_end = nanoseconds(CLOCK_MONOTONIC);
    atomic_store(&team.taken, 0);
}

void rk_team_run(int threads, int64_t grace, rk_work *work, void *context)
{
    use_team(threads, 0, grace, work, context);
}

void rk_team_deal(int threads, int count, int64_t time, rk_work *work, void *context)
{
    use_team(threads < count ? threads : count, count, time, work, context);
}

void rk_team_insist(int on) { atomic_store(&insistent, on); }

/* Visible, so that threadpoolctl knows our library by it. */
__attribute__((visibility("default"))) int rnnkern_team_size(void) { return atomic_load(&team.size); }
