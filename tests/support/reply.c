#include "support/reply.h"

#include <stdio.h>
#include <string.h>

void reply_log_init(struct reply_log *log)
{
    *log = (struct reply_log){.finish_reason = ""};
    buf_init(&log->reasoning, MEM_OTHER, 1 << 30);
    buf_init(&log->content, MEM_OTHER, 1 << 30);
    buf_init(&log->calls, MEM_OTHER, 1 << 30);
    buf_init(&log->order, MEM_OTHER, 1 << 30);
}

void reply_log_free(struct reply_log *log)
{
    buf_free(&log->reasoning);
    buf_free(&log->content);
    buf_free(&log->calls);
    buf_free(&log->order);
}

int reply_log_sink(void *ctx, const struct reply_event *event)
{
    struct reply_log *log = ctx;
    char kind = "rt[a]"[event->kind];
    if (log->fail_after > 0 && log->n_events == log->fail_after)
        return ERR_CANCELLED;
    log->n_events++;
    if (log->order.len == 0 || log->order.data[log->order.len - 1] != kind)
        buf_add_char(&log->order, kind);
    switch (event->kind) {
    case REPLY_REASONING:
        buf_add(&log->reasoning, event->text, event->n);
        break;
    case REPLY_TEXT:
        buf_add(&log->content, event->text, event->n);
        break;
    case REPLY_CALL_BEGIN:
        if (event->call != log->n_calls || log->in_call)
            return ERR_INTERNAL;
        log->n_calls++;
        log->in_call = 1;
        buf_add(&log->calls, event->text, event->n);
        buf_add_char(&log->calls, 0x1F);
        break;
    case REPLY_CALL_ARGS:
        if (event->call != log->n_calls - 1 || !log->in_call)
            return ERR_INTERNAL;
        buf_add(&log->calls, event->text, event->n);
        break;
    case REPLY_CALL_END:
        if (event->call != log->n_calls - 1 || !log->in_call)
            return ERR_INTERNAL;
        log->in_call = 0;
        buf_add_str(&log->calls, "\x1F" "complete\n");
        break;
    }
    return 0;
}

int reply_log_run(struct reply_log *log, struct reply_options options, const char *text, size_t n, const size_t *cuts, size_t n_cuts, int model_stopped)
{
    struct reply *r = NULL;
    struct err err = {0};
    options.sink = reply_log_sink;
    options.ctx = log;
    int rc = reply_create(&options, &r, &err);
    size_t from = 0;
    for (size_t i = 0; rc == 0 && i <= n_cuts; i++) {
        size_t to = i < n_cuts ? cuts[i] : n;
        rc = reply_push(r, text + from, to - from);
        from = to;
    }
    if (rc == 0 || rc == REPLY_STOPPED) {
        log->stopped = rc == REPLY_STOPPED;
        rc = reply_finish(r, model_stopped, &log->finish_reason);
        if (reply_matched_stop(r))
            snprintf(log->matched, sizeof log->matched, "%s", reply_matched_stop(r));
        if (log->in_call)
            buf_add_str(&log->calls, "\x1F" "cut\n");
        if (rc == 0 && reply_reasoning_bytes(r) != log->reasoning.len)
            rc = ERR_INTERNAL;
    }
    reply_free(r);
    return rc;
}

static int same(const struct buf *a, const struct buf *b)
{
    return a->len == b->len && memcmp(buf_str(a), buf_str(b), a->len) == 0;
}

const char *reply_log_difference(const struct reply_log *a, const struct reply_log *b)
{
    return !same(&a->reasoning, &b->reasoning)               ? "reasoning"
           : !same(&a->content, &b->content)                 ? "content"
           : !same(&a->calls, &b->calls)                     ? "calls"
           : !same(&a->order, &b->order)                     ? "order"
           : strcmp(a->finish_reason, b->finish_reason) != 0 ? "finish_reason"
           : strcmp(a->matched, b->matched) != 0             ? "matched stop string"
                                                             : NULL;
}
