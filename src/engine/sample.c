/* One request's sampler. Logits are never copied: the few tokens whose logit is changed (seen, biased, banned) stand in a list sorted by id, and every pass
 * walks the plain ranges between them. Invariant: the list holds each id once, in rising order. */
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

struct changed {
    int32_t id;
    uint32_t in_window; /* times in the window of the repetition penalty */
    uint32_t generated; /* times generated */
    double bias;        /* -INFINITY bans */
};

struct sampler {
    struct sample_params p;
    int32_t n_vocab;
    struct rng rng;
    struct changed *changed;
    size_t n_changed, cap_changed;
    int repeats, counts;  /* whether the window and the generated tokens matter at all */
    struct ids window;    /* the last repeat_last_n tokens, a ring once it is full; unused when all count */
    size_t window_at;
    int failed;           /* an allocation failed while accepting: sticky */
    struct candidate *c;
    size_t cap;
};

static int is_banned(double bias)
{
    return bias <= -100;
}

/* Where id stands or belongs. */
static size_t changed_find(const struct sampler *s, int32_t id)
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
    size_t at = changed_find(s, id);
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
    s->cap = p->top_k > 0 && p->top_k <= HEAP_MAX ? (size_t)p->top_k : (size_t)s->n_vocab;
    if (s->cap > (size_t)s->n_vocab)
        s->cap = (size_t)s->n_vocab;
    s->c = p->temperature > 0 ? mem_alloc_array(MEM_WORKSPACE, s->cap, sizeof *s->c) : NULL;
    return p->temperature > 0 && !s->c ? ERR_NO_MEMORY : 0;
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

static double changed_logit(const struct sampler *s, const struct changed *c, double x)
{
    if (c->in_window)
        x = x > 0 ? x / s->p.repetition_penalty : x * s->p.repetition_penalty;
    if (c->generated)
        x -= s->p.presence_penalty + s->p.frequency_penalty * c->generated;
    return x + c->bias;
}

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

struct extremes {
    int32_t low, high;
};

static void extremes_of(struct extremes *e, const float *x, size_t n)
{
    int32_t low = e->low, high = e->high;
    for (size_t i = 0; i < n; i++) {
        int32_t order = float_order(x[i]);
        low = order < low ? order : low;
        high = order > high ? order : high;
    }
    *e = (struct extremes){low, high};
}

/* The largest logit after changes; says no when the model's own are unusable or every token is banned. */
static int find_max(const struct sampler *s, const float *logits, double *max, struct err *err)
{
    struct extremes all = {INT32_MAX, INT32_MIN}, plain = all;
    double best = -INFINITY;
    int32_t from = 0;
    for (size_t i = 0; i <= s->n_changed; i++) {
        int32_t to = i < s->n_changed ? s->changed[i].id : s->n_vocab;
        if (to > from)
            extremes_of(&plain, logits + from, (size_t)(to - from));
        if (i < s->n_changed) {
            double x = changed_logit(s, &s->changed[i], logits[to]);
            extremes_of(&all, logits + to, 1);
            best = x > best ? x : best;
        }
        from = to + 1;
    }
    if (plain.low <= plain.high) {
        all.low = plain.low < all.low ? plain.low : all.low;
        all.high = plain.high > all.high ? plain.high : all.high;
        best = order_float(plain.high) > best ? order_float(plain.high) : best;
    }
    if (all.low < float_order(-INFINITY) || all.high >= float_order(INFINITY))
        return err_set(err, ERR_NUMERIC, "the model's logits are not finite");
    if (all.high == float_order(-INFINITY))
        return err_set(err, ERR_NUMERIC, "the model's logits are all minus infinity");
    if (!(best > -INFINITY))
        return err_set(err, ERR_NUMERIC, "every token is banned");
    *max = best;
    return 0;
}

/* The lowest id whose logit is the maximum. */
static int32_t find_first(const struct sampler *s, const float *logits, double max)
{
    int32_t from = 0;
    for (size_t i = 0; i <= s->n_changed; i++) {
        int32_t to = i < s->n_changed ? s->changed[i].id : s->n_vocab;
        for (int32_t id = from; id < to; id++)
            if (logits[id] == max)
                return id;
        if (i < s->n_changed && changed_logit(s, &s->changed[i], logits[to]) == max)
            return to;
        from = to + 1;
    }
    return 0;
}

/* The k largest, by a heap. */
static size_t gather_top(const struct sampler *s, const float *logits)
{
    size_t n = 0;
    int32_t from = 0;
    for (size_t i = 0; i <= s->n_changed; i++) {
        int32_t to = i < s->n_changed ? s->changed[i].id : s->n_vocab;
        for (int32_t id = from; id < to; id++)
            if ((n < s->cap || -(double)logits[id] < s->c[0].key) && logits[id] > -INFINITY)
                n = select_offer(s->c, n, s->cap, -(double)logits[id], id);
        if (i < s->n_changed) {
            double x = changed_logit(s, &s->changed[i], logits[to]);
            if (x > -INFINITY)
                n = select_offer(s->c, n, s->cap, -x, to);
        }
        from = to + 1;
    }
    return n;
}

struct gather {
    struct candidate *c;
    size_t n;
    double max, temperature;
    double cut;   /* candidates further than this below the maximum (in units of the temperature) are left out, */
    double total; /* but their weight is in here, unless none_below */
    int none_below;
};

static inline void gather_one(struct gather *g, double x, int32_t id)
{
    double far = (g->max - x) / g->temperature;
    if (far > g->cut && (g->none_below || far > 700))
        return;
    double weight = exp(-far);
    g->total += weight;
    if (far <= g->cut && weight > 0)
        g->c[g->n++] = (struct candidate){.key = -x, .weight = weight, .id = id};
}

static void gather_all(const struct sampler *s, const float *logits, struct gather *g)
{
    int32_t from = 0;
    for (size_t i = 0; i <= s->n_changed; i++) {
        int32_t to = i < s->n_changed ? s->changed[i].id : s->n_vocab;
        for (int32_t id = from; id < to; id++)
            gather_one(g, logits[id], id);
        if (i < s->n_changed)
            gather_one(g, changed_logit(s, &s->changed[i], logits[to]), to);
        from = to + 1;
    }
}

static double sum_weights(const struct candidate *c, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += c[i].weight;
    return sum;
}

/* Keeps the tokens whose information is closest to the expected one, up to the mass typical_p. */
static size_t keep_typical(const struct sampler *s, size_t n)
{
    double total = sum_weights(s->c, n), entropy = 0;
    for (size_t i = 0; i < n; i++) {
        double p = s->c[i].weight / total;
        if (p > 0)
            entropy -= p * log(p);
    }
    for (size_t i = 0; i < n; i++) {
        double p = s->c[i].weight / total;
        s->c[i].key = p > 0 ? fabs(-log(p) - entropy) : INFINITY;
    }
    return select_weight(s->c, n, s->p.typical_p * total);
}

/* Leaves the candidates that may be drawn, with their weights, in s->c; returns how many. */
static size_t select_candidates(const struct sampler *s, const float *logits, double max)
{
    const struct sample_params *p = &s->p;
    struct gather g = {.c = s->c, .max = max, .temperature = p->temperature, .cut = INFINITY};
    if (p->top_k > 0 && p->top_k <= HEAP_MAX) {
        size_t n_top = gather_top(s, logits);
        for (size_t i = 0; i < n_top; i++)
            gather_one(&g, -s->c[i].key, s->c[i].id); /* in place: never behind what it reads */
    } else {
        /* Far below the maximum all n tokens together weigh less than what top-p leaves out; the total is at least 1. */
        int counted = p->top_k > 0 && p->top_k < s->n_vocab;
        if (!counted && p->top_p < 1) {
            g.cut = log(s->n_vocab / (1 - p->top_p)) + 1;
        } else if (!counted && p->min_p > 0) {
            g.cut = -log(p->min_p) + 1;
            g.none_below = 1;
        }
        gather_all(s, logits, &g);
        if (counted) {
            g.n = select_count(s->c, g.n, (size_t)p->top_k);
            g.total = sum_weights(s->c, g.n);
        }
    }
    size_t n = g.n;
    if (p->top_p < 1)
        n = select_weight(s->c, n, p->top_p * g.total);
    if (p->min_p > 0) { /* the maximum's weight is exp(0) */
        size_t kept = 0;
        for (size_t i = 0; i < n; i++)
            if (s->c[i].weight >= p->min_p)
                s->c[kept++] = s->c[i];
        n = kept;
    }
    return p->typical_p < 1 ? keep_typical(s, n) : n;
}

int sampler_probabilities(struct sampler *s, const float *logits, double *out, struct err *err)
{
    double max;
    if (s->failed)
        return err_set(err, s->failed, "out of memory for the sampler's counts");
    TRY(find_max(s, logits, &max, err));
    memset(out, 0, (size_t)s->n_vocab * sizeof *out);
    if (s->p.temperature == 0) {
        out[find_first(s, logits, max)] = 1;
        return 0;
    }
    size_t n = select_candidates(s, logits, max);
    double total = sum_weights(s->c, n);
    for (size_t i = 0; i < n; i++)
        out[s->c[i].id] = s->c[i].weight / total;
    return 0;
}

int sampler_next(struct sampler *s, const float *logits, int32_t *id, struct err *err)
{
    double max;
    if (s->failed)
        return err_set(err, s->failed, "out of memory for the sampler's counts");
    TRY(find_max(s, logits, &max, err));
    if (s->p.temperature == 0) {
        *id = find_first(s, logits, max);
    } else {
        size_t n = select_candidates(s, logits, max), at = 0;
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
