#include "support/words.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "support/test.h"

void words_init(struct words *w)
{
    uint32_t next = 256;
    memset(w, 0, sizeof *w);
    for (uint32_t b = 0; b < 256; b++) {
        char text[5] = {0};
        int printable = (b > 0x20 && b < 0x7F) || (b > 0xA0 && b != 0xAD);
        utf8_encode(printable ? b : next++, text);
        words_add(w, text, TOKEN_NORMAL);
    }
}

void words_free(struct words *w)
{
    for (size_t i = 0; i < w->n; i++)
        mem_free(w->texts[i]);
    for (size_t i = 0; i < w->n_merges; i++)
        mem_free(w->merges[i]);
    gguf_close(w->file);
}

int32_t words_add(struct words *w, const char *stored, enum token_kind kind)
{
    assert_true(w->n < WORDS_MAX);
    w->texts[w->n] = mem_strndup(MEM_OTHER, stored, strlen(stored));
    w->kinds[w->n] = (int32_t)kind;
    return (int32_t)w->n++;
}

void words_merge(struct words *w, const char *merge)
{
    assert_true(w->n_merges < WORDS_MAX);
    w->merges[w->n_merges++] = mem_strndup(MEM_OTHER, merge, strlen(merge));
}

void words_join(struct words *w, const char *left, const char *right)
{
    char text[256];
    snprintf(text, sizeof text, "%s %s", left, right);
    words_merge(w, text);
    snprintf(text, sizeof text, "%s%s", left, right);
    for (size_t i = 0; i < w->n; i++)
        if (strcmp(w->texts[i], text) == 0)
            return;
    words_add(w, text, TOKEN_NORMAL);
}

void words_keys(const struct words *w, struct metadata *m)
{
    metadata_string(m, "tokenizer.ggml.model", "gpt2");
    metadata_string(m, "tokenizer.ggml.pre", "qwen35");
    metadata_strings(m, "tokenizer.ggml.tokens", (const char *const *)w->texts, w->n);
    metadata_ints(m, "tokenizer.ggml.token_type", GGUF_I32, w->kinds, w->n);
    metadata_strings(m, "tokenizer.ggml.merges", (const char *const *)w->merges, w->n_merges);
}

struct vocab *words_load(struct words *w, int32_t eos)
{
    struct metadata m;
    struct vocab *v = NULL;
    struct err err = {0};
    metadata_init(&m);
    words_keys(w, &m);
    metadata_int(&m, "tokenizer.ggml.eos_token_id", GGUF_U32, eos);
    w->file = metadata_open(&m);
    metadata_free(&m);
    test_ok(vocab_load(w->file, &v, &err), &err, "vocabulary");
    return v;
}
