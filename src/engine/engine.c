/* The engine's life and what other threads may call. Invariant: sessions, runner and device are touched by the engine thread (sched.c) alone between engine_start and the join in
 * engine_stop. */
#include "engine/engine.h"

#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"
#include "engine/capacity.h"
#include "engine/engine_internal.h"

#define DEFAULT_QUEUE 64
#define READER_TIMEOUT_MS 30000

static int open_all(struct engine *e, struct err *err)
{
    TRY(capacity_plan(e->model, &e->options, &e->plan, err));
    e->n_slots = e->plan.n_slots;
    e->state_limit = mem_bytes(MEM_STATE) + e->plan.state_budget_bytes;
    TRY(device_open(&e->options.device, &e->device, err));
    TRY(runner_create(e->model, e->device, e->options.chunk_rows, e->n_slots, &e->runner, err));
    for (int i = 0; i < e->n_slots; i++) {
        TRY(session_create(e->runner, e->plan.cache_type, e->plan.n_positions, &e->slots[i].session, err));
        session_set_snapshots(e->slots[i].session, e->plan.n_snapshots);
    }
    return disk_open(e, err);
}

static void engine_free(struct engine *e)
{
    disk_close(e);
    for (int i = 0; i < e->n_slots; i++)
        session_free(e->slots[i].session);
    mem_set_limit(MEM_STATE, SIZE_MAX);
    runner_free(e->runner);
    device_close(e->device);
    pthread_cond_destroy(&e->changed);
    pthread_mutex_destroy(&e->lock);
    mem_free(e);
}

static int start_thread(struct engine *e, struct err *err)
{
    int rc = thread_create(&e->thread, sched_main, e);
    if (rc != 0)
        return err_set(err, ERR_IO, "the engine thread could not be created: %s", strerror(rc));
    e->thread_started = 1;
    return 0;
}

int engine_start(const struct model *m, const struct engine_options *options, struct engine **out, struct err *err)
{
    struct engine *e = mem_alloc(MEM_OTHER, sizeof *e);
    if (!e)
        return err_set(err, ERR_NO_MEMORY, "out of memory for the engine");
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&e->changed, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&e->lock, NULL);
    e->model = m;
    e->options = *options;
    e->fork_id = m->vocab ? vocab_find(m->vocab, "<|im_start|>", 12) : -1;
    e->queue.max = options->queue_max > 0 ? options->queue_max : DEFAULT_QUEUE;
    if (e->options.reader_timeout_ms <= 0)
        e->options.reader_timeout_ms = READER_TIMEOUT_MS;
    int rc = open_all(e, err);
    if (rc == 0)
        rc = start_thread(e, err);
    if (rc < 0)
        engine_free(e);
    else
        *out = e;
    return rc;
}

void engine_drain(struct engine *e)
{
    pthread_mutex_lock(&e->lock);
    e->draining = 1;
    pthread_mutex_unlock(&e->lock);
}

int engine_idle(struct engine *e)
{
    pthread_mutex_lock(&e->lock);
    int idle = e->n_running == 0 && e->queue.n == 0;
    pthread_mutex_unlock(&e->lock);
    return idle;
}

/* What waits is told that the engine goes. */
static void refuse_waiting(struct engine *e)
{
    for (struct request *r = queue_pop(&e->queue); r; r = queue_pop(&e->queue)) {
        request_cancel(r);
        sched_end_waiting(r);
    }
}

void engine_stop(struct engine *e)
{
    if (!e)
        return;
    pthread_mutex_lock(&e->lock);
    e->draining = e->stopping = 1;
    for (int i = 0; i < e->n_slots; i++)
        if (e->slots[i].request)
            request_cancel(e->slots[i].request);
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
    if (e->thread_started)
        pthread_join(e->thread, NULL);
    refuse_waiting(e);
    engine_free(e);
}

const struct plan *engine_plan(const struct engine *e)
{
    return &e->plan;
}

int64_t engine_context(const struct engine *e)
{
    return e->plan.n_positions;
}

const struct device *engine_device(const struct engine *e)
{
    return e->device;
}

const struct model *engine_model(const struct engine *e)
{
    return e->model;
}

static int check_params(const struct engine *e, const struct request_params *p, struct err *err)
{
    int64_t n_vocab = e->model->config.n_vocab;
    if (p->n_prompt < 1)
        return err_set(err, ERR_INVALID, "the prompt is empty");
    if ((int64_t)p->n_prompt >= e->plan.n_positions)
        return err_set(err, ERR_CONTEXT_LENGTH, "the prompt is %zu tokens and this server serves a context of %lld: it was refused whole rather than truncated (#3571)", p->n_prompt,
                       (long long)e->plan.n_positions);
    for (size_t i = 0; i < p->n_prompt; i++)
        if (p->prompt[i] < 0 || p->prompt[i] >= n_vocab)
            return err_set(err, ERR_INVALID, "token id %d is outside the vocabulary of %lld", p->prompt[i], (long long)n_vocab);
    if (p->n_logprobs > MAX_LOGPROBS)
        return err_set(err, ERR_INVALID, "%d logprobs were asked for, at most %d are possible", p->n_logprobs, MAX_LOGPROBS);
    return sample_params_check(&p->sampling, (int32_t)n_vocab, err);
}

static int enqueue(struct engine *e, struct request *r, struct err *err)
{
    int rc = 0;
    pthread_mutex_lock(&e->lock);
    if (e->draining) {
        rc = err_set(err, ERR_BUSY, "the server is shutting down and takes no new requests");
    } else if (queue_push(&e->queue, r) < 0) {
        rc = err_set(err, ERR_BUSY, "the queue is full: %d requests are waiting", e->queue.n);
    } else {
        e->stats.n_requests++;
        atomic_fetch_add(&r->references, 1);
        pthread_cond_signal(&e->changed);
    }
    e->stats.n_refused += rc < 0;
    pthread_mutex_unlock(&e->lock);
    return rc;
}

int engine_submit(struct engine *e, const struct request_params *params, struct request **out, struct err *err)
{
    struct request *r = NULL;
    TRY(check_params(e, params, err));
    TRY(request_create(params, e, &r, err));
    int rc = enqueue(e, r, err);
    if (rc < 0)
        request_unref(r);
    else
        *out = r;
    return rc;
}

void engine_stats_read(struct engine *e, struct engine_stats *out)
{
    pthread_mutex_lock(&e->lock);
    *out = e->stats;
    out->n_running = e->n_running;
    out->n_waiting = e->queue.n;
    pthread_mutex_unlock(&e->lock);
}

int engine_store_stats(struct engine *e, struct store_stats *out)
{
    if (e->store)
        store_stats(e->store, out);
    return e->store != NULL;
}
