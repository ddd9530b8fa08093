/* Inside of the engine: what its lifecycle (engine.c), admission (admit.c) and steps (sched.c) share. */
#ifndef ENGINE_ENGINE_INTERNAL_H
#define ENGINE_ENGINE_INTERNAL_H

#include <pthread.h>

#include "engine/capacity.h"
#include "engine/disk.h"
#include "engine/pace.h"
#include "engine/queue.h"

#define MAX_PARALLEL CAPACITY_MAX_SLOTS

struct slot {
    struct session *session;
    struct request *request;   /* written under the lock; NULL = idle */
    uint64_t last_turn;        /* number of the request it served last */
    struct store_load *load;   /* its session comes from the disk; NULL = it does not */
    struct store_writing *writings[DISK_WRITINGS]; /* its session goes there, first ones first */
    int n_writings;
    uint64_t moved_ns;         /* when a piece of it was last taken */
};

struct engine {
    const struct model *model;
    struct engine_options options;
    struct plan plan;
    uint64_t state_limit;      /* of MEM_STATE: what it held when the engine came, and the plan's part */
    struct device *device;
    struct runner *runner;
    struct store *store;       /* conversations on disk; NULL = none */
    struct slot slots[MAX_PARALLEL];
    int n_slots;
    int32_t fork_id;           /* "<|im_start|>", where conversations fork; -1 when there is none */
    pthread_t thread;
    int thread_started;

    pthread_mutex_t lock;      /* guards the queue, what runs, and stats */
    pthread_cond_t changed;
    struct queue queue;
    int n_running, draining, stopping;
    struct engine_stats stats;

    /* The engine thread's. */
    struct pace pace;
    uint64_t turns;
    int is_blocked;            /* the next in line does not fit beside what runs: it waits until something ends */
};

/* sched.c: the engine thread; arg is the engine. Runs until `stopping`. */
void *sched_main(void *arg);
/* Ends a slot's request: its session keeps the tokens for the next turn, but never after a failure, whose cause may be in its state. */
void sched_finish(struct engine *e, int slot, enum finish why, const struct err *err);
/* The prompt is read: says so, and samples the first token. */
void sched_prompt_read(struct engine *e, int slot);
/* An end for a request that never ran. Lets go of the engine's reference. */
void sched_end_waiting(struct request *r);

/* admit.c: takes the next request in line into a slot and opens it there; 1 when one left the queue. */
int admit_next(struct engine *e);
/* The slot's load ended, well or not: its request goes on from what the session holds. */
void admit_loaded(struct engine *e, int slot);
/* Room for one more token of what runs in the slot: ERR_CAPACITY when memory gives none now. */
int admit_grow(struct engine *e, int slot) MUST_CHECK;

#endif
