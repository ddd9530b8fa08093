/* Selection without sorting everything, and the random numbers. Invariant: every function's result is a function of its arguments alone. */
#include "engine/sample_internal.h"

#define SMALL 24 /* at most so many are sorted by insertion */

static void swap(struct candidate *a, struct candidate *b)
{
    struct candidate t = *a;
    *a = *b;
    *b = t;
}

static void sort_small(struct candidate *c, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        struct candidate t = c[i];
        size_t j = i;
        for (; j > 0 && candidate_before(&t, &c[j - 1]); j--)
            c[j] = c[j - 1];
        c[j] = t;
    }
}

/* Puts a pivot where it belongs in c[0..n) and returns its index. The pivot is the median of three, one of them at a scattered place. */
static size_t partition(struct candidate *c, size_t n)
{
    size_t a = (size_t)((n * 0x9E3779B97F4A7C15u) % n), b = n / 2, last = n - 1;
    size_t median;
    if (candidate_before(&c[a], &c[b]))
        median = candidate_before(&c[b], &c[last]) ? b : candidate_before(&c[a], &c[last]) ? last : a;
    else
        median = candidate_before(&c[a], &c[last]) ? a : candidate_before(&c[b], &c[last]) ? last : b;
    swap(&c[median], &c[last]);
    struct candidate pivot = c[last];
    size_t at = 0;
    for (size_t i = 0; i < last; i++)
        if (candidate_before(&c[i], &pivot))
            swap(&c[i], &c[at++]);
    swap(&c[at], &c[last]);
    return at;
}

static void first_to_front(struct candidate *c, size_t n)
{
    size_t first = 0;
    for (size_t i = 1; i < n; i++)
        if (candidate_before(&c[i], &c[first]))
            first = i;
    swap(&c[0], &c[first]);
}

size_t select_weight(struct candidate *c, size_t n, double target)
{
    if (n == 0)
        return 0;
    if (!(target > 0)) {
        first_to_front(c, n);
        return 1;
    }
    /* c[0..low) is kept and weighs `before`; c[high..n) is not kept. */
    size_t low = 0, high = n;
    double before = 0;
    while (high - low > SMALL && before < target) {
        size_t at = low + partition(c + low, high - low);
        double left = 0;
        for (size_t i = low; i < at; i++)
            left += c[i].weight;
        if (before + left >= target) {
            high = at;
        } else { /* what stands before the pivot weighs less than the target, so the pivot is kept too */
            before += left + c[at].weight;
            low = at + 1;
        }
    }
    sort_small(c + low, high - low <= SMALL ? high - low : 0);
    for (; low < high && before < target; low++)
        before += c[low].weight;
    return low;
}

size_t select_count(struct candidate *c, size_t n, size_t k)
{
    if (k >= n)
        return n;
    size_t low = 0, high = n; /* the k-th boundary lies in [low, high] */
    while (high - low > 1 && low < k) {
        size_t at = low + partition(c + low, high - low);
        if (at >= k)
            high = at;
        else
            low = at + 1;
    }
    return k;
}

size_t select_offer(struct candidate *c, size_t n, size_t max, double key, int32_t id)
{
    struct candidate new = {.key = key, .id = id};
    if (n < max) { /* up from a new leaf */
        size_t at = n;
        for (; at > 0 && candidate_before(&c[(at - 1) / 2], &new); at = (at - 1) / 2)
            c[at] = c[(at - 1) / 2];
        c[at] = new;
        return n + 1;
    }
    if (n == 0 || !candidate_before(&new, &c[0]))
        return n;
    size_t at = 0;
    for (;;) { /* down from the root, whose place is free now */
        size_t child = 2 * at + 1;
        if (child >= n)
            break;
        if (child + 1 < n && candidate_before(&c[child], &c[child + 1]))
            child++;
        if (!candidate_before(&new, &c[child]))
            break;
        c[at] = c[child];
        at = child;
    }
    c[at] = new;
    return n;
}

void rng_seed(struct rng *rng, uint64_t seed)
{
    for (int i = 0; i < 4; i++) {
        uint64_t z = seed += 0x9E3779B97F4A7C15u;
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
        z = (z ^ z >> 27) * 0x94D049BB133111EBu;
        rng->s[i] = z ^ z >> 31;
    }
}

static uint64_t rotate(uint64_t x, int k)
{
    return x << k | x >> (64 - k);
}

double rng_unit(struct rng *rng)
{
    uint64_t *s = rng->s, result = rotate(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate(s[3], 45);
    return (double)(result >> 11) * 0x1p-53;
}
