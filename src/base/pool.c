/* Invariant: `generation` counts runs; a worker has done run g when `done` was raised by it after it saw generation g. */
#include "base/pool.h"

#include <limits.h>
#include <linux/futex.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/thread.h"

#define SPIN_ROUNDS 4000 /* about 30-60 us */

struct worker {
    struct pool *pool;
    pthread_t thread;
    int index;
};

struct pool {
    _Alignas(64) atomic_uint generation; /* futex: workers sleep on it */
    _Alignas(64) atomic_uint done;       /* futex: the caller sleeps on it */
    atomic_uint sleepers;
    atomic_uint caller_sleeps;
    atomic_int stop;
    pool_fn *fn;
    void *arg;
    int n_threads;
    int n_started;
    struct worker *workers;
};

static void cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void futex_wait(atomic_uint *word, unsigned value)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake(atomic_uint *word, int n)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

/* Waits until *word differs from value. */
static void wait_change(atomic_uint *word, unsigned value, atomic_uint *sleepers)
{
    for (int i = 0; i < SPIN_ROUNDS; i++) {
        if (atomic_load_explicit(word, memory_order_acquire) != value)
            return;
        cpu_relax();
    }
    atomic_fetch_add(sleepers, 1);
    while (atomic_load(word) == value)
        futex_wait(word, value);
    atomic_fetch_sub(sleepers, 1);
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct pool *pool = w->pool;
    unsigned seen = 0;
    for (;;) {
        wait_change(&pool->generation, seen, &pool->sleepers);
        seen++;
        if (atomic_load(&pool->stop))
            return NULL;
        pool->fn(pool->arg, w->index, pool->n_threads);
        atomic_fetch_add(&pool->done, 1);
        if (atomic_load(&pool->caller_sleeps))
            futex_wake(&pool->done, 1);
    }
}

static int worker_start(struct pool *pool, int i)
{
    sigset_t all, old;
    pool->workers[i] = (struct worker){.pool = pool, .index = i};
    sigfillset(&all); /* signals are for the main thread */
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGSEGV);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = thread_create(&pool->workers[i].thread, worker_main, &pool->workers[i]);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc;
}

int pool_create(int n_threads, struct pool **out, struct err *err)
{
    if (n_threads < 1 || n_threads > 1024)
        return err_set(err, ERR_INVALID, "threads: %d is not in 1..1024", n_threads);
    struct pool *pool = mem_alloc_aligned(MEM_OTHER, sizeof *pool);
    struct worker *workers = mem_alloc_array(MEM_OTHER, (size_t)n_threads, sizeof *workers);
    if (!pool || !workers) {
        mem_free(pool);
        mem_free(workers);
        return err_set(err, ERR_NO_MEMORY, "out of memory for %d threads", n_threads);
    }
    pool->n_threads = n_threads;
    pool->workers = workers;
    pool->n_started = 1;
    for (int i = 1; i < n_threads; i++) {
        int rc = worker_start(pool, i);
        if (rc != 0) {
            pool_free(pool);
            return err_set(err, ERR_IO, "thread %d of %d could not be created: %s", i + 1, n_threads, strerror(rc));
        }
        pool->n_started++;
    }
    *out = pool;
    return 0;
}

static void wake_workers(struct pool *pool)
{
    atomic_fetch_add(&pool->generation, 1);
    if (atomic_load(&pool->sleepers))
        futex_wake(&pool->generation, INT_MAX);
}

void pool_free(struct pool *pool)
{
    if (!pool)
        return;
    atomic_store(&pool->stop, 1);
    wake_workers(pool);
    for (int i = 1; i < pool->n_started; i++)
        pthread_join(pool->workers[i].thread, NULL);
    mem_free(pool->workers);
    mem_free(pool);
}

int pool_n_threads(const struct pool *pool)
{
    return pool ? pool->n_threads : 1;
}

void pool_run(struct pool *pool, pool_fn *fn, void *arg)
{
    if (!pool || pool->n_threads == 1) {
        fn(arg, 0, 1);
        return;
    }
    pool->fn = fn;
    pool->arg = arg;
    atomic_store(&pool->done, 0);
    wake_workers(pool);
    fn(arg, 0, pool->n_threads);
    unsigned all = (unsigned)pool->n_threads - 1, now;
    while ((now = atomic_load_explicit(&pool->done, memory_order_acquire)) != all)
        wait_change(&pool->done, now, &pool->caller_sleeps);
}

/* The first sibling of a core stands for it. */
static int is_first_sibling(int cpu)
{
    char path[128], text[64] = "";
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    FILE *file = fopen(path, "r");
    if (!file)
        return 1;
    char *line = fgets(text, sizeof text, file);
    fclose(file);
    return !line || strtol(line, NULL, 10) == cpu;
}

static double read_quota(const char *path, int version)
{
    char text[128] = "";
    FILE *file = fopen(path, "r");
    if (!file)
        return INFINITY;
    char *line = fgets(text, sizeof text, file);
    fclose(file);
    if (!line || (version == 2 && text[0] == 'm'))
        return INFINITY;
    char *rest;
    double quota = strtod(text, &rest);
    double period = version == 2 ? strtod(rest, NULL) : 100000;
    return quota > 0 && period > 0 ? quota / period : INFINITY;
}

int pool_default_threads(void)
{
    cpu_set_t set;
    int n = 0;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        int allowed = CPU_COUNT(&set);
        for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
            n += CPU_ISSET(cpu, &set) && is_first_sibling(cpu);
        if (n == 0)
            n = allowed;
    }
    if (n < 1)
        n = 1;
    double quota = fmin(read_quota("/sys/fs/cgroup/cpu.max", 2), read_quota("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", 1));
    if (quota < n)
        n = quota < 1 ? 1 : (int)ceil(quota);
    return n;
}
