/* HTTP/1.1 over libevent's bufferevents: framing, limits, time-outs, nothing about routes. Of libevent's own evhttp the released version writes HTML error pages and cannot close a
 * client that sends its header a byte a second, so the framing is here. One IO thread; no function may be called from another.
 *
 * An exchange is one request and its answer; a connection has at most one at a time. It is the handler's from `on_request` until exchange_reply or exchange_end, or until its
 * `on_gone` was called, whichever comes first; after that it must not be touched. */
#ifndef SERVE_HTTP_H
#define SERVE_HTTP_H

#include <stddef.h>
#include <stdint.h>

#include <event2/event.h>

#include "base/buf.h"
#include "base/err.h"

#define HTTP_MAX_HEADER_BYTES ((size_t)64 << 10)
#define HTTP_MAX_HEADERS 100

struct http;
struct connection;

struct http_header {
    const char *name, *value; /* NUL-terminated; the name in lower case */
};

struct exchange {
    const char *method;       /* upper case letters */
    const char *path;         /* percent-decoded, without the query; valid UTF-8 is not promised */
    const char *query;        /* raw, after '?'; "" */
    const struct http_header *headers;
    size_t n_headers;
    const char *body;         /* NUL-terminated; complete */
    size_t n_body;
    int head_only;            /* a HEAD request: bodies are not sent */

    /* The handler's. */
    void *user;
    void (*on_gone)(void *user);  /* the client left, or was dropped; may be NULL */
    void (*on_drain)(void *user); /* what was written has gone out far enough for more; may be NULL */

    struct connection *connection;
};

/* What an exchange is told with: status, extra header lines ("Name: value\r\n" each, may be NULL) and a body. */
struct http_reply {
    int status;
    const char *content_type;
    const char *headers;
    const void *body;
    size_t n_body;
};

struct http_options {
    const char *host;
    int port;
    size_t max_body_bytes;
    int max_connections;
    int slow_reader_timeout_s;
    /* The header is complete: 0 goes on to the body; else the exchange was answered by exchange_reply. */
    int (*on_head)(void *ctx, struct exchange *x);
    void (*on_request)(void *ctx, struct exchange *x);
    /* The body of an error that HTTP itself raises, as the protocol has it. */
    void (*write_error)(void *ctx, int status, const char *message, struct buf *out);
    /* Header lines of every answer (CORS), or NULL. */
    const char *common_headers;
    void *ctx;
};

/* Listens; ERR_IO names host and port. */
int http_open(struct event_base *base, const struct http_options *options, struct http **out, struct err *err) MUST_CHECK;
void http_close(struct http *h); /* closes every connection; on_gone is called for those with an exchange */
int http_port(const struct http *h);
int http_n_connections(const struct http *h);
int http_n_unsent(const struct http *h); /* connections with bytes on their way out */

/* The value of a header (name in lower case), or NULL. */
const char *exchange_header(const struct exchange *x, const char *name);
void exchange_reply(struct exchange *x, const struct http_reply *reply);

/* A streamed answer: begin, write any number of times, end. Each write goes out at once. */
void exchange_begin(struct exchange *x, const struct http_reply *head); /* its body is not used */
void exchange_write(struct exchange *x, const void *data, size_t n);
void exchange_end(struct exchange *x);
size_t exchange_backlog(const struct exchange *x); /* bytes that the client has not taken */

const char *http_status_text(int status);

#endif
