/* Sampling over candidates. Penalties and biases touch few tokens and are applied to a working copy; the filters then need only the tokens that can survive them: with top-k the
 * k largest, otherwise those within reach of the largest, found without sorting the vocabulary. Everything after the copy is in f64. */
#include "engine/sample.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/mem.h"

struct candidate {
    double logit, p;
    int32_t id;
};

struct sampler {
    struct sample_params params;
    struct logit_bias *bias;
    int32_t n_vocab;
    double *logits;               /* [n_vocab], after penalties and biases */
    struct candidate *candidates; /* [n_vocab] */
    int32_t *window;              /* prompt and generated, in order */
    size_t n_window, cap_window, n_prompt;
    uint32_t *count;              /* [n_vocab] generated */
    uint32_t *seen;               /* [n_vocab] marks of one pass over the window */
    uint32_t pass;
    uint8_t *banned;              /* [n_vocab] */
    uint64_t rng[4];
};

void sample_params_default(struct sample_params *p)
{
    *p = (struct sample_params){.temperature = 1, .top_p = 1, .typical_p = 1, .repetition_penalty = 1, .repeat_last_n = -1};
}

int sample_params_from_gguf(const struct gguf *g, struct sample_params *p, struct err *err)
{
    struct sample_params q = *p;
    double penalty_last_n = q.repeat_last_n;
    uint64_t top_k = (uint64_t)q.top_k;
    const struct {
        const char *key;
        double *value;
    } floats[] = {
        {"general.sampling.temp", &q.temperature},        {"general.sampling.top_p", &q.top_p},
        {"general.sampling.min_p", &q.min_p},             {"general.sampling.typical_p", &q.typical_p},
        {"general.sampling.penalty_repeat", &q.repetition_penalty}, {"general.sampling.penalty_present", &q.presence_penalty},
        {"general.sampling.penalty_freq", &q.frequency_penalty},
    };
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++)
        TRY(gguf_get_f64(g, floats[i].key, floats[i].value, err));
    TRY(gguf_get_u64(g, "general.sampling.top_k", 0, 1u << 24, &top_k, err));
    const struct gguf_kv *last_n = gguf_find(g, "general.sampling.penalty_last_n");
    if (last_n && last_n->type != GGUF_ARRAY && last_n->type != GGUF_STRING && last_n->type != GGUF_BOOL) {
        struct gguf_kv one = *last_n;
        one.elem_type = last_n->type;
        penalty_last_n = gguf_array_f64(&one, 0);
    }
    q.top_k = (int)top_k;
    q.repeat_last_n = penalty_last_n >= -1 && penalty_last_n < 1e9 ? (int)penalty_last_n : -1;
    int rc = sample_params_check(&q, INT32_MAX, err);
    if (rc < 0)
        return err_prefix(err, "%s: general.sampling", gguf_path(g));
    *p = q;
    return 0;
}

static int check_range(const char *name, double value, double min, double max, struct err *err)
{
    if (value >= min && value <= max)
        return 0;
    return err_set(err, ERR_INVALID, "%s is %g, expected %g to %g", name, value, min, max);
}

int sample_params_check(const struct sample_params *p, int32_t n_vocab, struct err *err)
{
    TRY(check_range("temperature", p->temperature, 0, 100, err));
    TRY(check_range("top_p", p->top_p, 0, 1, err));
    TRY(check_range("min_p", p->min_p, 0, 1, err));
    TRY(check_range("typical_p", p->typical_p, 0, 1, err));
    TRY(check_range("repetition_penalty", p->repetition_penalty, 1e-3, 100, err));
    TRY(check_range("presence_penalty", p->presence_penalty, -100, 100, err));
    TRY(check_range("frequency_penalty", p->frequency_penalty, -100, 100, err));
    TRY(check_range("top_k", p->top_k, 0, 1 << 24, err));
    TRY(check_range("repeat_last_n", p->repeat_last_n, -1, 1 << 30, err));
    for (size_t i = 0; i < p->n_bias; i++) {
        if (p->bias[i].id < 0 || p->bias[i].id >= n_vocab)
            return err_set(err, ERR_INVALID, "logit_bias names token %d, which is outside the vocabulary of %d", p->bias[i].id, n_vocab);
        TRY(check_range("logit_bias", p->bias[i].bias, -1000, 1000, err));
    }
    return 0;
}

/* splitmix64: spreads a seed over the generator's state. */
static uint64_t splitmix(uint64_t *x)
{
    uint64_t z = *x += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static uint64_t rotl(uint64_t x, int k)
{
    return x << k | x >> (64 - k);
}

/* xoshiro256** (Blackman, Vigna); a double in [0, 1) from the upper 53 bits. */
static double draw(struct sampler *s)
{
    uint64_t *r = s->rng, out = rotl(r[1] * 5, 7) * 9, t = r[1] << 17;
    r[2] ^= r[0];
    r[3] ^= r[1];
    r[1] ^= r[2];
    r[0] ^= r[3];
    r[2] ^= t;
    r[3] = rotl(r[3], 45);
    return (double)(out >> 11) * 0x1p-53;
}

static int window_push(struct sampler *s, int32_t id)
{
    if (s->n_window == s->cap_window) {
        size_t cap = s->cap_window ? 2 * s->cap_window : 256;
        int32_t *grown = mem_realloc(MEM_TEXT, s->window, cap * sizeof *grown);
        if (!grown)
            return ERR_NO_MEMORY;
        s->window = grown;
        s->cap_window = cap;
    }
    s->window[s->n_window++] = id;
    return 0;
}

int sampler_create(const struct sample_params *p, int32_t n_vocab, const int32_t *prompt, size_t n_prompt, struct sampler **out, struct err *err)
{
    TRY(sample_params_check(p, n_vocab, err));
    struct sampler *s = mem_alloc(MEM_TEXT, sizeof *s);
    size_t n = (size_t)n_vocab;
    int ok = s != NULL;
    if (ok) {
        s->params = *p;
        s->n_vocab = n_vocab;
        s->logits = mem_alloc_array(MEM_TEXT, n, sizeof *s->logits);
        s->candidates = mem_alloc_array(MEM_TEXT, n, sizeof *s->candidates);
        s->count = mem_alloc_array(MEM_TEXT, n, sizeof *s->count);
        s->seen = mem_alloc_array(MEM_TEXT, n, sizeof *s->seen);
        s->banned = mem_alloc(MEM_TEXT, n);
        s->bias = mem_alloc_array(MEM_TEXT, p->n_bias + 1, sizeof *s->bias);
        ok = s->logits && s->candidates && s->count && s->seen && s->banned && s->bias;
    }
    for (size_t i = 0; ok && i < n_prompt; i++)
        ok = prompt[i] >= 0 && prompt[i] < n_vocab && window_push(s, prompt[i]) == 0;
    if (!ok) {
        sampler_free(s);
        return err_set(err, ERR_NO_MEMORY, "out of memory for a sampler over %d tokens", n_vocab);
    }
    s->n_prompt = n_prompt;
    if (p->n_bias)
        memcpy(s->bias, p->bias, p->n_bias * sizeof *p->bias);
    s->params.bias = s->bias;
    uint64_t seed = p->seed;
    if (!p->has_seed && getrandom(&seed, sizeof seed, GRND_NONBLOCK) != (ssize_t)sizeof seed)
        seed = (uint64_t)(uintptr_t)s;
    for (int i = 0; i < 4; i++)
        s->rng[i] = splitmix(&seed);
    *out = s;
    return 0;
}

void sampler_free(struct sampler *s)
{
    if (!s)
        return;
    mem_free(s->logits);
    mem_free(s->candidates);
    mem_free(s->count);
    mem_free(s->seen);
    mem_free(s->banned);
    mem_free(s->bias);
    mem_free(s->window);
    mem_free(s);
}

void sampler_ban(struct sampler *s, int32_t id)
{
    s->banned[id] = 1;
}

void sampler_accept(struct sampler *s, int32_t id)
{
    s->count[id]++;
    (void)window_push(s, id); /* without memory the window just stops growing */
}

static void apply_penalties(struct sampler *s)
{
    const struct sample_params *p = &s->params;
    size_t last = p->repeat_last_n < 0 || (size_t)p->repeat_last_n > s->n_window ? s->n_window : (size_t)p->repeat_last_n;
    if (p->repetition_penalty != 1) {
        s->pass++;
        for (size_t i = s->n_window - last; i < s->n_window; i++) {
            int32_t id = s->window[i];
            if (s->seen[id] == s->pass)
                continue;
            s->seen[id] = s->pass;
            s->logits[id] = s->logits[id] > 0 ? s->logits[id] / p->repetition_penalty : s->logits[id] * p->repetition_penalty;
        }
    }
    if (p->presence_penalty != 0 || p->frequency_penalty != 0) {
        s->pass++;
        for (size_t i = s->n_prompt; i < s->n_window; i++) {
            int32_t id = s->window[i];
            if (s->seen[id] == s->pass)
                continue;
            s->seen[id] = s->pass;
            s->logits[id] -= p->presence_penalty + p->frequency_penalty * s->count[id];
        }
    }
    for (size_t i = 0; i < p->n_bias; i++)
        s->logits[p->bias[i].id] = p->bias[i].bias <= -100 ? -INFINITY : s->logits[p->bias[i].id] + p->bias[i].bias;
}

/* Copies, checks, penalises. Returns the best id (the lower one of equals). */
static int prepare(struct sampler *s, const float *logits, int32_t *best, struct err *err)
{
    int finite = 0;
    for (int32_t i = 0; i < s->n_vocab; i++) {
        if (isnan(logits[i]) || logits[i] == INFINITY)
            return err_set(err, ERR_NUMERIC, "logits are not finite: token %d has %g", i, (double)logits[i]);
        finite |= logits[i] > -INFINITY;
        s->logits[i] = (double)logits[i];
    }
    if (!finite)
        return err_set(err, ERR_NUMERIC, "logits are not finite: all are -inf");
    apply_penalties(s);
    *best = -1;
    for (int32_t i = 0; i < s->n_vocab; i++) {
        if (s->banned[i])
            s->logits[i] = -INFINITY;
        if (s->logits[i] > -INFINITY && (*best < 0 || s->logits[i] > s->logits[*best]))
            *best = i;
    }
    if (*best < 0)
        return err_set(err, ERR_NUMERIC, "every token is banned");
    return 0;
}

/* Larger logit first, then the lower id. */
static int before(const struct candidate *a, const struct candidate *b)
{
    return a->logit > b->logit || (a->logit == b->logit && a->id < b->id);
}

static int compare(const void *a, const void *b)
{
    return before(a, b) ? -1 : before(b, a) ? 1 : 0;
}

static void sift_down(struct candidate *heap, int n, int i)
{
    struct candidate moved = heap[i];
    for (int child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && before(&heap[child], &heap[child + 1]))
            child++; /* the one that comes later in order: the heap keeps the last on top */
        if (!before(&moved, &heap[child]))
            break;
        heap[i] = heap[child];
    }
    heap[i] = moved;
}

/* The k first in order, sorted. */
static int collect_top_k(struct sampler *s, int k)
{
    struct candidate *heap = s->candidates;
    int n = 0;
    for (int32_t i = 0; i < s->n_vocab; i++) {
        struct candidate c = {.logit = s->logits[i], .id = i};
        if (c.logit == -INFINITY)
            continue;
        if (n < k) {
            heap[n++] = c;
            if (n == k)
                for (int j = n / 2 - 1; j >= 0; j--)
                    sift_down(heap, n, j);
        } else if (before(&c, &heap[0])) {
            heap[0] = c;
            sift_down(heap, n, 0);
        }
    }
    qsort(heap, (size_t)n, sizeof *heap, compare);
    return n;
}

/* Everything within `reach` of the best, unsorted. */
static int collect_within(struct sampler *s, double best, double reach)
{
    int n = 0;
    for (int32_t i = 0; i < s->n_vocab; i++)
        if (s->logits[i] > -INFINITY && s->logits[i] >= best - reach)
            s->candidates[n++] = (struct candidate){.logit = s->logits[i], .id = i};
    return n;
}

static void normalise(struct candidate *c, int n, double best)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += c[i].p = exp(c[i].logit - best);
    for (int i = 0; i < n; i++)
        c[i].p /= sum;
}

/* Moves the first in order to the top of a heap over c[0, n). */
static void raise_first(struct candidate *c, int n, int i)
{
    struct candidate moved = c[i];
    for (int child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && before(&c[child + 1], &c[child]))
            child++;
        if (!before(&c[child], &moved))
            break;
        c[i] = c[child];
    }
    c[i] = moved;
}

/* The smallest prefix in order that reaches top_p. Unsorted candidates come off a heap one by one, so no more than the prefix is put in order. */
static int filter_top_p(struct sampler *s, int n, int sorted, double best)
{
    struct candidate *c = s->candidates;
    double sum = 0, total = 0;
    int keep = 0;
    for (int i = 0; i < n; i++)
        total += exp(c[i].logit - best);
    for (int i = n / 2 - 1; i >= 0 && !sorted; i--)
        raise_first(c, n, i);
    for (; keep < n && (keep == 0 || sum < s->params.top_p); keep++) {
        struct candidate first = c[sorted ? keep : 0];
        sum += exp(first.logit - best) / total;
        if (sorted)
            continue;
        c[0] = c[n - 1 - keep]; /* what is taken gathers behind the heap, the latest in front */
        c[n - 1 - keep] = first;
        raise_first(c, n - 1 - keep, 0);
    }
    for (int i = 0; i < n / 2 && !sorted; i++) {
        struct candidate t = c[i];
        c[i] = c[n - 1 - i];
        c[n - 1 - i] = t;
    }
    return keep;
}

static int filter_min_p(struct sampler *s, int n)
{
    struct candidate *c = s->candidates;
    double most = 0;
    int keep = 0;
    for (int i = 0; i < n; i++)
        most = fmax(most, c[i].p);
    for (int i = 0; i < n; i++)
        if (c[i].p >= s->params.min_p * most)
            c[keep++] = c[i];
    return keep;
}

struct distance {
    double far;
    struct candidate c;
};

static int by_distance(const void *a, const void *b)
{
    const struct distance *x = a, *y = b;
    return x->far < y->far ? -1 : x->far > y->far ? 1 : x->c.id < y->c.id ? -1 : 1;
}

/* Locally typical: nearest to the entropy first, until typical_p is reached. */
static int filter_typical(struct sampler *s, int n, struct err *err)
{
    struct candidate *c = s->candidates;
    struct distance *d = mem_alloc_array(MEM_TEXT, (size_t)n, sizeof *d);
    double entropy = 0, sum = 0;
    int keep = 0;
    if (!d)
        return err_set(err, ERR_NO_MEMORY, "out of memory for typical_p");
    for (int i = 0; i < n; i++)
        entropy -= c[i].p > 0 ? c[i].p * log(c[i].p) : 0;
    for (int i = 0; i < n; i++)
        d[i] = (struct distance){.far = c[i].p > 0 ? fabs(-log(c[i].p) - entropy) : INFINITY, .c = c[i]};
    qsort(d, (size_t)n, sizeof *d, by_distance);
    for (; keep < n; keep++) {
        if (keep > 0 && sum >= s->params.typical_p)
            break;
        sum += d[keep].c.p;
        c[keep] = d[keep].c;
    }
    mem_free(d);
    return keep;
}

/* Leaves the surviving candidates with their probabilities; returns how many. */
static int distribute(struct sampler *s, const float *logits, struct err *err)
{
    const struct sample_params *p = &s->params;
    int32_t best_id = 0;
    TRY(prepare(s, logits, &best_id, err));
    double best = s->logits[best_id];
    if (p->temperature == 0) {
        s->candidates[0] = (struct candidate){.logit = best, .p = 1, .id = best_id};
        return 1;
    }
    for (int32_t i = 0; i < s->n_vocab; i++)
        s->logits[i] /= p->temperature;
    best /= p->temperature;
    int sorted = p->top_k > 0 && p->top_k < s->n_vocab;
    int n = sorted ? collect_top_k(s, p->top_k) : collect_within(s, best, INFINITY);
    if (p->top_p < 1)
        n = filter_top_p(s, n, sorted, best);
    normalise(s->candidates, n, best);
    if (p->min_p > 0) {
        n = filter_min_p(s, n);
        normalise(s->candidates, n, best);
    }
    if (p->typical_p < 1) {
        n = filter_typical(s, n, err);
        TRY(n);
        normalise(s->candidates, n, best);
    }
    return n;
}

int sampler_probabilities(struct sampler *s, const float *logits, double *p, struct err *err)
{
    int n = distribute(s, logits, err);
    TRY(n);
    for (int32_t i = 0; i < s->n_vocab; i++)
        p[i] = 0;
    for (int i = 0; i < n; i++)
        p[s->candidates[i].id] = s->candidates[i].p;
    return 0;
}

int sampler_next(struct sampler *s, const float *logits, int32_t *id, struct err *err)
{
    int n = distribute(s, logits, err);
    TRY(n);
    int chosen = 0;
    if (n > 1) {
        double x = draw(s), sum = 0;
        for (chosen = 0; chosen < n - 1; chosen++) {
            sum += s->candidates[chosen].p;
            if (x < sum)
                break;
        }
    }
    *id = s->candidates[chosen].id;
    sampler_accept(s, *id);
    return 0;
}

static double log_sum(const float *logits, int32_t n, double *best)
{
    double sum = 0;
    *best = -INFINITY;
    for (int32_t i = 0; i < n; i++)
        *best = fmax(*best, (double)logits[i]);
    for (int32_t i = 0; i < n; i++)
        sum += exp((double)logits[i] - *best);
    return log(sum);
}

double sample_logprob(const float *logits, int32_t n_vocab, int32_t id)
{
    double best, sum = log_sum(logits, n_vocab, &best);
    return (double)logits[id] - best - sum;
}

int sample_top(const float *logits, int32_t n_vocab, int k, int32_t *ids, double *logprobs)
{
    double best, sum = log_sum(logits, n_vocab, &best);
    int n = 0;
    for (int32_t i = 0; i < n_vocab; i++) { /* k is small: insertion into a sorted list */
        if (n == k && (k == 0 || !(logits[i] > logits[ids[n - 1]])))
            continue;
        int at = n < k ? n++ : n - 1;
        while (at > 0 && logits[i] > logits[ids[at - 1]]) {
            ids[at] = ids[at - 1];
            at--;
        }
        ids[at] = i;
    }
    for (int i = 0; i < n; i++)
        logprobs[i] = (double)logits[ids[i]] - best - sum;
    return n;
}
