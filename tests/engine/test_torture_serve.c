/* The server whose memory is refused: each allocation that a start and a request reach fails once, in turn. A start ends by name or serves; a request ends in its answer, in an error of
 * the protocol, or, where not even its connection could be held, in a closed one; the next is answered in full, and nothing leaks. */
#include <arpa/inet.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "serve/serve.h"
#include "support/test.h"

#define STRIDE (TEST_THREAD_SANITIZED ? 20 : TEST_SANITIZED ? 4 : 1)
#define TOOL "{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"}}}}}"
#define CHAT "{\"messages\":[{\"role\":\"user\",\"content\":\"Which port does apr listen on please?\"}],\"enable_thinking\":false,\"temperature\":0,\"stop\":[\"zzz\"]"

/* What is asked, and what a good answer holds; all of it, wherever the pieces of a stream have it. */
static const struct ask {
    const char *method, *path, *body, *holds[3];
    int status;
} asks[] = {
    {"POST", "/v1/chat/completions", CHAT "}", {"The default port is 8080.", "\"finish_reason\":\"stop\""}, 200},
    {"POST", "/v1/chat/completions", CHAT ",\"stream\":true,\"stream_options\":{\"include_usage\":true},\"logprobs\":true,\"top_logprobs\":2}",
     {"\"content\":\"The\"", "\"finish_reason\":\"stop\"", "data: [DONE]"}, 200},
    {"POST", "/v1/chat/completions", CHAT ",\"tools\":[" TOOL "],\"logit_bias\":{\"5\":-1},\"tool_choice\":\"none\"}", {"The default port is 8080."}, 200},
    {"POST", "/v1/completions", "{\"prompt\":\"The default port is\",\"max_tokens\":3,\"temperature\":0,\"logprobs\":1}", {"\"completion_tokens\":3", "\"tokens\":["}, 200},
    {"POST", "/apply-template",
     "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"type\":\"function\",\"function\":{\"name\":\"add\",\"arguments\":"
     "\"{\\\"a\\\": 2}\"}}]},{\"role\":\"tool\",\"content\":\"4\"}],\"enable_thinking\":false}",
     {"<function=add>\\n<parameter=a>\\n2\\n</parameter>\\n</function>", "4\\n</tool_response>", "\"tokens\": [4064, 277, 198, 64, 4065, 198, 4064, 282, 198, 4087"}, 200},
    {"POST", "/tokenize", "{\"content\":\"The default port is 8080.\"}", {"\"tokens\": [331, 1932, 1446, 299, 220, 23, 15, 23, 15, 13]", "\"count\": 10"}, 200},
    {"POST", "/detokenize", "{\"tokens\":[65,66,67]}", {"\"content\": ", "\"prompt\": "}, 200},
    {"GET", "/v1/models", "", {"\"max_model_len\": 1024", "\"slug\": \"apr-demo\""}, 200},
    {"GET", "/metrics", "", {"apr_memory_bytes{label=\"json\"}"}, 200},
    {"GET", "/", "", {"\"/v1/chat/completions\"", "\"/health\""}, 200},
    {"GET", "/nothing", "", {"there is no GET /nothing here", "\"routes\": [\"GET", "/v1/completions"}, 404},
    {"POST", "/v1/chat/completions", "{\"messages\":[", {"not valid JSON at line 1", "\"code\":\"invalid_json\""}, 400},
};
#define N_ASKS (sizeof asks / sizeof *asks)

static struct model *m;
static struct engine *e;

struct served {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int port, ended, rc;
    struct err err;
};

static void stop_faults(void)
{
    mem_fail_nth(0);
    mem_fail_call(MEM_CALL_THREAD, 0);
}

static void on_listening(void *ctx, const char *url)
{
    struct served *s = ctx;
    pthread_mutex_lock(&s->lock);
    s->port = atoi(strrchr(url, ':') + 1);
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static void *serve_main(void *arg)
{
    struct served *s = arg;
    struct serve_options o;
    serve_options_default(&o);
    o.port = 0;
    s->rc = serve_run(e, &o, on_listening, s, &s->err);
    pthread_mutex_lock(&s->lock);
    s->ended = 1;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* 1: it listens; 0: it has ended. */
static int serve_start(struct served *s)
{
    *s = (struct served){.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    assert_int_equal(pthread_create(&s->thread, NULL, serve_main, s), 0);
    pthread_mutex_lock(&s->lock);
    while (!s->port && !s->ended)
        pthread_cond_wait(&s->changed, &s->lock);
    int listening = s->port && !s->ended;
    pthread_mutex_unlock(&s->lock);
    return listening;
}

static void serve_stop(struct served *s)
{
    kill(getpid(), SIGTERM);
    pthread_join(s->thread, NULL);
    test_ok(s->rc, &s->err, "serve");
}

/* One request on a connection of its own; everything up to its end. */
static size_t send_ask(int port, const struct ask *ask, char *out, size_t n)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval limit = {.tv_sec = 60};
    char head[512];
    size_t got = 0;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0) {
        snprintf(head, sizeof head, "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n", ask->method, ask->path,
                 strlen(ask->body));
        if (send(fd, head, strlen(head), MSG_NOSIGNAL) > 0 && send(fd, ask->body, strlen(ask->body), MSG_NOSIGNAL) >= 0)
            for (ssize_t more = 1; more > 0 && got < n - 1; got += more > 0 ? (size_t)more : 0)
                more = recv(fd, out + got, n - 1 - got, 0);
    }
    close(fd);
    out[got] = 0;
    return got;
}

struct figures {
    int tried, answered, refused, closed;
};

/* Every document of the reply is whole; a stream's text adds up to what a whole answer has. */
static int is_whole(const char *reply)
{
    const char *body = strstr(reply, "\r\n\r\n");
    char text[256] = "";
    int n = 0, streamed = strstr(reply, "text/event-stream") != NULL;
    for (const char *at = body ? body + 4 : NULL; at && *at; n++) {
        const char *end = streamed ? strstr(at, "\n\n") : at + strlen(at);
        if (streamed) { /* chunks of the transfer lie between events, never in one */
            at = strstr(at, "data: ");
            if (!at || strncmp(at, "data: [DONE]", 12) == 0)
                break;
            at += 6;
            end = strstr(at, "\n\n");
        }
        json_t *document = end ? json_loadb(at, (size_t)(end - at), 0, NULL) : NULL;
        const char *piece = json_string_value(json_object_get(json_object_get(json_array_get(json_object_get(document, "choices"), 0), "delta"), "content"));
        if (piece)
            strncat(text, piece, sizeof text - strlen(text) - 1);
        json_decref(document);
        if (!document)
            return 0;
        at = end;
    }
    return n > 0 && (!streamed || strcmp(text, "The default port is 8080.") == 0);
}

static int is_answer(const struct ask *ask, const char *reply)
{
    char status[32];
    snprintf(status, sizeof status, "HTTP/1.1 %d ", ask->status);
    int good = strncmp(reply, status, strlen(status)) == 0 && (strstr(reply, "text/plain") || is_whole(reply));
    for (int i = 0; i < 3 && ask->holds[i]; i++)
        good = good && strstr(reply, ask->holds[i]);
    return good;
}

/* An error of the server's own, with its words; in a stream that has begun it is the last event. */
static int is_refusal(const char *reply)
{
    const char *error = strstr(reply, "\"error\":{\"message\":\"");
    return error && error[strlen("\"error\":{\"message\":\"")] != '"' && (strncmp(reply, "HTTP/1.1 5", 10) == 0 || (strstr(reply, "text/event-stream") && !strstr(reply, "[DONE]")));
}

static void judge(const struct ask *ask, const char *reply, size_t got, long nth, struct figures *f)
{
    f->tried++;
    if (got == 0)
        f->closed++;
    else if (is_answer(ask, reply))
        f->answered++;
    else if (is_refusal(reply))
        f->refused++;
    else
        fail_msg("%s %s, allocation %ld: neither an answer nor an error: %.2000s", ask->method, ask->path, nth, reply);
}

/* Bytes that requests may leave behind: none. Connections end a little after their clients do. */
static void wait_for_bytes(size_t wanted)
{
    uint64_t start_ns = clock_ns();
    size_t held;
    while ((held = mem_bytes(MEM_SERVE) + mem_bytes(MEM_JSON) + mem_bytes(MEM_TEXT)) != wanted)
        if (clock_ms_since(start_ns) > 5000)
            fail_msg("%zu bytes are held, %zu were before", held, wanted);
}

static size_t bytes_held(void)
{
    usleep(50000);
    return mem_bytes(MEM_SERVE) + mem_bytes(MEM_JSON) + mem_bytes(MEM_TEXT);
}

/* The n-th allocation of one request fails, for every n; after each the plainest one is answered in full. */
static void torture_one(const struct ask *ask, int port, size_t held)
{
    static char reply[1 << 20];
    struct figures f = {0};
    int came = 1;
    for (long n = 1; came; n += STRIDE) {
        struct figures after = {0};
        mem_fail_nth(n);
        size_t got = send_ask(port, ask, reply, sizeof reply);
        came = !mem_fail_pending();
        stop_faults();
        judge(ask, reply, got, n, &f);
        judge(&asks[0], reply, send_ask(port, &asks[0], reply, sizeof reply), n, &after);
        if (!after.answered)
            fail_msg("%s, allocation %ld: the next request was not answered: %.1000s", ask->path, n, reply);
        wait_for_bytes(held);
    }
    print_message("torture: n-th allocation of %s %s: tried %d, survived %d (%d answered, %d refused by name, %d closed without a word), lost 0\n", ask->method, ask->path, f.tried, f.tried,
                  f.answered, f.refused, f.closed);
    assert_true(f.answered > 0 && (f.refused > 0 || STRIDE > 1) && f.closed <= 8); /* the connection, the head of its answer */
}

static void test_requests(void **state)
{
    struct served s;
    static char reply[1 << 20];
    (void)state;
    assert_true(serve_start(&s));
    for (size_t i = 0; i < N_ASKS; i++) { /* what a first request leaves for good is there then */
        send_ask(s.port, &asks[i], reply, sizeof reply);
        if (!is_answer(&asks[i], reply))
            fail_msg("%s %s: %.3000s", asks[i].method, asks[i].path, reply);
    }
    size_t held = bytes_held();
    for (size_t i = 0; i < N_ASKS; i++)
        torture_one(&asks[i], s.port, held);
    serve_stop(&s);
}

static void test_start(void **state)
{
    size_t bytes = mem_total();
    int refused = 0, tried = 0;
    (void)state;
    for (int threads = 0; threads < 2; threads++) {
        int came = 1;
        for (long n = 1; came; n++, tried++) {
            struct served s;
            if (threads)
                mem_fail_call(MEM_CALL_THREAD, n);
            else
                mem_fail_nth(n);
            int listening = serve_start(&s);
            came = !mem_fail_pending();
            stop_faults();
            if (listening) {
                serve_stop(&s);
            } else {
                pthread_join(s.thread, NULL);
                assert_true((s.rc == ERR_NO_MEMORY || s.rc == ERR_IO) && s.err.message[0]);
                refused++;
            }
            if (mem_total() != bytes)
                fail_msg("%s %ld of a start: %zu bytes were left behind", threads ? "thread" : "allocation", n, mem_total() - bytes);
        }
    }
    print_message("torture: n-th allocation and thread of a server's start: tried %d, survived %d (%d refused by name), lost 0\n", tried, tried, refused);
    assert_true(refused > 2);
}

static int set_up(void **state)
{
    struct err err = {0};
    struct engine_options o = {.device = {.kind = DEVICE_CPU, .n_threads = 1}, .context_length = 1024, .n_parallel = 1, .chunk_rows = 64};
    (void)state;
    json_use_mem();
    log_set_level(LOG_QUIET);
    test_ok(model_load(TEST_SOURCE "/models/apr-demo.gguf", 0, &m, &err), &err, "model");
    test_ok(engine_start(m, &o, &e, &err), &err, "engine");
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    engine_stop(e);
    model_free(m);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_requests), cmocka_unit_test(test_start)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
