/* Full-prefix sync. Invariant: tokens[0, len) are exactly what the state has read; `logits` belongs to the last of them or is absent; every snapshot is of a prefix of them,
 * and prompt_logits of the first prompt_end. Tokens are noted before the pass that reads them and taken back when it fails, so that nothing can fail between the two. */
#include "engine/session.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/room.h"
#include "model/plan.h"

#define MAX_PARTS 64

struct session {
    struct runner *runner;
    struct state *state;
    int64_t served;
    struct ids tokens;
    float *logits;                /* [n_vocab] */
    int has_logits;
    struct snapshots snapshots;
    float *prompt_logits;         /* [n_vocab]: of the last token of the prompt that was read last, so that the same prompt again reads nothing */
    size_t prompt_end;            /* 0 = none */
    const int32_t *prompt;        /* being read: [prompt_n], borrowed */
    size_t prompt_n;
    size_t pause;                 /* where reading stops next for a snapshot */
    size_t marks[SNAPSHOT_MARKS], n_marks;
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
    int rc = s->logits && s->prompt_logits ? state_create(c, runner_device(r), type, served_context, &s->state, err)
                                           : err_set(err, ERR_NO_MEMORY, "out of memory for a session's logits");
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

const struct snapshots *session_snapshots(const struct session *s)
{
    return &s->snapshots;
}

const float *session_logits(const struct session *s)
{
    return s->has_logits ? s->logits : NULL;
}

uint64_t session_anomalies(const struct session *s)
{
    return s->anomalies;
}

int64_t session_unread(const struct session *s)
{
    return (int64_t)(s->prompt_n - (s->prompt_n ? s->tokens.len : 0));
}

void session_set_snapshots(struct session *s, int n)
{
    snapshots_clear(&s->snapshots);
    snapshots_init(&s->snapshots, n);
    s->prompt_end = 0;
}

struct state_snapshot *session_keep(struct session *s)
{
    snapshots_keep(&s->snapshots, s->state);
    struct state_snapshot *newest = snapshots_newest(&s->snapshots, state_length(s->state));
    return newest && state_snapshot_position(newest) == state_length(s->state) ? newest : NULL;
}

struct state_snapshot *session_fork_point(const struct session *s)
{
    return snapshots_newest(&s->snapshots, s->n_marks > 0 ? (int64_t)s->marks[s->n_marks - 1] : state_length(s->state));
}

uint64_t session_trim(struct session *s, int64_t positions)
{
    uint64_t before = state_bytes(s->state);
    state_shrink(s->state, positions);
    return before - state_bytes(s->state);
}

uint64_t session_drop_snapshots(struct session *s)
{
    return snapshots_drop(&s->snapshots);
}

void session_reset(struct session *s)
{
    state_reset(s->state);
    s->tokens.len = s->prompt_n = 0;
    s->has_logits = 0;
    s->prompt_end = 0;
    snapshots_clear(&s->snapshots);
}

uint64_t session_give_back(struct session *s)
{
    uint64_t before = mem_bytes(MEM_STATE);
    session_reset(s);
    state_release(s->state);
    return before - mem_bytes(MEM_STATE);
}

size_t session_common(const struct session *s, const int32_t *tokens, size_t n)
{
    size_t i = 0;
    while (i < s->tokens.len && i < n && s->tokens.data[i] == tokens[i])
        i++;
    return i;
}

/* What tokens[0, n), of which `common` are held, can go on from. */
struct point {
    size_t position;
    int is_end;                       /* where the state stands */
    struct state_snapshot *snapshot;  /* or this; NULL = the beginning */
};

static struct point newest_point(const struct session *s, size_t common, size_t n)
{
    if (common == s->tokens.len && (common < n || s->has_logits))
        return (struct point){.position = common, .is_end = 1};
    int whole = common == n && s->prompt_end == n; /* its logits are kept; else one token at least is to be read */
    struct state_snapshot *snapshot = snapshots_newest(&s->snapshots, (int64_t)(common < n || whole ? common : n - 1));
    return (struct point){.position = snapshot ? (size_t)state_snapshot_position(snapshot) : 0, .snapshot = snapshot};
}

int64_t session_reusable(const struct session *s, const int32_t *tokens, size_t n)
{
    return (int64_t)newest_point(s, session_common(s, tokens, n), n).position;
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

/* Its logits, when the prompt's end is where the session stands now and the prompt is `n` tokens. */
static void take_prompt_logits(struct session *s, const struct session *from, size_t n)
{
    s->has_logits = s->tokens.len == n;
    if (s->has_logits)
        memcpy(s->logits, from->prompt_logits, (size_t)runner_model(s->runner)->config.n_vocab * sizeof *s->logits);
}

/* Goes back to the newest point that is a prefix of the request: where the state stands, a snapshot, or the beginning. */
static int rewind_to_prefix(struct session *s, const struct sync_request *q, struct err *err)
{
    struct point p = newest_point(s, session_common(s, q->tokens, q->n), q->n);
    if (p.is_end)
        return 0;
    if (!p.snapshot) {
        session_reset(s);
        return 0;
    }
    TRY(state_rewind(s->state, p.snapshot, err));
    s->tokens.len = p.position;
    snapshots_cut(&s->snapshots, state_length(s->state));
    take_prompt_logits(s, s, q->n);
    if (s->prompt_end > s->tokens.len)
        s->prompt_end = 0;
    return 0;
}

/* s, emptied before, becomes the donor as far as the prompt goes with it. */
static int copy_from_donor(struct session *s, const struct sync_request *q, struct err *err)
{
    const struct session *from = q->donor;
    struct point p = newest_point(from, session_common(from, q->tokens, q->n), q->n);
    if (p.position == 0)
        return 0;
    if (ids_append(&s->tokens, q->tokens, p.position) < 0)
        return err_set(err, ERR_NO_MEMORY, "out of memory for the session's tokens");
    int rc = state_fork(s->state, from->state, p.snapshot, err);
    if (rc < 0) {
        session_reset(s);
        return rc;
    }
    snapshots_share(&s->snapshots, &from->snapshots, (int64_t)p.position);
    if (p.is_end && from->has_logits && p.position == q->n) {
        memcpy(s->logits, from->logits, (size_t)runner_model(s->runner)->config.n_vocab * sizeof *s->logits);
        s->has_logits = 1;
    } else {
        take_prompt_logits(s, from, q->n);
    }
    return 0;
}

struct reclaim_both {
    struct session *session;
    const struct sync_request *request;
};

/* The session's own snapshots first: they are worth the least to a turn that needs the memory now. */
static uint64_t reclaim(void *ctx, uint64_t bytes)
{
    const struct reclaim_both *both = ctx;
    const struct sync_request *q = both->request;
    uint64_t given = snapshots_drop(&both->session->snapshots);
    if (given < bytes && q->reclaim)
        given += q->reclaim(q->reclaim_ctx, bytes - given);
    return given;
}

static int make_room(struct session *s, const struct sync_request *q, struct err *err)
{
    struct reclaim_both both = {.session = s, .request = q};
    int64_t unread = (int64_t)q->n - (q->donor ? session_reusable(q->donor, q->tokens, q->n) : (int64_t)s->tokens.len);
    int64_t rows = q->rows > 0 ? q->rows : runner_max_rows(s->runner), least = q->least_rows > 0 ? q->least_rows : 1;
    if (rows > unread + least - 1)
        rows = unread + least - 1;
    struct room_request room = {.state = s->state, .runner = s->runner, .positions = q->reserve > (int64_t)q->n ? q->reserve : (int64_t)q->n, .rows = rows > least ? rows : least,
                                .least_rows = least, .reclaim = reclaim, .ctx = &both};
    return room_for_turn(&room, err);
}

int session_grow(struct session *s, int64_t positions, uint64_t (*reclaim_others)(void *ctx, uint64_t bytes), void *ctx, struct err *err)
{
    struct sync_request q = {.reclaim = reclaim_others, .reclaim_ctx = ctx};
    struct reclaim_both both = {.session = s, .request = &q};
    struct room_request room = {.state = s->state, .runner = s->runner, .positions = positions, .rows = runner_rows(s->runner), .least_rows = runner_rows(s->runner), .reclaim = reclaim, .ctx = &both};
    return room_for_turn(&room, err);
}

/* Where reading pauses next for a snapshot: at a mark, or every so often; never where it would not be worth it. The prompt's end when nowhere. */
static size_t next_pause(const struct session *s)
{
    size_t at = s->tokens.len, best = s->prompt_n;
    for (size_t i = 0; i <= s->n_marks; i++) {
        size_t pause = i < s->n_marks ? s->marks[i] : (at / SNAPSHOT_INTERVAL + 1) * SNAPSHOT_INTERVAL;
        if (pause > at && pause < best && snapshots_wanted(&s->snapshots, (int64_t)pause))
            best = pause;
    }
    return best;
}

/* The prompt's end is kept with its logits. */
static void keep_prompt_end(struct session *s)
{
    if (s->prompt_end != s->prompt_n) {
        snapshots_keep(&s->snapshots, s->state);
        memcpy(s->prompt_logits, s->logits, (size_t)runner_model(s->runner)->config.n_vocab * sizeof *s->logits);
        s->prompt_end = s->prompt_n;
    }
    s->prompt_n = 0;
}

static void begin_prompt(struct session *s, const struct sync_request *q)
{
    s->prompt = q->tokens;
    s->prompt_n = q->n;
    s->n_marks = q->n_marks < SNAPSHOT_MARKS ? q->n_marks : SNAPSHOT_MARKS;
    for (size_t i = 0; i < s->n_marks; i++)
        s->marks[i] = q->marks[i];
    s->snapshots.pinned = s->n_marks > 0 ? (int64_t)s->marks[0] : 0;
    if (s->tokens.len == q->n) {
        keep_prompt_end(s);
        return;
    }
    snapshots_keep(&s->snapshots, s->state); /* where it stood: the end of an answer */
    s->pause = next_pause(s);
}

int session_open(struct session *s, const struct sync_request *q, int64_t *n_reused, struct err *err)
{
    s->prompt_n = 0;
    TRY(check_request(s, q, err));
    if (state_length(s->state) != (int64_t)s->tokens.len) {
        s->anomalies++;
        session_reset(s);
    }
    if (q->donor)
        session_reset(s);
    else
        TRY(rewind_to_prefix(s, q, err));
    TRY(make_room(s, q, err));
    if (q->donor)
        TRY(copy_from_donor(s, q, err));
    *n_reused = (int64_t)s->tokens.len;
    begin_prompt(s, q);
    return 0;
}

/* What a part reads, noted in its session's tokens already: a piece of the prompt, or the generated token. */
static int note_part(const struct session_part *part, struct batch_span *span, struct err *err)
{
    struct session *s = part->session;
    int64_t left = session_unread(s), to_pause = left ? (int64_t)(s->pause - s->tokens.len) : 1;
    *span = (struct batch_span){.seq = state_seq(s->state), .ids = left ? s->prompt + s->tokens.len : &part->token, .n = left ? part->rows : 1, .n_logits = 1};
    if (span->n > to_pause)
        span->n = to_pause;
    if (span->n < 1)
        return err_set(err, ERR_INVALID, "a part of no rows");
    if (left > span->n)
        span->n_logits = 0;
    if (ids_append(&s->tokens, span->ids, (size_t)span->n) < 0)
        return err_set(err, ERR_NO_MEMORY, "out of memory for the session's tokens");
    return 0;
}

static void after_part(struct session *s, const struct batch_span *span, const float **logits)
{
    size_t n_vocab = (size_t)runner_model(s->runner)->config.n_vocab;
    s->has_logits = span->n_logits > 0;
    if (s->has_logits) {
        device_read(runner_device(s->runner), s->logits, *logits, n_vocab * sizeof **logits);
        *logits += n_vocab;
    }
    if (s->prompt_n == 0)
        return;
    if (s->tokens.len == s->prompt_n) {
        keep_prompt_end(s);
    } else if (s->tokens.len == s->pause) {
        snapshots_keep(&s->snapshots, s->state);
        s->pause = next_pause(s);
    }
}

int session_run(const struct session_part *parts, int n, int64_t *read, struct err *err)
{
    struct batch_span spans[MAX_PARTS];
    const float *logits = NULL;
    if (n < 1 || n > MAX_PARTS)
        return err_set(err, ERR_INVALID, "a step of %d sequences (1 to %d are possible)", n, MAX_PARTS);
    int noted = 0, rc = 0;
    for (; noted < n && rc == 0; noted++) {
        rc = note_part(&parts[noted], &spans[noted], err);
        if (rc < 0)
            break;
    }
    if (rc == 0)
        rc = model_forward(parts[0].session->runner, spans, n, &logits, err);
    for (int i = 0; i < noted; i++) {
        if (rc < 0)
            parts[i].session->tokens.len -= (size_t)spans[i].n;
        else
            after_part(parts[i].session, &spans[i], &logits);
        if (read)
            read[i] = rc < 0 ? 0 : spans[i].n;
    }
    return rc;
}

static int read_to_end(struct session *s, const struct sync_request *q, struct err *err)
{
    while (session_unread(s) > 0) {
        int64_t rows = runner_rows(s->runner);
        if (q->cancel && atomic_load(q->cancel))
            return err_set(err, ERR_CANCELLED, "cancelled while reading the prompt");
        if (q->rows > 0 && q->rows < rows)
            rows = q->rows;
        TRY(session_run(&(struct session_part){.session = s, .rows = rows}, 1, NULL, err));
        if (q->progress)
            q->progress(q->ctx, (int64_t)s->tokens.len, (int64_t)q->n);
    }
    return 0;
}

int session_sync(struct session *s, const struct sync_request *q, struct sync_result *out, struct err *err)
{
    struct sync_result r = {0};
    TRY(session_open(s, q, &r.n_reused, err));
    uint64_t start = clock_ns();
    int rc = read_to_end(s, q, err);
    if (rc < 0) {
        s->prompt_n = 0; /* the rest was borrowed for this call only */
        return rc;
    }
    r.n_prefilled = (int64_t)q->n - r.n_reused;
    r.prefill_ms = clock_ms_since(start);
    *out = r;
    return 0;
}

int session_adopt(struct session *s, const int32_t *tokens, size_t n, struct err *err)
{
    s->tokens.len = s->prompt_n = 0;
    s->has_logits = 0;
    s->prompt_end = 0;
    snapshots_clear(&s->snapshots);
    if (ids_append(&s->tokens, tokens, n) == 0)
        return 0;
    session_reset(s);
    return err_set(err, ERR_NO_MEMORY, "out of memory for the session's tokens");
}
