/* Full-prefix sync. Invariant: tokens[0, len) are exactly what the state has read; `logits` belongs to the last of them or is absent. Two snapshots are kept: where
 * the last prompt ended, less one token, and at the mark its owner gave (where the answer's turn begins), so that neither a regenerated answer nor a turn whose reasoning is
 * dropped from the next prompt re-reads the conversation. A snapshot's tokens are always a prefix of those held. */
#include "engine/session.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

#define MIN_CHUNK_ROWS 32

enum { MARK, PROMPT_END, N_SNAPSHOTS };

struct session {
    struct runner *runner;
    struct state *state;
    int64_t served;
    struct ids tokens;
    float *logits;                /* [n_vocab] */
    int has_logits;
    double row_ms;                /* what a row of the last long chunk took; 0 = not known yet */
    struct state_snapshot *snapshots[2]; /* MARK, PROMPT_END; each may be NULL */
    uint64_t anomalies;
};

/* Snapshots of positions above `position` go: their tokens are no longer held. */
static void drop_snapshots(struct session *s, int64_t position)
{
    for (int i = 0; i < N_SNAPSHOTS; i++)
        if (s->snapshots[i] && state_snapshot_position(s->snapshots[i]) > position) {
            state_snapshot_free(s->snapshots[i]);
            s->snapshots[i] = NULL;
        }
}

int session_create(struct runner *r, int64_t served_context, struct session **out, struct err *err)
{
    const struct model_config *c = &runner_model(r)->config;
    struct session *s = mem_alloc(MEM_STATE, sizeof *s);
    if (!s)
        return err_set(err, ERR_NO_MEMORY, "out of memory for a session");
    s->runner = r;
    s->served = served_context;
    s->logits = mem_alloc_array(MEM_STATE, (size_t)c->n_vocab, sizeof *s->logits);
    int rc = s->logits ? state_create(c, runner_device(r), served_context, &s->state, err) : err_set(err, ERR_NO_MEMORY, "out of memory for a session's logits");
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
    drop_snapshots(s, -1);
    state_free(s->state);
    ids_free(&s->tokens);
    mem_free(s->logits);
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

void session_reset(struct session *s)
{
    state_reset(s->state);
    s->tokens.len = 0;
    s->has_logits = 0;
    drop_snapshots(s, -1);
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
    const struct state_snapshot *best = NULL;
    if (state_length(s->state) != (int64_t)s->tokens.len) {
        s->anomalies++;
        session_reset(s);
        return 0;
    }
    if (common == s->tokens.len && (common < q->n || s->has_logits))
        return 0;
    for (int i = 0; i < N_SNAPSHOTS; i++) {
        size_t at = s->snapshots[i] ? (size_t)state_snapshot_position(s->snapshots[i]) : SIZE_MAX;
        if (at <= common && at < q->n)
            best = s->snapshots[i]; /* in order of position */
    }
    if (!best) {
        session_reset(s);
        return 0;
    }
    TRY(state_rewind(s->state, best, err));
    s->tokens.len = (size_t)state_snapshot_position(best);
    s->has_logits = 0;
    drop_snapshots(s, (int64_t)s->tokens.len);
    return 0;
}

/* Snapshot `which` moves to where the state is now; without memory for it there is just none. */
static void keep_snapshot(struct session *s, int which)
{
    struct err ignored;
    state_snapshot_free(s->snapshots[which]);
    s->snapshots[which] = NULL;
    if (state_snapshot_take(s->state, &s->snapshots[which], &ignored) < 0)
        s->snapshots[which] = NULL;
}

static int run_chunk(struct session *s, const int32_t *ids, int64_t n, int want_logits, struct err *err)
{
    struct batch_span span = {.seq = state_seq(s->state), .ids = ids, .n = n, .n_logits = want_logits};
    const float *logits;
    s->has_logits = 0;
    TRY(model_forward(s->runner, &span, 1, &logits, err));
    if (ids_append(&s->tokens, ids, (size_t)n) < 0) {
        session_reset(s);
        return err_set(err, ERR_NO_MEMORY, "out of memory for the session's tokens");
    }
    if (want_logits) {
        device_read(runner_device(s->runner), s->logits, logits, (size_t)runner_model(s->runner)->config.n_vocab * sizeof *logits);
        s->has_logits = 1;
    }
    return 0;
}

/* Rows of the next chunk: as many as the runner takes, fewer where those would take too long. */
static int64_t chunk_rows(const struct session *s, const struct sync_request *q)
{
    int64_t most = runner_max_rows(s->runner), rows = q->chunk_rows > 0 && q->chunk_rows < most ? q->chunk_rows : most;
    if (q->chunk_ms > 0) {
        double fit = s->row_ms > 0 ? q->chunk_ms / s->row_ms : 2 * MIN_CHUNK_ROWS; /* nothing is known yet: a short one tells */
        if (fit < (double)rows)
            rows = fit < MIN_CHUNK_ROWS ? MIN_CHUNK_ROWS < rows ? MIN_CHUNK_ROWS : rows : (int64_t)fit;
    }
    return rows;
}

/* Reads tokens [len, n) in chunks that end at the mark and before the last token, where snapshots are taken: the same prompt again reads one token. */
static int extend(struct session *s, const struct sync_request *q, struct err *err)
{
    while (s->tokens.len < q->n) {
        int64_t at = (int64_t)s->tokens.len, left = (int64_t)q->n - at, chunk = chunk_rows(s, q), n = left < chunk ? left : chunk;
        uint64_t start = clock_ns();
        if (q->cancel && atomic_load(q->cancel))
            return err_set(err, ERR_CANCELLED, "cancelled while reading the prompt");
        if (at == q->mark && at > 0)
            keep_snapshot(s, MARK);
        if (left == 1)
            keep_snapshot(s, PROMPT_END);
        else if (n == left)
            n--;
        if (q->mark > at && q->mark < at + n)
            n = q->mark - at;
        TRY(run_chunk(s, q->tokens + at, n, n == left, err));
        if (n >= MIN_CHUNK_ROWS)
            s->row_ms = clock_ms_since(start) / (double)n;
        if (q->progress)
            q->progress(q->ctx, (int64_t)s->tokens.len, (int64_t)q->n);
    }
    return 0;
}

int session_sync(struct session *s, const struct sync_request *q, struct sync_result *out, struct err *err)
{
    TRY(check_request(s, q, err));
    TRY(rewind_to_prefix(s, q, err));
    TRY(state_reserve(s->state, q->reserve > (int64_t)q->n ? q->reserve : (int64_t)q->n, err));
    int64_t held = (int64_t)s->tokens.len;
    uint64_t start = clock_ns();
    TRY(extend(s, q, err));
    *out = (struct sync_result){.n_reused = held, .n_prefilled = (int64_t)q->n - held, .prefill_ms = clock_ms_since(start)};
    return 0;
}

int session_step(struct session *const *sessions, const int32_t *tokens, int n, struct err *err)
{
    struct batch_span spans[64];
    const float *logits;
    if (n < 1 || n > 64)
        return err_set(err, ERR_INVALID, "a step of %d sequences (1 to 64 are possible)", n);
    for (int i = 0; i < n; i++) {
        TRY(state_reserve(sessions[i]->state, state_length(sessions[i]->state) + 1, err));
        spans[i] = (struct batch_span){.seq = state_seq(sessions[i]->state), .ids = &tokens[i], .n = 1, .n_logits = 1};
        sessions[i]->has_logits = 0;
    }
    TRY(model_forward(sessions[0]->runner, spans, n, &logits, err));
    size_t n_vocab = (size_t)runner_model(sessions[0]->runner)->config.n_vocab;
    for (int i = 0; i < n; i++) {
        struct session *s = sessions[i];
        if (ids_push(&s->tokens, tokens[i]) < 0) {
            session_reset(s);
            return err_set(err, ERR_NO_MEMORY, "out of memory for the session's tokens");
        }
        device_read(runner_device(s->runner), s->logits, logits + (size_t)i * n_vocab, n_vocab * sizeof *logits);
        s->has_logits = 1;
    }
    return 0;
}
