/* Counted allocation. Invariant: what a label counts is what mem_free and mem_release of that label give back. */
#include "base/mem.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct header {            /* right before every block; 16 bytes keep malloc's alignment */
    uint64_t bytes : 48;
    uint64_t label : 8;
    uint64_t offset : 8;   /* from the start of the system's block to the user's, in units of 16 */
    uint64_t check;
};

#define FAILS_FOR_GOOD LONG_MIN /* of a fault's counter: it came, and stays */
#define CHECK 0x6170722d6d656dull

static atomic_size_t counted[MEM_N_LABELS];
static atomic_size_t total;
static atomic_size_t ceiling = SIZE_MAX;
static atomic_size_t withheld[MEM_N_LABELS]; /* SIZE_MAX less the label's limit: zero = none */
static atomic_size_t fail_above = SIZE_MAX;
static atomic_long fail_nth;
static atomic_long fail_call[MEM_N_CALLS];
static atomic_int fail_for_good;
static atomic_size_t reserved;

const char *mem_label_name(enum mem_label label)
{
    static const char *const names[MEM_N_LABELS] = {"other", "gguf", "text", "model", "state", "workspace", "serve", "json", "store"};
    return (unsigned)label < MEM_N_LABELS ? names[label] : "?";
}

/* Is this the call that a test wants to fail? */
static int fault_is_due(atomic_long *n)
{
    long left = atomic_load_explicit(n, memory_order_relaxed);
    if (left == FAILS_FOR_GOOD)
        return 1;
    if (left <= 0 || atomic_fetch_sub(n, 1) != 1)
        return 0;
    if (atomic_load(&fail_for_good))
        atomic_store(n, FAILS_FOR_GOOD);
    return 1;
}

/* Takes bytes off the budget, or says no. */
static int budget_take(enum mem_label label, size_t bytes)
{
    if (fault_is_due(&fail_nth))
        return ERR_NO_MEMORY;
    if (bytes > atomic_load_explicit(&fail_above, memory_order_relaxed))
        return ERR_NO_MEMORY;
    size_t before = atomic_fetch_add(&total, bytes);
    size_t limit = atomic_load_explicit(&ceiling, memory_order_relaxed);
    if (before > limit || bytes > limit - before) {
        atomic_fetch_sub(&total, bytes);
        return ERR_NO_MEMORY;
    }
    size_t held = atomic_fetch_add(&counted[label], bytes), most = SIZE_MAX - atomic_load_explicit(&withheld[label], memory_order_relaxed);
    if (held > most || bytes > most - held) {
        atomic_fetch_sub(&counted[label], bytes);
        atomic_fetch_sub(&total, bytes);
        return ERR_NO_MEMORY;
    }
    return 0;
}

static void budget_give(enum mem_label label, size_t bytes)
{
    atomic_fetch_sub(&counted[label], bytes);
    atomic_fetch_sub(&total, bytes);
}

static void *header_write(char *block, size_t offset, enum mem_label label, size_t bytes)
{
    struct header *h = (struct header *)(block + offset - sizeof *h);
    h->bytes = bytes;
    h->label = (uint64_t)label;
    h->offset = offset / 16;
    h->check = CHECK;
    return block + offset;
}

static struct header *header_of(void *p)
{
    struct header *h = (struct header *)((char *)p - sizeof *h);
    if (h->check != CHECK)
        __builtin_trap(); /* not ours: a bug that must not go on */
    return h;
}

void *mem_alloc(enum mem_label label, size_t bytes)
{
    if (bytes > (size_t)1 << 47 || budget_take(label, bytes) < 0)
        return NULL;
    char *block = calloc(1, bytes + sizeof(struct header));
    if (!block) {
        budget_give(label, bytes);
        return NULL;
    }
    return header_write(block, sizeof(struct header), label, bytes);
}

void *mem_alloc_aligned(enum mem_label label, size_t bytes)
{
    if (bytes > (size_t)1 << 47 || budget_take(label, bytes) < 0)
        return NULL;
    void *block = NULL;
    if (posix_memalign(&block, 64, bytes + 64) != 0) {
        budget_give(label, bytes);
        return NULL;
    }
    memset(block, 0, bytes + 64);
    return header_write(block, 64, label, bytes);
}

void *mem_alloc_array(enum mem_label label, size_t n, size_t size)
{
    uint64_t bytes;
    return size_mul(n, size, &bytes) ? NULL : mem_alloc(label, bytes);
}

void *mem_realloc(enum mem_label label, void *p, size_t bytes)
{
    if (!p)
        return mem_alloc(label, bytes);
    struct header *h = header_of(p);
    size_t old = h->bytes;
    if (bytes > (size_t)1 << 47 || h->offset != 1)
        return NULL;
    if (bytes > old && budget_take(label, bytes - old) < 0)
        return NULL;
    char *block = realloc(h, bytes + sizeof *h);
    if (!block) {
        if (bytes > old)
            budget_give(label, bytes - old);
        return NULL;
    }
    if (bytes < old)
        budget_give(label, old - bytes);
    return header_write(block, sizeof *h, label, bytes);
}

char *mem_strndup(enum mem_label label, const char *text, size_t n)
{
    char *copy = n < SIZE_MAX ? mem_alloc(label, n + 1) : NULL;
    if (copy && n)
        memcpy(copy, text, n);
    return copy;
}

void mem_free(void *p)
{
    if (!p)
        return;
    struct header *h = header_of(p);
    budget_give((enum mem_label)h->label, h->bytes);
    h->check = 0;
    free((char *)p - h->offset * 16);
}

static size_t page_bytes(void)
{
    static size_t page;
    if (!page)
        page = (size_t)sysconf(_SC_PAGESIZE);
    return page;
}

static size_t page_up(size_t n)
{
    return (n + page_bytes() - 1) & ~(page_bytes() - 1);
}

void *mem_reserve(size_t bytes)
{
    if (mem_call_fails(MEM_CALL_MAP))
        return NULL;
    void *p = mmap(NULL, page_up(bytes), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    atomic_fetch_add(&reserved, page_up(bytes));
    return p;
}

int mem_commit(enum mem_label label, void *base, size_t from, size_t to)
{
    size_t a = page_up(from), b = page_up(to); /* the page that holds `from` is committed already unless from is its start */
    if (from == 0)
        a = 0;
    if (b <= a)
        return 0;
    TRY(budget_take(label, b - a));
    if (mem_call_fails(MEM_CALL_PROTECT) || mprotect((char *)base + a, b - a, PROT_READ | PROT_WRITE) != 0) {
        budget_give(label, b - a);
        return ERR_NO_MEMORY;
    }
    return 0;
}

void mem_decommit(enum mem_label label, void *base, size_t from, size_t to)
{
    size_t a = page_up(from), b = page_up(to);
    if (b <= a)
        return;
    /* A fresh mapping in place gives the pages back and reads as zero when committed again. Where the system has no place for one more mapping, the pages go and the range stays
     * accessible: its owner counts it as given back in any case. */
    if (mem_call_fails(MEM_CALL_MAP) || mmap((char *)base + a, b - a, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
        (void)madvise((char *)base + a, b - a, MADV_DONTNEED);
    budget_give(label, b - a);
}

void mem_release(enum mem_label label, void *base, size_t bytes, size_t committed)
{
    if (!base)
        return;
    munmap(base, page_up(bytes));
    atomic_fetch_sub(&reserved, page_up(bytes));
    budget_give(label, page_up(committed));
}

size_t mem_bytes(enum mem_label label)
{
    return atomic_load(&counted[label]);
}

size_t mem_total(void)
{
    return atomic_load(&total);
}

size_t mem_reserved(void)
{
    return atomic_load(&reserved);
}

void mem_set_ceiling(size_t bytes)
{
    atomic_store(&ceiling, bytes);
}

void mem_fail_nth(long n)
{
    atomic_store(&fail_nth, n);
}

void mem_fail_call(enum mem_call call, long n)
{
    atomic_store(&fail_call[call], n);
}

int mem_call_fails(enum mem_call call)
{
    return fault_is_due(&fail_call[call]);
}

void mem_fail_for_good(int on)
{
    atomic_store(&fail_for_good, on);
}

int mem_fail_pending(void)
{
    int pending = atomic_load(&fail_nth) > 0;
    for (int i = 0; i < MEM_N_CALLS; i++)
        pending |= atomic_load(&fail_call[i]) > 0;
    return pending;
}

void mem_fail_above(size_t bytes)
{
    atomic_store(&fail_above, bytes ? bytes : SIZE_MAX);
}

void mem_set_limit(enum mem_label label, size_t bytes)
{
    atomic_store(&withheld[label], SIZE_MAX - bytes);
}

size_t mem_left(enum mem_label label)
{
    size_t limit = atomic_load(&ceiling), most = SIZE_MAX - atomic_load(&withheld[label]), all = mem_total(), held = mem_bytes(label);
    size_t left = limit == SIZE_MAX ? SIZE_MAX : limit > all ? limit - all : 0, own = most == SIZE_MAX ? SIZE_MAX : most > held ? most - held : 0;
    return left < own ? left : own;
}
