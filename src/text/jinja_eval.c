/* Expressions: names, operators, access, calls. Every node evaluated costs a step, every call and nesting counts depth. */
#include "text/jinja_eval.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "text/jinja_limits.h"

void jinja_fail(struct failure *f, enum jinja_error kind, const char *format, ...)
{
    va_list args;
    f->kind = kind;
    if (f->err) {
        va_start(args, format);
        vsnprintf(f->err->message, sizeof f->err->message, format, args);
        va_end(args);
    }
    longjmp(f->jump, 1);
}

void interp_fail(struct interp *in, enum jinja_error kind, const char *format, ...)
{
    char text[900];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    jinja_fail(&in->failure, kind, "%s", text);
}

void interp_step(struct interp *in, int64_t cost)
{
    in->steps += cost;
    if (in->steps > JINJA_MAX_STEPS) {
        in->failure.code = ERR_LIMIT;
        interp_fail(in, JINJA_RUNTIME, "the template runs for more than %d steps", JINJA_MAX_STEPS);
    }
}

struct sbuf *text_begin(struct interp *in)
{
    struct sbuf *b = arena_alloc(&in->arena, sizeof *b);
    sbuf_init(b, JINJA_MAX_OUTPUT);
    if (in->n_open == in->cap_open) {
        size_t cap = in->cap_open ? 2 * in->cap_open : 16;
        struct sbuf **grown = arena_alloc(&in->arena, cap * sizeof *grown);
        if (in->n_open)
            memcpy(grown, in->open, in->n_open * sizeof *grown);
        in->open = grown;
        in->cap_open = cap;
    }
    in->open[in->n_open++] = b;
    return b;
}

struct str text_end(struct interp *in)
{
    struct sbuf *b = in->open[in->n_open - 1];
    if (b->text.failed) {
        in->failure.code = b->text.failed;
        interp_fail(in, JINJA_RUNTIME, b->text.failed == ERR_LIMIT ? "a string grows beyond %d bytes" : "out of memory for a string of up to %d bytes", JINJA_MAX_OUTPUT);
    }
    struct str s = {.len = b->text.len, .n_untrusted = b->n};
    char *data = arena_alloc(&in->arena, s.len + 1);
    struct text_span *spans = arena_alloc(&in->arena, (b->n + 1) * sizeof *spans);
    if (s.len)
        memcpy(data, b->text.data, s.len);
    if (b->n)
        memcpy(spans, b->spans, b->n * sizeof *spans);
    s.data = data;
    s.untrusted = spans;
    sbuf_free(b);
    in->n_open--;
    return s;
}

struct str to_str(struct interp *in, struct value v)
{
    if (v.type == V_STRING)
        return v.s;
    value_print(text_begin(in), v);
    return text_end(in);
}

struct str need_str(struct interp *in, struct value v, const char *who)
{
    if (v.type == V_UNDEFINED)
        interp_fail(in, v.unsafe ? JINJA_SANDBOX : JINJA_UNDEFINED, "'%.*s' is undefined", (int)(v.s.len < 60 ? v.s.len : 60), v.s.data);
    if (v.type != V_STRING)
        interp_fail(in, JINJA_RUNTIME, "%s expects a string", who);
    return v.s;
}

int64_t need_int(struct interp *in, struct value v, const char *who)
{
    if (v.type != V_INT && v.type != V_BOOL)
        interp_fail(in, JINJA_RUNTIME, "%s expects a whole number", who);
    return v.i;
}

struct value arg(const struct args *a, size_t i, const char *name, struct value otherwise)
{
    if (i < a->n)
        return a->positional[i];
    for (size_t k = 0; name && k < a->n_named; k++)
        if (str_is(a->names[k], name))
            return a->named[k];
    return otherwise;
}

_Noreturn static void undefined_error(struct interp *in, struct value v)
{
    int n = (int)(v.s.len < 60 ? v.s.len : 60);
    if (v.unsafe)
        interp_fail(in, JINJA_SANDBOX, "access to attribute '%.*s' is unsafe", n, v.s.data);
    interp_fail(in, JINJA_UNDEFINED, "'%.*s' is undefined", n, v.s.data);
}

/* --- operators --- */

static struct value arithmetic_int(struct interp *in, enum operator_kind op, int64_t a, int64_t b)
{
    int64_t out = 0;
    int overflow = 0;
    switch (op) {
    case OP_ADD:
        overflow = __builtin_add_overflow(a, b, &out);
        break;
    case OP_SUB:
        overflow = __builtin_sub_overflow(a, b, &out);
        break;
    case OP_MUL:
        overflow = __builtin_mul_overflow(a, b, &out);
        break;
    case OP_FLOORDIV:
    case OP_MOD:
        if (b == 0)
            interp_fail(in, JINJA_RUNTIME, "division by zero");
        if (b == -1) { /* the one quotient that does not fit */
            overflow = __builtin_sub_overflow((int64_t)0, a, &out);
            out = op == OP_MOD ? 0 : out;
            break;
        }
        out = op == OP_MOD ? a % b : a / b;
        if (a % b && (a < 0) != (b < 0))
            out = op == OP_MOD ? out + b : out - 1;
        break;
    default: /* OP_POW with b >= 0 */
        for (out = 1; b && !overflow; b >>= 1) {
            if (b & 1)
                overflow = __builtin_mul_overflow(out, a, &out);
            if (b > 1 && !overflow)
                overflow = __builtin_mul_overflow(a, a, &a);
        }
    }
    if (overflow)
        interp_fail(in, JINJA_RUNTIME, "a whole number grows beyond 64 bits");
    return value_int(out);
}

static struct value arithmetic(struct interp *in, enum operator_kind op, struct value a, struct value b)
{
    if (a.type != V_FLOAT && b.type != V_FLOAT && op != OP_DIV && !(op == OP_POW && b.i < 0))
        return arithmetic_int(in, op, a.i, b.i);
    double x = value_as_float(a), y = value_as_float(b);
    if ((op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD) && y == 0)
        interp_fail(in, JINJA_RUNTIME, "division by zero");
    switch (op) {
    case OP_ADD:
        return value_float(x + y);
    case OP_SUB:
        return value_float(x - y);
    case OP_MUL:
        return value_float(x * y);
    case OP_DIV:
        return value_float(x / y);
    case OP_FLOORDIV:
        return value_float(floor(x / y));
    case OP_MOD: {
        double m = fmod(x, y);
        return value_float(m != 0 && (m < 0) != (y < 0) ? m + y : m);
    }
    default:
        if (x == 0 && y < 0)
            interp_fail(in, JINJA_RUNTIME, "division by zero");
        return value_float(pow(x, y));
    }
}

static struct value repeat(struct interp *in, struct value of, int64_t times)
{
    if (times < 0)
        times = 0;
    if (of.type == V_STRING) {
        struct sbuf *b = text_begin(in);
        interp_step(in, of.s.len ? times : 0);
        for (int64_t i = 0; i < times && of.s.len && !b->text.failed; i++)
            sbuf_add_str(b, of.s, 0, of.s.len);
        return value_str(text_end(in));
    }
    struct value out = value_list(&in->arena, of.type, 0);
    interp_step(in, of.list->n ? times : 0);
    for (int64_t i = 0; i < times && of.list->n; i++)
        for (size_t k = 0; k < of.list->n; k++) {
            interp_step(in, 1);
            list_add(&in->arena, out.list, of.list->items[k]);
        }
    return out;
}

static struct value concatenate(struct interp *in, struct value a, struct value b)
{
    struct sbuf *out = text_begin(in);
    value_print(out, a);
    value_print(out, b);
    return value_str(text_end(in));
}

static const char *type_name(struct value v)
{
    static const char *const names[] = {"Undefined", "NoneType", "bool", "int", "float", "str", "list", "tuple", "dict", "Namespace", "function", "LoopContext", "int"};
    return names[v.type];
}

struct value binary(struct interp *in, enum operator_kind op, struct value a, struct value b)
{
    int is_seq_a = a.type == V_LIST || a.type == V_TUPLE, is_seq_b = b.type == V_LIST || b.type == V_TUPLE;
    if (op == OP_CONCAT)
        return concatenate(in, a, b);
    if (a.type == V_UNDEFINED)
        undefined_error(in, a);
    if (b.type == V_UNDEFINED && !(op == OP_MOD && a.type == V_STRING))
        undefined_error(in, b);
    if (value_is_number(a) && value_is_number(b))
        return arithmetic(in, op, a, b);
    if (op == OP_ADD && a.type == V_STRING && b.type == V_STRING)
        return concatenate(in, a, b);
    if (op == OP_ADD && a.type == b.type && is_seq_a) {
        struct value out = value_list(&in->arena, a.type, a.list->n + b.list->n);
        for (size_t i = 0; i < a.list->n; i++)
            list_add(&in->arena, out.list, a.list->items[i]);
        for (size_t i = 0; i < b.list->n; i++)
            list_add(&in->arena, out.list, b.list->items[i]);
        interp_step(in, (int64_t)out.list->n);
        return out;
    }
    if (op == OP_MUL && (a.type == V_STRING || is_seq_a) && (b.type == V_INT || b.type == V_BOOL))
        return repeat(in, a, b.i);
    if (op == OP_MUL && (b.type == V_STRING || is_seq_b) && (a.type == V_INT || a.type == V_BOOL))
        return repeat(in, b, a.i);
    if (op == OP_MOD && a.type == V_STRING)
        return format_percent(in, a.s, b);
    static const char *const symbols[] = {"+", "-", "*", "/", "//", "%", "**"};
    interp_fail(in, JINJA_RUNTIME, "unsupported operand types for %s: '%s' and '%s'", symbols[op], type_name(a), type_name(b));
}

int compare_values(struct interp *in, struct value a, struct value b)
{
    if (a.type == V_UNDEFINED)
        undefined_error(in, a);
    if (b.type == V_UNDEFINED)
        undefined_error(in, b);
    if (value_is_number(a) && value_is_number(b)) {
        if (a.type != V_FLOAT && b.type != V_FLOAT)
            return a.i < b.i ? -1 : a.i > b.i;
        double x = value_as_float(a), y = value_as_float(b);
        return x < y ? -1 : x > y;
    }
    if (a.type == V_STRING && b.type == V_STRING)
        return str_compare(a.s, b.s);
    if (a.type == b.type && (a.type == V_LIST || a.type == V_TUPLE)) {
        for (size_t i = 0; i < a.list->n && i < b.list->n; i++)
            if (!value_equal(a.list->items[i], b.list->items[i])) {
                if (++in->depth > JINJA_MAX_DEPTH)
                    interp_fail(in, JINJA_RUNTIME, "values nest too deep to be compared");
                int c = compare_values(in, a.list->items[i], b.list->items[i]);
                in->depth--;
                return c;
            }
        return a.list->n < b.list->n ? -1 : a.list->n > b.list->n;
    }
    interp_fail(in, JINJA_RUNTIME, "'<' not supported between '%s' and '%s'", type_name(a), type_name(b));
}

int contains(struct interp *in, struct value needle, struct value haystack)
{
    switch (haystack.type) {
    case V_STRING:
        if (needle.type != V_STRING)
            interp_fail(in, JINJA_RUNTIME, "'in <string>' requires string as left operand, not %s", type_name(needle));
        return needle.s.len == 0 || memmem(haystack.s.data, haystack.s.len, needle.s.data, needle.s.len) != NULL;
    case V_LIST:
    case V_TUPLE:
        interp_step(in, (int64_t)haystack.list->n);
        for (size_t i = 0; i < haystack.list->n; i++)
            if (value_equal(needle, haystack.list->items[i]))
                return 1;
        return 0;
    case V_DICT:
        return dict_find(haystack.dict, needle) != NULL;
    case V_UNDEFINED:
        if (haystack.unsafe)
            undefined_error(in, haystack);
        return 0;
    default:
        interp_fail(in, JINJA_RUNTIME, "argument of type '%s' is not iterable", type_name(haystack));
    }
}

static struct value eval_compare(struct interp *in, const struct node *n)
{
    struct value left = eval(in, n->a);
    for (const struct node *c = n->args; c; c = c->next) {
        struct value right = eval(in, c->a);
        int ok;
        switch (c->op) {
        case OP_EQ:
            ok = value_equal(left, right);
            break;
        case OP_NE:
            ok = !value_equal(left, right);
            break;
        case OP_IN:
            ok = contains(in, left, right);
            break;
        case OP_NOT_IN:
            ok = !contains(in, left, right);
            break;
        case OP_LT:
            ok = compare_values(in, left, right) < 0;
            break;
        case OP_LE:
            ok = compare_values(in, left, right) <= 0;
            break;
        case OP_GT:
            ok = compare_values(in, left, right) > 0;
            break;
        default:
            ok = compare_values(in, left, right) >= 0;
        }
        if (!ok)
            return value_bool(0);
        left = right;
    }
    return value_bool(1);
}

/* --- access --- */

static struct value look_up(struct interp *in, struct str name)
{
    struct value key = value_str(name), *found;
    for (struct scope *s = in->scope; s; s = s->parent)
        if ((found = dict_find(s->vars, key)))
            return *found;
    found = dict_find(in->globals, key);
    return found ? *found : value_undefined(name);
}

static struct value loop_attribute(struct interp *in, const struct loop *l, struct str name)
{
    int64_t i = (int64_t)l->index, n = (int64_t)l->items->n;
    const struct {
        const char *name;
        struct value value;
    } all[] = {
        {"index", value_int(i + 1)}, {"index0", value_int(i)}, {"revindex", value_int(n - i)}, {"revindex0", value_int(n - i - 1)}, {"first", value_bool(i == 0)},
        {"last", value_bool(i == n - 1)}, {"length", value_int(n)}, {"depth", value_int(l->depth)}, {"depth0", value_int(l->depth - 1)},
    };
    for (size_t k = 0; k < sizeof all / sizeof *all; k++)
        if (str_is(name, all[k].name))
            return all[k].value;
    if (str_is(name, "previtem"))
        return i > 0 ? l->items->items[i - 1] : value_undefined(name);
    if (str_is(name, "nextitem"))
        return i + 1 < n ? l->items->items[i + 1] : value_undefined(name);
    return find_method(in, (struct value){.type = V_LOOP, .loop = (struct loop *)l}, name);
}

static struct value unsafe(struct str name)
{
    struct value v = value_undefined(name);
    v.unsafe = 1;
    return v;
}

struct value get_attribute(struct interp *in, struct value of, struct str name)
{
    struct value key = value_str(name), *found;
    if (of.type == V_UNDEFINED)
        undefined_error(in, of);
    if (name.len && name.data[0] == '_')
        return of.type == V_DICT && (found = dict_find(of.dict, key)) ? *found : unsafe(name);
    if (of.type == V_LOOP)
        return loop_attribute(in, of.loop, name);
    if (of.type == V_NAMESPACE)
        return (found = dict_find(of.dict, key)) ? *found : value_undefined(name);
    if (of.type == V_FUNCTION && of.function->macro && str_is(name, "name"))
        return value_str(of.function->name);
    struct value method = find_method(in, of, name);
    if (method.type != V_UNDEFINED || method.unsafe)
        return method;
    if (of.type == V_DICT && (found = dict_find(of.dict, key)))
        return *found;
    return value_undefined(name);
}

static struct value item_at(struct interp *in, struct value of, int64_t i)
{
    int64_t n = of.type == V_STRING ? (int64_t)utf8_length(of.s) : (int64_t)of.list->n;
    if (i < 0)
        i += n;
    if (i < 0 || i >= n)
        return value_undefined(str_of("index", 5));
    if (of.type != V_STRING)
        return of.list->items[i];
    size_t from = utf8_offset(of.s, (size_t)i), to = utf8_offset(of.s, (size_t)i + 1);
    interp_step(in, (int64_t)(to / 64));
    return value_str(str_sub(&in->arena, of.s, from, to));
}

struct value get_item(struct interp *in, struct value of, struct value key)
{
    struct value *found;
    if (of.type == V_UNDEFINED)
        undefined_error(in, of);
    if (of.type == V_DICT && (found = dict_find(of.dict, key)))
        return *found;
    if ((of.type == V_LIST || of.type == V_TUPLE || of.type == V_STRING) && (key.type == V_INT || key.type == V_BOOL))
        return item_at(in, of, key.i);
    if (key.type == V_STRING)
        return of.type == V_DICT || (key.s.len && key.s.data[0] == '_') ? (key.s.len && key.s.data[0] == '_' ? unsafe(key.s) : find_method(in, of, key.s))
                                                                          : get_attribute(in, of, key.s);
    return value_undefined(to_str(in, key));
}

struct value get_path(struct interp *in, struct value of, struct value path)
{
    if (path.type != V_STRING)
        return get_item(in, of, path);
    for (size_t at = 0; at <= path.s.len;) {
        const char *dot = path.s.len > at ? memchr(path.s.data + at, '.', path.s.len - at) : NULL;
        size_t end = dot ? (size_t)(dot - path.s.data) : path.s.len;
        struct str part = str_of(path.s.data + at, end - at);
        int digits = part.len > 0 && part.len < 10;
        int64_t number = 0;
        for (size_t i = 0; i < part.len && digits; i++) {
            digits = part.data[i] >= '0' && part.data[i] <= '9';
            number = number * 10 + part.data[i] - '0';
        }
        of = get_item(in, of, digits ? value_int(number) : value_str(part));
        at = end + 1;
    }
    return of;
}

/* One bound of a slice, as Python clips it. */
static int64_t bound(struct interp *in, struct value v, int64_t n, int64_t step, int64_t otherwise)
{
    if (v.type == V_NONE)
        return otherwise;
    int64_t i = need_int(in, v, "a slice");
    if (i < 0)
        i = i + n < 0 ? (step < 0 ? -1 : 0) : i + n;
    return i > n ? n : step < 0 && i >= n ? n - 1 : i;
}

static struct value eval_slice(struct interp *in, const struct node *n)
{
    struct value of = eval(in, n->a), from = n->b ? eval(in, n->b) : value_none(), to = n->c ? eval(in, n->c) : value_none();
    struct value step_value = n->d ? eval(in, n->d) : value_none();
    if (of.type == V_UNDEFINED)
        undefined_error(in, of);
    if (of.type != V_STRING && of.type != V_LIST && of.type != V_TUPLE)
        interp_fail(in, JINJA_RUNTIME, "'%s' cannot be sliced", type_name(of));
    int64_t count = of.type == V_STRING ? (int64_t)utf8_length(of.s) : (int64_t)of.list->n;
    int64_t step = step_value.type == V_NONE ? 1 : need_int(in, step_value, "a slice");
    if (step == 0)
        interp_fail(in, JINJA_RUNTIME, "slice step cannot be zero");
    if (step > count + 1)
        step = count + 1;
    if (step < -count - 1)
        step = -count - 1;
    int64_t i = bound(in, from, count, step, step < 0 ? count - 1 : 0), end = bound(in, to, count, step, step < 0 ? -1 : count);
    interp_step(in, count / 16);
    if (of.type == V_STRING && step == 1)
        return value_str(i < end ? str_sub(&in->arena, of.s, utf8_offset(of.s, (size_t)i), utf8_offset(of.s, (size_t)end)) : str_of("", 0));
    if (of.type == V_STRING) {
        struct list *points = iterate(in, of);
        struct sbuf *b = text_begin(in);
        for (; step > 0 ? i < end : i > end; i += step)
            sbuf_add_str(b, points->items[i].s, 0, points->items[i].s.len);
        return value_str(text_end(in));
    }
    struct value out = value_list(&in->arena, of.type, 0);
    for (; step > 0 ? i < end : i > end; i += step)
        list_add(&in->arena, out.list, of.list->items[i]);
    return out;
}

struct list *iterate(struct interp *in, struct value v)
{
    struct value out;
    switch (v.type) {
    case V_LIST:
    case V_TUPLE:
        return v.list;
    case V_STRING:
        out = value_list(&in->arena, V_LIST, utf8_length(v.s));
        interp_step(in, (int64_t)v.s.len);
        for (size_t i = 0, j; i < v.s.len; i = j) {
            for (j = i + 1; j < v.s.len && ((unsigned char)v.s.data[j] & 0xC0) == 0x80;)
                j++;
            list_add(&in->arena, out.list, value_str(str_sub(&in->arena, v.s, i, j)));
        }
        return out.list;
    case V_DICT:
        out = value_list(&in->arena, V_LIST, v.dict->n);
        for (size_t i = 0; i < v.dict->n; i++)
            list_add(&in->arena, out.list, v.dict->keys[i]);
        return out.list;
    case V_UNDEFINED:
        if (v.unsafe)
            undefined_error(in, v);
        return value_list(&in->arena, V_LIST, 0).list;
    default:
        interp_fail(in, JINJA_RUNTIME, "'%s' object is not iterable", type_name(v));
    }
}

/* --- calls --- */

static struct args eval_args(struct interp *in, const struct node *list)
{
    struct args a = {0};
    size_t n = 0;
    for (const struct node *k = list; k; k = k->next)
        n++;
    a.positional = arena_alloc(&in->arena, (n + 1) * sizeof *a.positional);
    struct str *names = arena_alloc(&in->arena, (n + 1) * sizeof *names);
    struct value *named = arena_alloc(&in->arena, (n + 1) * sizeof *named);
    for (const struct node *k = list; k; k = k->next) {
        if (k->flag) {
            names[a.n_named] = k->name;
            named[a.n_named++] = eval(in, k->a);
        } else {
            a.positional[a.n++] = eval(in, k->a);
        }
    }
    a.names = names;
    a.named = named;
    return a;
}

static struct value eval_items(struct interp *in, const struct node *n, enum value_type type)
{
    struct value out = value_list(&in->arena, type, 0);
    for (const struct node *k = n->args; k; k = k->next)
        list_add(&in->arena, out.list, eval(in, k->a));
    return out;
}

static struct value eval_dict(struct interp *in, const struct node *n)
{
    struct value out = value_dict(&in->arena, V_DICT);
    for (const struct node *k = n->args; k; k = k->next) {
        struct value key = eval(in, k->a);
        if (key.type == V_LIST || key.type == V_DICT)
            interp_fail(in, JINJA_RUNTIME, "unhashable type: '%s'", type_name(key));
        dict_set(&in->arena, out.dict, key, eval(in, k->b));
    }
    return out;
}

static struct value eval_chain(struct interp *in, const struct node *n)
{
    struct value v = value_none();
    for (const struct node *k = n->args; k; k = k->next) {
        v = eval(in, k->a);
        if (value_truth(v) == (n->kind == N_OR))
            return v;
    }
    return v;
}

static struct value eval_sign(struct interp *in, const struct node *n)
{
    struct value v = eval(in, n->a);
    if (v.type == V_UNDEFINED)
        undefined_error(in, v);
    if (!value_is_number(v))
        interp_fail(in, JINJA_RUNTIME, "bad operand type for unary %c: '%s'", n->kind == N_NEG ? '-' : '+', type_name(v));
    if (n->kind == N_POS)
        return v.type == V_BOOL ? value_int(v.i) : v;
    return v.type == V_FLOAT ? value_float(-v.f) : arithmetic_int(in, OP_SUB, 0, v.i);
}

static struct value eval_kind(struct interp *in, const struct node *n)
{
    struct value v;
    switch (n->kind) {
    case N_CONST:
        return n->value;
    case N_NAME:
        return look_up(in, n->name);
    case N_LIST:
        return eval_items(in, n, V_LIST);
    case N_TUPLE:
        return eval_items(in, n, V_TUPLE);
    case N_DICT:
        return eval_dict(in, n);
    case N_ATTR:
        return get_attribute(in, eval(in, n->a), n->name);
    case N_ITEM:
        v = eval(in, n->a);
        return get_item(in, v, eval(in, n->b));
    case N_SLICE:
        return eval_slice(in, n);
    case N_CALL: {
        v = eval(in, n->a);
        struct args args = eval_args(in, n->args);
        return call_value(in, v, &args);
    }
    case N_FILTER: {
        v = eval(in, n->a);
        struct args args = eval_args(in, n->args);
        return apply_filter(in, n->name, v, &args);
    }
    case N_TEST: {
        v = eval(in, n->a);
        struct args args = eval_args(in, n->args);
        return value_bool(apply_test(in, n->name, v, &args) != n->flag);
    }
    case N_BINARY:
        v = eval(in, n->a);
        return binary(in, n->op, v, eval(in, n->b));
    case N_COMPARE:
        return eval_compare(in, n);
    case N_AND:
    case N_OR:
        return eval_chain(in, n);
    case N_NOT:
        return value_bool(!value_truth(eval(in, n->a)));
    case N_NEG:
    case N_POS:
        return eval_sign(in, n);
    case N_COND:
        if (value_truth(eval(in, n->a)))
            return eval(in, n->b);
        return n->c ? eval(in, n->c) : value_undefined(str_of("else", 4));
    default:
        interp_fail(in, JINJA_RUNTIME, "not an expression");
    }
}

struct value eval(struct interp *in, const struct node *n)
{
    interp_step(in, 1);
    if (++in->depth > 4 * JINJA_MAX_DEPTH) {
        in->failure.code = ERR_LIMIT;
        interp_fail(in, JINJA_RUNTIME, "the template nests too deep");
    }
    struct value v = eval_kind(in, n);
    in->depth--;
    return v;
}
