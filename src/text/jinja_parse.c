/* Tokens to nodes, by Jinja's grammar. Depth is bounded: hostile nesting ends in an error. */
#include <string.h>

#include "text/jinja_ast.h"
#include "text/jinja_limits.h"

struct parser {
    struct arena *arena;
    struct failure *f;
    const struct token_jinja *t;
    int depth, loops;
    int uses;               /* names seen in the macro being parsed: varargs 1, kwargs 2, caller 4 */
};

static struct node *parse_expression(struct parser *p);
static struct node *parse_or(struct parser *p);
static struct node *parse_unary(struct parser *p, int with_filter);
static struct node *parse_body(struct parser *p, const char *const *ends);

_Noreturn static void fail(struct parser *p, const char *expected)
{
    int n = (int)(p->t->text.len < 40 ? p->t->text.len : 40);
    if (p->t->kind == TOK_END)
        jinja_fail(p->f, JINJA_SYNTAX, "line %d: the template ends where %s was expected", p->t->line, expected);
    jinja_fail(p->f, JINJA_SYNTAX, "line %d: %s was expected, not \"%.*s\"", p->t->line, expected, n, p->t->text.data);
}

static void enter(struct parser *p)
{
    if (++p->depth > JINJA_MAX_DEPTH)
        jinja_fail(p->f, JINJA_SYNTAX, "line %d: nested deeper than %d", p->t->line, JINJA_MAX_DEPTH);
}

static struct node *leave(struct parser *p, struct node *n)
{
    p->depth--;
    return n;
}

static struct node *make(struct parser *p, enum node_kind kind)
{
    struct node *n = arena_alloc(p->arena, sizeof *n);
    n->kind = kind;
    n->line = p->t->line;
    return n;
}

static int is_op(const struct parser *p, const char *op)
{
    return p->t->kind == TOK_OP && str_is(p->t->text, op);
}

static int is_word(const struct parser *p, const char *word)
{
    return p->t->kind == TOK_NAME && str_is(p->t->text, word);
}

static int take_op(struct parser *p, const char *op)
{
    return is_op(p, op) ? p->t++, 1 : 0;
}

static int take_word(struct parser *p, const char *word)
{
    return is_word(p, word) ? p->t++, 1 : 0;
}

static void need_op(struct parser *p, const char *op)
{
    if (!take_op(p, op))
        fail(p, op);
}

static struct str need_name(struct parser *p)
{
    if (p->t->kind != TOK_NAME)
        fail(p, "a name");
    return p->t++->text;
}

static void append(struct node **first, struct node **last, struct node *n)
{
    if (*last)
        (*last)->next = n;
    else
        *first = n;
    *last = n;
}

/* ( ... ): positional and name=value arguments; the opening parenthesis is taken. */
static struct node *parse_arguments(struct parser *p)
{
    struct node *first = NULL, *last = NULL;
    while (!is_op(p, ")")) {
        struct node *n = make(p, N_CONST);
        if (p->t->kind == TOK_NAME && p->t[1].kind == TOK_OP && str_is(p->t[1].text, "=")) {
            n->flag = 1;
            n->name = p->t->text;
            p->t += 2;
        }
        n->a = parse_expression(p);
        append(&first, &last, n);
        if (!take_op(p, ","))
            break;
    }
    need_op(p, ")");
    return first;
}

static struct node *parse_list(struct parser *p, enum node_kind kind, const char *end)
{
    struct node *list = make(p, kind), *last = NULL;
    while (!is_op(p, end)) {
        struct node *n = make(p, N_CONST);
        n->a = parse_expression(p);
        if (kind == N_DICT) {
            need_op(p, ":");
            n->b = parse_expression(p);
        }
        append(&list->args, &last, n);
        if (!take_op(p, ","))
            break;
    }
    need_op(p, end);
    return list;
}

/* Behind "(": an expression, or a tuple when there is a comma or nothing. */
static struct node *parse_parenthesis(struct parser *p)
{
    if (take_op(p, ")"))
        return make(p, N_TUPLE);
    struct node *first = parse_expression(p);
    if (take_op(p, ")"))
        return first;
    need_op(p, ",");
    struct node *tuple = parse_list(p, N_TUPLE, ")"), *item = make(p, N_CONST);
    item->a = first;
    item->next = tuple->args;
    tuple->args = item;
    return tuple;
}

static struct node *parse_name(struct parser *p)
{
    static const struct {
        const char *word;
        enum value_type type;
        int i;
    } constants[] = {{"true", V_BOOL, 1}, {"True", V_BOOL, 1}, {"false", V_BOOL, 0}, {"False", V_BOOL, 0}, {"none", V_NONE, 0}, {"None", V_NONE, 0}};
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (is_word(p, constants[i].word)) {
            struct node *n = make(p, N_CONST);
            n->value = (struct value){.type = constants[i].type, .i = constants[i].i};
            p->t++;
            return n;
        }
    static const char *const reserved[] = {"and", "or", "not", "in", "is", "if", "else", "elif", "for"};
    for (size_t i = 0; i < sizeof reserved / sizeof *reserved; i++)
        if (is_word(p, reserved[i]))
            fail(p, "an expression");
    struct node *n = make(p, N_NAME);
    n->name = need_name(p);
    p->uses |= str_is(n->name, "varargs") ? 1 : str_is(n->name, "kwargs") ? 2 : str_is(n->name, "caller") ? 4 : 0;
    return n;
}

static struct node *parse_string(struct parser *p)
{
    struct node *n = make(p, N_CONST);
    n->value = value_str(p->t++->text);
    while (p->t->kind == TOK_STRING) { /* neighbours are one string */
        struct str a = n->value.s, b = p->t++->text;
        char *joined = arena_alloc(p->arena, a.len + b.len + 1);
        memcpy(joined, a.data, a.len);
        memcpy(joined + a.len, b.data, b.len);
        n->value.s = str_of(joined, a.len + b.len);
    }
    return n;
}

static struct node *parse_primary(struct parser *p)
{
    struct node *n;
    switch (p->t->kind) {
    case TOK_NAME:
        return parse_name(p);
    case TOK_STRING:
        return parse_string(p);
    case TOK_INT:
        n = make(p, N_CONST);
        n->value = value_int(p->t++->i);
        return n;
    case TOK_FLOAT:
        n = make(p, N_CONST);
        n->value = value_float(p->t++->f);
        return n;
    default:
        break;
    }
    if (take_op(p, "("))
        return parse_parenthesis(p);
    if (take_op(p, "["))
        return parse_list(p, N_LIST, "]");
    if (take_op(p, "{"))
        return parse_list(p, N_DICT, "}");
    fail(p, "an expression");
}

/* Behind "[": an index or a slice. */
static struct node *parse_subscript(struct parser *p, struct node *of)
{
    struct node *n = make(p, N_ITEM), *parts[3] = {NULL, NULL, NULL};
    int colons = 0;
    n->a = of;
    while (!is_op(p, "]")) {
        if (take_op(p, ":")) {
            if (++colons > 2)
                fail(p, "]");
            continue;
        }
        if (parts[colons])
            fail(p, "]");
        parts[colons] = parse_expression(p);
    }
    need_op(p, "]");
    if (!colons) {
        if (!parts[0])
            fail(p, "an index");
        n->b = parts[0];
        return n;
    }
    n->kind = N_SLICE;
    n->b = parts[0];
    n->c = parts[1];
    n->d = parts[2];
    return n;
}

static struct node *parse_call(struct parser *p, struct node *of)
{
    struct node *n = make(p, N_CALL);
    n->a = of;
    n->args = parse_arguments(p);
    return n;
}

static struct node *parse_postfix(struct parser *p, struct node *n)
{
    for (int count = 0;; count++) {
        if (count > 10 * JINJA_MAX_DEPTH)
            jinja_fail(p->f, JINJA_SYNTAX, "line %d: too many accesses in a row", p->t->line);
        if (take_op(p, ".")) {
            struct node *attr = make(p, N_ATTR);
            attr->a = n;
            if (p->t->kind == TOK_INT) {
                attr->kind = N_ITEM;
                attr->b = parse_primary(p);
            } else {
                attr->name = need_name(p);
            }
            n = attr;
        } else if (take_op(p, "[")) {
            n = parse_subscript(p, n);
        } else if (take_op(p, "(")) {
            n = parse_call(p, n);
        } else {
            return n;
        }
    }
}

static struct node *parse_test(struct parser *p, struct node *of)
{
    struct node *n = make(p, N_TEST);
    n->a = of;
    n->flag = take_word(p, "not");
    n->name = need_name(p);
    if (take_op(p, "(")) {
        n->args = parse_arguments(p);
        return n;
    }
    int operand = p->t->kind == TOK_STRING || p->t->kind == TOK_INT || p->t->kind == TOK_FLOAT || is_op(p, "[") || is_op(p, "{") ||
                  (p->t->kind == TOK_NAME && !is_word(p, "else") && !is_word(p, "or") && !is_word(p, "and") && !is_word(p, "if"));
    if (operand) {
        if (is_word(p, "is"))
            fail(p, "one test at a time");
        n->args = make(p, N_CONST);
        n->args->a = parse_postfix(p, parse_primary(p));
    }
    return n;
}

static struct node *parse_filter(struct parser *p, struct node *of)
{
    struct node *n = make(p, N_FILTER);
    n->a = of;
    n->name = need_name(p);
    if (take_op(p, "("))
        n->args = parse_arguments(p);
    return n;
}

static struct node *parse_filters(struct parser *p, struct node *n)
{
    for (int count = 0; count < 10 * JINJA_MAX_DEPTH; count++) {
        if (take_op(p, "|"))
            n = parse_filter(p, n);
        else if (take_word(p, "is"))
            n = parse_test(p, n);
        else if (take_op(p, "("))
            n = parse_call(p, n);
        else
            return n;
    }
    jinja_fail(p->f, JINJA_SYNTAX, "line %d: too many filters in a row", p->t->line);
}

static struct node *parse_unary(struct parser *p, int with_filter)
{
    struct node *n;
    enter(p);
    if (is_op(p, "-") || is_op(p, "+")) {
        n = make(p, is_op(p, "-") ? N_NEG : N_POS);
        p->t++;
        n->a = parse_unary(p, 0);
    } else {
        n = parse_primary(p);
    }
    n = parse_postfix(p, n);
    if (with_filter)
        n = parse_filters(p, n);
    return leave(p, n);
}

/* Left-associative operators by level, weakest first. */
static const struct level {
    const char *ops[5];
    enum operator_kind kinds[5];
} levels[] = {
    {{"+", "-", NULL}, {OP_ADD, OP_SUB}},
    {{"~", NULL}, {OP_CONCAT}},
    {{"*", "/", "//", "%", NULL}, {OP_MUL, OP_DIV, OP_FLOORDIV, OP_MOD}},
    {{"**", NULL}, {OP_POW}},
};

static struct node *parse_level(struct parser *p, size_t level)
{
    if (level == sizeof levels / sizeof *levels)
        return parse_unary(p, 1);
    struct node *left = parse_level(p, level + 1);
    for (int i = 0, count = 0; levels[level].ops[i]; i++) {
        if (!take_op(p, levels[level].ops[i]))
            continue;
        if (++count > 10 * JINJA_MAX_DEPTH)
            jinja_fail(p->f, JINJA_SYNTAX, "line %d: an expression is too long", p->t->line);
        struct node *n = make(p, N_BINARY);
        n->op = levels[level].kinds[i];
        n->a = left;
        n->b = parse_level(p, level + 1);
        left = n;
        i = -1; /* look for any of the level again */
    }
    return left;
}

static int take_comparison(struct parser *p, enum operator_kind *op)
{
    static const char *const ops[] = {"==", "!=", "<=", ">=", "<", ">"};
    static const enum operator_kind kinds[] = {OP_EQ, OP_NE, OP_LE, OP_GE, OP_LT, OP_GT};
    for (int i = 0; i < 6; i++)
        if (take_op(p, ops[i])) {
            *op = kinds[i];
            return 1;
        }
    if (take_word(p, "in")) {
        *op = OP_IN;
        return 1;
    }
    if (is_word(p, "not") && p->t[1].kind == TOK_NAME && str_is(p->t[1].text, "in")) {
        p->t += 2;
        *op = OP_NOT_IN;
        return 1;
    }
    return 0;
}

static struct node *parse_compare(struct parser *p)
{
    struct node *left = parse_level(p, 0), *last = NULL, *compare = NULL;
    enum operator_kind op;
    while (take_comparison(p, &op)) {
        if (!compare) {
            compare = make(p, N_COMPARE);
            compare->a = left;
        }
        struct node *n = make(p, N_CONST);
        n->op = op;
        n->a = parse_level(p, 0);
        append(&compare->args, &last, n);
    }
    return compare ? compare : left;
}

static struct node *parse_not(struct parser *p)
{
    if (!is_word(p, "not"))
        return parse_compare(p);
    enter(p);
    struct node *n = make(p, N_NOT);
    p->t++;
    n->a = parse_not(p);
    return leave(p, n);
}

/* A chain of `and` or `or` as one node with its operands in order. */
static struct node *parse_chain(struct parser *p, enum node_kind kind, const char *word, struct node *(*operand)(struct parser *))
{
    struct node *first = operand(p), *last = NULL, *chain = NULL;
    while (take_word(p, word)) {
        if (!chain) {
            chain = make(p, kind);
            struct node *n = make(p, N_CONST);
            n->a = first;
            append(&chain->args, &last, n);
        }
        struct node *n = make(p, N_CONST);
        n->a = operand(p);
        append(&chain->args, &last, n);
    }
    return chain ? chain : first;
}

static struct node *parse_and(struct parser *p)
{
    return parse_chain(p, N_AND, "and", parse_not);
}

static struct node *parse_or(struct parser *p)
{
    return parse_chain(p, N_OR, "or", parse_and);
}

static struct node *parse_expression(struct parser *p)
{
    enter(p);
    struct node *n = parse_or(p);
    while (take_word(p, "if")) {
        struct node *cond = make(p, N_COND);
        cond->a = parse_or(p);
        cond->b = n;
        if (take_word(p, "else"))
            cond->c = parse_expression(p);
        n = cond;
    }
    return leave(p, n);
}

/* One expression, or several with commas as a tuple. */
static struct node *parse_tuple(struct parser *p, struct node *(*element)(struct parser *))
{
    struct node *first = element(p), *tuple, *last = NULL, *item;
    if (!is_op(p, ","))
        return first;
    tuple = make(p, N_TUPLE);
    item = make(p, N_CONST);
    item->a = first;
    append(&tuple->args, &last, item);
    while (take_op(p, ",")) {
        if (p->t->kind == TOK_BLOCK_END || p->t->kind == TOK_VAR_END || is_op(p, "=") || is_word(p, "in"))
            break;
        item = make(p, N_CONST);
        item->a = element(p);
        append(&tuple->args, &last, item);
    }
    return tuple;
}

static struct node *parse_target(struct parser *p);

static struct node *parse_target_item(struct parser *p)
{
    if (take_op(p, "(")) {
        struct node *n = parse_target(p);
        need_op(p, ")");
        return n;
    }
    struct node *n = make(p, N_NAME);
    n->name = need_name(p);
    return n;
}

static struct node *parse_target(struct parser *p)
{
    enter(p);
    return leave(p, parse_tuple(p, parse_target_item));
}

/* --- statements --- */

static void end_block(struct parser *p)
{
    if (p->t->kind != TOK_BLOCK_END)
        fail(p, "the end of the block");
    p->t++;
}

/* Behind the body: {% WORD %} was seen as one of `ends`; takes the word. */
static struct str take_end(struct parser *p)
{
    return need_name(p);
}

static struct node *parse_if(struct parser *p)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL}, *const last[] = {"endif", NULL};
    struct node *n = make(p, N_IF);
    n->a = parse_tuple(p, parse_expression);
    end_block(p);
    n->body = parse_body(p, ends);
    struct str end = take_end(p);
    if (str_is(end, "elif")) {
        enter(p);
        n->other = leave(p, parse_if(p));
        return n;
    }
    if (str_is(end, "else")) {
        end_block(p);
        n->other = parse_body(p, last);
        take_end(p);
    }
    end_block(p);
    return n;
}

static struct node *parse_for(struct parser *p)
{
    static const char *const ends[] = {"else", "endfor", NULL}, *const last[] = {"endfor", NULL};
    struct node *n = make(p, N_FOR);
    n->a = parse_target(p);
    if (!take_word(p, "in"))
        fail(p, "in");
    n->b = parse_tuple(p, parse_or);
    if (take_word(p, "if"))
        n->c = parse_expression(p);
    n->flag = take_word(p, "recursive");
    end_block(p);
    p->loops++;
    n->body = parse_body(p, ends);
    p->loops--;
    if (str_is(take_end(p), "else")) {
        end_block(p);
        n->other = parse_body(p, last);
        take_end(p);
    }
    end_block(p);
    return n;
}

static struct node *parse_set(struct parser *p)
{
    static const char *const ends[] = {"endset", NULL};
    struct node *n = make(p, N_SET);
    if (p->t->kind == TOK_NAME && p->t[1].kind == TOK_OP && str_is(p->t[1].text, ".")) { /* namespace.name */
        n->a = make(p, N_ATTR);
        n->a->a = make(p, N_NAME);
        n->a->a->name = need_name(p);
        p->t++;
        n->a->name = need_name(p);
    } else {
        n->a = parse_target(p);
    }
    if (take_op(p, "=")) {
        n->b = parse_tuple(p, parse_expression);
        end_block(p);
        return n;
    }
    n->kind = N_SET_BLOCK;
    struct node *value = make(p, N_CONST);
    n->c = value;                       /* the rendered body is put here */
    n->b = parse_filters(p, value);
    end_block(p);
    n->body = parse_body(p, ends);
    take_end(p);
    end_block(p);
    return n;
}

/* (a, b=1): names with their defaults in ->a. */
static struct node *parse_signature(struct parser *p)
{
    struct node *first = NULL, *last = NULL;
    while (!is_op(p, ")")) {
        struct node *n = make(p, N_NAME);
        n->name = need_name(p);
        if (take_op(p, "="))
            n->a = parse_expression(p);
        else if (last && last->a)
            fail(p, "a default, as an argument before has one,");
        append(&first, &last, n);
        if (!take_op(p, ","))
            break;
    }
    need_op(p, ")");
    return first;
}

static void parse_macro_body(struct parser *p, struct node *n, const char *end)
{
    const char *const ends[] = {end, NULL};
    int outer = p->uses, loops = p->loops;
    p->uses = p->loops = 0;
    end_block(p);
    n->body = parse_body(p, ends);
    take_end(p);
    n->flag = p->uses;
    p->uses = outer | p->uses;
    p->loops = loops;
    if (p->t->kind == TOK_NAME)
        p->t++;
    end_block(p);
}

static struct node *parse_macro(struct parser *p)
{
    struct node *n = make(p, N_MACRO);
    n->name = need_name(p);
    need_op(p, "(");
    n->args = parse_signature(p);
    parse_macro_body(p, n, "endmacro");
    return n;
}

static struct node *parse_call_block(struct parser *p)
{
    struct node *n = make(p, N_CALL_BLOCK), *caller = make(p, N_MACRO);
    caller->name = str_of("caller", 6);
    if (take_op(p, "("))
        caller->args = parse_signature(p);
    n->a = parse_expression(p);
    if (n->a->kind != N_CALL)
        fail(p, "a call");
    n->b = caller;
    parse_macro_body(p, caller, "endcall");
    return n;
}

static struct node *parse_filter_block(struct parser *p)
{
    static const char *const ends[] = {"endfilter", NULL};
    struct node *n = make(p, N_FILTER_BLOCK), *value = make(p, N_CONST);
    n->c = value;
    n->b = parse_filters(p, parse_filter(p, value));
    end_block(p);
    n->body = parse_body(p, ends);
    take_end(p);
    end_block(p);
    return n;
}

static struct node *parse_with(struct parser *p)
{
    static const char *const ends[] = {"endwith", NULL};
    struct node *n = make(p, N_WITH), *last = NULL;
    while (p->t->kind != TOK_BLOCK_END) {
        struct node *set = make(p, N_SET);
        set->a = parse_target_item(p);
        need_op(p, "=");
        set->b = parse_expression(p);
        append(&n->args, &last, set);
        if (!take_op(p, ","))
            break;
    }
    end_block(p);
    n->body = parse_body(p, ends);
    take_end(p);
    end_block(p);
    return n;
}

static struct node *parse_generation(struct parser *p)
{
    static const char *const ends[] = {"endgeneration", NULL};
    struct node *n = make(p, N_SCOPE);
    end_block(p);
    n->body = parse_body(p, ends);
    take_end(p);
    end_block(p);
    return n;
}

static struct node *parse_jump(struct parser *p, enum node_kind kind)
{
    struct node *n = make(p, kind);
    if (!p->loops)
        fail(p, "a loop around it");
    end_block(p);
    return n;
}

static struct node *parse_statement(struct parser *p)
{
    if (take_word(p, "if"))
        return parse_if(p);
    if (take_word(p, "for"))
        return parse_for(p);
    if (take_word(p, "set"))
        return parse_set(p);
    if (take_word(p, "macro"))
        return parse_macro(p);
    if (take_word(p, "call"))
        return parse_call_block(p);
    if (take_word(p, "filter"))
        return parse_filter_block(p);
    if (take_word(p, "with"))
        return parse_with(p);
    if (take_word(p, "generation"))
        return parse_generation(p);
    if (take_word(p, "break"))
        return parse_jump(p, N_BREAK);
    if (take_word(p, "continue"))
        return parse_jump(p, N_CONTINUE);
    fail(p, "a known tag");
}

static int at_end(const struct parser *p, const char *const *ends)
{
    for (; ends && *ends; ends++)
        if (p->t[1].kind == TOK_NAME && str_is(p->t[1].text, *ends))
            return 1;
    return 0;
}

/* Statements up to a block whose word is one of `ends` (its begin is taken, the word is next), or to the end of the template when ends is NULL. */
static struct node *parse_body(struct parser *p, const char *const *ends)
{
    struct node *first = NULL, *last = NULL, *n;
    enter(p);
    for (;;) {
        switch (p->t->kind) {
        case TOK_TEXT:
            n = make(p, N_TEXT);
            n->value = value_str(p->t++->text);
            break;
        case TOK_VAR_BEGIN:
            n = make(p, N_OUTPUT);
            p->t++;
            n->a = parse_tuple(p, parse_expression);
            if (p->t->kind != TOK_VAR_END)
                fail(p, "the end of the expression");
            p->t++;
            break;
        case TOK_BLOCK_BEGIN:
            if (at_end(p, ends)) {
                p->t++;
                p->depth--;
                return first;
            }
            p->t++;
            n = parse_statement(p);
            break;
        default:
            if (ends || p->t->kind != TOK_END)
                fail(p, ends ? ends[0] : "a tag");
            p->depth--;
            return first;
        }
        append(&first, &last, n);
    }
}

struct node *jinja_parse(struct arena *arena, struct failure *f, const struct token_jinja *tokens)
{
    struct parser p = {.arena = arena, .f = f, .t = tokens};
    return parse_body(&p, NULL);
}
