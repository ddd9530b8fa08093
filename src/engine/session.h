/* One timeline: the tokens that a state holds, and the last logits. Callers hand over the FULL token list; session_open finds the common prefix, goes back to it and makes room for
 * the turn, then session_run reads the rest in whatever pieces the scheduler likes. session_sync is both, for one sequence alone. There is no other way in. Owned by the engine
 * thread. */
#ifndef ENGINE_SESSION_H
#define ENGINE_SESSION_H

#include <stdatomic.h>

#include "base/buf.h"
#include "engine/snapshot.h"
#include "engine/state.h"

struct session;

int session_create(struct runner *r, enum kv_type type, int64_t served_context, struct session **out, struct err *err) MUST_CHECK;
void session_free(struct session *s);
const int32_t *session_tokens(const struct session *s, size_t *n);
struct state *session_state(struct session *s);
const struct snapshots *session_snapshots(const struct session *s);

struct sync_request {
    const int32_t *tokens;               /* borrowed until they are read */
    size_t n;
    int64_t reserve;                     /* positions of the whole turn: n + budget; state is grown to it before anything runs. 0 = n */
    const size_t *marks;                 /* where this conversation may fork (engine/snapshot.h), ascending; may be NULL; copied */
    size_t n_marks;
    struct session *donor;               /* another session, whose snapshots may hold a longer prefix, to be copied from; or NULL */
    int64_t rows;                        /* of a chunk, wanted; 0 = the runner's max_rows */
    int64_t least_rows;                  /* of the workspace that others need meanwhile; 0 = 1 */
    uint64_t (*reclaim)(void *ctx, uint64_t bytes); /* asked when not even the exact size fits: gives memory back elsewhere, returns the bytes. May be NULL */
    void *reclaim_ctx;
    /* session_sync alone looks at what follows. */
    const atomic_int *cancel;            /* looked at before every chunk; may be NULL */
    void (*progress)(void *ctx, int64_t done, int64_t total); /* after every chunk; may be NULL */
    void *ctx;
};

struct sync_result {
    int64_t n_reused;                    /* tokens that were not read again */
    int64_t n_prefilled;
    double prefill_ms;
};

/* The state goes back to the newest point that is a prefix of the tokens (or becomes the donor's, where that reaches farther), with memory for the turn. n_reused tokens need not be
 * read; session_unread more are. The invariant state length == token count is checked; broken, it is a cold prefill and counted. When it fails the session is consistent. */
int session_open(struct session *s, const struct sync_request *request, int64_t *n_reused, struct err *err) MUST_CHECK;

/* Tokens of the opened prompt that are still to be read; 0: session_logits is of the last of them. */
int64_t session_unread(const struct session *s);

/* How many of `tokens` this session holds, and how many of them it need not read again: up to its end, its newest fitting snapshot, or 0. */
size_t session_common(const struct session *s, const int32_t *tokens, size_t n);
int64_t session_reusable(const struct session *s, const int32_t *tokens, size_t n);

/* One session's share of a batch: up to `rows` of its unread prompt (fewer where a snapshot is due), or, when there is none, one generated token. */
struct session_part {
    struct session *session;
    int64_t rows;
    int32_t token;
};

/* Runs n different sessions' parts in one batch. read[i] (may be NULL) tells how many rows part i took. On failure none has moved. */
int session_run(const struct session_part *parts, int n, int64_t *read, struct err *err) MUST_CHECK;

/* Opens and reads to the end. On ERR_CANCELLED the session holds what was done so far, consistently. */
int session_sync(struct session *s, const struct sync_request *request, struct sync_result *out, struct err *err) MUST_CHECK;

/* [n_vocab], of the last token; NULL when there are none. Valid until the session moves. */
const float *session_logits(const struct session *s);

/* How many snapshots it may hold (0 to SNAPSHOTS_MAX, each plan_state_bytes); PLAN_SNAPSHOTS unless told. */
void session_set_snapshots(struct session *s, int n);
/* Room for `positions` in the middle of a turn, in the order of the first time. ERR_CAPACITY when there is none: the session can go on as far as it has room. */
int session_grow(struct session *s, int64_t positions, uint64_t (*reclaim)(void *ctx, uint64_t bytes), void *ctx, struct err *err) MUST_CHECK;
/* A snapshot of where it stands now, kept among its others and borrowed from there; NULL when there is none to be had. */
struct state_snapshot *session_keep(struct session *s);
/* The one that the next turn can surely go on from: the newest at or below the last mark of the prompt that was read, before the
 * answer's own head; without marks the prompt's end. NULL when there is none. */
struct state_snapshot *session_fork_point(const struct session *s);
/* Gives back the memory above `positions` and what it holds; returns the bytes. */
uint64_t session_trim(struct session *s, int64_t positions);
/* Lets go of all snapshots but the newest; returns the bytes. */
uint64_t session_drop_snapshots(struct session *s);

/* Takes over tokens that state s was filled with from outside: length of the state == n. */
int session_adopt(struct session *s, const int32_t *tokens, size_t n, struct err *err) MUST_CHECK;

/* Forgets everything but the memory. */
void session_reset(struct session *s);

/* Forgets everything and gives all model memory back; returns the bytes. */
uint64_t session_give_back(struct session *s);

/* Times the invariant was found broken. */
uint64_t session_anomalies(const struct session *s);

#endif
