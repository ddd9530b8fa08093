/* Passes over the vocabulary, a block at a time: a block is loaded with the changed logits laid over it, and whole blocks are left out by their maxima.
 * Invariant: sample_find_max comes first; the other passes rely on block_max being that of the same logits. */
#include <math.h>
#include <string.h>

#include "engine/sample_internal.h"

/* The bits of a float as an integer of the same order: NaNs lie outside of [-inf, +inf]. */
static int32_t float_order(float x)
{
    int32_t bits;
    memcpy(&bits, &x, 4);
    return bits ^ (int32_t)((uint32_t)(bits >> 31) & 0x7FFFFFFFu);
}

static float order_float(int32_t order)
{
    int32_t bits = order ^ (int32_t)((uint32_t)(order >> 31) & 0x7FFFFFFFu);
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static size_t block_length(const struct sampler *s, size_t block)
{
    size_t left = (size_t)s->n_vocab - block * SAMPLE_BLOCK;
    return left < SAMPLE_BLOCK ? left : SAMPLE_BLOCK;
}

static double changed_logit(const struct sampler *s, const struct changed *c, double x)
{
    if (c->in_window)
        x = x > 0 ? x / s->p.repetition_penalty : x * s->p.repetition_penalty;
    if (c->generated)
        x -= s->p.presence_penalty + s->p.frequency_penalty * c->generated;
    return x + c->bias;
}

/* x: the block's logits after changes; past the vocabulary's end -inf. *next: the first changed token that may be in it, moved behind it. */
static void block_load(const struct sampler *s, const float *logits, size_t block, size_t *next, double *x)
{
    size_t n = block_length(s, block), first = block * SAMPLE_BLOCK;
    for (size_t i = 0; i < n; i++)
        x[i] = logits[first + i];
    for (size_t i = n; i < SAMPLE_BLOCK; i++)
        x[i] = -INFINITY;
    for (; *next < s->n_changed && (size_t)s->changed[*next].id < first + n; ++*next) {
        const struct changed *c = &s->changed[*next];
        x[(size_t)c->id - first] = changed_logit(s, c, x[(size_t)c->id - first]);
    }
}

static double max_of(const double *x)
{
    double max = x[0];
    for (size_t i = 1; i < SAMPLE_BLOCK; i++)
        max = x[i] > max ? x[i] : max;
    return max;
}

int sample_find_max(struct sampler *s, const float *logits, struct err *err)
{
    int32_t low = INT32_MAX, high = INT32_MIN;
    size_t next = 0;
    s->max = -INFINITY;
    for (size_t b = 0; b < s->n_blocks; b++) {
        size_t n = block_length(s, b), first = b * SAMPLE_BLOCK;
        int32_t block_low = INT32_MAX, block_high = INT32_MIN;
        for (size_t i = 0; i < n; i++) {
            int32_t order = float_order(logits[first + i]);
            block_low = order < block_low ? order : block_low;
            block_high = order > block_high ? order : block_high;
        }
        low = block_low < low ? block_low : low;
        high = block_high > high ? block_high : high;
        s->block_max[b] = order_float(block_high);
        if (next < s->n_changed && (size_t)s->changed[next].id < first + n) {
            double x[SAMPLE_BLOCK];
            block_load(s, logits, b, &next, x);
            s->block_max[b] = max_of(x);
        }
        s->max = s->block_max[b] > s->max ? s->block_max[b] : s->max;
    }
    if (low < float_order(-INFINITY) || high >= float_order(INFINITY))
        return err_set(err, ERR_NUMERIC, "the model's logits are not finite");
    if (high == float_order(-INFINITY))
        return err_set(err, ERR_NUMERIC, "the model's logits are not finite: all are minus infinity");
    if (!(s->max > -INFINITY))
        return err_set(err, ERR_NUMERIC, "every token is banned");
    return 0;
}

int32_t sample_first(const struct sampler *s, const float *logits)
{
    double x[SAMPLE_BLOCK];
    size_t b = 0, i = 0;
    while (s->block_max[b] != s->max)
        b++;
    size_t next = sample_changed_find(s, (int32_t)(b * SAMPLE_BLOCK));
    block_load(s, logits, b, &next, x);
    while (x[i] != s->max)
        i++;
    return (int32_t)(b * SAMPLE_BLOCK + i);
}

/* The k-th largest block maximum: at least k tokens reach it. */
static double kth_block_max(struct sampler *s, size_t k)
{
    size_t n = 0;
    if (k > s->n_blocks)
        return -INFINITY;
    for (size_t b = 0; b < s->n_blocks; b++)
        n = select_offer(s->c, n, k, -s->block_max[b], (int32_t)b);
    return -s->c[0].key;
}

size_t sample_gather_top(struct sampler *s, const float *logits, size_t k)
{
    double bound = kth_block_max(s, k), x[SAMPLE_BLOCK];
    size_t n = 0;
    for (size_t b = 0; b < s->n_blocks; b++) {
        if (s->block_max[b] < bound || s->block_max[b] == -INFINITY)
            continue;
        size_t next = sample_changed_find(s, (int32_t)(b * SAMPLE_BLOCK));
        block_load(s, logits, b, &next, x);
        for (size_t i = 0; i < SAMPLE_BLOCK; i++)
            if (x[i] >= bound && x[i] > -INFINITY && (n < k || -x[i] < s->c[0].key))
                n = select_offer(s->c, n, k, -x[i], (int32_t)(b * SAMPLE_BLOCK + i));
    }
    return n;
}

typedef double lanes __attribute__((vector_size(16)));
typedef int64_t bit_lanes __attribute__((vector_size(16)));

/* exp(-far) of two: 2^k times a polynomial, where -far = k ln 2 + r and |r| <= ln 2 / 2; Taylor's terms up to r^12 / 12! in pairs, the next is below 2e-16.
 * By plain additions and multiplications of doubles, so that every machine gets the same. Beyond 700 a token weighs nothing. */
static inline lanes exp_minus(lanes far)
{
    bit_lanes near = far < 700; /* all ones or zeros */
    lanes x = (lanes)((bit_lanes)-far & near);
    lanes shifted = x * 0x1.71547652b82fep+0 + 0x1.8p+52, k = shifted - 0x1.8p+52; /* k is in the low bits of shifted */
    lanes r = x - k * 0x1.62e42fefa38p-1 - k * 0x1.ef35793c7673p-45, r2 = r * r, r4 = r2 * r2;
    lanes a = (r * (1.0 / 39916800) + 1.0 / 3628800) + r2 * (1.0 / 479001600);
    lanes b = (r * (1.0 / 5040) + 1.0 / 720) + r2 * (r * (1.0 / 362880) + 1.0 / 40320);
    lanes c = (r * (1.0 / 6) + 0.5) + r2 * (r * (1.0 / 120) + 1.0 / 24);
    lanes p = 1 + (r + r2 * (c + r4 * (b + r4 * a)));
    return (lanes)(((bit_lanes)p + ((bit_lanes)shifted << 52)) & near);
}

static void block_weigh(const struct sampler *s, const double *x, double *far, double *weight)
{
    for (size_t i = 0; i < SAMPLE_BLOCK; i++)
        far[i] = (s->max - x[i]) * s->inverse;
    for (size_t i = 0; i < SAMPLE_BLOCK; i += 2) {
        lanes pair;
        memcpy(&pair, far + i, sizeof pair);
        pair = exp_minus(pair);
        memcpy(weight + i, &pair, sizeof pair);
    }
}

size_t sample_weigh(struct sampler *s, size_t n)
{
    size_t kept = 0;
    for (size_t i = 0; i < n; i += 2) {
        size_t other = i + 1 < n ? i + 1 : i;
        lanes far = {(s->max + s->c[i].key) * s->inverse, (s->max + s->c[other].key) * s->inverse}, weight = exp_minus(far);
        for (size_t k = 0; k < 2 && i + k < n; k++)
            if (weight[k] > 0) {
                s->c[kept] = s->c[i + k];
                s->c[kept++].weight = weight[k];
            }
    }
    return kept;
}

size_t sample_gather_near(struct sampler *s, const float *logits, double cut)
{
    double x[SAMPLE_BLOCK];
    size_t n = 0;
    for (size_t b = 0; b < s->n_blocks; b++) {
        if (s->block_max[b] == -INFINITY || (s->max - s->block_max[b]) * s->inverse > cut)
            continue;
        size_t next = sample_changed_find(s, (int32_t)(b * SAMPLE_BLOCK));
        block_load(s, logits, b, &next, x);
        for (size_t i = 0; i < SAMPLE_BLOCK; i++)
            if ((s->max - x[i]) * s->inverse <= cut && x[i] > -INFINITY)
                s->c[n++] = (struct candidate){.key = -x[i], .id = (int32_t)(b * SAMPLE_BLOCK + i)};
    }
    return n;
}

void sample_weigh_all(struct sampler *s, const float *logits, struct mass *m, int with_bins)
{
    double x[SAMPLE_BLOCK], far[SAMPLE_BLOCK], weight[SAMPLE_BLOCK];
    size_t next = 0;
    *m = (struct mass){0};
    for (size_t b = 0; b < s->n_blocks; b++) {
        double sum = 0;
        block_load(s, logits, b, &next, x);
        block_weigh(s, x, far, weight);
        for (size_t i = 0; i < SAMPLE_BLOCK; i++)
            sum += weight[i];
        s->block_weight[b] = sum;
        m->total += sum;
        if (!with_bins)
            continue;
        for (size_t i = 0; i < SAMPLE_BLOCK; i++) {
            double at = far[i] * MASS_BINS_PER_UNIT;
            m->bins[at < MASS_BINS ? (int)at : MASS_BINS] += weight[i];
            m->moment += weight[i] > 0 ? weight[i] * far[i] : 0;
        }
    }
}

double sample_cut(const struct mass *m, double share)
{
    double sum = 0, enough = share * m->total * (1 + 1e-9); /* the sums are of different orders of addition */
    for (int i = 0; i < MASS_BINS; i++) {
        sum += m->bins[i];
        if (sum >= enough)
            return (i + 1.0) / MASS_BINS_PER_UNIT;
    }
    return INFINITY;
}

int32_t sample_draw_any(struct sampler *s, const float *logits, double total)
{
    double left = rng_unit(&s->rng) * total, x[SAMPLE_BLOCK], far[SAMPLE_BLOCK], weight[SAMPLE_BLOCK];
    size_t b = 0, i = 0, last = s->n_blocks;
    while (s->block_weight[--last] == 0) /* rounding must not lead to a token without weight */
        ;
    while (b < last && left >= s->block_weight[b])
        left -= s->block_weight[b++];
    size_t next = sample_changed_find(s, (int32_t)(b * SAMPLE_BLOCK));
    block_load(s, logits, b, &next, x);
    block_weigh(s, x, far, weight);
    last = SAMPLE_BLOCK;
    while (weight[--last] == 0)
        ;
    while (i < last && left >= weight[i])
        left -= weight[i++];
    return (int32_t)(b * SAMPLE_BLOCK + i);
}
