/* Inside of a vocabulary, for the files that encode with it. */
#ifndef TEXT_VOCAB_INTERNAL_H
#define TEXT_VOCAB_INTERNAL_H

#include "text/vocab.h"

struct merge {
    uint64_t pair;     /* left id << 32 | right id; EMPTY_PAIR = a free slot */
    uint32_t rank;
    int32_t product;
};

#define EMPTY_PAIR UINT64_MAX

struct token {
    const char *stored; /* as the file has it, in its mapping */
    uint32_t n_stored;
    uint32_t n_bytes;
    const char *bytes;  /* decoded */
    uint8_t kind;
    uint8_t is_eog;
    uint8_t is_repeated; /* an earlier id has the same text */
};

struct special { /* a control or user-defined token that text is searched for */
    const char *text;
    uint32_t len;
    int32_t id;
    int is_control;
};

struct vocab {
    struct token *tokens;
    int32_t n_tokens;
    char *decoded;              /* the bytes of all normal tokens */
    uint64_t *slots;            /* stored text -> half of its hash and id + 1, open addressing; 0 = free */
    size_t slot_mask;
    struct merge *merges;       /* pair -> rank, product, open addressing */
    size_t merge_mask;
    int32_t byte_ids[256];      /* the token of each single byte */
    struct special *specials;   /* sorted by bytes: special.c */
    size_t n_specials;
    uint32_t first[257];        /* specials[first[b] .. first[b + 1]) begin with byte b */
    int32_t eos, bos, padding;
};

/* NULL when the pair does not merge. */
const struct merge *vocab_merge(const struct vocab *v, int32_t left, int32_t right);

/* Sorts the added tokens for special_at. ERR_NO_MEMORY. */
int special_build(struct vocab *v) MUST_CHECK;

/* The longest added token that text[0, n), n > 0, begins with and that may be one there: control tokens within text[0, n_trusted) only. NULL: none. */
const struct special *special_at(const struct vocab *v, const char *text, size_t n, size_t n_trusted);

struct nfc { /* memory that is used again */
    struct buf out;
    struct buf points;
};

int nfc_is_stable(uint32_t c);

/* Makes valid UTF-8 NFC: *text, *n are set to bytes in w->out when that changes anything or may, else left. ERR_NO_MEMORY. */
int nfc_normalize(struct nfc *w, const char **text, size_t *n) MUST_CHECK;

/* Length in bytes of the next piece of NFC text [text, text + n), n > 0, by the qwen35 expression; the text ends where an added token or the input does. */
size_t pretok_next(const char *text, size_t n);

/* Appends the ids of one piece. ERR_NO_MEMORY. */
int bpe_encode(const struct vocab *v, const char *piece, size_t n, struct ids *out) MUST_CHECK;

/* The same through a memory of short pieces (NULL: none): a piece's ids depend on its bytes alone. */
struct bpe_cache;
struct bpe_cache *bpe_cache_new(void); /* NULL: no memory */
void bpe_cache_free(struct bpe_cache *cache);
int bpe_encode_cached(const struct vocab *v, struct bpe_cache *cache, const char *piece, size_t n, struct ids *out) MUST_CHECK;

#endif
