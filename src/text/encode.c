/* Text to ids: added tokens are cut out first, what lies between is made NFC, cut into pieces and merged. Invariant: the id of a control token comes from text that lies
 * outside every untrusted span, never from merging. */
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "text/vocab_internal.h"

#define MAX_TEXT ((size_t)1 << 30)
#define MIN_CACHED_TEXT 2048 /* a cache of pieces does not pay for shorter ones */

struct encoder {
    const struct vocab *v;
    const char *text;
    size_t n;
    enum encode_mode mode;
    const struct text_span *spans;
    size_t n_spans, span; /* the first span that ends after the cursor and is not empty */
    struct ids *out;
    struct buf clean;     /* a piece with broken UTF-8 replaced */
    struct nfc nfc;
    struct bpe_cache *cache;
};

/* How far a control token that begins at `at` may reach. The cursor moves forward only. */
static size_t trusted_bytes(struct encoder *e, size_t at)
{
    if (e->mode == ENCODE_PLAIN)
        return 0;
    while (e->span < e->n_spans && (e->spans[e->span].end <= at || e->spans[e->span].end <= e->spans[e->span].start))
        e->span++;
    if (e->span == e->n_spans)
        return e->n - at;
    return e->spans[e->span].start > at ? e->spans[e->span].start - at : 0;
}

/* Replaces broken maximal subparts by U+FFFD. */
static int clean_utf8(struct buf *out, const char *text, size_t n)
{
    buf_clear(out);
    for (size_t i = 0; i < n;) {
        uint32_t c;
        int length = utf8_decode(text + i, n - i, &c);
        if (length > 0) {
            buf_add(out, text + i, (size_t)length);
            i += (size_t)length;
        } else {
            buf_add_str(out, UTF8_REPLACEMENT);
            i += length < 0 ? (size_t)-length : n - i;
        }
    }
    return out->failed;
}

/* Text between added tokens. */
static int encode_plain(struct encoder *e, const char *text, size_t n)
{
    if (!utf8_valid(text, n)) {
        TRY(clean_utf8(&e->clean, text, n));
        text = e->clean.data;
        n = e->clean.len;
    }
    TRY(nfc_normalize(&e->nfc, &text, &n));
    for (size_t i = 0; i < n;) {
        size_t length = pretok_next(text + i, n - i);
        TRY(bpe_encode_cached(e->v, e->cache, text + i, length, e->out));
        i += length;
    }
    return 0;
}

static int encode_all(struct encoder *e)
{
    size_t start = 0;
    for (size_t at = 0; at < e->n;) {
        unsigned char b = (unsigned char)e->text[at];
        const struct special *s = NULL;
        if (e->v->first[b] != e->v->first[b + 1])
            s = special_at(e->v, e->text + at, e->n - at, trusted_bytes(e, at));
        if (!s) {
            at++;
            continue;
        }
        TRY(encode_plain(e, e->text + start, at - start));
        TRY(ids_push(e->out, s->id));
        at += s->len;
        start = at;
    }
    return encode_plain(e, e->text + start, e->n - start);
}

int vocab_encode(const struct vocab *v, const char *text, size_t n, enum encode_mode mode, const struct text_span *spans, size_t n_spans, struct ids *out, struct err *err)
{
    struct encoder e = {.v = v, .text = text, .n = n, .mode = mode, .spans = spans, .n_spans = n_spans, .out = out};
    if (n > MAX_TEXT)
        return err_set(err, ERR_LIMIT, "a text of %zu bytes is longer than the %zu that can be tokenised", n, MAX_TEXT);
    size_t before = out->len;
    buf_init(&e.clean, MEM_TEXT, 4 * MAX_TEXT);
    buf_init(&e.nfc.out, MEM_TEXT, 16 * MAX_TEXT);
    buf_init(&e.nfc.points, MEM_TEXT, 64 * MAX_TEXT);
    if (n >= MIN_CACHED_TEXT)
        e.cache = bpe_cache_new(); /* without memory for it the work takes longer */
    int rc = encode_all(&e);
    bpe_cache_free(e.cache);
    buf_free(&e.clean);
    buf_free(&e.nfc.out);
    buf_free(&e.nfc.points);
    if (rc < 0) {
        out->len = before;
        return err_set(err, rc, "out of memory for the tokens of a text of %zu bytes", n);
    }
    return 0;
}
