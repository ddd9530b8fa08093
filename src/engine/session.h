/* One timeline: the tokens that a state holds, and the last logits. Callers hand over the FULL token list; session_sync finds the common prefix, and extends, or starts anew.
 * There is no other way in. Owned by the engine thread. */
#ifndef ENGINE_SESSION_H
#define ENGINE_SESSION_H

#include <stdatomic.h>

#include "base/buf.h"
#include "engine/state.h"

struct session;

int session_create(struct runner *r, enum kv_type type, int64_t served_context, struct session **out, struct err *err) MUST_CHECK;
void session_free(struct session *s);
const int32_t *session_tokens(const struct session *s, size_t *n);
struct state *session_state(struct session *s);

struct sync_request {
    const int32_t *tokens;
    size_t n;
    int64_t reserve;                     /* positions of the whole turn: n + budget; state is grown to it before anything runs. 0 = n */
    const atomic_int *cancel;            /* looked at before every chunk; may be NULL */
    void (*progress)(void *ctx, int64_t done, int64_t total); /* after every chunk; may be NULL */
    void *ctx;
    int64_t chunk_rows;                  /* 0 = the runner's max_rows */
    double chunk_ms;                     /* > 0: chunks are made shorter, by what rows took so far, so that each takes about this; 32 rows at least */
    const size_t *marks;                 /* where this conversation may fork (engine/snapshot.h), ascending; may be NULL */
    size_t n_marks;
    int (*reclaim)(void *ctx);           /* asked once when not even the exact size fits: gives memory back elsewhere, 1 = there was some. May be NULL */
};

struct sync_result {
    int64_t n_reused;                    /* tokens that were not read again */
    int64_t n_prefilled;
    double prefill_ms;
};

/* After success the state holds exactly tokens[0, n) and session_logits is of the last of them. Reading starts at the newest snapshot that is a prefix of them, or where the state
 * stands; the prompt that was read last reads nothing when it comes again. On ERR_CANCELLED the session holds what was done so far, consistently. The invariant state length ==
 * token count is checked; broken, it is a cold prefill and counted. */
int session_sync(struct session *s, const struct sync_request *request, struct sync_result *out, struct err *err) MUST_CHECK;

/* One more token for each of n different sessions of one runner, in one batch. On failure none has moved. */
int session_step(struct session *const *sessions, const int32_t *tokens, int n, struct err *err) MUST_CHECK;

/* [n_vocab], of the last token; NULL when there are none. Valid until the session moves. */
const float *session_logits(const struct session *s);

/* How many snapshots it may hold (0 to SNAPSHOTS_MAX, each plan_state_bytes); PLAN_SNAPSHOTS unless told. */
void session_set_snapshots(struct session *s, int n);

/* Forgets everything but the memory. */
void session_reset(struct session *s);

/* Forgets everything and gives all model memory back; 1 when there was any. */
int session_give_back(struct session *s);

/* Times the invariant was found broken. */
uint64_t session_anomalies(const struct session *s);

#endif
