/* A pool of compute threads under one caller: pool_run hands the same function to every thread and returns when all are done. Waiting spins for a
 * bounded time and then sleeps, so that a busy machine is not fought over. Owned by the engine thread. */
#ifndef BASE_POOL_H
#define BASE_POOL_H

#include <stdatomic.h>

#include "base/err.h"

struct pool;

/* thread 0 is the caller itself. */
typedef void pool_fn(void *arg, int thread, int n_threads);

/* n_threads >= 1. Threads that cannot be created are an error, not fewer threads. */
int pool_create(int n_threads, struct pool **out, struct err *err) MUST_CHECK;
void pool_free(struct pool *pool);
int pool_n_threads(const struct pool *pool);

/* pool == NULL runs fn(arg, 0, 1). Not reentrant. */
void pool_run(struct pool *pool, pool_fn *fn, void *arg);

/* Inside pool_run: the next chunk of [0, n) from a shared counter, for work of uneven cost. Returns the chunk's first index, or n at the end. */
static inline long pool_next(atomic_long *counter, long chunk, long n)
{
    long first = atomic_fetch_add_explicit(counter, chunk, memory_order_relaxed);
    return first < n ? first : n;
}

/* Physical cores this process may use: affinity mask, without hyper-thread siblings, and the cgroup's cpu quota. >= 1. */
int pool_default_threads(void);

#endif
