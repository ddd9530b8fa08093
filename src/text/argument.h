/* A tool call's parameter text to JSON, guided by the tool's schema; nothing is evaluated. */
#ifndef TEXT_ARGUMENT_H
#define TEXT_ARGUMENT_H

#include <jansson.h>

#include "base/buf.h"

/* The schema of parameter `key` of a tool's `function` object; NULL when it says nothing. */
const json_t *argument_schema(const json_t *function, const char *key, size_t n);

/* Whether a value of this schema can only be a string, so that its text may go out as it comes. */
int argument_streams(const json_t *schema);

/* Appends the value's JSON text: the first of null, integer, number, boolean, object, array, string that the schema allows and the text is; else the text as a string. */
int argument_convert(const char *raw, size_t n, const json_t *schema, struct buf *out);

#endif
