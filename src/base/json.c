/* jansson does the parsing; the printing is ours because templates and tool calls need Python's form to the byte. */
#include "base/json.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/mem.h"

#define MAX_DEPTH 200

static void *json_alloc(size_t n)
{
    return mem_alloc(MEM_JSON, n);
}

void json_use_mem(void)
{
    json_set_alloc_funcs(json_alloc, mem_free);
    json_object_seed(0);
}

/* Depth is checked before jansson recurses. */
static int depth_check(const char *text, size_t n, struct err *err)
{
    int depth = 0, in_string = 0;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = 0;
        } else if (c == '"') {
            in_string = 1;
        } else if (c == '[' || c == '{') {
            if (++depth > MAX_DEPTH)
                return err_set(err, ERR_LIMIT, "JSON nests deeper than %d at byte %zu", MAX_DEPTH, i);
        } else if (c == ']' || c == '}') {
            depth--;
        }
    }
    return 0;
}

#define PREFIX_BYTES 24

/* Random once in a process, so that no text from outside can pass for a number. */
static char big_prefix[PREFIX_BYTES + 1];
static pthread_once_t big_once = PTHREAD_ONCE_INIT;

static void big_make_prefix(void)
{
    unsigned char random[PREFIX_BYTES];
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        memset(random, 7, sizeof random);
    for (int i = 0; i < PREFIX_BYTES; i++)
        big_prefix[i] = (char)('a' + random[i] % 26);
}

const char *json_big_integer(const json_t *value, size_t *n)
{
    pthread_once(&big_once, big_make_prefix);
    if (!json_is_string(value) || json_string_length(value) <= PREFIX_BYTES || memcmp(json_string_value(value), big_prefix, PREFIX_BYTES) != 0)
        return NULL;
    *n = json_string_length(value) - PREFIX_BYTES;
    return json_string_value(value) + PREFIX_BYTES;
}

/* Bytes of a whole number literal at text[0] that may not fit 64 bits; 0 when there is none. */
static size_t big_literal(const char *text, size_t n)
{
    size_t i = text[0] == '-', first = i;
    while (i < n && text[i] >= '0' && text[i] <= '9')
        i++;
    if (i - first < 19 || text[first] == '0' || (i < n && (text[i] == '.' || (text[i] | 32) == 'e')))
        return 0;
    return i;
}

/* Copies the text with such literals put into strings. Returns how many there are. */
static int quote_big_literals(const char *text, size_t n, struct buf *out)
{
    int in_string = 0, found = 0;
    size_t start = 0;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (in_string) {
            i += c == '\\';
            in_string = c != '"';
            continue;
        }
        in_string = c == '"';
        int begins = c == '-' || (c >= '0' && c <= '9');
        size_t length = begins ? big_literal(text + i, n - i) : 0;
        if (length) {
            buf_add(out, text + start, i - start);
            buf_addf(out, "\"%s%.*s\"", big_prefix, (int)length, text + i);
            start = i + length;
            found++;
        }
        while (begins && i + 1 < n && ((text[i + 1] >= '0' && text[i + 1] <= '9') || (text[i + 1] | 32) == 'e' || text[i + 1] == '.' || text[i + 1] == '+' || text[i + 1] == '-'))
            i++; /* the rest of the number */
    }
    buf_add(out, text + start, n - start);
    return found;
}

int json_parse(const char *text, size_t n, json_t **out, struct err *err)
{
    json_error_t why;
    struct buf quoted;
    TRY(depth_check(text, n, err));
    pthread_once(&big_once, big_make_prefix);
    json_t *value = json_loadb(text, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
    if (!value && json_error_code(&why) == json_error_numeric_overflow) {
        buf_init(&quoted, MEM_JSON, 8 * n + 1024);
        if (quote_big_literals(text, n, &quoted) && !quoted.failed)
            value = json_loadb(buf_str(&quoted), quoted.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
        buf_free(&quoted);
    }
    if (!value) {
        if (n == 0)
            return err_set(err, ERR_FORMAT, "JSON expected, got nothing");
        return err_set(err, ERR_FORMAT, "not valid JSON at line %d, column %d (byte %d): %s", why.line, why.column, why.position, why.text);
    }
    *out = value;
    return 0;
}

int json_write_escaped(struct buf *out, const char *text, size_t n, int ascii)
{
    static const char hex[] = "0123456789abcdef";
    size_t start = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c >= 0x20 && c != '"' && c != '\\' && !(ascii && c >= 0x7F))
            continue;
        buf_add(out, text + start, i - start);
        start = i + 1;
        const char *short_form = c == '"' ? "\\\"" : c == '\\' ? "\\\\" : c == '\n' ? "\\n" : c == '\r' ? "\\r" : c == '\t' ? "\\t" : c == '\b' ? "\\b" : c == '\f' ? "\\f" : NULL;
        if (short_form) {
            buf_add_str(out, short_form);
        } else if (c < 0x80) {
            char escape[6] = {'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]};
            buf_add(out, escape, 6);
        } else { /* jansson's and our strings are valid UTF-8: lead byte tells the length */
            size_t length = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : 2;
            uint32_t value = c & (0xFFu >> (length + 1));
            for (size_t k = 1; k < length && i + k < n; k++)
                value = value << 6 | ((unsigned char)text[i + k] & 0x3Fu);
            if (value >= 0x10000)
                buf_addf(out, "\\u%04x\\u%04x", 0xD800 + ((value - 0x10000) >> 10), 0xDC00 + ((value - 0x10000) & 0x3FF));
            else
                buf_addf(out, "\\u%04x", value);
            i += length - 1;
            start = i + 1;
        }
    }
    if (start < n)
        buf_add(out, text + start, n - start);
    return out->failed;
}

int json_write_string(struct buf *out, const char *text, size_t n, int ascii)
{
    buf_add_char(out, '"');
    json_write_escaped(out, text, n, ascii);
    return buf_add_char(out, '"');
}

/* Adds one unit to the last digit of "d.ddde+xx", away from zero; 0 when that would lengthen it. */
static int increment_digits(char *text)
{
    char *last = strchr(text, 'e') - 1;
    while (last >= text && (*last == '9' || *last == '.')) {
        if (*last == '9')
            *last = '0';
        last--;
    }
    if (last < text || *last == '-')
        return 0;
    ++*last;
    return 1;
}

int json_write_float(struct buf *out, double value)
{
    if (isnan(value))
        return buf_add_str(out, "NaN");
    if (isinf(value))
        return buf_add_str(out, value < 0 ? "-Infinity" : "Infinity");
    char text[40];
    int digits = 1;
    for (; digits <= 17; digits++) { /* the shortest form that reads back */
        snprintf(text, sizeof text, "%.*e", digits - 1, value);
        if (strtod(text, NULL) == value)
            break;
        /* At a power of two the gap above is twice the gap below, so the next form up can read back where the nearest one does not. */
        if (increment_digits(text) && strtod(text, NULL) == value)
            break;
    }
    char *e = strchr(text, 'e');
    int exponent = (int)strtol(e + 1, NULL, 10);
    if (exponent < -4 || exponent >= 16) {
        *e = 0;
        return buf_addf(out, "%se%c%02d", text, exponent < 0 ? '-' : '+', abs(exponent));
    }
    int decimals = digits - 1 - exponent;
    return buf_addf(out, "%.*f", decimals > 1 ? decimals : 1, value);
}

static void write_break(struct buf *out, int indent, int depth)
{
    if (indent < 0)
        return;
    buf_add_char(out, '\n');
    for (int i = 0; i < indent * depth; i++)
        buf_add_char(out, ' ');
}

static void write_value(struct buf *out, const json_t *value, int indent, int depth)
{
    const char *separator = indent < 0 ? ", " : ",", *digits;
    size_t i = 0, n_digits;
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        buf_add_char(out, '{');
        for (void *it = json_object_iter((json_t *)value); it; it = json_object_iter_next((json_t *)value, it)) {
            if (i++)
                buf_add_str(out, separator);
            write_break(out, indent, depth + 1);
            json_write_string(out, json_object_iter_key(it), strlen(json_object_iter_key(it)), 0);
            buf_add_str(out, ": ");
            write_value(out, json_object_iter_value(it), indent, depth + 1);
        }
        if (i)
            write_break(out, indent, depth);
        buf_add_char(out, '}');
        break;
    case JSON_ARRAY:
        buf_add_char(out, '[');
        for (; i < json_array_size(value); i++) {
            if (i)
                buf_add_str(out, separator);
            write_break(out, indent, depth + 1);
            write_value(out, json_array_get(value, i), indent, depth + 1);
        }
        if (i)
            write_break(out, indent, depth);
        buf_add_char(out, ']');
        break;
    case JSON_STRING:
        if ((digits = json_big_integer(value, &n_digits)))
            buf_add(out, digits, n_digits);
        else
            json_write_string(out, json_string_value(value), json_string_length(value), 0);
        break;
    case JSON_INTEGER:
        buf_addf(out, "%lld", (long long)json_integer_value(value));
        break;
    case JSON_REAL:
        json_write_float(out, json_real_value(value));
        break;
    case JSON_TRUE:
        buf_add_str(out, "true");
        break;
    case JSON_FALSE:
        buf_add_str(out, "false");
        break;
    case JSON_NULL:
        buf_add_str(out, "null");
        break;
    }
}

int json_write_python(struct buf *out, const json_t *value, int indent)
{
    write_value(out, value, indent, 0);
    return out->failed;
}
