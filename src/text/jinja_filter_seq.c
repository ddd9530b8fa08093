/* Filters over sequences and mappings, and the lookups of filters by name. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text/jinja_eval.h"
#include "text/jinja_limits.h"

static const struct args no_args;

static struct value list_value(struct list *l)
{
    return (struct value){.type = V_LIST, .list = l};
}

static struct value new_list(struct interp *in)
{
    return value_list(&in->arena, V_LIST, 0);
}

static struct value filter_length(struct interp *in, struct value v, const struct args *a)
{
    (void)a;
    switch (v.type) {
    case V_STRING:
        return value_int((int64_t)utf8_length(v.s));
    case V_DICT:
        return value_int((int64_t)v.dict->n);
    case V_LIST:
    case V_TUPLE:
    case V_UNDEFINED:
        return value_int((int64_t)iterate(in, v)->n);
    default:
        interp_fail(in, JINJA_RUNTIME, "object has no length");
    }
}

static struct value filter_join(struct interp *in, struct value v, const struct args *a)
{
    struct str separator = to_str(in, arg(a, 0, "d", value_str(str_of("", 0))));
    struct value attribute = arg(a, 1, "attribute", value_none());
    struct list *items = iterate(in, v);
    struct sbuf *out = text_begin(in);
    for (size_t i = 0; i < items->n; i++) {
        interp_step(in, 1);
        if (i)
            sbuf_add_str(out, separator, 0, separator.len);
        value_print(out, attribute.type == V_NONE ? items->items[i] : get_path(in, items->items[i], attribute));
    }
    return value_str(text_end(in));
}

static struct value filter_first(struct interp *in, struct value v, const struct args *a)
{
    struct list *l = iterate(in, v);
    (void)a;
    return l->n ? l->items[0] : value_undefined(str_of("first", 5));
}

static struct value filter_last(struct interp *in, struct value v, const struct args *a)
{
    struct list *l = iterate(in, v);
    (void)a;
    return l->n ? l->items[l->n - 1] : value_undefined(str_of("last", 4));
}

static struct value filter_reverse(struct interp *in, struct value v, const struct args *a)
{
    struct list *l = iterate(in, v);
    struct value out = value_list(&in->arena, V_LIST, l->n);
    for (size_t i = l->n; i-- > 0;)
        list_add(&in->arena, out.list, l->items[i]);
    if (v.type != V_STRING)
        return out;
    (void)a;
    return filter_join(in, out, &no_args);
}

static struct value filter_list(struct interp *in, struct value v, const struct args *a)
{
    struct list *l = iterate(in, v);
    struct value out = value_list(&in->arena, V_LIST, l->n);
    (void)a;
    for (size_t i = 0; i < l->n; i++)
        list_add(&in->arena, out.list, l->items[i]);
    return out;
}

/* What sorting compares: the attribute, in lower case unless asked otherwise. */
static struct value sort_key(struct interp *in, struct value v, struct value attribute, int case_sensitive)
{
    if (attribute.type != V_NONE)
        v = get_path(in, v, attribute);
    return v.type == V_STRING && !case_sensitive ? value_str(to_lower(in, v.s)) : v;
}

/* Stable merge sort of items by their keys. */
static void sort_pairs(struct interp *in, struct value *keys, struct value *items, size_t n, int reverse)
{
    struct value *k2 = arena_alloc(&in->arena, (n + 1) * sizeof *k2), *i2 = arena_alloc(&in->arena, (n + 1) * sizeof *i2);
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t start = 0; start < n; start += 2 * width) {
            size_t a = start, mid = start + width < n ? start + width : n, b = mid, end = start + 2 * width < n ? start + 2 * width : n;
            for (size_t out = start; out < end; out++) {
                interp_step(in, 1);
                int take_a = b >= end;
                if (a < mid && b < end) {
                    int c = compare_values(in, keys[b], keys[a]);
                    take_a = reverse ? c <= 0 : c >= 0;
                }
                k2[out] = take_a ? keys[a] : keys[b];
                i2[out] = take_a ? items[a++] : items[b++];
            }
        }
        memcpy(keys, k2, n * sizeof *keys);
        memcpy(items, i2, n * sizeof *items);
    }
}

static struct value sort_list(struct interp *in, struct list *l, struct value attribute, int case_sensitive, int reverse)
{
    struct value out = list_value(l), *keys = arena_alloc(&in->arena, (l->n + 1) * sizeof *keys);
    out = filter_list(in, out, &no_args);
    for (size_t i = 0; i < l->n; i++)
        keys[i] = sort_key(in, l->items[i], attribute, case_sensitive);
    sort_pairs(in, keys, out.list->items, l->n, reverse);
    return out;
}

static struct value filter_sort(struct interp *in, struct value v, const struct args *a)
{
    return sort_list(in, iterate(in, v), arg(a, 2, "attribute", value_none()), value_truth(arg(a, 1, "case_sensitive", value_bool(0))),
                     value_truth(arg(a, 0, "reverse", value_bool(0))));
}

static struct args rest_of(const struct args *a, size_t from)
{
    struct args out = *a;
    size_t skip = from < a->n ? from : a->n;
    out.positional += skip;
    out.n -= skip;
    return out;
}

static struct value filter_map(struct interp *in, struct value v, const struct args *a)
{
    struct list *l = iterate(in, v);
    struct value out = new_list(in), attribute = arg(a, SIZE_MAX, "attribute", value_none()), otherwise = arg(a, SIZE_MAX, "default", value_undefined(str_of("attribute", 9)));
    struct str name = attribute.type == V_NONE ? need_str(in, arg(a, 0, NULL, value_none()), "map") : str_of("", 0);
    struct args rest = rest_of(a, 1);
    if (attribute.type == V_NONE && !filter_exists(name))
        interp_fail(in, JINJA_SYNTAX, "no filter named '%.*s'", (int)(name.len < 60 ? name.len : 60), name.data);
    for (size_t i = 0; i < l->n; i++) {
        struct value item = l->items[i];
        interp_step(in, 1);
        if (attribute.type == V_NONE) {
            item = apply_filter(in, name, item, &rest);
        } else {
            item = get_path(in, item, attribute);
            if (item.type == V_UNDEFINED)
                item = otherwise;
        }
        list_add(&in->arena, out.list, item);
    }
    return out;
}

/* select, reject, selectattr, rejectattr: the test (truth by default) on the item or its attribute. */
static struct value select_items(struct interp *in, struct value v, const struct args *a, int by_attribute, int keep)
{
    struct list *l = iterate(in, v);
    struct value out = new_list(in), path = by_attribute ? arg(a, 0, NULL, value_none()) : value_none();
    struct value test = arg(a, by_attribute ? 1 : 0, NULL, value_none());
    struct args rest = rest_of(a, by_attribute ? 2 : 1);
    for (size_t i = 0; i < l->n; i++) {
        struct value item = by_attribute ? get_path(in, l->items[i], path) : l->items[i];
        interp_step(in, 1);
        int ok = test.type == V_NONE ? value_truth(item) : apply_test(in, need_str(in, test, "select"), item, &rest);
        if (ok == keep)
            list_add(&in->arena, out.list, l->items[i]);
    }
    return out;
}

static struct value filter_select(struct interp *in, struct value v, const struct args *a)
{
    return select_items(in, v, a, 0, 1);
}

static struct value filter_reject(struct interp *in, struct value v, const struct args *a)
{
    return select_items(in, v, a, 0, 0);
}

static struct value filter_selectattr(struct interp *in, struct value v, const struct args *a)
{
    return select_items(in, v, a, 1, 1);
}

static struct value filter_rejectattr(struct interp *in, struct value v, const struct args *a)
{
    return select_items(in, v, a, 1, 0);
}

static struct value pair(struct interp *in, struct value a, struct value b)
{
    struct value t = value_list(&in->arena, V_TUPLE, 2);
    list_add(&in->arena, t.list, a);
    list_add(&in->arena, t.list, b);
    return t;
}

static struct value filter_items(struct interp *in, struct value v, const struct args *a)
{
    struct value out = new_list(in);
    (void)a;
    if (v.type == V_UNDEFINED)
        return out;
    if (v.type != V_DICT)
        interp_fail(in, JINJA_RUNTIME, "Can only get item pairs from a mapping.");
    for (size_t i = 0; i < v.dict->n; i++)
        list_add(&in->arena, out.list, pair(in, v.dict->keys[i], v.dict->values[i]));
    return out;
}

static struct value filter_dictsort(struct interp *in, struct value v, const struct args *a)
{
    struct value by = arg(a, 1, "by", value_str(str_of("key", 3))), reverse = arg(a, 2, "reverse", value_bool(0));
    struct value items = filter_items(in, v, &no_args);
    int index = str_is(need_str(in, by, "dictsort"), "value");
    return sort_list(in, items.list, value_int(index), value_truth(arg(a, 0, "case_sensitive", value_bool(0))), value_truth(reverse));
}

static struct value filter_unique(struct interp *in, struct value v, const struct args *a)
{
    struct list *l = iterate(in, v);
    struct value out = new_list(in), seen = value_dict(&in->arena, V_DICT), attribute = arg(a, 1, "attribute", value_none());
    int case_sensitive = value_truth(arg(a, 0, "case_sensitive", value_bool(0)));
    for (size_t i = 0; i < l->n; i++) {
        struct value key = sort_key(in, l->items[i], attribute, case_sensitive);
        interp_step(in, 1);
        if (dict_find(seen.dict, key))
            continue;
        dict_set(&in->arena, seen.dict, key, value_none());
        list_add(&in->arena, out.list, l->items[i]);
    }
    return out;
}

static struct value extreme(struct interp *in, struct value v, const struct args *a, int sign)
{
    struct list *l = iterate(in, v);
    struct value attribute = arg(a, 1, "attribute", value_none());
    int case_sensitive = value_truth(arg(a, 0, "case_sensitive", value_bool(0)));
    size_t best = 0;
    if (!l->n)
        return value_undefined(str_of("min", 3));
    for (size_t i = 1; i < l->n; i++)
        if (sign * compare_values(in, sort_key(in, l->items[i], attribute, case_sensitive), sort_key(in, l->items[best], attribute, case_sensitive)) > 0)
            best = i;
    return l->items[best];
}

static struct value filter_min(struct interp *in, struct value v, const struct args *a)
{
    return extreme(in, v, a, -1);
}

static struct value filter_max(struct interp *in, struct value v, const struct args *a)
{
    return extreme(in, v, a, 1);
}

static struct value filter_sum(struct interp *in, struct value v, const struct args *a)
{
    struct list *l = iterate(in, v);
    struct value attribute = arg(a, 0, "attribute", value_none()), sum = arg(a, 1, "start", value_int(0));
    for (size_t i = 0; i < l->n; i++)
        sum = binary(in, OP_ADD, sum, attribute.type == V_NONE ? l->items[i] : get_path(in, l->items[i], attribute));
    return sum;
}

static struct value filter_batch(struct interp *in, struct value v, const struct args *a)
{
    struct list *l = iterate(in, v);
    int64_t size = need_int(in, arg(a, 0, "linecount", value_none()), "batch");
    struct value out = new_list(in), fill = arg(a, 1, "fill_with", value_none());
    if (size < 1 || size > JINJA_MAX_RANGE)
        interp_fail(in, JINJA_RUNTIME, "batch expects a size from 1 to %d", JINJA_MAX_RANGE);
    for (size_t i = 0; i < l->n; i++) {
        if (i % (size_t)size == 0)
            list_add(&in->arena, out.list, new_list(in));
        list_add(&in->arena, out.list->items[out.list->n - 1].list, l->items[i]);
    }
    if (fill.type != V_NONE && out.list->n)
        while (out.list->items[out.list->n - 1].list->n < (size_t)size)
            list_add(&in->arena, out.list->items[out.list->n - 1].list, fill);
    return out;
}

static struct value filter_slice(struct interp *in, struct value v, const struct args *a)
{
    struct list *l = iterate(in, v);
    int64_t count = need_int(in, arg(a, 0, "slices", value_none()), "slice");
    struct value out = new_list(in), fill = arg(a, 1, "fill_with", value_none());
    if (count < 1 || count > JINJA_MAX_RANGE)
        interp_fail(in, JINJA_RUNTIME, "slice expects a number from 1 to %d", JINJA_MAX_RANGE);
    size_t each = l->n / (size_t)count, longer = l->n % (size_t)count, at = 0;
    for (size_t i = 0; i < (size_t)count; i++) {
        struct value part = new_list(in);
        size_t n = each + (i < longer);
        for (size_t k = 0; k < n; k++)
            list_add(&in->arena, part.list, l->items[at++]);
        if (fill.type != V_NONE && i >= longer && longer)
            list_add(&in->arena, part.list, fill);
        list_add(&in->arena, out.list, part);
    }
    return out;
}

static struct value filter_groupby(struct interp *in, struct value v, const struct args *a)
{
    struct value attribute = arg(a, 0, "attribute", value_none()), out = new_list(in);
    struct list *sorted = sort_list(in, iterate(in, v), attribute, value_truth(arg(a, 2, "case_sensitive", value_bool(0))), 0).list;
    struct value last = value_none();
    for (size_t i = 0; i < sorted->n; i++) {
        struct value key = get_path(in, sorted->items[i], attribute);
        if (i == 0 || !value_equal(key, last))
            list_add(&in->arena, out.list, pair(in, key, new_list(in)));
        last = key;
        list_add(&in->arena, out.list->items[out.list->n - 1].list->items[1].list, sorted->items[i]);
    }
    return out;
}

static struct value filter_attr(struct interp *in, struct value v, const struct args *a)
{
    struct str name = need_str(in, arg(a, 0, "name", value_none()), "attr");
    if (v.type == V_DICT) /* attributes only, not items */
        return find_method(in, v, name);
    return get_attribute(in, v, name);
}

static struct value filter_default(struct interp *in, struct value v, const struct args *a)
{
    struct value otherwise = arg(a, 0, "default_value", value_str(str_of("", 0)));
    int any_false = value_truth(arg(a, 1, "boolean", value_bool(0)));
    return v.type == V_UNDEFINED || (any_false && !value_truth(v)) ? otherwise : v;
    (void)in;
}

static struct value filter_abs(struct interp *in, struct value v, const struct args *a)
{
    (void)a;
    if (!value_is_number(v))
        interp_fail(in, JINJA_RUNTIME, "bad operand type for abs()");
    if (v.type == V_FLOAT)
        return value_float(fabs(v.f));
    return v.i < 0 ? binary(in, OP_SUB, value_int(0), value_int(v.i)) : value_int(v.i);
}

static struct value filter_round(struct interp *in, struct value v, const struct args *a)
{
    int64_t precision = need_int(in, arg(a, 0, "precision", value_int(0)), "round");
    struct value method = arg(a, 1, "method", value_str(str_of("common", 6)));
    if (!value_is_number(v) || precision < -300 || precision > 300)
        interp_fail(in, JINJA_RUNTIME, "round expects a number");
    double x = value_as_float(v), scale = pow(10, (double)precision);
    struct str how = need_str(in, method, "round");
    if (str_is(how, "ceil"))
        return value_float(ceil(x * scale) / scale);
    if (str_is(how, "floor"))
        return value_float(floor(x * scale) / scale);
    if (!str_is(how, "common"))
        interp_fail(in, JINJA_RUNTIME, "method must be common, ceil or floor");
    if (precision <= 0)
        return value_float(nearbyint(x * scale) / scale); /* half to even, as Python */
    char text[360];
    snprintf(text, sizeof text, "%.*f", (int)(precision < 40 ? precision : 40), x); /* the decimal nearest, half to even on the exact binary value */
    double out = 0;
    sscanf(text, "%lf", &out);
    return value_float(out);
}

const struct filter_entry sequence_filters[] = {
    {"length", filter_length}, {"count", filter_length}, {"join", filter_join}, {"first", filter_first}, {"last", filter_last}, {"reverse", filter_reverse},
    {"list", filter_list}, {"sort", filter_sort}, {"map", filter_map}, {"select", filter_select}, {"reject", filter_reject}, {"selectattr", filter_selectattr},
    {"rejectattr", filter_rejectattr}, {"items", filter_items}, {"dictsort", filter_dictsort}, {"unique", filter_unique}, {"min", filter_min}, {"max", filter_max},
    {"sum", filter_sum}, {"batch", filter_batch}, {"slice", filter_slice}, {"groupby", filter_groupby}, {"attr", filter_attr}, {"default", filter_default},
    {"d", filter_default}, {"abs", filter_abs}, {"round", filter_round}, {"tojson", to_json}, {NULL, NULL},
};

static const struct filter_entry *find_filter(struct str name)
{
    const struct filter_entry *const tables[] = {sequence_filters, text_filters};
    for (int t = 0; t < 2; t++)
        for (const struct filter_entry *e = tables[t]; e->name; e++)
            if (str_is(name, e->name))
                return e;
    return NULL;
}

int filter_exists(struct str name)
{
    return find_filter(name) != NULL;
}

struct value apply_filter(struct interp *in, struct str name, struct value self, const struct args *args)
{
    const struct filter_entry *e = find_filter(name);
    if (!e)
        interp_fail(in, JINJA_SYNTAX, "no filter named '%.*s'", (int)(name.len < 60 ? name.len : 60), name.data);
    if (self.type == V_UNDEFINED && self.unsafe)
        interp_fail(in, JINJA_SANDBOX, "access to attribute '%.*s' is unsafe", (int)(self.s.len < 60 ? self.s.len : 60), self.s.data);
    return e->fn(in, self, args);
}
