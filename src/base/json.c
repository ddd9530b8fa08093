/* Printing is ours because templates and tool calls need Python's form to the byte; reading is in json_parse.c. */
#include "base/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static void *json_alloc(size_t n)
{
    return mem_alloc(MEM_JSON, n);
}

void json_use_mem(void)
{
    json_set_alloc_funcs(json_alloc, mem_free);
    json_object_seed(0);
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
