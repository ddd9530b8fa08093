/* NFC of valid UTF-8. Text is cut before code points that never combine with what stands before them and are NFC themselves; only the stretches between two of those that
 * hold something else are decomposed, ordered and composed. Most text has none and is not copied. Time is linear, long runs of combining marks included. */
#include <string.h>
#include <utf8proc.h>

#include "base/utf8.h"
#include "text/vocab_internal.h"

#define SHORT_RUN 32 /* marks that are ordered by insertion */

static const utf8proc_option_t options = UTF8PROC_STABLE | UTF8PROC_COMPOSE;

/* Whether c is NFC and begins a new stretch whatever stands before it. Saying no too often costs time only. */
int nfc_is_stable(uint32_t c)
{
    if (c < 0x300)
        return 1;
    if ((c >= 0x1160 && c <= 0x11FF) || (c >= 0x16D40 && c <= 0x16D7F)) /* vowels and finals of Hangul, vowels of Kirat Rai: letters that combine backwards */
        return 0;
    const utf8proc_property_t *p = utf8proc_get_property((utf8proc_int32_t)c);
    if (p->combining_class || (p->category >= UTF8PROC_CATEGORY_MN && p->category <= UTF8PROC_CATEGORY_ME))
        return 0;
    return p->decomp_seqindex == UINT16_MAX || p->decomp_type != 0; /* decompositions for compatibility do not count */
}

static int combining_class(utf8proc_int32_t c)
{
    return utf8proc_get_property(c)->combining_class;
}

/* Sorts points[0, n), all of class above 0, by class, equal ones kept in order. */
static int order_run(utf8proc_int32_t *points, size_t n)
{
    if (n <= SHORT_RUN) {
        for (size_t i = 1; i < n; i++) {
            utf8proc_int32_t c = points[i];
            size_t k = i;
            for (; k > 0 && combining_class(points[k - 1]) > combining_class(c); k--)
                points[k] = points[k - 1];
            points[k] = c;
        }
        return 0;
    }
    size_t starts[257] = {0};
    utf8proc_int32_t *sorted = mem_alloc_array(MEM_TEXT, n, sizeof *sorted);
    if (!sorted)
        return ERR_NO_MEMORY;
    for (size_t i = 0; i < n; i++)
        starts[(combining_class(points[i]) & 0xFF) + 1]++;
    for (int k = 0; k < 256; k++)
        starts[k + 1] += starts[k];
    for (size_t i = 0; i < n; i++)
        sorted[starts[combining_class(points[i]) & 0xFF]++] = points[i];
    memcpy(points, sorted, n * sizeof *points);
    mem_free(sorted);
    return 0;
}

static int order_marks(utf8proc_int32_t *points, size_t n)
{
    for (size_t i = 0, end; i < n; i = end + 1) {
        for (end = i; end < n && combining_class(points[end]) != 0;)
            end++;
        TRY(order_run(points + i, end - i));
    }
    return 0;
}

/* Appends the NFC of text[0, n) to w->out. */
static int normalize_stretch(struct nfc *w, const char *text, size_t n)
{
    buf_clear(&w->points);
    for (size_t i = 0; i < n;) {
        utf8proc_int32_t parts[8];
        uint32_t c = 0;
        int unused = 0;
        i += (size_t)utf8_decode(text + i, n - i, &c);
        utf8proc_ssize_t count = utf8proc_decompose_char((utf8proc_int32_t)c, parts, 8, options, &unused);
        if (count < 1 || count > 8) { /* no code point has such a decomposition: it is kept */
            parts[0] = (utf8proc_int32_t)c;
            count = 1;
        }
        TRY(buf_add(&w->points, parts, (size_t)count * sizeof *parts));
    }
    size_t n_points = w->points.len / sizeof(utf8proc_int32_t);
    TRY(buf_reserve(&w->points, sizeof(utf8proc_int32_t))); /* reencoding ends with a NUL */
    utf8proc_int32_t *points = (utf8proc_int32_t *)(void *)w->points.data;
    TRY(order_marks(points, n_points));
    utf8proc_ssize_t bytes = utf8proc_reencode(points, (utf8proc_ssize_t)n_points, options);
    return bytes < 0 ? buf_add(&w->out, text, n) : buf_add(&w->out, points, (size_t)bytes);
}

static size_t skip_ascii(const char *text, size_t n, size_t i)
{
    for (uint64_t word; i + 8 <= n; i += 8) {
        memcpy(&word, text + i, 8);
        if (word & 0x8080808080808080u)
            break;
    }
    return i;
}

/* From i on: where the next code point that is not stable stands, and in *before the start of the stable one before it (i when there is none). n: there is none. */
static size_t find_unstable(const char *text, size_t n, size_t i, size_t *before)
{
    *before = i;
    while (i < n) {
        size_t ascii = skip_ascii(text, n, i);
        if (ascii > i) {
            *before = ascii - 1;
            i = ascii;
            continue;
        }
        uint32_t c = 0;
        size_t length = (size_t)utf8_decode(text + i, n - i, &c);
        if (!nfc_is_stable(c))
            return i;
        *before = i;
        i += length;
    }
    return n;
}

static size_t find_stable(const char *text, size_t n, size_t i)
{
    while (i < n) {
        uint32_t c = 0;
        size_t length = (size_t)utf8_decode(text + i, n - i, &c);
        if (nfc_is_stable(c))
            break;
        i += length;
    }
    return i;
}

int nfc_normalize(struct nfc *w, const char **text, size_t *n)
{
    size_t done = 0, before, at = find_unstable(*text, *n, 0, &before);
    if (at == *n)
        return 0;
    buf_clear(&w->out);
    while (at < *n) {
        size_t end = find_stable(*text, *n, at);
        if (before > done)
            TRY(buf_add(&w->out, *text + done, before - done));
        TRY(normalize_stretch(w, *text + before, end - before));
        done = end;
        at = find_unstable(*text, *n, end, &before);
    }
    if (*n > done)
        TRY(buf_add(&w->out, *text + done, *n - done));
    *text = w->out.data;
    *n = w->out.len;
    return 0;
}
