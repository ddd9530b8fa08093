/* The ladder of types (B72-B77). A schema string stays a string, whatever it looks like (B74). */
#include "text/argument.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "text/space.h"

enum { T_NULL = 1, T_INTEGER = 2, T_NUMBER = 4, T_BOOLEAN = 8, T_OBJECT = 16, T_ARRAY = 32, T_STRING = 64, T_OTHER = 128 };

#define MAX_SCHEMA_DEPTH 16

const json_t *argument_schema(const json_t *function, const char *key, size_t n)
{
    const json_t *properties = json_object_get(json_object_get(function, "parameters"), "properties");
    return json_is_object(properties) ? json_object_getn(properties, key, n) : NULL;
}

static int type_bit(const char *name)
{
    static const char *const names[] = {"null", "integer", "number", "boolean", "object", "array", "string"};
    for (int i = 0; i < 7; i++)
        if (name && strcmp(names[i], name) == 0)
            return 1 << i;
    return T_OTHER;
}

static int enum_types(const json_t *values)
{
    int types = 0;
    for (size_t i = 0; i < json_array_size(values); i++) {
        const json_t *v = json_array_get(values, i);
        types |= json_is_string(v) ? T_STRING : json_is_boolean(v) ? T_BOOLEAN : json_is_integer(v) ? T_INTEGER : json_is_real(v) ? T_NUMBER : json_is_null(v) ? T_NULL : 0;
    }
    return types;
}

/* The types a schema allows; 0 when it does not say. */
static int allowed_types(const json_t *schema, int depth)
{
    static const char *const unions[] = {"anyOf", "oneOf"};
    const json_t *type = json_object_get(schema, "type");
    int types = json_is_string(type) ? type_bit(json_string_value(type)) : 0;
    for (size_t i = 0; i < json_array_size(type); i++)
        types |= type_bit(json_string_value(json_array_get(type, i)));
    for (int u = 0; u < 2 && depth < MAX_SCHEMA_DEPTH; u++) {
        const json_t *list = json_object_get(schema, unions[u]);
        for (size_t i = 0; i < json_array_size(list); i++)
            types |= allowed_types(json_array_get(list, i), depth + 1);
    }
    return types ? types : enum_types(json_object_get(schema, "enum"));
}

int argument_streams(const json_t *schema)
{
    int types = allowed_types(schema, 0);
    return types == 0 || types == T_STRING;
}

/* 1 when text is a JSON number; *is_integer: without fraction and exponent. */
static int is_number(const char *text, size_t n, int *is_integer)
{
    size_t i = n && text[0] == '-', digits = i;
    *is_integer = 1;
    while (i < n && text[i] >= '0' && text[i] <= '9')
        i++;
    if (i == digits || (text[digits] == '0' && i > digits + 1))
        return 0;
    if (i < n && text[i] == '.') {
        size_t first = ++i;
        *is_integer = 0;
        while (i < n && text[i] >= '0' && text[i] <= '9')
            i++;
        if (i == first)
            return 0;
    }
    if (i < n && (text[i] | 32) == 'e') {
        *is_integer = 0;
        i++;
        if (i < n && (text[i] == '+' || text[i] == '-'))
            i++;
        size_t first = i;
        while (i < n && text[i] >= '0' && text[i] <= '9')
            i++;
        if (i == first)
            return 0;
    }
    return i == n;
}

/* A number as Python would read and print it: whole numbers keep all their digits. */
static int put_number(const char *text, size_t n, int is_integer, int as_integer, struct buf *out)
{
    char copy[400];
    if (is_integer) {
        if (n == 2 && memcmp(text, "-0", 2) == 0)
            return buf_add_char(out, '0') == 0;
        return buf_add(out, text, n) == 0;
    }
    if (n >= sizeof copy)
        return 0;
    memcpy(copy, text, n);
    copy[n] = 0;
    double value = strtod(copy, NULL);
    if (!as_integer) {
        json_write_float(out, value);
        return 1;
    }
    if (!isfinite(value) || value != floor(value))
        return 0;
    buf_addf(out, "%.0f", value == 0 ? 0.0 : value);
    return 1;
}

static int is_word(const char *text, size_t n, const char *a, const char *b)
{
    return (n == strlen(a) && memcmp(text, a, n) == 0) || (n == strlen(b) && memcmp(text, b, n) == 0);
}

/* Tries one type; 1 when the text is of it and was written. */
static int try_type(int type, const char *text, size_t n, struct buf *out)
{
    int is_integer;
    json_t *value = NULL;
    struct err ignored;
    switch (type) {
    case T_NULL:
        return is_word(text, n, "null", "None") && buf_add_str(out, "null") == 0;
    case T_INTEGER:
    case T_NUMBER:
        return is_number(text, n, &is_integer) && put_number(text, n, is_integer, type == T_INTEGER, out);
    case T_BOOLEAN:
        if (is_word(text, n, "true", "True"))
            return buf_add_str(out, "true") == 0;
        return is_word(text, n, "false", "False") && buf_add_str(out, "false") == 0;
    case T_OBJECT:
    case T_ARRAY:
        if (n == 0 || text[0] != (type == T_OBJECT ? '{' : '[') || json_parse(text, n, &value, &ignored) < 0)
            return 0;
        json_write_python(out, value, -1);
        json_decref(value);
        return 1;
    default:
        return 0;
    }
}

int argument_convert(const char *raw, size_t n, const json_t *schema, struct buf *out)
{
    int types = allowed_types(schema, 0);
    size_t start = 0, end = n;
    strip_space(raw, &start, &end, 1, 1);
    for (int type = T_NULL; type <= T_ARRAY; type <<= 1)
        if ((types & type) && try_type(type, raw + start, end - start, out))
            return out->failed;
    return json_write_string(out, raw, n, 0);
}
