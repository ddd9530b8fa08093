/* Every golden model: logits, likelihood and greedy ids against the float64 reference in exact arithmetic, divergence at or below the peer's in the default one, every
 * intermediate of the traced models (B157, B169). */
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "model/runner.h"
#include "support/model.h"
#include "support/test.h"

static const char *const models[] = {
    "r1-q4_k_m", "r2-f32",  "r2-f16",  "r2-bf16", "r2-q8_0", "r2-q4_0",   "r2-q4_1",   "r2-q5_0",   "r2-q5_1",    "r2-q2_k",    "r2-q3_k", "r2-q4_k",
    "r2-q5_k",   "r2-q6_k", "r2-iq4_nl", "r2-iq4_xs", "r2-q4_k_m", "r3-q4_k_m", "moe-q4_k_m", "mtp-q4_k_m",
};

static struct session *open_session(struct rig *rig)
{
    struct session *s = NULL;
    struct err err = {0};
    test_ok(session_create(rig->r, KV_F32, 2048, &s, &err), &err, "session");
    return s;
}

static void sync_prompt(struct session *s, const int32_t *ids, size_t n)
{
    struct err err = {0};
    struct sync_result result;
    test_ok(session_sync(s, &(struct sync_request){.tokens = ids, .n = n}, &result, &err), &err, "sync");
}

static double log_sum_exp(const float *x, size_t n)
{
    double max = x[0], sum = 0;
    for (size_t i = 1; i < n; i++)
        max = fmax(max, (double)x[i]);
    for (size_t i = 0; i < n; i++)
        sum += exp((double)x[i] - max);
    return max + log(sum);
}

/* All logits of a prompt, through one batch. */
static float *all_logits(struct rig *rig, const int32_t *ids, size_t n)
{
    struct state *state = NULL;
    struct err err = {0};
    const float *logits;
    size_t n_vocab = (size_t)rig->m->config.n_vocab;
    float *out = mem_alloc(MEM_OTHER, n * n_vocab * sizeof *out);
    test_ok(state_create(&rig->m->config, rig->dev, KV_F32, 2048, &state, &err), &err, "state");
    test_ok(state_reserve(state, (int64_t)n, &err), &err, "reserve");
    struct batch_span span = {.seq = state_seq(state), .ids = ids, .n = (int64_t)n, .n_logits = (int64_t)n};
    test_ok(model_forward(rig->r, &span, 1, &logits, &err), &err, "forward");
    memcpy(out, logits, n * n_vocab * sizeof *out);
    state_free(state);
    return out;
}

static double worst_difference(const float *a, const float *b, size_t n)
{
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        worst = d > worst || isnan(d) ? d : worst;
    }
    return worst;
}

static void check_greedy(struct rig *rig, const json_t *want, const char *model, const char *prompt, double noise)
{
    size_t n, n_vocab = (size_t)rig->m->config.n_vocab;
    int32_t *ids = rig_prompt(model, prompt, &n);
    struct session *s = open_session(rig);
    struct err err = {0};
    const json_t *greedy = json_object_get(want, "greedy"), *margin = json_object_get(want, "margin");
    sync_prompt(s, ids, n);
    for (size_t i = 0; i < json_array_size(greedy); i++) {
        const float *logits = session_logits(s);
        int32_t best = 0, expected = (int32_t)json_integer_value(json_array_get(greedy, i));
        if (json_real_value(json_array_get(margin, i)) < noise)
            break;
        for (size_t k = 1; k < n_vocab; k++)
            best = logits[k] > logits[best] ? (int32_t)k : best;
        if (best != expected)
            fail_msg("%s %s: greedy id %zu is %d, expected %d", model, prompt, i, best, expected);
        test_ok(rig_step(&s, &best, 1, &err), &err, "step");
    }
    session_free(s);
    mem_free(ids);
}

static void check_exact(const char *model, const json_t *json, const char *rung)
{
    static const char *const prompts[] = {"p7", "p70", "p600"};
    struct rig rig;
    rig_open(&rig, model, rung, ARITHMETIC_EXACT, 2, 600, 600);
    size_t n_vocab = (size_t)rig.m->config.n_vocab;
    for (int i = 0; i < (TEST_SANITIZED ? 2 : 3); i++) {
        const json_t *want = json_object_get(json_object_get(json, "prompts"), prompts[i]);
        size_t n, n_last, n_all;
        int32_t *ids = rig_prompt(model, prompts[i], &n);
        float *last = rig_floats("%s.%s.last.f32", model, prompts[i], &n_last), *got = all_logits(&rig, ids, n);
        double worst = worst_difference(got + (n - 1) * n_vocab, last, n_vocab), nll = 0;
        for (size_t k = 0; k + 1 < n; k++)
            nll += log_sum_exp(got + k * n_vocab, n_vocab) - (double)got[k * n_vocab + (size_t)ids[k + 1]];
        nll /= (double)(n - 1);
        if (i == 1) {
            float *all = rig_floats("%s.%s.all.f32", model, prompts[i], &n_all);
            worst = fmax(worst, worst_difference(got, all, n_all));
            mem_free(all);
        }
        if (!(worst <= 1e-3))
            fail_msg("%s %s (%s): worst logit difference %g", model, prompts[i], rung, worst);
        if (!(fabs(nll - json_real_value(json_object_get(want, "nll"))) <= 1e-5))
            fail_msg("%s %s (%s): nll %.8f", model, prompts[i], rung, nll);
        check_greedy(&rig, want, model, prompts[i], 2e-3);
        mem_free(ids);
        mem_free(last);
        mem_free(got);
    }
    rig_close(&rig);
}

static double mean_divergence(const float *reference, const float *got, size_t rows, size_t n_vocab)
{
    double sum = 0;
    for (size_t r = 0; r < rows; r++) {
        const float *p = reference + r * n_vocab, *q = got + r * n_vocab;
        double zp = log_sum_exp(p, n_vocab), zq = log_sum_exp(q, n_vocab);
        for (size_t i = 0; i < n_vocab; i++)
            sum += exp((double)p[i] - zp) * (((double)p[i] - zp) - ((double)q[i] - zq));
    }
    return sum / (double)rows;
}

static void check_default(const char *model, const json_t *json, const char *rung)
{
    struct rig rig;
    size_t n, n_all;
    rig_open(&rig, model, rung, ARITHMETIC_DEFAULT, 2, 600, 600);
    int32_t *ids = rig_prompt(model, "p70", &n);
    float *all = rig_floats("%s.%s.all.f32", model, "p70", &n_all), *got = all_logits(&rig, ids, n);
    double divergence = mean_divergence(all, got, n, (size_t)rig.m->config.n_vocab);
    double peer = json_real_value(json_object_get(json_object_get(json, "peer"), "kl_mean"));
    print_message("%-12s %-7s KL %.2e, peer %.2e\n", model, rung, divergence, peer);
    if (peer > 1e-6 && !(divergence <= peer))
        fail_msg("%s (%s): mean KL %g, the peer's is %g", model, rung, divergence, peer);
    mem_free(ids);
    mem_free(all);
    mem_free(got);
    rig_close(&rig);
}

static void each_model(void (*check)(const char *, const json_t *, const char *))
{
    for (const char *const *rung = device_cpu_rungs(); *rung; rung++)
        for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
            char name[64];
            int is_reference = strcmp(*rung, "scalar") == 0 && *rung != device_cpu_rungs()[0];
            if ((is_reference && i % 6) || (TEST_SANITIZED && (is_reference || i % 9)))
                continue; /* the reference rung is slow: a few models show it */
            snprintf(name, sizeof name, "models/%s.json", models[i]);
            json_t *json = test_json(name);
            check(models[i], json, *rung);
            json_decref(json);
        }
}

static void test_exact(void **unused)
{
    (void)unused;
    each_model(check_exact);
}

static void test_default(void **unused)
{
    (void)unused;
    each_model(check_default);
}

struct trace {
    const char *folder;
    const struct model_config *c;
    int checked;
};

static void compare(struct trace *t, int layer, const char *name, const float *data, int64_t rows, int64_t cols, int64_t stride)
{
    char file[256];
    size_t bytes;
    snprintf(file, sizeof file, "models/%s/%d.%s.f32", t->folder, layer, name);
    FILE *exists = fopen(test_path("%s", file), "rb");
    if (!exists)
        return;
    fclose(exists);
    float *want = (float *)test_read_file(test_path("%s", file), &bytes);
    if (bytes / 4 != (size_t)(rows * cols))
        fail_msg("%s has %zu values, got %lld", file, bytes / 4, (long long)(rows * cols));
    double largest = 0, worst = 0;
    for (int64_t i = 0; i < rows * cols; i++) {
        double d = fabs((double)want[i] - (double)data[i / cols * stride + i % cols]);
        largest = fmax(largest, fabs((double)want[i]));
        worst = d > worst || isnan(d) ? d : worst;
    }
    if (!(worst <= 2e-4 * largest))
        fail_msg("%s: worst difference %g of %g", file, worst, largest);
    mem_free(want);
    t->checked++;
}

static void on_trace(void *ctx, int layer, const char *name, const float *data, int64_t n_rows, int64_t n_cols)
{
    struct trace *t = ctx;
    int64_t keys = (int64_t)t->c->n_head_k * t->c->d_state;
    if (strcmp(name, "q_k_v") == 0) {
        compare(t, layer, "q", data, n_rows, keys, n_cols);
        compare(t, layer, "k", data + keys, n_rows, keys, n_cols);
        compare(t, layer, "v", data + 2 * keys, n_rows, n_cols - 2 * keys, n_cols);
    } else if (strcmp(name, "gate") == 0) { /* [row][head][q | gate] */
        float *gate = mem_alloc(MEM_OTHER, (size_t)(n_rows * n_cols / 2) * sizeof *gate);
        for (int64_t i = 0; i < n_rows * n_cols / 2; i++)
            gate[i] = data[i / t->c->d_head * 2 * t->c->d_head + t->c->d_head + i % t->c->d_head];
        compare(t, layer, "gate", gate, n_rows, n_cols / 2, n_cols / 2);
        mem_free(gate);
    } else {
        compare(t, layer, name, data, n_rows, n_cols, n_cols);
    }
}

static void check_state(struct trace *t, const struct seq *seq)
{
    const struct model_config *c = t->c;
    int full = 0, linear = 0;
    for (int layer = 0; layer < c->n_layer; layer++) {
        if (c->is_full[layer]) {
            int64_t cols = (int64_t)c->n_head_kv * c->d_head;
            compare(t, layer, "state_k", seq->kv[full].k, seq->length, cols, cols);
            compare(t, layer, "state_v", seq->kv[full++].v, seq->length, cols, cols);
            continue;
        }
        const struct op_delta_state *s = &seq->delta[linear++];
        compare(t, layer, "state_conv", s->conv, c->n_conv - 1, config_n_channel(c), config_n_channel(c));
        int64_t d = c->d_state, n = c->n_head_v * d * d;
        float *turned = mem_alloc(MEM_OTHER, (size_t)n * sizeof *turned); /* the golden is [head][dk][dv] */
        for (int64_t i = 0; i < n; i++)
            turned[i] = s->s[i / (d * d) * d * d + i % d * d + i / d % d];
        compare(t, layer, "state_S", turned, c->n_head_v, d * d, d * d);
        mem_free(turned);
    }
}

static void check_traces(const char *model, const char *folder, int least)
{
    for (const char *const *rung = device_cpu_rungs(); *rung; rung++) {
        struct rig rig;
        struct err err = {0};
        struct state *state = NULL;
        const float *logits;
        size_t n;
        rig_open(&rig, model, *rung, ARITHMETIC_EXACT, 2, 64, 8);
        struct trace t = {.folder = folder, .c = &rig.m->config};
        int32_t *ids = rig_prompt(model, "p7", &n);
        test_ok(state_create(&rig.m->config, rig.dev, KV_F32, 64, &state, &err), &err, "state");
        test_ok(state_reserve(state, (int64_t)n, &err), &err, "reserve");
        runner_set_trace(rig.r, on_trace, &t);
        struct batch_span span = {.seq = state_seq(state), .ids = ids, .n = (int64_t)n, .n_logits = 1};
        test_ok(model_forward(rig.r, &span, 1, &logits, &err), &err, "forward");
        check_state(&t, state_seq(state));
        assert_true(t.checked >= least);
        state_free(state);
        mem_free(ids);
        rig_close(&rig);
    }
}

static void test_traces(void **unused)
{
    (void)unused;
    check_traces("r2-f32", "trace-r2-f32", 32);
    check_traces("moe-q4_k_m", "trace-moe-q4_k_m", 80);
}

/* The angles are exact far into a long context: in f32 the fastest would be off by some thousandths here. */
static void test_far_angles(void **unused)
{
    enum { POSITION = 65535 };
    struct rig rig;
    struct err err = {0};
    struct state *state = NULL;
    const float *logits;
    (void)unused;
    rig_open(&rig, "r2-q8_0", NULL, ARITHMETIC_DEFAULT, 2, 1, 1);
    const struct model_config *c = &rig.m->config;
    test_ok(state_create(c, rig.dev, KV_F32, POSITION + 1, &state, &err), &err, "state");
    test_ok(state_reserve(state, POSITION + 1, &err), &err, "reserve");
    state_seq(state)->length = POSITION;
    struct batch_span span = {.seq = state_seq(state), .ids = &(int32_t){1}, .n = 1, .n_logits = 1};
    test_ok(model_forward(rig.r, &span, 1, &logits, &err), &err, "forward");
    for (int i = 0; i < c->n_rot / 2; i++) {
        double angle = POSITION * pow(c->rope_freq_base, -2.0 * i / c->n_rot);
        assert_true(fabs((double)rig.r->ws.cos_sin[i] - cos(angle)) < 1e-6);
        assert_true(fabs((double)rig.r->ws.cos_sin[c->n_rot / 2 + i] - sin(angle)) < 1e-6);
    }
    state_free(state);
    rig_close(&rig);
}

static void same_logits(const char *a, const char *b)
{
    struct rig first, second;
    size_t n;
    int32_t *ids = rig_prompt("r2-q8_0", "p70", &n);
    rig_open(&first, a, NULL, ARITHMETIC_DEFAULT, 2, 128, 128);
    rig_open(&second, b, NULL, ARITHMETIC_DEFAULT, 2, 128, 128);
    float *x = all_logits(&first, ids, n), *y = all_logits(&second, ids, n);
    assert_memory_equal(x, y, n * (size_t)first.m->config.n_vocab * sizeof *x);
    mem_free(x);
    mem_free(y);
    mem_free(ids);
    rig_close(&first);
    rig_close(&second);
}

/* B187, B188: other writers' metadata and split files are the same model. */
static void test_variants(void **unused)
{
    (void)unused;
    same_logits("r2-q8_0", "r2-ollama-q8_0");
    same_logits("r2-q8_0", "split/r2-q8_0-00001-of-00003");
    same_logits("r2-q8_0", "split/r2-q8_0-00002-of-00003");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_traces),
        cmocka_unit_test(test_exact),
        cmocka_unit_test(test_default),
        cmocka_unit_test(test_variants),
        cmocka_unit_test(test_far_angles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
