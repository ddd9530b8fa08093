/* The laws of a sequence, bitwise, on every rung, in both arithmetics and with every type of cache: any chunking = whole = single steps, grow = never grown, any thread count = one thread, batch of k =
 * k singles, copy leaves the parent untouched, rewind + replay = fresh, cancelled = never asked (B155, B165). */
#include <string.h>

#include "base/mem.h"
#include "support/model.h"
#include "support/test.h"

#define N_PROMPT 150

static const char *const law_models[] = {"r2-q4_k_m", "moe-q4_k_m", "r2-q8_0", "r2-f32"};

struct outcome { /* everything a sequence is, after a prompt */
    float *logits, *recurrent;
    char *k;
    size_t n_vocab, n_recurrent, k_bytes;
};

static enum kv_type law_type; /* of the caches */

static int32_t prompt[N_PROMPT];

static void make_prompt(uint64_t seed)
{
    for (int i = 0; i < N_PROMPT; i++)
        prompt[i] = (int32_t)test_random(&seed, 1000);
}

static struct outcome outcome_of(struct rig *rig, struct session *s)
{
    const struct model_config *c = &rig->m->config;
    struct seq *seq = state_seq(session_state(s));
    struct outcome o = {.n_vocab = (size_t)c->n_vocab, .n_recurrent = (size_t)(c->n_conv - 1) * (size_t)config_n_channel(c) + (size_t)c->n_head_v * (size_t)(c->d_state * c->d_state),
                        .k_bytes = (size_t)(seq->length * c->n_head_kv) * kv_head_bytes(law_type, c->d_head)};
    o.logits = mem_alloc(MEM_OTHER, o.n_vocab * 4);
    o.recurrent = mem_alloc(MEM_OTHER, o.n_recurrent * 4 * (size_t)c->n_linear);
    o.k = mem_alloc(MEM_OTHER, o.k_bytes * (size_t)c->n_full);
    memcpy(o.logits, session_logits(s), o.n_vocab * 4);
    for (int i = 0; i < c->n_linear; i++) {
        size_t matrix = (size_t)c->n_head_v * (size_t)(c->d_state * c->d_state);
        memcpy(o.recurrent + (size_t)i * o.n_recurrent, seq->delta[i].s, matrix * 4);
        memcpy(o.recurrent + (size_t)i * o.n_recurrent + matrix, seq->delta[i].conv, (o.n_recurrent - matrix) * 4);
    }
    for (int i = 0; i < c->n_full; i++)
        memcpy(o.k + (size_t)i * o.k_bytes, seq->kv[i].k, o.k_bytes);
    o.n_recurrent *= (size_t)c->n_linear;
    o.k_bytes *= (size_t)c->n_full;
    return o;
}

static void outcome_free(struct outcome *o)
{
    mem_free(o->logits);
    mem_free(o->recurrent);
    mem_free(o->k);
}

static void same_outcome(const struct outcome *a, const struct outcome *b, const char *law)
{
    if (a->k_bytes != b->k_bytes || memcmp(a->logits, b->logits, a->n_vocab * 4) || memcmp(a->recurrent, b->recurrent, a->n_recurrent * 4) || memcmp(a->k, b->k, a->k_bytes))
        fail_msg("%s, cache type %d: the numbers differ", law, law_type);
}

static struct session *new_session(struct rig *rig, int64_t served)
{
    struct session *s = NULL;
    struct err err = {0};
    test_ok(session_create(rig->r, law_type, served, &s, &err), &err, "session");
    return s;
}

static void sync_to(struct session *s, size_t n, int64_t chunk)
{
    struct err err = {0};
    struct sync_result result;
    test_ok(session_sync(s, &(struct sync_request){.tokens = prompt, .n = n, .rows = chunk}, &result, &err), &err, "sync");
}

static struct outcome after(struct rig *rig, size_t n, int64_t chunk)
{
    struct session *s = new_session(rig, 1024);
    sync_to(s, n, chunk);
    struct outcome o = outcome_of(rig, s);
    session_free(s);
    return o;
}

static void check_chunks(struct rig *rig, const struct outcome *whole)
{
    static const int64_t chunks[] = {1, 2, 3, 7, 31, 64, 149};
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        struct outcome o = after(rig, N_PROMPT, chunks[i]);
        same_outcome(whole, &o, "chunked = whole");
        outcome_free(&o);
    }
    struct session *s = new_session(rig, 1024);
    struct err err = {0};
    sync_to(s, 10, 0);
    for (int i = 10; i < N_PROMPT; i++)
        test_ok(rig_step(&s, &prompt[i], 1, &err), &err, "step");
    struct outcome o = outcome_of(rig, s);
    same_outcome(whole, &o, "single steps = whole");
    outcome_free(&o);
    session_free(s);
}

/* A state that was given exactly what it needed again and again against one that had room from the start. */
static void check_growth(struct rig *rig, const struct outcome *whole)
{
    struct session *s = new_session(rig, 1024);
    struct err err = {0};
    for (size_t n = 10; n <= N_PROMPT; n += 35) {
        sync_to(s, n, 0);
        state_shrink(session_state(s), 0);
        assert_int_equal(state_capacity(session_state(s)), (int64_t)n);
    }
    assert_true(state_bytes(session_state(s)) > 0);
    sync_to(s, N_PROMPT, 0);
    struct outcome o = outcome_of(rig, s);
    same_outcome(whole, &o, "grow = never grown");
    outcome_free(&o);
    test_ok(state_reserve(session_state(s), 1000, &err), &err, "reserve");
    session_free(s);
}

/* B35 */
static void check_batch(struct rig *rig, const struct outcome *whole)
{
    enum { K = 4 };
    static const size_t lengths[K] = {149, 20, 63, 1};
    struct session *s[K];
    struct outcome alone[K];
    struct err err = {0};
    struct batch_span spans[K];
    const float *logits;
    for (int i = 0; i < K; i++) {
        alone[i] = after(rig, lengths[i] + 1, 0);
        s[i] = new_session(rig, 1024);
    }
    same_outcome(&alone[0], whole, "the longest is the whole prompt");
    for (int i = 0; i < K; i++) { /* ragged: whole prompts of different lengths side by side */
        test_ok(state_reserve(session_state(s[i]), (int64_t)lengths[i] + 1, &err), &err, "reserve");
        spans[i] = (struct batch_span){.seq = state_seq(session_state(s[i])), .ids = prompt, .n = (int64_t)lengths[i] + 1, .n_logits = 1};
    }
    test_ok(model_forward(rig->r, spans, K, &logits, &err), &err, "forward");
    for (int i = 0; i < K; i++)
        if (memcmp(logits + (size_t)i * alone[i].n_vocab, alone[i].logits, alone[i].n_vocab * 4))
            fail_msg("batch = singles: sequence %d differs", i);
    for (int i = 0; i < K; i++) {
        outcome_free(&alone[i]);
        session_free(s[i]);
    }
}

static void check_copy_and_rewind(struct rig *rig, const struct outcome *whole)
{
    struct session *parent = new_session(rig, 1024);
    struct state *child = NULL;
    struct state_snapshot *snapshot = NULL;
    struct err err = {0};
    const float *logits;
    sync_to(parent, N_PROMPT / 2, 0);
    test_ok(state_snapshot_take(session_state(parent), &snapshot, &err), &err, "snapshot");
    test_ok(state_create(&rig->m->config, rig->dev, law_type, 1024, &child, &err), &err, "state");
    test_ok(state_reserve(child, N_PROMPT, &err), &err, "reserve");
    test_ok(state_fork(child, session_state(parent), NULL, &err), &err, "fork");
    struct batch_span other = {.seq = state_seq(child), .ids = prompt, .n = 40, .n_logits = 1};
    test_ok(model_forward(rig->r, &other, 1, &logits, &err), &err, "the child goes elsewhere");
    sync_to(parent, N_PROMPT, 0);
    struct outcome o = outcome_of(rig, parent);
    same_outcome(whole, &o, "a copy leaves its parent untouched");
    outcome_free(&o);
    /* The child goes back to the snapshot and on: the cold result. */
    test_ok(state_rewind(child, snapshot, &err), &err, "rewind");
    struct batch_span rest = {.seq = state_seq(child), .ids = prompt + N_PROMPT / 2, .n = N_PROMPT - N_PROMPT / 2, .n_logits = 1};
    test_ok(model_forward(rig->r, &rest, 1, &logits, &err), &err, "replay");
    assert_memory_equal(logits, whole->logits, whole->n_vocab * 4);
    state_snapshot_free(snapshot);
    state_free(child);
    session_free(parent);
}

/* Another prompt (B33), the same again (B12), a shorter one, one that parts in the middle: always the cold result, with the tokens counted; and when state and tokens disagree, too (B2). */
static void check_session(struct rig *rig, const struct outcome *whole)
{
    struct session *s = new_session(rig, 1024);
    struct err err = {0};
    struct sync_result r;
    atomic_int cancel = 1;
    int32_t other[N_PROMPT];
    for (int i = 0; i < N_PROMPT; i++)
        other[i] = prompt[i] ^ (i >= 60);
    struct sync_request cancelled = {.tokens = other, .n = N_PROMPT, .cancel = &cancel};
    assert_int_equal(session_sync(s, &cancelled, &r, &err), ERR_CANCELLED);
    sync_to(s, N_PROMPT, 0);
    test_ok(session_sync(s, &(struct sync_request){.tokens = prompt, .n = N_PROMPT}, &r, &err), &err, "again");
    assert_int_equal(r.n_prefilled, 0);
    test_ok(rig_step(&s, &(int32_t){7}, 1, &err), &err, "an answer");
    test_ok(session_sync(s, &(struct sync_request){.tokens = prompt, .n = N_PROMPT}, &r, &err), &err, "regenerate");
    assert_int_equal(r.n_prefilled, 0);
    struct outcome o = outcome_of(rig, s);
    same_outcome(whole, &o, "regenerate = cold");
    outcome_free(&o);
    test_ok(session_sync(s, &(struct sync_request){.tokens = other, .n = N_PROMPT}, &r, &err), &err, "edited");
    sync_to(s, N_PROMPT, 0);
    o = outcome_of(rig, s);
    same_outcome(whole, &o, "another prompt between = cold");
    outcome_free(&o);
    assert_int_equal(session_sync(s, &(struct sync_request){.tokens = prompt, .n = 0}, &r, &err), ERR_INVALID);
    assert_int_equal(session_sync(s, &(struct sync_request){.tokens = (int32_t[]){1 << 20}, .n = 1}, &r, &err), ERR_INVALID);
    assert_int_equal(session_sync(s, &(struct sync_request){.tokens = (int32_t[]){-1}, .n = 1}, &r, &err), ERR_INVALID);
    /* A prompt that parts behind the mark reads from the mark on, and gives the cold result. */
    session_reset(s);
    test_ok(session_sync(s, &(struct sync_request){.tokens = other, .n = N_PROMPT, .marks = (size_t[]){50}, .n_marks = 1}, &r, &err), &err, "marked");
    test_ok(session_sync(s, &(struct sync_request){.tokens = prompt, .n = N_PROMPT}, &r, &err), &err, "parts behind the mark");
    assert_int_equal(r.n_reused, 50);
    o = outcome_of(rig, s);
    same_outcome(whole, &o, "from the mark = cold");
    outcome_free(&o);
    state_seq(session_state(s))->length--; /* a broken invariant is a cold prefill, and counted */
    sync_to(s, N_PROMPT, 0);
    o = outcome_of(rig, s);
    same_outcome(whole, &o, "after an anomaly = cold");
    outcome_free(&o);
    assert_int_equal(session_anomalies(s), 1);
    session_free(s);
}

static void check_laws(const char *model, const char *rung, enum arithmetic arithmetic)
{
    struct rig rig;
    make_prompt(42);
    rig_open(&rig, model, rung, arithmetic, 2, 400, 8);
    struct outcome whole = after(&rig, N_PROMPT, 0);
    check_chunks(&rig, &whole);
    check_growth(&rig, &whole);
    check_batch(&rig, &whole);
    check_copy_and_rewind(&rig, &whole);
    check_session(&rig, &whole);
    rig_close(&rig);
    for (int threads = 1; threads <= 3; threads += 2) {
        rig_open(&rig, model, rung, arithmetic, threads, 400, 8);
        struct outcome o = after(&rig, N_PROMPT, 0);
        same_outcome(&whole, &o, "any thread count = two threads");
        outcome_free(&o);
        rig_close(&rig);
    }
    outcome_free(&whole);
}

static void test_laws(void **unused)
{
    (void)unused;
    for (const char *const *rung = device_cpu_rungs(); *rung; rung++)
        for (size_t i = 0; i < sizeof law_models / sizeof *law_models; i++) {
            int is_reference = strcmp(*rung, "scalar") == 0; /* slow: one model shows it */
            if ((is_reference && i > 0) || (TEST_SANITIZED && (is_reference || i > 0)))
                continue;
            check_laws(law_models[i], *rung, ARITHMETIC_DEFAULT);
            if (!is_reference && !TEST_SANITIZED)
                check_laws(law_models[i], *rung, ARITHMETIC_EXACT);
        }
    assert_int_equal(mem_bytes(MEM_STATE), 0);
    assert_int_equal(mem_bytes(MEM_WORKSPACE), 0);
}

/* The smaller caches, with one and with two KV heads. */
static void test_laws_of_types(void **unused)
{
    (void)unused;
    static const char *const type_models[] = {"r2-q4_k_m", "moe-q4_k_m"};
    for (int type = KV_F16; type < KV_N_TYPES; type++)
        for (const char *const *rung = device_cpu_rungs(); *rung; rung++)
            for (int i = 0; i < 2; i++) {
                int is_reference = strcmp(*rung, "scalar") == 0;
                if ((is_reference && (i > 0 || type == KV_F16)) || (TEST_SANITIZED && (is_reference || i > 0)))
                    continue;
                law_type = (enum kv_type)type;
                check_laws(type_models[i], *rung, ARITHMETIC_DEFAULT);
            }
    law_type = KV_F32;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_laws), cmocka_unit_test(test_laws_of_types)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
