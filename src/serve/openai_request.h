/* OpenAI's request bodies, read and checked: bytes in, a request or a 400 that names the field out. Any thread; touches nothing but its arguments.
 * Unknown fields are ignored; fields that are known and not served are refused by name unless they ask for what happens anyway. */
#ifndef SERVE_OPENAI_REQUEST_H
#define SERVE_OPENAI_REQUEST_H

#include <jansson.h>

#include "base/buf.h"
#include "engine/sample.h"
#include "serve/server.h"

#define MAX_STOP 16
#define MAX_STOP_BYTES 4096
#define MAX_MESSAGES 16384
#define MAX_TOOLS 1024
#define MAX_BIASES 1024

struct openai_request {
    json_t *root;                    /* what the borrowed pointers below point into */
    const char *model;               /* as asked; NULL = not said */
    json_t *messages;                /* normalised; NULL for completions */
    const json_t *tools;             /* NULL = none, or tool_choice "none" */
    const json_t *template_vars;     /* chat_template_kwargs; may be NULL */
    const json_t *prompt;            /* completions: a string or an array of ids */
    int stream, include_usage;
    int one_call;                    /* parallel_tool_calls: false */
    int enable_thinking;             /* -1 = nothing was said */
    int64_t max_tokens;              /* -1 = up to the context */
    int n_logprobs;                  /* -1 = none */
    struct sample_params sampling;   /* bias points to `bias` */
    struct logit_bias *bias;
    const char *stop[MAX_STOP];
    size_t n_stop;
};

/* defaults: the server's sampling; n_vocab bounds logit_bias. Returns 0, or a negative code with *e filled. Free in both cases. */
int openai_parse_chat(const char *body, size_t n, const struct sample_params *defaults, int32_t n_vocab, struct openai_request *out, struct api_error *e) MUST_CHECK;
int openai_parse_completion(const char *body, size_t n, const struct sample_params *defaults, int32_t n_vocab, struct openai_request *out, struct api_error *e) MUST_CHECK;
void openai_request_free(struct openai_request *q);

/* What the template sees: messages, tools, add_generation_prompt, enable_thinking, the request's own. thinking: the server's default, -1 = none. NULL: out of memory. */
json_t *openai_template_vars(const struct openai_request *q, int thinking);

#endif
