/* The vocabulary of a file and byte-level BPE over it. Immutable after load; any thread. Token texts stay in the file's mapping: the file must be closed last. */
#ifndef TEXT_VOCAB_H
#define TEXT_VOCAB_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "gguf/gguf.h"

struct vocab;

enum token_kind { TOKEN_NORMAL = 1, TOKEN_UNKNOWN = 2, TOKEN_CONTROL = 3, TOKEN_USER_DEFINED = 4, TOKEN_UNUSED = 5, TOKEN_BYTE = 6 };

/* Reads tokenizer.ggml.*: ERR_FORMAT naming file and key (missing vocabulary, lengths that differ, element types, a merge that is no merge). */
int vocab_load(const struct gguf *g, struct vocab **out, struct err *err) MUST_CHECK;
void vocab_free(struct vocab *v);

int32_t vocab_n_tokens(const struct vocab *v);
enum token_kind vocab_kind(const struct vocab *v, int32_t id);
int32_t vocab_find(const struct vocab *v, const char *text, size_t len); /* of the raw token text as stored; -1 when there is none */
int32_t vocab_eos(const struct vocab *v);
int32_t vocab_bos(const struct vocab *v);     /* -1 when absent; never prepended */
int32_t vocab_padding(const struct vocab *v); /* -1 when absent */
int vocab_is_eog(const struct vocab *v, int32_t id);   /* ends a generation: eos, eos_token_ids, <|im_end|>, <|endoftext|>, <|fim_pad|>, <|repo_name|>, <|file_sep|> */
int vocab_is_emittable(const struct vocab *v, int32_t id); /* 0 for unused (padding) rows: never sampled */

/* The bytes of a token's text: byte-mapped tokens decoded, control and user-defined ones raw. Points into v. */
void vocab_piece(const struct vocab *v, int32_t id, const char **bytes, size_t *n);
/* The token as the file stores it (byte-mapped form). */
void vocab_stored(const struct vocab *v, int32_t id, const char **bytes, size_t *n);

/* Byte ranges [start, end) of a text that came from users, tools or files: control tokens are not recognised where they touch one. */
struct text_span {
    size_t start, end;
};

enum encode_mode {
    ENCODE_PLAIN,   /* untrusted: control tokens are plain text, user-defined ones (<think>) match */
    ENCODE_SPECIAL  /* control tokens match too, outside the untrusted spans */
};

/* Appends the ids of text[0, n). spans: sorted, disjoint, may be NULL with n_spans 0. NFC as qwen35 has it; a broken maximal subpart of UTF-8 counts
 * as U+FFFD. Linear in n (near enough: 10 MB of one letter in well under a second). ERR_NO_MEMORY, ERR_LIMIT (n over 1 GiB). */
int vocab_encode(const struct vocab *v, const char *text, size_t n, enum encode_mode mode, const struct text_span *spans, size_t n_spans, struct ids *out,
                 struct err *err) MUST_CHECK;

/* Detokeniser of one stream: holds back an unfinished UTF-8 sequence (at most 3 bytes); broken ones become U+FFFD by maximal subparts as soon as that is certain. */
struct detok {
    const struct vocab *vocab;
    char held[4];
    int n_held;
    int show_control; /* control tokens come out as text too */
};

void detok_init(struct detok *d, const struct vocab *v, int show_control);
int detok_push(struct detok *d, int32_t id, struct buf *out);  /* appends what is certain now; ERR_INVALID for an id outside the vocabulary */
int detok_finish(struct detok *d, struct buf *out);

#endif
