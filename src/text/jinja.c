/* Statements, scopes, macros; compiling and rendering. */
#include "text/jinja.h"

#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "text/jinja_eval.h"
#include "text/jinja_limits.h"

enum flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE };

static enum flow run_body(struct interp *in, const struct node *n);

static struct scope *scope_push(struct interp *in, struct scope *parent)
{
    struct scope *s = arena_alloc(&in->arena, sizeof *s);
    s->vars = value_dict(&in->arena, V_DICT).dict;
    s->parent = parent;
    return s;
}

static void set_name(struct interp *in, struct str name, struct value v)
{
    dict_set(&in->arena, in->scope->vars, value_str(name), v);
}

static void assign(struct interp *in, const struct node *target, struct value v)
{
    if (target->kind == N_NAME) {
        set_name(in, target->name, v);
        return;
    }
    if (target->kind == N_ATTR) {
        struct value of = eval(in, target->a);
        if (of.type != V_NAMESPACE)
            interp_fail(in, JINJA_RUNTIME, "cannot assign attribute on non-namespace object");
        dict_set(&in->arena, of.dict, value_str(target->name), v);
        return;
    }
    struct list *items = iterate(in, v);
    size_t i = 0;
    for (const struct node *k = target->args; k; k = k->next, i++) {
        if (i >= items->n)
            interp_fail(in, JINJA_RUNTIME, "not enough values to unpack (got %zu)", items->n);
        assign(in, k->a, items->items[i]);
    }
    if (i != items->n)
        interp_fail(in, JINJA_RUNTIME, "too many values to unpack (expected %zu)", i);
}

/* Output of a body as a string, in a scope of its own. */
static struct str run_captured(struct interp *in, const struct node *body, struct scope *scope)
{
    struct sbuf *outer = in->out;
    struct scope *saved = in->scope;
    in->out = text_begin(in);
    in->scope = scope;
    run_body(in, body);
    in->scope = saved;
    in->out = outer;
    return text_end(in);
}

static struct list *filtered(struct interp *in, const struct node *n, struct list *items)
{
    struct list *kept = value_list(&in->arena, V_LIST, 0).list;
    struct scope *saved = in->scope;
    for (size_t i = 0; i < items->n; i++) {
        in->scope = scope_push(in, saved);
        assign(in, n->a, items->items[i]);
        if (value_truth(eval(in, n->c)))
            list_add(&in->arena, kept, items->items[i]);
    }
    in->scope = saved;
    return kept;
}

static void run_loop(struct interp *in, const struct node *n, struct value over, int depth)
{
    struct list *items = iterate(in, over);
    struct scope *saved = in->scope;
    if (n->c)
        items = filtered(in, n, items);
    struct loop *loop = arena_alloc(&in->arena, sizeof *loop);
    *loop = (struct loop){.items = items, .depth = depth, .node = n->flag ? n : NULL, .scope = saved};
    for (; loop->index < items->n; loop->index++) {
        interp_step(in, 1);
        in->scope = scope_push(in, saved);
        assign(in, n->a, items->items[loop->index]);
        set_name(in, str_of("loop", 4), (struct value){.type = V_LOOP, .loop = loop});
        if (run_body(in, n->body) == FLOW_BREAK)
            break;
    }
    in->scope = saved;
    if (items->n == 0 && n->other) {
        in->scope = scope_push(in, saved);
        run_body(in, n->other);
        in->scope = saved;
    }
}

static struct value make_macro(struct interp *in, const struct node *n)
{
    struct function *f = arena_alloc(&in->arena, sizeof *f);
    f->name = n->name;
    f->macro = n;
    f->scope = in->scope;
    return (struct value){.type = V_FUNCTION, .function = f};
}

static const struct value *named_arg(const struct args *args, struct str name)
{
    for (size_t i = 0; i < args->n_named; i++)
        if (str_equal(args->names[i], name))
            return &args->named[i];
    return NULL;
}

static int is_parameter(const struct node *macro, struct str name)
{
    for (const struct node *k = macro->args; k; k = k->next)
        if (str_equal(k->name, name))
            return 1;
    return 0;
}

/* varargs, kwargs and caller, for macros that use them; an error for arguments that nobody takes. */
static void bind_rest(struct interp *in, const struct function *f, const struct args *args, size_t taken)
{
    struct value varargs = value_list(&in->arena, V_TUPLE, 0), kwargs = value_dict(&in->arena, V_DICT);
    int n = (int)(f->name.len < 60 ? f->name.len : 60);
    for (size_t i = taken; i < args->n; i++)
        list_add(&in->arena, varargs.list, args->positional[i]);
    for (size_t i = 0; i < args->n_named; i++) {
        if (is_parameter(f->macro, args->names[i]))
            continue;
        if (str_is(args->names[i], "caller") && (f->macro->flag & 4))
            set_name(in, args->names[i], args->named[i]);
        else
            dict_set(&in->arena, kwargs.dict, value_str(args->names[i]), args->named[i]);
    }
    if (varargs.list->n && !(f->macro->flag & 1))
        interp_fail(in, JINJA_RUNTIME, "macro '%.*s' takes not more than %zu argument(s)", n, f->name.data, taken);
    if (kwargs.dict->n && !(f->macro->flag & 2))
        interp_fail(in, JINJA_RUNTIME, "macro '%.*s' takes no keyword argument '%.*s'", n, f->name.data, (int)kwargs.dict->keys[0].s.len, kwargs.dict->keys[0].s.data);
    if (f->macro->flag & 1)
        set_name(in, str_of("varargs", 7), varargs);
    if (f->macro->flag & 2)
        set_name(in, str_of("kwargs", 6), kwargs);
}

static struct value call_macro(struct interp *in, const struct function *f, const struct args *args)
{
    struct scope *saved = in->scope, *scope = scope_push(in, f->scope);
    size_t i = 0;
    in->scope = scope;
    for (const struct node *k = f->macro->args; k; k = k->next, i++) {
        const struct value *named = named_arg(args, k->name);
        if (i < args->n && named)
            interp_fail(in, JINJA_RUNTIME, "macro got multiple values for argument '%.*s'", (int)k->name.len, k->name.data);
        set_name(in, k->name, i < args->n ? args->positional[i] : named ? *named : k->a ? eval(in, k->a) : value_undefined(k->name));
    }
    bind_rest(in, f, args, i < args->n ? i : args->n);
    in->scope = saved;
    return value_str(run_captured(in, f->macro->body, scope));
}

static struct value call_loop(struct interp *in, const struct loop *l, const struct args *args)
{
    if (!l->node || args->n != 1)
        interp_fail(in, JINJA_RUNTIME, "the loop must have the 'recursive' marker and is called with one argument");
    struct sbuf *outer = in->out;
    struct scope *saved = in->scope;
    in->out = text_begin(in);
    in->scope = l->scope;
    run_loop(in, l->node, args->positional[0], l->depth + 1);
    in->scope = saved;
    in->out = outer;
    return value_str(text_end(in));
}

struct value call_value(struct interp *in, struct value f, const struct args *args)
{
    struct value v;
    if (f.type == V_UNDEFINED)
        interp_fail(in, f.unsafe ? JINJA_SANDBOX : JINJA_UNDEFINED, "'%.*s' is %s", (int)(f.s.len < 60 ? f.s.len : 60), f.s.data, f.unsafe ? "not safely callable" : "undefined");
    if (f.type != V_FUNCTION && f.type != V_LOOP)
        interp_fail(in, JINJA_RUNTIME, "object is not callable");
    in->depth += 8; /* a call holds more of the stack than a node */
    if (in->depth > 4 * JINJA_MAX_DEPTH) {
        in->failure.code = ERR_LIMIT;
        interp_fail(in, JINJA_RUNTIME, "maximum recursion depth exceeded");
    }
    if (f.type == V_LOOP)
        v = call_loop(in, f.loop, args);
    else if (f.function->macro)
        v = call_macro(in, f.function, args);
    else
        v = f.function->native(in, f.function->self, args);
    in->depth -= 8;
    return v;
}

/* {% call(args) macro(...) %}: the body becomes the macro's caller. */
static struct value call_with_caller(struct interp *in, const struct node *n)
{
    const struct node *call = n->a;
    struct value f = eval(in, call->a);
    size_t count = 1;
    for (const struct node *k = call->args; k; k = k->next)
        count++;
    struct args args = {.positional = arena_alloc(&in->arena, count * sizeof *args.positional)};
    struct str *names = arena_alloc(&in->arena, count * sizeof *names);
    struct value *named = arena_alloc(&in->arena, count * sizeof *named);
    for (const struct node *k = call->args; k; k = k->next) {
        if (k->flag) {
            names[args.n_named] = k->name;
            named[args.n_named++] = eval(in, k->a);
        } else {
            args.positional[args.n++] = eval(in, k->a);
        }
    }
    names[args.n_named] = str_of("caller", 6);
    named[args.n_named++] = make_macro(in, n->b);
    args.names = names;
    args.named = named;
    return call_value(in, f, &args);
}

/* The filters of a set or filter block, over its rendered body: the node that stands for the body gets its value in a copy of the chain. */
static struct value filter_body(struct interp *in, const struct node *chain, const struct node *hole, struct value body)
{
    if (chain == hole)
        return body;
    struct node copy = *chain, inner = {.kind = N_CONST, .line = chain->line};
    inner.value = filter_body(in, chain->a, hole, body);
    copy.a = &inner;
    return eval(in, &copy);
}

static void output(struct interp *in, struct value v)
{
    value_print(in->out, v);
    if (in->out->text.failed) {
        in->failure.code = in->out->text.failed;
        interp_fail(in, JINJA_RUNTIME, in->out->text.failed == ERR_LIMIT ? "the output grows beyond %d bytes" : "out of memory for an output of up to %d bytes", JINJA_MAX_OUTPUT);
    }
}

static void run_with(struct interp *in, const struct node *n)
{
    struct scope *saved = in->scope, *inner = scope_push(in, saved);
    for (const struct node *k = n->args; k; k = k->next) {
        struct value v = eval(in, k->b); /* in the outer scope */
        in->scope = inner;
        assign(in, k->a, v);
        in->scope = saved;
    }
    in->scope = inner;
    run_body(in, n->body);
    in->scope = saved;
}

static enum flow run_statement(struct interp *in, const struct node *n)
{
    struct str text;
    switch (n->kind) {
    case N_TEXT:
        output(in, n->value);
        return FLOW_ON;
    case N_OUTPUT:
        output(in, eval(in, n->a));
        return FLOW_ON;
    case N_IF:
        return run_body(in, value_truth(eval(in, n->a)) ? n->body : n->other);
    case N_FOR:
        run_loop(in, n, eval(in, n->b), 1);
        return FLOW_ON;
    case N_SET:
        assign(in, n->a, eval(in, n->b));
        return FLOW_ON;
    case N_SET_BLOCK:
        text = run_captured(in, n->body, scope_push(in, in->scope));
        assign(in, n->a, filter_body(in, n->b, n->c, value_str(text)));
        return FLOW_ON;
    case N_FILTER_BLOCK:
        text = run_captured(in, n->body, scope_push(in, in->scope));
        output(in, filter_body(in, n->b, n->c, value_str(text)));
        return FLOW_ON;
    case N_MACRO:
        set_name(in, n->name, make_macro(in, n));
        return FLOW_ON;
    case N_CALL_BLOCK:
        output(in, call_with_caller(in, n));
        return FLOW_ON;
    case N_WITH:
        run_with(in, n);
        return FLOW_ON;
    case N_SCOPE:
        return run_body(in, n->body);
    case N_BREAK:
        return FLOW_BREAK;
    case N_CONTINUE:
        return FLOW_CONTINUE;
    default:
        interp_fail(in, JINJA_RUNTIME, "not a statement");
    }
}

static enum flow run_body(struct interp *in, const struct node *n)
{
    enum flow flow = FLOW_ON;
    if (++in->depth > 4 * JINJA_MAX_DEPTH) {
        in->failure.code = ERR_LIMIT;
        interp_fail(in, JINJA_RUNTIME, "maximum recursion depth exceeded");
    }
    for (; n && flow == FLOW_ON; n = n->next) {
        interp_step(in, 1);
        flow = run_statement(in, n);
    }
    in->depth--;
    return flow;
}

/* JSON values as template values; all their text counts as untrusted. */
static struct value from_json(struct interp *in, const json_t *j, int depth)
{
    struct value out;
    if (depth > 2 * JINJA_MAX_DEPTH) {
        in->failure.code = ERR_LIMIT;
        interp_fail(in, JINJA_RUNTIME, "the variables nest too deep");
    }
    switch (json_typeof(j)) {
    case JSON_OBJECT:
        out = value_dict(&in->arena, V_DICT);
        for (void *it = json_object_iter((json_t *)j); it; it = json_object_iter_next((json_t *)j, it)) {
            struct text_span *span = arena_alloc(&in->arena, sizeof *span);
            struct str key = str_of(json_object_iter_key(it), json_object_iter_key_len(it));
            *span = (struct text_span){0, key.len};
            key.untrusted = span;
            key.n_untrusted = key.len > 0;
            dict_set(&in->arena, out.dict, value_str(key), from_json(in, json_object_iter_value(it), depth + 1));
        }
        return out;
    case JSON_ARRAY:
        out = value_list(&in->arena, V_LIST, json_array_size(j));
        for (size_t i = 0; i < json_array_size(j); i++)
            list_add(&in->arena, out.list, from_json(in, json_array_get(j, i), depth + 1));
        return out;
    case JSON_STRING: {
        struct text_span *span = arena_alloc(&in->arena, sizeof *span);
        struct str s = str_of(json_string_value(j), json_string_length(j));
        size_t n_digits;
        const char *digits = json_big_integer(j, &n_digits);
        if (digits)
            return (struct value){.type = V_BIG, .s = str_of(digits, n_digits)};
        *span = (struct text_span){0, s.len};
        s.untrusted = span;
        s.n_untrusted = s.len > 0;
        return value_str(s);
    }
    case JSON_INTEGER:
        return value_int(json_integer_value(j));
    case JSON_REAL:
        return value_float(json_real_value(j));
    case JSON_TRUE:
    case JSON_FALSE:
        return value_bool(json_is_true(j));
    case JSON_NULL:
        break;
    }
    return value_none();
}

static void check_names(struct failure *f, const struct node *n, int depth)
{
    for (; n; n = n->next) {
        if (depth > 6 * JINJA_MAX_DEPTH)
            jinja_fail(f, JINJA_SYNTAX, "line %d: nested too deep", n->line);
        if (n->kind == N_FILTER && !filter_exists(n->name))
            jinja_fail(f, JINJA_SYNTAX, "line %d: no filter named '%.*s'", n->line, (int)(n->name.len < 60 ? n->name.len : 60), n->name.data);
        if (n->kind == N_TEST && !test_exists(n->name))
            jinja_fail(f, JINJA_SYNTAX, "line %d: no test named '%.*s'", n->line, (int)(n->name.len < 60 ? n->name.len : 60), n->name.data);
        const struct node *const parts[] = {n->a, n->b, n->c, n->d, n->args, n->body, n->other};
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
            check_names(f, parts[i], depth + 1);
    }
}

int jinja_compile(const char *source, size_t n, struct jinja **out, enum jinja_error *kind, struct err *err)
{
    struct jinja *volatile t = mem_alloc(MEM_TEXT, sizeof *t);
    struct err local;
    struct failure f = {.code = ERR_TEMPLATE, .err = err ? err : &local};
    *kind = JINJA_OK;
    if (!t)
        return err_set(err, ERR_NO_MEMORY, "out of memory for a template");
    t->arena = (struct arena){.max = JINJA_MAX_MEMORY, .failure = &f};
    if (setjmp(f.jump)) {
        *kind = f.kind;
        f.err->code = f.code;
        jinja_free(t);
        return f.code;
    }
    if (n > JINJA_MAX_SOURCE) {
        f.code = ERR_LIMIT;
        jinja_fail(&f, JINJA_SYNTAX, "the template is longer than %d bytes", JINJA_MAX_SOURCE);
    }
    if (!utf8_valid(source, n))
        jinja_fail(&f, JINJA_SYNTAX, "the template is not valid UTF-8");
    t->body = jinja_parse(&t->arena, &f, jinja_lex(&t->arena, &f, source, n));
    check_names(&f, t->body, 0);
    t->arena.failure = NULL;
    *out = t;
    return 0;
}

void jinja_free(struct jinja *t)
{
    if (!t)
        return;
    arena_free(&t->arena);
    mem_free(t);
}

void jinja_output_init(struct jinja_output *out)
{
    *out = (struct jinja_output){0};
    buf_init(&out->text, MEM_TEXT, JINJA_MAX_OUTPUT);
}

void jinja_output_free(struct jinja_output *out)
{
    buf_free(&out->text);
    mem_free(out->untrusted);
    out->untrusted = NULL;
    out->n_untrusted = 0;
}

static void interp_free(struct interp *in)
{
    while (in->n_open)
        sbuf_free(in->open[--in->n_open]);
    arena_free(&in->arena);
}

int jinja_render(const struct jinja *t, const json_t *vars, const struct tm *now, struct jinja_output *out, enum jinja_error *kind, struct err *err)
{
    struct err local;
    struct interp *in = mem_alloc(MEM_TEXT, sizeof *in);
    struct sbuf result;
    *kind = JINJA_OK;
    if (!in)
        return err_set(err, ERR_NO_MEMORY, "out of memory while rendering a template");
    sbuf_init(&result, JINJA_MAX_OUTPUT);
    in->failure = (struct failure){.code = ERR_TEMPLATE, .err = err ? err : &local};
    in->arena = (struct arena){.max = JINJA_MAX_MEMORY, .failure = &in->failure};
    in->now = now;
    if (setjmp(in->failure.jump)) {
        int code = in->failure.code;
        *kind = in->failure.kind;
        in->failure.err->code = code;
        interp_free(in);
        mem_free(in);
        sbuf_free(&result);
        return code;
    }
    in->out = &result;
    in->globals = value_dict(&in->arena, V_DICT).dict;
    add_globals(in);
    in->scope = scope_push(in, NULL);
    in->scope->vars = json_is_object(vars) ? from_json(in, vars, 0).dict : in->scope->vars;
    run_body(in, t->body);
    interp_free(in);
    mem_free(in);
    buf_free(&out->text);
    mem_free(out->untrusted);
    *out = (struct jinja_output){.text = result.text, .untrusted = result.spans, .n_untrusted = result.n};
    return 0;
}

const char *jinja_error_name(enum jinja_error kind)
{
    static const char *const names[] = {"ok", "syntax", "raised", "undefined", "runtime", "sandbox"};
    return names[kind];
}
