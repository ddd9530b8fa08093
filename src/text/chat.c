/* Messages to tokens. What came from the messages is never read as control tokens: the interpreter says which bytes those are. */
#include "text/chat.h"

#include <string.h>
#include <time.h>

#include "base/json.h"
#include "base/mem.h"

#define MAX_MESSAGES 100000

struct chat_template {
    struct jinja *jinja;
    const struct vocab *vocab;
};

int chat_template_load(const struct gguf *g, const struct vocab *v, const char *source, size_t n, struct chat_template **out, struct err *err)
{
    struct gguf_string s = {source, n};
    enum jinja_error kind;
    if (!source) {
        int rc = gguf_get_string(g, "tokenizer.chat_template", &s, err);
        if (rc <= 0)
            return rc < 0 ? rc : err_set(err, ERR_NOT_FOUND, "%s: the file has no chat template (tokenizer.chat_template)", gguf_path(g));
    }
    struct chat_template *t = mem_alloc(MEM_TEXT, sizeof *t);
    if (!t)
        return err_set(err, ERR_NO_MEMORY, "out of memory for the chat template");
    t->vocab = v;
    int rc = jinja_compile(s.data, s.len, &t->jinja, &kind, err);
    if (rc < 0) {
        mem_free(t);
        return err_prefix(err, "the chat template cannot be used");
    }
    *out = t;
    return 0;
}

void chat_template_free(struct chat_template *t)
{
    if (!t)
        return;
    jinja_free(t->jinja);
    mem_free(t);
}

/* `arguments` of one call: a JSON string becomes the object it holds; what is no object stays the text it was (B90). */
static int normalise_call(json_t *call)
{
    json_t *function = json_is_object(json_object_get(call, "function")) ? json_object_get(call, "function") : call;
    const json_t *arguments = json_object_get(function, "arguments");
    json_t *parsed = NULL;
    struct err ignored;
    if (!json_is_text(arguments))
        return 0;
    if (json_string_length(arguments) == 0) {
        parsed = json_object();
    } else {
        int rc = json_parse(json_string_value(arguments), json_string_length(arguments), &parsed, &ignored);
        if (rc == ERR_NO_MEMORY)
            return rc; /* the text is none the worse */
        if (rc < 0 || !json_is_object(parsed)) {
            json_decref(parsed);
            parsed = json_pack("{s:O}", "arguments", arguments);
        }
    }
    return parsed && json_object_set_new(function, "arguments", parsed) == 0 ? 0 : ERR_NO_MEMORY;
}

static int normalise_message(json_t *m)
{
    const json_t *role = json_object_get(m, "role"), *content = json_object_get(m, "content"), *reasoning = json_object_get(m, "reasoning");
    json_t *calls = json_object_get(m, "tool_calls");
    int rc = 0;
    if (json_is_text(role) && strcmp(json_string_value(role), "developer") == 0)
        rc |= json_object_set_new(m, "role", json_string("system"));
    if (!content || json_is_null(content))
        rc |= json_object_set_new(m, "content", json_string(""));
    if (json_is_text(reasoning) && !json_is_text(json_object_get(m, "reasoning_content"))) /* two conventions, rendered once (B103) */
        rc |= json_object_set(m, "reasoning_content", (json_t *)reasoning);
    if (json_is_null(calls))
        rc |= json_object_del(m, "tool_calls");
    else
        for (size_t i = 0; i < json_array_size(calls); i++)
            if (json_is_object(json_array_get(calls, i)))
                rc |= normalise_call(json_array_get(calls, i));
    return rc;
}

int chat_normalise_messages(const json_t *messages, json_t **out, struct err *err)
{
    if (!json_is_array(messages))
        return err_set(err, ERR_INVALID, "messages is not an array");
    if (json_array_size(messages) > MAX_MESSAGES)
        return err_set(err, ERR_LIMIT, "messages holds %zu entries, at most %d are possible", json_array_size(messages), MAX_MESSAGES);
    json_t *copy = json_deep_copy(messages);
    int rc = copy ? 0 : -1;
    for (size_t i = 0; rc == 0 && i < json_array_size(copy); i++) {
        json_t *m = json_array_get(copy, i);
        if (!json_is_object(m) || !json_is_text(json_object_get(m, "role"))) {
            json_decref(copy);
            return err_set(err, ERR_INVALID, json_is_object(m) ? "messages[%zu].role is missing or not a string" : "messages[%zu] is not an object", i);
        }
        rc = normalise_message(m);
    }
    if (rc != 0) {
        json_decref(copy);
        return err_set(err, ERR_NO_MEMORY, "out of memory for the messages");
    }
    *out = copy;
    return 0;
}

int chat_render_text(const struct chat_template *t, const json_t *vars, struct jinja_output *out, enum jinja_error *kind, struct err *err)
{
    time_t seconds = time(NULL);
    struct tm now;
    localtime_r(&seconds, &now);
    return jinja_render(t->jinja, vars, &now, out, kind, err);
}

/* Whether the text ends inside an open <think>: seen from its tail, never from the model's name. */
static int ends_in_reasoning(const char *text, size_t n)
{
    static const char open[] = "<think>", close[] = "</think>";
    for (size_t i = n; i-- > 0;) {
        if (text[i] != '<')
            continue;
        if (n - i >= sizeof close - 1 && memcmp(text + i, close, sizeof close - 1) == 0)
            return 0;
        if (n - i >= sizeof open - 1 && memcmp(text + i, open, sizeof open - 1) == 0) {
            for (size_t k = i + sizeof open - 1; k < n; k++)
                if (text[k] != '\n' && text[k] != ' ')
                    return 0; /* a finished message that mentions it */
            return 1;
        }
    }
    return 0;
}

int chat_render(const struct chat_template *t, const json_t *vars, struct chat_prompt *out, struct err *err)
{
    struct chat_prompt p = {0};
    enum jinja_error kind;
    jinja_output_init(&p.rendered);
    int rc = chat_render_text(t, vars, &p.rendered, &kind, err);
    if (rc == 0)
        rc = vocab_encode(t->vocab, buf_str(&p.rendered.text), p.rendered.text.len, ENCODE_SPECIAL, p.rendered.untrusted, p.rendered.n_untrusted, &p.ids, err);
    if (rc < 0) {
        chat_prompt_free(&p);
        return rc;
    }
    p.in_reasoning = ends_in_reasoning(buf_str(&p.rendered.text), p.rendered.text.len);
    *out = p;
    return 0;
}

void chat_prompt_free(struct chat_prompt *p)
{
    jinja_output_free(&p->rendered);
    ids_free(&p->ids);
}
