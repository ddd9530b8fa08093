#include "cli/talk.h"

#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/log.h"
#include "cli/prompt.h"

#define TEXT_MAX ((size_t)256 << 20)
#define WAIT_MS 50   /* how soon an interrupt is noticed */

static volatile sig_atomic_t interrupt_pending;

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    interrupt_pending = 1;
}

void talk_catch_interrupts(void)
{
    struct sigaction action = {.sa_handler = on_interrupt}; /* without SA_RESTART: a read at the prompt ends too */
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
}

int talk_interrupt_waits(void)
{
    return interrupt_pending;
}

int talk_interrupted(void)
{
    int pending = interrupt_pending;
    interrupt_pending = 0;
    return pending;
}

int talk_open(struct cli *c, struct talk *t)
{
    struct cli_device device;
    struct engine_options options;
    *t = (struct talk){.c = c};
    if (c->o[O_THINK].set && c->o[O_NO_THINK].set)
        return cli_usage(c, "--think and --no-think contradict each other");
    TRY(cli_check_faults(c));
    TRY(cli_logit_bias(c, t->bias));
    TRY(cli_resolve_device(c, &device));
    TRY(cli_load_model(c, 0, &t->model));
    if (log_level() == LOG_VERBOSE)
        cli_print_device_line(stderr, &device, t->model);
    if (c->o[O_TEMPLATE_FILE].set)
        TRY(prompt_load_template(c, t->model->file, t->model->vocab, &t->template_file));
    TRY(cli_sampling(c, t->model, t->bias, &t->sampling));
    cli_engine_options(c, &options);
    options.n_parallel = 1;
    cli_quiet_engine();
    TRY(engine_start(t->model, &options, &t->engine, &c->err));
    cli_set_faults(c);
    if (log_level() == LOG_VERBOSE)
        cli_print_backend(engine_device(t->engine));
    t->quiet = c->o[O_JSON].set;
    t->terminal = isatty(STDOUT_FILENO);
    t->dim_reasoning = opt_colour(STDERR_FILENO);
    t->show_progress = isatty(STDERR_FILENO) && !c->o[O_QUIET].set;
    t->show_reasoning = !t->quiet && (c->o[O_SHOW_THINKING].set || isatty(STDERR_FILENO));
    return 0;
}

void talk_close(struct talk *t)
{
    if (t->engine)
        engine_stop(t->engine);
    chat_template_free(t->template_file);
    model_free(t->model);
}

void talk_note(const struct talk *t, const char *format, ...)
{
    va_list args;
    if (t->c->o[O_QUIET].set)
        return;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
}

void talk_answer_init(struct talk_answer *a)
{
    memset(a, 0, sizeof *a);
    buf_init(&a->text, MEM_TEXT, TEXT_MAX);
    buf_init(&a->reasoning, MEM_TEXT, TEXT_MAX);
    buf_init(&a->calls, MEM_TEXT, TEXT_MAX);
}

void talk_answer_free(struct talk_answer *a)
{
    buf_free(&a->text);
    buf_free(&a->reasoning);
    buf_free(&a->calls);
    ids_free(&a->prompt_ids);
    ids_free(&a->ids);
}

/* What the sink works on. */
struct show {
    struct talk *t;
    struct talk_answer *a;
    int in_reasoning;   /* reasoning was printed last */
    int n_progress;     /* characters of the line that says how far the prompt has been read; 0 = there is none */
    struct buf name, arguments;
};

static void show_reasoning(struct show *s, const struct reply_event *e)
{
    if (!s->in_reasoning && s->t->dim_reasoning)
        fputs("\033[2m", stderr);
    s->in_reasoning = 1;
    cli_write_safe(stderr, e->text, e->n);
    fflush(stderr);
}

static void end_reasoning(struct show *s)
{
    if (!s->in_reasoning)
        return;
    fputs(s->t->dim_reasoning ? "\033[0m\n\n" : "\n\n", stderr);
    fflush(stderr);
    s->in_reasoning = 0;
}

static void show_text(const struct show *s, const char *text, size_t n)
{
    if (s->t->quiet)
        return;
    if (s->t->terminal)
        cli_write_safe(stdout, text, n);
    else
        fwrite(text, 1, n, stdout);
    fflush(stdout);
}

/* A long prompt takes a while: whoever watches is told how far it has been read, in a line that goes with the first token. */
static void on_token(void *ctx, const struct token_event *event)
{
    struct show *s = ctx;
    if (!s->t->show_progress)
        return;
    if (s->n_progress > 0)
        fprintf(stderr, "\r%*s\r", s->n_progress, "");
    s->n_progress = event->kind == EVENT_PREFILL && event->done < event->total
                        ? fprintf(stderr, "reading the prompt: %lld of %lld tokens", (long long)event->done, (long long)event->total) : 0;
    fflush(stderr);
}

/* A complete call: a line of its own. */
static int end_call(struct show *s)
{
    struct buf *calls = &s->a->calls;
    size_t first = calls->len + (calls->len ? 2 : 0);
    buf_add_str(calls, calls->len ? ", {\"name\": " : "{\"name\": ");
    json_write_string(calls, buf_str(&s->name), s->name.len, 0);
    buf_add_str(calls, ", \"arguments\": ");
    buf_add(calls, buf_str(&s->arguments), s->arguments.len);
    TRY(buf_add_char(calls, '}'));
    show_text(s, calls->data + first, calls->len - first);
    show_text(s, "\n", 1);
    return 0;
}

static int on_reply(void *ctx, const struct reply_event *e)
{
    struct show *s = ctx;
    if (e->kind != REPLY_REASONING)
        end_reasoning(s);
    switch (e->kind) {
    case REPLY_REASONING:
        if (s->t->show_reasoning)
            show_reasoning(s, e);
        return buf_add(&s->a->reasoning, e->text, e->n);
    case REPLY_TEXT:
        show_text(s, e->text, e->n);
        return buf_add(&s->a->text, e->text, e->n);
    case REPLY_CALL_BEGIN:
        if (s->a->text.len > 0 && s->a->calls.len == 0)
            show_text(s, "\n", 1);
        buf_clear(&s->name);
        buf_clear(&s->arguments);
        return buf_add(&s->name, e->text, e->n);
    case REPLY_CALL_ARGS:
        return buf_add(&s->arguments, e->text, e->n);
    case REPLY_CALL_END:
        return end_call(s);
    }
    return 0;
}

static int keep_result(struct talk_answer *a, struct answer *answer, struct err *err)
{
    const struct answer_result *r = answer_result(answer);
    const struct ids *ids = answer_ids(answer);
    a->finish_reason = r->finish_reason;
    snprintf(a->stop, sizeof a->stop, "%s", r->matched_stop ? r->matched_stop : "");
    a->n_prompt = r->n_prompt;
    a->n_cached = r->n_cached;
    a->n_generated = r->n_generated;
    a->prefill_ms = r->prefill_ms;
    a->decode_ms = r->decode_ms;
    if (ids_append(&a->ids, ids->data, ids->len) < 0)
        return err_set(err, ERR_NO_MEMORY, "out of memory for the answer");
    return 0;
}

static int pump(struct answer *answer, struct err *err)
{
    for (;;) {
        int rc = answer_pump(answer, 256, err);
        if (rc != ANSWER_RUNNING)
            return rc < 0 ? rc : 0;
        if (interrupt_pending)
            answer_cancel(answer);
        answer_wait(answer, WAIT_MS);
    }
}

/* in_reasoning < 0: raw. */
static int generate(struct talk *t, const json_t *tools, int in_reasoning, struct talk_answer *a)
{
    const struct opt_value *o = t->c->o;
    struct err *err = &t->c->err;
    struct show show = {.t = t, .a = a};
    struct answer *answer = NULL;
    buf_init(&show.name, MEM_TEXT, TEXT_MAX);
    buf_init(&show.arguments, MEM_TEXT, TEXT_MAX);
    struct answer_options options = {
        .request = {.prompt = a->prompt_ids.data, .n_prompt = a->prompt_ids.len, .max_tokens = o[O_MAX_TOKENS].set ? o[O_MAX_TOKENS].i : -1, .sampling = t->sampling, .n_logprobs = -1},
        .tools = tools, .in_reasoning = in_reasoning > 0, .raw = in_reasoning < 0, .stop = o[O_STOP].list, .n_stop = (size_t)o[O_STOP].n_list, .sink = on_reply, .on_token = on_token, .ctx = &show,
    };
    int rc = answer_start(t->engine, &options, &answer, err);
    if (rc == 0) {
        rc = pump(answer, err);
        on_token(&show, &(struct token_event){.kind = EVENT_END});
        end_reasoning(&show);
        if (rc == 0)
            rc = keep_result(a, answer, err);
        if (!t->quiet)
            show_text(&show, "\n", a->text.len > 0 && a->text.data[a->text.len - 1] != '\n');
        answer_free(answer);
    }
    buf_free(&show.name);
    buf_free(&show.arguments);
    return rc;
}

int talk_chat(struct talk *t, const json_t *vars, struct talk_answer *a)
{
    struct chat_prompt prompt;
    const struct chat_template *chat = t->template_file ? t->template_file : t->model->chat;
    if (!chat)
        return err_set(&t->c->err, ERR_NOT_FOUND, "%s has no chat template; give one with --template-file FILE, or continue plain text with apr run --raw", gguf_path(t->model->file));
    TRY(chat_render(chat, vars, &prompt, &t->c->err));
    int rc = ids_append(&a->prompt_ids, prompt.ids.data, prompt.ids.len);
    int in_reasoning = prompt.in_reasoning != 0;
    chat_prompt_free(&prompt);
    if (rc < 0)
        return err_set(&t->c->err, ERR_NO_MEMORY, "out of memory for the prompt");
    const json_t *tools = json_object_get(vars, "tools");
    return generate(t, json_is_array(tools) && json_array_size(tools) > 0 ? tools : NULL, in_reasoning, a);
}

int talk_complete(struct talk *t, const char *text, size_t n, struct talk_answer *a)
{
    TRY(vocab_encode(t->model->vocab, text, n, ENCODE_SPECIAL, NULL, 0, &a->prompt_ids, &t->c->err));
    if (a->prompt_ids.len == 0)
        return err_set(&t->c->err, ERR_INVALID, "the prompt is empty: there is nothing to continue");
    return generate(t, NULL, -1, a);
}

static json_t *answer_json(const struct talk_answer *a)
{
    return json_pack("{s:o, s:o, s:s, s:s?, s:I, s:I, s:I, s:f, s:f, s:o, s:o}", "text", cli_json_text(buf_str(&a->text), a->text.len), "reasoning",
                     cli_json_text(buf_str(&a->reasoning), a->reasoning.len), "finish_reason", a->finish_reason, "stop", *a->stop ? a->stop : NULL, "prompt_tokens", (json_int_t)a->n_prompt,
                     "cached_tokens", (json_int_t)a->n_cached, "completion_tokens", (json_int_t)a->n_generated, "prefill_ms", a->prefill_ms, "decode_ms", a->decode_ms, "prompt_ids",
                     cli_json_ids(a->prompt_ids.data, a->prompt_ids.len), "ids", cli_json_ids(a->ids.data, a->ids.len));
}

int talk_print_json(struct cli *c, const struct talk_answer *a, int turn)
{
    struct buf line, rest;
    json_t *values = answer_json(a);
    buf_init(&line, MEM_TEXT, INPUT_MAX);
    buf_init(&rest, MEM_TEXT, INPUT_MAX);
    int rc = values ? json_write_python(&rest, values, -1) : ERR_NO_MEMORY;
    json_decref(values);
    buf_add_char(&line, '{');
    if (turn)
        buf_addf(&line, "\"turn\": %d, ", turn);
    buf_add_str(&line, "\"tool_calls\": [");
    buf_add(&line, buf_str(&a->calls), a->calls.len);
    buf_add_str(&line, "], ");
    if (rc == 0)
        buf_add(&line, rest.data + 1, rest.len - 1); /* without its brace */
    if (rc == 0)
        rc = buf_add_char(&line, '\n');
    if (rc == 0)
        fwrite(line.data, 1, line.len, stdout);
    buf_free(&line);
    buf_free(&rest);
    return rc < 0 ? err_set(&c->err, rc, "the answer is too large to print as JSON") : 0;
}

static double rate(int64_t n, double ms)
{
    return ms > 0 ? (double)n * 1000 / ms : 0;
}

void talk_print_rates(const struct talk_answer *a)
{
    log_verbose("prompt %lld tokens (%lld cached) in %.0f ms, %.1f tok/s; answer %lld tokens in %.0f ms, %.1f tok/s", (long long)a->n_prompt, (long long)a->n_cached, a->prefill_ms,
                rate(a->n_prompt - a->n_cached, a->prefill_ms), (long long)a->n_generated, a->decode_ms, rate(a->n_generated, a->decode_ms));
}
