/* The engine thread: takes requests in order, reads prompts in chunks, decodes every running sequence in one batch a step. Invariant: sessions, runner and device are touched by
 * this thread alone between engine_start and the join in engine_stop. */
#include "engine/engine.h"

#include <pthread.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/capacity.h"
#include "engine/request.h"
#include "engine/snapshot.h"

#define MAX_PARALLEL CAPACITY_MAX_SLOTS
#define DEFAULT_QUEUE 64
#define CHUNK_MS 400.0    /* a cancelled request stops reading its prompt within about this */

struct engine {
    const struct model *model;
    struct engine_options options;
    struct plan plan;
    struct device *device;
    struct runner *runner;
    struct session *sessions[MAX_PARALLEL];
    int n_sessions;
    int32_t fork_id;         /* "<|im_start|>", where conversations fork; -1 when there is none */
    pthread_t thread;
    int thread_started;

    pthread_mutex_t lock;    /* guards the queue and stats */
    pthread_cond_t changed;
    struct request *first, *last;
    int n_waiting, n_running, draining, stopping;
    struct engine_stats stats;

    struct request *running[MAX_PARALLEL]; /* the engine thread's; by session */
};

static int open_all(struct engine *e, struct err *err)
{
    TRY(capacity_plan(e->model, &e->options, e->options.n_parallel, &e->plan, err));
    e->n_sessions = e->plan.n_slots;
    TRY(device_open(&e->options.device, &e->device, err));
    TRY(runner_create(e->model, e->device, e->options.chunk_rows, e->n_sessions, &e->runner, err));
    for (int i = 0; i < e->n_sessions; i++) {
        TRY(session_create(e->runner, e->plan.cache_type, e->plan.n_positions, &e->sessions[i], err));
        session_set_snapshots(e->sessions[i], e->plan.n_snapshots);
    }
    return 0;
}

static void engine_free(struct engine *e)
{
    for (int i = 0; i < e->n_sessions; i++)
        session_free(e->sessions[i]);
    runner_free(e->runner);
    device_close(e->device);
    pthread_cond_destroy(&e->changed);
    pthread_mutex_destroy(&e->lock);
    mem_free(e);
}

static void put_error(struct request *r, const struct err *err)
{
    struct token_event event = {.kind = EVENT_ERROR, .error = *err};
    request_put(r, &event);
}

/* Ends a request: its session keeps its tokens for the next turn, but never after a failure, whose cause may be in its state. */
static void finish(struct engine *e, int slot, enum finish why, const struct err *err)
{
    struct request *r = e->running[slot];
    if (err)
        session_reset(e->sessions[slot]);
    double decode_ms = r->decode_start_ns ? clock_ms_since(r->decode_start_ns) : 0;
    struct token_event event = {.kind = EVENT_END, .finish = why, .n_prompt = (int64_t)r->prompt.len, .n_cached = r->n_cached, .n_generated = r->n_generated,
                                .prefill_ms = r->prefill_ms, .decode_ms = decode_ms};
    pthread_mutex_lock(&e->lock);
    e->running[slot] = NULL;
    e->n_running--;
    e->stats.n_finished += !err && why != FINISH_CANCELLED;
    e->stats.n_cancelled += !err && why == FINISH_CANCELLED;
    e->stats.n_failed += err != NULL;
    e->stats.decode_seconds += decode_ms / 1e3;
    pthread_mutex_unlock(&e->lock);
    if (err)
        put_error(r, err);
    else
        request_put(r, &event);
    request_unref(r);
}

static int step(struct engine *e);

static int past_deadline(const struct request *r)
{
    return r->params.deadline_s > 0 && clock_ms_since(r->submitted_ns) > r->params.deadline_s * 1e3;
}

/* Those in the queue whose client left, or whose time is over, end where they stand. */
static void sweep_queue(struct engine *e)
{
    struct request *gone = NULL, **at;
    pthread_mutex_lock(&e->lock);
    e->last = NULL;
    for (at = &e->first; *at;) {
        struct request *r = *at;
        if (atomic_load(&r->cancel) || past_deadline(r)) {
            *at = r->next;
            r->next = gone;
            gone = r;
            e->n_waiting--;
            e->stats.n_cancelled++;
        } else {
            e->last = r;
            at = &r->next;
        }
    }
    pthread_mutex_unlock(&e->lock);
    while (gone) {
        struct request *r = gone;
        struct token_event event = {.kind = EVENT_END, .finish = atomic_load(&r->cancel) ? FINISH_CANCELLED : FINISH_LENGTH, .n_prompt = (int64_t)r->prompt.len};
        gone = r->next;
        request_put(r, &event);
        request_unref(r);
    }
}

/* Between the chunks of a prompt: the others go on, one step each. */
static void on_progress(void *ctx, int64_t done, int64_t total)
{
    struct request *r = ctx;
    struct token_event event = {.kind = EVENT_PREFILL, .done = done, .total = total};
    if (past_deadline(r))
        request_cancel(r);
    if (request_has_room(r, 2))
        request_put(r, &event);
    sweep_queue(r->engine);
    if (done < total)
        (void)step(r->engine);
}

/* The idle session where the most is saved and the least is lost: tokens shared with the prompt, less those that would be given up. An empty one scores 0, so that a conversation
 * is not thrown away for a few words that all begin with. */
static int choose_slot(const struct engine *e, const struct request *r)
{
    int best = -1;
    int64_t best_score = 0;
    for (int i = 0; i < e->n_sessions; i++) {
        size_t held, common = 0;
        const int32_t *tokens = session_tokens(e->sessions[i], &held);
        if (e->running[i])
            continue;
        while (common < held && common < r->prompt.len && tokens[common] == r->prompt.data[common])
            common++;
        int64_t score = (int64_t)common - (int64_t)(held - common);
        if (best < 0 || score > best_score) {
            best = i;
            best_score = score;
        }
    }
    return best;
}

/* Rows of the output that stand for no token are never sampled. */
static void ban_tokens(const struct engine *e, struct request *r)
{
    const struct vocab *v = e->model->vocab;
    int32_t n = (int32_t)e->model->config.n_vocab;
    for (int32_t i = 0; v && i < n; i++)
        if (i >= vocab_n_tokens(v) || !vocab_is_emittable(v, i))
            sampler_ban(r->sampler, i);
}

/* Idle sessions' memory, for a turn that does not fit otherwise; what they held is read again when it is asked for. */
static int reclaim_idle(void *ctx)
{
    struct engine *e = ((struct request *)ctx)->engine;
    int given = 0;
    for (int i = 0; i < e->n_sessions; i++)
        if (!e->running[i])
            given |= session_give_back(e->sessions[i]);
    return given;
}

static int begin(struct engine *e, struct request *r, int slot, struct err *err)
{
    struct sync_result result;
    size_t marks[SNAPSHOT_MARKS];
    int64_t left = e->plan.n_positions - (int64_t)r->prompt.len, asked = r->params.max_tokens;
    r->session = e->sessions[slot];
    r->budget = asked < 0 || asked > left ? left : asked;
    TRY(sampler_create(&r->params.sampling, (int32_t)e->model->config.n_vocab, r->prompt.data, r->prompt.len, &r->sampler, err));
    ban_tokens(e, r);
    struct sync_request q = {.tokens = r->prompt.data, .n = r->prompt.len, .reserve = (int64_t)r->prompt.len + r->budget, .cancel = &r->cancel, .progress = on_progress, .ctx = r,
                             .chunk_rows = e->options.chunk_rows, .chunk_ms = CHUNK_MS, .marks = marks, .reclaim = reclaim_idle};
    if (e->fork_id >= 0)
        q.n_marks = snapshot_marks(r->prompt.data, r->prompt.len, e->fork_id, marks);
    TRY(session_sync(r->session, &q, &result, err));
    r->is_reading = 0;
    r->n_cached = result.n_reused;
    r->prefill_ms = result.prefill_ms;
    r->decode_start_ns = clock_ns();
    if (result.n_prefilled > 1)
        log_info("[qwen35] cpu batched prefill: %lld tokens in %.0f ms (%.1f tok/s, from position %lld)", (long long)result.n_prefilled, result.prefill_ms,
                 (double)result.n_prefilled / (result.prefill_ms > 0 ? result.prefill_ms : 1) * 1e3, (long long)result.n_reused);
    pthread_mutex_lock(&e->lock);
    e->stats.prompt_tokens += (uint64_t)result.n_prefilled;
    e->stats.cached_tokens += (uint64_t)result.n_reused;
    e->stats.prefill_seconds += result.prefill_ms / 1e3;
    e->stats.anomalies = 0;
    for (int i = 0; i < e->n_sessions; i++)
        e->stats.anomalies += session_anomalies(e->sessions[i]);
    pthread_mutex_unlock(&e->lock);
    return 0;
}

/* Samples from the session's logits and says so. Returns 1 while the request goes on. */
static int emit_token(struct engine *e, int slot)
{
    struct request *r = e->running[slot];
    const float *logits = session_logits(r->session);
    struct token_event event = {.kind = EVENT_TOKEN};
    struct err err = {0};
    int32_t n_vocab = (int32_t)e->model->config.n_vocab;
    if (r->budget < 1) {
        finish(e, slot, FINISH_LENGTH, NULL);
        return 0;
    }
    if (sampler_next(r->sampler, logits, &event.id, &err) < 0) {
        finish(e, slot, FINISH_STOP, &err);
        return 0;
    }
    if (e->model->vocab && vocab_is_eog(e->model->vocab, event.id) && !r->params.ignore_eog) {
        finish(e, slot, FINISH_STOP, NULL);
        return 0;
    }
    if (r->params.n_logprobs >= 0) {
        event.logprob = sample_logprob(logits, n_vocab, event.id);
        event.n_top = sample_top(logits, n_vocab, r->params.n_logprobs, event.top_ids, event.top_logprobs);
    }
    r->last = event.id;
    r->n_generated++;
    request_put(r, &event);
    pthread_mutex_lock(&e->lock);
    e->stats.generated_tokens++;
    pthread_mutex_unlock(&e->lock);
    if (r->n_generated >= r->budget) {
        finish(e, slot, FINISH_LENGTH, NULL);
        return 0;
    }
    return 1;
}

/* Takes the next request in line into a free session and reads its prompt. */
static void admit(struct engine *e, struct request *r)
{
    struct token_event event = {.kind = EVENT_STARTED};
    struct err err = {0};
    int slot = choose_slot(e, r);
    r->is_reading = 1;
    pthread_mutex_lock(&e->lock);
    e->running[slot] = r;
    pthread_mutex_unlock(&e->lock);
    request_put(r, &event);
    int rc = atomic_load(&r->cancel) ? ERR_CANCELLED : begin(e, r, slot, &err);
    if (rc == ERR_CANCELLED && past_deadline(r))
        rc = err_set(&err, ERR_LIMIT, "the request's deadline of %.1f s passed", r->params.deadline_s);
    if (rc == ERR_CANCELLED)
        finish(e, slot, FINISH_CANCELLED, NULL);
    else if (rc < 0)
        finish(e, slot, FINISH_STOP, &err);
    else
        emit_token(e, slot);
}

/* One decode step for every running sequence whose reader keeps up. Returns how many moved. */
static int step(struct engine *e)
{
    struct session *sessions[MAX_PARALLEL];
    int32_t tokens[MAX_PARALLEL];
    int slots[MAX_PARALLEL], n = 0;
    struct err err = {0};
    for (int i = 0; i < e->n_sessions; i++) {
        struct request *r = e->running[i];
        if (!r || r->is_reading)
            continue;
        if (atomic_load(&r->cancel)) {
            finish(e, i, FINISH_CANCELLED, NULL);
        } else if (past_deadline(r)) {
            finish(e, i, FINISH_LENGTH, NULL);
        } else if (request_has_room(r, 2)) {
            sessions[n] = r->session;
            tokens[n] = r->last;
            slots[n++] = i;
        }
    }
    if (n == 0)
        return 0;
    int rc = session_step(sessions, tokens, n, &err);
    pthread_mutex_lock(&e->lock);
    e->stats.steps++;
    pthread_mutex_unlock(&e->lock);
    for (int i = 0; i < n; i++) {
        if (rc < 0)
            finish(e, slots[i], FINISH_STOP, &err);
        else
            emit_token(e, slots[i]);
    }
    return n;
}

/* The next request when a session is free for it. Waits when there is nothing at all to do; a paused reader is looked at again soon. */
static struct request *next_request(struct engine *e, int idle)
{
    struct request *r = NULL;
    pthread_mutex_lock(&e->lock);
    if (idle && !e->stopping && !(e->first && e->n_running < e->n_sessions)) {
        if (e->n_running == 0) {
            pthread_cond_wait(&e->changed, &e->lock);
        } else {
            struct timespec until;
            clock_gettime(CLOCK_MONOTONIC, &until);
            until.tv_nsec += 5000000;
            if (until.tv_nsec >= 1000000000L) {
                until.tv_sec++;
                until.tv_nsec -= 1000000000L;
            }
            pthread_cond_timedwait(&e->changed, &e->lock, &until);
        }
    }
    if (e->first && e->n_running < e->n_sessions && !e->stopping) {
        r = e->first;
        e->first = r->next;
        if (!e->first)
            e->last = NULL;
        e->n_waiting--;
        e->n_running++;
    }
    pthread_mutex_unlock(&e->lock);
    return r;
}

static int is_stopping(struct engine *e)
{
    pthread_mutex_lock(&e->lock);
    int stopping = e->stopping;
    pthread_mutex_unlock(&e->lock);
    return stopping;
}

static void *engine_main(void *arg)
{
    struct engine *e = arg;
    int moved = 0;
    while (!is_stopping(e)) {
        sweep_queue(e);
        struct request *r = next_request(e, moved == 0);
        if (r)
            admit(e, r);
        moved = step(e) + (r != NULL);
    }
    for (int i = 0; i < e->n_sessions; i++)
        if (e->running[i])
            finish(e, i, FINISH_CANCELLED, NULL);
    return NULL;
}

static int start_thread(struct engine *e, struct err *err)
{
    int rc = pthread_create(&e->thread, NULL, engine_main, e);
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
    if (e->options.queue_max <= 0)
        e->options.queue_max = DEFAULT_QUEUE;
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
    int idle = e->n_running == 0 && e->n_waiting == 0;
    pthread_mutex_unlock(&e->lock);
    return idle;
}

/* What waits is told that the engine goes. */
static void refuse_waiting(struct engine *e)
{
    pthread_mutex_lock(&e->lock);
    struct request *r = e->first;
    e->first = e->last = NULL;
    e->n_waiting = 0;
    pthread_mutex_unlock(&e->lock);
    while (r) {
        struct request *next = r->next;
        struct token_event event = {.kind = EVENT_END, .finish = FINISH_CANCELLED, .n_prompt = (int64_t)r->prompt.len};
        request_put(r, &event);
        request_unref(r);
        r = next;
    }
}

void engine_stop(struct engine *e)
{
    if (!e)
        return;
    pthread_mutex_lock(&e->lock);
    e->draining = e->stopping = 1;
    for (int i = 0; i < e->n_sessions; i++)
        if (e->running[i])
            request_cancel(e->running[i]);
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
    } else if (e->n_waiting >= e->options.queue_max) {
        rc = err_set(err, ERR_BUSY, "the queue is full: %d requests are waiting", e->n_waiting);
    } else {
        if (e->last)
            e->last->next = r;
        else
            e->first = r;
        e->last = r;
        e->n_waiting++;
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
    out->n_waiting = e->n_waiting;
    pthread_mutex_unlock(&e->lock);
}
