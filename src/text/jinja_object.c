/* Methods of mappings, lists and loops, the global functions, and the tests. */
#include <string.h>

#include "text/jinja_eval.h"
#include "text/jinja_limits.h"

struct value make_native(struct interp *in, const char *name, native_fn *fn, struct value self)
{
    struct function *f = arena_alloc(&in->arena, sizeof *f);
    *f = (struct function){.name = str_of(name, strlen(name)), .native = fn, .self = self};
    return (struct value){.type = V_FUNCTION, .function = f};
}

static struct value dict_get(struct interp *in, struct value self, const struct args *a)
{
    const struct value *v = dict_find(self.dict, arg(a, 0, NULL, value_none()));
    (void)in;
    return v ? *v : arg(a, 1, NULL, value_none());
}

static struct value dict_keys(struct interp *in, struct value self, const struct args *a)
{
    (void)a;
    return (struct value){.type = V_LIST, .list = iterate(in, self)};
}

static struct value dict_values(struct interp *in, struct value self, const struct args *a)
{
    struct value out = value_list(&in->arena, V_LIST, self.dict->n);
    (void)a;
    for (size_t i = 0; i < self.dict->n; i++)
        list_add(&in->arena, out.list, self.dict->values[i]);
    return out;
}

static struct value dict_items(struct interp *in, struct value self, const struct args *a)
{
    return apply_filter(in, str_of("items", 5), self, a);
}

static struct value dict_copy(struct interp *in, struct value self, const struct args *a)
{
    struct value out = value_dict(&in->arena, V_DICT);
    (void)a;
    for (size_t i = 0; i < self.dict->n; i++)
        dict_set(&in->arena, out.dict, self.dict->keys[i], self.dict->values[i]);
    return out;
}

static struct value list_index(struct interp *in, struct value self, const struct args *a)
{
    for (size_t i = 0; i < self.list->n; i++)
        if (value_equal(self.list->items[i], arg(a, 0, NULL, value_none())))
            return value_int((int64_t)i);
    interp_fail(in, JINJA_RUNTIME, "value is not in list");
}

static struct value list_count(struct interp *in, struct value self, const struct args *a)
{
    int64_t n = 0;
    (void)in;
    for (size_t i = 0; i < self.list->n; i++)
        n += value_equal(self.list->items[i], arg(a, 0, NULL, value_none()));
    return value_int(n);
}

static struct value list_copy(struct interp *in, struct value self, const struct args *a)
{
    return apply_filter(in, str_of("list", 4), self, a);
}

static struct value loop_changed(struct interp *in, struct value self, const struct args *a)
{
    struct loop *l = self.loop;
    struct value now = value_list(&in->arena, V_TUPLE, a->n);
    for (size_t i = 0; i < a->n; i++)
        list_add(&in->arena, now.list, a->positional[i]);
    int changed = !l->has_changed || !value_equal(l->last_changed, now);
    l->last_changed = now;
    l->has_changed = 1;
    return value_bool(changed);
}

static struct value loop_cycle(struct interp *in, struct value self, const struct args *a)
{
    if (a->n == 0)
        interp_fail(in, JINJA_RUNTIME, "no items for cycling given");
    return a->positional[self.loop->index % a->n];
}

static const struct filter_entry dict_methods[] = {{"get", dict_get}, {"keys", dict_keys}, {"values", dict_values}, {"items", dict_items}, {"copy", dict_copy}, {NULL, NULL}};
static const struct filter_entry list_methods[] = {{"index", list_index}, {"count", list_count}, {"copy", list_copy}, {NULL, NULL}};
static const struct filter_entry loop_methods[] = {{"changed", loop_changed}, {"cycle", loop_cycle}, {NULL, NULL}};
/* What would change a value: the sandbox says no. */
static const char *const dict_mutators[] = {"update", "pop", "popitem", "clear", "setdefault", NULL};
static const char *const list_mutators[] = {"append", "insert", "pop", "remove", "extend", "clear", "reverse", "sort", NULL};

struct value find_method(struct interp *in, struct value self, struct str name)
{
    const struct filter_entry *methods = self.type == V_STRING ? string_methods : self.type == V_DICT ? dict_methods : self.type == V_LIST || self.type == V_TUPLE ? list_methods
                                                                                                                    : self.type == V_LOOP ? loop_methods
                                                                                                                                          : NULL;
    const char *const *mutators = self.type == V_DICT ? dict_mutators : self.type == V_LIST ? list_mutators : NULL;
    struct value none = value_undefined(name);
    for (; methods && methods->name; methods++)
        if (str_is(name, methods->name))
            return make_native(in, methods->name, methods->fn, self);
    for (; mutators && *mutators; mutators++)
        if (str_is(name, *mutators))
            none.unsafe = 1;
    return none;
}

/* --- globals --- */

static struct value global_range(struct interp *in, struct value self, const struct args *a)
{
    int64_t first = need_int(in, arg(a, 0, NULL, value_none()), "range"), step = 1, end = first;
    (void)self;
    if (a->n > 1)
        end = need_int(in, a->positional[1], "range");
    else
        first = 0;
    if (a->n > 2)
        step = need_int(in, a->positional[2], "range");
    if (step == 0)
        interp_fail(in, JINJA_RUNTIME, "range() arg 3 must not be zero");
    uint64_t span = step > 0 ? (end > first ? (uint64_t)end - (uint64_t)first : 0) : (first > end ? (uint64_t)first - (uint64_t)end : 0);
    uint64_t width = step > 0 ? (uint64_t)step : 0 - (uint64_t)step, n = span / width + (span % width != 0);
    if (n > JINJA_MAX_RANGE)
        interp_fail(in, JINJA_RUNTIME, "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).", JINJA_MAX_RANGE);
    struct value out = value_list(&in->arena, V_LIST, (size_t)n);
    for (uint64_t i = 0; i < n; i++, first += step)
        list_add(&in->arena, out.list, value_int(first));
    return out;
}

static struct value make_dict(struct interp *in, const struct args *a, enum value_type type)
{
    struct value out = value_dict(&in->arena, type);
    struct value from = arg(a, 0, NULL, value_none());
    if (from.type == V_DICT) {
        for (size_t i = 0; i < from.dict->n; i++)
            dict_set(&in->arena, out.dict, from.dict->keys[i], from.dict->values[i]);
    } else if (from.type != V_NONE) {
        struct list *pairs = iterate(in, from);
        for (size_t i = 0; i < pairs->n; i++) {
            struct list *pair = iterate(in, pairs->items[i]);
            if (pair->n != 2)
                interp_fail(in, JINJA_RUNTIME, "dictionary update sequence element #%zu has length %zu; 2 is required", i, pair->n);
            dict_set(&in->arena, out.dict, pair->items[0], pair->items[1]);
        }
    }
    for (size_t i = 0; i < a->n_named; i++)
        dict_set(&in->arena, out.dict, value_str(a->names[i]), a->named[i]);
    return out;
}

static struct value global_dict(struct interp *in, struct value self, const struct args *a)
{
    (void)self;
    return make_dict(in, a, V_DICT);
}

static struct value global_namespace(struct interp *in, struct value self, const struct args *a)
{
    (void)self;
    return make_dict(in, a, V_NAMESPACE);
}

static struct value global_raise(struct interp *in, struct value self, const struct args *a)
{
    struct str s = to_str(in, arg(a, 0, NULL, value_str(str_of("", 0))));
    (void)self;
    interp_fail(in, JINJA_RAISED, "%.*s", (int)(s.len < 800 ? s.len : 800), s.data);
}

static struct value global_strftime(struct interp *in, struct value self, const struct args *a)
{
    struct str format = need_str(in, arg(a, 0, NULL, value_none()), "strftime_now");
    char copy[256], text[1024];
    (void)self;
    if (format.len >= sizeof copy)
        interp_fail(in, JINJA_RUNTIME, "the format of strftime_now is too long");
    memcpy(copy, format.data, format.len);
    copy[format.len] = 0;
    size_t n = format.len && in->now ? strftime(text, sizeof text, copy, in->now) : 0;
    char *kept = arena_alloc(&in->arena, n + 1);
    memcpy(kept, text, n);
    return value_str(str_of(kept, n));
}

static struct value joiner_call(struct interp *in, struct value self, const struct args *a)
{
    (void)in;
    (void)a;
    return self.list->items[1].i++ ? self.list->items[0] : value_str(str_of("", 0));
}

static struct value global_joiner(struct interp *in, struct value self, const struct args *a)
{
    struct value state = value_list(&in->arena, V_LIST, 2);
    (void)self;
    list_add(&in->arena, state.list, arg(a, 0, "sep", value_str(str_of(", ", 2))));
    list_add(&in->arena, state.list, value_int(0));
    return make_native(in, "joiner", joiner_call, state);
}

static struct value cycler_next(struct interp *in, struct value self, const struct args *a)
{
    (void)in;
    (void)a;
    struct list *l = self.list;
    return l->items[1 + (size_t)(l->items[0].i++) % (l->n - 1)];
}

static struct value global_cycler(struct interp *in, struct value self, const struct args *a)
{
    struct value state = value_list(&in->arena, V_LIST, a->n + 1), out = value_dict(&in->arena, V_NAMESPACE);
    (void)self;
    if (a->n == 0)
        interp_fail(in, JINJA_RUNTIME, "at least one item has to be provided");
    list_add(&in->arena, state.list, value_int(0));
    for (size_t i = 0; i < a->n; i++)
        list_add(&in->arena, state.list, a->positional[i]);
    dict_set(&in->arena, out.dict, value_str(str_of("next", 4)), make_native(in, "next", cycler_next, state));
    return out;
}

static struct value global_lipsum(struct interp *in, struct value self, const struct args *a)
{
    (void)self;
    (void)a;
    interp_fail(in, JINJA_RUNTIME, "lipsum is not available");
}

void add_globals(struct interp *in)
{
    static const struct filter_entry globals[] = {
        {"range", global_range}, {"dict", global_dict}, {"namespace", global_namespace}, {"raise_exception", global_raise}, {"strftime_now", global_strftime},
        {"joiner", global_joiner}, {"cycler", global_cycler}, {"lipsum", global_lipsum},
    };
    dict_set(&in->arena, in->globals, value_str(str_of("self", 4)), value_dict(&in->arena, V_NAMESPACE));
    for (size_t i = 0; i < sizeof globals / sizeof *globals; i++)
        dict_set(&in->arena, in->globals, value_str(str_of(globals[i].name, strlen(globals[i].name))), make_native(in, globals[i].name, globals[i].fn, value_none()));
}

/* --- tests --- */

enum test {
    T_DEFINED, T_UNDEFINED, T_NONE, T_BOOLEAN, T_TRUE, T_FALSE, T_INTEGER, T_FLOAT, T_NUMBER, T_STRING, T_MAPPING, T_SEQUENCE, T_ITERABLE, T_CALLABLE, T_ODD, T_EVEN,
    T_DIVISIBLE, T_EQ, T_NE, T_LT, T_LE, T_GT, T_GE, T_IN, T_SAMEAS, T_LOWER, T_UPPER, T_ESCAPED, T_FILTER, T_TEST
};

static const struct {
    const char *name;
    enum test test;
} tests[] = {
    {"defined", T_DEFINED}, {"undefined", T_UNDEFINED}, {"none", T_NONE}, {"boolean", T_BOOLEAN}, {"true", T_TRUE}, {"false", T_FALSE}, {"integer", T_INTEGER},
    {"float", T_FLOAT}, {"number", T_NUMBER}, {"string", T_STRING}, {"mapping", T_MAPPING}, {"sequence", T_SEQUENCE}, {"iterable", T_ITERABLE},
    {"callable", T_CALLABLE}, {"odd", T_ODD}, {"even", T_EVEN}, {"divisibleby", T_DIVISIBLE}, {"eq", T_EQ}, {"equalto", T_EQ}, {"==", T_EQ}, {"ne", T_NE}, {"!=", T_NE},
    {"lt", T_LT}, {"lessthan", T_LT}, {"<", T_LT}, {"le", T_LE}, {"<=", T_LE}, {"gt", T_GT}, {"greaterthan", T_GT}, {">", T_GT}, {"ge", T_GE}, {">=", T_GE},
    {"in", T_IN}, {"sameas", T_SAMEAS}, {"lower", T_LOWER}, {"upper", T_UPPER}, {"escaped", T_ESCAPED}, {"filter", T_FILTER}, {"test", T_TEST},
};

static int find_test(struct str name)
{
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (str_is(name, tests[i].name))
            return (int)tests[i].test;
    return -1;
}

int test_exists(struct str name)
{
    return find_test(name) >= 0;
}

static int same(struct value a, struct value b)
{
    if (a.type != b.type)
        return 0;
    return a.type == V_LIST || a.type == V_TUPLE || a.type == V_DICT ? a.list == b.list : value_equal(a, b);
}

static int is_multiple(struct interp *in, struct value v, int64_t of)
{
    return binary(in, OP_MOD, v, value_int(of)).i == 0;
}

int apply_test(struct interp *in, struct str name, struct value v, const struct args *a)
{
    struct value other = arg(a, 0, NULL, value_none());
    int t = find_test(name);
    switch (t) {
    case T_DEFINED:
        return v.type != V_UNDEFINED;
    case T_UNDEFINED:
        return v.type == V_UNDEFINED;
    case T_NONE:
        return v.type == V_NONE;
    case T_BOOLEAN:
        return v.type == V_BOOL;
    case T_TRUE:
    case T_FALSE:
        return v.type == V_BOOL && v.i == (t == T_TRUE);
    case T_INTEGER:
        return v.type == V_INT || v.type == V_BIG;
    case T_FLOAT:
        return v.type == V_FLOAT;
    case T_NUMBER:
        return value_is_number(v) || v.type == V_BIG;
    case T_STRING:
        return v.type == V_STRING;
    case T_MAPPING:
        return v.type == V_DICT;
    case T_SEQUENCE:
    case T_ITERABLE:
        return v.type == V_STRING || v.type == V_LIST || v.type == V_TUPLE || v.type == V_DICT || v.type == V_UNDEFINED || (t == T_ITERABLE && v.type == V_LOOP);
    case T_CALLABLE:
        return v.type == V_FUNCTION || v.type == V_LOOP;
    case T_ODD:
        return !is_multiple(in, v, 2);
    case T_EVEN:
        return is_multiple(in, v, 2);
    case T_DIVISIBLE:
        return is_multiple(in, v, need_int(in, other, "divisibleby"));
    case T_EQ:
        return value_equal(v, other);
    case T_NE:
        return !value_equal(v, other);
    case T_LT:
        return compare_values(in, v, other) < 0;
    case T_LE:
        return compare_values(in, v, other) <= 0;
    case T_GT:
        return compare_values(in, v, other) > 0;
    case T_GE:
        return compare_values(in, v, other) >= 0;
    case T_IN:
        return contains(in, v, other);
    case T_SAMEAS:
        return same(v, other);
    case T_LOWER:
    case T_UPPER: {
        struct value method = find_method(in, value_str(to_str(in, v)), t == T_LOWER ? str_of("islower", 7) : str_of("isupper", 7));
        return (int)call_value(in, method, &(struct args){0}).i;
    }
    case T_ESCAPED:
        return 0;
    case T_FILTER:
        return v.type == V_STRING && filter_exists(v.s);
    case T_TEST:
        return v.type == V_STRING && test_exists(v.s);
    default:
        interp_fail(in, JINJA_SYNTAX, "no test named '%.*s'", (int)(name.len < 60 ? name.len : 60), name.data);
    }
}
