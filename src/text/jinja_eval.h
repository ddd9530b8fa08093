/* Inside of the evaluator, for the files that add filters, tests and methods. */
#ifndef TEXT_JINJA_EVAL_H
#define TEXT_JINJA_EVAL_H

#include "text/jinja_ast.h"

struct scope {
    struct scope *parent;
    struct dict *vars;
};

struct loop {
    struct list *items;
    size_t index;
    int depth;
    struct value last_changed;
    int has_changed;
    const struct node *node;   /* of a recursive loop */
    struct scope *scope;
};

struct interp {
    struct arena arena;
    struct failure failure;
    struct sbuf *out;          /* where output goes now */
    struct scope *scope;
    struct dict *globals;
    const struct tm *now;
    int depth;
    int64_t steps;
    struct sbuf **open;        /* buffers to free when a failure leaves */
    size_t n_open, cap_open;
};

_Noreturn void interp_fail(struct interp *in, enum jinja_error kind, const char *format, ...) PRINTF_LIKE(3, 4);
void interp_step(struct interp *in, int64_t cost);

struct value eval(struct interp *in, const struct node *n);
struct value call_value(struct interp *in, struct value f, const struct args *args);
struct value get_attribute(struct interp *in, struct value of, struct str name);
struct value get_item(struct interp *in, struct value of, struct value key);
/* "a.b" or a number, as filters take it. */
struct value get_path(struct interp *in, struct value of, struct value path);
struct value binary(struct interp *in, enum operator_kind op, struct value a, struct value b);
int compare_values(struct interp *in, struct value a, struct value b); /* -1, 0, 1; fails for what has no order */
int contains(struct interp *in, struct value needle, struct value haystack);
/* A list of what iterating v gives. */
struct list *iterate(struct interp *in, struct value v);

/* A temporary string builder: begin, add, end gives the string (in the arena). Nested properly. */
struct sbuf *text_begin(struct interp *in);
struct str text_end(struct interp *in);
struct str to_str(struct interp *in, struct value v);   /* str(v) */
struct str need_str(struct interp *in, struct value v, const char *who);
int64_t need_int(struct interp *in, struct value v, const char *who);

/* Argument i, or the one named; otherwise `otherwise`. */
struct value arg(const struct args *a, size_t i, const char *name, struct value otherwise);

/* By name; fail as syntax errors when there is none. self is the first operand. */
struct value apply_filter(struct interp *in, struct str name, struct value self, const struct args *args);
int apply_test(struct interp *in, struct str name, struct value self, const struct args *args);
int filter_exists(struct str name);
int test_exists(struct str name);

/* A bound method, or undefined. */
struct value find_method(struct interp *in, struct value self, struct str name);
void add_globals(struct interp *in);
struct value make_native(struct interp *in, const char *name, native_fn *fn, struct value self);

/* json.dumps as Hugging Face configures it. */
struct value to_json(struct interp *in, struct value v, const struct args *args);
/* "%s %d" % values, and "{}".format(…). */
struct value format_percent(struct interp *in, struct str format, struct value values);
struct value format_braces(struct interp *in, struct str format, const struct args *args);
struct str change_case(struct interp *in, struct str s, int (*upper_at)(size_t point, uint32_t before));
struct str to_upper(struct interp *in, struct str s);
struct str to_lower(struct interp *in, struct str s);

struct filter_entry {
    const char *name;
    native_fn *fn;
};
extern const struct filter_entry sequence_filters[], text_filters[], string_methods[];

#endif
