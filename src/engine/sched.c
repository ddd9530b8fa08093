/* The steps of the engine thread. Each step is one batch: a row of every sequence that generates and whose reader keeps up, and pieces of the prompts that are being read, as many rows
 * as leave the others their pace. Invariant: a request is looked at once a step, so that who leaves, is late or does not read is dealt with within one. */
#include "base/clock.h"
#include "base/log.h"
#include "engine/engine_internal.h"

#define IDLE_WAIT_MS 5       /* a paused reader, one in line for memory, or the disk, is looked at again this soon */

void sched_finish(struct engine *e, int slot, enum finish why, const struct err *err)
{
    struct request *r = e->slots[slot].request;
    if (e->slots[slot].load)
        disk_cancel_load(&e->slots[slot]);
    if (err)
        session_reset(e->slots[slot].session);
    else
        disk_save_turn(e, slot);
    double decode_ms = r->decode_start_ns ? clock_ms_since(r->decode_start_ns) : 0;
    struct token_event end = {.kind = EVENT_END, .finish = why, .n_prompt = (int64_t)r->prompt.len, .n_cached = r->n_cached, .n_generated = r->n_generated,
                              .prefill_ms = r->prefill_ms, .decode_ms = decode_ms};
    if (err)
        end = (struct token_event){.kind = EVENT_ERROR, .error = *err};
    pthread_mutex_lock(&e->lock);
    e->slots[slot].request = NULL;
    e->n_running--;
    e->stats.n_finished += !err && why != FINISH_CANCELLED;
    e->stats.n_cancelled += !err && why == FINISH_CANCELLED;
    e->stats.n_failed += err != NULL;
    e->stats.decode_seconds += decode_ms / 1e3;
    pthread_mutex_unlock(&e->lock);
    e->is_blocked = 0;
    request_put(r, &end);
    request_unref(r);
}

void sched_end_waiting(struct request *r)
{
    struct token_event end = {.kind = EVENT_END, .finish = atomic_load(&r->cancel) ? FINISH_CANCELLED : FINISH_LENGTH, .n_prompt = (int64_t)r->prompt.len};
    request_put(r, &end);
    request_unref(r);
}

/* Those in line whose client left, or whose time is over, end where they stand. */
static void sweep_queue(struct engine *e)
{
    pthread_mutex_lock(&e->lock);
    int before = e->queue.n;
    const struct request *head = e->queue.first;
    struct request *gone = queue_sweep(&e->queue);
    if (e->queue.first != head)
        e->is_blocked = 0; /* who comes next may fit */
    e->stats.n_cancelled += (uint64_t)(before - e->queue.n);
    pthread_mutex_unlock(&e->lock);
    while (gone) {
        struct request *next = gone->next;
        sched_end_waiting(gone);
        gone = next;
    }
}

/* Samples from the session's logits and says so; ends what is at its end. */
static void emit_token(struct engine *e, int slot)
{
    struct request *r = e->slots[slot].request;
    const float *logits = session_logits(r->session);
    struct token_event event = {.kind = EVENT_TOKEN};
    struct err err = {0};
    int32_t n_vocab = (int32_t)e->model->config.n_vocab;
    if (r->budget < 1) {
        sched_finish(e, slot, FINISH_LENGTH, NULL);
        return;
    }
    if (sampler_next(r->sampler, logits, &event.id, &err) < 0) {
        sched_finish(e, slot, FINISH_STOP, &err);
        return;
    }
    if (e->model->vocab && vocab_is_eog(e->model->vocab, event.id) && !r->params.ignore_eog) {
        sched_finish(e, slot, FINISH_STOP, NULL);
        return;
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
    if (r->n_generated >= r->budget)
        sched_finish(e, slot, FINISH_LENGTH, NULL);
}

void sched_prompt_read(struct engine *e, int slot)
{
    struct request *r = e->slots[slot].request;
    int64_t n_read = (int64_t)r->prompt.len - r->n_cached;
    uint64_t anomalies = 0;
    r->prefill_ms = clock_ms_since(r->opened_ns);
    r->decode_start_ns = clock_ns();
    if (n_read > 1)
        log_info("[qwen35] cpu batched prefill: %lld tokens in %.0f ms (%.1f tok/s, from position %lld)", (long long)n_read, r->prefill_ms,
                 (double)n_read / (r->prefill_ms > 0 ? r->prefill_ms : 1) * 1e3, (long long)r->n_cached);
    for (int i = 0; i < e->n_slots; i++)
        anomalies += session_anomalies(e->slots[i].session);
    pthread_mutex_lock(&e->lock);
    e->stats.prompt_tokens += (uint64_t)n_read;
    e->stats.cached_tokens += (uint64_t)r->n_cached;
    e->stats.prefill_seconds += r->prefill_ms / 1e3;
    e->stats.anomalies = anomalies;
    pthread_mutex_unlock(&e->lock);
    disk_save_prompt(e, slot);
    emit_token(e, slot);
}

/* One that was cancelled or is late ends here. */
static void end_over(struct engine *e, int slot)
{
    struct request *r = e->slots[slot].request;
    struct err err = {0};
    if (atomic_load(&r->cancel)) {
        sched_finish(e, slot, FINISH_CANCELLED, NULL);
    } else if (session_unread(r->session) == 0) {
        sched_finish(e, slot, FINISH_LENGTH, NULL);
    } else {
        err_set(&err, ERR_LIMIT, "the request's deadline of %.1f s passed", r->params.deadline_s);
        sched_finish(e, slot, FINISH_STOP, &err);
    }
}

/* A reader that takes nothing pauses its own sequence, and is dropped when that lasts. */
static void pause_reader(struct engine *e, int slot)
{
    struct request *r = e->slots[slot].request;
    if (!r->paused_ns)
        r->paused_ns = clock_ns();
    if (clock_ms_since(r->paused_ns) < e->options.reader_timeout_ms)
        return;
    log_info("a request was dropped: its answer was not read for %d s", e->options.reader_timeout_ms / 1000);
    sched_finish(e, slot, FINISH_CANCELLED, NULL);
}

/* The parts of one batch, and whose they are: first those that generate, then those that read. */
struct step {
    struct session_part parts[MAX_PARALLEL];
    int slots[MAX_PARALLEL];
    int n, n_decode;
    int starved;               /* a slot that waits for memory to go on; -1 = none */
    int n_pausing;             /* that stand still for another cause: their memory will be free some day */
    int64_t read[MAX_PARALLEL];
};

static void add_part(struct step *st, struct engine *e, int slot, int64_t rows)
{
    struct request *r = e->slots[slot].request;
    st->slots[st->n] = slot;
    st->parts[st->n++] = (struct session_part){.session = r->session, .rows = rows, .token = r->last};
}

static void gather(struct engine *e, struct step *st)
{
    int readers[MAX_PARALLEL], n_readers = 0;
    st->starved = -1;
    for (int i = 0; i < e->n_slots; i++) {
        struct request *r = e->slots[i].request;
        if (!r)
            continue;
        if (request_is_over(r)) {
            end_over(e, i);
        } else if (e->slots[i].load) {
            st->n_pausing++;
        } else if (session_unread(r->session) > 0) {
            readers[n_readers++] = i;
        } else if (!request_has_room(r, 2)) {
            pause_reader(e, i);
            st->n_pausing++;
        } else if (admit_grow(e, i) < 0) {
            st->starved = i;
        } else {
            r->paused_ns = 0;
            add_part(st, e, i, 1);
        }
    }
    st->n_decode = st->n;
    int64_t rows = n_readers ? pace_rows(&e->pace, st->n_decode, runner_rows(e->runner) - st->n_decode) : 0;
    for (int i = 0; i < n_readers && rows > 0; i++) { /* equal shares; what one leaves is the next one's */
        int64_t share = rows / (n_readers - i), unread = session_unread(e->slots[readers[i]].request->session);
        share = share < 1 ? 1 : share < unread ? share : unread;
        add_part(st, e, readers[i], share);
        rows -= share;
    }
}

static void after_part(struct engine *e, int slot, int is_decode)
{
    struct request *r = e->slots[slot].request;
    int64_t total = (int64_t)r->prompt.len, unread = session_unread(r->session);
    if (is_decode) {
        emit_token(e, slot);
        return;
    }
    if (request_has_room(r, 2))
        request_put(r, &(struct token_event){.kind = EVENT_PREFILL, .done = total - unread, .total = total});
    if (unread == 0)
        sched_prompt_read(e, slot);
}

/* A batch that fails is run again part by part, so that only whose part it is pays for it. */
static void run_singly(struct engine *e, const struct step *st)
{
    for (int i = 0; i < st->n; i++) {
        struct err err = {0};
        if (session_run(&st->parts[i], 1, NULL, &err) < 0)
            sched_finish(e, st->slots[i], FINISH_STOP, &err);
        else
            after_part(e, st->slots[i], i < st->n_decode);
    }
}

/* Returns how many sequences moved. */
static int step(struct engine *e)
{
    struct step st = {0};
    struct err err = {0};
    gather(e, &st);
    int is_stuck = st.n == 0 && st.n_pausing == 0 && st.starved >= 0;
    if (is_stuck) /* no one else will leave memory behind */
        sched_finish(e, st.starved, FINISH_LENGTH, NULL);
    if (st.n == 0)
        return is_stuck;
    uint64_t start = clock_ns();
    int rc = session_run(st.parts, st.n, st.read, &err);
    double ms = clock_ms_since(start);
    pthread_mutex_lock(&e->lock);
    e->stats.steps++;
    pthread_mutex_unlock(&e->lock);
    if (rc < 0) {
        run_singly(e, &st);
        return st.n;
    }
    int64_t n_prompt = 0;
    for (int i = st.n_decode; i < st.n; i++)
        n_prompt += st.read[i];
    pace_note(&e->pace, n_prompt, st.n_decode, ms);
    for (int i = 0; i < st.n; i++)
        after_part(e, st.slots[i], i < st.n_decode);
    return st.n;
}

static int is_saving(const struct engine *e)
{
    int saving = 0;
    for (int i = 0; i < e->n_slots; i++)
        saving |= disk_is_saving(&e->slots[i]);
    return saving;
}

/* Nothing moved: waits for a request, or a little for a reader or for memory. Returns whether the engine is to stop. */
static int wait_for_work(struct engine *e, int idle)
{
    pthread_mutex_lock(&e->lock);
    if (idle && !e->stopping) {
        if (e->n_running == 0 && e->queue.n == 0 && !is_saving(e)) {
            pthread_cond_wait(&e->changed, &e->lock);
        } else {
            struct timespec until = clock_after(IDLE_WAIT_MS);
            pthread_cond_timedwait(&e->changed, &e->lock, &until);
        }
    }
    int stopping = e->stopping;
    pthread_mutex_unlock(&e->lock);
    return stopping;
}

void *sched_main(void *arg)
{
    struct engine *e = arg;
    for (int moved = 0; !wait_for_work(e, moved == 0);) {
        sweep_queue(e);
        moved = 0;
        while (admit_next(e))
            moved++;
        moved += step(e);
        moved += disk_step(e, admit_loaded);
    }
    for (int i = 0; i < e->n_slots; i++)
        if (e->slots[i].request)
            sched_finish(e, i, FINISH_CANCELLED, NULL);
    return NULL;
}
