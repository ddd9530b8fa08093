/* The JSON of a value is read and written in one pass, so that numbers of any size keep their digits: integers pass through as they stand, floats take
 * Python's shortest form, a repeated key keeps its first place and its last value. Invariant: what was written is JSON whenever the reader did not refuse. */
#include "text/reply_value.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/utf8.h"
#include "text/space.h"

#define MAX_DEPTH 199 /* with the object of arguments around it, what json_parse takes */
#define MAX_INTEGER_DIGITS 4300 /* Python's own limit: a longer integer is not a number to it */
#define SCHEMA_DEPTH 200

static unsigned type_bit(const json_t *name)
{
    static const char *const names[] = {"null", "integer", "number", "boolean", "object", "array", "string"};
    for (size_t i = 0; json_is_text(name) && i < sizeof names / sizeof *names; i++)
        if (strcmp(json_string_value(name), names[i]) == 0)
            return 1u << i;
    return 0;
}

static unsigned type_of_constant(const json_t *value)
{
    size_t n;
    switch (json_typeof(value)) {
    case JSON_STRING:
        return json_big_integer(value, &n) ? VALUE_INTEGER : VALUE_STRING;
    case JSON_INTEGER:
        return VALUE_INTEGER;
    case JSON_REAL:
        return VALUE_NUMBER;
    case JSON_TRUE:
    case JSON_FALSE:
        return VALUE_BOOLEAN;
    case JSON_NULL:
        return VALUE_NULL;
    default:
        return 0;
    }
}

static void collect_types(const json_t *schema, struct value_types *out, int depth)
{
    if (!json_is_object(schema) || depth > SCHEMA_DEPTH)
        return;
    struct value_types own = {0};
    const json_t *type = json_object_get(schema, "type"), *values = json_object_get(schema, "enum");
    if (json_is_text(type)) {
        own = (struct value_types){type_bit(type), 1};
    } else if (json_is_array(type)) {
        own.n = (int)json_array_size(type);
        for (size_t i = 0; i < json_array_size(type); i++)
            own.allowed |= type_bit(json_array_get(type, i));
    }
    for (int k = 0; k < 2; k++) {
        const json_t *list = json_object_get(schema, k ? "oneOf" : "anyOf");
        for (size_t i = 0; i < json_array_size(list); i++)
            collect_types(json_array_get(list, i), &own, depth + 1);
    }
    if (own.n == 0)
        for (size_t i = 0; i < json_array_size(values); i++) {
            unsigned bit = type_of_constant(json_array_get(values, i));
            own.allowed |= bit;
            own.n += bit != 0;
        }
    out->allowed |= own.allowed;
    out->n += own.n;
}

struct value_types value_types_of(const json_t *schema)
{
    struct value_types types = {0};
    collect_types(schema, &types, 0);
    return types;
}

int value_is_string(struct value_types types)
{
    return types.n == 0 || (types.n == 1 && types.allowed == VALUE_STRING);
}

enum kind { KIND_BAD, KIND_NULL, KIND_BOOLEAN, KIND_INTEGER, KIND_FLOAT, KIND_STRING, KIND_ARRAY, KIND_OBJECT };

struct reader {
    const char *p, *end;
    struct buf *out;
    double number; /* of the last KIND_FLOAT */
};

static enum kind read_value(struct reader *r, int depth);

static void skip_space(struct reader *r)
{
    while (r->p < r->end && (*r->p == ' ' || *r->p == '\t' || *r->p == '\n' || *r->p == '\r'))
        r->p++;
}

static int take(struct reader *r, char c)
{
    if (r->p == r->end || *r->p != c)
        return 0;
    r->p++;
    return 1;
}

static int take_word(struct reader *r, const char *word)
{
    size_t n = strlen(word);
    if ((size_t)(r->end - r->p) < n || memcmp(r->p, word, n) != 0)
        return 0;
    r->p += n;
    return 1;
}

static size_t take_digits(struct reader *r)
{
    const char *start = r->p;
    while (r->p < r->end && *r->p >= '0' && *r->p <= '9')
        r->p++;
    return (size_t)(r->p - start);
}

/* Four hexadecimal digits, or -1. */
static int32_t take_hex(struct reader *r)
{
    int32_t value = 0;
    if (r->end - r->p < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        char c = *r->p++;
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (digit < 0)
            return -1;
        value = value << 4 | digit;
    }
    return value;
}

/* After the backslash. Half a surrogate pair alone is no character: it becomes U+FFFD. */
static int read_escape(struct reader *r)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (r->p == r->end)
        return 0;
    char c = *r->p++, text[4];
    if (c != 'u') {
        const char *at = c ? strchr(from, c) : NULL;
        if (at)
            json_write_escaped(r->out, &to[at - from], 1, 0);
        return at != NULL;
    }
    int32_t code = take_hex(r);
    if (code < 0)
        return 0;
    if (code >= 0xD800 && code < 0xDC00 && r->end - r->p >= 6 && r->p[0] == '\\' && r->p[1] == 'u') {
        const char *back = r->p;
        r->p += 2;
        int32_t low = take_hex(r);
        if (low >= 0xDC00 && low < 0xE000)
            code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        else
            r->p = back;
    }
    int n = utf8_encode((uint32_t)code, text);
    if (n == 0)
        return buf_add_str(r->out, UTF8_REPLACEMENT) == 0;
    json_write_escaped(r->out, text, (size_t)n, 0);
    return 1;
}

/* After the opening quote. */
static enum kind read_string(struct reader *r)
{
    buf_add_char(r->out, '"');
    for (const char *run = r->p; r->p < r->end; run = r->p) {
        while (r->p < r->end && (unsigned char)*r->p >= 0x20 && *r->p != '"' && *r->p != '\\')
            r->p++;
        buf_add(r->out, run, (size_t)(r->p - run));
        if (take(r, '"')) {
            buf_add_char(r->out, '"');
            return KIND_STRING;
        }
        if (!take(r, '\\') || !read_escape(r))
            return KIND_BAD;
    }
    return KIND_BAD;
}

/* A number no double holds counts as the constant Infinity: null. */
static enum kind read_number(struct reader *r)
{
    const char *start = r->p;
    if (take_word(r, "-Infinity")) {
        buf_add_str(r->out, "null");
        return KIND_NULL;
    }
    take(r, '-');
    const char *digits = r->p;
    size_t n = take_digits(r);
    if (n == 0)
        return KIND_BAD;
    if (*digits == '0') { /* nothing follows a leading zero; what does is refused by whoever reads on */
        r->p = digits + 1;
        n = 1;
    }
    const char *whole = r->p;
    int is_float = 0;
    if (take(r, '.')) {
        if (take_digits(r)) {
            is_float = 1;
            whole = r->p;
        } else {
            r->p = whole;
        }
    }
    if (take(r, 'e') || take(r, 'E')) {
        if (!take(r, '-'))
            take(r, '+');
        if (take_digits(r))
            is_float = 1;
        else
            r->p = whole;
    }
    if (!is_float) {
        if (n > MAX_INTEGER_DIGITS)
            return KIND_BAD;
        if (n == 1 && *digits == '0')
            start = digits; /* -0 is 0 */
        buf_add(r->out, start, (size_t)(r->p - start));
        return KIND_INTEGER;
    }
    r->number = strtod(start, NULL);
    if (!isfinite(r->number)) {
        buf_add_str(r->out, "null");
        return KIND_NULL;
    }
    json_write_float(r->out, r->number);
    return KIND_FLOAT;
}

/* After the opening bracket. */
static enum kind read_array(struct reader *r, int depth)
{
    buf_add_char(r->out, '[');
    skip_space(r);
    for (int first = 1; !(first && take(r, ']')); first = 0) {
        if (!first)
            buf_add_str(r->out, ", ");
        if (read_value(r, depth) == KIND_BAD)
            return KIND_BAD;
        skip_space(r);
        if (take(r, ']'))
            break;
        if (!take(r, ','))
            return KIND_BAD;
        skip_space(r);
    }
    buf_add_char(r->out, ']');
    return KIND_ARRAY;
}

struct member {          /* offsets into the output */
    size_t key, key_n;
    size_t value, value_n;
};

/* The members of one object; `index` finds one by its key, written out. */
struct members {
    struct member *list;
    size_t n, cap;
    json_t *index;
    int repeated;
};

/* Remembers a member that was just written. */
static int members_add(struct members *m, const struct buf *out, const struct member *new)
{
    const char *key = out->data + new->key;
    if (!m->index && !(m->index = json_object()))
        return 0;
    const json_t *seen = json_object_getn(m->index, key, new->key_n);
    if (seen) {
        struct member *first = &m->list[json_integer_value(seen)];
        first->value = new->value;
        first->value_n = new->value_n;
        m->repeated = 1;
        return 1;
    }
    if (m->n == m->cap) {
        size_t cap = m->cap ? 2 * m->cap : 8;
        struct member *grown = mem_realloc(MEM_TEXT, m->list, cap * sizeof *grown);
        if (!grown)
            return 0;
        m->list = grown;
        m->cap = cap;
    }
    m->list[m->n] = *new;
    return json_object_setn_new_nocheck(m->index, key, new->key_n, json_integer((json_int_t)m->n++)) == 0;
}

/* Writes the object again from `start` with each key once. */
static void members_rewrite(const struct members *m, struct buf *out, size_t start)
{
    struct buf copy;
    buf_init(&copy, MEM_TEXT, out->max);
    for (size_t i = 0; i < m->n; i++) {
        const struct member *one = &m->list[i];
        buf_add_str(&copy, i ? ", " : "{");
        buf_add(&copy, out->data + one->key, one->key_n);
        buf_add_str(&copy, ": ");
        buf_add(&copy, out->data + one->value, one->value_n);
    }
    if (copy.failed) {
        out->failed = copy.failed;
    } else {
        out->len = start;
        buf_add(out, copy.data, copy.len);
    }
    buf_free(&copy);
}

/* One `"key": value`. */
static int read_member(struct reader *r, struct members *m, int depth)
{
    struct member new = {.key = r->out->len};
    if (!take(r, '"') || read_string(r) == KIND_BAD)
        return 0;
    new.key_n = r->out->len - new.key;
    skip_space(r);
    if (!take(r, ':'))
        return 0;
    buf_add_str(r->out, ": ");
    skip_space(r);
    new.value = r->out->len;
    if (read_value(r, depth) == KIND_BAD || r->out->failed)
        return 0;
    new.value_n = r->out->len - new.value;
    if (!members_add(m, r->out, &new)) {
        r->out->failed = ERR_NO_MEMORY;
        return 0;
    }
    return 1;
}

/* After the opening brace. */
static enum kind read_object(struct reader *r, int depth)
{
    struct members m = {0};
    size_t start = r->out->len;
    int good = 1;
    buf_add_char(r->out, '{');
    skip_space(r);
    for (int first = 1; !(first && take(r, '}')); first = 0) {
        if (!first)
            buf_add_str(r->out, ", ");
        good = read_member(r, &m, depth);
        if (!good)
            break;
        skip_space(r);
        if (take(r, '}'))
            break;
        good = take(r, ',');
        if (!good)
            break;
        skip_space(r);
    }
    if (good && m.repeated)
        members_rewrite(&m, r->out, start);
    buf_add_char(r->out, '}');
    json_decref(m.index);
    mem_free(m.list);
    return good ? KIND_OBJECT : KIND_BAD;
}

static enum kind read_value(struct reader *r, int depth)
{
    if (r->p == r->end || depth >= MAX_DEPTH)
        return KIND_BAD;
    if (take(r, '"'))
        return read_string(r);
    if (take(r, '{'))
        return read_object(r, depth + 1);
    if (take(r, '['))
        return read_array(r, depth + 1);
    static const struct {
        const char *word, *text;
        enum kind kind;
    } words[] = {{"null", "null", KIND_NULL}, {"true", "true", KIND_BOOLEAN}, {"false", "false", KIND_BOOLEAN}, {"NaN", "null", KIND_NULL}, {"Infinity", "null", KIND_NULL}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (take_word(r, words[i].word)) {
            buf_add_str(r->out, words[i].text);
            return words[i].kind;
        }
    return read_number(r);
}

static int is_word(const char *text, size_t n, const char *a, const char *b)
{
    return (n == strlen(a) && memcmp(text, a, n) == 0) || (n == strlen(b) && memcmp(text, b, n) == 0);
}

/* text is trimmed. Appends its JSON and says what it is; on KIND_BAD the output is as before. */
static enum kind read_document(struct buf *out, const char *text, size_t n, double *number)
{
    struct reader r = {.p = text, .end = text + n, .out = out};
    size_t start = out->len;
    enum kind kind = read_value(&r, 0);
    if (out->failed)
        return KIND_BAD;
    if (kind == KIND_BAD || r.p != r.end) {
        out->len = start;
        return KIND_BAD;
    }
    *number = r.number;
    return kind;
}

/* Whether a document of this kind is a value of an allowed type; when a float is wanted as an integer, *whole says so. */
static int kind_fits(enum kind kind, double number, unsigned allowed, int *whole)
{
    *whole = kind == KIND_FLOAT && (allowed & VALUE_INTEGER) && number == trunc(number);
    switch (kind) {
    case KIND_INTEGER:
        return (allowed & (VALUE_INTEGER | VALUE_NUMBER)) != 0;
    case KIND_FLOAT:
        return *whole || (allowed & VALUE_NUMBER);
    case KIND_OBJECT:
        return (allowed & VALUE_OBJECT) != 0;
    case KIND_ARRAY:
        return (allowed & VALUE_ARRAY) != 0;
    default:
        return 0;
    }
}

int value_write(struct buf *out, const char *text, size_t n, struct value_types types)
{
    size_t first = 0, last = n, start = out->len;
    strip_space(text, &first, &last, 1, 1);
    const char *trimmed = text + first;
    size_t n_trimmed = last - first;
    if ((types.allowed & VALUE_NULL) && is_word(trimmed, n_trimmed, "null", "None"))
        return buf_add_str(out, "null");
    if ((types.allowed & VALUE_BOOLEAN) && is_word(trimmed, n_trimmed, "true", "True"))
        return buf_add_str(out, "true");
    if ((types.allowed & VALUE_BOOLEAN) && is_word(trimmed, n_trimmed, "false", "False"))
        return buf_add_str(out, "false");
    if (types.allowed & (VALUE_INTEGER | VALUE_NUMBER | VALUE_OBJECT | VALUE_ARRAY)) {
        double number = 0;
        int whole;
        enum kind kind = read_document(out, trimmed, n_trimmed, &number);
        if (kind_fits(kind, number, types.allowed, &whole)) {
            if (!whole)
                return out->failed;
            out->len = start;
            return buf_addf(out, "%.0f", number == 0 ? 0.0 : number);
        }
        if (!out->failed)
            out->len = start;
    }
    return json_write_string(out, text, n, 0);
}
