/* One request's sampler. Logits are never copied: the few tokens whose logit is changed (seen, biased, banned) stand in a list sorted by id, which the passes
 * over the vocabulary lay over the model's logits block by block. Invariant: the list holds each id once, in rising order. */
#include "engine/sample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "engine/sample_internal.h"

#define HEAP_MAX 4096 /* up to this top_k a heap of k beats a selection over the whole vocabulary */

static int is_banned(double bias)
{
    return bias <= -100;
}

size_t sample_changed_find(const struct sampler *s, int32_t id)
{
    size_t low = 0, high = s->n_changed;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (s->changed[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static struct changed *changed_get(struct sampler *s, int32_t id)
{
    size_t at = sample_changed_find(s, id);
    if (at < s->n_changed && s->changed[at].id == id)
        return &s->changed[at];
    if (s->n_changed == s->cap_changed) {
        size_t cap = s->cap_changed ? 2 * s->cap_changed : 64;
        struct changed *grown = mem_realloc(MEM_WORKSPACE, s->changed, cap * sizeof *grown);
        if (!grown) {
            s->failed = ERR_NO_MEMORY;
            return NULL;
        }
        s->changed = grown;
        s->cap_changed = cap;
    }
    memmove(&s->changed[at + 1], &s->changed[at], (s->n_changed - at) * sizeof *s->changed);
    s->changed[at] = (struct changed){.id = id};
    s->n_changed++;
    return &s->changed[at];
}

static int compare_ids(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return x < y ? -1 : x > y;
}

/* The prompt's part of the window: sorted first, since adding one by one would be quadratic in a long prompt. The list is empty before. */
static int window_from_prompt(struct sampler *s, const int32_t *prompt, size_t n)
{
    size_t last_n = s->p.repeat_last_n < 0 ? n : (size_t)s->p.repeat_last_n;
    if (n > last_n) {
        prompt += n - last_n;
        n = last_n;
    }
    if (n == 0)
        return 0;
    if (s->p.repeat_last_n > 0)
        TRY(ids_append(&s->window, prompt, n));
    int32_t *sorted = mem_alloc_array(MEM_WORKSPACE, n, sizeof *sorted);
    s->changed = mem_alloc_array(MEM_WORKSPACE, n + 64, sizeof *s->changed);
    if (!sorted || !s->changed) {
        mem_free(sorted);
        return ERR_NO_MEMORY;
    }
    s->cap_changed = n + 64;
    memcpy(sorted, prompt, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, compare_ids);
    for (size_t i = 0; i < n; i++) {
        if (i == 0 || sorted[i] != sorted[i - 1])
            s->changed[s->n_changed++] = (struct changed){.id = sorted[i]};
        s->changed[s->n_changed - 1].in_window++;
    }
    mem_free(sorted);
    return 0;
}

static int allocate(struct sampler *s, const struct sample_params *p, const int32_t *prompt, size_t n_prompt)
{
    s->repeats = p->repetition_penalty != 1 && p->repeat_last_n != 0;
    s->counts = p->presence_penalty != 0 || p->frequency_penalty != 0;
    if (s->repeats)
        TRY(window_from_prompt(s, prompt, n_prompt));
    for (size_t i = 0; i < p->n_bias; i++) {
        struct changed *c = changed_get(s, p->bias[i].id);
        if (!c)
            return ERR_NO_MEMORY;
        c->bias = is_banned(p->bias[i].bias) ? -INFINITY : p->bias[i].bias;
    }
    s->inverse = 1 / fmax(p->temperature, 1e-300);
    s->cap = p->top_k > 0 && p->top_k <= HEAP_MAX && p->top_k < s->n_vocab ? (size_t)p->top_k : (size_t)s->n_vocab;
    s->n_blocks = ((size_t)s->n_vocab + SAMPLE_BLOCK - 1) / SAMPLE_BLOCK;
    s->block_max = mem_alloc_array(MEM_WORKSPACE, s->n_blocks, sizeof *s->block_max);
    s->block_weight = mem_alloc_array(MEM_WORKSPACE, s->n_blocks, sizeof *s->block_weight);
    s->c = p->temperature > 0 ? mem_alloc_array(MEM_WORKSPACE, s->cap, sizeof *s->c) : NULL;
    return !s->block_max || !s->block_weight || (p->temperature > 0 && !s->c) ? ERR_NO_MEMORY : 0;
}

int sampler_create(const struct sample_params *p, int32_t n_vocab, const int32_t *prompt, size_t n_prompt, struct sampler **out, struct err *err)
{
    if (n_vocab < 1)
        return err_set(err, ERR_INVALID, "the vocabulary is empty");
    TRY(sample_params_check(p, n_vocab, err));
    for (size_t i = 0; i < n_prompt; i++)
        if (prompt[i] < 0 || prompt[i] >= n_vocab)
            return err_set(err, ERR_INVALID, "token %d of the prompt is not in the vocabulary of %d", prompt[i], n_vocab);
    struct sampler *s = mem_alloc(MEM_WORKSPACE, sizeof *s);
    if (!s)
        return err_set(err, ERR_NO_MEMORY, "out of memory for a sampler");
    s->p = *p;
    s->n_vocab = n_vocab;
    uint64_t seed = p->seed;
    if (!p->has_seed && getrandom(&seed, sizeof seed, 0) != sizeof seed)
        seed = clock_ns();
    rng_seed(&s->rng, seed);
    if (allocate(s, p, prompt, n_prompt) < 0) {
        sampler_free(s);
        return err_set(err, ERR_NO_MEMORY, "out of memory for a sampler over %d tokens", n_vocab);
    }
    s->p.bias = NULL; /* the caller's: not kept */
    s->p.n_bias = 0;
    *out = s;
    return 0;
}

void sampler_free(struct sampler *s)
{
    if (!s)
        return;
    mem_free(s->changed);
    mem_free(s->block_max);
    mem_free(s->block_weight);
    ids_free(&s->window);
    mem_free(s->c);
    mem_free(s);
}

void sampler_ban(struct sampler *s, int32_t id)
{
    struct changed *c = id >= 0 && id < s->n_vocab ? changed_get(s, id) : NULL;
    if (c)
        c->bias = -INFINITY;
}

static void window_push(struct sampler *s, int32_t id)
{
    struct changed *c = changed_get(s, id);
    if (!c)
        return;
    c->in_window++;
    if (s->p.repeat_last_n < 0)
        return;
    if (s->window.len < (size_t)s->p.repeat_last_n) {
        if (ids_push(&s->window, id) < 0)
            s->failed = ERR_NO_MEMORY;
        return;
    }
    int32_t *oldest = &s->window.data[s->window_at];
    s->window_at = (s->window_at + 1) % s->window.len;
    changed_get(s, *oldest)->in_window--; /* it is there since it came in */
    *oldest = id;
}

void sampler_accept(struct sampler *s, int32_t id)
{
    if (id < 0 || id >= s->n_vocab)
        return;
    if (s->counts) {
        struct changed *c = changed_get(s, id);
        if (c)
            c->generated++;
    }
    if (s->repeats)
        window_push(s, id);
}

static double sum_weights(const struct candidate *c, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += c[i].weight;
    return sum;
}

/* What a set of tokens weighs: also the tokens that were weighed but not gathered. */
struct sums {
    double total;
    double moment; /* of each weight times the distance from the maximum */
};

static struct sums sums_of(const struct sampler *s, size_t n)
{
    struct sums sums = {0};
    for (size_t i = 0; i < n; i++) {
        sums.total += s->c[i].weight;
        sums.moment += s->c[i].weight * ((s->max + s->c[i].key) * s->inverse);
    }
    return sums;
}

/* Gathers and weighs every token that the filters could keep. *sums are those of all that top-k leaves, or of the gathered ones where no filter needs more. */
static size_t gather(struct sampler *s, const float *logits, struct sums *sums)
{
    const struct sample_params *p = &s->p;
    double cut = INFINITY;
    size_t k = (size_t)p->top_k, n;
    int counted = p->top_k > 0 && p->top_k < s->n_vocab, shares = !counted && (p->top_p < 1 || (p->min_p <= 0 && p->typical_p < 1));
    if (shares) {
        struct mass mass;
        sample_weigh_all(s, logits, &mass, 1);
        *sums = (struct sums){mass.total, mass.moment};
        if (p->top_p < 1)
            cut = sample_cut(&mass, p->top_p);
        else /* beyond twice the mean distance all are less typical than the first */
            cut = fmax(sample_cut(&mass, p->typical_p), 2 * mass.moment / mass.total + 1);
    } else if (!counted && p->min_p > 0) {
        cut = 1 - log(p->min_p); /* the filter decides at the border itself */
    }
    if (counted && k <= HEAP_MAX)
        n = sample_gather_top(s, logits, k);
    else
        n = sample_gather_near(s, logits, cut);
    n = sample_weigh(s, counted ? select_count(s->c, n, k) : n);
    if (!shares)
        *sums = sums_of(s, n);
    return n;
}

/* Keeps the tokens whose information is closest to the expected one, up to the mass typical_p. A token's information is its distance from the maximum plus the
 * same for all, so the distances alone tell. */
static size_t keep_typical(struct sampler *s, size_t n, struct sums sums)
{
    double mean = sums.moment / sums.total;
    for (size_t i = 0; i < n; i++)
        s->c[i].key = fabs((s->max + s->c[i].key) * s->inverse - mean);
    return select_weight(s->c, n, s->p.typical_p * sums.total);
}

/* Leaves the candidates that may be drawn, with their weights, in s->c; returns how many. */
static size_t select_candidates(struct sampler *s, const float *logits)
{
    const struct sample_params *p = &s->p;
    struct sums sums;
    size_t n = gather(s, logits, &sums);
    if (p->top_p < 1)
        n = select_weight(s->c, n, p->top_p * sums.total);
    if (p->min_p > 0) { /* the maximum's weight is exp(0) */
        size_t kept = 0;
        for (size_t i = 0; i < n; i++)
            if (s->c[i].weight >= p->min_p)
                s->c[kept++] = s->c[i];
        n = kept;
    }
    if (p->typical_p >= 1)
        return n;
    return keep_typical(s, n, p->top_p < 1 || p->min_p > 0 ? sums_of(s, n) : sums);
}

/* Nothing but the temperature: the blocks' weights are enough to draw by. */
static int is_unfiltered(const struct sampler *s)
{
    return (s->p.top_k == 0 || s->p.top_k >= s->n_vocab) && s->p.top_p >= 1 && s->p.min_p <= 0 && s->p.typical_p >= 1;
}

static int prepare(struct sampler *s, const float *logits, struct err *err)
{
    if (s->failed)
        return err_set(err, s->failed, "out of memory for the sampler's counts");
    return sample_find_max(s, logits, err);
}

int sampler_probabilities(struct sampler *s, const float *logits, double *out, struct err *err)
{
    TRY(prepare(s, logits, err));
    memset(out, 0, (size_t)s->n_vocab * sizeof *out);
    if (s->p.temperature == 0) {
        out[sample_first(s, logits)] = 1;
        return 0;
    }
    size_t n = select_candidates(s, logits);
    double total = sum_weights(s->c, n);
    for (size_t i = 0; i < n; i++)
        out[s->c[i].id] = s->c[i].weight / total;
    return 0;
}

int sampler_next(struct sampler *s, const float *logits, int32_t *id, struct err *err)
{
    TRY(prepare(s, logits, err));
    if (s->p.temperature == 0) {
        *id = sample_first(s, logits);
    } else if (is_unfiltered(s)) {
        struct mass mass;
        sample_weigh_all(s, logits, &mass, 0);
        *id = sample_draw_any(s, logits, mass.total);
    } else {
        size_t n = select_candidates(s, logits), at = 0;
        double left = rng_unit(&s->rng) * sum_weights(s->c, n);
        while (at + 1 < n && left >= s->c[at].weight)
            left -= s->c[at++].weight;
        *id = s->c[at].id;
    }
    sampler_accept(s, *id);
    return 0;
}

/* log of the sum of exp over all, or NaN. */
static double log_sum(const float *logits, int32_t n_vocab)
{
    double max = -INFINITY, sum = 0;
    for (int32_t i = 0; i < n_vocab; i++)
        max = logits[i] > max ? logits[i] : max;
    for (int32_t i = 0; i < n_vocab; i++)
        sum += exp(logits[i] - max);
    return max + log(sum);
}

double sample_logprob(const float *logits, int32_t n_vocab, int32_t id)
{
    return id >= 0 && id < n_vocab ? logits[id] - log_sum(logits, n_vocab) : NAN;
}

int sample_top(const float *logits, int32_t n_vocab, int k, int32_t *ids, double *logprobs)
{
    int n = 0;
    if (k <= 0)
        return 0;
    for (int32_t id = 0; id < n_vocab; id++) { /* insertion into a sorted list: k is small */
        if (n == k && !(logits[id] > logits[ids[n - 1]]))
            continue;
        int at = n < k ? n++ : n - 1;
        for (; at > 0 && logits[ids[at - 1]] < logits[id]; at--)
            ids[at] = ids[at - 1];
        ids[at] = id;
    }
    double all = log_sum(logits, n_vocab);
    for (int i = 0; i < n; i++)
        logprobs[i] = logits[ids[i]] - all;
    return n;
}
