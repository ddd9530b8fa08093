/* Candidates of a draw and the selections over them: what sample.c and sample_select.c share. */
#ifndef ENGINE_SAMPLE_INTERNAL_H
#define ENGINE_SAMPLE_INTERNAL_H

#include <stddef.h>
#include <stdint.h>

struct candidate {
    double key;    /* the order to select in: smaller first, ties by the lower id */
    double weight; /* unnormalised probability */
    int32_t id;
};

static inline int candidate_before(const struct candidate *a, const struct candidate *b)
{
    return a->key < b->key || (a->key == b->key && a->id < b->id);
}

/* Brings the smallest prefix (in key order) whose weight reaches `target` to the front, in no order; at least one. Returns its length (0 only when n is 0). Linear on average. */
size_t select_weight(struct candidate *c, size_t n, double target);

/* The k first, in the same way. */
size_t select_count(struct candidate *c, size_t n, size_t k);

/* c[0..n) is a heap whose root is the last in order: offers one more, keeping at most max. Returns the new n. */
size_t select_offer(struct candidate *c, size_t n, size_t max, double key, int32_t id);

/* xoshiro256**, seeded by splitmix64: state words are successive outputs of z = (x += 0x9E3779B97F4A7C15), z = (z ^ z>>30) * 0xBF58476D1CE4E5B9,
 * z = (z ^ z>>27) * 0x94D049BB133111EB, z ^ z>>31; a draw is rotl(s1 * 5, 7) * 9. */
struct rng {
    uint64_t s[4];
};

void rng_seed(struct rng *rng, uint64_t seed);
double rng_unit(struct rng *rng); /* [0, 1), a multiple of 2^-53 */

#endif
