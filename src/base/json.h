/* What the project adds to jansson: bounded parsing with an error sentence, and printing the way Python's json.dumps does (", " and ": "). */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include <jansson.h>

#include "base/buf.h"
#include "base/err.h"

/* Makes jansson use the counted allocator. Once, before the first use. */
void json_use_mem(void);

/* Parses one document of n bytes: duplicate keys keep the last value, \u0000 is allowed in strings but not in keys, trailing bytes are an error.
 * ERR_FORMAT says what and at which byte; ERR_LIMIT for a depth above 200, ERR_NO_MEMORY. The caller owns *out (json_decref). Whole numbers beyond 64 bits keep their digits: see json_big_integer. */
int json_parse(const char *text, size_t n, json_t **out, struct err *err) MUST_CHECK;

/* The digits (with sign) of a whole number that does not fit 64 bits, or NULL. jansson has no such type: json_parse keeps one as a string behind a prefix that nobody outside the
 * process can know. */
const char *json_big_integer(const json_t *value, size_t *n);

/* A string that stands for itself: what json_is_string says, but for such numbers. Whoever asks for a text asks this. */
int json_is_text(const json_t *value);

/* Appends value as json.dumps(value, ensure_ascii=False) would print it: insertion order, ", " and ": ", floats as Python's repr.
 * indent < 0: one line; else as json.dumps(indent=indent). */
int json_write_python(struct buf *out, const json_t *value, int indent);

/* Appends a quoted JSON string. ascii: escape everything above U+007E. */
int json_write_string(struct buf *out, const char *text, size_t n, int ascii);

/* The same without the quotes, for a string that is written in parts (cut between code points). */
int json_write_escaped(struct buf *out, const char *text, size_t n, int ascii);

/* Appends a number as Python's repr(float) does: the shortest digits that read back, 1.0, 1e+16, nan, inf. */
int json_write_float(struct buf *out, double value);

#endif
