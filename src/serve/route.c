/* What a request must pass before its body is read: who asks (Host, key), for what (path, method), in which form (Content-Type). */
#include "serve/route.h"

#include <string.h>
#include <strings.h>

#include "serve/admin.h"
#include "serve/generation.h"
#include "serve/metrics.h"
#include "serve/text.h"

static const struct route routes[] = {
    {"GET", "/", ROUTE_PUBLIC, admin_index, "this list; the chat page for a browser"},
    {"GET", "/health", ROUTE_PUBLIC, admin_health, "200 when requests are served"},
    {"GET", "/health/live", ROUTE_PUBLIC, admin_live, "200 while the process runs"},
    {"GET", "/health/ready", ROUTE_PUBLIC, admin_health, "200 when requests are served"},
    {"GET", "/v1/models", 0, admin_models, "the model that is served"},
    {"GET", "/v1/models/", ROUTE_PREFIX, admin_model, "one model by id"},
    {"POST", "/v1/chat/completions", ROUTE_WORK, openai_chat, "chat, OpenAI's form, streamed or whole"},
    {"POST", "/v1/completions", ROUTE_WORK, openai_completion, "plain completion of a text or of token ids"},
    {"POST", "/tokenize", ROUTE_WORK, text_tokenize, "text to token ids"},
    {"POST", "/detokenize", ROUTE_WORK, text_detokenize, "token ids to text"},
    {"POST", "/apply-template", ROUTE_WORK, text_apply_template, "messages to the prompt that the model reads"},
    {"GET", "/metrics", ROUTE_METRICS, metrics_get, "counters, Prometheus' form"},
};

#define N_ROUTES (sizeof routes / sizeof *routes)

static int is_mounted(const struct server *s, const struct route *r)
{
    return !(r->flags & ROUTE_METRICS) || !s->o->no_metrics;
}

const struct route *route_at(const struct server *s, size_t i)
{
    for (size_t k = 0; k < N_ROUTES; k++)
        if (is_mounted(s, &routes[k]) && i-- == 0)
            return &routes[k];
    return NULL;
}

static int path_matches(const struct route *r, const char *path)
{
    size_t n = strlen(r->path);
    return r->flags & ROUTE_PREFIX ? strncmp(path, r->path, n) == 0 && path[n] : strcmp(path, r->path) == 0;
}

/* The route, or NULL; *allowed: the method that the path would take. */
static const struct route *find(const struct server *s, const struct exchange *x, const char **allowed)
{
    const char *method = x->head_only ? "GET" : x->method, *path = x->path;
    *allowed = NULL;
    for (size_t i = 0; i < N_ROUTES; i++) {
        if (!is_mounted(s, &routes[i]) || !path_matches(&routes[i], path))
            continue;
        if (strcmp(routes[i].method, method) == 0)
            return &routes[i];
        *allowed = routes[i].method;
    }
    return NULL;
}

int key_equal(const char *a, const char *b)
{
    size_t n_a = strlen(a), n_b = strlen(b);
    unsigned char differs = n_a != n_b;
    for (size_t i = 0; i < n_a; i++)
        differs |= (unsigned char)(a[i] ^ (n_b ? b[i % n_b] : 1));
    return !differs;
}

int host_is_loopback(const char *host)
{
    size_t n = *host == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":");
    if (n > strlen(host) || (host[n] && host[n] != ':'))
        return 0;
    if ((n == 9 && strncasecmp(host, "localhost", n) == 0) || (n == 5 && strncmp(host, "[::1]", n) == 0))
        return 1;
    /* 127.a.b.c in digits: a name that only begins so ("127.0.0.1.example") is somebody else's */
    int dots = 0;
    if (n < 9 || strncmp(host, "127.", 4) != 0)
        return 0;
    for (size_t i = 0; i < n; i++) {
        if ((host[i] < '0' || host[i] > '9') && host[i] != '.')
            return 0;
        dots += host[i] == '.';
    }
    return dots == 3 && host[n - 1] != '.';
}

static int has_key(const struct server *s, const struct exchange *x)
{
    const char *authorization = exchange_header(x, "authorization"), *key = exchange_header(x, "x-api-key");
    if (authorization && strncasecmp(authorization, "Bearer ", 7) == 0)
        return key_equal(authorization + 7 + strspn(authorization + 7, " "), s->o->api_key);
    return key && key_equal(key, s->o->api_key);
}

/* 0, or answered. Without a key a page of another site could reach us by a name that resolves to 127.0.0.1: the Host header tells. */
static int check_caller(struct server *s, struct exchange *x, const struct route *r)
{
    const char *host = exchange_header(x, "host");
    if (s->o->api_key && *s->o->api_key) {
        if ((r && r->flags & ROUTE_PUBLIC) || has_key(s, x))
            return 0;
        reply_refusal(s, x, 401, "invalid_api_key", "an API key is needed: Authorization: Bearer KEY");
        return 1;
    }
    if (!host || host_is_loopback(host))
        return 0;
    reply_refusal(s, x, 403, "host_not_allowed", "without --api-key this server answers loopback hosts only, not \"%.100s\"", host);
    return 1;
}

/* All of them, or NULL when memory is short. */
static json_t *list_routes(const struct server *s)
{
    json_t *list = json_array();
    const struct route *r;
    for (size_t i = 0; (r = route_at(s, i)) != NULL; i++)
        if (json_array_append_new(list, json_sprintf("%s %s%s", r->method, r->path, r->flags & ROUTE_PREFIX ? "{id}" : "")) < 0) {
            json_decref(list);
            return NULL;
        }
    return list;
}

static void refuse_route(struct server *s, struct exchange *x)
{
    struct buf text;
    buf_init(&text, MEM_SERVE, 1024);
    buf_addf(&text, "there is no %.10s %.200s here", x->method, x->path);
    json_t *message = text.failed ? NULL : json_text(buf_str(&text), text.len);
    buf_free(&text);
    reply_json(s, x, 404, json_pack("{s:{s:o,s:s,s:n,s:s},s:o}", "error", "message", message, "type", "invalid_request_error", "param", "code", "route_not_found", "routes", list_routes(s)));
}

static int is_json(const struct exchange *x)
{
    const char *type = exchange_header(x, "content-type");
    size_t n = strlen("application/json");
    return type && strncasecmp(type, "application/json", n) == 0 && (!type[n] || strchr("; \t", type[n]));
}

int route_check(struct server *s, struct exchange *x)
{
    const char *allowed;
    if (s->o->cors_origin && strcmp(x->method, "OPTIONS") == 0) {
        s->n_replies[2]++;
        exchange_reply(x, &(struct http_reply){.status = 204, .headers = "Access-Control-Allow-Methods: GET, POST, OPTIONS\r\n"
                                                                        "Access-Control-Allow-Headers: Content-Type, Authorization, X-Api-Key\r\nAccess-Control-Max-Age: 600\r\n"});
        return 1;
    }
    const struct route *r = find(s, x, &allowed);
    if (check_caller(s, x, r))
        return 1;
    if (!r && allowed)
        reply_refusal(s, x, 405, "method_not_allowed", "%.200s takes %s, not %.10s", x->path, allowed, x->method);
    else if (!r)
        refuse_route(s, x);
    else if (r->flags & ROUTE_WORK && s->draining)
        reply_refusal(s, x, 503, "shutting_down", "the server is shutting down and takes no new requests");
    else if (r->flags & ROUTE_WORK && !is_json(x))
        reply_refusal(s, x, 415, "unsupported_media_type", "the body must be sent as Content-Type: application/json");
    else
        return 0;
    return 1;
}

void route_dispatch(struct server *s, struct exchange *x)
{
    const char *allowed;
    const struct route *r = find(s, x, &allowed);
    r->handle(s, x);
}
