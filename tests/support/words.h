/* A small vocabulary made by hand: the 256 bytes, then what a test adds. */
#ifndef SUPPORT_WORDS_H
#define SUPPORT_WORDS_H

#include "support/metadata.h"
#include "text/vocab.h"

#define WORDS_MAX 4096

struct words {
    char *texts[WORDS_MAX];
    int32_t kinds[WORDS_MAX];
    size_t n;
    char *merges[WORDS_MAX];
    size_t n_merges;
    struct gguf *file;
};

/* Ids 0..255 are the bytes 0..255. */
void words_init(struct words *w);
void words_free(struct words *w); /* after the vocabulary made of it */

/* Adds a token as it is stored; returns its id. */
int32_t words_add(struct words *w, const char *stored, enum token_kind kind);
void words_merge(struct words *w, const char *merge);

/* A merge of two texts of plain letters, and its product as a token unless there is one. */
void words_join(struct words *w, const char *left, const char *right);

/* The keys of a file that holds it, without eos_token_id; and the vocabulary of a file whose eos is the given one. */
void words_keys(const struct words *w, struct metadata *m);
struct vocab *words_load(struct words *w, int32_t eos);

#endif
