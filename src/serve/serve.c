/* The IO thread's loop: sockets, the eventfd by which engine and worker announce themselves, and the signals that end it. */
#include "serve/serve.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "serve/generation.h"
#include "serve/route.h"

#define DEFAULT_BODY_BYTES ((size_t)8 << 20)
#define MAX_CONNECTIONS 1000
#define SPARE_DESCRIPTORS 40       /* for what is not a connection */
#define LAST_WORDS_S 2             /* after the drain time-out: for the errors that end what was cut */
#define ARRIVAL_US 50000           /* an idle server stays so long after the signal */

struct loop {
    struct server s;
    struct serve_options o;        /* with the defaults filled in */
    struct event *wake, *sigterm, *sigint, *deadline, *idle;
    char common_headers[512];
    int n_signals, last_words;
};

void serve_options_default(struct serve_options *o)
{
    *o = (struct serve_options){.host = "127.0.0.1", .port = 8080, .drain_timeout_s = 30, .max_body_bytes = DEFAULT_BODY_BYTES, .enable_thinking = -1, .slow_reader_timeout_s = 30};
}

/* Looked at in a turn of its own, so that whoever reports an end may still stand on what it ended. */
void server_check_idle(struct server *s)
{
    struct loop *l = (struct loop *)s;
    if (s->draining)
        event_active(l->idle, EV_TIMEOUT, 0);
}

static void on_idle(evutil_socket_t fd, short what, void *arg)
{
    struct loop *l = arg;
    struct timeval soon = {.tv_usec = 20000};
    (void)fd;
    (void)what;
    if (l->s.n_open == 0 && engine_idle(l->s.engine) && http_n_unsent(l->s.http) == 0)
        event_base_loopbreak(l->s.base);
    else
        event_add(l->idle, &soon);
}

static void on_deadline(evutil_socket_t fd, short what, void *arg)
{
    struct loop *l = arg;
    struct timeval rest = {.tv_sec = LAST_WORDS_S};
    (void)fd;
    (void)what;
    if (l->last_words++) {
        event_base_loopbreak(l->s.base);
        return;
    }
    if (l->s.n_open)
        log_warn("shutting down with %d requests unfinished", l->s.n_open);
    generations_cancel(&l->s);
    event_add(l->deadline, &rest);
}

static void on_signal(evutil_socket_t number, short what, void *arg)
{
    struct loop *l = arg;
    struct timeval wait = {.tv_sec = l->o.drain_timeout_s}, arrival = {.tv_usec = ARRIVAL_US};
    (void)what;
    if (l->n_signals++) { /* once more: now */
        l->last_words = 0;
        on_deadline(-1, 0, l);
        return;
    }
    log_info("%s: answering what runs, for at most %d s", number == SIGINT ? "SIGINT" : "SIGTERM", l->o.drain_timeout_s);
    l->s.draining = 1;
    engine_drain(l->s.engine);
    event_add(l->deadline, &wait);
    event_add(l->idle, &arrival); /* who wrote before the signal, but was not read yet, is to get an answer */
}

static void on_wake(evutil_socket_t fd, short what, void *arg)
{
    struct server *s = arg;
    uint64_t n;
    (void)what;
    if (read(fd, &n, sizeof n) < 0 && errno == EAGAIN)
        return;
    worker_deliver(s->worker);
    generations_pump(s);
}

static int on_head(void *ctx, struct exchange *x)
{
    return route_check(ctx, x);
}

static void on_request(void *ctx, struct exchange *x)
{
    route_dispatch(ctx, x);
}

static void write_http_error(void *ctx, int status, const char *message, struct buf *out)
{
    struct server *s = ctx;
    struct api_error e = {.status = status, .type = status >= 500 && status != 501 ? "server_error" : "invalid_request_error"};
    e.code = status == 413 ? "body_too_large" : status == 431 ? "header_too_large" : status == 503 ? "busy" : "bad_request";
    err_set(&e.err, ERR_INVALID, "%s", message);
    s->n_replies[status / 100]++;
    api_error_write(&e, out);
}

static int max_connections(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= MAX_CONNECTIONS + SPARE_DESCRIPTORS)
        return MAX_CONNECTIONS;
    return limit.rlim_cur > 2 * SPARE_DESCRIPTORS ? (int)limit.rlim_cur - SPARE_DESCRIPTORS : SPARE_DESCRIPTORS;
}

static int open_events(struct loop *l, struct err *err)
{
    struct server *s = &l->s;
    s->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    s->base = event_base_new();
    if (s->wake_fd < 0 || !s->base)
        return err_set(err, ERR_IO, "the event loop could not be created: %s", strerror(errno));
    l->wake = event_new(s->base, s->wake_fd, EV_READ | EV_PERSIST, on_wake, s);
    l->sigterm = evsignal_new(s->base, SIGTERM, on_signal, l);
    l->sigint = evsignal_new(s->base, SIGINT, on_signal, l);
    l->deadline = evtimer_new(s->base, on_deadline, l);
    l->idle = evtimer_new(s->base, on_idle, l);
    if (!l->wake || !l->sigterm || !l->sigint || !l->deadline || !l->idle)
        return err_set(err, ERR_NO_MEMORY, "out of memory for the server");
    if (event_add(l->wake, NULL) < 0 || event_add(l->sigterm, NULL) < 0 || event_add(l->sigint, NULL) < 0)
        return err_set(err, ERR_IO, "the signals could not be caught");
    return 0;
}

static int set_common_headers(struct loop *l, struct err *err)
{
    const char *origin = l->o.cors_origin;
    if (!origin)
        return 0;
    if (!*origin || strlen(origin) > 256 || strcspn(origin, "\r\n\t ") != strlen(origin))
        return err_set(err, ERR_INVALID, "--cors: \"%.100s\" is no origin", origin);
    snprintf(l->common_headers, sizeof l->common_headers, "Access-Control-Allow-Origin: %s\r\nVary: Origin\r\n", origin);
    return 0;
}

static int open_http(struct loop *l, struct err *err)
{
    struct http_options options = {.host = l->o.host, .port = l->o.port, .max_body_bytes = l->o.max_body_bytes, .max_connections = max_connections(),
                                   .slow_reader_timeout_s = l->o.slow_reader_timeout_s, .on_head = on_head, .on_request = on_request, .write_error = write_http_error,
                                   .common_headers = l->common_headers, .ctx = &l->s};
    return http_open(l->s.base, &options, &l->s.http, err);
}

static int open_all(struct loop *l, struct engine *e, struct err *err)
{
    struct server *s = &l->s;
    s->engine = e;
    s->model = engine_model(e);
    s->o = &l->o;
    s->chat = l->o.chat ? l->o.chat : s->model->chat;
    s->created = time(NULL);
    s->start_ns = clock_ns();
    s->wake_fd = -1;
    if (!s->model->vocab)
        return err_set(err, ERR_INVALID, "a model without its vocabulary cannot be served");
    if (l->o.alias)
        snprintf(s->model_id, sizeof s->model_id, "%s", l->o.alias);
    else
        model_name(s->model, s->model_id, sizeof s->model_id);
    if (l->o.sampling) {
        s->sampling = *l->o.sampling;
    } else {
        sample_params_default(&s->sampling);
        TRY(sample_params_from_gguf(s->model->file, &s->sampling, err));
    }
    TRY(set_common_headers(l, err));
    TRY(open_events(l, err));
    TRY(worker_start(s->wake_fd, &s->worker, err));
    return open_http(l, err);
}

static void close_all(struct loop *l)
{
    struct event *events[] = {l->wake, l->sigterm, l->sigint, l->deadline, l->idle};
    http_close(l->s.http);
    worker_stop(l->s.worker);
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        if (events[i])
            event_free(events[i]);
    if (l->s.base)
        event_base_free(l->s.base);
    if (l->s.wake_fd >= 0)
        close(l->s.wake_fd);
    mem_free(l);
}

int serve_run(struct engine *e, const struct serve_options *o, void (*on_listening)(void *ctx, const char *url), void *ctx, struct err *err)
{
    struct sigaction ignore = {.sa_handler = SIG_IGN}, before;
    struct loop *l = mem_alloc(MEM_SERVE, sizeof *l);
    if (!l)
        return err_set(err, ERR_NO_MEMORY, "out of memory for the server");
    l->o = *o;
    l->o.host = o->host ? o->host : "127.0.0.1";
    l->o.max_body_bytes = o->max_body_bytes ? o->max_body_bytes : DEFAULT_BODY_BYTES;
    l->o.slow_reader_timeout_s = o->slow_reader_timeout_s > 0 ? o->slow_reader_timeout_s : 30;
    sigaction(SIGPIPE, &ignore, &before);
    int rc = open_all(l, e, err);
    if (rc == 0) {
        char url[300];
        snprintf(url, sizeof url, strchr(l->o.host, ':') ? "http://[%s]:%d" : "http://%s:%d", l->o.host, http_port(l->s.http));
        if (on_listening)
            on_listening(ctx, url);
        if (event_base_dispatch(l->s.base) < 0)
            rc = err_set(err, ERR_IO, "the event loop failed");
        engine_drain(e);
    }
    close_all(l);
    sigaction(SIGPIPE, &before, NULL);
    return rc;
}
