/* Finding added tokens in text. Invariant: specials[] is sorted by bytes with a prefix before what it begins, and no text stands in it twice, so that one walk over the
 * text's bytes narrows a range of candidates: a place costs the length of its longest match, however many tokens there are. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/vocab_internal.h"

static int by_bytes(const void *a, const void *b)
{
    const struct special *x = a, *y = b;
    int order = memcmp(x->text, y->text, x->len < y->len ? x->len : y->len);
    if (order)
        return order;
    return x->len != y->len ? (x->len < y->len ? -1 : 1) : x->id - y->id;
}

static int is_added(const struct token *t)
{
    return (t->kind == TOKEN_CONTROL || t->kind == TOKEN_USER_DEFINED) && t->n_stored > 0;
}

/* Of tokens with one text the first id is the one that stands for it, as in vocab_find. */
static void drop_repeated(struct vocab *v)
{
    size_t kept = 0;
    for (size_t i = 0; i < v->n_specials; i++) {
        const struct special *s = &v->specials[i], *last = kept ? &v->specials[kept - 1] : NULL;
        if (!last || last->len != s->len || memcmp(last->text, s->text, s->len) != 0)
            v->specials[kept++] = *s;
    }
    v->n_specials = kept;
}

int special_build(struct vocab *v)
{
    size_t n = 0, at = 0;
    for (int32_t i = 0; i < v->n_tokens; i++)
        n += (size_t)is_added(&v->tokens[i]);
    v->specials = mem_alloc_array(MEM_TEXT, n + 1, sizeof *v->specials);
    if (!v->specials)
        return ERR_NO_MEMORY;
    for (int32_t i = 0; i < v->n_tokens; i++) {
        const struct token *t = &v->tokens[i];
        if (is_added(t))
            v->specials[v->n_specials++] = (struct special){t->stored, t->n_stored, i, t->kind == TOKEN_CONTROL};
    }
    qsort(v->specials, v->n_specials, sizeof *v->specials, by_bytes);
    drop_repeated(v);
    for (int b = 0; b < 256; b++) {
        v->first[b] = (uint32_t)at;
        while (at < v->n_specials && (unsigned char)v->specials[at].text[0] == b)
            at++;
    }
    v->first[256] = (uint32_t)v->n_specials;
    return 0;
}

/* The first of specials[low, high), all longer than depth, whose byte at depth is not below b. */
static uint32_t lower_bound(const struct vocab *v, uint32_t low, uint32_t high, size_t depth, int b)
{
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if ((unsigned char)v->specials[middle].text[depth] < b)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

const struct special *special_at(const struct vocab *v, const char *text, size_t n, size_t n_trusted)
{
    const struct special *best = NULL;
    uint32_t low = v->first[(unsigned char)text[0]], high = v->first[(unsigned char)text[0] + 1];
    for (size_t depth = 1; low < high; depth++) {
        const struct special *s = &v->specials[low];
        if (s->len == depth) {
            if (!s->is_control || depth <= n_trusted)
                best = s;
            low++;
        }
        if (depth >= n)
            break;
        int b = (unsigned char)text[depth];
        low = lower_bound(v, low, high, depth, b);
        high = lower_bound(v, low, high, depth, b + 1);
    }
    return best;
}
