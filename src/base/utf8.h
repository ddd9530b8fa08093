/* UTF-8 by Unicode table 3-7. */
#ifndef BASE_UTF8_H
#define BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

#define UTF8_REPLACEMENT "\xEF\xBF\xBD" /* U+FFFD */

/* Reads one code point of [text, text + n). Returns its length 1..4, or minus the length (1..3) of the broken maximal subpart that starts here, or 0
 * when n is 0 or the bytes are the unfinished start of a sequence (which more bytes could complete). */
int utf8_decode(const char *text, size_t n, uint32_t *code_point);

/* Writes 1..4 bytes; returns how many (0 for a surrogate or a value above U+10FFFF). */
int utf8_encode(uint32_t code_point, char out[4]);

/* 1 when every byte belongs to a complete, valid sequence. */
int utf8_valid(const char *text, size_t n);

#endif
