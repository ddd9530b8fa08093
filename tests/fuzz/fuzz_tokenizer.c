/* The tokeniser on any bytes with any untrusted spans. Laws: the ids are those of a plain splitter that tries every added token at every place; control tokens come from
 * outside the spans only; decoding gives the NFC of the text with broken UTF-8 replaced; streamed text is the same however it is cut. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "text/vocab.h"

#define MAX_SPANS 8
#define MAX_TEXT 4096

static struct gguf *file; /* open as long as the vocabulary */
static struct vocab *vocab;
static struct ids added;  /* control and user-defined tokens */

#define REQUIRE(condition) \
    do {                   \
        if (!(condition))  \
            abort();       \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void load(void)
{
    struct err err = {0};
    REQUIRE(gguf_open(TEST_DATA "/models/r2-q8_0.gguf", 0, &file, &err) == 0);
    REQUIRE(vocab_load(file, &vocab, &err) == 0);
    for (int32_t id = 0; id < vocab_n_tokens(vocab); id++)
        if (vocab_kind(vocab, id) == TOKEN_CONTROL || vocab_kind(vocab, id) == TOKEN_USER_DEFINED)
            REQUIRE(ids_push(&added, id) == 0);
}

static void encode(const char *text, size_t n, enum encode_mode mode, const struct text_span *spans, size_t n_spans, struct ids *out)
{
    struct err err = {0};
    REQUIRE(vocab_encode(vocab, text, n, mode, spans, n_spans, out, &err) == 0);
}

static int is_trusted(const struct text_span *spans, size_t n_spans, size_t start, size_t end)
{
    for (size_t i = 0; i < n_spans; i++)
        for (size_t at = start; at < end; at++)
            if (at >= spans[i].start && at < spans[i].end)
                return 0;
    return 1;
}

/* The id of the longest added token at a place, by trying all; -1: none. */
static int32_t longest_at(const char *text, size_t n, size_t at, enum encode_mode mode, const struct text_span *spans, size_t n_spans, size_t *length)
{
    int32_t best = -1;
    *length = 0;
    for (size_t i = 0; i < added.len; i++) {
        int32_t id = added.data[i];
        const char *bytes;
        size_t n_bytes;
        vocab_stored(vocab, id, &bytes, &n_bytes);
        if (n_bytes <= *length || n_bytes > n - at || memcmp(bytes, text + at, n_bytes) != 0)
            continue;
        if (vocab_kind(vocab, id) == TOKEN_USER_DEFINED || (mode == ENCODE_SPECIAL && is_trusted(spans, n_spans, at, at + n_bytes))) {
            best = id;
            *length = n_bytes;
        }
    }
    return best;
}

static void check_split(const char *text, size_t n, enum encode_mode mode, const struct text_span *spans, size_t n_spans, const struct ids *got)
{
    struct ids want = {0};
    size_t start = 0, length;
    for (size_t at = 0; at < n;) {
        int32_t id = text[at] == '<' ? longest_at(text, n, at, mode, spans, n_spans, &length) : -1;
        if (id < 0) {
            at++;
            continue;
        }
        encode(text + start, at - start, ENCODE_PLAIN, NULL, 0, &want);
        REQUIRE(ids_push(&want, id) == 0);
        start = at += length;
    }
    encode(text + start, n - start, ENCODE_PLAIN, NULL, 0, &want);
    REQUIRE(want.len == got->len && (want.len == 0 || memcmp(want.data, got->data, want.len * sizeof *want.data) == 0));
    ids_free(&want);
}

static void decode(const struct ids *ids, struct buf *out)
{
    struct detok d;
    struct buf whole; /* the raw bytes of all tokens: the stream must come to the same */
    buf_init(&whole, MEM_OTHER, 1 << 24);
    detok_init(&d, vocab, 1);
    for (size_t i = 0; i < ids->len; i++) {
        const char *bytes;
        size_t n;
        size_t before = out->len;
        REQUIRE(detok_push(&d, ids->data[i], out) == 0);
        REQUIRE(utf8_valid(buf_str(out) + before, out->len - before));
        vocab_piece(vocab, ids->data[i], &bytes, &n);
        buf_add(&whole, bytes, n);
    }
    REQUIRE(detok_finish(&d, out) == 0);
    REQUIRE(out->len == whole.len && memcmp(buf_str(out), buf_str(&whole), out->len) == 0);
    buf_free(&whole);
}

static void clean(const char *text, size_t n, struct buf *out)
{
    for (size_t i = 0; i < n;) {
        uint32_t c;
        int length = utf8_decode(text + i, n - i, &c);
        if (length > 0)
            buf_add(out, text + i, (size_t)length);
        else
            buf_add_str(out, UTF8_REPLACEMENT);
        i += length > 0 ? (size_t)length : length < 0 ? (size_t)-length : n - i;
    }
}

static utf8proc_uint8_t *nfc(const struct buf *text, size_t *n)
{
    utf8proc_uint8_t *out = NULL;
    utf8proc_ssize_t length = utf8proc_map((const utf8proc_uint8_t *)buf_str(text), (utf8proc_ssize_t)text->len, &out, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    REQUIRE(length >= 0);
    *n = (size_t)length;
    return out;
}

/* Decoded text is canonically the text; it is its NFC byte for byte when no added token may have kept two code points apart. */
static void check_decoded(const char *text, size_t n, const struct ids *ids)
{
    struct buf decoded, cleaned;
    size_t n_got, n_want;
    buf_init(&decoded, MEM_OTHER, 1 << 24);
    buf_init(&cleaned, MEM_OTHER, 1 << 24);
    decode(ids, &decoded);
    clean(text, n, &cleaned);
    utf8proc_uint8_t *want = nfc(&cleaned, &n_want), *got = nfc(&decoded, &n_got);
    REQUIRE(n_got == n_want && memcmp(got, want, n_want) == 0);
    if (!n || !memchr(text, '<', n))
        REQUIRE(decoded.len == n_want && memcmp(buf_str(&decoded), want, n_want) == 0);
    free(want);
    free(got);
    buf_free(&decoded);
    buf_free(&cleaned);
}

/* Ids that no encoder wrote: the stream is valid text and holds at most three bytes back. */
static void check_stream(const uint8_t *data, size_t size)
{
    struct detok d;
    struct buf out;
    buf_init(&out, MEM_OTHER, 1 << 24);
    detok_init(&d, vocab, size & 1);
    for (size_t i = 0; i + 1 < size; i += 2) {
        int32_t id = data[i] | data[i + 1] << 8;
        int rc = detok_push(&d, id, &out);
        REQUIRE(rc == (id < vocab_n_tokens(vocab) ? 0 : ERR_INVALID));
        REQUIRE(d.n_held >= 0 && d.n_held <= 3);
    }
    REQUIRE(detok_finish(&d, &out) == 0 && d.n_held == 0);
    REQUIRE(utf8_valid(buf_str(&out), out.len));
    buf_free(&out);
}

/* Input: the number of spans, two bytes of gap and length for each, the text. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct text_span spans[MAX_SPANS];
    size_t n_spans = size ? data[0] % (MAX_SPANS + 1) : 0, used = 1 + 2 * n_spans, at = 0;
    if (!vocab)
        load();
    check_stream(data, size < MAX_TEXT ? size : MAX_TEXT);
    if (size < used || size - used > MAX_TEXT)
        return 0;
    const char *text = (const char *)data + used;
    size_t n = size - used;
    for (size_t i = 0; i < n_spans; i++) {
        spans[i].start = at + data[1 + 2 * i];
        at = spans[i].end = spans[i].start + data[2 + 2 * i];
    }
    struct ids plain = {0}, special = {0};
    encode(text, n, ENCODE_PLAIN, spans, n_spans, &plain);
    encode(text, n, ENCODE_SPECIAL, spans, n_spans, &special);
    for (size_t i = 0; i < plain.len; i++)
        REQUIRE(vocab_kind(vocab, plain.data[i]) != TOKEN_CONTROL);
    check_split(text, n, ENCODE_PLAIN, NULL, 0, &plain);
    check_split(text, n, ENCODE_SPECIAL, spans, n_spans, &special);
    check_decoded(text, n, &plain);
    check_decoded(text, n, &special);
    ids_free(&plain);
    ids_free(&special);
    return 0;
}
