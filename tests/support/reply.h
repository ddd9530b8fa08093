/* A reply parser's events put together, for tests. */
#ifndef SUPPORT_REPLY_H
#define SUPPORT_REPLY_H

#include "base/buf.h"
#include "text/reply.h"

struct reply_log {
    struct buf reasoning, content;
    struct buf calls;     /* a line each: name, arguments, and "complete" or "cut", each after a 0x1F, in order */
    struct buf order;     /* r, t, [, a, ]: the kinds in order, neighbours of one kind once */
    int n_calls, in_call;
    int fail_after;       /* > 0: that many events, then the sink says ERR_CANCELLED */
    int n_events;
    int finished;         /* reply_finish was called, or a stop string ended the text */
    const char *finish_reason;
    char matched[256];    /* the stop string, or "" */
    int stopped;
};

void reply_log_init(struct reply_log *log);
void reply_log_free(struct reply_log *log);
reply_sink reply_log_sink;

/* All of a text, cut before each of cuts[0..n_cuts) (rising). Options' sink and ctx are set here. Returns the first code that is not 0, else reply_finish's. */
int reply_log_run(struct reply_log *log, struct reply_options options, const char *text, size_t n, const size_t *cuts, size_t n_cuts, int model_stopped);

/* 0 when both came to the same; else names the first part that differs. */
const char *reply_log_difference(const struct reply_log *a, const struct reply_log *b);

#endif
