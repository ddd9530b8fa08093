/* debug tokenize, detokenize, template, reply. */
#include <string.h>
#include <time.h>

#include "base/json.h"
#include "cli/debug.h"
#include "text/chat.h"
#include "text/reply.h"

static int open_vocab(struct cli *c, struct gguf **g, struct vocab **v)
{
    char path[4096];
    TRY(cli_model_path(c, path, sizeof path));
    TRY(gguf_open(path, GGUF_HEADER_ONLY, g, &c->err));
    return vocab_load(*g, v, &c->err);
}

static int with_vocab(struct cli *c, debug_case *fn)
{
    struct gguf *g = NULL;
    struct vocab *v = NULL;
    int rc = open_vocab(c, &g, &v);
    if (rc == 0)
        rc = debug_each(c, fn, v);
    vocab_free(v);
    gguf_close(g);
    return rc;
}

static int need(struct cli *c, const json_t *in, const char *name, int ok)
{
    (void)in;
    return ok ? 0 : err_set(&c->err, ERR_FORMAT, "\"%s\" is missing or of a wrong type", name);
}

static int encode(struct cli *c, const struct vocab *v, const json_t *text, enum encode_mode mode, json_t **out)
{
    struct ids ids = {0};
    int rc = vocab_encode(v, json_string_value(text), json_string_length(text), mode, NULL, 0, &ids, &c->err);
    if (rc == 0)
        *out = cli_json_ids(ids.data, ids.len);
    ids_free(&ids);
    return rc;
}

static int tokenize_case(struct cli *c, void *ctx, const json_t *in, json_t **out)
{
    const json_t *text = json_object_get(in, "text");
    json_t *special = NULL, *plain = NULL;
    TRY(need(c, in, "text", json_is_string(text)));
    TRY(encode(c, ctx, text, ENCODE_SPECIAL, &special));
    int rc = encode(c, ctx, text, ENCODE_PLAIN, &plain);
    if (rc < 0) {
        json_decref(special);
        return rc;
    }
    *out = json_pack("{s:o, s:o}", "ids", special, "ids_no_special", plain);
    return 0;
}

int verb_debug_tokenize(struct cli *c)
{
    return with_vocab(c, tokenize_case);
}

static int detokenize_ids(struct cli *c, const struct vocab *v, const struct ids *ids, json_t *chunks)
{
    struct detok d;
    struct buf piece;
    int rc = 0;
    buf_init(&piece, MEM_TEXT, 1 << 24);
    detok_init(&d, v, 1);
    for (size_t i = 0; rc == 0 && i <= ids->len; i++) {
        buf_clear(&piece);
        rc = i < ids->len ? detok_push(&d, ids->data[i], &piece) : detok_finish(&d, &piece);
        json_array_append_new(chunks, json_stringn(buf_str(&piece), piece.len));
    }
    buf_free(&piece);
    return rc < 0 ? err_set(&c->err, rc, "the ids cannot be decoded: one is outside the vocabulary, or memory ran out") : 0;
}

static int detokenize_case(struct cli *c, void *ctx, const json_t *in, json_t **out)
{
    struct ids ids = {0};
    json_t *chunks = json_array();
    int rc = cli_ids_from_json(c, json_object_get(in, "ids"), "\"ids\"", &ids);
    if (rc == 0)
        rc = detokenize_ids(c, ctx, &ids, chunks);
    ids_free(&ids);
    if (rc < 0)
        json_decref(chunks);
    else
        *out = json_pack("{s:o}", "chunks", chunks);
    return rc;
}

int verb_debug_detokenize(struct cli *c)
{
    return with_vocab(c, detokenize_case);
}

static int render(const json_t *src, const json_t *vars, struct jinja_output *text, enum jinja_error *kind, struct err *err)
{
    const struct tm now = {.tm_year = 126, .tm_mon = 11, .tm_mday = 1, .tm_hour = 8, .tm_min = 30, .tm_wday = 2, .tm_yday = 334};
    struct jinja *t = NULL;
    *kind = JINJA_OK;
    TRY(jinja_compile(json_string_value(src), json_string_length(src), &t, kind, err));
    int rc = jinja_render(t, vars, &now, text, kind, err);
    jinja_free(t);
    return rc;
}

static int template_case(struct cli *c, void *ctx, const json_t *in, json_t **out)
{
    const json_t *src = json_object_get(in, "src"), *vars = json_object_get(in, "vars");
    struct jinja_output text;
    enum jinja_error kind;
    struct err err = {0};
    (void)ctx;
    TRY(need(c, in, "src", json_is_string(src)));
    TRY(need(c, in, "vars", json_is_object(vars)));
    jinja_output_init(&text);
    int rc = render(src, vars, &text, &kind, &err);
    if (rc == 0)
        *out = json_pack("{s:o}", "out", json_stringn(buf_str(&text.text), text.text.len));
    else
        *out = json_pack("{s:s, s:o}", "error", kind == JINJA_OK ? err_kind(err.code) : jinja_error_name(kind), "message", cli_json_text(err.message, strlen(err.message)));
    jinja_output_free(&text);
    return 0;
}

int verb_debug_template(struct cli *c)
{
    return debug_each(c, template_case, NULL);
}

/* What the events add up to. */
struct collected {
    struct buf reasoning, content, name, arguments;
    json_t *calls;
    int in_call;
};

static int add_call(struct collected *r, int complete)
{
    json_t *call = json_pack("{s:o}", "name", json_stringn(buf_str(&r->name), r->name.len)), *arguments = NULL;
    struct err ignored;
    r->in_call = 0;
    if (complete && json_parse(buf_str(&r->arguments), r->arguments.len, &arguments, &ignored) == 0)
        json_object_set_new(call, "arguments", arguments);
    else
        json_object_set_new(call, "arguments_text", json_stringn(buf_str(&r->arguments), r->arguments.len));
    return json_array_append_new(r->calls, call) == 0 ? 0 : ERR_NO_MEMORY;
}

static int collect(void *ctx, const struct reply_event *e)
{
    struct collected *r = ctx;
    switch (e->kind) {
    case REPLY_REASONING:
        return buf_add(&r->reasoning, e->text, e->n);
    case REPLY_TEXT:
        return buf_add(&r->content, e->text, e->n);
    case REPLY_CALL_BEGIN:
        r->in_call = 1;
        buf_clear(&r->name);
        buf_clear(&r->arguments);
        return buf_add(&r->name, e->text, e->n);
    case REPLY_CALL_ARGS:
        return buf_add(&r->arguments, e->text, e->n);
    case REPLY_CALL_END:
        return add_call(r, 1);
    }
    return 0;
}

static void collected_init(struct collected *r)
{
    memset(r, 0, sizeof *r);
    buf_init(&r->reasoning, MEM_TEXT, INPUT_MAX);
    buf_init(&r->content, MEM_TEXT, INPUT_MAX);
    buf_init(&r->name, MEM_TEXT, INPUT_MAX);
    buf_init(&r->arguments, MEM_TEXT, INPUT_MAX);
    r->calls = json_array();
}

static void collected_free(struct collected *r)
{
    buf_free(&r->reasoning);
    buf_free(&r->content);
    buf_free(&r->name);
    buf_free(&r->arguments);
    json_decref(r->calls);
}

/* Pushes a text in pieces of `cut` bytes; 1 when a stop string ended it. */
static int push_cut(struct reply *r, const char *text, size_t n, size_t cut)
{
    for (size_t at = 0; at < n; at += cut) {
        int rc = reply_push(r, text + at, n - at < cut ? n - at : cut);
        if (rc != 0)
            return rc;
    }
    return 0;
}

static int push_pieces(struct reply *r, const json_t *pieces)
{
    size_t i;
    json_t *piece;
    json_array_foreach(pieces, i, piece)
    {
        int rc = reply_push(r, json_string_value(piece), json_string_length(piece));
        if (rc != 0)
            return rc;
    }
    return 0;
}

static json_t *reply_json(const struct collected *got, const char *finish)
{
    return json_pack("{s:o, s:o, s:O, s:s}", "reasoning_content", json_stringn(buf_str(&got->reasoning), got->reasoning.len), "content", json_stringn(buf_str(&got->content), got->content.len),
                     "tool_calls", got->calls, "finish_reason", finish);
}

static int parse_reply(struct cli *c, const json_t *in, struct collected *got, json_t **out)
{
    const json_t *text = json_object_get(in, "text"), *pieces = json_object_get(in, "pieces"), *stops = json_object_get(in, "stop"), *tools = json_object_get(in, "tools");
    const char *stop[OPT_LIST_MAX], *finish = NULL, *how = json_string_value(json_object_get(in, "finish"));
    size_t n_stop = 0, cut = (size_t)json_integer_value(json_object_get(in, "cut"));
    struct reply *r = NULL;
    for (; n_stop < OPT_LIST_MAX && n_stop < json_array_size(stops); n_stop++) {
        stop[n_stop] = json_string_value(json_array_get(stops, n_stop));
        TRY(need(c, in, "stop", stop[n_stop] != NULL));
    }
    struct reply_options options = {
        .tools = json_is_array(tools) ? tools : NULL, .in_reasoning = json_is_true(json_object_get(in, "in_reasoning")), .stop = stop, .n_stop = n_stop, .sink = collect, .ctx = got};
    TRY(reply_create(&options, &r, &c->err));
    int rc = pieces ? push_pieces(r, pieces) : push_cut(r, json_string_value(text), json_string_length(text), cut ? cut : SIZE_MAX / 2);
    if (rc >= 0)
        rc = reply_finish(r, !how || strcmp(how, "length") != 0, &finish);
    if (rc >= 0 && got->in_call)
        rc = add_call(got, 0);
    const char *matched = reply_matched_stop(r);
    if (rc < 0)
        rc = err_set(&c->err, rc, "the reply could not be read: out of memory");
    else if (pieces)
        *out = json_pack("{s:o, s:o}", "text", json_stringn(buf_str(&got->content), got->content.len), "matched", matched ? json_string(matched) : json_null());
    else
        *out = reply_json(got, finish);
    reply_free(r);
    return rc < 0 ? rc : 0;
}

static int reply_case(struct cli *c, void *ctx, const json_t *in, json_t **out)
{
    struct collected got;
    (void)ctx;
    TRY(need(c, in, "text", json_is_string(json_object_get(in, "text")) || json_is_array(json_object_get(in, "pieces"))));
    collected_init(&got);
    int rc = parse_reply(c, in, &got, out);
    collected_free(&got);
    return rc;
}

int verb_debug_reply(struct cli *c)
{
    return debug_each(c, reply_case, NULL);
}
