/* Inside of the store: what opening the folder (store_folder.c), giving pieces (store.c), the writing thread (store_writer.c) and loading (store_load.c) share. */
#ifndef ENGINE_STORE_INTERNAL_H
#define ENGINE_STORE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine/store_index.h"
#include "engine/store_segment.h"
#include "engine/store_tree.h"

#define STORE_N_BUFFERS (STORE_QUEUE_BYTES / STORE_PIECE_BYTES)

/* In the writer's queue: a piece of a writing, or its end. */
struct store_job {
    struct store_job *next;
    struct store_writing *w;
    unsigned char *data;         /* SEGMENT_BUFFER_BYTES; NULL = the end */
};

struct store_writing {
    struct store *store;
    struct segment *segment;     /* pinned */
    struct segment_header header;
    int32_t *ids;                /* [to - from] */
    struct store_job end;
    atomic_int is_lost;          /* nothing more is to be written: it failed, was abandoned, or the store closes */

    /* The engine thread's, until the end is queued. */
    struct state_snapshot *at;
    struct state_cuts cuts;
    uint64_t n_given;            /* pieces */

    /* The writer's. */
    int fd;                      /* -1: not yet */
    uint64_t n_written;
};

struct store {
    char *path;                  /* of the folder, absolute */
    int dir, lock_fd;
    struct hash_key model;
    uint64_t budget_bytes;
    void (*wake)(void *ctx);
    void *wake_ctx;
    pthread_t thread;
    int thread_started;
    unsigned char *buffers;
    int is_told_small;           /* the engine thread's: the log has the line about the budget */

    pthread_mutex_t lock;        /* guards all that follows; never held while the disk works */
    pthread_cond_t work, idle;
    struct tree tree;
    struct store_stats stats;    /* what is counted; the rest is filled in when asked */
    struct store_job jobs[STORE_N_BUFFERS], *free_jobs, *first, **last;
    int is_busy;                 /* the writer is at something */
    int is_waited_for;           /* somebody was told STORE_LATER */
    int has_dead;                /* the writer is to remove dead segments */
    int stopping;

    /* The writer's, once it runs. */
    struct store_index *index;
    int is_failing;              /* saving does not work, and the log says so */
};

/* store_folder.c: makes and locks the folder; finds what is in it, by the index or by itself. */
int store_folder_open(struct store *st, const char *dir, struct err *err) MUST_CHECK;
int store_folder_read(struct store *st, struct err *err) MUST_CHECK;

/* store_writer.c: the store's thread; arg is the store. Runs until `stopping` and nothing is queued. */
void *store_writer_main(void *arg);

/* Appends to the queue; under the lock. */
void store_enqueue(struct store *st, struct store_job *job);

#endif
