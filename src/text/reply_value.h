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

#endif
