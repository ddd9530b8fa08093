/* White space as Python's str.isspace has it: what templates and replies strip. */
#ifndef TEXT_SPACE_H
#define TEXT_SPACE_H

#include <stddef.h>
#include <stdint.h>

int is_python_space(uint32_t code_point);

/* Bytes of the white-space code point at text[0], or 0 when there is none (n == 0 included). */
size_t space_length(const char *text, size_t n);

/* [*start, *end) loses the white space at its start (left) and end (right). */
void strip_space(const char *text, size_t *start, size_t *end, int left, int right);

#endif
