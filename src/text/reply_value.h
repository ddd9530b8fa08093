/* A parameter's text as a JSON value, by what its schema allows. Only JSON is parsed, never evaluated; no text makes it fail. */
#ifndef TEXT_REPLY_VALUE_H
#define TEXT_REPLY_VALUE_H

#include <jansson.h>

#include "base/buf.h"

enum { /* in the order in which they are tried */
    VALUE_NULL = 1,
    VALUE_INTEGER = 2,
    VALUE_NUMBER = 4,
    VALUE_BOOLEAN = 8,
    VALUE_OBJECT = 16,
    VALUE_ARRAY = 32,
    VALUE_STRING = 64
};

struct value_types {
    unsigned allowed; /* VALUE_* */
    int n;            /* how many the schema names, unknown and repeated ones too; 0: it says nothing */
};

/* schema may be NULL or of any form. */
struct value_types value_types_of(const json_t *schema);

/* 1 when a value can only be a string, so that it may go out as it comes. */
int value_is_string(struct value_types types);

/* Appends the first allowed type's form of text[0..n) (valid UTF-8, a NUL after it), else the text as a string. Returns out->failed. */
int value_write(struct buf *out, const char *text, size_t n, struct value_types types);

/* Bytes of the white space character (as Unicode counts it) at the start of text[0..n), or 0. Valid UTF-8. */
static inline size_t space_at(const char *text, size_t n)
{
    const unsigned char *s = (const unsigned char *)text;
    if (n == 0 || s[0] > 0xE3)
        return 0;
    if (s[0] < 0x80)
        return s[0] == ' ' || (s[0] >= 9 && s[0] <= 13) || (s[0] >= 0x1C && s[0] <= 0x1F);
    if (s[0] == 0xC2)
        return n >= 2 && (s[1] == 0x85 || s[1] == 0xA0) ? 2 : 0;
    if (n < 3 || s[0] < 0xE1)
        return 0;
    if (s[0] == 0xE1)
        return s[1] == 0x9A && s[2] == 0x80 ? 3 : 0;
    if (s[0] == 0xE2)
        return (s[1] == 0x80 && (s[2] <= 0x8A || s[2] == 0xA8 || s[2] == 0xA9 || s[2] == 0xAF)) || (s[1] == 0x81 && s[2] == 0x9F) ? 3 : 0;
    return s[1] == 0x80 && s[2] == 0x80 ? 3 : 0;
}

#endif
