/* Probabilities against the exact ones, draws against probabilities, seeds, errors (B151, B168). */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/sample.h"
#include "support/test.h"

#define MAX_VOCAB 4096

struct sample_case {
    float logits[MAX_VOCAB];
    int32_t n, ids[2][256];
    size_t n_ids[2];
    struct sample_params p;
    struct logit_bias bias[16];
};

static double number(const json_t *c, const char *name, double otherwise)
{
    const json_t *v = json_object_get(c, name);
    return v ? json_number_value(v) : otherwise;
}

static void read_case(const json_t *c, struct sample_case *out)
{
    static const char *const lists[2] = {"prompt", "generated"};
    const json_t *logits = json_object_get(c, "logits"), *v;
    memset(out, 0, sizeof *out);
    sample_params_default(&out->p);
    out->n = (int32_t)json_array_size(logits);
    for (int32_t i = 0; i < out->n; i++) {
        v = json_array_get(logits, (size_t)i);
        const char *word = json_string_value(v);
        out->logits[i] = !word ? (float)json_number_value(v) : word[0] == 'n' ? NAN : word[0] == '-' ? -INFINITY : INFINITY;
    }
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < json_array_size(json_object_get(c, lists[k])); i++)
            out->ids[k][out->n_ids[k]++] = (int32_t)json_integer_value(json_array_get(json_object_get(c, lists[k]), i));
    out->p.temperature = number(c, "temperature", 1);
    out->p.top_k = (int)number(c, "top_k", 0);
    out->p.top_p = number(c, "top_p", 1);
    out->p.min_p = number(c, "min_p", 0);
    out->p.typical_p = number(c, "typical_p", 1);
    out->p.repetition_penalty = number(c, "repetition_penalty", 1);
    out->p.repeat_last_n = (int)number(c, "repeat_last_n", -1);
    out->p.presence_penalty = number(c, "presence_penalty", 0);
    out->p.frequency_penalty = number(c, "frequency_penalty", 0);
    const char *key;
    json_object_foreach(json_object_get(c, "logit_bias"), key, v)
        out->bias[out->p.n_bias++] = (struct logit_bias){(int32_t)strtol(key, NULL, 10), json_number_value(v)};
    out->p.bias = out->bias;
}

static struct sampler *sampler_of(const struct sample_case *c)
{
    struct sampler *s = NULL;
    struct err err = {0};
    test_ok(sampler_create(&c->p, c->n, c->ids[0], c->n_ids[0], &s, &err), &err, "sampler");
    for (size_t i = 0; i < c->n_ids[1]; i++)
        sampler_accept(s, c->ids[1][i]);
    return s;
}

static void test_goldens(void **unused)
{
    (void)unused;
    json_t *cases = test_json("sampling/cases.json"), *one;
    static struct sample_case c;
    double p[MAX_VOCAB];
    size_t i;
    json_array_foreach(cases, i, one) {
        read_case(one, &c);
        struct sampler *s = sampler_of(&c);
        struct err err = {0};
        int32_t id = -1;
        int rc = sampler_probabilities(s, c.logits, p, &err);
        if (json_object_get(one, "error")) {
            assert_int_equal(rc, ERR_NUMERIC);
            assert_int_equal(sampler_next(s, c.logits, &id, &err), ERR_NUMERIC);
            assert_int_equal(id, -1); /* never token 0 */
        } else {
            test_ok(rc, &err, "probabilities");
            for (int32_t k = 0; k < c.n; k++) {
                double want = json_number_value(json_array_get(json_object_get(one, "p"), (size_t)k));
                if (!(fabs(p[k] - want) <= 1e-6))
                    fail_msg("case %zu: p[%d] is %.9f, expected %.9f", i, k, p[k], want);
            }
        }
        sampler_free(s);
    }
    assert_true(i >= 150);
    json_decref(cases);
}

/* 100,000 draws against the probabilities: chi-square below its mean plus six standard deviations. */
static void check_draws(struct sample_case *c)
{
    enum { DRAWS = 100000 };
    double p[MAX_VOCAB], chi = 0;
    int count[MAX_VOCAB] = {0}, free_cells = -1;
    struct err err = {0};
    c->p.has_seed = 1;
    c->p.seed = 1234;
    struct sampler *s = sampler_of(c);
    test_ok(sampler_probabilities(s, c->logits, p, &err), &err, "probabilities");
    for (int i = 0; i < DRAWS; i++) {
        int32_t id;
        test_ok(sampler_next(s, c->logits, &id, &err), &err, "draw");
        assert_true(p[id] > 0);
        count[id]++;
    }
    for (int32_t i = 0; i < c->n; i++)
        if (p[i] * DRAWS >= 5) {
            chi += (count[i] - p[i] * DRAWS) * (count[i] - p[i] * DRAWS) / (p[i] * DRAWS);
            free_cells++;
        }
    assert_true(chi <= free_cells + 6 * sqrt(2.0 * free_cells + 1));
    sampler_free(s);
}

static void test_draws(void **unused)
{
    (void)unused;
    static struct sample_case c;
    uint64_t state = 9;
    for (int k = 0; k < 4; k++) {
        memset(&c, 0, sizeof c);
        sample_params_default(&c.p);
        c.n = 60;
        for (int32_t i = 0; i < c.n; i++)
            c.logits[i] = 2 * test_gauss(&state);
        c.p.top_k = k == 1 ? 10 : 0;
        c.p.top_p = k == 2 ? 0.8 : 1;
        c.p.temperature = k == 3 ? 0.5 : 1;
        check_draws(&c);
    }
}

static void test_seeds(void **unused)
{
    (void)unused;
    static struct sample_case c;
    struct err err = {0};
    int32_t runs[3][200];
    uint64_t state = 3;
    sample_params_default(&c.p);
    c.n = 1000;
    for (int32_t i = 0; i < c.n; i++)
        c.logits[i] = test_gauss(&state);
    c.p.has_seed = 1;
    for (int k = 0; k < 3; k++) {
        c.p.seed = k == 2 ? 8 : 7;
        struct sampler *s = sampler_of(&c);
        for (int i = 0; i < 200; i++)
            test_ok(sampler_next(s, c.logits, &runs[k][i], &err), &err, "draw");
        sampler_free(s);
    }
    assert_memory_equal(runs[0], runs[1], sizeof runs[0]);
    assert_memory_not_equal(runs[0], runs[2], sizeof runs[0]);
}

static void test_bans_and_ranges(void **unused)
{
    (void)unused;
    static struct sample_case c;
    struct err err = {0};
    int32_t id;
    sample_params_default(&c.p);
    c.n = 5;
    c.logits[3] = 50;
    struct sampler *s = sampler_of(&c);
    sampler_ban(s, 3);
    for (int i = 0; i < 50; i++) {
        test_ok(sampler_next(s, c.logits, &id, &err), &err, "draw");
        assert_int_not_equal(id, 3);
    }
    for (int32_t i = 0; i < 5; i++)
        sampler_ban(s, i);
    assert_int_equal(sampler_next(s, c.logits, &id, &err), ERR_NUMERIC);
    sampler_free(s);
    static const struct {
        const char *name;
        size_t offset;
        double bad;
    } bad[] = {
        {"temperature", offsetof(struct sample_params, temperature), -1}, {"temperature", offsetof(struct sample_params, temperature), NAN},
        {"top_p", offsetof(struct sample_params, top_p), 1.5},            {"min_p", offsetof(struct sample_params, min_p), -0.1},
        {"typical_p", offsetof(struct sample_params, typical_p), NAN},    {"repetition_penalty", offsetof(struct sample_params, repetition_penalty), 0},
        {"presence_penalty", offsetof(struct sample_params, presence_penalty), INFINITY},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct sample_params p;
        sample_params_default(&p);
        memcpy((char *)&p + bad[i].offset, &bad[i].bad, sizeof(double));
        assert_int_equal(sample_params_check(&p, 10, &err), ERR_INVALID);
        assert_non_null(strstr(err.message, bad[i].name));
    }
}

/* A real vocabulary is sampled in a few milliseconds, whatever the filters. */
static void test_speed(void **unused)
{
    (void)unused;
    enum { N = 248320 };
    float *logits = mem_alloc(MEM_OTHER, N * sizeof *logits);
    uint64_t state = 4;
    for (int i = 0; i < N; i++)
        logits[i] = 2.5f * test_gauss(&state);
    for (int k = 0; k < 4; k++) {
        struct sample_params p;
        struct sampler *s = NULL;
        struct err err = {0};
        int32_t id;
        sample_params_default(&p);
        p.temperature = k == 0 ? 0 : 1;
        p.top_k = k == 1 ? 20 : 0;
        p.top_p = k >= 1 && k < 3 ? 0.95 : 1;
        test_ok(sampler_create(&p, N, NULL, 0, &s, &err), &err, "sampler");
        uint64_t start = clock_ns();
        for (int i = 0; i < 5; i++)
            test_ok(sampler_next(s, logits, &id, &err), &err, "draw");
        double ms = clock_ms_since(start) / 5;
        print_message("one of 248,320 tokens, set %d: %.2f ms\n", k, ms);
        assert_true(ms < 2000);
        sampler_free(s);
    }
    int32_t ids[5];
    double logprobs[5];
    assert_int_equal(sample_top(logits, N, 5, ids, logprobs), 5);
    for (int i = 0; i < 5; i++) {
        assert_true(fabs(logprobs[i] - sample_logprob(logits, N, ids[i])) < 1e-9);
        assert_true(i == 0 || logprobs[i] <= logprobs[i - 1]);
    }
    mem_free(logits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens), cmocka_unit_test(test_draws), cmocka_unit_test(test_seeds), cmocka_unit_test(test_bans_and_ranges), cmocka_unit_test(test_speed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
