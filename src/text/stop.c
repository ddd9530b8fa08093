/* One automaton a string; the held text is as long as the longest partial match, so nothing else is kept back (B124-B127). */
#include "text/stop.h"

#include <string.h>

#include "base/mem.h"

#define MAX_HELD ((size_t)1 << 20)

static int add_string(struct stop_filter *f, const char *text)
{
    struct stop_string *s = &f->strings[f->n];
    size_t len = strlen(text), k = 0;
    if (len == 0)
        return 0;
    s->text = mem_strndup(MEM_TEXT, text, len);
    s->failure = mem_alloc_array(MEM_TEXT, len, sizeof *s->failure);
    s->len = len;
    f->n++;
    if (!s->text || !s->failure)
        return ERR_NO_MEMORY;
    for (size_t i = 1; i < len; i++) {
        while (k && text[i] != text[k])
            k = s->failure[k - 1];
        s->failure[i] = k += text[i] == text[k];
    }
    return 0;
}

int stop_init(struct stop_filter *f, const char *const *strings, size_t n)
{
    *f = (struct stop_filter){0};
    buf_init(&f->held, MEM_TEXT, MAX_HELD);
    f->strings = mem_alloc_array(MEM_TEXT, n + 1, sizeof *f->strings);
    int rc = f->strings ? 0 : ERR_NO_MEMORY;
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = add_string(f, strings[i]);
    if (rc < 0)
        stop_free(f);
    return rc;
}

void stop_free(struct stop_filter *f)
{
    for (size_t i = 0; i < f->n; i++) {
        mem_free(f->strings[i].text);
        mem_free(f->strings[i].failure);
    }
    mem_free(f->strings);
    buf_free(&f->held);
    f->strings = NULL;
    f->n = 0;
}

/* Moves every automaton by one byte. Returns the longest string completed, or NULL; *longest: the most bytes any still matches. */
static const struct stop_string *advance(struct stop_filter *f, char c, size_t *longest)
{
    const struct stop_string *hit = NULL;
    *longest = 0;
    for (size_t i = 0; i < f->n; i++) {
        struct stop_string *s = &f->strings[i];
        while (s->matched && s->text[s->matched] != c)
            s->matched = s->failure[s->matched - 1];
        s->matched += s->text[s->matched] == c;
        if (s->matched == s->len)
            hit = !hit || s->len > hit->len ? s : hit;
        *longest = s->matched > *longest ? s->matched : *longest;
    }
    return hit;
}

int stop_push(struct stop_filter *f, const char *text, size_t n, struct buf *out)
{
    if (f->hit)
        return 1;
    if (f->n == 0)
        return buf_add(out, text, n);
    for (size_t i = 0; i < n; i++) {
        size_t longest;
        const struct stop_string *hit = advance(f, text[i], &longest);
        TRY(buf_add_char(&f->held, text[i]));
        if (hit) {
            f->hit = hit->text;
            TRY(buf_add(out, f->held.data, f->held.len - hit->len));
            buf_clear(&f->held);
            return 1;
        }
        if (f->held.len > longest) {
            TRY(buf_add(out, f->held.data, f->held.len - longest));
            buf_remove_front(&f->held, f->held.len - longest);
        }
    }
    return 0;
}

int stop_finish(struct stop_filter *f, struct buf *out)
{
    TRY(buf_add(out, buf_str(&f->held), f->held.len));
    buf_clear(&f->held);
    return 0;
}
