/* A growing byte string with a maximum given at init, and a growing list of token ids. Failure is sticky: add freely, check once at the end.
 * One owner, one thread. */
#ifndef BASE_BUF_H
#define BASE_BUF_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"

struct buf {
    char *data;     /* len bytes and a NUL after them; NULL while nothing was added */
    size_t len;
    size_t cap;
    size_t max;     /* adding past it fails with ERR_LIMIT */
    int failed;     /* 0, ERR_NO_MEMORY or ERR_LIMIT: sticky */
    enum mem_label label;
};

void buf_init(struct buf *b, enum mem_label label, size_t max);
void buf_free(struct buf *b);
void buf_clear(struct buf *b);              /* empties, keeps the memory, forgets a failure */

/* Each returns b->failed. */
int buf_reserve(struct buf *b, size_t more);
int buf_add(struct buf *b, const void *data, size_t n);
int buf_add_char(struct buf *b, char c);
int buf_add_str(struct buf *b, const char *text);
int buf_addf(struct buf *b, const char *format, ...) PRINTF_LIKE(2, 3);
void buf_remove_front(struct buf *b, size_t n);

/* A NUL-terminated view, never NULL. */
const char *buf_str(const struct buf *b);

struct ids {
    int32_t *data;
    size_t len;
    size_t cap;
};

int ids_push(struct ids *ids, int32_t id) MUST_CHECK;
int ids_append(struct ids *ids, const int32_t *data, size_t n) MUST_CHECK;
void ids_free(struct ids *ids);

#endif
