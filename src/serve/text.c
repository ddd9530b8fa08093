/* Invariant: `x` is the IO thread's; the worker fills result or error and nothing else. */
#include "serve/text.h"

#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "serve/openai_request.h"

#define MAX_TEXT_BYTES ((size_t)64 << 20)

struct task {
    struct job job;            /* first: the worker's handle */
    struct server *s;
    struct exchange *x;
    int (*run)(struct task *t);
    char *body;
    size_t n_body;
    json_t *result;
    struct api_error error;
};

static void task_free(struct task *t)
{
    struct server *s = t->s;
    json_decref(t->result);
    mem_free(t->body);
    mem_free(t);
    s->n_open--;
    server_check_idle(s);
}

static void on_gone(void *user)
{
    struct task *t = user;
    t->x = NULL;
}

static void work(struct job *job)
{
    struct task *t = (struct task *)job;
    if (t->run(t) < 0 && !t->error.status)
        api_error_from_err(&t->error);
}

static void done(struct job *job)
{
    struct task *t = (struct task *)job;
    if (t->x) {
        t->x->on_gone = NULL;
        if (t->error.status) {
            reply_error(t->s, t->x, &t->error);
        } else if (!job->ran) {
            reply_refusal(t->s, t->x, 503, "shutting_down", "the server is shutting down and takes no new requests");
        } else {
            reply_json(t->s, t->x, 200, t->result);
            t->result = NULL;
        }
    }
    task_free(t);
}

static void begin(struct server *s, struct exchange *x, int (*run)(struct task *t))
{
    struct task *t = mem_alloc(MEM_SERVE, sizeof *t);
    char *body = mem_strndup(MEM_SERVE, x->body, x->n_body);
    struct api_error e = {0};
    if (!t || !body) {
        mem_free(t);
        mem_free(body);
        reply_refusal(s, x, 503, "no_memory", "out of memory for the request");
        return;
    }
    *t = (struct task){.job = {.n_bytes = x->n_body, .work = work, .done = done}, .s = s, .x = x, .run = run, .body = body, .n_body = x->n_body};
    x->user = t;
    x->on_gone = on_gone;
    s->n_open++;
    if (worker_submit(s->worker, &t->job, &e.err) < 0) {
        api_error_from_err(&e);
        x->on_gone = NULL;
        reply_error(s, x, &e);
        task_free(t);
    }
}

static int parse_object(struct task *t, json_t **out)
{
    TRY(json_parse(t->body, t->n_body, out, &t->error.err));
    if (json_is_object(*out))
        return 0;
    json_decref(*out);
    return err_set(&t->error.err, ERR_INVALID, "the body is not a JSON object");
}

static json_t *ids_json(const struct ids *ids)
{
    json_t *array = json_array();
    for (size_t i = 0; i < ids->len; i++)
        if (json_array_append_new(array, json_integer(ids->data[i])) < 0) {
            json_decref(array);
            return NULL; /* never fewer than there are */
        }
    return array;
}

/* "content" as llama.cpp has it, "prompt" as vLLM. */
static int tokenize(struct task *t, const json_t *root)
{
    const json_t *text = json_object_get(root, "content"), *special = json_object_get(root, "parse_special");
    struct ids ids = {0};
    if (!text)
        text = json_object_get(root, "prompt");
    if (!json_is_text(text))
        return api_error_field(&t->error, "content", "expected a string");
    if (special && !json_is_boolean(special))
        return api_error_field(&t->error, "parse_special", "expected true or false");
    int rc = vocab_encode(t->s->model->vocab, json_string_value(text), json_string_length(text), json_is_false(special) ? ENCODE_PLAIN : ENCODE_SPECIAL, NULL, 0, &ids, &t->error.err);
    if (rc == 0)
        t->result = json_pack("{s:o,s:I,s:I}", "tokens", ids_json(&ids), "count", (json_int_t)ids.len, "max_model_len", (json_int_t)engine_context(t->s->engine));
    ids_free(&ids);
    return rc;
}

static int run_tokenize(struct task *t)
{
    json_t *root;
    TRY(parse_object(t, &root));
    int rc = tokenize(t, root);
    json_decref(root);
    return rc;
}

static int detokenize(struct task *t, const json_t *root)
{
    const json_t *tokens = json_object_get(root, "tokens"), *item;
    const struct vocab *v = t->s->model->vocab;
    struct detok detok;
    struct buf text;
    size_t i;
    if (!json_is_array(tokens))
        return api_error_field(&t->error, "tokens", "expected an array of token ids");
    json_array_foreach((json_t *)tokens, i, item)
        if (!json_is_integer(item) || json_integer_value(item) < 0 || json_integer_value(item) >= vocab_n_tokens(v))
            return api_error_field(&t->error, "tokens", "element %zu is not a token id below %d", i, vocab_n_tokens(v));
    buf_init(&text, MEM_SERVE, MAX_TEXT_BYTES);
    detok_init(&detok, v, 1);
    json_array_foreach((json_t *)tokens, i, item)
        detok_push(&detok, (int32_t)json_integer_value(item), &text);
    detok_finish(&detok, &text);
    int rc = text.failed ? err_set(&t->error.err, text.failed, "the text is larger than %zu bytes", MAX_TEXT_BYTES) : 0;
    if (rc == 0) {
        t->result = json_pack("{s:o}", "content", json_text(buf_str(&text), text.len));
        if (t->result && json_object_set(t->result, "prompt", json_object_get(t->result, "content")) < 0) {
            json_decref(t->result);
            t->result = NULL;
        }
    }
    buf_free(&text);
    return rc;
}

static int run_detokenize(struct task *t)
{
    json_t *root;
    TRY(parse_object(t, &root));
    int rc = detokenize(t, root);
    json_decref(root);
    return rc;
}

static int apply_template(struct task *t, struct openai_request *q)
{
    const struct server *s = t->s;
    struct chat_prompt prompt;
    TRY(openai_parse_chat(t->body, t->n_body, &s->sampling, (int32_t)s->model->config.n_vocab, q, &t->error));
    if (!s->chat)
        return err_set(&t->error.err, ERR_UNSUPPORTED, "this model has no chat template");
    json_t *vars = openai_template_vars(q, s->o->enable_thinking);
    int rc = vars ? chat_render(s->chat, vars, &prompt, &t->error.err) : err_set(&t->error.err, ERR_NO_MEMORY, "out of memory for the prompt");
    json_decref(vars);
    TRY(rc);
    t->result = json_pack("{s:o,s:o}", "prompt", json_text(buf_str(&prompt.rendered.text), prompt.rendered.text.len), "tokens", ids_json(&prompt.ids));
    chat_prompt_free(&prompt);
    return 0;
}

static int run_apply_template(struct task *t)
{
    struct openai_request q = {0};
    int rc = apply_template(t, &q);
    openai_request_free(&q);
    return rc;
}

void text_tokenize(struct server *s, struct exchange *x)
{
    begin(s, x, run_tokenize);
}

void text_detokenize(struct server *s, struct exchange *x)
{
    begin(s, x, run_detokenize);
}

void text_apply_template(struct server *s, struct exchange *x)
{
    begin(s, x, run_apply_template);
}
