/* The one allocator: counts bytes by label, has a ceiling and a fault list that tests set, and reserves address space whose pages are committed
 * later so that a growing state never moves. Any thread; the counters are atomic. */
#ifndef BASE_MEM_H
#define BASE_MEM_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum mem_label {
    MEM_OTHER,
    MEM_GGUF,      /* metadata and tensor tables */
    MEM_TEXT,      /* vocabulary, templates, token lists */
    MEM_MODEL,     /* weights that are copied, per-model tables */
    MEM_STATE,     /* decode state of sequences */
    MEM_WORKSPACE, /* activations of one forward */
    MEM_SERVE,     /* connections, requests */
    MEM_JSON,      /* the JSON library */
    MEM_STORE,     /* conversations on their way to and from the disk */
    MEM_N_LABELS
};

const char *mem_label_name(enum mem_label label);

/* bytes of zeroed memory aligned to 16, or NULL. 0 bytes gives a valid pointer. Free with mem_free. */
void *mem_alloc(enum mem_label label, size_t bytes) __attribute__((malloc));

/* Aligned to 64 (a cache line, a zmm register); contents zeroed. */
void *mem_alloc_aligned(enum mem_label label, size_t bytes) __attribute__((malloc));

/* n * size with the product checked. */
void *mem_alloc_array(enum mem_label label, size_t n, size_t size);

/* Grows or shrinks what mem_alloc gave (not the aligned kind); new bytes are not zeroed. NULL leaves the old block as it is. */
void *mem_realloc(enum mem_label label, void *p, size_t bytes);

char *mem_strndup(enum mem_label label, const char *text, size_t n);

/* NULL is fine. */
void mem_free(void *p);

/* Address space of `bytes` (rounded up to pages) with no memory behind it; NULL when refused. */
void *mem_reserve(size_t bytes);

/* Makes [from, to) of a reservation readable and writable (zeroed), counted under label: page-rounded outwards. */
int mem_commit(enum mem_label label, void *base, size_t from, size_t to) MUST_CHECK;

/* Gives the pages wholly inside [from, to) back. */
void mem_decommit(enum mem_label label, void *base, size_t from, size_t to);

/* Ends a reservation of which [0, committed) is committed. */
void mem_release(enum mem_label label, void *base, size_t bytes, size_t committed);

size_t mem_bytes(enum mem_label label);
size_t mem_total(void);
size_t mem_reserved(void); /* address space of live reservations */

/* For tests and --debug: SIZE_MAX / 0 = off. */
void mem_set_ceiling(size_t bytes);
void mem_fail_nth(long n);              /* the n-th allocation from now on (1 = the next) fails, once */
void mem_fail_above(size_t bytes);      /* every allocation of more than this fails */

/* System calls that may say no as well. Whoever makes one asks mem_call_fails right before it: 1 = do as if it had failed. */
enum mem_call {
    MEM_CALL_MAP,     /* mmap: address space, pages given back, files */
    MEM_CALL_PROTECT, /* mprotect: pages taken */
    MEM_CALL_THREAD,  /* pthread_create */
    MEM_N_CALLS
};
void mem_fail_call(enum mem_call call, long n); /* the n-th from now on (1 = the next) fails, once; 0 = off */
void mem_fail_for_good(int on);         /* 1: what fails once fails from then on, until its n is set anew */
int mem_call_fails(enum mem_call call);
int mem_fail_pending(void);             /* a failure that mem_fail_nth or mem_fail_call asked for has not come yet */

/* The most that a label may hold: a part of the plan that its owner must live within. SIZE_MAX = off. */
void mem_set_limit(enum mem_label label, size_t bytes);

/* What ceiling and limit leave to a label; SIZE_MAX when there is neither. */
size_t mem_left(enum mem_label label);

/* Checked arithmetic for sizes that come from outside: 1 on overflow. */
static inline int size_mul(uint64_t a, uint64_t b, uint64_t *out)
{
    return __builtin_mul_overflow(a, b, out);
}
static inline int size_add(uint64_t a, uint64_t b, uint64_t *out)
{
    return __builtin_add_overflow(a, b, out);
}

#endif
