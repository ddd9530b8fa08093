#include "text/space.h"

#include "base/utf8.h"

int is_python_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
           c == 0x202F || c == 0x205F || c == 0x3000;
}

size_t space_length(const char *text, size_t n)
{
    uint32_t c;
    int length = utf8_decode(text, n, &c);
    return length > 0 && is_python_space(c) ? (size_t)length : 0;
}

void strip_space(const char *text, size_t *start, size_t *end, int left, int right)
{
    if (left)
        for (size_t length; *start < *end && (length = space_length(text + *start, *end - *start));)
            *start += length;
    while (right && *end > *start) {
        size_t at = *end - 1;
        while (at > *start && ((unsigned char)text[at] & 0xC0) == 0x80 && *end - at < 4)
            at--;
        if (space_length(text + at, *end - at) != *end - at)
            break;
        *end = at;
    }
}
