/* Text to ids: added tokens are cut out first, what lies between is made NFC, cut into pieces and merged. And back. */
#include <string.h>
#include <utf8proc.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "text/vocab_internal.h"

#define MAX_TEXT ((size_t)1 << 30)
#define MAX_MARK_RUN 1000 /* longer runs of combining marks are left as they are: ordering them costs their square */

struct encoder {
    const struct vocab *v;
    const char *text;
    size_t n;
    enum encode_mode mode;
    const struct text_span *spans;
    size_t n_spans, span; /* the first span that ends after the cursor */
    struct ids *out;
    struct buf clean;     /* a piece with broken UTF-8 replaced */
    struct buf nfc;
    struct buf points;
};

static int touches_span(struct encoder *e, size_t start, size_t end)
{
    while (e->span < e->n_spans && e->spans[e->span].end <= start)
        e->span++;
    return e->span < e->n_spans && e->spans[e->span].start < end;
}

/* The longest added token that begins at `at` and may be one here. */
static const struct special *special_at(struct encoder *e, size_t at)
{
    unsigned char b = (unsigned char)e->text[at];
    for (uint32_t i = e->v->first[b]; i < e->v->first[b + 1]; i++) {
        const struct special *s = &e->v->specials[i];
        if (s->len > e->n - at || memcmp(s->text, e->text + at, s->len) != 0)
            continue;
        if (!s->is_control || (e->mode == ENCODE_SPECIAL && !touches_span(e, at, at + s->len)))
            return s;
    }
    return NULL;
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

/* Whether valid text may change under NFC: it has something above U+02FF, and no run of marks that is too long to be ordered. */
static int needs_nfc(const char *text, size_t n)
{
    size_t run = 0, longest = 0;
    int above = 0;
    for (size_t i = 0; i < n;) {
        uint32_t c = (unsigned char)text[i];
        if (c < 0x80) {
            i++;
            run = 0;
            continue;
        }
        i += (size_t)utf8_decode(text + i, n - i, &c);
        if (c < 0x300) {
            run = 0;
            continue;
        }
        above = 1;
        run = utf8proc_get_property((utf8proc_int32_t)c)->combining_class ? run + 1 : 0;
        longest = run > longest ? run : longest;
    }
    return above && longest <= MAX_MARK_RUN;
}

static int to_nfc(struct encoder *e, const char **text, size_t *n)
{
    const utf8proc_option_t options = UTF8PROC_STABLE | UTF8PROC_COMPOSE;
    if (!needs_nfc(*text, *n))
        return 0;
    utf8proc_ssize_t count = utf8proc_decompose((const utf8proc_uint8_t *)*text, (utf8proc_ssize_t)*n, NULL, 0, options);
    if (count < 0)
        return 0; /* not valid text after all: left as it is */
    buf_clear(&e->points);
    TRY(buf_reserve(&e->points, ((size_t)count + 1) * sizeof(utf8proc_int32_t)));
    utf8proc_int32_t *points = (utf8proc_int32_t *)(void *)e->points.data;
    count = utf8proc_decompose((const utf8proc_uint8_t *)*text, (utf8proc_ssize_t)*n, points, count, options);
    count = count < 0 ? count : utf8proc_reencode(points, count, options);
    if (count < 0)
        return 0;
    buf_clear(&e->nfc);
    TRY(buf_add(&e->nfc, points, (size_t)count));
    *text = e->nfc.data;
    *n = e->nfc.len;
    return 0;
}

/* Text between added tokens. */
static int encode_plain(struct encoder *e, const char *text, size_t n)
{
    if (!utf8_valid(text, n)) {
        TRY(clean_utf8(&e->clean, text, n));
        text = e->clean.data;
        n = e->clean.len;
    }
    TRY(to_nfc(e, &text, &n));
    for (size_t i = 0; i < n;) {
        size_t length = pretok_next(text + i, n - i);
        TRY(bpe_encode(e->v, text + i, length, e->out));
        i += length;
    }
    return 0;
}

static int encode_all(struct encoder *e)
{
    size_t start = 0;
    for (size_t at = 0; at < e->n;) {
        const struct special *s = e->v->first[(unsigned char)e->text[at]] != e->v->first[(unsigned char)e->text[at] + 1] ? special_at(e, at) : NULL;
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
    buf_init(&e.nfc, MEM_TEXT, 4 * MAX_TEXT);
    buf_init(&e.points, MEM_TEXT, 16 * MAX_TEXT);
    int rc = encode_all(&e);
    buf_free(&e.clean);
    buf_free(&e.nfc);
    buf_free(&e.points);
    if (rc < 0) {
        out->len = before;
        return err_set(err, rc, "out of memory for the tokens of a text of %zu bytes", n);
    }
    return 0;
}

void detok_init(struct detok *d, const struct vocab *v, int show_control)
{
    *d = (struct detok){.vocab = v, .show_control = show_control};
}

/* Emits what is certain of the held bytes followed by bytes[0, n). */
static int emit(struct detok *d, const char *bytes, size_t n, struct buf *out)
{
    for (size_t i = 0; i < n || d->n_held;) {
        char window[8];
        size_t length = (size_t)d->n_held, taken = 0;
        uint32_t c;
        memcpy(window, d->held, length);
        while (length < 4 && i + taken < n)
            window[length++] = bytes[i + taken++];
        int step = utf8_decode(window, length, &c);
        if (step == 0) { /* unfinished, and there is no more */
            memcpy(d->held, window, length);
            d->n_held = (int)length;
            return out->failed;
        }
        size_t used = (size_t)(step < 0 ? -step : step), held = (size_t)d->n_held;
        if (step > 0)
            buf_add(out, window, used);
        else
            buf_add_str(out, UTF8_REPLACEMENT);
        if (used >= held) {
            i += used - held;
            d->n_held = 0;
        } else {
            memmove(d->held, d->held + used, held - used);
            d->n_held = (int)(held - used);
        }
    }
    return out->failed;
}

int detok_push(struct detok *d, int32_t id, struct buf *out)
{
    if (id < 0 || id >= d->vocab->n_tokens)
        return ERR_INVALID;
    const struct token *t = &d->vocab->tokens[id];
    if (t->kind == TOKEN_UNUSED || (t->kind == TOKEN_CONTROL && !d->show_control))
        return 0;
    return emit(d, t->bytes, t->n_bytes, out);
}

int detok_finish(struct detok *d, struct buf *out)
{
    if (d->n_held)
        buf_add_str(out, UTF8_REPLACEMENT); /* what is held is one unfinished maximal subpart */
    d->n_held = 0;
    return out->failed;
}
