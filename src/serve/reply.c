/* Answers that are one document: errors from one table, JSON, text. */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "serve/server.h"

#define MAX_REPLY_BYTES ((size_t)256 << 20)

static const struct {
    int err, status;
    const char *type, *code;
    int retry_after_s;
} error_table[] = {
    {ERR_INVALID, 400, "invalid_request_error", NULL, 0},
    {ERR_FORMAT, 400, "invalid_request_error", "invalid_json", 0},
    {ERR_NOT_FOUND, 404, "invalid_request_error", "not_found", 0},
    {ERR_IO, 500, "server_error", "io", 0},
    {ERR_NO_MEMORY, 503, "server_error", "no_memory", 5},
    {ERR_CAPACITY, 503, "server_error", "capacity", 5},
    {ERR_UNSUPPORTED, 400, "invalid_request_error", "unsupported", 0},
    {ERR_CANCELLED, 503, "server_error", "cancelled", 5},
    {ERR_LIMIT, 400, "invalid_request_error", "limit", 0},
    {ERR_TEMPLATE, 400, "invalid_request_error", "template_error", 0},
    {ERR_NUMERIC, 500, "server_error", "numeric", 0},
    {ERR_CONTEXT_LENGTH, 400, "invalid_request_error", "context_length_exceeded", 0},
    {ERR_BUSY, 429, "rate_limit_error", "busy", 1},
    {ERR_DEVICE, 500, "server_error", "device", 0},
    {ERR_INTERNAL, 500, "server_error", "internal", 0},
};

int api_error_from_err(struct api_error *e)
{
    size_t n = sizeof error_table / sizeof *error_table, i = 0;
    while (i < n - 1 && error_table[i].err != e->err.code)
        i++;
    e->status = error_table[i].status;
    e->type = error_table[i].type;
    e->code = error_table[i].code;
    e->retry_after_s = error_table[i].retry_after_s;
    return e->err.code;
}

int api_error_field(struct api_error *e, const char *param, const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    *e = (struct api_error){.status = 400, .type = "invalid_request_error", .code = "invalid_value"};
    snprintf(e->param, sizeof e->param, "%s", param);
    return err_set(&e->err, ERR_INVALID, "%s: %s", param, text);
}

void write_text(struct buf *out, const char *text, size_t n)
{
    if (utf8_valid(text, n)) {
        json_write_string(out, text, n, 0);
        return;
    }
    struct buf clean;
    buf_init(&clean, MEM_SERVE, n * 3 + 16);
    for (size_t i = 0; i < n;) {
        uint32_t code_point;
        int len = utf8_decode(text + i, n - i, &code_point);
        if (len > 0)
            buf_add(&clean, text + i, (size_t)len);
        else
            buf_add_str(&clean, UTF8_REPLACEMENT);
        i += len > 0 ? (size_t)len : len < 0 ? (size_t)-len : n - i;
    }
    json_write_string(out, buf_str(&clean), clean.len, 0);
    if (clean.failed)
        out->failed = clean.failed;
    buf_free(&clean);
}

json_t *json_text(const char *text, size_t n)
{
    struct buf quoted;
    struct err ignored;
    json_t *value = NULL;
    if (utf8_valid(text, n))
        return json_stringn(text, n);
    buf_init(&quoted, MEM_SERVE, n * 8 + 64);
    write_text(&quoted, text, n);
    int rc = quoted.failed ? quoted.failed : json_parse(quoted.data, quoted.len, &value, &ignored);
    buf_free(&quoted);
    return rc < 0 ? NULL : value;
}

void api_error_write(const struct api_error *e, struct buf *out)
{
    buf_add_str(out, "{\"error\":{\"message\":");
    write_text(out, e->err.message, strlen(e->err.message));
    buf_addf(out, ",\"type\":\"%s\",\"param\":", e->type);
    if (*e->param)
        write_text(out, e->param, strlen(e->param));
    else
        buf_add_str(out, "null");
    buf_add_str(out, ",\"code\":");
    if (e->code)
        write_text(out, e->code, strlen(e->code));
    else
        buf_add_str(out, "null");
    if (e->n_ctx)
        buf_addf(out, ",\"n_prompt_tokens\":%lld,\"n_ctx\":%lld", (long long)e->n_prompt, (long long)e->n_ctx);
    buf_add_str(out, "}}");
}

static void reply_buf(struct server *s, struct exchange *x, int status, const char *headers, struct buf *body)
{
    static const char failed[] = "{\"error\":{\"message\":\"out of memory for the answer\",\"type\":\"server_error\",\"param\":null,\"code\":\"no_memory\"}}";
    struct http_reply reply = {.status = status, .content_type = "application/json", .headers = headers, .body = body->data, .n_body = body->len};
    if (body->failed) {
        reply.status = 503;
        reply.body = failed;
        reply.n_body = sizeof failed - 1;
    }
    s->n_replies[reply.status / 100]++;
    exchange_reply(x, &reply);
    buf_free(body);
}

void reply_error(struct server *s, struct exchange *x, const struct api_error *e)
{
    struct buf body;
    char headers[128] = "";
    buf_init(&body, MEM_SERVE, MAX_REPLY_BYTES);
    api_error_write(e, &body);
    if (e->retry_after_s)
        snprintf(headers, sizeof headers, "Retry-After: %d\r\n", e->retry_after_s);
    if (e->status == 401)
        snprintf(headers, sizeof headers, "WWW-Authenticate: Bearer\r\n");
    reply_buf(s, x, e->status, headers, &body);
}

void reply_refusal(struct server *s, struct exchange *x, int status, const char *code, const char *format, ...)
{
    struct api_error e = {.status = status, .code = code, .retry_after_s = status == 503 || status == 429 ? 5 : 0};
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(e.err.message, sizeof e.err.message, format, arguments);
    va_end(arguments);
    e.type = status == 401 ? "authentication_error" : status == 403 ? "permission_error" : status == 429 ? "rate_limit_error" : status >= 500 ? "server_error" : "invalid_request_error";
    reply_error(s, x, &e);
}

void reply_json(struct server *s, struct exchange *x, int status, json_t *value)
{
    struct buf body;
    buf_init(&body, MEM_SERVE, MAX_REPLY_BYTES);
    if (value)
        json_write_python(&body, value, -1);
    else
        body.failed = ERR_NO_MEMORY;
    json_decref(value);
    reply_buf(s, x, status, NULL, &body);
}

void reply_text(struct server *s, struct exchange *x, const char *content_type, const char *headers, const void *data, size_t n)
{
    s->n_replies[2]++;
    exchange_reply(x, &(struct http_reply){.status = 200, .content_type = content_type, .headers = headers, .body = data, .n_body = n});
}
