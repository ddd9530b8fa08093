/* An answer: a request's tokens as reply events. Joins engine, detokeniser and reply parser, so that `run`, `chat` and every protocol share one path. One owner, one thread. */
#ifndef ENGINE_ANSWER_H
#define ENGINE_ANSWER_H

#include <jansson.h>

#include "engine/engine.h"
#include "text/reply.h"

struct answer;

struct answer_options {
    struct request_params request; /* prompt ids and limits; notify as there */
    const json_t *tools;           /* borrowed until answer_free; NULL = none */
    int in_reasoning;              /* from chat_prompt */
    int raw;                       /* plain completion: bytes go out as text, no reasoning, no calls */
    const char *const *stop;
    size_t n_stop;
    reply_sink *sink;              /* called from answer_pump only */
    void (*on_token)(void *ctx, const struct token_event *event); /* may be NULL: every EVENT_TOKEN, before its text; PREFILL too */
    void *ctx;
};

int answer_start(struct engine *e, const struct answer_options *options, struct answer **out, struct err *err) MUST_CHECK;

enum answer_state { ANSWER_RUNNING, ANSWER_DONE };

/* Takes what is there and hands it to the sink; at most max_events events. ANSWER_RUNNING or ANSWER_DONE, or the request's error (err set), or the sink's code (the request is cancelled then). */
int answer_pump(struct answer *a, int max_events, struct err *err) MUST_CHECK;
int answer_wait(struct answer *a, int timeout_ms);
void answer_cancel(struct answer *a);
void answer_free(struct answer *a); /* cancels if running */

struct answer_result {
    const char *finish_reason;     /* "stop", "length", "tool_calls"; "cancelled" */
    const char *matched_stop;      /* or NULL */
    int64_t n_prompt, n_cached, n_generated, n_reasoning; /* tokens */
    double prefill_ms, decode_ms;
};
/* Valid when done. */
const struct answer_result *answer_result(const struct answer *a);
/* Every generated id so far. */
const struct ids *answer_ids(const struct answer *a);

#endif
