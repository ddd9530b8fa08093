/* Invariant: every chunk of a stream is written by begin_chunk and end_chunk, every part of a whole answer by the same event. */
#include "serve/openai_reply.h"

#include <math.h>
#include <string.h>
#include <sys/random.h>

#include "base/hash.h"
#include "base/json.h"

#define MAX_ANSWER_BYTES ((size_t)256 << 20)

static uint64_t draw_salt(const void *where)
{
    uint64_t salt;
    if (getrandom(&salt, sizeof salt, 0) != (ssize_t)sizeof salt)
        salt = hash_bytes(&where, sizeof where, (uint64_t)time(NULL));
    return salt;
}

int openai_reply_init(struct openai_reply *r, enum openai_kind kind, int stream, const char *model, time_t created, const struct vocab *vocab)
{
    struct buf *all[] = {&r->head, &r->out, &r->reasoning, &r->content, &r->calls, &r->arguments, &r->logprobs[0], &r->logprobs[1], &r->logprobs[2], &r->logprobs[3]};
    *r = (struct openai_reply){.kind = kind, .stream = stream, .vocab = vocab, .salt = draw_salt(r)};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        buf_init(all[i], MEM_SERVE, MAX_ANSWER_BYTES);
    snprintf(r->id, sizeof r->id, "%s-%016llx", kind == OPENAI_CHAT ? "chatcmpl" : "cmpl", (unsigned long long)r->salt);
    const char *object = kind == OPENAI_COMPLETION ? "text_completion" : stream ? "chat.completion.chunk" : "chat.completion";
    buf_addf(&r->head, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", r->id, object, (long long)created);
    write_text(&r->head, model, strlen(model));
    return buf_add_str(&r->head, ",\"system_fingerprint\":\"apr-" APR_VERSION "\",\"choices\":[");
}

void openai_reply_free(struct openai_reply *r)
{
    struct buf *all[] = {&r->head, &r->out, &r->reasoning, &r->content, &r->calls, &r->arguments, &r->logprobs[0], &r->logprobs[1], &r->logprobs[2], &r->logprobs[3]};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        buf_free(all[i]);
}

/* The logprobs gathered since the last time, or null. */
static void write_logprobs(struct openai_reply *r)
{
    static const char *const names[4] = {"tokens", "token_logprobs", "top_logprobs", "text_offset"};
    for (int i = 0; i < 4; i++)
        if (r->logprobs[i].failed)
            r->out.failed = r->logprobs[i].failed; /* a part that failed would leave a hole */
    buf_add_str(&r->out, ",\"logprobs\":");
    if (r->logprobs[0].len == 0) {
        buf_add_str(&r->out, "null");
        return;
    }
    if (r->kind == OPENAI_CHAT)
        buf_addf(&r->out, "{\"content\":[");
    for (int i = 0; i < (r->kind == OPENAI_CHAT ? 1 : 4); i++) {
        if (r->kind == OPENAI_COMPLETION)
            buf_addf(&r->out, "%s\"%s\":[", i ? "]," : "{", names[i]);
        buf_add(&r->out, r->logprobs[i].data, r->logprobs[i].len);
        buf_clear(&r->logprobs[i]);
    }
    buf_add_str(&r->out, "]}");
}

static void begin_chunk(struct openai_reply *r)
{
    buf_add_str(&r->out, "data: ");
    buf_add(&r->out, r->head.data, r->head.len);
    buf_add_str(&r->out, r->kind == OPENAI_CHAT ? "{\"index\":0,\"delta\":{" : "{\"index\":0,\"text\":");
}

/* After the delta's members (or the text). */
static void end_choice(struct openai_reply *r, const char *finish_reason)
{
    if (r->kind == OPENAI_CHAT)
        buf_add_char(&r->out, '}');
    write_logprobs(r);
    if (finish_reason)
        buf_addf(&r->out, ",\"finish_reason\":\"%s\"}]", finish_reason);
    else
        buf_add_str(&r->out, ",\"finish_reason\":null}]");
}

static void end_chunk(struct openai_reply *r)
{
    end_choice(r, NULL);
    buf_add_str(&r->out, "}\n\n");
}

void openai_reply_begin(struct openai_reply *r)
{
    if (!r->stream || r->kind != OPENAI_CHAT)
        return;
    begin_chunk(r);
    buf_add_str(&r->out, "\"role\":\"assistant\",\"content\":\"\"");
    end_chunk(r);
}

static void write_call_head(struct openai_reply *r, struct buf *out, const struct reply_event *e)
{
    uint64_t half = hash_bytes(&e->call, sizeof e->call, r->salt);
    buf_addf(out, "\"id\":\"call_%08x%016llx\",\"type\":\"function\",\"function\":{\"name\":", (unsigned)r->salt, (unsigned long long)half);
    write_text(out, e->text, e->n);
    buf_add_str(out, ",\"arguments\":");
}

static int stream_event(struct openai_reply *r, const struct reply_event *e)
{
    if (e->kind == REPLY_CALL_END)
        return 0;
    begin_chunk(r);
    if (r->kind == OPENAI_COMPLETION) {
        write_text(&r->out, e->text, e->n);
    } else if (e->kind == REPLY_CALL_BEGIN || e->kind == REPLY_CALL_ARGS) {
        buf_addf(&r->out, "\"tool_calls\":[{\"index\":%d,", e->call);
        if (e->kind == REPLY_CALL_BEGIN) {
            write_call_head(r, &r->out, e);
            buf_add_str(&r->out, "\"\"");
        } else {
            buf_add_str(&r->out, "\"function\":{\"arguments\":");
            write_text(&r->out, e->text, e->n);
        }
        buf_add_str(&r->out, "}}]");
    } else {
        buf_add_str(&r->out, e->kind == REPLY_REASONING ? "\"reasoning_content\":" : "\"content\":");
        write_text(&r->out, e->text, e->n);
    }
    end_chunk(r);
    return r->out.failed;
}

static void close_call(struct openai_reply *r)
{
    if (!r->call_open)
        return;
    write_text(&r->calls, buf_str(&r->arguments), r->arguments.len);
    buf_add_str(&r->calls, "}}");
    buf_clear(&r->arguments);
    r->call_open = 0;
}

static int gather_event(struct openai_reply *r, const struct reply_event *e)
{
    switch (e->kind) {
    case REPLY_REASONING:
        return buf_add(&r->reasoning, e->text, e->n);
    case REPLY_TEXT:
        return buf_add(&r->content, e->text, e->n);
    case REPLY_CALL_BEGIN:
        buf_add_str(&r->calls, r->n_calls ? ",{" : "{");
        write_call_head(r, &r->calls, e);
        r->call_open = 1;
        return r->calls.failed;
    case REPLY_CALL_ARGS:
        return buf_add(&r->arguments, e->text, e->n);
    case REPLY_CALL_END:
        close_call(r);
        return r->calls.failed;
    }
    return 0;
}

int openai_reply_event(struct openai_reply *r, const struct reply_event *e)
{
    if (r->cut)
        return 0;
    int rc = r->stream ? stream_event(r, e) : gather_event(r, e);
    r->n_calls += e->kind == REPLY_CALL_BEGIN;
    r->cut = r->one_call && e->kind == REPLY_CALL_END;
    return rc;
}

static void write_logprob(struct buf *out, double value)
{
    json_write_float(out, isfinite(value) ? value : -9999.0);
}

/* "token":…,"logprob":…,"bytes":[…] */
static void write_token(struct openai_reply *r, int32_t id, double logprob)
{
    struct buf *out = &r->logprobs[0];
    const char *bytes;
    size_t n;
    vocab_piece(r->vocab, id, &bytes, &n);
    buf_add_str(out, "{\"token\":");
    write_text(out, bytes, n);
    buf_add_str(out, ",\"logprob\":");
    write_logprob(out, logprob);
    buf_add_str(out, ",\"bytes\":[");
    for (size_t i = 0; i < n; i++)
        buf_addf(out, i ? ",%u" : "%u", (unsigned char)bytes[i]);
    buf_add_char(out, ']');
}

static void add_chat_logprobs(struct openai_reply *r, const struct token_event *e)
{
    struct buf *out = &r->logprobs[0];
    if (out->len)
        buf_add_char(out, ',');
    write_token(r, e->id, e->logprob);
    buf_add_str(out, ",\"top_logprobs\":[");
    for (int i = 0; i < e->n_top; i++) {
        if (i)
            buf_add_char(out, ',');
        write_token(r, e->top_ids[i], e->top_logprobs[i]);
        buf_add_char(out, '}');
    }
    buf_add_str(out, "]}");
}

static void add_completion_logprobs(struct openai_reply *r, const struct token_event *e)
{
    const char *bytes;
    size_t n;
    for (int i = 0; i < 4 && r->logprobs[0].len; i++)
        buf_add_char(&r->logprobs[i], ',');
    vocab_piece(r->vocab, e->id, &bytes, &n);
    write_text(&r->logprobs[0], bytes, n);
    write_logprob(&r->logprobs[1], e->logprob);
    buf_addf(&r->logprobs[3], "%lld", (long long)r->text_offset);
    for (size_t i = 0; i < n; i++)
        r->text_offset += ((unsigned char)bytes[i] & 0xC0) != 0x80;
    buf_add_char(&r->logprobs[2], '{');
    for (int i = 0; i < e->n_top; i++) {
        vocab_piece(r->vocab, e->top_ids[i], &bytes, &n);
        if (i)
            buf_add_char(&r->logprobs[2], ',');
        write_text(&r->logprobs[2], bytes, n);
        buf_add_char(&r->logprobs[2], ':');
        write_logprob(&r->logprobs[2], e->top_logprobs[i]);
    }
    buf_add_char(&r->logprobs[2], '}');
}

void openai_reply_logprobs(struct openai_reply *r, const struct token_event *e)
{
    if (r->kind == OPENAI_CHAT)
        add_chat_logprobs(r, e);
    else
        add_completion_logprobs(r, e);
}

static double per(double a, double b)
{
    double q = b > 0 ? a / b : 0;
    return isfinite(q) ? q : 0;
}

static void write_usage(struct buf *out, const struct answer_result *a)
{
    buf_addf(out, "\"usage\":{\"prompt_tokens\":%lld,\"completion_tokens\":%lld,\"total_tokens\":%lld,\"prompt_tokens_details\":{\"cached_tokens\":%lld},"
                  "\"completion_tokens_details\":{\"reasoning_tokens\":%lld}}",
             (long long)a->n_prompt, (long long)a->n_generated, (long long)(a->n_prompt + a->n_generated), (long long)a->n_cached, (long long)a->n_reasoning);
}

static void write_timings(struct buf *out, const struct answer_result *a, int used_gpu)
{
    int64_t n_read = a->n_prompt - a->n_cached;
    buf_addf(out, "\"timings\":{\"cache_n\":%lld,\"prompt_n\":%lld,\"prompt_ms\":%.3f,\"prompt_per_token_ms\":%.3f,\"prompt_per_second\":%.3f,", (long long)a->n_cached,
             (long long)n_read, a->prefill_ms, per(a->prefill_ms, (double)n_read), per((double)n_read * 1e3, a->prefill_ms));
    buf_addf(out, "\"predicted_n\":%lld,\"predicted_ms\":%.3f,\"predicted_per_token_ms\":%.3f,\"predicted_per_second\":%.3f},\"used_gpu\":%s", (long long)a->n_generated, a->decode_ms,
             per(a->decode_ms, (double)a->n_generated), per((double)a->n_generated * 1e3, a->decode_ms), used_gpu ? "true" : "false");
}

static void finish_stream(struct openai_reply *r, const char *reason, const struct answer_result *a, int used_gpu)
{
    begin_chunk(r);
    if (r->kind == OPENAI_COMPLETION)
        buf_add_str(&r->out, "\"\"");
    end_choice(r, reason);
    buf_add_char(&r->out, ',');
    write_timings(&r->out, a, used_gpu);
    buf_add_str(&r->out, "}\n\n");
    if (r->include_usage) {
        buf_add_str(&r->out, "data: ");
        buf_add(&r->out, r->head.data, r->head.len);
        buf_add_str(&r->out, "],");
        write_usage(&r->out, a);
        buf_add_str(&r->out, "}\n\n");
    }
    buf_add_str(&r->out, "data: [DONE]\n\n");
}

static void write_message(struct openai_reply *r)
{
    buf_add_str(&r->out, "\"message\":{\"role\":\"assistant\",\"content\":");
    if (r->n_calls && r->content.len == 0)
        buf_add_str(&r->out, "null");
    else
        write_text(&r->out, buf_str(&r->content), r->content.len);
    if (r->reasoning.len) {
        buf_add_str(&r->out, ",\"reasoning_content\":");
        write_text(&r->out, r->reasoning.data, r->reasoning.len);
    }
    if (r->n_calls) {
        close_call(r);
        buf_add_str(&r->out, ",\"tool_calls\":[");
        buf_add(&r->out, r->calls.data, r->calls.len);
        buf_add_char(&r->out, ']');
    }
}

static void finish_whole(struct openai_reply *r, const char *reason, const struct answer_result *a, int used_gpu)
{
    buf_add(&r->out, r->head.data, r->head.len);
    buf_add_str(&r->out, "{\"index\":0,");
    if (r->kind == OPENAI_CHAT) {
        write_message(r);
    } else {
        buf_add_str(&r->out, "\"text\":");
        write_text(&r->out, buf_str(&r->content), r->content.len);
    }
    end_choice(r, reason);
    buf_add_char(&r->out, ',');
    write_usage(&r->out, a);
    buf_add_char(&r->out, ',');
    write_timings(&r->out, a, used_gpu);
    buf_add_char(&r->out, '}');
    /* a part that failed would leave a hole */
    int failed = r->content.failed | r->reasoning.failed | r->calls.failed | r->arguments.failed;
    if (failed)
        r->out.failed = ERR_NO_MEMORY;
}

void openai_reply_finish(struct openai_reply *r, const struct answer_result *a, int used_gpu)
{
    const char *reason = r->cut ? "tool_calls" : a->finish_reason;
    if (r->stream)
        finish_stream(r, reason, a, used_gpu);
    else
        finish_whole(r, reason, a, used_gpu);
}

void openai_reply_fail(struct openai_reply *r, const struct api_error *e)
{
    buf_add_str(&r->out, "data: ");
    api_error_write(e, &r->out);
    buf_add_str(&r->out, "\n\n");
}
