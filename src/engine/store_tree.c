/* Invariant: a parent stands before its children and leaves after them, so that what is in the tree has all that it builds on, until it is killed. */
#include "engine/store_tree.h"

#include <string.h>

#include "base/mem.h"

void tree_free(struct tree *t)
{
    for (size_t i = 0; i < t->n; i++)
        mem_free(t->at[i]);
    mem_free(t->at);
    *t = (struct tree){0};
}

/* The first that ends at `to` or behind. */
static size_t lower_bound(const struct tree *t, int64_t to)
{
    size_t low = 0, high = t->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (t->at[middle]->to < to)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct segment *tree_get(const struct tree *t, struct hash_key key)
{
    for (size_t i = 0; i < t->n; i++)
        if (hash_key_equal(t->at[i]->key, key))
            return t->at[i];
    return NULL;
}

static int grow(struct tree *t)
{
    size_t cap = t->cap ? t->cap * 2 : 64;
    if (t->n < t->cap)
        return 0;
    struct segment **at = mem_realloc(MEM_STORE, t->at, cap * sizeof *at);
    if (!at)
        return -1;
    t->at = at;
    t->cap = cap;
    return 0;
}

struct segment *tree_add(struct tree *t, const struct segment *segment)
{
    if (tree_get(t, segment->key) || grow(t) < 0)
        return NULL;
    struct segment *s = mem_alloc(MEM_STORE, sizeof *s);
    if (!s)
        return NULL;
    *s = *segment;
    if (s->parent)
        s->parent->n_children++;
    size_t i = lower_bound(t, s->to);
    memmove(t->at + i + 1, t->at + i, (t->n - i) * sizeof *t->at);
    t->at[i] = s;
    t->n++;
    t->bytes += s->bytes;
    if (s->last_used > t->clock)
        t->clock = s->last_used;
    return s;
}

void tree_remove(struct tree *t, struct segment *s)
{
    size_t i = lower_bound(t, s->to);
    while (t->at[i] != s)
        i++;
    if (s->parent && --s->parent->n_children == 0 && s->parent->is_thin)
        s->parent->status = SEGMENT_DEAD;
    t->bytes -= s->bytes;
    t->n--;
    memmove(t->at + i, t->at + i + 1, (t->n - i) * sizeof *t->at);
    mem_free(s);
}

/* Parents stand before their children, and what is a beginning of the tokens has parents that are. */
static int is_reached(const struct tree *t, const struct segment *s, enum tree_use use)
{
    int is_there = s->status == SEGMENT_READY || (use == TREE_CONTINUE && s->status == SEGMENT_WRITING);
    return is_there && (!s->parent || s->parent->walk == t->walks);
}

struct segment *tree_longest(struct tree *t, struct hash_key model, const int32_t *tokens, int64_t n, enum tree_use use, struct hash_key *key)
{
    struct segment *best = NULL;
    struct hash_stream h;
    struct hash_key here = {0};
    int64_t at = 0;
    t->walks++;
    hash_stream_begin(&h);
    hash_stream_add(&h, &model, sizeof model);
    for (size_t i = 0; i < t->n && t->at[i]->to <= n; i++) {
        struct segment *s = t->at[i];
        if (s->to > at) {
            hash_stream_add(&h, tokens + at, (size_t)(s->to - at) * sizeof *tokens);
            at = s->to;
            here = hash_stream_key(&h);
        }
        if (!hash_key_equal(s->key, here) || !is_reached(t, s, use))
            continue;
        s->walk = t->walks;
        if (use == TREE_CONTINUE || !s->is_thin)
            best = s;
    }
    if (key) {
        hash_stream_add(&h, tokens + at, (size_t)(n - at) * sizeof *tokens);
        *key = hash_stream_key(&h);
    }
    return best;
}

void tree_touch(struct tree *t, struct segment *s)
{
    for (t->clock++; s; s = s->parent) {
        s->last_used = t->clock;
        s->is_touched = 1;
    }
}

void tree_pin(struct segment *s, int by)
{
    for (; s; s = s->parent)
        s->pins += by;
}

int tree_kill(struct tree *t, struct segment *s)
{
    int n = s->status != SEGMENT_DEAD;
    s->status = SEGMENT_DEAD;
    for (size_t i = lower_bound(t, s->to); i < t->n; i++) {
        struct segment *child = t->at[i];
        if (child->parent && child->parent->status == SEGMENT_DEAD && child->status != SEGMENT_DEAD) {
            child->status = SEGMENT_DEAD;
            n++;
        }
    }
    return n;
}

static struct segment *parent_of(const struct tree *t, const struct segment *s)
{
    for (size_t i = lower_bound(t, s->from); s->from > 0 && i < t->n && t->at[i]->to == s->from; i++)
        if (hash_key_equal(t->at[i]->key, s->parent_key) && hash_key_equal(t->at[i]->model, s->model))
            return t->at[i];
    return NULL;
}

int tree_link(struct tree *t)
{
    int n = 0;
    for (size_t i = 0; i < t->n; i++) {
        struct segment *s = t->at[i];
        s->parent = parent_of(t, s);
        if (s->parent)
            s->parent->n_children++;
        if (s->from > 0 && s->status != SEGMENT_DEAD && (!s->parent || s->parent->status == SEGMENT_DEAD)) {
            s->status = SEGMENT_DEAD;
            n++;
        }
    }
    for (size_t i = 0; i < t->n; i++)
        if (t->at[i]->is_thin && t->at[i]->n_children == 0)
            t->at[i]->status = SEGMENT_DEAD;
    return n;
}

enum { PASSED, END, KEPT };

/* A child that is not ready may fail, and its parent is an end again. */
static int worth(const struct segment *s)
{
    if (s->status != SEGMENT_READY || s->pins > 0 || s->is_stuck)
        return KEPT;
    if (s->n_children == 0)
        return END;
    return s->n_children == 1 && !s->is_awaiting && !s->is_thin && s->thin_bytes ? PASSED : KEPT;
}

struct segment *tree_victim(const struct tree *t, int *thin)
{
    struct segment *best = NULL;
    int least = KEPT;
    for (size_t i = 0; i < t->n; i++) { /* parents first */
        t->at[i]->is_awaiting = 0;
        if (t->at[i]->parent && t->at[i]->status != SEGMENT_READY)
            t->at[i]->parent->is_awaiting = 1;
    }
    for (size_t i = 0; i < t->n; i++) {
        struct segment *s = t->at[i];
        int value = worth(s);
        if (value < least || (best && value == least && s->last_used < best->last_used)) {
            best = s;
            least = value;
        }
    }
    *thin = least == PASSED;
    return best;
}

void tree_set_thin(struct tree *t, struct segment *s)
{
    t->bytes -= s->bytes - s->thin_bytes;
    s->bytes = s->thin_bytes;
    s->is_touched = 1;
}

struct segment *tree_dead(const struct tree *t)
{
    for (size_t i = t->n; i-- > 0;) {
        struct segment *s = t->at[i];
        if (s->status == SEGMENT_DEAD && s->n_children == 0 && s->pins == 0 && !s->is_stuck)
            return s;
    }
    return NULL;
}
