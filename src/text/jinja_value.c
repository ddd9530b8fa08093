/* Values: memory, strings with their origin, dicts in order, Python's str and repr. */
#include "text/jinja_value.h"

#include <math.h>
#include <string.h>
#include <utf8proc.h>

#include "base/hash.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "text/jinja_ast.h"
#include "text/jinja_limits.h"

struct arena_block {
    struct arena_block *next;
    size_t used, cap;
};

#define BLOCK_BYTES ((size_t)32 << 10)

void *arena_alloc(struct arena *a, size_t bytes)
{
    if (bytes > a->max || a->used + bytes > a->max) {
        a->failure->code = ERR_LIMIT;
        jinja_fail(a->failure, JINJA_RUNTIME, "the template needs more than %zu MiB of memory", a->max >> 20);
    }
    bytes = (bytes + 15) & ~(size_t)15;
    struct arena_block *b = a->blocks;
    if (!b || b->cap - b->used < bytes) {
        size_t cap = bytes > BLOCK_BYTES / 4 ? bytes : BLOCK_BYTES;
        b = mem_alloc(MEM_TEXT, sizeof *b + 16 + cap);
        if (!b) {
            a->failure->code = ERR_NO_MEMORY;
            jinja_fail(a->failure, JINJA_RUNTIME, "out of memory while rendering a template");
        }
        b->cap = cap;
        if (a->blocks && cap != BLOCK_BYTES) { /* a large block goes behind the one that is being filled */
            b->next = a->blocks->next;
            a->blocks->next = b;
        } else {
            b->next = a->blocks;
            a->blocks = b;
        }
    }
    void *p = (char *)(b + 1) + ((16 - sizeof *b % 16) % 16) + b->used;
    b->used += bytes;
    a->used += bytes;
    return p;
}

void arena_free(struct arena *a)
{
    for (struct arena_block *b = a->blocks, *next; b; b = next) {
        next = b->next;
        mem_free(b);
    }
    a->blocks = NULL;
}

void sbuf_init(struct sbuf *b, size_t max)
{
    *b = (struct sbuf){0};
    buf_init(&b->text, MEM_TEXT, max);
}

void sbuf_free(struct sbuf *b)
{
    buf_free(&b->text);
    mem_free(b->spans);
    b->spans = NULL;
}

void sbuf_mark(struct sbuf *b, size_t start, size_t end)
{
    if (b->text.failed || start == end)
        return;
    if (b->n && b->spans[b->n - 1].end == start) {
        b->spans[b->n - 1].end = end;
        return;
    }
    if (b->n == b->cap) {
        size_t cap = b->cap ? 2 * b->cap : 8;
        struct text_span *grown = mem_realloc(MEM_TEXT, b->spans, cap * sizeof *grown);
        if (!grown) {
            b->text.failed = ERR_NO_MEMORY;
            return;
        }
        b->spans = grown;
        b->cap = cap;
    }
    b->spans[b->n++] = (struct text_span){start, end};
}

void sbuf_add(struct sbuf *b, const char *text, size_t n, int untrusted)
{
    size_t start = b->text.len;
    buf_add(&b->text, text, n);
    if (untrusted)
        sbuf_mark(b, start, start + n);
}

void sbuf_add_text(struct sbuf *b, const char *text)
{
    buf_add_str(&b->text, text);
}

void sbuf_add_str(struct sbuf *b, struct str s, size_t from, size_t to)
{
    size_t start = b->text.len;
    buf_add(&b->text, s.data + from, to - from);
    for (size_t i = 0; i < s.n_untrusted; i++) {
        size_t lo = s.untrusted[i].start > from ? s.untrusted[i].start : from, hi = s.untrusted[i].end < to ? s.untrusted[i].end : to;
        if (lo < hi)
            sbuf_mark(b, start + lo - from, start + hi - from);
    }
}

struct str str_sub(struct arena *a, struct str s, size_t from, size_t to)
{
    struct str out = {.data = s.data + from, .len = to - from};
    if (s.n_untrusted == 0 || from >= to)
        return out;
    struct text_span *spans = arena_alloc(a, s.n_untrusted * sizeof *spans);
    for (size_t i = 0; i < s.n_untrusted; i++) {
        size_t lo = s.untrusted[i].start > from ? s.untrusted[i].start : from, hi = s.untrusted[i].end < to ? s.untrusted[i].end : to;
        if (lo < hi)
            spans[out.n_untrusted++] = (struct text_span){lo - from, hi - from};
    }
    out.untrusted = spans;
    return out;
}

int str_equal(struct str a, struct str b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}

int str_is(struct str a, const char *text)
{
    return str_equal(a, str_of(text, strlen(text)));
}

int str_compare(struct str a, struct str b)
{
    size_t n = a.len < b.len ? a.len : b.len;
    int c = n ? memcmp(a.data, b.data, n) : 0;
    return c ? c : a.len < b.len ? -1 : a.len > b.len;
}

struct value value_list(struct arena *a, enum value_type type, size_t cap)
{
    struct list *l = arena_alloc(a, sizeof *l);
    l->cap = cap;
    l->items = cap ? arena_alloc(a, cap * sizeof *l->items) : NULL;
    return (struct value){.type = type, .list = l};
}

void list_add(struct arena *a, struct list *l, struct value v)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 4;
        struct value *grown = arena_alloc(a, cap * sizeof *grown);
        if (l->n)
            memcpy(grown, l->items, l->n * sizeof *grown);
        l->items = grown;
        l->cap = cap;
    }
    l->items[l->n++] = v;
}

struct value value_dict(struct arena *a, enum value_type type)
{
    return (struct value){.type = type, .dict = arena_alloc(a, sizeof(struct dict))};
}

static uint64_t hash_value(struct value v)
{
    if (v.type == V_STRING)
        return hash_bytes(v.s.data, v.s.len, 0);
    double f = value_is_number(v) ? value_as_float(v) : (double)v.type; /* 1, 1.0 and true are one key */
    return hash_bytes(&f, sizeof f, 1);
}

static size_t entry_of(const struct dict *d, struct value key)
{
    if (!d->index) {
        for (size_t i = 0; i < d->n; i++)
            if (value_equal(d->keys[i], key))
                return i;
        return SIZE_MAX;
    }
    for (size_t k = hash_value(key) & d->index_mask; d->index[k]; k = (k + 1) & d->index_mask)
        if (value_equal(d->keys[d->index[k] - 1], key))
            return d->index[k] - 1;
    return SIZE_MAX;
}

struct value *dict_find(const struct dict *d, struct value key)
{
    size_t i = entry_of(d, key);
    return i == SIZE_MAX ? NULL : &d->values[i];
}

static void dict_grow(struct arena *a, struct dict *d)
{
    size_t cap = d->cap ? 2 * d->cap : 4;
    struct value *keys = arena_alloc(a, cap * sizeof *keys), *values = arena_alloc(a, cap * sizeof *values);
    if (d->n) {
        memcpy(keys, d->keys, d->n * sizeof *keys);
        memcpy(values, d->values, d->n * sizeof *values);
    }
    d->keys = keys;
    d->values = values;
    d->cap = cap;
    if (cap < 16)
        return;
    d->index = arena_alloc(a, 2 * cap * sizeof *d->index);
    d->index_mask = 2 * cap - 1;
    for (size_t i = 0; i < d->n; i++) {
        size_t k = hash_value(keys[i]) & d->index_mask;
        while (d->index[k])
            k = (k + 1) & d->index_mask;
        d->index[k] = (uint32_t)i + 1;
    }
}

void dict_set(struct arena *a, struct dict *d, struct value key, struct value v)
{
    size_t i = entry_of(d, key);
    if (i != SIZE_MAX) {
        d->values[i] = v;
        return;
    }
    if (d->n == d->cap)
        dict_grow(a, d);
    d->keys[d->n] = key;
    d->values[d->n++] = v;
    if (d->index) {
        size_t k = hash_value(key) & d->index_mask;
        while (d->index[k])
            k = (k + 1) & d->index_mask;
        d->index[k] = (uint32_t)d->n;
    }
}

int value_is_number(struct value v)
{
    return v.type == V_INT || v.type == V_FLOAT || v.type == V_BOOL;
}

double value_as_float(struct value v)
{
    return v.type == V_FLOAT ? v.f : (double)v.i;
}

int value_truth(struct value v)
{
    switch (v.type) {
    case V_UNDEFINED:
    case V_NONE:
        return 0;
    case V_BOOL:
    case V_INT:
        return v.i != 0;
    case V_FLOAT:
        return v.f != 0;
    case V_STRING:
        return v.s.len > 0;
    case V_LIST:
    case V_TUPLE:
        return v.list->n > 0;
    case V_DICT:
        return v.dict->n > 0;
    default:
        return 1;
    }
}

static int equal_deep(struct value a, struct value b, int depth)
{
    if (value_is_number(a) && value_is_number(b))
        return a.type != V_FLOAT && b.type != V_FLOAT ? a.i == b.i : value_as_float(a) == value_as_float(b);
    if (a.type != b.type || depth > JINJA_MAX_DEPTH)
        return 0;
    switch (a.type) {
    case V_UNDEFINED:
    case V_NONE:
        return 1;
    case V_STRING:
    case V_BIG:
        return str_equal(a.s, b.s);
    case V_LIST:
    case V_TUPLE:
        if (a.list->n != b.list->n)
            return 0;
        for (size_t i = 0; i < a.list->n; i++)
            if (!equal_deep(a.list->items[i], b.list->items[i], depth + 1))
                return 0;
        return 1;
    case V_DICT:
        if (a.dict->n != b.dict->n)
            return 0;
        for (size_t i = 0; i < a.dict->n; i++) {
            const struct value *other = dict_find(b.dict, a.dict->keys[i]);
            if (!other || !equal_deep(a.dict->values[i], *other, depth + 1))
                return 0;
        }
        return 1;
    default:
        return a.function == b.function;
    }
}

int value_equal(struct value a, struct value b)
{
    return equal_deep(a, b, 0);
}

static void print_float(struct sbuf *out, double f)
{
    if (isnan(f))
        sbuf_add_text(out, "nan");
    else if (isinf(f))
        sbuf_add_text(out, f < 0 ? "-inf" : "inf");
    else
        json_write_float(&out->text, f);
}

void value_print(struct sbuf *out, struct value v)
{
    if (v.type == V_STRING)
        sbuf_add_str(out, v.s, 0, v.s.len);
    else if (v.type != V_UNDEFINED)
        value_repr(out, v, 0);
}

/* What repr shows as it is; everything else is escaped. */
static int is_printable(uint32_t c)
{
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return 0;
    case UTF8PROC_CATEGORY_ZS:
        return c == ' ';
    default:
        return 1;
    }
}

static void repr_str(struct sbuf *out, struct str s)
{
    char quote = s.len && memchr(s.data, '\'', s.len) && !memchr(s.data, '"', s.len) ? '"' : '\'';
    buf_add_char(&out->text, quote);
    for (size_t i = 0; i < s.len;) {
        uint32_t c = 0xFFFD;
        int n = utf8_decode(s.data + i, s.len - i, &c);
        size_t length = n > 0 ? (size_t)n : 1;
        if (c == '\n' || c == '\r' || c == '\t')
            sbuf_add_text(out, c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t");
        else if (c == (uint32_t)quote || c == '\\')
            buf_addf(&out->text, "\\%c", (char)c);
        else if (is_printable(c))
            sbuf_add_str(out, s, i, i + length);
        else
            buf_addf(&out->text, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
        i += length;
    }
    buf_add_char(&out->text, quote);
}

static void repr_items(struct sbuf *out, struct value v, int depth)
{
    buf_add_char(&out->text, v.type == V_LIST ? '[' : '(');
    for (size_t i = 0; i < v.list->n; i++) {
        if (i)
            sbuf_add_text(out, ", ");
        value_repr(out, v.list->items[i], depth + 1);
    }
    if (v.type == V_TUPLE && v.list->n == 1)
        buf_add_char(&out->text, ',');
    buf_add_char(&out->text, v.type == V_LIST ? ']' : ')');
}

static void repr_dict(struct sbuf *out, const struct dict *d, int depth)
{
    buf_add_char(&out->text, '{');
    for (size_t i = 0; i < d->n; i++) {
        if (i)
            sbuf_add_text(out, ", ");
        value_repr(out, d->keys[i], depth + 1);
        sbuf_add_text(out, ": ");
        value_repr(out, d->values[i], depth + 1);
    }
    buf_add_char(&out->text, '}');
}

void value_repr(struct sbuf *out, struct value v, int depth)
{
    if (depth > JINJA_MAX_DEPTH) {
        sbuf_add_text(out, "...");
        return;
    }
    switch (v.type) {
    case V_UNDEFINED:
        sbuf_add_text(out, "Undefined");
        break;
    case V_NONE:
        sbuf_add_text(out, "None");
        break;
    case V_BOOL:
        sbuf_add_text(out, v.i ? "True" : "False");
        break;
    case V_INT:
        buf_addf(&out->text, "%lld", (long long)v.i);
        break;
    case V_FLOAT:
        print_float(out, v.f);
        break;
    case V_STRING:
        repr_str(out, v.s);
        break;
    case V_BIG:
        sbuf_add_str(out, v.s, 0, v.s.len);
        break;
    case V_LIST:
    case V_TUPLE:
        repr_items(out, v, depth);
        break;
    case V_DICT:
        repr_dict(out, v.dict, depth);
        break;
    case V_NAMESPACE:
        sbuf_add_text(out, "<Namespace ");
        repr_dict(out, v.dict, depth);
        sbuf_add_text(out, ">");
        break;
    case V_FUNCTION:
        buf_addf(&out->text, "<%s '", v.function->macro ? "Macro" : "function");
        sbuf_add_str(out, v.function->name, 0, v.function->name.len);
        sbuf_add_text(out, "'>");
        break;
    case V_LOOP:
        sbuf_add_text(out, "<LoopContext>");
        break;
    }
}

size_t utf8_length(struct str s)
{
    size_t n = 0;
    for (size_t i = 0; i < s.len; i++)
        n += ((unsigned char)s.data[i] & 0xC0) != 0x80;
    return n;
}

size_t utf8_offset(struct str s, size_t points)
{
    size_t i = 0;
    for (; i < s.len; i++)
        if (((unsigned char)s.data[i] & 0xC0) != 0x80 && points-- == 0)
            break;
    return i;
}
