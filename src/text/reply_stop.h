/* Stop strings in text that comes in pieces: the one completed first wins, the longest of those completed at the same byte. */
#ifndef TEXT_REPLY_STOP_H
#define TEXT_REPLY_STOP_H

#include "base/buf.h"

struct stop_string;

struct stops {
    struct stop_string *list;
    size_t n;
    const char *matched; /* the one that was found, or NULL */
    struct buf held;     /* the end of the text that may be the start of a stop string */
};

/* Strings are copied; empty ones are left out. */
int stops_init(struct stops *s, const char *const *strings, size_t n) MUST_CHECK;
void stops_free(struct stops *s);

/* Takes more text: afterwards the first *n_out bytes of held are decided (the caller hands them on and removes them). Returns 0, REPLY_STOPPED when a stop
 * string was completed (what stands after *n_out is no text), or ERR_NO_MEMORY. */
int stops_push(struct stops *s, const char *text, size_t n, size_t *n_out) MUST_CHECK;

/* The text was interrupted: a stop string does not reach over this place. All of held is decided. */
void stops_reset(struct stops *s);

#endif
