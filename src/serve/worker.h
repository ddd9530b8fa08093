/* One thread beside the IO thread for what takes longer than a status request may wait: parsing big bodies, templates, tokenising. Jobs run in order. */
#ifndef SERVE_WORKER_H
#define SERVE_WORKER_H

#include <stddef.h>

#include "base/err.h"

struct job {
    struct job *next;
    size_t n_bytes;                  /* of input it holds: the queue is bounded by their sum */
    void (*work)(struct job *job);   /* on the worker's thread */
    void (*done)(struct job *job);   /* by worker_deliver; work may not have run when the worker was stopped (`ran` tells) */
    int ran;
};

struct worker;

int worker_start(int wake_fd, struct worker **out, struct err *err) MUST_CHECK;
/* ERR_BUSY when too much waits. */
int worker_submit(struct worker *w, struct job *job, struct err *err) MUST_CHECK;
/* On the IO thread: calls done() of every job that was finished. */
void worker_deliver(struct worker *w);
/* Joins, delivers what ran, and then what never did. */
void worker_stop(struct worker *w);

#endif
