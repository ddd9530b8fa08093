/* Full-prefix sync. Invariant: tokens[0, len) are exactly what the state has read; `logits` belongs to the last of them or is absent; every snapshot is of a prefix of them,
 * and prompt_logits of the first prompt_end. Tokens are noted before the pass that reads them and taken back when it fails, so that nothing can fail between the two. */
#include "engine/session.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/snapshot.h"
#include "model/plan.h"

#define MAX_STEP 64
#define MIN_CHUNK_ROWS 32

struct session {
    struct runner *runner;
    struct state *state;
    int64_t served;
    struct ids tokens;
    float *logits;                /* [n_vocab] */
    int has_logits;
    double row_ms;                /* what a row of the last long chunk took; 0 = not known yet */
    struct snapshots snapshots;
    float *prompt_logits;         /* [n_vocab]: of the last token of the prompt that was read last, so that the same prompt again reads nothing */
    size_t prompt_end;            /* 0 = none */
    uint64_t anomalies;
};

int session_create(struct runner *r, enum kv_type type, int64_t served_context, struct session **out, struct err *err)
{
    const struct model_config *c = &runner_model(r)->config;
    struct session *s = mem_alloc(MEM_STATE, sizeof *s);
    if (!s)
        return err_set(err, ERR_NO_MEMORY, "out of memory for a session");
    s->runner = r;
    s->served = served_context;
    snapshots_init(&s->snapshots, PLAN_SNAPSHOTS);
    s->logits = mem_alloc_array(MEM_STATE, (size_t)c->n_vocab, sizeof *s->logits);
    s->prompt_logits = mem_alloc_array(MEM_STATE, (size_t)c->n_vocab, sizeof *s->logits);
    int rc = s->logits && s->prompt_logits ? state_create(c, runner_device(r), type, served_context, &s->state, err) : err_set(err, ERR_NO_MEMORY, "out of memory for a session's logits");
    if (rc < 0)
        session_free(s);
    else
        *out = s;
    return rc;
}

void session_free(struct session *s)
{
    if (!s)
        return;
    snapshots_clear(&s->snapshots);
    state_free(s->state);
    ids_free(&s->tokens);
    mem_free(s->logits);
    mem_free(s->prompt_logits);
    mem_free(s);
}

const int32_t *session_tokens(const struct session *s, size_t *n)
{
    *n = s->tokens.len;
    return s->tokens.data;
}

struct state *session_state(struct session *s)
{
    return s->state;
}

const float *session_logits(const struct session *s)
{
    return s->has_logits ? s->logits : NULL;
}

uint64_t session_anomalies(const struct session *s)
{
    return s->anomalies;
}

void session_set_snapshots(struct session *s, int n)
{
    snapshots_clear(&s->snapshots);
    snapshots_init(&s->snapshots, n);
    s->prompt_end = 0;
}

void session_reset(struct session *s)
{
    state_reset(s->state);
    s->tokens.len = 0;
    s->has_logits = 0;
    s->prompt_end = 0;
    snapshots_clear(&s->snapshots);
}

int session_give_back(struct session *s)
{
    int held = state_bytes(s->state) > 0 || s->snapshots.n > 0;
    session_reset(s);
    state_release(s->state);
    return held;
}

static size_t common_prefix(const struct ids *held, const int32_t *tokens, size_t n)
{
    size_t i = 0;
    while (i < held->len && i < n && held->data[i] == tokens[i])
        i++;
    return i;
}

static int check_request(const struct session *s, const struct sync_request *q, struct err *err)
{
    int64_t n_vocab = runner_model(s->runner)->config.n_vocab;
    if (q->n < 1)
        return err_set(err, ERR_INVALID, "an empty prompt cannot be read");
    if ((int64_t)q->n > s->served)
        return err_set(err, ERR_CONTEXT_LENGTH, "%zu tokens do not fit the served context of %lld", q->n, (long long)s->served);
    for (size_t i = 0; i < q->n; i++)
        if (q->tokens[i] < 0 || q->tokens[i] >= n_vocab)
            return err_set(err, ERR_INVALID, "token id %d is outside the vocabulary of %lld", q->tokens[i], (long long)n_vocab);
    return 0;
}

/* Goes back to the newest point that is a prefix of the request: where the state stands, a snapshot, or the beginning. */
static int rewind_to_prefix(struct session *s, const struct sync_request *q, struct err *err)
{
    size_t common = common_prefix(&s->tokens, q->tokens, q->n);
    if (state_length(s->state) != (int64_t)s->tokens.len) {
        s->anomalies++;
        session_reset(s);
        return 0;
    }
    if (common == s->tokens.len && (common < q->n || s->has_logits))
        return 0;
    int whole = common == q->n && s->prompt_end == q->n; /* its logits are kept; else one token at least is to be read */
    const struct state_snapshot *snapshot = snapshots_newest(&s->snapshots, (int64_t)(common < q->n || whole ? common : q->n - 1));
    if (!snapshot) {
        session_reset(s);
        return 0;
    }
    TRY(state_rewind(s->state, snapshot, err));
    s->tokens.len = (size_t)state_snapshot_position(snapshot);
    snapshots_cut(&s->snapshots, state_length(s->state));
    s->has_logits = s->tokens.len == q->n;
    if (s->has_logits)
        memcpy(s->logits, s->prompt_logits, (size_t)runner_model(s->runner)->config.n_vocab * sizeof *s->logits);
    if (s->prompt_end > s->tokens.len)
        s->prompt_end = 0;
    return 0;
}

/* Memory for the whole turn; what can be read again is given back before the turn is refused. */
static int reserve(struct session *s, const struct sync_request *q, struct err *err)
{
    int64_t positions = q->reserve > (int64_t)q->n ? q->reserve : (int64_t)q->n;
    int rc = state_reserve(s->state, positions, err);
    if (rc != ERR_CAPACITY)
        return rc;
    int given = s->snapshots.n > 0;
    snapshots_clear(&s->snapshots);
    if (q->reclaim && q->reclaim(q->ctx))
        given = 1;
    return given ? state_reserve_exact(s->state, positions, err) : rc;
}

/* Runs the spans of n sessions, whose tokens are noted already; takes the tokens back when it fails. */
static int run(struct session *const *sessions, const struct batch_span *spans, int n, struct err *err)
{
    const float *logits;
    int rc = model_forward(sessions[0]->runner, spans, n, &logits, err);
    size_t n_vocab = (size_t)runner_model(sessions[0]->runner)->config.n_vocab;
    for (int i = 0; i < n; i++) {
        struct session *s = sessions[i];
        if (rc < 0) {
            s->tokens.len -= (size_t)spans[i].n;
            continue;
        }
        s->has_logits = spans[i].n_logits > 0;
        if (!s->has_logits)
            continue;
        device_read(runner_device(s->runner), s->logits, logits, n_vocab * sizeof *logits);
        logits += n_vocab;
    }
    return rc;
}

static int run_chunk(struct session *s, const int32_t *ids, int64_t n, int want_logits, struct err *err)
{
    struct batch_span span = {.seq = state_seq(s->state), .ids = ids, .n = n, .n_logits = want_logits};
    if (ids_append(&s->tokens, ids, (size_t)n) < 0)
        return err_set(err, ERR_NO_MEMORY, "out of memory for the session's tokens");
    return run(&s, &span, 1, err);
}

/* Where reading pauses next for a snapshot: at a mark, or every so often; never where it would not be worth it. n when nowhere. */
static size_t next_pause(const struct session *s, const struct sync_request *q)
{
    size_t at = s->tokens.len, best = q->n;
    for (size_t i = 0; i <= q->n_marks; i++) {
        size_t pause = i < q->n_marks ? q->marks[i] : (at / SNAPSHOT_INTERVAL + 1) * SNAPSHOT_INTERVAL;
        if (pause > at && pause < best && snapshots_wanted(&s->snapshots, (int64_t)pause))
            best = pause;
    }
    return best;
}

/* Takes a snapshot where the prompt ends, and keeps its logits. */
static void keep_prompt_end(struct session *s)
{
    snapshots_keep(&s->snapshots, s->state);
    memcpy(s->prompt_logits, s->logits, (size_t)runner_model(s->runner)->config.n_vocab * sizeof *s->logits);
    s->prompt_end = s->tokens.len;
}

/* Rows of the next chunk: as many as the runner takes, fewer where those would take too long. */
static size_t chunk_rows(const struct session *s, const struct sync_request *q)
{
    int64_t most = runner_max_rows(s->runner), rows = q->chunk_rows > 0 && q->chunk_rows < most ? q->chunk_rows : most;
    if (q->chunk_ms > 0) {
        double fit = s->row_ms > 0 ? q->chunk_ms / s->row_ms : 2 * MIN_CHUNK_ROWS; /* nothing is known yet: a short one tells */
        if (fit < (double)rows)
            rows = fit < MIN_CHUNK_ROWS ? MIN_CHUNK_ROWS < rows ? MIN_CHUNK_ROWS : rows : (int64_t)fit;
    }
    return (size_t)rows;
}

/* Reads tokens [len, n) in chunks. */
static int extend(struct session *s, const struct sync_request *q, struct err *err)
{
    size_t pause = s->tokens.len;
    while (s->tokens.len < q->n) {
        if (q->cancel && atomic_load(q->cancel))
            return err_set(err, ERR_CANCELLED, "cancelled while reading the prompt");
        size_t at = s->tokens.len;
        if (at == pause) { /* where it stood too: the end of an answer */
            snapshots_keep(&s->snapshots, s->state);
            pause = next_pause(s, q);
        }
        size_t rows = chunk_rows(s, q), end = pause - at < rows ? pause : at + rows;
        uint64_t start = clock_ns();
        TRY(run_chunk(s, q->tokens + at, (int64_t)(end - at), end == q->n, err));
        if (end - at >= MIN_CHUNK_ROWS)
            s->row_ms = clock_ms_since(start) / (double)(end - at);
        if (q->progress)
            q->progress(q->ctx, (int64_t)s->tokens.len, (int64_t)q->n);
    }
    if (s->prompt_end != q->n)
        keep_prompt_end(s);
    return 0;
}

int session_sync(struct session *s, const struct sync_request *q, struct sync_result *out, struct err *err)
{
    TRY(check_request(s, q, err));
    TRY(rewind_to_prefix(s, q, err));
    TRY(reserve(s, q, err));
    int64_t held = (int64_t)s->tokens.len;
    uint64_t start = clock_ns();
    TRY(extend(s, q, err));
    *out = (struct sync_result){.n_reused = held, .n_prefilled = (int64_t)q->n - held, .prefill_ms = clock_ms_since(start)};
    return 0;
}

int session_step(struct session *const *sessions, const int32_t *tokens, int n, struct err *err)
{
    struct batch_span spans[MAX_STEP];
    if (n < 1 || n > MAX_STEP)
        return err_set(err, ERR_INVALID, "a step of %d sequences (1 to %d are possible)", n, MAX_STEP);
    for (int i = 0; i < n; i++)
        TRY(state_reserve(sessions[i]->state, state_length(sessions[i]->state) + 1, err));
    for (int i = 0; i < n; i++) {
        spans[i] = (struct batch_span){.seq = state_seq(sessions[i]->state), .ids = &tokens[i], .n = 1, .n_logits = 1};
        if (ids_push(&sessions[i]->tokens, tokens[i]) < 0) {
            while (i-- > 0)
                sessions[i]->tokens.len--;
            return err_set(err, ERR_NO_MEMORY, "out of memory for the session's tokens");
        }
    }
    return run(sessions, spans, n, err);
}
