/* OpenAI's answers, streamed or whole, from one list of reply events: what a stream's deltas add up to is what the whole answer holds. Bytes gather in `out`; the caller sends and clears
 * them. IO thread. */
#ifndef SERVE_OPENAI_REPLY_H
#define SERVE_OPENAI_REPLY_H

#include "engine/answer.h"
#include "serve/server.h"

enum openai_kind { OPENAI_CHAT, OPENAI_COMPLETION };

struct openai_reply {
    enum openai_kind kind;
    int stream, include_usage, one_call;
    const struct vocab *vocab;
    char id[64];
    uint64_t salt;               /* of the call ids */
    struct buf head;             /* of each chunk, up to its choice's index */
    struct buf out;
    struct buf reasoning, content, calls, arguments; /* whole answers only */
    struct buf logprobs[4];      /* since the last chunk: entries; for completions tokens, logprobs, tops, offsets */
    int64_t text_offset;         /* characters of the tokens so far */
    int n_calls, call_open;
    int cut;                     /* one_call: the first call is complete, nothing more comes out */
};

/* model: as the client shall see it. */
int openai_reply_init(struct openai_reply *r, enum openai_kind kind, int stream, const char *model, time_t created, const struct vocab *vocab) MUST_CHECK;
void openai_reply_free(struct openai_reply *r);

void openai_reply_begin(struct openai_reply *r);                                    /* streams: the role chunk */
int openai_reply_event(struct openai_reply *r, const struct reply_event *event);    /* 0 or ERR_* */
void openai_reply_logprobs(struct openai_reply *r, const struct token_event *event);
void openai_reply_finish(struct openai_reply *r, const struct answer_result *result, int used_gpu);
void openai_reply_fail(struct openai_reply *r, const struct api_error *e);          /* streams: an error amid the answer */

#endif
