/* Invariant: a job is in exactly one place: the waiting list, the worker's hands, the finished list, or its owner's. */
#include "serve/worker.h"

#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/thread.h"

#define MAX_WAITING 256
#define MAX_WAITING_BYTES ((size_t)128 << 20)

struct list {
    struct job *first, *last;
};

struct worker {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct list waiting, finished;
    int n_waiting, stopping;
    size_t n_bytes;
    int wake_fd;
};

static void list_add(struct list *l, struct job *job)
{
    job->next = NULL;
    if (l->last)
        l->last->next = job;
    else
        l->first = job;
    l->last = job;
}

static struct job *list_take(struct list *l)
{
    struct job *job = l->first;
    if (job) {
        l->first = job->next;
        if (!l->first)
            l->last = NULL;
    }
    return job;
}

static struct job *next_job(struct worker *w)
{
    pthread_mutex_lock(&w->lock);
    while (!w->waiting.first && !w->stopping)
        pthread_cond_wait(&w->changed, &w->lock);
    struct job *job = w->stopping ? NULL : list_take(&w->waiting);
    pthread_mutex_unlock(&w->lock);
    return job;
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    uint64_t one = 1;
    struct job *job;
    while ((job = next_job(w)) != NULL) {
        job->work(job);
        pthread_mutex_lock(&w->lock);
        job->ran = 1;
        w->n_waiting--;
        w->n_bytes -= job->n_bytes;
        list_add(&w->finished, job);
        pthread_mutex_unlock(&w->lock);
        if (write(w->wake_fd, &one, sizeof one) < 0)
            continue; /* the counter is full: the reader is awake already */
    }
    return NULL;
}

int worker_start(int wake_fd, struct worker **out, struct err *err)
{
    struct worker *w = mem_alloc(MEM_SERVE, sizeof *w);
    if (!w)
        return err_set(err, ERR_NO_MEMORY, "out of memory for the server");
    w->wake_fd = wake_fd;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    int rc = thread_create(&w->thread, worker_main, w);
    if (rc != 0) {
        pthread_cond_destroy(&w->changed);
        pthread_mutex_destroy(&w->lock);
        mem_free(w);
        return err_set(err, ERR_IO, "the worker thread could not be created: %s", strerror(rc));
    }
    *out = w;
    return 0;
}

int worker_submit(struct worker *w, struct job *job, struct err *err)
{
    pthread_mutex_lock(&w->lock);
    int full = w->n_waiting >= MAX_WAITING || w->n_bytes + job->n_bytes > MAX_WAITING_BYTES;
    if (!full) {
        w->n_waiting++;
        w->n_bytes += job->n_bytes;
        list_add(&w->waiting, job);
        pthread_cond_signal(&w->changed);
    }
    pthread_mutex_unlock(&w->lock);
    return full ? err_set(err, ERR_BUSY, "too many requests wait to be read") : 0;
}

void worker_deliver(struct worker *w)
{
    struct job *job;
    do {
        pthread_mutex_lock(&w->lock);
        job = list_take(&w->finished);
        pthread_mutex_unlock(&w->lock);
        if (job)
            job->done(job);
    } while (job);
}

void worker_stop(struct worker *w)
{
    struct job *job;
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->stopping = 1;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    worker_deliver(w);
    while ((job = list_take(&w->waiting)) != NULL)
        job->done(job);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    mem_free(w);
}
