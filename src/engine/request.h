/* Inside of the engine: a request as queue and engine thread see it. */
#ifndef ENGINE_REQUEST_H
#define ENGINE_REQUEST_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine/engine.h"
#include "engine/session.h"

#define EVENT_RING 256

struct request {
    struct engine *engine;
    struct request *next;          /* in the queue */
    struct ids prompt;
    struct request_params params;  /* prompt and bias point into this request */
    struct logit_bias *bias;
    atomic_int cancel;
    atomic_int references;         /* the caller's and the engine's */

    pthread_mutex_t lock;          /* guards the ring and `ended` */
    pthread_cond_t changed;
    struct token_event *ring;      /* [EVENT_RING] */
    int first, count;
    int ended;                     /* END or ERROR is in the ring or was taken */

    /* The engine thread's. */
    struct sampler *sampler;
    struct session *session;
    int64_t n_generated, budget;
    int64_t positions;             /* that it has been promised room for */
    int64_t n_cached;
    double prefill_ms;
    uint64_t submitted_ns, opened_ns, decode_start_ns;
    uint64_t delayed_ns;           /* since when it waits for its slot to be saved; 0 = it does not */
    uint64_t paused_ns;            /* since when its reader takes nothing; 0 = it does */
    int32_t last;                  /* sampled, not yet read by the model */
};

int request_create(const struct request_params *params, struct engine *e, struct request **out, struct err *err) MUST_CHECK;
void request_unref(struct request *r);

/* Its client left, or its deadline is past. */
int request_is_over(const struct request *r);
/* Whether `n` more events fit now. */
int request_has_room(struct request *r, int n);
/* Puts an event; a last event always finds room. Wakes the consumer. */
void request_put(struct request *r, const struct token_event *event);

#endif
