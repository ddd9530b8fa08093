/* Growth by the contract: capacities, the attempts [headroom, exact], refusal by name, pages given back (B170, B183). */
#include <string.h>

#include "base/mem.h"
#include "engine/room.h"
#include "model/plan.h"
#include "support/model.h"
#include "support/test.h"

/* B170: the clamp is the served context, not the file's. */
static void test_capacities(void **unused)
{
    (void)unused;
    assert_int_equal(grown_capacity(32782, 4096, 34816), 34816);
    assert_int_equal(grown_capacity(32782, 4096, 262144), 65536);
    assert_int_equal(grown_capacity(20, 16, 4096), 32);
    assert_int_equal(grown_capacity(1, 4096, 262144), 4096);
    assert_int_equal(grown_capacity(4096, 4096, 262144), 4096);
    assert_int_equal(grown_capacity(4097, 4096, 262144), 8192);
    assert_int_equal(grown_capacity(100, 4096, 1000), 1000);
    assert_int_equal(grown_capacity(5000, 4096, 4999), 5000); /* never below the turn; the caller refuses it */
}

struct reserve_call {
    struct state *s;
    int64_t positions;
    int rc;
    struct err err;
};

static void do_reserve(void *ctx)
{
    struct reserve_call *c = ctx;
    c->rc = state_reserve(c->s, c->positions, &c->err);
}

static void check_attempts(enum kv_type type)
{
    struct rig rig;
    struct err err = {0};
    struct state *s = NULL;
    char text[1024];
    rig_open(&rig, "r2-q8_0", NULL, ARITHMETIC_DEFAULT, 1, 8, 1);
    size_t row = (size_t)rig.m->config.n_head_kv * kv_head_bytes(type, rig.m->config.d_head), page = 4096; /* what is taken and given back is whole pages */
    test_ok(state_create(&rig.m->config, rig.dev, type, 100000, &s, &err), &err, "state");
    assert_int_equal(state_bytes(s), 0); /* nothing before the first turn */
    struct reserve_call call = {.s = s, .positions = 100};
    test_capture(do_reserve, &call, text, sizeof text);
    assert_int_equal(call.rc, 0);
    assert_int_equal(state_capacity(s), 4096);
    assert_string_equal(text, "");

    /* Headroom does not fit, the exact size does: one notice line. 5000 positions ask for 8192. */
    mem_set_ceiling(mem_total() + 2 * ((5100 - 4096) * row + page));
    call = (struct reserve_call){.s = s, .positions = 5000};
    test_capture(do_reserve, &call, text, sizeof text);
    assert_int_equal(call.rc, 0);
    assert_int_equal(state_capacity(s), 5000);
    assert_string_equal(text, "[qwen35] decode state: 8192 positions would not allocate, sized to the turn (5000) instead (#4443)\n");

    /* Not even the exact size: refused by name, what is held stays, and what one array had got already goes back. */
    size_t before = mem_total();
    mem_set_ceiling(before + 1500 * row);
    call = (struct reserve_call){.s = s, .positions = 6000};
    test_capture(do_reserve, &call, text, sizeof text);
    assert_int_equal(call.rc, ERR_CAPACITY);
    assert_non_null(strstr(call.err.message, "a decode state for 6000 positions would not allocate"));
    assert_int_equal(state_capacity(s), 5000);
    assert_int_equal(mem_total(), before);
    assert_string_equal(text, "");
    mem_set_ceiling(SIZE_MAX);

    /* Next turn plans anew: the headroom again. */
    call = (struct reserve_call){.s = s, .positions = 6000};
    test_capture(do_reserve, &call, text, sizeof text);
    assert_int_equal(state_capacity(s), 8192);
    state_shrink(s, 100);
    assert_int_equal(state_capacity(s), 100);
    call = (struct reserve_call){.s = s, .positions = 100001};
    test_capture(do_reserve, &call, text, sizeof text);
    assert_int_equal(call.rc, ERR_CONTEXT_LENGTH);
    state_free(s);
    rig_close(&rig);
    assert_int_equal(mem_bytes(MEM_STATE), 0);
}

struct room_call {
    struct room_request q;
    int rc;
    struct err err;
};

static void do_room(void *ctx)
{
    struct room_call *c = ctx;
    c->rc = room_for_turn(&c->q, &c->err);
}

/* Bytes that the workspace takes for `rows` rows beyond the first. */
static size_t bytes_of_rows(struct rig *rig, int64_t rows)
{
    struct err err = {0};
    size_t before = mem_total();
    test_ok(runner_reserve_rows(rig->r, rows, &err), &err, "rows");
    size_t bytes = mem_total() - before;
    runner_trim_rows(rig->r, 1);
    return bytes;
}

/* State and workspace together: headroom goes before rows, rows by halves and never to one, and the next turn plans anew. */
static void test_room(void **unused)
{
    (void)unused;
    struct rig rig;
    struct err err = {0};
    struct state *s = NULL;
    char text[1024];
    rig_open(&rig, "r2-q8_0", NULL, ARITHMETIC_DEFAULT, 1, 512, 1);
    runner_trim_rows(rig.r, 1);
    size_t all = bytes_of_rows(&rig, 512), some = bytes_of_rows(&rig, 300), few = bytes_of_rows(&rig, 20), row = (size_t)plan_kv_bytes_per_position(&rig.m->config, KV_F32);
    test_ok(state_create(&rig.m->config, rig.dev, KV_F32, 100000, &s, &err), &err, "state");
    struct room_call call = {.q = {.state = s, .runner = rig.r, .positions = 100, .rows = 512, .least_rows = 1}};

    assert_true(4096 * row < all + 2048 * row);
    mem_set_ceiling(mem_total() + plan_state_bytes(&rig.m->config) + all + 2048 * row); /* the headroom fits alone, and the turn with all rows */
    test_capture(do_room, &call, text, sizeof text);
    test_ok(call.rc, &call.err, "a turn of 100");
    assert_string_equal(text, "[qwen35] decode state: 4096 positions would not allocate, sized to the turn (100) instead (#4443)\n");
    assert_int_equal(state_capacity(s), 100);
    assert_int_equal(runner_rows(rig.r), 512);
    runner_trim_rows(rig.r, 1);

    mem_set_ceiling(mem_total() + some + 4000 * row); /* the headroom fits, and then not all rows */
    call.q.positions = 4000;
    test_capture(do_room, &call, text, sizeof text);
    test_ok(call.rc, &call.err, "a turn of 4000");
    assert_int_equal(state_capacity(s), 4000);
    assert_int_equal(runner_rows(rig.r), 256);
    static const char start[] = "[qwen35] batched prefill: workspace for 512 rows needs ", end[] = " MiB free; using 256 rows\n";
    const char *line = strstr(text, "[qwen35] batched");
    assert_non_null(line);
    assert_int_equal(strncmp(line, start, sizeof start - 1), 0);
    assert_string_equal(line + strlen(line) - (sizeof end - 1), end);

    mem_set_ceiling(SIZE_MAX); /* one bad turn does not stick */
    test_capture(do_room, &call, text, sizeof text);
    test_ok(call.rc, &call.err, "the next turn");
    assert_int_equal(runner_rows(rig.r), 512);
    assert_string_equal(text, "");

    runner_trim_rows(rig.r, 1); /* fewer than ROOM_MIN_ROWS are none */
    mem_set_ceiling(mem_total() + few);
    test_capture(do_room, &call, text, sizeof text);
    assert_int_equal(call.rc, ERR_CAPACITY);
    assert_int_equal(runner_rows(rig.r), 1);
    assert_int_equal(state_capacity(s), 4000);

    struct state *other = NULL; /* a refused turn keeps nothing of what it took */
    test_ok(state_create(&rig.m->config, rig.dev, KV_F32, 100000, &other, &err), &err, "state");
    mem_set_ceiling(mem_total() + plan_state_bytes(&rig.m->config) + few + 200 * row);
    struct room_call refused = {.q = {.state = other, .runner = rig.r, .positions = 150, .rows = 512, .least_rows = 1}};
    test_capture(do_room, &refused, text, sizeof text);
    assert_int_equal(refused.rc, ERR_CAPACITY);
    assert_int_equal(state_capacity(other), 0);
    mem_set_ceiling(SIZE_MAX);
    state_free(other);
    state_free(s);
    rig_close(&rig);
}

/* B170: headroom, exactly the turn, and then a refusal: never another device. */
static void test_attempts(void **unused)
{
    (void)unused;
    for (int type = 0; type < KV_N_TYPES; type++)
        check_attempts((enum kv_type)type);
}

/* A position costs what its type says, and nothing else differs. */
static void test_bytes_of_types(void **unused)
{
    (void)unused;
    struct rig rig;
    uint64_t bytes[KV_N_TYPES], missing[KV_N_TYPES];
    rig_open(&rig, "r2-q8_0", NULL, ARITHMETIC_DEFAULT, 1, 8, 1);
    const struct model_config *c = &rig.m->config;
    for (int type = 0; type < KV_N_TYPES; type++) {
        struct err err = {0};
        struct state *s = NULL;
        test_ok(state_create(c, rig.dev, (enum kv_type)type, 100000, &s, &err), &err, "state");
        test_ok(state_reserve(s, 4096, &err), &err, "reserve");
        bytes[type] = state_bytes(s);
        missing[type] = state_missing_bytes(s, 8192);
        state_free(s);
    }
    uint64_t values = (uint64_t)(2 * c->n_full) * 4096 * (uint64_t)(c->n_head_kv * c->d_head);
    assert_int_equal(missing[KV_F32], 4 * values);
    assert_int_equal(missing[KV_F16], 2 * values);
    assert_int_equal(missing[KV_Q8_0], values / 32 * 34);
    assert_int_equal(bytes[KV_F32] - missing[KV_F32], bytes[KV_F16] - missing[KV_F16]);
    assert_int_equal(bytes[KV_F32] - missing[KV_F32], bytes[KV_Q8_0] - missing[KV_Q8_0]);
    rig_close(&rig);
}

/* The n-th allocation fails, for every n: an error, never a crash, and nothing is lost. */
static void test_failing_allocations(void **unused)
{
    (void)unused;
    struct rig rig;
    rig_open(&rig, "r2-q8_0", NULL, ARITHMETIC_DEFAULT, 1, 8, 1);
    int failures = 0;
    for (long n = 1; n < 40; n++) {
        struct session *s = NULL;
        struct err err = {0};
        struct sync_result r;
        mem_fail_nth(n);
        int rc = session_create(rig.r, KV_F32, 9000, &s, &err);
        if (rc == 0)
            rc = session_sync(s, &(struct sync_request){.tokens = (int32_t[]){1, 2, 3}, .n = 3}, &r, &err);
        mem_fail_nth(0);
        failures += rc < 0;
        assert_true(rc == 0 || rc == ERR_NO_MEMORY || rc == ERR_CAPACITY);
        session_free(s);
        assert_int_equal(mem_bytes(MEM_STATE), 0);
    }
    assert_true(failures >= 5);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_capacities), cmocka_unit_test(test_attempts), cmocka_unit_test(test_bytes_of_types), cmocka_unit_test(test_room),
                                       cmocka_unit_test(test_failing_allocations)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
