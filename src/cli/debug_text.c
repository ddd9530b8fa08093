/* debug tokenize, detokenize, template. */
#include <string.h>
#include <time.h>

#include "base/json.h"
#include "cli/debug.h"
#include "text/chat.h"

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

static int need(struct cli *c, const char *name, int ok)
{
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

static int tokenize_case(struct cli *c, void *ctx, const json_t *in, struct buf *out)
{
    const json_t *text = json_object_get(in, "text");
    json_t *special = NULL, *plain = NULL;
    TRY(need(c, "text", json_is_text(text)));
    TRY(encode(c, ctx, text, ENCODE_SPECIAL, &special));
    int rc = encode(c, ctx, text, ENCODE_PLAIN, &plain);
    if (rc < 0) {
        json_decref(special);
        return rc;
    }
    return debug_answer(c, json_pack("{s:o, s:o}", "ids", special, "ids_no_special", plain), out);
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

static int detokenize_case(struct cli *c, void *ctx, const json_t *in, struct buf *out)
{
    struct ids ids = {0};
    json_t *chunks = json_array();
    int rc = cli_ids_from_json(c, json_object_get(in, "ids"), "\"ids\"", &ids);
    if (rc == 0)
        rc = detokenize_ids(c, ctx, &ids, chunks);
    ids_free(&ids);
    if (rc == 0)
        return debug_answer(c, json_pack("{s:o}", "chunks", chunks), out);
    json_decref(chunks);
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

static int template_case(struct cli *c, void *ctx, const json_t *in, struct buf *out)
{
    const json_t *src = json_object_get(in, "src"), *vars = json_object_get(in, "vars");
    struct jinja_output text;
    enum jinja_error kind;
    struct err err = {0};
    (void)ctx;
    TRY(need(c, "src", json_is_text(src)));
    TRY(need(c, "vars", json_is_object(vars)));
    jinja_output_init(&text);
    json_t *answer;
    if (render(src, vars, &text, &kind, &err) == 0)
        answer = json_pack("{s:o}", "out", json_stringn(buf_str(&text.text), text.text.len));
    else
        answer = json_pack("{s:s, s:o}", "error", kind == JINJA_OK ? err_kind(err.code) : jinja_error_name(kind), "message", cli_json_text(err.message, strlen(err.message)));
    jinja_output_free(&text);
    return debug_answer(c, answer, out);
}

int verb_debug_template(struct cli *c)
{
    return debug_each(c, template_case, NULL);
}
