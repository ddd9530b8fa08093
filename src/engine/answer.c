/* Tokens to events: detokenise, parse, count. */
#include "engine/answer.h"

#include <string.h>

#include "base/mem.h"

#define MAX_PIECE ((size_t)1 << 20)

struct answer {
    struct request *request;
    struct reply *reply;          /* NULL when raw without stop strings is enough */
    struct detok detok;
    struct buf piece;
    struct ids ids;
    struct answer_result result;
    void (*on_token)(void *ctx, const struct token_event *event);
    void *ctx;
    int done;
    int stopped;                  /* a stop string was completed */
    int in_reasoning;
};

static int discard(void *ctx, const struct reply_event *event)
{
    (void)ctx;
    (void)event;
    return 0;
}

int answer_start(struct engine *e, const struct answer_options *o, struct answer **out, struct err *err)
{
    struct answer *a = mem_alloc(MEM_SERVE, sizeof *a);
    if (!a)
        return err_set(err, ERR_NO_MEMORY, "out of memory for an answer");
    buf_init(&a->piece, MEM_SERVE, MAX_PIECE);
    detok_init(&a->detok, engine_model(e)->vocab, 0);
    a->on_token = o->on_token;
    a->ctx = o->ctx;
    struct reply_options reply = {.tools = o->raw ? NULL : o->tools, .in_reasoning = o->in_reasoning && !o->raw, .raw = o->raw, .stop = o->stop, .n_stop = o->n_stop,
                                  .sink = o->sink ? o->sink : discard, .ctx = o->ctx};
    int rc = reply_create(&reply, &a->reply, err);
    if (rc == 0)
        rc = engine_submit(e, &o->request, &a->request, err);
    if (rc < 0)
        answer_free(a);
    else
        *out = a;
    return rc;
}

/* What detokenising added goes through the parser. Returns 1 when the text has ended. */
static int push_piece(struct answer *a, struct err *err)
{
    if (a->piece.failed)
        return err_set(err, a->piece.failed, "out of memory for an answer");
    int rc = a->piece.len ? reply_push(a->reply, a->piece.data, a->piece.len) : 0;
    buf_clear(&a->piece);
    if (rc == REPLY_STOPPED)
        a->stopped = 1;
    return rc;
}

static int on_token_event(struct answer *a, const struct token_event *event, struct err *err)
{
    size_t before = reply_reasoning_bytes(a->reply);
    if (ids_push(&a->ids, event->id) < 0)
        return err_set(err, ERR_NO_MEMORY, "out of memory for an answer");
    if (a->on_token)
        a->on_token(a->ctx, event);
    detok_push(&a->detok, event->id, &a->piece);
    int rc = push_piece(a, err);
    a->result.n_reasoning += reply_reasoning_bytes(a->reply) > before;
    return rc;
}

static int finish(struct answer *a, const struct token_event *event, struct err *err)
{
    const char *reason = "stop";
    a->result.n_prompt = event->n_prompt;
    a->result.n_cached = event->n_cached;
    a->result.n_generated = (int64_t)a->ids.len;
    a->result.prefill_ms = event->prefill_ms;
    a->result.decode_ms = event->decode_ms;
    a->done = 1;
    if (event->finish == FINISH_CANCELLED && !a->stopped) {
        a->result.finish_reason = "cancelled";
        return ANSWER_DONE;
    }
    if (!a->stopped) {
        detok_finish(&a->detok, &a->piece);
        TRY(push_piece(a, err));
    }
    TRY(reply_finish(a->reply, a->stopped || event->finish == FINISH_STOP, &reason));
    a->result.finish_reason = reason;
    a->result.matched_stop = reply_matched_stop(a->reply);
    return ANSWER_DONE;
}

int answer_pump(struct answer *a, int max_events, struct err *err)
{
    struct token_event event;
    if (a->done)
        return ANSWER_DONE;
    for (int i = 0; i < max_events && request_next(a->request, &event); i++) {
        int rc = 0;
        if (event.kind == EVENT_END)
            return finish(a, &event, err);
        if (event.kind == EVENT_ERROR) {
            a->done = 1;
            return err_set(err, event.error.code, "%s", event.error.message);
        }
        if (event.kind == EVENT_PREFILL && a->on_token)
            a->on_token(a->ctx, &event);
        if (event.kind == EVENT_TOKEN && !a->stopped)
            rc = on_token_event(a, &event, err);
        if (a->stopped)
            request_cancel(a->request);
        if (rc < 0) {
            request_cancel(a->request);
            return rc;
        }
    }
    return ANSWER_RUNNING;
}

int answer_wait(struct answer *a, int timeout_ms)
{
    return a->done || request_wait(a->request, timeout_ms);
}

void answer_cancel(struct answer *a)
{
    request_cancel(a->request);
}

void answer_free(struct answer *a)
{
    if (!a)
        return;
    request_release(a->request);
    reply_free(a->reply);
    buf_free(&a->piece);
    ids_free(&a->ids);
    mem_free(a);
}

const struct answer_result *answer_result(const struct answer *a)
{
    return &a->result;
}

const struct ids *answer_ids(const struct answer *a)
{
    return &a->ids;
}
