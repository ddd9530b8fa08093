/* Growth is by doubling up to the maximum, so adding is linear over all. */
#include "base/buf.h"

#include <stdio.h>
#include <string.h>

void buf_init(struct buf *b, enum mem_label label, size_t max)
{
    *b = (struct buf){.label = label, .max = max};
}

void buf_free(struct buf *b)
{
    mem_free(b->data);
    buf_init(b, b->label, b->max);
}

void buf_clear(struct buf *b)
{
    b->len = 0;
    b->failed = 0;
    if (b->data)
        b->data[0] = 0;
}

int buf_reserve(struct buf *b, size_t more)
{
    if (b->failed)
        return b->failed;
    if (b->len > b->max || more > b->max - b->len)
        return b->failed = ERR_LIMIT;
    if (more > SIZE_MAX / 4 - b->len) /* doubling must not wrap; no system has that much */
        return b->failed = ERR_NO_MEMORY;
    size_t need = b->len + more + 1;
    if (need <= b->cap)
        return 0;
    size_t cap = b->cap ? b->cap : 64;
    while (cap < need)
        cap *= 2;
    char *data = mem_realloc(b->label, b->data, cap);
    if (!data)
        return b->failed = ERR_NO_MEMORY;
    b->data = data;
    b->cap = cap;
    b->data[b->len] = 0;
    return 0;
}

int buf_add(struct buf *b, const void *data, size_t n)
{
    TRY(buf_reserve(b, n));
    if (n)
        memcpy(b->data + b->len, data, n);
    b->len += n;
    b->data[b->len] = 0;
    return 0;
}

int buf_add_char(struct buf *b, char c)
{
    return buf_add(b, &c, 1);
}

int buf_add_str(struct buf *b, const char *text)
{
    return buf_add(b, text, strlen(text));
}

int buf_addf(struct buf *b, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n >= 0 && buf_reserve(b, (size_t)n) == 0) {
        vsnprintf(b->data + b->len, (size_t)n + 1, format, again);
        b->len += (size_t)n;
    }
    va_end(again);
    return b->failed;
}

void buf_remove_front(struct buf *b, size_t n)
{
    if (n > b->len)
        n = b->len;
    if (!n)
        return;
    memmove(b->data, b->data + n, b->len - n + 1);
    b->len -= n;
}

const char *buf_str(const struct buf *b)
{
    return b->data ? b->data : "";
}

int ids_append(struct ids *ids, const int32_t *data, size_t n)
{
    if (n > SIZE_MAX / 8 - ids->len)
        return ERR_NO_MEMORY;
    if (ids->len + n > ids->cap) {
        size_t cap = ids->cap ? ids->cap : 64;
        while (cap < ids->len + n)
            cap *= 2;
        int32_t *grown = mem_realloc(MEM_TEXT, ids->data, cap * sizeof *grown);
        if (!grown)
            return ERR_NO_MEMORY;
        ids->data = grown;
        ids->cap = cap;
    }
    if (n)
        memcpy(ids->data + ids->len, data, n * sizeof *data);
    ids->len += n;
    return 0;
}

int ids_push(struct ids *ids, int32_t id)
{
    return ids_append(ids, &id, 1);
}

void ids_free(struct ids *ids)
{
    mem_free(ids->data);
    *ids = (struct ids){0};
}
