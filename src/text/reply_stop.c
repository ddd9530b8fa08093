/* Knuth, Morris and Pratt's matcher for each string. Invariant: `held` is at least as long as the longest match in work. */
#include "text/reply_stop.h"

#include <string.h>

#include "text/reply.h"

struct stop_string {
    char *text;
    size_t n;
    size_t *fail; /* fail[i]: length of the longest proper prefix that ends text[0..i] too */
    size_t at;    /* bytes matched so far */
};

static int init_one(struct stop_string *one, const char *text)
{
    one->n = strlen(text);
    one->text = mem_strndup(MEM_TEXT, text, one->n);
    one->fail = mem_alloc_array(MEM_TEXT, one->n, sizeof *one->fail);
    if (!one->text || !one->fail)
        return ERR_NO_MEMORY;
    for (size_t i = 1, k = 0; i < one->n; i++) {
        while (k > 0 && text[i] != text[k])
            k = one->fail[k - 1];
        k += text[i] == text[k];
        one->fail[i] = k;
    }
    return 0;
}

int stops_init(struct stops *s, const char *const *strings, size_t n)
{
    *s = (struct stops){0};
    buf_init(&s->held, MEM_TEXT, SIZE_MAX / 4);
    if (n == 0)
        return 0;
    s->list = mem_alloc_array(MEM_TEXT, n, sizeof *s->list);
    if (!s->list)
        return ERR_NO_MEMORY;
    for (size_t i = 0; i < n; i++)
        if (strings[i][0])
            TRY(init_one(&s->list[s->n++], strings[i]));
    return 0;
}

void stops_free(struct stops *s)
{
    for (size_t i = 0; i < s->n; i++) {
        mem_free(s->list[i].text);
        mem_free(s->list[i].fail);
    }
    mem_free(s->list);
    buf_free(&s->held);
}

void stops_reset(struct stops *s)
{
    for (size_t i = 0; i < s->n; i++)
        s->list[i].at = 0;
}

/* Feeds one byte to every matcher; the longest string that it completes, or NULL. */
static const struct stop_string *step(struct stops *s, char c)
{
    const struct stop_string *found = NULL;
    for (size_t i = 0; i < s->n; i++) {
        struct stop_string *one = &s->list[i];
        while (one->at > 0 && one->text[one->at] != c)
            one->at = one->fail[one->at - 1];
        one->at += one->text[one->at] == c;
        if (one->at == one->n && (!found || one->n > found->n))
            found = one;
    }
    return found;
}

int stops_push(struct stops *s, const char *text, size_t n, size_t *n_out)
{
    size_t before = s->held.len, keep = 0;
    TRY(buf_add(&s->held, text, n));
    for (size_t i = 0; i < n; i++) {
        const struct stop_string *found = step(s, text[i]);
        if (found) {
            s->matched = found->text;
            *n_out = before + i + 1 - found->n;
            return REPLY_STOPPED;
        }
    }
    for (size_t i = 0; i < s->n; i++)
        keep = s->list[i].at > keep ? s->list[i].at : keep;
    *n_out = s->held.len - keep;
    return 0;
}
