/* The memory arithmetic of the published sizes to the byte, the capacity cases of the contract, the boundary, the line. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "model/forward.h"
#include "model/plan.h"
#include "support/model.h"
#include "support/test.h"

#define MIB (1024ull * 1024)

struct size {
    const char *name;
    int n_layer, d_model, d_ff, n_head, n_head_kv, n_head_v, n_expert, n_used, d_ff_expert, d_ff_shared;
    uint64_t kv_bytes, kv_f16, kv_q8_0, state_bytes;
};

static const struct size sizes[] = {
    {"0.8B", 24, 1024, 3584, 8, 2, 16, 0, 0, 0, 0, 24576, 12288, 6528, 20201472},         {"2B", 24, 2048, 6144, 8, 2, 16, 0, 0, 0, 0, 24576, 12288, 6528, 20201472},
    {"4B", 32, 2560, 9216, 16, 4, 32, 0, 0, 0, 0, 65536, 32768, 17408, 52690944},          {"9B", 32, 4096, 12288, 16, 4, 32, 0, 0, 0, 0, 65536, 32768, 17408, 52690944},
    {"27B", 64, 5120, 17408, 24, 4, 48, 0, 0, 0, 0, 131072, 65536, 34816, 156893184},      {"35B-A3B", 40, 2048, 0, 16, 2, 32, 256, 8, 512, 512, 40960, 20480, 10880, 65863680},
    {"122B-A10B", 48, 3072, 0, 32, 2, 64, 256, 8, 1024, 1024, 49152, 24576, 13056, 156303360}, {"397B-A17B", 60, 4096, 0, 32, 2, 64, 512, 10, 1024, 1024, 61440, 30720, 16320, 195379200},
};

static struct model_config config_of(const char *name)
{
    struct model_config c = {.architecture = "qwen35", .n_ctx_declared = 262144, .n_vocab = 248320, .d_head = 256, .n_rot = 64, .n_conv = 4, .d_state = 128, .n_head_k = 16};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (strcmp(sizes[i].name, name) == 0) {
            const struct size *s = &sizes[i];
            c.n_layer = s->n_layer;
            c.d_model = s->d_model;
            c.d_ff = s->d_ff;
            c.n_head = s->n_head;
            c.n_head_kv = s->n_head_kv;
            c.n_head_v = s->n_head_v;
            c.is_moe = s->n_expert > 0;
            c.n_expert = s->n_expert;
            c.n_expert_used = s->n_used;
            c.d_ff_expert = s->d_ff_expert;
            c.d_ff_shared = s->d_ff_shared;
            c.n_full = s->n_layer / 4;
            c.n_linear = s->n_layer - c.n_full;
            return c;
        }
    fail_msg("no size %s", name);
    return c;
}

static struct plan_request request_of(const struct model_config *c, uint64_t weights_mib, int64_t positions, uint64_t free_mib, uint64_t total_mib)
{
    return (struct plan_request){.config = c, .weight_bytes = weights_mib * MIB, .cache_type = KV_F32, .address_budget = UINT64_MAX, .address_limit = UINT64_MAX, .n_positions = positions, .n_slots = 1, .budget_bytes = free_mib * MIB, .total_bytes = total_mib * MIB,
                                 .source = "MemAvailable", .workspace_rows = 512};
}

/* B174: the largest too, in 64 bits. */
static void test_figures(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct model_config c = config_of(sizes[i].name);
        assert_int_equal(plan_kv_bytes_per_position(&c, KV_F32), sizes[i].kv_bytes);
        assert_int_equal(plan_kv_bytes_per_position(&c, KV_F16), sizes[i].kv_f16);
        assert_int_equal(plan_kv_bytes_per_position(&c, KV_Q8_0), sizes[i].kv_q8_0);
        assert_int_equal(plan_state_bytes(&c), sizes[i].state_bytes);
        uint64_t one = runner_workspace_bytes(&c, 1, 1), many = runner_workspace_bytes(&c, 512, 1);
        assert_true(one >= (uint64_t)c.n_vocab * 4 && many > one && many < 1024 * MIB);
    }
}

static void test_capacity_cases(void **unused)
{
    static const struct {
        const char *size;
        uint64_t weights_mib;
        int64_t positions;
        uint64_t free_mib, total_mib;
        int asked;
        enum kv_type type;   /* what it comes to */
        const char *refused; /* NULL: fits */
    } cases[] = {
        {"9B", 4870, 20000, 24000, 24576, PLAN_CACHE_AUTO, KV_F32, NULL},
        {"9B", 4870, 148000, 24000, 24576, PLAN_CACHE_AUTO, KV_F32, NULL},
        {"9B", 4870, 262144, 22000, 24576, PLAN_CACHE_AUTO, KV_F32, NULL}, /* 4870 + 16384 + the rest: just */
        {"9B", 4870, 262144, 21000, 24576, PLAN_CACHE_AUTO, KV_F16, NULL},
        {"9B", 4870, 262144, 21000, 24576, KV_F32, KV_F32, "co_tenant"},
        {"9B", 4870, 262144, 13000, 24576, PLAN_CACHE_AUTO, KV_F16, "co_tenant"},
        {"9B", 4870, 262144, 13000, 24576, KV_Q8_0, KV_Q8_0, NULL},
        {"9B", 4870, 2000000, 24000, 24576, PLAN_CACHE_AUTO, KV_F16, "exceeds_device"},
        {"27B", 15287, 148000, 24000, 24576, PLAN_CACHE_AUTO, KV_F16, "exceeds_device"},
        {"27B", 15287, 262144, 24000, 24576, PLAN_CACHE_AUTO, KV_F16, "exceeds_device"},
        {"27B", 15287, 262144, 110 * 1024, 110 * 1024, PLAN_CACHE_AUTO, KV_F32, NULL},
        {"27B", 15287, 262144, 32 * 1024, 128 * 1024, KV_F32, KV_F32, "co_tenant"},
    };
    (void)unused;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model_config c = config_of(cases[i].size);
        struct plan_request q = request_of(&c, cases[i].weights_mib, cases[i].positions, cases[i].free_mib, cases[i].total_mib);
        struct plan p;
        struct err err = {0};
        char start[64], at[32];
        q.cache_type = cases[i].asked;
        int rc = plan_make(&q, &p, &err);
        if (!cases[i].refused) {
            test_ok(rc, &err, cases[i].size);
            assert_int_equal(p.n_positions, cases[i].positions);
            assert_int_equal(p.cache_type, cases[i].type);
            assert_int_equal(p.kv_bytes_per_position, plan_kv_bytes_per_position(&c, cases[i].type));
            continue;
        }
        assert_int_equal(rc, ERR_CAPACITY);
        snprintf(start, sizeof start, "capacity: %s: weights ", cases[i].refused);
        snprintf(at, sizeof at, " B at %s) + state ", plan_cache_name(cases[i].type));
        if (strncmp(err.message, start, strlen(start)) != 0 || !strstr(err.message, at))
            fail_msg("case %zu: %s", i, err.message);
    }
}

/* The sum that the contract names. */
static uint64_t least_bytes(const struct plan *p)
{
    return p->weight_bytes + p->kv_bytes_per_position * (uint64_t)p->n_positions + p->state_bytes * (uint64_t)p->n_slots + p->workspace_bytes + p->overhead_bytes;
}

/* B42: snapshots are counted, and there are as many as fit. */
static void test_boundary(void **unused)
{
    (void)unused;
    struct model_config c = config_of("4B");
    for (int slots = 1; slots <= 3; slots += 2) {
        struct plan_request q = request_of(&c, 2700, 10000, 1 << 20, 1 << 20);
        struct plan p;
        struct err err = {0};
        q.n_slots = slots;
        q.scratch_bytes = 12345;
        test_ok(plan_make(&q, &p, &err), &err, "plenty");
        assert_int_equal(p.n_snapshots, PLAN_SNAPSHOTS);
        assert_int_equal(p.total_bytes, least_bytes(&p));
        assert_int_equal(p.workspace_bytes, runner_workspace_bytes(&c, 512, slots) + 12345);
        q.budget_bytes = least_bytes(&p); /* exactly the free bytes fit */
        test_ok(plan_make(&q, &p, &err), &err, "exact");
        assert_int_equal(p.total_bytes, q.budget_bytes);
        assert_int_equal(p.n_snapshots, 0);
        q.budget_bytes += p.state_bytes * (uint64_t)slots; /* and one snapshot each */
        test_ok(plan_make(&q, &p, &err), &err, "one snapshot");
        assert_int_equal(p.n_snapshots, 1);
        assert_int_equal(p.total_bytes, least_bytes(&p));
        q.budget_bytes = least_bytes(&p) - 1;
        assert_int_equal(plan_make(&q, &p, &err), ERR_CAPACITY);
        q.cache_type = PLAN_CACHE_AUTO; /* one byte more does not fit at f32 */
        test_ok(plan_make(&q, &p, &err), &err, "f16");
        assert_int_equal(p.cache_type, KV_F16);
    }
}

/* Nothing asked: four sequences where their states fit beside the rest, else fewer, one at least; their KV is the served context's and counted once. */
static void test_slots(void **unused)
{
    (void)unused;
    struct model_config c = config_of("27B");
    struct plan_request q = request_of(&c, 15287, 32768, 1 << 20, 1 << 20);
    struct plan one, p;
    struct err err = {0};
    q.n_slots = 1;
    test_ok(plan_make(&q, &one, &err), &err, "one");
    q.n_slots = 0;
    test_ok(plan_make(&q, &p, &err), &err, "plenty");
    assert_int_equal(p.n_slots, PLAN_SLOTS);
    assert_int_equal(p.total_bytes, least_bytes(&p));
    assert_int_equal(p.workspace_bytes, runner_workspace_bytes(&c, 512, PLAN_SLOTS));
    uint64_t each = (p.total_bytes - one.total_bytes) / 3; /* of a sequence: state, logits, pages */
    assert_true(each > p.state_bytes && each < p.state_bytes + 4 * MIB);
    for (int n = 1; n <= 4; n++) {
        q.budget_bytes = one.total_bytes + (uint64_t)(n - 1) * each;
        test_ok(plan_make(&q, &p, &err), &err, "boundary");
        assert_int_equal(p.n_slots, n);
        assert_int_equal(p.n_snapshots, 0);
        q.budget_bytes--;
        assert_int_equal(plan_make(&q, &p, &err), n > 1 ? 0 : ERR_CAPACITY);
        assert_true(n == 1 || p.n_slots == n - 1);
    }
    q.n_slots = 7; /* asked for by number: that or nothing */
    q.budget_bytes = one.total_bytes + 6 * each;
    test_ok(plan_make(&q, &p, &err), &err, "seven");
    assert_int_equal(p.n_slots, 7);
    q.budget_bytes--;
    assert_int_equal(plan_make(&q, &p, &err), ERR_CAPACITY);
}

/* An open context: what fits whole is kept at f32; else the rows are f16, and sequences and snapshots leave it most of the room. */
static void test_open_context(void **unused)
{
    (void)unused;
    struct model_config c = config_of("27B");
    struct plan_request q = request_of(&c, 15287, 0, 64 * 1024, 64 * 1024);
    struct plan p;
    struct err err = {0};
    q.n_slots = 0;
    q.cache_type = PLAN_CACHE_AUTO;
    test_ok(plan_make(&q, &p, &err), &err, "whole");
    assert_true(p.cache_type == KV_F32 && p.n_positions == c.n_ctx_declared && p.n_slots == PLAN_SLOTS && p.n_snapshots == PLAN_SNAPSHOTS);
    q.budget_bytes = q.total_bytes = 24000 * MIB;
    test_ok(plan_make(&q, &p, &err), &err, "part");
    assert_true(p.cache_type == KV_F16 && p.n_positions > 90000 && p.n_positions < c.n_ctx_declared && p.n_slots == PLAN_SLOTS && p.n_snapshots >= 2);
    uint64_t own = p.state_budget_bytes - p.kv_bytes_per_position * (uint64_t)p.n_positions - p.state_bytes * (uint64_t)(p.n_slots * (1 + p.n_snapshots));
    assert_true(own >= 4 * 2 * 248320 * 4 && own < 4 * 4 * MIB && own < p.overhead_bytes); /* logits and pages of the sequences */
    q.cache_type = KV_F32;
    struct plan exact;
    test_ok(plan_make(&q, &exact, &err), &err, "f32 asked");
    assert_true(exact.cache_type == KV_F32 && exact.n_positions < p.n_positions);
}

static void test_cache_type(void **unused)
{
    (void)unused;
    struct model_config c = config_of("9B");
    struct plan_request q = request_of(&c, 4870, 4096, 24000, 24576);
    struct plan p;
    struct err err = {0};
    q.cache_type = KV_Q8_0;
    test_ok(plan_make(&q, &p, &err), &err, "q8_0");
    assert_int_equal(p.kv_bytes_per_position, 17408);
    c.d_head = 72;
    assert_int_equal(plan_make(&q, &p, &err), ERR_UNSUPPORTED);
    assert_string_equal(err.message, "--cache-type q8_0 needs heads of a multiple of 32 values, and this model's have 72: use f16");
    q.cache_type = KV_N_TYPES;
    assert_int_equal(plan_make(&q, &p, &err), ERR_INVALID);
    q.cache_type = PLAN_CACHE_AUTO - 1;
    assert_int_equal(plan_make(&q, &p, &err), ERR_INVALID);
}

/* Each sequence reserves address space for the whole served context, and threads take theirs. */
static void test_address(void **unused)
{
    (void)unused;
    struct model_config c = config_of("9B");
    struct plan_request q = request_of(&c, 4870, 10000, 200000, 200000);
    struct plan p;
    struct err err = {0};
    q.n_slots = 3;
    q.address_threads = 100 * MIB;
    test_ok(plan_make(&q, &p, &err), &err, "unlimited");
    assert_int_equal(p.address_bytes, least_bytes(&p) + 2 * 65536 * 10000 + 100 * MIB);
    q.address_limit = 30000 * MIB;
    q.address_budget = p.address_bytes;
    test_ok(plan_make(&q, &p, &err), &err, "exact");
    assert_int_equal(p.n_snapshots, 0);
    q.address_budget--;
    assert_int_equal(plan_make(&q, &p, &err), ERR_CAPACITY);
    assert_int_equal(strncmp(err.message, "capacity: exceeds_device: ", 26), 0);
    assert_non_null(strstr(err.message, " MiB free of 30000 MiB (ulimit -v). 3 sequences reserve KV in full and threads take 100 MiB. The largest context that fits is 9999: --context-length 9999"));
    q.n_slots = 0; /* fewer sequences, not a shorter context */
    test_ok(plan_make(&q, &p, &err), &err, "auto");
    assert_true(p.n_slots == 2 && p.n_positions == 10000);
    q.n_positions = 0;
    test_ok(plan_make(&q, &p, &err), &err, "open");
    assert_true(p.n_slots == 1 && p.n_positions > 20000 && p.address_bytes <= q.address_budget);
}

static void test_largest(void **unused)
{
    (void)unused;
    struct model_config c = config_of("9B");
    struct plan_request q = request_of(&c, 4870, 0, 12000, 24576);
    struct plan p, again;
    struct err err = {0};
    test_ok(plan_make(&q, &p, &err), &err, "unset");
    assert_true(p.n_positions > 50000 && p.n_positions < c.n_ctx_declared);
    assert_int_equal(p.n_snapshots, PLAN_SNAPSHOTS);
    uint64_t all = p.total_bytes + PLAN_SNAPSHOTS * p.state_bytes;
    assert_true(all <= q.budget_bytes && all + p.kv_bytes_per_position > q.budget_bytes);
    q.n_positions = p.n_positions; /* asked for by number: the same plan */
    test_ok(plan_make(&q, &again, &err), &err, "set");
    assert_int_equal(again.total_bytes, p.total_bytes);
    q.n_positions = 0;
    q.budget_bytes = 1 << 20;
    q.budget_bytes *= MIB;
    test_ok(plan_make(&q, &p, &err), &err, "all");
    assert_int_equal(p.n_positions, c.n_ctx_declared); /* never above the declared one */
    q.budget_bytes = least_bytes(&p) - p.kv_bytes_per_position * (uint64_t)(p.n_positions - 100); /* room for 100 positions: they come before snapshots */
    test_ok(plan_make(&q, &p, &err), &err, "little");
    assert_int_equal(p.n_positions, 100);
    assert_int_equal(p.total_bytes, q.budget_bytes);
    assert_int_equal(p.n_snapshots, 0);
    q.budget_bytes = q.total_bytes = 1000 * MIB;
    assert_int_equal(plan_make(&q, &p, &err), ERR_CAPACITY);
    assert_non_null(strstr(err.message, "No context fits"));
}

static void test_line(void **unused)
{
    (void)unused;
    struct model_config c = config_of("9B");
    struct plan_request q = request_of(&c, 4870, 262144, 21000, 24576);
    struct plan p, free_plan;
    struct err err = {0};
    char want[600];
    q.scratch_bytes = 7 * MIB;
    q.budget_bytes = 1 << 20;
    q.budget_bytes *= MIB;
    test_ok(plan_make(&q, &free_plan, &err), &err, "figures");
    q.budget_bytes = 21000 * MIB;
    assert_int_equal(plan_make(&q, &p, &err), ERR_CAPACITY);
    uint64_t left = q.budget_bytes - (least_bytes(&free_plan) - free_plan.kv_bytes_per_position * 262144);
    snprintf(want, sizeof want,
             "capacity: co_tenant: weights 4870 MiB + KV 16384 MiB (262144 positions x 65536 B at f32) + state 50 MiB + workspace %.0f MiB + overhead %.0f MiB = %.0f MiB, "
             "against 21000 MiB free of 24576 MiB (MemAvailable). The largest context that fits is %llu: --context-length %llu",
             (double)free_plan.workspace_bytes / (double)MIB, (double)free_plan.overhead_bytes / (double)MIB, (double)least_bytes(&free_plan) / (double)MIB,
             (unsigned long long)(left / 65536), (unsigned long long)(left / 65536));
    assert_string_equal(err.message, want);
    q.n_positions = (int64_t)(left / 65536); /* and so it does */
    test_ok(plan_make(&q, &p, &err), &err, "advice");
    q.n_positions++;
    assert_int_equal(plan_make(&q, &p, &err), ERR_CAPACITY);
}

/* The largest a file may declare: sums stop at the top instead of starting anew (B174). */
static void test_no_overflow(void **unused)
{
    (void)unused;
    struct model_config c = {.n_ctx_declared = 1 << 30, .n_vocab = 1 << 24, .d_model = 1 << 18, .d_ff = 1 << 20, .n_head = 1024, .n_head_kv = 1024, .d_head = 1024, .n_rot = 1024, .n_conv = 16,
                             .d_state = 1024, .n_head_k = 1024, .n_head_v = 1024, .n_layer = 512, .n_full = 512};
    struct plan_request q = {.config = &c, .weight_bytes = UINT64_MAX / 2, .n_positions = 1 << 30, .n_slots = 16, .budget_bytes = UINT64_MAX / 4, .total_bytes = UINT64_MAX / 4,
                             .source = "test", .workspace_rows = 512, .address_budget = UINT64_MAX, .address_limit = UINT64_MAX};
    struct plan p;
    struct err err = {0};
    assert_int_equal(plan_make(&q, &p, &err), ERR_CAPACITY);
    q.weight_bytes = 1;
    assert_int_equal(plan_make(&q, &p, &err), ERR_CAPACITY); /* 2^32 bytes x 2^30 positions */
    q.budget_bytes = q.total_bytes = UINT64_MAX;
    q.address_budget = q.address_limit = UINT64_MAX - 1;
    assert_int_equal(plan_make(&q, &p, &err), ERR_CAPACITY); /* and that 16 times over: 2^66, which would come out as none */
    c.n_full = 0;
    c.n_linear = 512;
    assert_true(plan_state_bytes(&c) > 1ull << 40);
}

static void test_write(void **unused)
{
    (void)unused;
    struct model_config c = config_of("0.8B");
    struct plan_request q = request_of(&c, 500, 4096, 4000, 4000);
    struct plan p;
    struct err err = {0};
    struct buf out;
    buf_init(&out, MEM_OTHER, 4096);
    test_ok(plan_make(&q, &p, &err), &err, "plan");
    assert_int_equal(plan_write(&p, &out), 0);
    assert_non_null(strstr(buf_str(&out), "plan: weights        500.0 MiB"));
    assert_non_null(strstr(buf_str(&out), "4096 positions x 24576 B, f32; "));
    assert_non_null(strstr(buf_str(&out), "plan: snapshots      154.1 MiB more (8 a sequence, "));
    buf_free(&out);
}

/* What is taken is what was planned (B173). */
static void test_taken(void **unused)
{
    static const char *const models[] = {"r2-q8_0", "moe-q4_k_m"};
    (void)unused;
    for (int i = 0; i < 2; i++) {
        struct rig rig;
        rig_open(&rig, models[i], NULL, ARITHMETIC_DEFAULT, 2, 64, 2);
        size_t before = mem_bytes(MEM_WORKSPACE), state = mem_bytes(MEM_STATE);
        struct runner *r = NULL;
        struct err err = {0};
        struct state *s = NULL;
        test_ok(runner_create(rig.m, rig.dev, 512, 2, &r, &err), &err, "runner");
        test_ok(runner_reserve_rows(r, 512, &err), &err, "rows");
        size_t taken = mem_bytes(MEM_WORKSPACE) - before, planned = runner_workspace_bytes(&rig.m->config, 512, 2);
        assert_true(taken >= planned && taken < planned + 4096);
        test_ok(state_create(&rig.m->config, rig.dev, KV_F32, 8192, &s, &err), &err, "state");
        test_ok(state_reserve(s, 8192, &err), &err, "reserve");
        taken = mem_bytes(MEM_STATE) - state;
        planned = plan_kv_bytes_per_position(&rig.m->config, KV_F32) * 8192 + plan_state_bytes(&rig.m->config);
        assert_int_equal(state_bytes(s), planned);
        assert_true(taken >= planned && taken < planned + 32768);
        state_free(s);
        runner_free(r);
        rig_close(&rig);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_figures), cmocka_unit_test(test_capacity_cases), cmocka_unit_test(test_boundary), cmocka_unit_test(test_largest),
        cmocka_unit_test(test_slots),   cmocka_unit_test(test_open_context),   cmocka_unit_test(test_cache_type), cmocka_unit_test(test_address),
        cmocka_unit_test(test_line),    cmocka_unit_test(test_no_overflow),    cmocka_unit_test(test_write),    cmocka_unit_test(test_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
