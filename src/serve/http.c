/* Connections and exchanges. Invariant: a connection is freed by the reaper alone, never under a caller's feet, and its on_gone is called at most once, before that. */
#include "serve/http.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/listener.h>

#include "base/mem.h"
#include "serve/http_parse.h"

#define HEAD_TIMEOUT_S 15     /* from the first byte (or the accept) to the empty line */
#define BODY_TIMEOUT_S 120
#define IDLE_TIMEOUT_S 75     /* between requests */
#define LINGER_TIMEOUT_S 5    /* what a refused client still sends is read and dropped for so long, or it would not see the refusal */
#define STALL_LOOKS 5         /* at a reader that takes nothing, until it is dropped */
#define INPUT_HIGH ((size_t)128 << 10)
#define OUTPUT_LOW ((size_t)16 << 10)
#define BODIES_AT_ONCE 16     /* all bodies in flight together hold at most so many times the largest */

enum state { READ_HEAD, READ_BODY, READ_CHUNK_SIZE, READ_CHUNK, READ_CHUNK_END, READ_TRAILER, BUSY, FLUSH, LINGER, DEAD };

struct connection {
    struct http *http;
    struct connection *previous, *next;
    struct bufferevent *bev;
    struct event *timer;
    enum state state;
    int advancing;            /* inside advance(): the loop there goes on by itself */
    struct http_head head;
    struct exchange x;
    struct buf body;
    uint64_t left;            /* of the body or the chunk */
    int body_unread;          /* the answer came before the end of the body */
    int chunked_out, close_after;
    int head_clock;           /* the time for the head runs, and more bytes do not set it back */
    uint64_t n_out, n_out_seen; /* bytes given to libevent; bytes sent when a slow reader was looked at last */
    int n_stalls;             /* times in a row that it had taken nothing */
};

struct http {
    struct http_options o;
    struct event_base *base;
    struct evconnlistener *listener;
    struct event *reaper, *retry;
    struct connection *live, *dead;
    int n_live, port;
    size_t body_bytes;        /* of all connections */
    struct timeval stall_look; /* between two looks at a reader */
};

static void advance(struct connection *c);

const char *http_status_text(int status)
{
    static const struct {
        int status;
        const char *text;
    } texts[] = {
        {200, "OK"}, {204, "No Content"}, {400, "Bad Request"}, {401, "Unauthorized"}, {403, "Forbidden"}, {404, "Not Found"}, {405, "Method Not Allowed"},
        {408, "Request Timeout"}, {413, "Content Too Large"}, {415, "Unsupported Media Type"}, {417, "Expectation Failed"}, {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"}, {500, "Internal Server Error"}, {501, "Not Implemented"}, {503, "Service Unavailable"},
        {505, "HTTP Version Not Supported"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (texts[i].status == status)
            return texts[i].text;
    return "Status";
}

static void set_timer(struct connection *c, int seconds)
{
    struct timeval t = {.tv_sec = seconds};
    event_add(c->timer, &t);
}

static size_t unsent(const struct connection *c)
{
    return evbuffer_get_length(bufferevent_get_output(c->bev));
}

static void drop_body(struct connection *c)
{
    c->http->body_bytes -= c->body.len;
    buf_free(&c->body);
    buf_init(&c->body, MEM_SERVE, c->http->o.max_body_bytes);
}

/* The connection is over: its exchange hears of it, the reaper frees it. */
static void kill_connection(struct connection *c)
{
    struct http *h = c->http;
    int was_busy = c->state == BUSY;
    if (c->state == DEAD)
        return;
    c->state = DEAD;
    event_del(c->timer);
    bufferevent_disable(c->bev, EV_READ | EV_WRITE);
    bufferevent_setcb(c->bev, NULL, NULL, NULL, NULL);
    if (c->previous)
        c->previous->next = c->next;
    else
        h->live = c->next;
    if (c->next)
        c->next->previous = c->previous;
    c->previous = NULL;
    c->next = h->dead;
    h->dead = c;
    if (h->n_live-- == h->o.max_connections)
        evconnlistener_enable(h->listener);
    event_active(h->reaper, EV_TIMEOUT, 0);
    if (was_busy && c->x.on_gone)
        c->x.on_gone(c->x.user);
}

static void reap(evutil_socket_t fd, short what, void *arg)
{
    struct http *h = arg;
    (void)fd;
    (void)what;
    while (h->dead) {
        struct connection *c = h->dead;
        h->dead = c->next;
        event_free(c->timer);
        bufferevent_free(c->bev);
        drop_body(c);
        mem_free(c->head.text);
        mem_free(c);
    }
}

/* Out of memory amid an answer: the end comes as an event, so that no caller loses what it stands on. */
static void break_off(struct connection *c)
{
    shutdown(bufferevent_getfd(c->bev), SHUT_RDWR);
}

/* From now on the reader is looked at STALL_LOOKS times in the time that it has. */
static void watch_reader(struct connection *c)
{
    c->n_out_seen = c->n_out - unsent(c);
    c->n_stalls = 0;
    event_add(c->timer, &c->http->stall_look);
}

/* 1 while it has time left. */
static int watch_reader_again(struct connection *c)
{
    uint64_t sent = c->n_out - unsent(c);
    int n_stalls = sent == c->n_out_seen ? c->n_stalls + 1 : 0;
    if (n_stalls >= STALL_LOOKS)
        return 0;
    watch_reader(c);
    c->n_stalls = n_stalls;
    return 1;
}

static void give_out(struct connection *c, const void *data, size_t n)
{
    if (n == 0 || c->state == DEAD)
        return;
    if (bufferevent_write(c->bev, data, n) < 0) {
        break_off(c);
        return;
    }
    c->n_out += n;
    if (!event_pending(c->timer, EV_TIMEOUT, NULL))
        watch_reader(c);
}

static void add_date(struct buf *out)
{
    char text[64];
    struct tm tm;
    time_t now = time(NULL);
    if (gmtime_r(&now, &tm) && strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &tm) > 0)
        buf_addf(out, "Date: %s\r\n", text);
}

/* n_body < 0: a stream, whose length nobody knows. */
static void send_head(struct connection *c, const struct http_reply *r, int64_t n_body)
{
    struct buf out;
    buf_init(&out, MEM_SERVE, HTTP_MAX_HEADER_BYTES);
    buf_addf(&out, "HTTP/1.1 %d %s\r\nServer: apr/" APR_VERSION "\r\n", r->status, http_status_text(r->status));
    add_date(&out);
    if (r->content_type)
        buf_addf(&out, "Content-Type: %s\r\nX-Content-Type-Options: nosniff\r\n", r->content_type);
    if (n_body < 0 && c->chunked_out)
        buf_add_str(&out, "Transfer-Encoding: chunked\r\n");
    else if (n_body >= 0 && r->status != 204)
        buf_addf(&out, "Content-Length: %lld\r\n", (long long)n_body);
    buf_add_str(&out, c->close_after ? "Connection: close\r\n" : c->head.minor == 0 ? "Connection: keep-alive\r\n" : "");
    buf_add_str(&out, c->http->o.common_headers ? c->http->o.common_headers : "");
    buf_add_str(&out, r->headers ? r->headers : "");
    buf_add_str(&out, "\r\n");
    if (out.failed)
        break_off(c);
    else
        give_out(c, out.data, out.len);
    buf_free(&out);
}

static void start_closing(struct connection *c)
{
    if (unsent(c) > 0)
        return; /* on_write comes back here */
    if (!c->body_unread && evbuffer_get_length(bufferevent_get_input(c->bev)) == 0) {
        kill_connection(c);
        return;
    }
    c->state = LINGER;
    shutdown(bufferevent_getfd(c->bev), SHUT_WR);
    evbuffer_drain(bufferevent_get_input(c->bev), evbuffer_get_length(bufferevent_get_input(c->bev)));
    set_timer(c, LINGER_TIMEOUT_S);
}

/* The answer is complete: the next request, or the end. */
static void end_exchange(struct connection *c)
{
    if (c->state == DEAD)
        return;
    c->x = (struct exchange){0};
    drop_body(c);
    mem_free(c->head.text);
    c->head = (struct http_head){0};
    c->chunked_out = 0;
    if (c->close_after) {
        c->state = FLUSH;
        start_closing(c);
        return;
    }
    c->state = READ_HEAD;
    c->head_clock = 0;
    if (unsent(c) == 0)
        set_timer(c, IDLE_TIMEOUT_S);
    if (!c->advancing)
        advance(c);
}

const char *exchange_header(const struct exchange *x, const char *name)
{
    return http_head_find(x->headers, x->n_headers, name);
}

void exchange_reply(struct exchange *x, const struct http_reply *r)
{
    struct connection *c = x->connection;
    if (c->state == DEAD)
        return;
    if (c->state != BUSY && (c->head.chunked || c->head.n_body > 0)) {
        c->body_unread = 1;
        c->close_after = 1;
    }
    send_head(c, r, (int64_t)r->n_body);
    if (!x->head_only)
        give_out(c, r->body, r->n_body);
    end_exchange(c);
}

void exchange_begin(struct exchange *x, const struct http_reply *head)
{
    struct connection *c = x->connection;
    c->chunked_out = c->head.minor == 1;
    if (!c->chunked_out)
        c->close_after = 1;
    send_head(c, head, -1);
}

void exchange_write(struct exchange *x, const void *data, size_t n)
{
    struct connection *c = x->connection;
    char size[24];
    if (n == 0 || c->state == DEAD || x->head_only)
        return;
    if (!c->chunked_out) {
        give_out(c, data, n);
        return;
    }
    give_out(c, size, (size_t)snprintf(size, sizeof size, "%zx\r\n", n));
    give_out(c, data, n);
    give_out(c, "\r\n", 2);
}

void exchange_end(struct exchange *x)
{
    struct connection *c = x->connection;
    if (c->state == DEAD)
        return;
    if (c->chunked_out && !x->head_only)
        give_out(c, "0\r\n\r\n", 5);
    end_exchange(c);
}

size_t exchange_backlog(const struct exchange *x)
{
    return x->connection->state == DEAD ? 0 : unsent(x->connection);
}

/* HTTP's own refusals: the connection ends with them. */
static void refuse(struct connection *c, int status, const char *message)
{
    struct buf body;
    buf_init(&body, MEM_SERVE, (size_t)1 << 20);
    c->http->o.write_error(c->http->o.ctx, status, message, &body);
    if (body.failed)
        buf_clear(&body); /* the status alone says it: no half document */
    c->close_after = 1;
    c->body_unread = 1;
    send_head(c, &(struct http_reply){.status = status, .content_type = "application/json", .headers = status == 503 ? "Retry-After: 1\r\n" : NULL}, (int64_t)body.len);
    if (!c->head.method || strcmp(c->head.method, "HEAD") != 0)
        give_out(c, body.data, body.len);
    buf_free(&body);
    end_exchange(c);
}

static void dispatch(struct connection *c)
{
    c->state = BUSY;
    event_del(c->timer);
    if (unsent(c) > 0)
        watch_reader(c);
    c->x.body = buf_str(&c->body);
    c->x.n_body = c->body.len;
    c->http->o.on_request(c->http->o.ctx, &c->x);
}

/* Where the head ends in the input, its empty line included; 0 when it is not all there. */
static size_t head_length(struct evbuffer *in)
{
    struct evbuffer_ptr crlf = evbuffer_search(in, "\n\r\n", 3, NULL), lf = evbuffer_search(in, "\n\n", 2, NULL);
    size_t a = crlf.pos >= 0 ? (size_t)crlf.pos + 3 : 0, b = lf.pos >= 0 ? (size_t)lf.pos + 2 : 0;
    return a && b ? (a < b ? a : b) : a + b;
}

static void skip_empty_lines(struct evbuffer *in)
{
    unsigned char c;
    while (evbuffer_copyout(in, &c, 1) == 1 && (c == '\r' || c == '\n'))
        evbuffer_drain(in, 1);
}

static void begin_body(struct connection *c)
{
    const char *go_on = "HTTP/1.1 100 Continue\r\n\r\n";
    if (c->head.n_body > c->http->o.max_body_bytes) {
        char text[128];
        snprintf(text, sizeof text, "the body of %llu bytes is larger than the limit of %zu", (unsigned long long)c->head.n_body, c->http->o.max_body_bytes);
        refuse(c, 413, text);
        return;
    }
    c->left = c->head.n_body;
    c->state = c->head.chunked ? READ_CHUNK_SIZE : READ_BODY;
    if (!c->head.chunked && c->left == 0) {
        dispatch(c);
        return;
    }
    set_timer(c, BODY_TIMEOUT_S);
    if (c->head.expects_continue)
        give_out(c, go_on, strlen(go_on));
}

/* Each step returns 1 when there may be more to do with what is in the input. */
static int read_head(struct connection *c, struct evbuffer *in)
{
    const char *message = "";
    skip_empty_lines(in);
    size_t n = head_length(in);
    if (n > HTTP_MAX_HEADER_BYTES || (n == 0 && evbuffer_get_length(in) > HTTP_MAX_HEADER_BYTES)) {
        refuse(c, 431, "the header is larger than 64 KiB");
        return 0;
    }
    if (n == 0)
        return 0;
    const char *text = (const char *)evbuffer_pullup(in, (ev_ssize_t)n);
    if (!text) {
        kill_connection(c);
        return 0;
    }
    int status = http_parse_head(text, n, &c->head, &message);
    evbuffer_drain(in, n);
    if (status) {
        refuse(c, status, message);
        return 0;
    }
    c->close_after = !c->head.keep_alive;
    c->body_unread = 0;
    c->x = (struct exchange){.method = c->head.method, .path = c->head.path, .query = c->head.query, .headers = c->head.headers, .n_headers = c->head.n_headers, .body = "",
                             .head_only = strcmp(c->head.method, "HEAD") == 0, .connection = c};
    if (c->http->o.on_head(c->http->o.ctx, &c->x) != 0)
        return c->state == READ_HEAD;
    begin_body(c);
    return 1;
}

/* Moves up to c->left bytes of the input into the body. */
static int take_body(struct connection *c, struct evbuffer *in)
{
    char piece[16384];
    struct http *h = c->http;
    while (c->left > 0) {
        size_t want = c->left < sizeof piece ? (size_t)c->left : sizeof piece;
        int got = evbuffer_remove(in, piece, want);
        if (got <= 0)
            return 0;
        if (h->body_bytes + (size_t)got > h->o.max_body_bytes * BODIES_AT_ONCE) {
            refuse(c, 503, "too many large requests at once");
            return 0;
        }
        if (buf_add(&c->body, piece, (size_t)got) < 0) {
            refuse(c, c->body.failed == ERR_LIMIT ? 413 : 503, c->body.failed == ERR_LIMIT ? "the body is larger than the limit" : "out of memory");
            return 0;
        }
        h->body_bytes += (size_t)got;
        c->left -= (uint64_t)got;
    }
    return 1;
}

/* A line of the chunked framing, at most 1 KiB. 0 when it is not all there (or was refused). */
static int take_line(struct connection *c, struct evbuffer *in, char line[1024])
{
    struct evbuffer_ptr end = evbuffer_search(in, "\n", 1, NULL);
    if (end.pos < 0 ? evbuffer_get_length(in) >= 1024 : end.pos >= 1023) {
        refuse(c, 400, "a line of the chunked framing is too long");
        return 0;
    }
    if (end.pos < 0)
        return 0;
    size_t n = (size_t)end.pos;
    evbuffer_remove(in, line, n + 1);
    line[n] = 0;
    if (n > 0 && line[n - 1] == '\r')
        line[n - 1] = 0;
    return 1;
}

static int read_chunked(struct connection *c, struct evbuffer *in)
{
    char line[1024];
    if (c->state == READ_CHUNK) {
        if (!take_body(c, in))
            return 0;
        c->state = READ_CHUNK_END;
        return 1;
    }
    if (!take_line(c, in, line))
        return 0;
    if (c->state == READ_CHUNK_SIZE) {
        int64_t size = http_parse_chunk_size(line);
        if (size < 0) {
            refuse(c, 400, "a chunk's size is not a hexadecimal number");
            return 0;
        }
        c->left = (uint64_t)size;
        c->state = size ? READ_CHUNK : READ_TRAILER;
    } else if (c->state == READ_CHUNK_END) {
        if (*line) {
            refuse(c, 400, "a chunk is longer than its size");
            return 0;
        }
        c->state = READ_CHUNK_SIZE;
    } else if (!*line) { /* the trailer's last line; what came before it is ignored */
        dispatch(c);
    }
    return 1;
}

static int advance_once(struct connection *c)
{
    struct evbuffer *in = bufferevent_get_input(c->bev);
    switch (c->state) {
    case READ_HEAD:
        return read_head(c, in);
    case READ_BODY:
        if (!take_body(c, in))
            return 0;
        dispatch(c);
        return 1;
    case READ_CHUNK_SIZE:
    case READ_CHUNK:
    case READ_CHUNK_END:
    case READ_TRAILER:
        return read_chunked(c, in);
    case LINGER:
        evbuffer_drain(in, evbuffer_get_length(in));
        return 0;
    default:
        return 0;
    }
}

static void advance(struct connection *c)
{
    c->advancing = 1;
    while (advance_once(c))
        ;
    c->advancing = 0;
}

static void on_read(struct bufferevent *bev, void *arg)
{
    struct connection *c = arg;
    (void)bev;
    if (c->state == READ_HEAD && !c->head_clock) {
        c->head_clock = 1;
        set_timer(c, HEAD_TIMEOUT_S);
    }
    advance(c);
}

static void on_write(struct bufferevent *bev, void *arg)
{
    struct connection *c = arg;
    (void)bev;
    if (c->state == FLUSH) {
        start_closing(c);
        return;
    }
    if (unsent(c) == 0 && c->state == BUSY)
        event_del(c->timer);
    if (unsent(c) == 0 && c->state == READ_HEAD && !c->head_clock)
        set_timer(c, IDLE_TIMEOUT_S);
    if (c->state == BUSY && c->x.on_drain)
        c->x.on_drain(c->x.user);
}

static void on_event(struct bufferevent *bev, short what, void *arg)
{
    (void)bev;
    if (what & (BEV_EVENT_EOF | BEV_EVENT_ERROR))
        kill_connection(arg);
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    struct connection *c = arg;
    (void)fd;
    (void)what;
    if (unsent(c) > 0 && (c->state == BUSY || c->state == FLUSH || c->state == READ_HEAD)) {
        if (watch_reader_again(c))
            return;
    } else if (c->state >= READ_BODY && c->state <= READ_TRAILER) {
        refuse(c, 408, "the body did not come in time");
        return;
    }
    kill_connection(c);
}

static void on_accept(struct evconnlistener *listener, evutil_socket_t fd, struct sockaddr *address, int n_address, void *arg)
{
    struct http *h = arg;
    int one = 1;
    (void)address;
    (void)n_address;
    struct connection *c = mem_alloc(MEM_SERVE, sizeof *c);
    struct bufferevent *bev = bufferevent_socket_new(h->base, fd, BEV_OPT_CLOSE_ON_FREE);
    struct event *timer = c ? evtimer_new(h->base, on_timer, c) : NULL;
    if (!c || !bev || !timer) {
        if (bev)
            bufferevent_free(bev);
        else
            evutil_closesocket(fd);
        if (timer)
            event_free(timer);
        mem_free(c);
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    c->http = h;
    c->bev = bev;
    c->timer = timer;
    buf_init(&c->body, MEM_SERVE, h->o.max_body_bytes);
    c->next = h->live;
    if (h->live)
        h->live->previous = c;
    h->live = c;
    if (++h->n_live == h->o.max_connections)
        evconnlistener_disable(listener);
    bufferevent_setcb(bev, on_read, on_write, on_event, c);
    bufferevent_setwatermark(bev, EV_READ, 0, INPUT_HIGH);
    bufferevent_setwatermark(bev, EV_WRITE, OUTPUT_LOW, 0);
    set_timer(c, HEAD_TIMEOUT_S);
    c->head_clock = 1;
    bufferevent_enable(bev, EV_READ | EV_WRITE);
}

static void on_retry(evutil_socket_t fd, short what, void *arg)
{
    struct http *h = arg;
    (void)fd;
    (void)what;
    if (h->n_live < h->o.max_connections)
        evconnlistener_enable(h->listener);
}

/* No descriptors left: a pause, else the loop would spin on the same error. */
static void on_accept_error(struct evconnlistener *listener, void *arg)
{
    struct http *h = arg;
    struct timeval pause = {.tv_usec = 200000};
    evconnlistener_disable(listener);
    event_add(h->retry, &pause);
}

static int open_listener(struct http *h, struct err *err)
{
    char port[16];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *list = NULL;
    snprintf(port, sizeof port, "%d", h->o.port);
    int rc = getaddrinfo(h->o.host, port, &hints, &list);
    if (rc != 0)
        return err_set(err, ERR_IO, "cannot listen on %s:%d: %s", h->o.host, h->o.port, gai_strerror(rc));
    h->listener = evconnlistener_new_bind(h->base, on_accept, h, LEV_OPT_CLOSE_ON_FREE | LEV_OPT_REUSEABLE | LEV_OPT_CLOSE_ON_EXEC, 512, list->ai_addr, (int)list->ai_addrlen);
    int why = EVUTIL_SOCKET_ERROR();
    freeaddrinfo(list);
    if (!h->listener)
        return err_set(err, ERR_IO, "cannot listen on %s:%d: %s", h->o.host, h->o.port, evutil_socket_error_to_string(why));
    evconnlistener_set_error_cb(h->listener, on_accept_error);
    struct sockaddr_storage bound;
    socklen_t n = sizeof bound;
    if (getsockname(evconnlistener_get_fd(h->listener), (struct sockaddr *)&bound, &n) == 0)
        h->port = ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port : ((struct sockaddr_in *)&bound)->sin_port);
    return 0;
}

int http_open(struct event_base *base, const struct http_options *options, struct http **out, struct err *err)
{
    struct http *h = mem_alloc(MEM_SERVE, sizeof *h);
    if (!h)
        return err_set(err, ERR_NO_MEMORY, "out of memory for the server");
    h->o = *options;
    h->base = base;
    int look_ms = options->slow_reader_timeout_s * 1000 / STALL_LOOKS;
    h->stall_look = (struct timeval){.tv_sec = look_ms / 1000, .tv_usec = look_ms % 1000 * 1000};
    h->reaper = event_new(base, -1, 0, reap, h);
    h->retry = evtimer_new(base, on_retry, h);
    int rc = h->reaper && h->retry ? open_listener(h, err) : err_set(err, ERR_NO_MEMORY, "out of memory for the server");
    if (rc < 0)
        http_close(h);
    else
        *out = h;
    return rc;
}

void http_close(struct http *h)
{
    if (!h)
        return;
    while (h->live)
        kill_connection(h->live);
    reap(-1, 0, h);
    if (h->listener)
        evconnlistener_free(h->listener);
    if (h->reaper)
        event_free(h->reaper);
    if (h->retry)
        event_free(h->retry);
    mem_free(h);
}

int http_port(const struct http *h)
{
    return h->port;
}

int http_n_connections(const struct http *h)
{
    return h->n_live;
}

int http_n_unsent(const struct http *h)
{
    int n = 0;
    for (const struct connection *c = h->live; c; c = c->next)
        n += c->state == FLUSH || unsent(c) > 0;
    return n;
}
