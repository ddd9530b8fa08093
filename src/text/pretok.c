/* The qwen35 expression as a matcher: alternatives in order, each decided from the class of at most two code points, then a maximal run. */
#include <string.h>
#include <utf8proc.h>

#include "base/utf8.h"
#include "text/vocab_internal.h"

enum class { OTHER, LETTER, MARK, NUMBER, SPACE };

#define O OTHER
#define L LETTER
#define N NUMBER
#define S SPACE
static const uint8_t ascii_class[128] = {
    O, O, O, O, O, O, O, O, O, S, S, S, S, S, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, /* 00 */
    S, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, N, N, N, N, N, N, N, N, N, N, O, O, O, O, O, O, /* 20 */
    O, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, O, O, O, O, O, /* 40 */
    O, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, O, O, O, O, O, /* 60 */
};
#undef O
#undef L
#undef N
#undef S

static int is_white_space(uint32_t c) /* of those above ASCII */
{
    return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

static enum class class_of(uint32_t c)
{
    if (is_white_space(c))
        return SPACE;
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
        return LETTER;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
        return MARK;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
        return NUMBER;
    default:
        return OTHER;
    }
}

struct point {
    uint32_t c;
    size_t len;       /* bytes; 0 at the end of the text */
    enum class kind;
};

static inline struct point point_at(const char *text, size_t n, size_t i)
{
    struct point p = {0};
    if (i >= n)
        return p;
    unsigned char b = (unsigned char)text[i];
    if (b < 0x80)
        return (struct point){b, 1, (enum class)ascii_class[b]};
    int length = utf8_decode(text + i, n - i, &p.c);
    p.len = length > 0 ? (size_t)length : 1; /* callers pass valid text; a stray byte counts as OTHER */
    p.kind = length > 0 ? class_of(p.c) : OTHER;
    return p;
}

static int is_word(struct point p)
{
    return p.len && (p.kind == LETTER || p.kind == MARK);
}

static size_t run_of_word(const char *text, size_t n, size_t i)
{
    for (struct point p; is_word(p = point_at(text, n, i));)
        i += p.len;
    return i;
}

/* 's 't 're 've 'm 'll 'd, any case; U+017F folds to s. 0: none. */
static size_t contraction(const char *text, size_t n)
{
    if (text[0] != '\'' || n < 2)
        return 0;
    int a = text[1] | 32, b = n > 2 ? text[2] | 32 : 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l'))
        return 3;
    return n > 2 && memcmp(text + 1, "\xC5\xBF", 2) == 0 ? 3 : 0;
}

/* A run of white space begins at 0: through its last line end; else all of it at the end of the text; else all but the last, which belongs to what follows. */
static size_t white_space(const char *text, size_t n)
{
    size_t i = 0, last_start = 0, after_line_end = 0;
    for (struct point p; (p = point_at(text, n, i)).len && p.kind == SPACE; i += p.len) {
        last_start = i;
        if (p.c == '\r' || p.c == '\n')
            after_line_end = i + p.len;
    }
    if (after_line_end)
        return after_line_end;
    return i == n || last_start == 0 ? i : last_start;
}

size_t pretok_next(const char *text, size_t n)
{
    size_t i = contraction(text, n);
    if (i)
        return i;
    struct point c = point_at(text, n, 0), next = point_at(text, n, c.len);
    if (is_word(c))
        return run_of_word(text, n, 0);
    if (c.c != '\r' && c.c != '\n' && c.kind != NUMBER && is_word(next))
        return run_of_word(text, n, c.len);
    if (c.kind == NUMBER)
        return c.len;
    struct point first = c.c == ' ' ? next : c;
    if (first.len && first.kind == OTHER) {
        i = c.c == ' ' ? c.len : 0;
        for (struct point p; (p = point_at(text, n, i)).len && p.kind == OTHER;)
            i += p.len;
        while (i < n && (text[i] == '\r' || text[i] == '\n'))
            i++;
        return i;
    }
    return white_space(text, n);
}
