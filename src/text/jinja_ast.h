/* A compiled template: nodes in one arena, owned by struct jinja. */
#ifndef TEXT_JINJA_AST_H
#define TEXT_JINJA_AST_H

#include <setjmp.h>

#include "text/jinja.h"
#include "text/jinja_value.h"

enum node_kind {
    /* expressions */
    N_CONST, N_NAME, N_LIST, N_TUPLE, N_DICT, N_ATTR, N_ITEM, N_SLICE, N_CALL, N_FILTER, N_TEST, N_BINARY, N_COMPARE, N_AND, N_OR, N_NOT, N_NEG, N_POS, N_COND,
    /* statements */
    N_TEXT, N_OUTPUT, N_IF, N_FOR, N_SET, N_SET_BLOCK, N_MACRO, N_CALL_BLOCK, N_FILTER_BLOCK, N_WITH, N_SCOPE, N_BREAK, N_CONTINUE
};

enum operator_kind { OP_ADD, OP_SUB, OP_MUL, OP_DIV, OP_FLOORDIV, OP_MOD, OP_POW, OP_CONCAT, OP_EQ, OP_NE, OP_LT, OP_LE, OP_GT, OP_GE, OP_IN, OP_NOT_IN };

/* One shape for all: what a field means depends on the kind. Lists are linked through `next`. */
struct node {
    enum node_kind kind;
    enum operator_kind op;
    int line, flag;            /* flag: negated test; loop is recursive; macro uses varargs 1, kwargs 2, caller 4; keyword argument */
    struct str name;           /* of a name, attribute, filter, test, macro, keyword argument */
    struct value value;        /* of a constant or text */
    struct node *a, *b, *c, *d;
    struct node *args;         /* arguments, elements, pairs */
    struct node *body, *other; /* statements; else */
    struct node *next;
};

struct jinja {
    struct arena arena;
    struct node *body;
};

enum token_kind_jinja {
    TOK_END, TOK_TEXT, TOK_BLOCK_BEGIN, TOK_BLOCK_END, TOK_VAR_BEGIN, TOK_VAR_END, TOK_NAME, TOK_STRING, TOK_INT, TOK_FLOAT, TOK_OP
};

struct token_jinja {
    enum token_kind_jinja kind;
    int line;
    struct str text;           /* name, operator, string contents, template text */
    int64_t i;
    double f;
};

/* A failure leaves by longjmp to the compile or render call; all that was allocated is in an arena. */
struct failure {
    jmp_buf jump;
    enum jinja_error kind;
    int code;
    struct err *err;
};

_Noreturn void jinja_fail(struct failure *f, enum jinja_error kind, const char *format, ...) PRINTF_LIKE(3, 4);

/* All tokens of a template, ended by TOK_END. */
struct token_jinja *jinja_lex(struct arena *arena, struct failure *f, const char *source, size_t n);
struct node *jinja_parse(struct arena *arena, struct failure *f, const struct token_jinja *tokens);

#endif
