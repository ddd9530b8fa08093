/* What the model wrote, as it comes: bytes in, events out. One parser for every protocol. Law: the concatenated events are a function of the whole text, however
 * the bytes are cut. Nothing is evaluated; no text makes it fail. One owner, one thread. The rules are in docs/architecture.md "Replies". */
#ifndef TEXT_REPLY_H
#define TEXT_REPLY_H

#include <jansson.h>

#include "base/buf.h"
#include "base/err.h"

enum reply_kind {
    REPLY_REASONING,  /* text: more reasoning */
    REPLY_TEXT,       /* text: more content */
    REPLY_CALL_BEGIN, /* text: the tool's name; call: its index from 0 */
    REPLY_CALL_ARGS,  /* text: more of the arguments' JSON text */
    REPLY_CALL_END    /* the arguments are one complete JSON object */
};

struct reply_event {
    enum reply_kind kind;
    int call;
    const char *text; /* valid during the call */
    size_t n;
};

/* Returns 0, or a negative code that ends the push and is returned by it. */
typedef int reply_sink(void *ctx, const struct reply_event *event);

struct reply;

struct reply_options {
    const json_t *tools;      /* OpenAI's array or NULL; borrowed until reply_free */
    int in_reasoning;         /* the prompt ended inside <think> */
    int raw;                  /* a plain completion: all is content as it stands, only stop strings are looked for */
    const char *const *stop;  /* stop strings, n_stop of them; copied. Empty ones never match */
    size_t n_stop;
    reply_sink *sink;
    void *ctx;
};

enum { REPLY_STOPPED = 1 };   /* a stop string was completed: nothing more comes out */

int reply_create(const struct reply_options *options, struct reply **out, struct err *err) MUST_CHECK;
void reply_free(struct reply *r);
int reply_push(struct reply *r, const char *bytes, size_t n) MUST_CHECK; /* 0, REPLY_STOPPED, ERR_NO_MEMORY, or the sink's code */
/* The text ends. model_stopped: the model ended it by itself (finish "stop"), else it was cut (finish "length"). *finish_reason: "stop", "length" or "tool_calls". */
int reply_finish(struct reply *r, int model_stopped, const char **finish_reason) MUST_CHECK;
/* The stop string that ended the text, or NULL. */
const char *reply_matched_stop(const struct reply *r);
/* Bytes of reasoning that came out so far (0: none). */
size_t reply_reasoning_bytes(const struct reply *r);

#endif
