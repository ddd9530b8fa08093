/* Ids to text, one stream at a time. Invariant: held[0, n_held) is the unfinished start of one UTF-8 sequence, so what came out before is final. */
#include <string.h>

#include "base/utf8.h"
#include "text/vocab_internal.h"

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
