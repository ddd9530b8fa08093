/* apr validate: structure, shapes, numbers, and whether vocabulary, merges and template fit together. The first thing that is wrong ends it, named. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "cli/common.h"
#include "gguf/validate.h"

/* Texts that exercise the pre-tokeniser's classes; each must come back from its ids as it is (they are NFC already). */
static const char *const samples[] = {
    "Hello, world! It's 2026; the answer is 42.\n",
    "  leading, inner   and trailing spaces  \t\r\n\n",
    "def f(x):\n    return {\"a\": [1, 2.5e-3]}  # comment\n",
    "caf\xC3\xA9 na\xC3\xAFve \xC3\x85ngstr\xC3\xB6m \xD0\x9F\xD1\x80\xD0\xB8\xD0\xB2\xD0\xB5\xD1\x82 \xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E \xF0\x9F\x98\x80",
    "<think>\nnot a control token: <|im_en",
};

static int round_trip(const struct model *m, const char *text, size_t n, struct err *err)
{
    struct ids ids = {0};
    struct detok d;
    struct buf back;
    buf_init(&back, MEM_TEXT, 1 << 20);
    int rc = vocab_encode(m->vocab, text, n, ENCODE_PLAIN, NULL, 0, &ids, err);
    detok_init(&d, m->vocab, 1);
    for (size_t i = 0; rc == 0 && i < ids.len; i++)
        rc = detok_push(&d, ids.data[i], &back);
    if (rc == 0)
        rc = detok_finish(&d, &back);
    if (rc == 0 && (back.len != n || memcmp(buf_str(&back), text, n) != 0))
        rc = err_set(err, ERR_FORMAT, "%s: the tokeniser does not give a text of %zu bytes back as it was", gguf_path(m->file), n);
    ids_free(&ids);
    buf_free(&back);
    return rc;
}

static int check_words(const struct model *m, struct err *err)
{
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++)
        TRY(round_trip(m, samples[i], strlen(samples[i]), err));
    int32_t eos = vocab_eos(m->vocab);
    if (eos >= 0 && !vocab_is_eog(m->vocab, eos))
        return err_set(err, ERR_FORMAT, "%s: the end-of-text token %d does not end a generation", gguf_path(m->file), eos);
    return 0;
}

/* One question through the template must come out as text that names it. */
static int check_template(const struct model *m, struct err *err)
{
    struct chat_prompt p;
    json_t *vars = json_pack("{s:[{s:s, s:s}], s:b}", "messages", "role", "user", "content", "What is this?", "add_generation_prompt", 1);
    if (!vars)
        return err_set(err, ERR_NO_MEMORY, "out of memory for the template's variables");
    int rc = chat_render(m->chat, vars, &p, err);
    json_decref(vars);
    if (rc < 0)
        return err_prefix(err, "%s: the chat template does not render one user message", gguf_path(m->file));
    if (!strstr(buf_str(&p.rendered.text), "What is this?"))
        rc = err_set(err, ERR_TEMPLATE, "%s: the chat template drops the user's message", gguf_path(m->file));
    chat_prompt_free(&p);
    return rc;
}

struct findings {
    struct gguf_validation data;
    size_t n_merges;
    double structure_ms, words_ms, data_ms;
};

static int examine(struct cli *c, const struct model *m, struct findings *f)
{
    const struct gguf_kv *merges = gguf_find(m->file, "tokenizer.ggml.merges");
    uint64_t start = clock_ns();
    f->n_merges = merges ? (size_t)merges->n : 0;
    TRY(check_words(m, &c->err));
    if (m->chat)
        TRY(check_template(m, &c->err));
    f->words_ms = clock_ms_since(start);
    start = clock_ns();
    TRY(gguf_validate_data(m->file, &f->data, &c->err));
    f->data_ms = clock_ms_since(start);
    return 0;
}

static int print_findings(struct cli *c, const struct model *m, const struct findings *f)
{
    if (c->o[O_JSON].set)
        return cli_print_json(c,
                              json_pack("{s:o, s:s, s:I, s:I, s:i, s:I, s:b, s:{s:f, s:f, s:f}}", "file", cli_json_text(gguf_path(m->file), strlen(gguf_path(m->file))), "verdict", "sound",
                                        "tensors", (json_int_t)f->data.n_tensors, "elements", (json_int_t)f->data.n_elements, "tokens", (int)vocab_n_tokens(m->vocab), "merges",
                                        (json_int_t)f->n_merges, "chat_template", m->chat != NULL, "ms", "structure", f->structure_ms, "words", f->words_ms, "data", f->data_ms),
                              2);
    printf("structure: %zu tensors with the shapes that %d %s layers need (%.0f ms)\n", gguf_n_tensors(m->file), m->config.n_layer, m->config.architecture, f->structure_ms);
    printf("words: %d tokens, %zu merges, %zu texts there and back, chat template %s (%.0f ms)\n", vocab_n_tokens(m->vocab), f->n_merges, sizeof samples / sizeof *samples,
           m->chat ? "renders" : "absent", f->words_ms);
    printf("numbers: %" PRIu64 " values of %" PRIu64 " tensors are finite (%.0f ms)\n", f->data.n_elements, f->data.n_tensors, f->data_ms);
    printf("verdict: %s is sound\n", gguf_path(m->file));
    return 0;
}

int verb_validate(struct cli *c)
{
    struct model *m = NULL;
    struct findings f = {0};
    uint64_t start = clock_ns();
    TRY(cli_load_model(c, 0, &m));
    f.structure_ms = clock_ms_since(start);
    int rc = examine(c, m, &f);
    if (rc == 0)
        rc = print_findings(c, m, &f);
    model_free(m);
    return rc;
}
