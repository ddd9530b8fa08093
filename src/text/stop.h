/* Stop strings over a stream of text: what may be the beginning of one is held back, the one completed first ends the text. */
#ifndef TEXT_STOP_H
#define TEXT_STOP_H

#include "base/buf.h"

struct stop_string {
    char *text;
    size_t len;
    size_t *failure;  /* Knuth-Morris-Pratt: the longest border of each prefix */
    size_t matched;   /* bytes of it that the stream ends with now */
};

struct stop_filter {
    struct stop_string *strings;
    size_t n;
    struct buf held;
    const char *hit;  /* the string that ended the text */
};

int stop_init(struct stop_filter *f, const char *const *strings, size_t n) MUST_CHECK;
void stop_free(struct stop_filter *f);

/* Takes text; what may go out is appended to out. Returns 1 when a string was completed: the text ends, the rest is dropped. */
int stop_push(struct stop_filter *f, const char *text, size_t n, struct buf *out) MUST_CHECK;
/* The stream ends: what was held goes out. */
int stop_finish(struct stop_filter *f, struct buf *out) MUST_CHECK;

#endif
