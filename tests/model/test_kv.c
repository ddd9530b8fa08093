/* What the smaller caches cost in exactness: on every golden model the logits with f16 and q8_0 keys and values against those with f32, in exact arithmetic, where nothing else
 * differs; and the goldens' greedy ids where their margin is wide enough. docs/model.md section 8 states the bounds. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "support/model.h"
#include "support/test.h"

static const char *const models[] = {
    "r1-q4_k_m", "r2-f32", "r2-q8_0", "r2-q4_0", "r2-q4_k_m", "r2-iq4_xs", "r3-q4_k_m", "moe-q4_k_m", "mtp-q4_k_m",
};

static const struct bound {
    const char *name;
    double mean_kl, logit; /* at most; the logits' standard deviation is 3 */
    double margin;         /* of a greedy choice that must stand */
} bounds[KV_N_TYPES] = {{"f32", 0, 0, 2e-3}, {"f16", 2e-7, 1e-2, 1e-2}, {"q8_0", 1e-4, 0.2, 0.2}};

/* All logits of a prompt, through one batch. */
static float *all_logits(struct rig *rig, enum kv_type type, const int32_t *ids, size_t n)
{
    struct state *state = NULL;
    struct err err = {0};
    const float *logits;
    size_t n_vocab = (size_t)rig->m->config.n_vocab;
    float *out = mem_alloc(MEM_OTHER, n * n_vocab * sizeof *out);
    test_ok(state_create(&rig->m->config, rig->dev, type, (int64_t)n, &state, &err), &err, "state");
    test_ok(state_reserve(state, (int64_t)n, &err), &err, "reserve");
    struct batch_span span = {.seq = state_seq(state), .ids = ids, .n = (int64_t)n, .n_logits = (int64_t)n};
    test_ok(model_forward(rig->r, &span, 1, &logits, &err), &err, "forward");
    memcpy(out, logits, n * n_vocab * sizeof *out);
    state_free(state);
    return out;
}

struct comparison {
    double kl, worst;
    size_t n, n_equal;
};

static double log_sum_exp(const float *x, size_t n, size_t *best)
{
    double sum = 0;
    *best = 0;
    for (size_t i = 1; i < n; i++)
        if (x[i] > x[*best])
            *best = i;
    for (size_t i = 0; i < n; i++)
        sum += exp((double)x[i] - (double)x[*best]);
    return (double)x[*best] + log(sum);
}

/* Adds rows of logits to the comparison; a choice with a margin wider than the bound's must be the same. */
static void compare(struct comparison *c, const float *reference, const float *got, size_t rows, size_t n_vocab, const struct bound *bound, const char *model)
{
    for (size_t r = 0; r < rows; r++) {
        const float *p = reference + r * n_vocab, *q = got + r * n_vocab;
        size_t best, other;
        double zp = log_sum_exp(p, n_vocab, &best), zq = log_sum_exp(q, n_vocab, &other);
        for (size_t i = 0; i < n_vocab; i++) {
            c->kl += exp((double)p[i] - zp) * (((double)p[i] - zp) - ((double)q[i] - zq));
            c->worst = fmax(c->worst, fabs((double)p[i] - (double)q[i]));
            assert_true(isfinite(q[i]));
        }
        c->n++;
        c->n_equal += best == other;
        if (best != other && (double)p[best] - (double)p[other] > bound->margin)
            fail_msg("%s with %s: row %zu chooses %zu, not %zu, which was ahead by %g", model, bound->name, r, other, best, (double)p[best] - (double)p[other]);
    }
}

static void check_model(const char *model, const char *rung, enum kv_type type, struct comparison *sum)
{
    static const char *const prompts[] = {"p70", "p600"};
    struct comparison c = {0};
    struct rig rig;
    rig_open(&rig, model, rung, ARITHMETIC_EXACT, 2, 600, 600);
    size_t n, n_vocab = (size_t)rig.m->config.n_vocab;
    for (int i = 0; i < (TEST_SANITIZED ? 1 : 2); i++) {
        int32_t *ids = rig_prompt(model, prompts[i], &n);
        float *reference = all_logits(&rig, KV_F32, ids, n), *got = all_logits(&rig, type, ids, n);
        compare(&c, reference, got, n, n_vocab, &bounds[type], model);
        mem_free(ids);
        mem_free(reference);
        mem_free(got);
    }
    rig_close(&rig);
    print_message("%-12s %-7s %-5s KL %.2e, worst logit %.2e, equal argmax %.2f %%\n", model, rung, bounds[type].name, c.kl / (double)c.n, c.worst, 100 * (double)c.n_equal / (double)c.n);
    if (!(c.kl / (double)c.n <= bounds[type].mean_kl) || !(c.worst <= bounds[type].logit))
        fail_msg("%s (%s) with %s: mean KL %g, worst logit difference %g", model, rung, bounds[type].name, c.kl / (double)c.n, c.worst);
    sum->kl += c.kl;
    sum->worst = fmax(sum->worst, c.worst);
    sum->n += c.n;
    sum->n_equal += c.n_equal;
}

static void test_logits(void **unused)
{
    (void)unused;
    for (int type = KV_F16; type < KV_N_TYPES; type++)
        for (const char *const *rung = device_cpu_rungs(); *rung; rung++) {
            struct comparison sum = {0};
            int is_reference = strcmp(*rung, "scalar") == 0; /* slow: one model shows it */
            for (size_t i = 0; i < (is_reference || TEST_SANITIZED ? 1 : sizeof models / sizeof *models); i++)
                check_model(models[i], *rung, (enum kv_type)type, &sum);
            print_message("%-12s %-7s %-5s KL %.2e, worst logit %.2e, equal argmax %.2f %%\n", "all", *rung, bounds[type].name, sum.kl / (double)sum.n, sum.worst,
                          100 * (double)sum.n_equal / (double)sum.n);
        }
}

/* The goldens' own greedy ids, step by step, up to the first choice that is too close to call. */
static void check_greedy(struct rig *rig, const char *model, const char *prompt, enum kv_type type, const json_t *want)
{
    size_t n, checked = 0, n_vocab = (size_t)rig->m->config.n_vocab;
    int32_t *ids = rig_prompt(model, prompt, &n);
    struct session *s = NULL;
    struct err err = {0};
    struct sync_result result;
    const json_t *greedy = json_object_get(want, "greedy"), *margin = json_object_get(want, "margin");
    test_ok(session_create(rig->r, type, 2048, &s, &err), &err, "session");
    test_ok(session_sync(s, &(struct sync_request){.tokens = ids, .n = n}, &result, &err), &err, "sync");
    for (; checked < json_array_size(greedy) && json_real_value(json_array_get(margin, checked)) > bounds[type].margin; checked++) {
        const float *logits = session_logits(s);
        int32_t best = 0;
        for (size_t k = 1; k < n_vocab; k++)
            best = logits[k] > logits[best] ? (int32_t)k : best;
        if (best != json_integer_value(json_array_get(greedy, checked)))
            fail_msg("%s %s with %s: greedy id %zu is %d", model, prompt, bounds[type].name, checked, best);
        test_ok(rig_step(&s, &best, 1, &err), &err, "step");
    }
    session_free(s);
    mem_free(ids);
}

static void test_greedy(void **unused)
{
    (void)unused;
    static const char *const prompts[] = {"p7", "p70", "p600"};
    for (size_t i = 0; i < (TEST_SANITIZED ? 1 : sizeof models / sizeof *models); i++) {
        char name[64];
        struct rig rig;
        snprintf(name, sizeof name, "models/%s.json", models[i]);
        json_t *json = test_json(name);
        rig_open(&rig, models[i], NULL, ARITHMETIC_EXACT, 2, 600, 600);
        for (int type = KV_F16; type < KV_N_TYPES; type++)
            for (int p = 0; p < 3; p++)
                check_greedy(&rig, models[i], prompts[p], (enum kv_type)type, json_object_get(json_object_get(json, "prompts"), prompts[p]));
        rig_close(&rig);
        json_decref(json);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_logits), cmocka_unit_test(test_greedy)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
