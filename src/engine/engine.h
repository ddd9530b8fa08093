/* The engine: ONE thread that owns sequences and the device. Requests go in through a bounded queue, token events come out through a bounded ring each; a slow reader pauses its own
 * sequence only. This header is all that serve/ and cli/ see of generation. Functions are callable from any thread unless they say otherwise. */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include <stdint.h>

#include "base/buf.h"
#include "compute/device.h"
#include "engine/sample.h"
#include "engine/store_stats.h"
#include "model/model.h"
#include "model/plan.h"

struct engine;
struct request;

#define ENGINE_SESSION_BUDGET ((uint64_t)8 << 30)

struct engine_options {
    struct device_options device;
    int64_t context_length;      /* served; 0 = unset: the largest that fits the budget, up to the declared one */
    uint64_t memory_limit;       /* bytes; 0 = what is free */
    int n_parallel;              /* sequences decoded together; 0 = auto */
    int cache_type;              /* enum kv_type of the KV rows; -1 = auto: f32 where it fits, else f16 */
    int queue_max;               /* waiting requests; 0 = 64 */
    int64_t chunk_rows;          /* 0 = 512 */
    const char *session_dir;     /* folder for conversations that survive a restart; NULL = none; borrowed until engine_start is over */
    uint64_t session_budget;     /* bytes there at most; 0 = ENGINE_SESSION_BUDGET */
    int reader_timeout_ms;       /* a request whose events nobody takes for so long is dropped; 0 = 30 s */
};

/* Plans, opens the device, creates runner and sessions, starts the thread. Refuses by name (ERR_CAPACITY, ERR_DEVICE) before anything big is taken. The model outlives the engine. */
int engine_start(const struct model *m, const struct engine_options *options, struct engine **out, struct err *err) MUST_CHECK;
/* New requests are refused from now on (ERR_BUSY); running ones go on. */
void engine_drain(struct engine *e);
int engine_idle(struct engine *e);
/* Cancels what runs, joins the thread, frees everything but requests that are still held. */
void engine_stop(struct engine *e);

const struct plan *engine_plan(const struct engine *e);
int64_t engine_context(const struct engine *e);
const struct device *engine_device(const struct engine *e); /* immutable fields only */
const struct model *engine_model(const struct engine *e);

struct request_params {
    const int32_t *prompt;       /* copied */
    size_t n_prompt;
    int64_t max_tokens;          /* < 0: up to the context; clamped to what is left */
    struct sample_params sampling; /* bias copied */
    int n_logprobs;              /* -1 none; 0..20: logprob of each token and that many alternatives */
    int ignore_eog;              /* for benchmarks */
    double deadline_s;           /* 0 = none */
    void (*notify)(void *ctx);   /* called from the engine thread when events wait: write an eventfd, nothing else */
    void *ctx;
};

enum event_kind {
    EVENT_STARTED,    /* left the queue */
    EVENT_PREFILL,    /* done of total prompt tokens */
    EVENT_TOKEN,      /* one generated token */
    EVENT_END,        /* finish: see below; the last event */
    EVENT_ERROR       /* error: the last event */
};

enum finish { FINISH_STOP /* an end-of-generation token */, FINISH_LENGTH, FINISH_CANCELLED };

#define MAX_LOGPROBS 20

struct token_event {
    enum event_kind kind;
    int32_t id;                          /* TOKEN */
    double logprob;                      /* TOKEN, when asked */
    int n_top;
    int32_t top_ids[MAX_LOGPROBS];
    double top_logprobs[MAX_LOGPROBS];
    int64_t done, total;                 /* PREFILL */
    enum finish finish;                  /* END */
    int64_t n_prompt, n_cached, n_generated; /* END */
    double prefill_ms, decode_ms;        /* END */
    struct err error;                    /* ERROR */
};

/* ERR_CONTEXT_LENGTH (the contract's sentence) before anything is queued, ERR_BUSY when the queue is full or draining, ERR_INVALID. */
int engine_submit(struct engine *e, const struct request_params *params, struct request **out, struct err *err) MUST_CHECK;

/* 1 and *out: an event; 0: none now. One consumer per request. Taking events makes room: a paused sequence goes on. */
int request_next(struct request *r, struct token_event *out) MUST_CHECK;
/* Waits up to timeout_ms for an event (for callers without an event loop): 1, 0. */
int request_wait(struct request *r, int timeout_ms);
/* Ends it within one step, prefill included; an END event with FINISH_CANCELLED follows. Idempotent. */
void request_cancel(struct request *r);
/* The caller's last word: cancels if running and lets go. */
void request_release(struct request *r);

struct engine_stats { /* a published copy: never waits for the model */
    uint64_t n_requests, n_finished, n_cancelled, n_failed, n_refused;
    uint64_t prompt_tokens, cached_tokens, generated_tokens;
    double prefill_seconds, decode_seconds;
    int n_running, n_waiting;
    uint64_t anomalies;
    uint64_t steps;
};
void engine_stats_read(struct engine *e, struct engine_stats *out);
/* Of the folder for conversations: 1 and *out, or 0 without one. */
int engine_store_stats(struct engine *e, struct store_stats *out);

#endif
