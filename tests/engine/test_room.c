/* Memory as the engine gives it out: within the plan, to those who need it, back from those who do not. */
#include <string.h>

#include "base/mem.h"
#include "model/forward.h"
#include "support/engine.h"

#define MIB ((size_t)1 << 20)

/* B177: an idle sequence's memory goes to one that needs it, before more is taken. */
static void test_idle_memory_is_given_back(void **state)
{
    (void)state;
    struct engine *e = host_start(2, 0, 8192, 0);
    struct request_params p = host_params(30, 4), other = host_params(1900, 4);
    p.prompt = host_prompt + 1000; /* shares nothing with the other, which would take the second sequence */
    struct host_result first = host_run(e, &p);
    mem_set_ceiling(mem_total() + ((size_t)1 << 20) + engine_plan(e)->kv_bytes_per_position * 1000);
    struct host_result second = host_run(e, &other);
    mem_set_ceiling(SIZE_MAX);
    assert_int_equal(second.last.kind, EVENT_END);
    assert_int_equal(second.n, 4);
    struct host_result again = host_run(e, &p);
    assert_int_equal(again.last.n_cached, 0); /* it was given back */
    host_same_ids(&first, &again);
    engine_stop(e);
}

/* What does not fit beside a running one waits for it; what does not fit alone is refused by name, and the next small one is served. */
static void test_memory_for_two(void **state)
{
    (void)state;
    struct engine *e = host_start(2, 0, 8192, 64);
    struct request_params p = host_params(40, 400), big = host_params(1500, 2000), small = host_params(30, 3);
    struct request *a = host_submit(e, &p);
    while (host_next(a).kind != EVENT_TOKEN)
        ;
    mem_set_ceiling(mem_total() + ((size_t)1 << 20));
    struct request *b = host_submit(e, &big);
    struct host_result first = host_drain(a), second = host_drain(b);
    assert_int_equal(first.last.kind, EVENT_END);
    if (second.last.kind == EVENT_ERROR)
        fail_msg("%s", second.last.error.message);
    assert_int_equal(second.last.kind, EVENT_END);
    assert_int_equal(second.n, 2000);
    request_release(a);
    request_release(b);
    host_wait_idle(e, 1000);
    mem_set_ceiling(mem_total() + ((size_t)1 << 20));
    big.max_tokens = 6000;
    struct host_result refused = host_run(e, &big);
    assert_int_equal(refused.last.kind, EVENT_ERROR);
    assert_int_equal(refused.last.error.code, ERR_CAPACITY);
    assert_non_null(strstr(refused.last.error.message, "capacity: a decode state for 7500 positions would not allocate"));
    struct host_result served = host_run(e, &small);
    assert_int_equal(served.last.kind, EVENT_END);
    assert_int_equal(served.n, 3);
    mem_set_ceiling(SIZE_MAX);
    engine_stop(e);
}

/* B172: a context that was asked for does not switch the fitting off: where the workspace for 512 rows does not fit, fewer rows are used and the answer is the same. */
static void test_rows_step_down(void **state)
{
    (void)state;
    struct engine *e = host_start(1, 0, 1024, 512);
    struct request_params p = host_params(400, 10);
    struct host_result full = host_run(e, &p);
    uint64_t total = engine_plan(e)->total_bytes, workspace = engine_plan(e)->workspace_bytes;
    assert_int_equal(engine_plan(e)->workspace_rows, 512);
    engine_stop(e);
    struct err err = {0};
    struct engine_options o = {.device = {.kind = DEVICE_CPU, .n_threads = 1}, .context_length = 1024, .chunk_rows = 512, .memory_limit = total - workspace / 2};
    test_ok(engine_start(host_model, &o, &e, &err), &err, "engine");
    assert_true(engine_plan(e)->workspace_rows < 512 && engine_plan(e)->workspace_rows >= 32);
    assert_true(engine_plan(e)->total_bytes <= o.memory_limit);
    struct host_result fewer = host_run(e, &p);
    host_same_ids(&full, &fewer);
    engine_stop(e);
}

struct start_call {
    struct engine_options options;
    struct engine *e;
    int rc;
    struct err err;
};

static void do_start(void *ctx)
{
    struct start_call *c = ctx;
    c->rc = engine_start(host_model, &c->options, &c->e, &c->err);
}

static uint64_t workspace_of(struct start_call *call, int64_t rows)
{
    call->options.device.max_rows = rows;
    call->options.device.max_n_in = config_widest_input(&host_model->config);
    return runner_workspace_bytes(&host_model->config, rows, 1) + device_scratch_bytes(&call->options.device);
}

/* A start takes as many rows as fit, says so, and never fewer than 32. */
static void test_start_steps(void **state)
{
    (void)state;
    static const char start[] = "[qwen35] batched prefill: workspace for 512 rows needs ", end[] = " MiB free; using 64 rows\n";
    struct start_call call = {.options = {.device = {.kind = DEVICE_CPU, .n_threads = 1}, .context_length = 1024, .n_parallel = 1, .chunk_rows = 512}};
    char text[1024];
    do_start(&call);
    test_ok(call.rc, &call.err, "engine");
    uint64_t rest = engine_plan(call.e)->total_bytes - engine_plan(call.e)->workspace_bytes;
    engine_stop(call.e);
    call.options.memory_limit = rest + workspace_of(&call, 64);
    test_capture(do_start, &call, text, sizeof text);
    test_ok(call.rc, &call.err, "fewer rows");
    assert_int_equal(engine_plan(call.e)->workspace_rows, 64);
    assert_int_equal(strncmp(text, start, sizeof start - 1), 0);
    assert_string_equal(text + strlen(text) - (sizeof end - 1), end);
    engine_stop(call.e);
    call.options.memory_limit = rest + workspace_of(&call, 16);
    test_capture(do_start, &call, text, sizeof text);
    assert_int_equal(call.rc, ERR_CAPACITY);
    assert_string_equal(text, "");
}

static void wait_for_token(struct request *r)
{
    struct token_event event;
    while ((event = host_next(r)).kind != EVENT_TOKEN)
        if (event.kind == EVENT_END || event.kind == EVENT_ERROR)
            fail_msg("an end instead of a token: %s", event.error.message);
}

static size_t positions_bytes(const struct engine *e, int64_t n)
{
    return (size_t)(engine_plan(e)->kv_bytes_per_position * (uint64_t)n);
}

/* With memory for no more than the plan's sum: the sequences share the KV rows of one context. */
static struct engine *start_tight(int n_parallel, int64_t context)
{
    struct engine *e = host_start(n_parallel, 0, context, 0);
    struct engine_options o = {.device = {.kind = DEVICE_CPU, .n_threads = 1}, .context_length = context, .n_parallel = n_parallel, .memory_limit = engine_plan(e)->total_bytes};
    struct err err = {0};
    engine_stop(e);
    test_ok(engine_start(host_model, &o, &e, &err), &err, "engine");
    return e;
}

/* Requests that name no end run side by side in the plan's own room, though each could fill the context alone; decode state stays within its part of the plan. */
static void test_open_requests_share(void **state)
{
    (void)state;
    struct engine *e = start_tight(2, 8192);
    struct request_params p = host_params(1900, -1);
    struct request *a = host_submit(e, &p);
    wait_for_token(a);
    p.prompt = host_prompt + 2000;
    struct request *b = host_submit(e, &p);
    wait_for_token(b);
    struct engine_stats stats;
    engine_stats_read(e, &stats);
    assert_int_equal(stats.n_running, 2);
    assert_true(mem_bytes(MEM_STATE) <= engine_plan(e)->state_budget_bytes);
    request_release(a);
    request_release(b);
    engine_stop(e);
}

/* Room that was asked for by number is the plan's: what it does not hold waits. */
static void test_state_within_its_part(void **state)
{
    (void)state;
    struct engine *e = start_tight(2, 8192);
    struct request_params p = host_params(50, 7900), other = host_params(60, 7900);
    other.prompt = host_prompt + 100;
    struct request *a = host_submit(e, &p);
    wait_for_token(a);
    struct engine_stats before, stats;
    engine_stats_read(e, &before);
    struct request *b = host_submit(e, &other);
    do { /* some steps, each of which looks at who waits */
        wait_for_token(a);
        engine_stats_read(e, &stats);
    } while (stats.generated_tokens < before.generated_tokens + 5);
    assert_int_equal(stats.n_running, 1);
    assert_int_equal(stats.n_waiting, 1);
    assert_true(mem_bytes(MEM_STATE) <= engine_plan(e)->state_budget_bytes);
    request_release(a);
    wait_for_token(b);
    assert_true(mem_bytes(MEM_STATE) <= engine_plan(e)->state_budget_bytes);
    request_release(b);
    engine_stop(e);
}

/* One in line that did not fit leaves: who stands behind it, and fits, does not wait for what runs. */
static void test_who_waited_leaves(void **state)
{
    (void)state;
    struct engine *e = start_tight(2, 8192);
    struct request_params p = host_params(50, 7000), big = host_params(60, 7900), small = host_params(30, 3);
    struct engine_stats stats;
    big.prompt = host_prompt + 100;
    small.prompt = host_prompt + 200;
    struct request *a = host_submit(e, &p);
    wait_for_token(a);
    struct request *b = host_submit(e, &big), *c = host_submit(e, &small);
    for (int i = 0; i < 20; i++)
        wait_for_token(a);
    engine_stats_read(e, &stats);
    assert_int_equal(stats.n_waiting, 2);
    request_release(b);
    int served = 0;
    for (int i = 0; i < 400 && !served; i++) {
        wait_for_token(a);
        struct token_event event;
        served = request_next(c, &event) && event.kind == EVENT_STARTED;
    }
    assert_true(served);
    request_release(a);
    request_release(c);
    engine_stop(e);
}

/* What was promised is used up in mid-answer: the state grows in place and nothing is read again. When others hold the memory, it waits for them; the answer is that given alone. */
static void test_growing_in_mid_answer(void **state)
{
    (void)state;
    enum { PROMPT = 1000, AHEAD = 1024, TOKENS = 1400, OTHER = 2200 };
    struct engine *e = host_start(1, 0, 8192, 0);
    struct request_params p = host_params(PROMPT, TOKENS), other = host_params(40, OTHER);
    struct host_result alone = host_run(e, &p);
    engine_stop(e);
    e = host_start(2, 0, 8192, 32); /* so few rows that none can be given up for positions */
    other.prompt = host_prompt + 3000;
    p.max_tokens = -1;
    struct request *a = host_submit(e, &p);
    wait_for_token(a);
    /* what a has beyond its promise goes to b, and then there is none left for either */
    mem_set_ceiling(mem_total() + MIB / 2 + engine_plan(e)->state_bytes + positions_bytes(e, 40 + OTHER + PROMPT + AHEAD - 4096));
    struct request *b = host_submit(e, &other);
    struct token_event event;
    int n = 1, n_b = 0;
    struct host_result got = {.ids = {0}};
    got.ids[0] = alone.ids[0];
    for (int ended = 0; !ended;) {
        event = host_next(b);
        n_b += event.kind == EVENT_TOKEN;
        ended = event.kind == EVENT_END || event.kind == EVENT_ERROR;
        while (request_next(a, &event))
            if (event.kind == EVENT_TOKEN)
                got.ids[n++] = event.id;
    }
    assert_int_equal(n_b, OTHER);
    if (n < AHEAD || n > AHEAD + 300) /* it stood where its room ended; no more than its ring holds has come since */
        fail_msg("%d tokens, room for %d", n, AHEAD);
    while (n < TOKENS) {
        event = host_next(a);
        assert_int_equal(event.kind, EVENT_TOKEN);
        got.ids[n++] = event.id;
    }
    mem_set_ceiling(SIZE_MAX);
    assert_memory_equal(got.ids, alone.ids, TOKENS * sizeof *got.ids);
    struct engine_stats stats;
    engine_stats_read(e, &stats);
    assert_int_equal(stats.prompt_tokens, PROMPT + 40); /* growing re-read nothing */
    request_release(a);
    request_release(b);
    engine_stop(e);
}

/* One whose reader takes nothing will end some day: an open answer waits for its memory too, and is not cut. */
static void test_no_room_beside_one_that_pauses(void **state)
{
    (void)state;
    enum { PROMPT = 1000, AHEAD = 1024, TOKENS = 1400, OTHER = 2200 };
    struct engine *e = host_start(2, 0, 8192, 32);
    struct request_params p = host_params(PROMPT, -1), other = host_params(40, OTHER);
    other.prompt = host_prompt + 3000;
    struct request *a = host_submit(e, &p);
    wait_for_token(a);
    mem_set_ceiling(mem_total() + MIB / 2 + engine_plan(e)->state_bytes + positions_bytes(e, 40 + OTHER + PROMPT + AHEAD - 4096));
    struct request *b = host_submit(e, &other);
    int n = 1;
    for (; n < AHEAD; n++)
        wait_for_token(a);
    while (request_wait(a, 200)) { /* until it stands still */
        wait_for_token(a);
        n++;
    }
    assert_true(n < AHEAD + 8);
    struct host_result got_b = host_drain(b);
    assert_int_equal(got_b.n, OTHER);
    while (n++ < TOKENS)
        wait_for_token(a);
    request_release(a);
    request_release(b);
    engine_stop(e);
}

/* Alone, with no memory to grow into, an open answer ends for its length. */
static void test_no_room_to_grow(void **state)
{
    (void)state;
    struct engine *e = host_start(1, 0, 8192, 0);
    struct request_params p = host_params(100, -1);
    mem_set_ceiling(mem_total() + 2 * MIB + engine_plan(e)->state_bytes + positions_bytes(e, 100 + 1024 + 20));
    struct host_result got = host_run(e, &p);
    mem_set_ceiling(SIZE_MAX);
    assert_int_equal(got.last.kind, EVENT_END);
    assert_int_equal(got.last.finish, FINISH_LENGTH);
    assert_true(got.n >= 1024 && got.n < 4096);
    struct host_result again = host_run(e, &(struct request_params){.prompt = host_prompt, .n_prompt = 100, .max_tokens = got.n, .n_logprobs = -1, .ignore_eog = 1, .sampling = p.sampling});
    host_same_ids(&got, &again);
    engine_stop(e);
}

static int no_ceiling(void **state)
{
    (void)state;
    mem_set_ceiling(SIZE_MAX);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_idle_memory_is_given_back, no_ceiling), cmocka_unit_test_teardown(test_memory_for_two, no_ceiling), cmocka_unit_test_teardown(test_rows_step_down, no_ceiling), cmocka_unit_test_teardown(test_open_requests_share, no_ceiling),
        cmocka_unit_test_teardown(test_start_steps, no_ceiling), cmocka_unit_test_teardown(test_state_within_its_part, no_ceiling), cmocka_unit_test_teardown(test_who_waited_leaves, no_ceiling),
        cmocka_unit_test_teardown(test_growing_in_mid_answer, no_ceiling), cmocka_unit_test_teardown(test_no_room_to_grow, no_ceiling),
        cmocka_unit_test_teardown(test_no_room_beside_one_that_pauses, no_ceiling),
    };
    return cmocka_run_group_tests(tests, host_load, host_unload);
}
