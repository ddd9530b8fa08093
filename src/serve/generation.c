/* Invariant: `x` is NULL from the moment the client is gone or answered; the worker never reads it. Freed in one place, when neither the worker nor a client holds it. */
#include "serve/generation.h"

#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "serve/openai_request.h"

#define MAX_BACKLOG ((size_t)64 << 10)   /* unsent bytes above which a stream is not fed */
#define EVENTS_AT_ONCE 64                /* then others have a turn */
#define PROGRESS_NS 5000000000ull        /* between comments while a prompt is read */

struct generation {
    struct job job;                      /* first: the worker's handle */
    struct generation *previous, *next;
    struct server *s;
    struct exchange *x;
    enum openai_kind kind;
    char *body;
    size_t n_body;

    /* The worker's until the job is done. */
    struct openai_request q;
    struct api_error error;
    struct ids prompt;
    int in_reasoning;

    atomic_int gone;                     /* tells the worker not to begin */
    atomic_int ready;                    /* the engine has events */
    int listed, began;
    struct answer *answer;
    struct openai_reply reply;
    uint64_t last_write_ns;
};

static void generation_free(struct generation *g)
{
    struct server *s = g->s;
    if (g->listed) {
        if (g->previous)
            g->previous->next = g->next;
        else
            s->generations = g->next;
        if (g->next)
            g->next->previous = g->previous;
    }
    answer_free(g->answer);
    openai_reply_free(&g->reply);
    openai_request_free(&g->q);
    ids_free(&g->prompt);
    mem_free(g->body);
    mem_free(g);
    s->n_open--;
    server_check_idle(s);
}

/* The answer is given: the exchange is not ours any more. */
static void let_go(struct generation *g)
{
    g->x = NULL;
    generation_free(g);
}

static void on_gone(void *user)
{
    struct generation *g = user;
    g->x = NULL;
    atomic_store(&g->gone, 1);
    if (g->listed)
        generation_free(g); /* else the job is still out: done() frees it */
}

static int prepare_chat(struct generation *g)
{
    const struct server *s = g->s;
    struct api_error *e = &g->error;
    struct chat_prompt prompt;
    TRY(openai_parse_chat(g->body, g->n_body, &s->sampling, (int32_t)s->model->config.n_vocab, &g->q, e));
    if (!s->chat) {
        err_set(&e->err, ERR_UNSUPPORTED, "this model has no chat template: use /v1/completions, or start the server with a template file");
        return api_error_from_err(e);
    }
    json_t *vars = openai_template_vars(&g->q, s->o->enable_thinking);
    int rc = vars ? chat_render(s->chat, vars, &prompt, &e->err) : err_set(&e->err, ERR_NO_MEMORY, "out of memory for the prompt");
    json_decref(vars);
    if (rc < 0)
        return api_error_from_err(e);
    g->prompt = prompt.ids;
    prompt.ids = (struct ids){0};
    g->in_reasoning = prompt.in_reasoning;
    chat_prompt_free(&prompt);
    return 0;
}

static int prepare_completion(struct generation *g)
{
    const struct server *s = g->s;
    struct api_error *e = &g->error;
    const json_t *item;
    size_t i;
    int rc = 0;
    TRY(openai_parse_completion(g->body, g->n_body, &s->sampling, (int32_t)s->model->config.n_vocab, &g->q, e));
    if (json_is_text(g->q.prompt)) {
        rc = vocab_encode(s->model->vocab, json_string_value(g->q.prompt), json_string_length(g->q.prompt), ENCODE_SPECIAL, NULL, 0, &g->prompt, &e->err);
    } else {
        json_array_foreach((json_t *)g->q.prompt, i, item)
            if (rc == 0 && ids_push(&g->prompt, (int32_t)json_integer_value(item)) < 0)
                rc = err_set(&e->err, ERR_NO_MEMORY, "out of memory for the prompt");
    }
    return rc < 0 ? api_error_from_err(e) : 0;
}

static void work(struct job *job)
{
    struct generation *g = (struct generation *)job;
    if (atomic_load(&g->gone))
        return;
    if (g->kind == OPENAI_CHAT)
        (void)!prepare_chat(g);
    else
        (void)!prepare_completion(g);
    mem_free(g->body);
    g->body = NULL;
}

/* From the engine thread. */
static void notify(void *ctx)
{
    struct generation *g = ctx;
    uint64_t one = 1;
    atomic_store(&g->ready, 1);
    if (write(g->s->wake_fd, &one, sizeof one) < 0)
        return; /* the counter is full: the reader is awake already */
}

static int on_reply(void *ctx, const struct reply_event *event)
{
    struct generation *g = ctx;
    int rc = openai_reply_event(&g->reply, event);
    if (g->reply.cut && g->answer)
        answer_cancel(g->answer);
    return rc;
}

static void on_token(void *ctx, const struct token_event *event)
{
    struct generation *g = ctx;
    if (event->kind == EVENT_TOKEN && g->q.n_logprobs >= 0)
        openai_reply_logprobs(&g->reply, event);
    /* A long prompt: a comment now and then, only while it moves on, for proxies that close what is silent. */
    if (event->kind == EVENT_PREFILL && g->q.stream && clock_ns() - g->last_write_ns > PROGRESS_NS)
        buf_addf(&g->reply.out, ": prompt %lld/%lld\n\n", (long long)event->done, (long long)event->total);
}

/* What was gathered goes to the client; a memory failure on the way is an error. */
static int flush(struct generation *g)
{
    struct buf *out = &g->reply.out;
    if (out->failed)
        return out->failed;
    if (out->len && g->x) {
        exchange_write(g->x, out->data, out->len);
        g->last_write_ns = clock_ns();
    }
    buf_clear(out);
    return 0;
}

/* The error is told as far as it still can be, and the generation is over. */
static void fail(struct generation *g, const struct api_error *e)
{
    struct exchange *x = g->x;
    struct server *s = g->s;
    if (!x) {
        generation_free(g);
        return;
    }
    x->on_gone = NULL;
    x->on_drain = NULL;
    if (g->began) {
        buf_clear(&g->reply.out);
        openai_reply_fail(&g->reply, e);
        (void)!flush(g);
        exchange_end(x);
    } else {
        reply_error(s, x, e);
    }
    let_go(g);
}

static void fail_with(struct generation *g, const struct err *err)
{
    struct api_error e = {.err = *err};
    api_error_from_err(&e);
    if (err->code == ERR_CONTEXT_LENGTH) {
        e.n_prompt = (int64_t)g->prompt.len;
        e.n_ctx = engine_context(g->s->engine);
    }
    if (err->code == ERR_BUSY && g->s->draining) {
        e.status = 503;
        e.type = "server_error";
        e.code = "shutting_down";
    }
    fail(g, &e);
}

static void finish(struct generation *g)
{
    const struct answer_result *result = answer_result(g->answer);
    struct exchange *x = g->x;
    struct err err;
    if (strcmp(result->finish_reason, "cancelled") == 0 && !g->reply.cut) {
        err_set(&err, ERR_CANCELLED, "the server is shutting down and cut this answer");
        fail_with(g, &err);
        return;
    }
    openai_reply_finish(&g->reply, result, engine_device(g->s->engine)->kind == DEVICE_CUDA);
    if (g->reply.out.failed) {
        err_set(&err, ERR_NO_MEMORY, "out of memory for the answer");
        fail_with(g, &err);
        return;
    }
    x->on_gone = NULL;
    x->on_drain = NULL;
    g->s->n_replies[2]++;
    if (g->q.stream) {
        (void)!flush(g);
        exchange_end(x);
    } else {
        exchange_reply(x, &(struct http_reply){.status = 200, .content_type = "application/json", .body = g->reply.out.data, .n_body = g->reply.out.len});
    }
    let_go(g);
}

static void pump(struct generation *g)
{
    struct err err = {0};
    if (g->q.stream && exchange_backlog(g->x) > MAX_BACKLOG)
        return; /* on_drain comes back here */
    int rc = answer_pump(g->answer, EVENTS_AT_ONCE, &err);
    if (rc == ANSWER_DONE) {
        finish(g);
        return;
    }
    if (rc == ANSWER_RUNNING && g->q.stream)
        rc = flush(g);
    if (rc < 0) {
        if (!err.code)
            err_set(&err, rc, "out of memory for the answer");
        fail_with(g, &err);
    } else if (answer_wait(g->answer, 0)) {
        notify(g);
    }
}

static void on_drain(void *user)
{
    pump(user);
}

static void start(struct generation *g)
{
    struct server *s = g->s;
    struct err err = {0};
    const char *model = g->q.model ? g->q.model : s->model_id;
    int rc = openai_reply_init(&g->reply, g->kind, g->q.stream, model, time(NULL), s->model->vocab);
    g->reply.include_usage = g->q.include_usage;
    g->reply.one_call = g->q.one_call;
    struct answer_options options = {
        .request = {.prompt = g->prompt.data, .n_prompt = g->prompt.len, .max_tokens = g->q.max_tokens, .sampling = g->q.sampling, .n_logprobs = g->q.n_logprobs, .notify = notify, .ctx = g},
        .tools = g->q.tools, .in_reasoning = g->in_reasoning, .raw = g->kind == OPENAI_COMPLETION, .stop = g->q.stop, .n_stop = g->q.n_stop,
        .sink = on_reply, .on_token = on_token, .ctx = g,
    };
    if (rc < 0)
        err_set(&err, rc, "out of memory for the answer");
    else
        rc = answer_start(s->engine, &options, &g->answer, &err);
    if (rc < 0) {
        fail_with(g, &err);
        return;
    }
    g->listed = 1;
    g->next = s->generations;
    if (s->generations)
        s->generations->previous = g;
    s->generations = g;
    g->last_write_ns = clock_ns();
    if (g->q.stream) {
        g->began = 1;
        g->x->on_drain = on_drain;
        exchange_begin(g->x, &(struct http_reply){.status = 200, .content_type = "text/event-stream; charset=utf-8", .headers = "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n"});
        openai_reply_begin(&g->reply);
    }
    pump(g);
}

static void done(struct job *job)
{
    struct generation *g = (struct generation *)job;
    if (!g->x) {
        generation_free(g);
        return;
    }
    if (!job->ran) {
        struct err err;
        err_set(&err, ERR_BUSY, "the server is shutting down and takes no new requests");
        fail_with(g, &err);
    } else if (g->error.err.code) {
        fail(g, &g->error);
    } else {
        start(g);
    }
}

static void begin(struct server *s, struct exchange *x, enum openai_kind kind)
{
    struct generation *g = mem_alloc(MEM_SERVE, sizeof *g);
    struct err err = {0};
    char *body = mem_strndup(MEM_SERVE, x->body, x->n_body);
    if (!g || !body) {
        mem_free(g);
        mem_free(body);
        reply_refusal(s, x, 503, "no_memory", "out of memory for the request");
        return;
    }
    *g = (struct generation){.job = {.n_bytes = x->n_body, .work = work, .done = done}, .s = s, .x = x, .kind = kind, .body = body, .n_body = x->n_body};
    s->n_open++;
    x->user = g;
    x->on_gone = on_gone;
    if (worker_submit(s->worker, &g->job, &err) < 0)
        fail_with(g, &err);
}

void openai_chat(struct server *s, struct exchange *x)
{
    begin(s, x, OPENAI_CHAT);
}

void openai_completion(struct server *s, struct exchange *x)
{
    begin(s, x, OPENAI_COMPLETION);
}

void generations_pump(struct server *s)
{
    for (struct generation *g = s->generations, *next; g; g = next) {
        next = g->next;
        if (atomic_exchange(&g->ready, 0))
            pump(g);
    }
}

void generations_cancel(struct server *s)
{
    for (struct generation *g = s->generations; g; g = g->next)
        answer_cancel(g->answer);
}
