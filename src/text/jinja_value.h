/* Values of the interpreter: Python's, as far as templates can tell. Everything lives in the arena of one rendering. */
#ifndef TEXT_JINJA_VALUE_H
#define TEXT_JINJA_VALUE_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "text/vocab.h"

struct failure;

/* Memory that is freed all at once. */
struct arena {
    struct arena_block *blocks;
    size_t used, max;
    struct failure *failure; /* where running out leads */
};

void *arena_alloc(struct arena *a, size_t bytes); /* zeroed; does not return when there is none */
void arena_free(struct arena *a);

/* Bytes, valid UTF-8, with the ranges that came from variables: sorted, disjoint. */
struct str {
    const char *data;
    size_t len;
    const struct text_span *untrusted;
    size_t n_untrusted;
};

enum value_type { V_UNDEFINED, V_NONE, V_BOOL, V_INT, V_FLOAT, V_STRING, V_LIST, V_TUPLE, V_DICT, V_NAMESPACE, V_FUNCTION, V_LOOP,
                  V_BIG /* a whole number of a variable beyond 64 bits: it can be shown, not reckoned with */ };

struct value {
    enum value_type type;
    int unsafe;              /* undefined because the sandbox forbids it */
    union {
        int64_t i;           /* also bool */
        double f;
        struct str s;        /* also the name of what is undefined, and the digits of V_BIG */
        struct list *list;   /* list and tuple */
        struct dict *dict;   /* dict and namespace */
        struct function *function;
        struct loop *loop;
    };
};

struct list {
    struct value *items;
    size_t n, cap;
};

struct dict { /* in order of insertion */
    struct value *keys, *values;
    size_t n, cap;
    uint32_t *index;         /* open addressing over entries + 1, once there are more than a few */
    size_t index_mask;
};

struct interp;

struct args {
    struct value *positional;
    size_t n;
    const struct str *names; /* keyword arguments */
    const struct value *named;
    size_t n_named;
};

typedef struct value native_fn(struct interp *in, struct value self, const struct args *args);

struct function {
    struct str name;
    native_fn *native;       /* a builtin or a bound method */
    struct value self;
    const struct node *macro;
    struct scope *scope;     /* where the macro was defined */
    int64_t state;           /* joiner and cycler: calls so far */
};

/* --- building strings that keep track of where they came from --- */
struct sbuf {
    struct buf text;
    struct text_span *spans;
    size_t n, cap;
};

void sbuf_init(struct sbuf *b, size_t max);
void sbuf_free(struct sbuf *b);
void sbuf_add(struct sbuf *b, const char *text, size_t n, int untrusted);
void sbuf_mark(struct sbuf *b, size_t start, size_t end); /* what was added last is untrusted */
void sbuf_add_text(struct sbuf *b, const char *text);
void sbuf_add_str(struct sbuf *b, struct str s, size_t from, size_t to);

static inline struct str str_of(const char *text, size_t n)
{
    return (struct str){.data = text, .len = n};
}
struct str str_sub(struct arena *a, struct str s, size_t from, size_t to);
int str_equal(struct str a, struct str b);
int str_is(struct str a, const char *text);
int str_compare(struct str a, struct str b);
/* Whether any of it came from variables. */
static inline int str_tainted(struct str s)
{
    return s.n_untrusted > 0;
}

static inline struct value value_int(int64_t i)
{
    return (struct value){.type = V_INT, .i = i};
}
static inline struct value value_bool(int b)
{
    return (struct value){.type = V_BOOL, .i = b != 0};
}
static inline struct value value_float(double f)
{
    return (struct value){.type = V_FLOAT, .f = f};
}
static inline struct value value_str(struct str s)
{
    return (struct value){.type = V_STRING, .s = s};
}
static inline struct value value_none(void)
{
    return (struct value){.type = V_NONE};
}
static inline struct value value_undefined(struct str name)
{
    return (struct value){.type = V_UNDEFINED, .s = name};
}

struct value value_list(struct arena *a, enum value_type type, size_t cap);
void list_add(struct arena *a, struct list *l, struct value v);
struct value value_dict(struct arena *a, enum value_type type);
struct value *dict_find(const struct dict *d, struct value key); /* NULL when absent */
void dict_set(struct arena *a, struct dict *d, struct value key, struct value v);

int value_truth(struct value v);
int value_equal(struct value a, struct value b);
int value_is_number(struct value v);             /* int, float, bool */
double value_as_float(struct value v);

/* str(v), repr(v) */
void value_print(struct sbuf *out, struct value v);
void value_repr(struct sbuf *out, struct value v, int depth);

size_t utf8_length(struct str s);                 /* code points */
size_t utf8_offset(struct str s, size_t points);  /* byte offset of a code point */

#endif
