/* The server: HTTP in front of one engine. One call that blocks; everything it needs is in the options, everything it owns is gone when it returns. */
#ifndef SERVE_SERVE_H
#define SERVE_SERVE_H

#include <stddef.h>
#include <stdint.h>

#include "engine/engine.h"

struct serve_options {
    const char *host;                     /* NULL = "127.0.0.1" */
    int port;                             /* 0 = a free one */
    const char *api_key;                  /* NULL or "" = none: then only loopback Host headers are served */
    const char *cors_origin;              /* NULL = no CORS headers */
    int drain_timeout_s;                  /* after SIGTERM or SIGINT; a second signal ends at once */
    int no_metrics;                       /* /metrics is not mounted */
    const char *alias;                    /* model id; NULL = model_name */
    size_t max_body_bytes;                /* 0 = 8 MiB */
    int enable_thinking;                  /* of requests that say nothing: -1 = the template decides, 0, 1 */
    const struct chat_template *chat;     /* NULL = the model's own */
    const struct sample_params *sampling; /* defaults of requests; NULL = neutral with the file's general.sampling.* over it */
    int slow_reader_timeout_s;            /* a client that reads nothing for so long is dropped; 0 = 30 */
};

/* All fields as documented above for "not given". */
void serve_options_default(struct serve_options *o);

/* Binds (ERR_IO names host and port when it cannot), calls on_listening once with the URL, and answers until SIGTERM or SIGINT: new requests are then refused with 503 and
 * Retry-After, running ones finish, and it returns 0 when idle or at the drain time-out. The caller's thread is the IO thread; SIGTERM, SIGINT and SIGPIPE are handled here
 * while it runs. The engine stays the caller's; it is drained when this returns. */
int serve_run(struct engine *e, const struct serve_options *o, void (*on_listening)(void *ctx, const char *url), void *ctx, struct err *err) MUST_CHECK;

#endif
