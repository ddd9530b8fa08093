#include "base/utf8.h"

int utf8_decode(const char *text, size_t n, uint32_t *code_point)
{
    const unsigned char *s = (const unsigned char *)text;
    if (n == 0)
        return 0;
    if (s[0] < 0x80) {
        *code_point = s[0];
        return 1;
    }
    int length = s[0] >= 0xF0 ? 4 : s[0] >= 0xE0 ? 3 : 2;
    if (s[0] < 0xC2 || s[0] > 0xF4)
        return -1;
    /* The second byte's range is what rules out overlong forms, surrogates and values above U+10FFFF. */
    unsigned low = s[0] == 0xE0 ? 0xA0 : s[0] == 0xF0 ? 0x90 : 0x80;
    unsigned high = s[0] == 0xED ? 0x9F : s[0] == 0xF4 ? 0x8F : 0xBF;
    uint32_t value = s[0] & (0xFFu >> (length + 1));
    for (int i = 1; i < length; i++) {
        if ((size_t)i >= n)
            return 0;
        if (s[i] < low || s[i] > high)
            return -i;
        value = value << 6 | (s[i] & 0x3Fu);
        low = 0x80;
        high = 0xBF;
    }
    *code_point = value;
    return length;
}

int utf8_encode(uint32_t c, char out[4])
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xC0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3F));
        return 2;
    }
    if (c < 0x10000) {
        if (c >= 0xD800 && c < 0xE000)
            return 0;
        out[0] = (char)(0xE0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 0x3F));
        out[2] = (char)(0x80 | (c & 0x3F));
        return 3;
    }
    if (c > 0x10FFFF)
        return 0;
    out[0] = (char)(0xF0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 0x3F));
    out[2] = (char)(0x80 | (c >> 6 & 0x3F));
    out[3] = (char)(0x80 | (c & 0x3F));
    return 4;
}

int utf8_valid(const char *text, size_t n)
{
    for (size_t i = 0; i < n;) {
        uint32_t c;
        int length = utf8_decode(text + i, n - i, &c);
        if (length <= 0)
            return 0;
        i += (size_t)length;
    }
    return 1;
}
