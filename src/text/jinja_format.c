/* tojson, and Python's two ways of formatting. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "text/jinja_eval.h"
#include "text/jinja_limits.h"

struct dump_style {
    int indent, ascii, sort_keys;
    struct str item, key; /* separators */
};

static void dump_value(struct interp *in, struct sbuf *out, struct value v, const struct dump_style *style, int depth);

static void dump_string(struct sbuf *out, struct str s, int ascii)
{
    size_t before = out->text.len;
    json_write_string(&out->text, s.data, s.len, ascii);
    if (str_tainted(s)) /* quotes and escapes of what a variable holds are its own */
        sbuf_mark(out, before, out->text.len);
}

static void dump_break(struct sbuf *out, const struct dump_style *style, int depth)
{
    if (style->indent < 0)
        return;
    buf_add_char(&out->text, '\n');
    for (int i = 0; i < style->indent * depth; i++)
        buf_add_char(&out->text, ' ');
}

static void dump_key(struct interp *in, struct sbuf *out, struct value key, const struct dump_style *style)
{
    if (key.type == V_STRING) {
        dump_string(out, key.s, style->ascii);
    } else if (value_is_number(key) || key.type == V_NONE) {
        buf_add_char(&out->text, '"');
        dump_value(in, out, key, style, 0);
        buf_add_char(&out->text, '"');
    } else {
        interp_fail(in, JINJA_RUNTIME, "keys must be str, int, float, bool or None");
    }
}

/* Entries in order of insertion, or sorted by key. */
static struct list *entries_of(struct interp *in, struct value v, int sorted)
{
    struct args none = {0};
    return sorted ? apply_filter(in, str_of("dictsort", 8), v, &(struct args){.positional = (struct value[]){value_bool(1)}, .n = 1}).list
                  : apply_filter(in, str_of("items", 5), v, &none).list;
}

static void dump_dict(struct interp *in, struct sbuf *out, struct value v, const struct dump_style *style, int depth)
{
    struct list *entries = entries_of(in, v, style->sort_keys);
    buf_add_char(&out->text, '{');
    for (size_t i = 0; i < entries->n; i++) {
        if (i)
            sbuf_add_str(out, style->item, 0, style->item.len);
        dump_break(out, style, depth + 1);
        dump_key(in, out, entries->items[i].list->items[0], style);
        sbuf_add_str(out, style->key, 0, style->key.len);
        dump_value(in, out, entries->items[i].list->items[1], style, depth + 1);
    }
    if (entries->n)
        dump_break(out, style, depth);
    buf_add_char(&out->text, '}');
}

static void dump_list(struct interp *in, struct sbuf *out, struct value v, const struct dump_style *style, int depth)
{
    buf_add_char(&out->text, '[');
    for (size_t i = 0; i < v.list->n; i++) {
        if (i)
            sbuf_add_str(out, style->item, 0, style->item.len);
        dump_break(out, style, depth + 1);
        dump_value(in, out, v.list->items[i], style, depth + 1);
    }
    if (v.list->n)
        dump_break(out, style, depth);
    buf_add_char(&out->text, ']');
}

static void dump_value(struct interp *in, struct sbuf *out, struct value v, const struct dump_style *style, int depth)
{
    interp_step(in, 1);
    if (depth > 2 * JINJA_MAX_DEPTH)
        interp_fail(in, JINJA_RUNTIME, "a value nests too deep for tojson");
    switch (v.type) {
    case V_NONE:
        sbuf_add_text(out, "null");
        break;
    case V_BOOL:
        sbuf_add_text(out, v.i ? "true" : "false");
        break;
    case V_INT:
        buf_addf(&out->text, "%lld", (long long)v.i);
        break;
    case V_BIG:
        sbuf_add_str(out, v.s, 0, v.s.len);
        break;
    case V_FLOAT:
        json_write_float(&out->text, v.f);
        break;
    case V_STRING:
        dump_string(out, v.s, style->ascii);
        break;
    case V_LIST:
    case V_TUPLE:
        dump_list(in, out, v, style, depth);
        break;
    case V_DICT:
        dump_dict(in, out, v, style, depth);
        break;
    default:
        interp_fail(in, JINJA_RUNTIME, "Object of type %s is not JSON serializable", v.type == V_UNDEFINED ? "Undefined" : "object");
    }
}

struct value to_json(struct interp *in, struct value v, const struct args *a)
{
    struct value indent = arg(a, 1, "indent", value_none()), separators = arg(a, 2, "separators", value_none());
    struct dump_style style = {.indent = -1, .ascii = value_truth(arg(a, 0, "ensure_ascii", value_bool(0))), .sort_keys = value_truth(arg(a, 3, "sort_keys", value_bool(0))),
                               .item = str_of(", ", 2), .key = str_of(": ", 2)};
    if (a->n == 1 && (a->positional[0].type == V_INT)) { /* plain Jinja's first argument is the indent */
        indent = a->positional[0];
        style.ascii = 0;
    }
    if (indent.type != V_NONE) {
        int64_t n = need_int(in, indent, "tojson");
        style.indent = n < 0 ? 0 : n > 40 ? 40 : (int)n;
        style.item = str_of(",", 1);
    }
    if (separators.type == V_LIST || separators.type == V_TUPLE) {
        if (separators.list->n != 2)
            interp_fail(in, JINJA_RUNTIME, "separators are two strings");
        style.item = need_str(in, separators.list->items[0], "separators");
        style.key = need_str(in, separators.list->items[1], "separators");
    }
    dump_value(in, text_begin(in), v, &style, 0);
    return value_str(text_end(in));
}

/* --- formatting --- */

struct spec {
    int minus, zero, plus, space, alternate;
    int width, precision; /* -1: none */
    char fill, align, type;
};

static void put_padded(struct sbuf *out, struct str s, const struct spec *p, int right)
{
    int64_t n = p->width - (int64_t)utf8_length(s);
    for (int64_t i = 0; right && i < n; i++)
        buf_add_char(&out->text, p->fill);
    sbuf_add_str(out, s, 0, s.len);
    for (int64_t i = 0; !right && i < n; i++)
        buf_add_char(&out->text, p->fill);
}

static void put_number(struct interp *in, struct sbuf *out, struct value v, const struct spec *p)
{
    char text[512], format[32];
    int is_float = strchr("eEfFgG", p->type) != NULL;
    if (!value_is_number(v))
        interp_fail(in, JINJA_RUNTIME, "%%%c format: a number is required", p->type);
    const char *sign = p->plus ? "+" : p->space ? " " : "";
    if (is_float) {
        snprintf(format, sizeof format, "%%%s%s.*%c", sign, p->alternate ? "#" : "", p->type);
        snprintf(text, sizeof text, format, p->precision < 0 ? 6 : p->precision > 100 ? 100 : p->precision, value_as_float(v));
    } else {
        char type = p->type == 'i' || p->type == 'u' || p->type == 'd' ? 'd' : p->type;
        long long i = v.type == V_FLOAT ? (long long)(fabs(v.f) < 9e18 ? v.f : 0) : (long long)v.i;
        snprintf(format, sizeof format, "%%%s%sll%c", type == 'd' ? sign : "", p->alternate ? "#" : "", type);
        snprintf(text, sizeof text, format, i);
    }
    size_t n = strlen(text), signs = text[0] == '-' || text[0] == '+' || text[0] == ' ';
    if (p->zero && !p->minus && (int64_t)n < p->width) {
        sbuf_add(out, text, signs, 0);
        for (int64_t i = (int64_t)n; i < p->width; i++)
            buf_add_char(&out->text, '0');
        sbuf_add(out, text + signs, n - signs, 0);
        return;
    }
    put_padded(out, str_of(text, n), p, p->align ? p->align != '<' : !p->minus);
}

static void put_text(struct interp *in, struct sbuf *out, struct str s, const struct spec *p, int right)
{
    if (p->precision >= 0)
        s = str_sub(&in->arena, s, 0, utf8_offset(s, (size_t)p->precision));
    put_padded(out, s, p, right);
}

static size_t read_number(struct str s, size_t at, int *out)
{
    int value = 0, some = 0;
    for (; at < s.len && s.data[at] >= '0' && s.data[at] <= '9'; at++, some = 1)
        value = value < 100000 ? value * 10 + s.data[at] - '0' : value;
    if (some)
        *out = value;
    return at;
}

struct percent {
    struct value values;
    size_t used;
};

static struct value next_value(struct interp *in, struct percent *p)
{
    if (p->values.type != V_TUPLE) {
        if (p->used++)
            interp_fail(in, JINJA_RUNTIME, "not enough arguments for format string");
        return p->values;
    }
    if (p->used >= p->values.list->n)
        interp_fail(in, JINJA_RUNTIME, "not enough arguments for format string");
    return p->values.list->items[p->used++];
}

/* One %… of the format, at its %; returns what is behind it. */
static size_t percent_one(struct interp *in, struct str f, size_t at, struct percent *p, struct sbuf *out)
{
    struct spec s = {.width = 0, .precision = -1, .fill = ' '};
    struct value named = {.type = V_NONE};
    int has_name = 0;
    at++;
    if (at < f.len && f.data[at] == '(') {
        const char *close = memchr(f.data + at, ')', f.len - at);
        if (!close || p->values.type != V_DICT)
            interp_fail(in, JINJA_RUNTIME, "format requires a mapping");
        const struct value *found = dict_find(p->values.dict, value_str(str_of(f.data + at + 1, (size_t)(close - f.data) - at - 1)));
        if (!found)
            interp_fail(in, JINJA_RUNTIME, "a key of the format is missing");
        named = *found;
        has_name = 1;
        at = (size_t)(close - f.data) + 1;
    }
    for (; at < f.len && strchr("-0+ #", f.data[at]); at++) {
        s.minus |= f.data[at] == '-';
        s.zero |= f.data[at] == '0';
        s.plus |= f.data[at] == '+';
        s.space |= f.data[at] == ' ';
        s.alternate |= f.data[at] == '#';
    }
    at = read_number(f, at, &s.width);
    if (at < f.len && f.data[at] == '.') {
        s.precision = 0;
        at = read_number(f, at + 1, &s.precision);
    }
    if (at >= f.len)
        interp_fail(in, JINJA_RUNTIME, "incomplete format");
    s.type = f.data[at++];
    if (s.type == '%') {
        sbuf_add_text(out, "%");
    } else if (s.type == 's' || s.type == 'r' || s.type == 'c') {
        struct value v = has_name ? named : next_value(in, p);
        struct str text;
        if (s.type == 'r') {
            value_repr(text_begin(in), v, 0);
            text = text_end(in);
        } else {
            text = to_str(in, v);
        }
        put_text(in, out, text, &s, !s.minus);
    } else if (strchr("diuxXoeEfFgG", s.type)) {
        put_number(in, out, has_name ? named : next_value(in, p), &s);
    } else {
        interp_fail(in, JINJA_RUNTIME, "unsupported format character");
    }
    return at;
}

struct value format_percent(struct interp *in, struct str f, struct value values)
{
    struct percent p = {.values = values};
    struct sbuf *out = text_begin(in);
    for (size_t at = 0; at < f.len;) {
        interp_step(in, 1);
        if (f.data[at] == '%') {
            at = percent_one(in, f, at, &p, out);
        } else {
            sbuf_add_str(out, f, at, at + 1);
            at++;
        }
    }
    if (values.type == V_TUPLE && p.used < values.list->n)
        interp_fail(in, JINJA_RUNTIME, "not all arguments converted during string formatting");
    return value_str(text_end(in));
}

/* The format specification behind the colon of a {} field. */
static struct spec read_spec(struct interp *in, struct str s)
{
    struct spec p = {.precision = -1, .fill = ' '};
    size_t at = 0;
    if (s.len > 1 && strchr("<>^", s.data[1])) {
        p.fill = s.data[0];
        p.align = s.data[1];
        at = 2;
    } else if (s.len && strchr("<>^", s.data[0])) {
        p.align = s.data[at++];
    }
    if (at < s.len && (s.data[at] == '+' || s.data[at] == ' ' || s.data[at] == '-')) {
        p.plus = s.data[at] == '+';
        p.space = s.data[at++] == ' ';
    }
    if (at < s.len && s.data[at] == '0') {
        p.zero = !p.align;
        at++;
    }
    at = read_number(s, at, &p.width);
    if (at < s.len && s.data[at] == '.')
        at = read_number(s, at + 1, &p.precision);
    if (at < s.len)
        p.type = s.data[at++];
    if (at < s.len || (p.type && !strchr("sdxXoeEfFgG", p.type)))
        interp_fail(in, JINJA_RUNTIME, "a format specification is not supported");
    return p;
}

/* "name", "0", "a.b[c]" of a {} field. */
static struct value field_value(struct interp *in, struct str field, const struct args *a, size_t *next)
{
    size_t end = 0;
    while (end < field.len && field.data[end] != '.' && field.data[end] != '[')
        end++;
    struct str first = str_of(field.data, end);
    struct value v;
    int number = -1;
    size_t digits = read_number(first, 0, &number);
    if (first.len == 0)
        number = (int)(*next)++;
    if (first.len == 0 || (digits == first.len && number >= 0)) {
        if ((size_t)number >= a->n)
            interp_fail(in, JINJA_RUNTIME, "Replacement index %d out of range for positional args tuple", number);
        v = a->positional[number];
    } else {
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)first.len, first.data);
        v = arg(a, SIZE_MAX, name, value_undefined(first));
        if (v.type == V_UNDEFINED)
            interp_fail(in, JINJA_RUNTIME, "a key of the format is missing");
    }
    while (end < field.len) {
        size_t start = end + 1;
        int index = field.data[end] == '[';
        for (end = start; end < field.len && (index ? field.data[end] != ']' : field.data[end] != '.' && field.data[end] != '[');)
            end++;
        struct str part = str_of(field.data + start, end - start);
        v = index ? get_path(in, v, value_str(part)) : get_attribute(in, v, part);
        if (v.type == V_UNDEFINED && v.unsafe)
            interp_fail(in, JINJA_SANDBOX, "access to attribute '%.*s' is unsafe", (int)(part.len < 60 ? part.len : 60), part.data);
        end += index && end < field.len;
    }
    return v;
}

static void put_field(struct interp *in, struct sbuf *out, struct str field, const struct args *a, size_t *next)
{
    const char *colon = memchr(field.data, ':', field.len);
    size_t end = colon ? (size_t)(colon - field.data) : field.len, name_end = end;
    int repr = 0;
    if (end >= 2 && field.data[end - 2] == '!') {
        repr = field.data[end - 1] == 'r';
        name_end = end - 2;
    }
    struct spec p = read_spec(in, colon ? str_of(colon + 1, field.len - end - 1) : str_of("", 0));
    struct value v = field_value(in, str_of(field.data, name_end), a, next);
    struct str text;
    if (p.type && p.type != 's') {
        put_number(in, out, v, &p);
        return;
    }
    if (repr) {
        value_repr(text_begin(in), v, 0);
        text = text_end(in);
    } else {
        text = to_str(in, v);
    }
    put_text(in, out, text, &p, p.align == '>' || (value_is_number(v) && !p.align));
}

struct value format_braces(struct interp *in, struct str f, const struct args *a)
{
    struct sbuf *out = text_begin(in);
    size_t next = 0;
    for (size_t at = 0; at < f.len; at++) {
        char c = f.data[at];
        interp_step(in, 1);
        if ((c == '{' || c == '}') && at + 1 < f.len && f.data[at + 1] == c) {
            sbuf_add(out, &c, 1, 0);
            at++;
        } else if (c == '{') {
            const char *close = memchr(f.data + at, '}', f.len - at);
            if (!close)
                interp_fail(in, JINJA_RUNTIME, "expected '}' before end of string");
            put_field(in, out, str_of(f.data + at + 1, (size_t)(close - f.data) - at - 1), a, &next);
            at = (size_t)(close - f.data);
        } else if (c == '}') {
            interp_fail(in, JINJA_RUNTIME, "Single '}' encountered in format string");
        } else {
            sbuf_add_str(out, f, at, at + 1);
        }
    }
    return value_str(text_end(in));
}
