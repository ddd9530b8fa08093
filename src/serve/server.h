/* Inside of the server: what its files share. Everything here belongs to the IO thread but what says otherwise. */
#ifndef SERVE_SERVER_H
#define SERVE_SERVER_H

#include <stdatomic.h>
#include <time.h>

#include <jansson.h>

#include "serve/http.h"
#include "serve/serve.h"
#include "serve/worker.h"

struct generation;

struct server {
    /* Immutable while it runs: any thread. */
    struct engine *engine;
    const struct model *model;
    const struct chat_template *chat;    /* NULL when there is none */
    const struct serve_options *o;
    struct sample_params sampling;
    char model_id[256];
    time_t created;
    uint64_t start_ns;
    int wake_fd;                         /* eventfd: answers or finished jobs wait */

    struct event_base *base;
    struct http *http;
    struct worker *worker;
    struct generation *generations;      /* those with a request in the engine */
    int n_open;                          /* generations in any state */
    int draining;
    uint64_t n_replies[6];               /* by status / 100 */
};

/* Ends the loop when nothing is left to do; called whenever something ended. */
void server_check_idle(struct server *s);

/* An error as every protocol's table maps it. */
struct api_error {
    int status;
    const char *type, *code;             /* code may be NULL */
    char param[96];                      /* "" = none */
    int retry_after_s;                   /* 0 = no such header */
    int64_t n_prompt, n_ctx;             /* context_length_exceeded only, else 0 */
    struct err err;                      /* the sentence */
};

/* Fills all but n_prompt and n_ctx from e->err, which is set: the one table from ERR_* to HTTP. Returns err.code. */
int api_error_from_err(struct api_error *e);
/* Sets a 400 about one field of the request; returns ERR_INVALID. */
int api_error_field(struct api_error *e, const char *param, const char *format, ...) PRINTF_LIKE(3, 4);
/* {"error":{...}} */
void api_error_write(const struct api_error *e, struct buf *out);

void reply_error(struct server *s, struct exchange *x, const struct api_error *e);
/* A refusal by status: its type follows from it. */
void reply_refusal(struct server *s, struct exchange *x, int status, const char *code, const char *format, ...) PRINTF_LIKE(5, 6);
void reply_json(struct server *s, struct exchange *x, int status, json_t *value); /* takes value; NULL is out of memory */
void reply_text(struct server *s, struct exchange *x, const char *content_type, const char *headers, const void *data, size_t n);

/* Appends a JSON string of bytes that may not be UTF-8: broken parts become U+FFFD. */
void write_text(struct buf *out, const char *text, size_t n);
json_t *json_text(const char *text, size_t n);

#endif
