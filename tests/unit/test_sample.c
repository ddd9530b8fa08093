/* The sampler against the goldens (exact probabilities), its draws against those probabilities, seeds, refusals, and its speed at a real vocabulary. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "engine/sample.h"
#include "support/test.h"

#define BIG 248320 /* tokens of the real vocabulary */

static double number(const json_t *one, const char *key, double absent)
{
    const json_t *value = json_object_get(one, key);
    return json_is_number(value) ? json_number_value(value) : absent;
}

static float logit_of(const json_t *value)
{
    if (!json_is_string(value))
        return (float)json_number_value(value);
    const char *text = json_string_value(value);
    return strcmp(text, "nan") == 0 ? NAN : text[0] == '-' ? -INFINITY : INFINITY;
}

static size_t read_ids(const json_t *list, int32_t *out)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        out[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return json_array_size(list);
}

static void read_params(const json_t *one, struct sample_params *p, struct logit_bias *bias)
{
    const char *key;
    json_t *value;
    sample_params_default(p);
    p->temperature = number(one, "temperature", p->temperature);
    p->top_k = (int)number(one, "top_k", p->top_k);
    p->top_p = number(one, "top_p", p->top_p);
    p->min_p = number(one, "min_p", p->min_p);
    p->typical_p = number(one, "typical_p", p->typical_p);
    p->repetition_penalty = number(one, "repetition_penalty", p->repetition_penalty);
    p->presence_penalty = number(one, "presence_penalty", p->presence_penalty);
    p->frequency_penalty = number(one, "frequency_penalty", p->frequency_penalty);
    p->repeat_last_n = (int)number(one, "repeat_last_n", p->repeat_last_n);
    p->bias = bias;
    json_object_foreach(json_object_get(one, "logit_bias"), key, value) {
        bias[p->n_bias].id = (int32_t)strtol(key, NULL, 10);
        bias[p->n_bias++].bias = json_number_value(value);
    }
}

static struct sampler *make(const struct sample_params *p, int32_t n_vocab, const int32_t *prompt, size_t n_prompt)
{
    struct sampler *s = NULL;
    struct err err = {0};
    test_ok(sampler_create(p, n_vocab, prompt, n_prompt, &s, &err), &err, "sampler");
    return s;
}

static void test_goldens(void **unused)
{
    (void)unused;
    json_t *cases = test_json("sampling/cases.json");
    double worst = 0;
    assert_true(json_array_size(cases) >= 100);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *one = json_array_get(cases, i), *logits = json_object_get(one, "logits"), *want = json_object_get(one, "p");
        struct sample_params params;
        struct logit_bias bias[8];
        struct err err = {0};
        float x[64];
        double p[64];
        int32_t prompt[64], generated[64], id;
        size_t n = json_array_size(logits), n_prompt = read_ids(json_object_get(one, "prompt"), prompt), n_generated = read_ids(json_object_get(one, "generated"), generated);
        assert_true(n <= 64);
        read_params(one, &params, bias);
        for (size_t k = 0; k < n; k++)
            x[k] = logit_of(json_array_get(logits, k));
        struct sampler *s = make(&params, (int32_t)n, prompt, n_prompt);
        for (size_t k = 0; k < n_generated; k++)
            sampler_accept(s, generated[k]);
        int rc = sampler_probabilities(s, x, p, &err);
        if (!want) { /* never a token from broken logits */
            assert_int_equal(rc, ERR_NUMERIC);
            assert_int_equal(sampler_next(s, x, &id, &err), ERR_NUMERIC);
        } else {
            test_ok(rc, &err, "probabilities");
            for (size_t k = 0; k < n; k++) {
                double off = fabs(p[k] - json_number_value(json_array_get(want, k)));
                worst = off > worst ? off : worst;
                if (off > 1e-6)
                    fail_msg("case %zu, token %zu: %.9f, expected %.9f", i, k, p[k], json_number_value(json_array_get(want, k)));
            }
        }
        sampler_free(s);
    }
    print_message("%zu cases, worst difference %.1e\n", json_array_size(cases), worst);
    json_decref(cases);
}

/* ---- the rules once more, by sorting everything: for vocabularies of many blocks ---- */

struct ref {
    double x, p, key;
    int id, keep;
};

static int by_key(const void *a, const void *b)
{
    const struct ref *x = a, *y = b;
    return x->key < y->key ? -1 : x->key > y->key ? 1 : x->id - y->id;
}

/* Softmax over what is kept. */
static void ref_softmax(struct ref *r, int n, double max, double temperature)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += r[i].p = r[i].keep ? exp((r[i].x - max) / temperature) : 0;
    for (int i = 0; i < n; i++)
        r[i].p /= sum;
}

/* Keeps the first by key that together reach `share`. */
static void ref_share(struct ref *r, int n, double share)
{
    double before = 0;
    qsort(r, (size_t)n, sizeof *r, by_key);
    for (int i = 0; i < n; i++) {
        double p = r[i].p;
        if (i > 0 && before >= share - 1e-12) /* equal tokens: their sum is not exact here */
            r[i].keep = 0;
        before += p;
    }
}

static void ref_probabilities(const struct sample_params *p, const double *x, int n, double *out)
{
    struct ref *r = mem_alloc_array(MEM_OTHER, (size_t)n, sizeof *r);
    for (int i = 0; i < n; i++)
        r[i] = (struct ref){.x = x[i], .key = -x[i], .id = i, .keep = x[i] > -INFINITY};
    qsort(r, (size_t)n, sizeof *r, by_key);
    double max = r[0].x, highest = 0, entropy = 0;
    for (int i = 0; i < n; i++)
        r[i].keep &= p->top_k == 0 || i < p->top_k;
    ref_softmax(r, n, max, p->temperature);
    if (p->top_p < 1)
        ref_share(r, n, p->top_p);
    ref_softmax(r, n, max, p->temperature);
    for (int i = 0; i < n; i++)
        highest = fmax(highest, r[i].p);
    for (int i = 0; i < n; i++)
        r[i].keep &= p->min_p == 0 || r[i].p >= p->min_p * highest;
    ref_softmax(r, n, max, p->temperature);
    for (int i = 0; i < n; i++)
        entropy -= r[i].p > 0 ? r[i].p * log(r[i].p) : 0;
    for (int i = 0; i < n; i++)
        r[i].key = r[i].p > 0 ? fabs(-log(r[i].p) - entropy) : INFINITY;
    if (p->typical_p < 1)
        ref_share(r, n, p->typical_p);
    ref_softmax(r, n, max, p->temperature);
    for (int i = 0; i < n; i++)
        out[r[i].id] = r[i].p;
    mem_free(r);
}

static void ban_both(struct sampler *s, int32_t id, double *changed)
{
    sampler_ban(s, id);
    changed[id] = -INFINITY;
}

static void test_reference(void **unused)
{
    (void)unused;
    static const int top_k[] = {0, 0, 0, 1, 40, 300, 4000, 5000}, sizes[] = {1, 63, 64, 65, 1000, 6001};
    static const double top_p[] = {1, 1, 0.95, 0.5, 0}, min_p[] = {0, 0, 0.05, 1}, typical_p[] = {1, 1, 1, 0.9, 0.2}, temperature[] = {0.05, 0.7, 1, 3, 50};
    static float x[6001];
    static double changed[6001], got[6001], want[6001];
    uint64_t state = 77;
    struct err err = {0};
    for (int round = 0; round < 600; round++) {
        int n = sizes[test_random(&state, 6)], shape = (int)test_random(&state, 4);
        struct sample_params p;
        sample_params_default(&p);
        p.top_k = top_k[test_random(&state, 8)];
        p.top_p = top_p[test_random(&state, 5)];
        p.min_p = min_p[test_random(&state, 4)];
        p.typical_p = typical_p[test_random(&state, 5)];
        p.temperature = temperature[test_random(&state, 5)];
        p.presence_penalty = 1.25;
        for (int i = 0; i < n; i++) {
            x[i] = shape == 0 ? 3 * test_gauss(&state) : shape == 1 ? (float)test_random(&state, 5) : shape == 2 ? (float)i / 500 : test_gauss(&state) / 10;
            changed[i] = x[i];
        }
        struct sampler *s = make(&p, n, NULL, 0);
        for (int i = 0; i < 30; i++) { /* some seen, some banned, never all */
            int32_t seen = (int32_t)test_random(&state, (uint32_t)n), banned = (int32_t)test_random(&state, (uint32_t)n);
            sampler_accept(s, seen);
            if (banned != seen && banned > n / 2)
                ban_both(s, banned, changed);
            if (changed[seen] == x[seen])
                changed[seen] -= 1.25;
        }
        test_ok(sampler_probabilities(s, x, got, &err), &err, "probabilities");
        ref_probabilities(&p, changed, n, want);
        for (int i = 0; i < n; i++)
            if (fabs(got[i] - want[i]) > 1e-9)
                fail_msg("round %d, token %d of %d: %.12f, expected %.12f (top_k %d, top_p %g, min_p %g, typical_p %g, temperature %g, shape %d)", round, i, n, got[i], want[i], p.top_k, p.top_p, p.min_p, p.typical_p,
                    p.temperature, shape);
        sampler_free(s);
    }
}

/* 100,000 draws against the exact distribution. The bound is the 1 - 1e-6 quantile by Wilson and Hilferty; the seed is fixed, so this cannot flicker. */
static void check_draws(const struct sample_params *params, int32_t n_vocab, const float *x, const char *name)
{
    enum { DRAWS = 100000 };
    struct err err = {0};
    double *p = mem_alloc_array(MEM_OTHER, (size_t)n_vocab, sizeof *p), chi2 = 0, rest_p = 0, rest_n = 0;
    int *count = mem_alloc_array(MEM_OTHER, (size_t)n_vocab, sizeof *count), cells = 0;
    struct sampler *s = make(params, n_vocab, NULL, 0);
    test_ok(sampler_probabilities(s, x, p, &err), &err, "probabilities");
    for (int i = 0; i < DRAWS; i++) {
        int32_t id;
        test_ok(sampler_next(s, x, &id, &err), &err, "next");
        count[id]++;
    }
    for (int32_t i = 0; i < n_vocab; i++) {
        if (p[i] == 0 && count[i])
            fail_msg("%s: token %d was drawn, which cannot be", name, i);
        if (p[i] * DRAWS >= 10) {
            chi2 += (count[i] - p[i] * DRAWS) * (count[i] - p[i] * DRAWS) / (p[i] * DRAWS);
            cells++;
        } else {
            rest_p += p[i];
            rest_n += count[i];
        }
    }
    if (rest_p * DRAWS >= 10) {
        chi2 += (rest_n - rest_p * DRAWS) * (rest_n - rest_p * DRAWS) / (rest_p * DRAWS);
        cells++;
    }
    double k = cells - 1, bound = k > 0 ? k * pow(1 - 2 / (9 * k) + 4.753 * sqrt(2 / (9 * k)), 3) : 1e-9;
    print_message("%s: chi-square %.1f of %d cells, bound %.1f\n", name, chi2, cells, bound);
    assert_true(chi2 <= bound);
    sampler_free(s);
    mem_free(p);
    mem_free(count);
}

static void test_draws(void **unused)
{
    (void)unused;
    float x[200];
    uint64_t state = 5;
    for (int i = 0; i < 200; i++)
        x[i] = 2 * test_gauss(&state);
    struct sample_params p;
    sample_params_default(&p);
    p.has_seed = 1;
    p.seed = 17;
    check_draws(&p, 200, x, "neutral");
    p.temperature = 0.7;
    p.top_k = 20;
    p.top_p = 0.8;
    check_draws(&p, 200, x, "temperature 0.7, top-k 20, top-p 0.8");
    p.top_k = 0;
    p.top_p = 0.95;
    p.temperature = 1.5;
    check_draws(&p, 200, x, "top-p alone");
    p.top_p = 1;
    p.min_p = 0.05;
    check_draws(&p, 200, x, "min-p alone");
    p.min_p = 0;
    p.typical_p = 0.6;
    check_draws(&p, 200, x, "typical-p alone");
    p.top_k = 1;
    check_draws(&p, 200, x, "top-k 1");
}

static void draw(const struct sample_params *p, const float *x, int32_t n_vocab, int32_t *out, int n)
{
    struct err err = {0};
    struct sampler *s = make(p, n_vocab, NULL, 0);
    for (int i = 0; i < n; i++)
        test_ok(sampler_next(s, x, &out[i], &err), &err, "next");
    sampler_free(s);
}

static void test_seeds(void **unused)
{
    (void)unused;
    float x[100];
    int32_t a[64], b[64], c[64], d[64], other[64];
    uint64_t state = 9;
    struct sample_params p;
    for (int i = 0; i < 100; i++)
        x[i] = test_gauss(&state);
    sample_params_default(&p);
    p.has_seed = 1;
    draw(&p, x, 100, a, 64);
    draw(&p, x, 100, other, 64); /* other samplers draw in between */
    draw(&p, x, 100, b, 64);
    assert_memory_equal(a, b, sizeof a);
    p.seed = 1;
    draw(&p, x, 100, b, 64);
    assert_true(memcmp(a, b, sizeof a) != 0);
    p.has_seed = 0; /* drawn: two requests differ */
    draw(&p, x, 100, c, 64);
    draw(&p, x, 100, d, 64);
    assert_true(memcmp(c, d, sizeof c) != 0);
}

/* The first draws of a seed are fixed for good: a session that is stored goes on the same way in another version. */
static void test_stream(void **unused)
{
    (void)unused;
    float x[1000] = {0};
    int32_t ids[6], want[6] = {83, 378, 680, 924, 991, 769};
    struct sample_params p;
    sample_params_default(&p);
    p.has_seed = 1;
    p.seed = 42;
    draw(&p, x, 1000, ids, 6);
    for (int i = 0; i < 6; i++)
        assert_int_equal(ids[i], want[i]);
}

static void test_bad_logits(void **unused)
{
    (void)unused;
    struct sample_params p;
    struct err err = {0};
    sample_params_default(&p);
    for (int greedy = 0; greedy < 2; greedy++) {
        p.temperature = greedy ? 0 : 1;
        for (int bad = 0; bad < 5; bad++) {
            float x[50];
            int32_t id = -7;
            for (int i = 0; i < 50; i++)
                x[i] = bad == 4 ? -INFINITY : 1;
            x[33] = bad == 0 ? NAN : bad == 1 ? INFINITY : bad == 2 ? -NAN : x[33];
            struct sampler *s = make(&p, 50, NULL, 0);
            for (int i = 0; bad == 3 && i < 50; i++)
                sampler_ban(s, i);
            if (bad == 0)
                sampler_ban(s, 33); /* a banned NaN is a NaN */
            assert_int_equal(sampler_next(s, x, &id, &err), ERR_NUMERIC);
            assert_int_equal(id, -7);
            assert_true(strlen(err.message) > 0);
            sampler_free(s);
        }
    }
}

static void test_bans(void **unused)
{
    (void)unused;
    struct sample_params p;
    struct err err = {0};
    float x[40];
    double probability[40];
    for (int i = 0; i < 40; i++)
        x[i] = (float)i;
    sample_params_default(&p);
    p.top_k = 5;
    for (int greedy = 0; greedy < 2; greedy++) {
        p.temperature = greedy ? 0 : 1;
        struct sampler *s = make(&p, 40, NULL, 0);
        for (int i = 38; i < 45; i++) /* beyond the vocabulary: nothing happens */
            sampler_ban(s, i);
        test_ok(sampler_probabilities(s, x, probability, &err), &err, "probabilities");
        assert_true(probability[37] > 0.5 && probability[38] == 0 && probability[39] == 0);
        for (int i = 0; i < 1000; i++) {
            int32_t id;
            test_ok(sampler_next(s, x, &id, &err), &err, "next");
            assert_in_range(id, 33, 37);
        }
        sampler_free(s);
    }
}

/* The window slides: a token is penalised while it is among the last n, and no longer. */
static void test_window(void **unused)
{
    (void)unused;
    struct sample_params p;
    struct err err = {0};
    float x[10] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    double probability[10];
    int32_t prompt[] = {9, 0, 1};
    sample_params_default(&p);
    p.repetition_penalty = 2;
    p.repeat_last_n = 3;
    struct sampler *s = make(&p, 10, prompt, 3);
    for (int next = 2; next < 9; next++) {
        test_ok(sampler_probabilities(s, x, probability, &err), &err, "probabilities");
        for (int i = 0; i < 9; i++)
            assert_int_equal(probability[i] < probability[next], i >= next - 3 && i < next);
        sampler_accept(s, next);
    }
    sampler_free(s);
}

static void test_check(void **unused)
{
    (void)unused;
    static const struct {
        size_t offset;
        const char *name;
        double bad[4];
        int n;
    } fields[] = {
        {offsetof(struct sample_params, temperature), "temperature", {-0.1, 101, NAN, INFINITY}, 4},
        {offsetof(struct sample_params, top_p), "top_p", {-0.1, 1.1, NAN, -INFINITY}, 4},
        {offsetof(struct sample_params, min_p), "min_p", {-0.1, 1.1, NAN, INFINITY}, 4},
        {offsetof(struct sample_params, typical_p), "typical_p", {-0.1, 1.1, NAN, INFINITY}, 4},
        {offsetof(struct sample_params, repetition_penalty), "repetition_penalty", {0, -1, NAN, INFINITY}, 4},
        {offsetof(struct sample_params, presence_penalty), "presence_penalty", {-101, 101, NAN, INFINITY}, 4},
        {offsetof(struct sample_params, frequency_penalty), "frequency_penalty", {-101, 101, NAN, INFINITY}, 4},
    };
    struct sample_params p;
    struct err err = {0};
    sample_params_default(&p);
    assert_int_equal(sample_params_check(&p, 10, &err), 0);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        for (int k = 0; k < fields[i].n; k++) {
            sample_params_default(&p);
            *(double *)((char *)&p + fields[i].offset) = fields[i].bad[k];
            assert_int_equal(sample_params_check(&p, 10, &err), ERR_INVALID);
            assert_non_null(strstr(err.message, fields[i].name));
        }
    sample_params_default(&p);
    p.top_k = -1;
    assert_int_equal(sample_params_check(&p, 10, &err), ERR_INVALID);
    assert_non_null(strstr(err.message, "top_k"));
    sample_params_default(&p);
    p.repeat_last_n = -2;
    assert_int_equal(sample_params_check(&p, 10, &err), ERR_INVALID);
    assert_non_null(strstr(err.message, "repeat_last_n"));
    struct logit_bias bias[] = {{10, 1}, {-1, 1}, {3, NAN}};
    for (int i = 0; i < 3; i++) {
        sample_params_default(&p);
        p.bias = &bias[i];
        p.n_bias = 1;
        assert_int_equal(sample_params_check(&p, 10, &err), ERR_INVALID);
        assert_non_null(strstr(err.message, "logit_bias"));
    }
    struct sampler *s;
    int32_t outside = 10;
    sample_params_default(&p);
    assert_int_equal(sampler_create(&p, 10, &outside, 1, &s, &err), ERR_INVALID);
    assert_int_equal(sampler_create(&p, 0, NULL, 0, &s, &err), ERR_INVALID);
}

static void test_memory(void **unused)
{
    (void)unused;
    struct sample_params p;
    struct err err = {0};
    float x[300] = {0};
    int32_t prompt[300], id;
    size_t before = mem_total();
    int refused = 0;
    for (int i = 0; i < 300; i++)
        prompt[i] = i % 7;
    sample_params_default(&p);
    p.repetition_penalty = 1.1;
    p.presence_penalty = 1;
    p.repeat_last_n = 200;
    for (long nth = 1; nth < 15; nth++) {
        struct sampler *s = NULL;
        mem_fail_nth(nth);
        int rc = sampler_create(&p, 300, prompt, 300, &s, &err);
        for (int i = 0; rc == 0 && i < 400; i++)
            rc = sampler_next(s, x, &id, &err);
        mem_fail_nth(0);
        assert_true(rc == 0 || rc == ERR_NO_MEMORY);
        refused += rc < 0;
        sampler_free(s);
        assert_int_equal(mem_total(), before);
    }
    assert_true(refused >= 4);
}

static void test_logprobs(void **unused)
{
    (void)unused;
    float x[6] = {0, 3, 1, 3, -2, 2};
    int32_t ids[8];
    double logprobs[8], sum = 0;
    for (int i = 0; i < 6; i++)
        sum += exp(x[i]);
    assert_int_equal(sample_top(x, 6, 4, ids, logprobs), 4);
    const int32_t want[] = {1, 3, 5, 2};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(ids[i], want[i]);
        assert_true(fabs(logprobs[i] - (x[want[i]] - log(sum))) < 1e-12);
        assert_true(fabs(sample_logprob(x, 6, want[i]) - logprobs[i]) < 1e-12);
    }
    assert_int_equal(sample_top(x, 6, 8, ids, logprobs), 6);
    assert_int_equal(sample_top(x, 6, 0, ids, logprobs), 0);
    assert_true(isnan(sample_logprob(x, 6, 6)) && isnan(sample_logprob(x, 6, -1)));
}

/* What a demonstration file recommends is read, a broken value is refused by its key. */
static void test_from_file(void **unused)
{
    (void)unused;
    struct gguf *g;
    struct err err = {0};
    struct sample_params p, neutral;
    sample_params_default(&p);
    sample_params_default(&neutral);
    test_ok(gguf_open(TEST_SOURCE "/models/apr-demo.gguf", GGUF_HEADER_ONLY, &g, &err), &err, "open");
    test_ok(sample_params_from_gguf(g, &p, &err), &err, "read");
    const struct gguf_kv *kv = gguf_find(g, "general.sampling.temp");
    if (!kv)
        assert_memory_equal(&p, &neutral, sizeof p);
    else
        assert_true(fabs(p.temperature - gguf_array_f64(&(struct gguf_kv){.elem_type = kv->type, .data = kv->data, .n = 1}, 0)) < 1e-6);
    gguf_close(g);
}

static double time_next(struct sample_params *p, const float *x, int rounds)
{
    struct err err = {0};
    struct sampler *s = make(p, BIG, NULL, 0);
    double best = 1e9;
    for (int i = 0; i < rounds; i++) {
        int32_t id;
        uint64_t start = clock_ns();
        test_ok(sampler_next(s, x, &id, &err), &err, "next");
        double ms = clock_ms_since(start);
        best = ms < best ? ms : best;
    }
    sampler_free(s);
    return best;
}

/* Sorting 248,320 logits takes some 30 ms; a choice must not. The bound is far off, for sanitizers and busy machines; the figures are printed. */
static void test_speed(void **unused)
{
    (void)unused;
    float *x = mem_alloc_array(MEM_OTHER, BIG, sizeof *x), *rising = mem_alloc_array(MEM_OTHER, BIG, sizeof *x), *flat = mem_alloc_array(MEM_OTHER, BIG, sizeof *x);
    uint64_t state = 3;
    for (int i = 0; i < BIG; i++) {
        x[i] = 3 * test_gauss(&state);
        rising[i] = (float)i / BIG;
    }
    static const struct {
        const char *name;
        double temperature, top_p, min_p, typical_p;
        int top_k;
    } sets[] = {{"greedy", 0, 1, 0, 1, 0}, {"top-k 20", 1, 1, 0, 1, 20}, {"top-k 20, top-p 0.95", 1, 0.95, 0, 1, 20}, {"top-k 1000", 1, 1, 0, 1, 1000}, {"top-k 50000", 1, 1, 0, 1, 50000},
        {"top-p 0.95", 1, 0.95, 0, 1, 0}, {"top-p 0.95, temperature 0.6", 0.6, 0.95, 0, 1, 0}, {"min-p 0.05", 1, 1, 0.05, 1, 0}, {"neutral", 1, 1, 0, 1, 0}, {"typical-p 0.9", 1, 1, 0, 0.9, 0}};
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        struct sample_params p;
        sample_params_default(&p);
        p.temperature = sets[i].temperature;
        p.top_p = sets[i].top_p;
        p.min_p = sets[i].min_p;
        p.typical_p = sets[i].typical_p;
        p.top_k = sets[i].top_k;
        double normal = time_next(&p, x, 5), up = time_next(&p, rising, 3), same = time_next(&p, flat, 3);
        print_message("%-28s %.2f ms, rising logits %.2f ms, equal logits %.2f ms\n", sets[i].name, normal, up, same);
        assert_true(normal < 200 && up < 1000 && same < 1000);
    }
    mem_free(x);
    mem_free(rising);
    mem_free(flat);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens), cmocka_unit_test(test_reference), cmocka_unit_test(test_draws), cmocka_unit_test(test_seeds),    cmocka_unit_test(test_stream),    cmocka_unit_test(test_bad_logits), cmocka_unit_test(test_bans),
        cmocka_unit_test(test_window),  cmocka_unit_test(test_check), cmocka_unit_test(test_memory),   cmocka_unit_test(test_logprobs),  cmocka_unit_test(test_from_file),  cmocka_unit_test(test_speed),
    };
    json_use_mem();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
