/* Template text to tokens, with trim_blocks and lstrip_blocks: a line end behind a block tag goes, blanks before a tag that begins its line go, - and + on a tag's ends override. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/jinja_ast.h"
#include "text/space.h"

struct lexer {
    struct arena *arena;
    struct failure *f;
    const char *s;
    size_t n, at;
    int line, line_starting;
    struct token_jinja *tokens;
    size_t n_tokens, cap;
};

static struct token_jinja *push(struct lexer *l, enum token_kind_jinja kind, struct str text)
{
    if (l->n_tokens == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 256;
        struct token_jinja *grown = arena_alloc(l->arena, cap * sizeof *grown);
        if (l->n_tokens)
            memcpy(grown, l->tokens, l->n_tokens * sizeof *grown);
        l->tokens = grown;
        l->cap = cap;
    }
    l->tokens[l->n_tokens] = (struct token_jinja){.kind = kind, .line = l->line, .text = text};
    return &l->tokens[l->n_tokens++];
}

static int looking_at(const struct lexer *l, size_t at, const char *word)
{
    size_t n = strlen(word);
    return l->n - at >= n && at <= l->n && memcmp(l->s + at, word, n) == 0;
}

static size_t skip_blank(const struct lexer *l, size_t at)
{
    for (size_t length; at < l->n && (length = space_length(l->s + at, l->n - at));)
        at += length;
    return at;
}

/* Text before a tag whose sign is '-', '+' or 0. */
static void push_text(struct lexer *l, size_t from, size_t to, char sign, int is_variable)
{
    size_t end = to;
    if (sign == '-') {
        size_t start = from;
        strip_space(l->s, &start, &end, 0, 1);
    } else if (sign != '+' && !is_variable) {
        size_t line = to;
        while (line > from && l->s[line - 1] != '\n')
            line--;
        if ((line > from || l->line_starting) && line < to && skip_blank(l, line) >= to)
            end = line;
    }
    if (end > from)
        push(l, TOK_TEXT, str_of(l->s + from, end - from));
    for (size_t i = from; i < to; i++)
        l->line += l->s[i] == '\n';
}

static char sign_at(const struct lexer *l, size_t at)
{
    return at < l->n && (l->s[at] == '-' || l->s[at] == '+') ? l->s[at] : 0;
}

/* Behind a tag's end: what -, + and trim_blocks swallow. */
static void after_tag(struct lexer *l, char sign, int trims)
{
    size_t from = l->at;
    if (sign == '-')
        l->at = skip_blank(l, l->at);
    else if (sign != '+' && trims && l->at < l->n && l->s[l->at] == '\n')
        l->at++;
    for (size_t i = from; i < l->at; i++)
        l->line += l->s[i] == '\n';
    l->line_starting = l->at > from && l->s[l->at - 1] == '\n';
}

static void lex_comment(struct lexer *l)
{
    size_t at = l->at + 2;
    while (at + 1 < l->n && !(l->s[at] == '#' && l->s[at + 1] == '}')) {
        l->line += l->s[at] == '\n';
        at++;
    }
    if (at + 1 >= l->n)
        jinja_fail(l->f, JINJA_SYNTAX, "line %d: a comment is not closed", l->line);
    char sign = at > l->at + 2 ? sign_at(l, at - 1) : 0;
    l->at = at + 2;
    after_tag(l, sign, 1);
}

/* {% raw %} at l->at? Then its text up to {% endraw %}, as it is. */
static int lex_raw(struct lexer *l)
{
    size_t at = l->at + 2;
    if (sign_at(l, at))
        at++;
    at = skip_blank(l, at);
    if (!looking_at(l, at, "raw"))
        return 0;
    at = skip_blank(l, at + 3);
    char begin_sign = looking_at(l, at, "-%}") ? '-' : 0;
    if (!begin_sign && !looking_at(l, at, "%}"))
        return 0;
    l->at = at + (begin_sign ? 3 : 2);
    after_tag(l, begin_sign, 0);
    for (size_t start = l->at, p = l->at; p + 1 < l->n; p++) {
        if (l->s[p] != '{' || l->s[p + 1] != '%')
            continue;
        size_t q = p + 2;
        char sign = sign_at(l, q);
        q = skip_blank(l, q + (sign != 0));
        if (!looking_at(l, q, "endraw"))
            continue;
        q = skip_blank(l, q + 6);
        char end_sign = sign_at(l, q);
        q += end_sign != 0;
        if (!looking_at(l, q, "%}"))
            continue;
        push_text(l, start, p, sign, 0);
        l->at = q + 2;
        after_tag(l, end_sign, 1);
        return 1;
    }
    jinja_fail(l->f, JINJA_SYNTAX, "line %d: a raw block is not closed", l->line);
}

static int is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static int is_name_start(unsigned char c)
{
    return c == '_' || c >= 0x80 || ((c | 32) >= 'a' && (c | 32) <= 'z');
}

/* Digits of a base with single underscores between; copies them without. */
static size_t take_digits(const struct lexer *l, size_t at, int base, char *out, size_t *n)
{
    while (at < l->n) {
        char c = l->s[at];
        int value = is_digit(c) ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : 99;
        if (c == '_' && *n && at + 1 < l->n) {
            at++;
            continue;
        }
        if (value >= base || *n >= 60)
            break;
        out[(*n)++] = c;
        out[*n] = 0;
        at++;
    }
    return at;
}

static void lex_number(struct lexer *l)
{
    char text[130] = "";
    size_t n = 0, at = l->at;
    int base = 10;
    if (l->s[at] == '0' && at + 1 < l->n) {
        char c = (char)(l->s[at + 1] | 32);
        base = c == 'x' ? 16 : c == 'b' ? 2 : c == 'o' ? 8 : 10;
    }
    if (base != 10)
        at += 2;
    at = take_digits(l, at, base, text, &n);
    int is_float = 0;
    if (base == 10 && at + 1 < l->n && l->s[at] == '.' && is_digit(l->s[at + 1])) {
        is_float = 1;
        text[n++] = '.';
        at = take_digits(l, at + 1, 10, text, &n);
    }
    size_t sign = at + 1 < l->n && (l->s[at + 1] == '+' || l->s[at + 1] == '-');
    if (base == 10 && at < l->n && (l->s[at] | 32) == 'e' && at + 1 + sign < l->n && is_digit(l->s[at + 1 + sign])) {
        is_float = 1;
        text[n++] = 'e';
        if (sign)
            text[n++] = l->s[at + 1];
        at = take_digits(l, at + 1 + sign, 10, text, &n);
    }
    struct token_jinja *t = push(l, is_float ? TOK_FLOAT : TOK_INT, str_of(l->s + l->at, at - l->at));
    if (is_float)
        t->f = strtod(text, NULL);
    else if (n > 18 || n == 0)
        jinja_fail(l->f, JINJA_SYNTAX, "line %d: a number is too large", l->line);
    else
        t->i = strtoll(text, NULL, base);
    l->at = at;
}

static int hex_value(char c)
{
    return is_digit(c) ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* \xHH, \uHHHH, \UHHHHHHHH at s[at] (behind the backslash); returns how many characters, 0 when it is none. */
static size_t hex_escape(const char *s, size_t n, uint32_t *c)
{
    size_t digits = s[0] == 'x' ? 2 : s[0] == 'u' ? 4 : s[0] == 'U' ? 8 : 0;
    if (!digits || n < 1 + digits)
        return 0;
    *c = 0;
    for (size_t i = 1; i <= digits; i++) {
        if (hex_value(s[i]) < 0)
            return 0;
        *c = *c << 4 | (uint32_t)hex_value(s[i]);
    }
    return 1 + digits;
}

static struct str unescape(struct lexer *l, const char *s, size_t n)
{
    static const char from[] = "abfnrtv\\'\"", to[] = "\a\b\f\n\r\t\v\\'\"";
    char *out = arena_alloc(l->arena, n + 1);
    size_t used = 0;
    for (size_t i = 0; i < n; i++) {
        if (s[i] != '\\' || i + 1 >= n) {
            out[used++] = s[i];
            continue;
        }
        const char *simple = memchr(from, s[i + 1], sizeof from - 1);
        uint32_t c;
        size_t length = hex_escape(s + i + 1, n - i - 1, &c);
        if (s[i + 1] == '\n') {
            i++;
        } else if (simple) {
            out[used++] = to[simple - from];
            i++;
        } else if (length) {
            char encoded[4];
            int bytes = utf8_encode(c, encoded);
            memcpy(out + used, encoded, (size_t)bytes);
            used += (size_t)bytes;
            i += length;
        } else {
            out[used++] = s[i];
        }
    }
    return str_of(out, used);
}

static void lex_string(struct lexer *l)
{
    char quote = l->s[l->at];
    size_t at = l->at + 1;
    while (at < l->n && l->s[at] != quote) {
        l->line += l->s[at] == '\n';
        at += l->s[at] == '\\' ? 2 : 1;
    }
    if (at >= l->n)
        jinja_fail(l->f, JINJA_SYNTAX, "line %d: a string is not closed", l->line);
    push(l, TOK_STRING, unescape(l, l->s + l->at + 1, at - l->at - 1));
    l->at = at + 1;
}

static void lex_operator(struct lexer *l)
{
    static const char *const operators[] = {"//", "**", "==", "!=", "<=", ">=", "+", "-", "/", "*", "%", "~", "<", ">", "=", "(", ")", "[", "]", "{", "}", ".", ":", ",", "|", ";"};
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++)
        if (looking_at(l, l->at, operators[i])) {
            push(l, TOK_OP, str_of(operators[i], strlen(operators[i])));
            l->at += strlen(operators[i]);
            return;
        }
    jinja_fail(l->f, JINJA_SYNTAX, "line %d: unexpected character '%c'", l->line, l->s[l->at]);
}

/* The inside of {% %} or {{ }} up to its end. */
static void lex_tag(struct lexer *l, int is_variable)
{
    const char *end = is_variable ? "}}" : "%}";
    int depth = 0;
    for (;;) {
        for (size_t next = skip_blank(l, l->at); l->at < next; l->at++)
            l->line += l->s[l->at] == '\n';
        if (l->at >= l->n)
            jinja_fail(l->f, JINJA_SYNTAX, "line %d: the template ends inside a tag", l->line);
        char sign = sign_at(l, l->at), c = l->s[l->at];
        if (is_variable && sign == '+')
            sign = 0;
        if (depth == 0 && looking_at(l, l->at + (sign != 0), end)) {
            push(l, is_variable ? TOK_VAR_END : TOK_BLOCK_END, str_of(end, 2));
            l->at += 2 + (sign != 0);
            after_tag(l, sign, !is_variable);
            return;
        }
        if (is_digit(c)) {
            lex_number(l);
        } else if (c == '"' || c == '\'') {
            lex_string(l);
        } else if (is_name_start((unsigned char)c)) {
            size_t start = l->at;
            while (l->at < l->n && (is_name_start((unsigned char)l->s[l->at]) || is_digit(l->s[l->at])))
                l->at++;
            push(l, TOK_NAME, str_of(l->s + start, l->at - start));
        } else {
            depth += c == '(' || c == '[' || c == '{';
            depth -= c == ')' || c == ']' || c == '}';
            if (depth < 0)
                jinja_fail(l->f, JINJA_SYNTAX, "line %d: unexpected '%c'", l->line, c);
            lex_operator(l);
        }
    }
}

/* Line ends become \n, and one at the very end goes. */
static void normalise(struct lexer *l, const char *source, size_t n)
{
    char *copy = arena_alloc(l->arena, n + 1);
    for (size_t i = 0; i < n; i++) {
        if (source[i] == '\r') {
            copy[l->n++] = '\n';
            i += i + 1 < n && source[i + 1] == '\n';
        } else {
            copy[l->n++] = source[i];
        }
    }
    if (l->n && copy[l->n - 1] == '\n')
        l->n--;
    l->s = copy;
}

struct token_jinja *jinja_lex(struct arena *arena, struct failure *f, const char *source, size_t n)
{
    struct lexer l = {.arena = arena, .f = f, .line = 1, .line_starting = 1};
    normalise(&l, source, n);
    size_t start = 0;
    while (l.at < l.n) {
        char kind = l.at + 1 < l.n && l.s[l.at] == '{' ? l.s[l.at + 1] : 0;
        if (kind != '{' && kind != '%' && kind != '#') {
            l.at++;
            continue;
        }
        char sign = sign_at(&l, l.at + 2);
        if (kind == '{' && sign == '+')
            sign = 0;
        push_text(&l, start, l.at, sign, kind == '{');
        if (kind == '#') {
            lex_comment(&l);
        } else if (kind == '{' || !lex_raw(&l)) {
            push(&l, kind == '{' ? TOK_VAR_BEGIN : TOK_BLOCK_BEGIN, str_of("", 0));
            l.at += 2 + (sign != 0);
            lex_tag(&l, kind == '{');
        }
        start = l.at;
    }
    if (l.n > start)
        push(&l, TOK_TEXT, str_of(l.s + start, l.n - start));
    push(&l, TOK_END, str_of("", 0));
    return l.tokens;
}
