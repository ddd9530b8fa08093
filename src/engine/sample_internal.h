/* A sampler's inside: what sample.c (its life, the changed logits), sample_weigh.c (passes over the vocabulary) and sample_select.c (selection, random numbers) share. */
#ifndef ENGINE_SAMPLE_INTERNAL_H
#define ENGINE_SAMPLE_INTERNAL_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "engine/sample.h"

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

struct changed {
    int32_t id;
    uint32_t in_window; /* times in the window of the repetition penalty */
    uint32_t generated; /* times generated */
    double bias;        /* -INFINITY bans */
};

#define SAMPLE_BLOCK 64 /* tokens that are looked at together */

struct sampler {
    struct sample_params p;
    int32_t n_vocab;
    struct rng rng;
    struct changed *changed;  /* rising ids, each once: the tokens whose logit is not the model's */
    size_t n_changed, cap_changed;
    int repeats, counts;      /* whether the window and the generated tokens matter at all */
    struct ids window;        /* the last repeat_last_n tokens, a ring once it is full; unused when all count */
    size_t window_at;
    int failed;               /* an allocation failed while accepting: sticky */
    size_t n_blocks;
    double *block_max;        /* after changes */
    double *block_weight;
    double max;               /* of block_max */
    double inverse;           /* of the temperature */
    struct candidate *c;
    size_t cap;
};

/* Where id stands in the changed list, or belongs. */
size_t sample_changed_find(const struct sampler *s, int32_t id);

/* Fills block_max and max. ERR_NUMERIC when the model's logits are unusable or every token is banned. */
int sample_find_max(struct sampler *s, const float *logits, struct err *err);

/* The lowest id that has the maximum. */
int32_t sample_first(const struct sampler *s, const float *logits);

/* The k largest into s->c, by a heap; returns how many there are. Not weighed. */
size_t sample_gather_top(struct sampler *s, const float *logits, size_t k);

/* Those at most `cut` below the maximum, in units of the temperature, into s->c. Not weighed. */
size_t sample_gather_near(struct sampler *s, const float *logits, double cut);

/* Gives s->c[0..n) their weights, exp((x - max) / temperature), and drops those without. */
size_t sample_weigh(struct sampler *s, size_t n);

#define MASS_BINS 512
#define MASS_BINS_PER_UNIT 8

struct mass {
    double total;               /* weight of all tokens */
    double moment;              /* of each times its distance from the maximum */
    double bins[MASS_BINS + 1]; /* weight by distance; the last takes the rest */
};

/* Weighs every token without keeping any; block_weight is filled. m->bins are filled when asked for. */
void sample_weigh_all(struct sampler *s, const float *logits, struct mass *m, int with_bins);

/* A distance within which the tokens weigh at least `share` of all. */
double sample_cut(const struct mass *m, double share);

/* Draws from all tokens by block_weight. */
int32_t sample_draw_any(struct sampler *s, const float *logits, double total);

#endif
