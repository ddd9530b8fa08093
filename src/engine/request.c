/* The bounded ring between the engine thread and one consumer. Invariant: one slot is kept for the last event, so an end is never lost to a slow reader. */
#include "engine/request.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"

int request_create(const struct request_params *params, struct engine *e, struct request **out, struct err *err)
{
    struct request *r = mem_alloc(MEM_SERVE, sizeof *r);
    if (!r)
        return err_set(err, ERR_NO_MEMORY, "out of memory for a request");
    r->engine = e;
    r->params = *params;
    r->submitted_ns = clock_ns();
    atomic_init(&r->references, 1);
    pthread_mutex_init(&r->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&r->changed, &attr);
    pthread_condattr_destroy(&attr);
    r->ring = mem_alloc_array(MEM_SERVE, EVENT_RING, sizeof *r->ring);
    r->bias = mem_alloc_array(MEM_SERVE, params->sampling.n_bias + 1, sizeof *r->bias);
    if (!r->ring || !r->bias || ids_append(&r->prompt, params->prompt, params->n_prompt) < 0) {
        request_unref(r);
        return err_set(err, ERR_NO_MEMORY, "out of memory for a request of %zu tokens", params->n_prompt);
    }
    if (params->sampling.n_bias)
        memcpy(r->bias, params->sampling.bias, params->sampling.n_bias * sizeof *r->bias);
    r->params.prompt = r->prompt.data;
    r->params.sampling.bias = r->bias;
    *out = r;
    return 0;
}

void request_unref(struct request *r)
{
    if (atomic_fetch_sub(&r->references, 1) != 1)
        return;
    sampler_free(r->sampler);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    ids_free(&r->prompt);
    mem_free(r->ring);
    mem_free(r->bias);
    mem_free(r);
}

int request_is_over(const struct request *r)
{
    return atomic_load(&r->cancel) || (r->params.deadline_s > 0 && clock_ms_since(r->submitted_ns) > r->params.deadline_s * 1e3);
}

int request_has_room(struct request *r, int n)
{
    pthread_mutex_lock(&r->lock);
    int room = r->count + n < EVENT_RING;
    pthread_mutex_unlock(&r->lock);
    return room;
}

void request_put(struct request *r, const struct token_event *event)
{
    int is_last = event->kind == EVENT_END || event->kind == EVENT_ERROR;
    pthread_mutex_lock(&r->lock);
    if (r->count < EVENT_RING - !is_last && !r->ended) {
        r->ring[(r->first + r->count++) % EVENT_RING] = *event;
        r->ended = is_last;
        pthread_cond_signal(&r->changed);
    }
    if (r->params.notify) /* under the lock: request_release takes the consumer's callback away */
        r->params.notify(r->params.ctx);
    pthread_mutex_unlock(&r->lock);
}

int request_next(struct request *r, struct token_event *out)
{
    pthread_mutex_lock(&r->lock);
    int some = r->count > 0;
    if (some) {
        *out = r->ring[r->first];
        r->first = (r->first + 1) % EVENT_RING;
        r->count--;
    }
    pthread_mutex_unlock(&r->lock);
    return some;
}

void request_release(struct request *r)
{
    if (!r)
        return;
    pthread_mutex_lock(&r->lock);
    r->params.notify = NULL;
    pthread_mutex_unlock(&r->lock);
    request_cancel(r);
    request_unref(r);
}

int request_wait(struct request *r, int timeout_ms)
{
    struct timespec until = clock_after(timeout_ms);
    pthread_mutex_lock(&r->lock);
    int rc = 0;
    while (r->count == 0 && rc != ETIMEDOUT)
        rc = pthread_cond_timedwait(&r->changed, &r->lock, &until);
    int ready = r->count > 0;
    pthread_mutex_unlock(&r->lock);
    return ready;
}

void request_cancel(struct request *r)
{
    atomic_store(&r->cancel, 1);
}
