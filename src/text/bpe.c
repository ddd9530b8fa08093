/* Byte-pair merging: always the pair of lowest rank, the leftmost of equals. Short pieces are scanned; long ones keep, for every pair that occurs, the list of its places and
 * a heap of the pairs, so that a megabyte of one letter costs little more than reading it (B118). */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "text/vocab_internal.h"

#define SHORT_PIECE 48
#define N_RECENT 512 /* pairs whose lists are remembered: what repeats a lot uses few */
#define NONE UINT32_MAX

static int encode_short(const struct vocab *v, const char *piece, size_t n, struct ids *out)
{
    int32_t ids[SHORT_PIECE];
    const struct merge *merges[SHORT_PIECE];
    for (size_t i = 0; i < n; i++)
        ids[i] = v->byte_ids[(unsigned char)piece[i]];
    for (size_t i = 0; i + 1 < n; i++)
        merges[i] = vocab_merge(v, ids[i], ids[i + 1]);
    for (;;) {
        size_t best = n;
        for (size_t i = 0; i + 1 < n; i++)
            if (merges[i] && (best == n || merges[i]->rank < merges[best]->rank))
                best = i;
        if (best == n)
            break;
        ids[best] = merges[best]->product;
        memmove(ids + best + 1, ids + best + 2, (n - best - 2) * sizeof *ids);
        if (best + 2 < n)
            memmove(merges + best + 1, merges + best + 2, (n - best - 2) * sizeof *merges);
        n--;
        if (best > 0)
            merges[best - 1] = vocab_merge(v, ids[best - 1], ids[best]);
        if (best + 1 < n)
            merges[best] = vocab_merge(v, ids[best], ids[best + 1]);
    }
    return ids_append(out, ids, n);
}

/* A pair that occurs (or did) and where: places in order of discovery; stale ones are noticed when visited. */
struct places {
    const struct merge *merge;
    uint32_t *at;
    size_t len, cap, next;
    int in_heap, unsorted;
};

struct symbol {
    int32_t id;            /* -1: swallowed by the symbol before */
    uint32_t prev, after;  /* neighbours; NONE at the ends */
};

struct recent {
    uint64_t pair;
    uint32_t list;         /* NONE: the pair does not merge */
};

struct merger {
    const struct vocab *v;
    struct symbol *symbols;
    struct places *lists;
    size_t n_lists, cap_lists;
    uint32_t *table;       /* rank -> list + 1, open addressing */
    size_t table_mask;
    uint32_t *heap;        /* lists by rank */
    size_t n_heap;
    int failed;
    struct recent recent[N_RECENT]; /* by the pair's hash */
};

static uint32_t rank_of(const struct merger *m, uint32_t list)
{
    return m->lists[list].merge->rank;
}

static void heap_push(struct merger *m, uint32_t list)
{
    size_t i = m->n_heap++;
    for (; i > 0 && rank_of(m, m->heap[(i - 1) / 2]) > rank_of(m, list); i = (i - 1) / 2)
        m->heap[i] = m->heap[(i - 1) / 2];
    m->heap[i] = list;
    m->lists[list].in_heap = 1;
}

static uint32_t heap_pop(struct merger *m)
{
    uint32_t top = m->heap[0], last = m->heap[--m->n_heap];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < m->n_heap; i = child) {
        if (child + 1 < m->n_heap && rank_of(m, m->heap[child + 1]) < rank_of(m, m->heap[child]))
            child++;
        if (rank_of(m, m->heap[child]) >= rank_of(m, last))
            break;
        m->heap[i] = m->heap[child];
    }
    m->heap[i] = last;
    m->lists[top].in_heap = 0;
    return top;
}

static int table_grow(struct merger *m)
{
    size_t size = m->table ? 2 * (m->table_mask + 1) : 1024;
    uint32_t *table = mem_alloc_array(MEM_TEXT, size, sizeof *table), *heap = mem_realloc(MEM_TEXT, m->heap, size * sizeof *heap);
    struct places *lists = heap ? mem_realloc(MEM_TEXT, m->lists, size / 2 * sizeof *lists) : NULL;
    if (heap)
        m->heap = heap;
    if (lists)
        m->lists = lists;
    if (!table || !heap || !lists) {
        mem_free(table);
        return ERR_NO_MEMORY;
    }
    mem_free(m->table);
    m->table = table;
    m->table_mask = size - 1;
    m->cap_lists = size / 2;
    for (uint32_t i = 0; i < m->n_lists; i++) {
        size_t k = rank_of(m, i) * 2654435761u & m->table_mask;
        while (table[k])
            k = (k + 1) & m->table_mask;
        table[k] = i + 1;
    }
    return 0;
}

/* The list of a merge, made when there is none; NONE without memory. */
static uint32_t list_of(struct merger *m, const struct merge *merge)
{
    size_t k = merge->rank * 2654435761u & m->table_mask;
    for (; m->table[k]; k = (k + 1) & m->table_mask)
        if (m->lists[m->table[k] - 1].merge == merge)
            return m->table[k] - 1;
    if (m->n_lists == m->cap_lists) {
        if (table_grow(m) < 0)
            return NONE;
        return list_of(m, merge);
    }
    m->lists[m->n_lists] = (struct places){.merge = merge};
    m->table[k] = (uint32_t)++m->n_lists;
    return (uint32_t)m->n_lists - 1;
}

/* The list of a pair, or NONE when it does not merge. */
static uint32_t list_of_pair(struct merger *m, int32_t left, int32_t right)
{
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    struct recent *r = &m->recent[(pair * 0x9E3779B97F4A7C15u >> 32) % N_RECENT];
    if (r->pair == pair)
        return r->list;
    const struct merge *merge = vocab_merge(m->v, left, right);
    uint32_t list = merge ? list_of(m, merge) : NONE;
    if (merge && list == NONE)
        m->failed = 1;
    else
        *r = (struct recent){pair, list};
    return list;
}

static int places_grow(struct places *list)
{
    size_t cap = list->cap ? 2 * list->cap : 16;
    uint32_t *grown = mem_realloc(MEM_TEXT, list->at, cap * sizeof *grown);
    if (!grown)
        return ERR_NO_MEMORY;
    list->at = grown;
    list->cap = cap;
    return 0;
}

/* Notes that the symbol at `at` and its neighbour may merge. Returns the rank, or NONE. */
static uint32_t note_pair(struct merger *m, uint32_t at)
{
    if (at == NONE || m->symbols[at].after == NONE)
        return NONE;
    uint32_t index = list_of_pair(m, m->symbols[at].id, m->symbols[m->symbols[at].after].id);
    if (index == NONE)
        return NONE;
    struct places *list = &m->lists[index];
    if (list->len == list->cap && places_grow(list) < 0) {
        m->failed = 1;
        return NONE;
    }
    if (list->len > list->next && list->at[list->len - 1] > at)
        list->unsorted = 1;
    list->at[list->len++] = at;
    if (!list->in_heap)
        heap_push(m, index);
    return list->merge->rank;
}

static int by_place(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* Merges places of the list from the left, until it is done or a pair of lower rank has come up. */
static void merge_list(struct merger *m, uint32_t index)
{
    if (m->lists[index].unsorted) {
        qsort(m->lists[index].at + m->lists[index].next, m->lists[index].len - m->lists[index].next, sizeof(uint32_t), by_place);
        m->lists[index].unsorted = 0;
    }
    const struct merge *merge = m->lists[index].merge;
    int32_t left = (int32_t)(merge->pair >> 32), right = (int32_t)(uint32_t)merge->pair;
    while (!m->failed && m->lists[index].next < m->lists[index].len && !m->lists[index].unsorted) {
        uint32_t at = m->lists[index].at[m->lists[index].next++];
        struct symbol *s = &m->symbols[at];
        if (s->id != left || s->after == NONE || m->symbols[s->after].id != right)
            continue;
        s->id = merge->product;
        m->symbols[s->after].id = -1;
        s->after = m->symbols[s->after].after;
        if (s->after != NONE)
            m->symbols[s->after].prev = at;
        uint32_t a = note_pair(m, s->prev), b = note_pair(m, at);
        if (a < merge->rank || b < merge->rank)
            break;
    }
    struct places *list = &m->lists[index];
    if (list->next < list->len) {
        if (!list->in_heap)
            heap_push(m, index);
    } else {
        list->next = list->len = 0;
    }
}

static void merger_free(struct merger *m)
{
    for (size_t i = 0; i < m->n_lists; i++)
        mem_free(m->lists[i].at);
    mem_free(m->lists);
    mem_free(m->table);
    mem_free(m->heap);
    mem_free(m->symbols);
}

static int encode_long(const struct vocab *v, const char *piece, size_t n, struct ids *out)
{
    struct merger m = {.v = v};
    int rc = n < NONE ? table_grow(&m) : ERR_LIMIT;
    for (size_t i = 0; i < N_RECENT; i++)
        m.recent[i].pair = EMPTY_PAIR;
    if (rc == 0 && !(m.symbols = mem_alloc_array(MEM_TEXT, n, sizeof *m.symbols)))
        rc = ERR_NO_MEMORY;
    if (rc == 0) {
        for (uint32_t i = 0; i < n; i++)
            m.symbols[i] = (struct symbol){v->byte_ids[(unsigned char)piece[i]], i ? i - 1 : NONE, i + 1 < n ? i + 1 : NONE};
        for (uint32_t i = 0; i + 1 < n && !m.failed; i++)
            note_pair(&m, i);
        while (m.n_heap && !m.failed)
            merge_list(&m, heap_pop(&m));
        rc = m.failed ? ERR_NO_MEMORY : 0;
    }
    for (uint32_t i = 0; rc == 0 && i != NONE; i = m.symbols[i].after)
        rc = ids_push(out, m.symbols[i].id);
    merger_free(&m);
    return rc;
}

int bpe_encode(const struct vocab *v, const char *piece, size_t n, struct ids *out)
{
    return n <= SHORT_PIECE ? encode_short(v, piece, n, out) : encode_long(v, piece, n, out);
}

#define CACHED_BYTES 14
#define CACHED_IDS 4
#define N_CACHED 4096

struct cached_piece {
    uint8_t n_bytes;       /* 0: free */
    uint8_t n_ids;
    char bytes[CACHED_BYTES];
    int32_t ids[CACHED_IDS];
};

struct bpe_cache {
    struct cached_piece pieces[N_CACHED]; /* by the hash of the bytes; the last one wins */
};

struct bpe_cache *bpe_cache_new(void)
{
    return mem_alloc(MEM_TEXT, sizeof(struct bpe_cache));
}

void bpe_cache_free(struct bpe_cache *cache)
{
    mem_free(cache);
}

int bpe_encode_cached(const struct vocab *v, struct bpe_cache *cache, const char *piece, size_t n, struct ids *out)
{
    if (!cache || n > CACHED_BYTES || n == 0)
        return bpe_encode(v, piece, n, out);
    struct cached_piece *c = &cache->pieces[hash_bytes(piece, n, 0) % N_CACHED];
    if (c->n_bytes == n && memcmp(c->bytes, piece, n) == 0)
        return ids_append(out, c->ids, c->n_ids);
    size_t before = out->len;
    TRY(bpe_encode(v, piece, n, out));
    if (out->len - before <= CACHED_IDS) {
        c->n_bytes = (uint8_t)n;
        c->n_ids = (uint8_t)(out->len - before);
        memcpy(c->bytes, piece, n);
        memcpy(c->ids, out->data + before, c->n_ids * sizeof *c->ids);
    }
    return 0;
}
