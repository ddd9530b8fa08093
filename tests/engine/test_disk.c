/* The engine with a folder for conversations: what comes from there is what was there, beside others and when its client leaves. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "engine/store.h"
#include "support/engine.h"

static char folder[] = "/tmp/apr-test-disk-XXXXXX";

static struct engine *start(int n_parallel)
{
    struct engine *e = NULL;
    struct err err = {0};
    struct engine_options o = {.device = {.kind = DEVICE_CPU, .n_threads = 1}, .context_length = 8192, .n_parallel = n_parallel, .chunk_rows = 128, .session_dir = folder};
    test_ok(engine_start(host_model, &o, &e, &err), &err, "engine");
    return e;
}

static int make_folder(void **state)
{
    return mkdtemp(folder) ? host_load(state) : -1;
}

static int remove_folder(void **state)
{
    DIR *d = opendir(folder);
    for (struct dirent *entry; d && (entry = readdir(d)) != NULL;)
        (void)unlinkat(dirfd(d), entry->d_name, 0);
    if (d)
        closedir(d);
    rmdir(folder);
    return host_unload(state);
}

/* A restart reads only what is new; two others generate meanwhile, and all answers are those given alone. */
static void test_beside_others(void **state)
{
    (void)state;
    struct engine *e = start(1);
    struct request_params p = host_params(1500, 40), other = host_params(60, 300);
    struct host_result first = host_run(e, &p);
    struct store_stats stats;
    assert_true(engine_store_stats(e, &stats));
    other.prompt = host_prompt + 5000;
    struct host_result alone = host_run(e, &other);
    engine_stop(e);
    for (int i = 0; i < 40; i++)
        host_prompt[1500 + i] = first.ids[i];
    p.n_prompt = 1600;
    e = host_start(1, 0, 8192, 128); /* keeps nothing */
    struct host_result wanted = host_run(e, &p);
    assert_int_equal(wanted.last.n_cached, 0);
    engine_stop(e);
    e = start(3);
    struct request *beside = host_submit(e, &other);
    while (host_next(beside).kind != EVENT_TOKEN)
        ;
    struct host_result got = host_run(e, &p), rest = host_drain(beside);
    request_release(beside);
    assert_int_equal(got.last.n_cached, 1539); /* all but the last token, which was sampled and not read */
    host_same_ids(&got, &wanted);
    assert_int_equal(rest.n, 299);
    assert_memory_equal(rest.ids, alone.ids + 1, 299 * sizeof *rest.ids);
    assert_true(engine_store_stats(e, &stats));
    assert_int_equal(stats.n_loaded, 1);
    engine_stop(e);
}

/* Who leaves while its conversation comes from the disk leaves nothing behind. */
static void test_leaving(void **state)
{
    (void)state;
    struct engine *e = start(1);
    struct request_params p = host_params(3000, 4);
    (void)host_run(e, &p);
    engine_stop(e);
    p.n_prompt = 3010;
    e = host_start(1, 0, 8192, 128);
    struct host_result wanted = host_run(e, &p);
    engine_stop(e);
    for (int i = 0; i < (TEST_THREAD_SANITIZED ? 4 : 12); i++) {
        e = start(2);
        struct request *r = host_submit(e, &p);
        if (i > 0)
            while (host_next(r).kind != EVENT_STARTED)
                ;
        if (i > 2)
            usleep((useconds_t)(i * 300));
        request_release(r);
        host_wait_idle(e, 5000);
        struct host_result got = host_run(e, &p);
        host_same_ids(&got, &wanted);
        assert_true(got.last.n_cached >= 3000);
        engine_stop(e);
    }
}

/* The same conversation asked for by several at once; B29: there are no logits on disk, and the very same prompt is answered all the same. */
static void test_together(void **state)
{
    (void)state;
    struct engine *e = start(1);
    struct request_params p = host_params(2000, 30);
    struct store_stats stats;
    p.prompt = host_prompt + 3000;
    (void)host_run(e, &p);
    engine_stop(e);
    p.n_prompt = 2010;
    e = host_start(1, 0, 8192, 128);
    struct host_result wanted = host_run(e, &p);
    engine_stop(e);
    e = start(4);
    struct request *r[4];
    for (int i = 0; i < 4; i++)
        r[i] = host_submit(e, &p);
    for (int i = 0; i < 4; i++) {
        struct host_result got = host_drain(r[i]);
        assert_int_equal(got.last.kind, EVENT_END);
        assert_true(got.last.n_cached >= 2000);
        host_same_ids(&got, &wanted);
        request_release(r[i]);
    }
    assert_true(engine_store_stats(e, &stats));
    assert_true(stats.n_loaded >= 1);
    engine_stop(e);
}

/* A conversation on its way to the disk, slowly beside one that generates, gets there before its slot goes to another. */
static void test_saved_first(void **state)
{
    (void)state;
    struct engine *e = start(2);
    struct request_params beside = host_params(60, 1500), p = beside, next = beside;
    beside.prompt = host_prompt + 100;
    p = next = (struct request_params){.prompt = host_prompt + 300, .n_prompt = 1500, .max_tokens = 1, .n_logprobs = -1, .ignore_eog = 1, .sampling = beside.sampling};
    next.prompt = host_prompt + 4000;
    next.n_prompt = 100;
    struct request *running = host_submit(e, &beside), *first = host_submit(e, &p), *second = host_submit(e, &next);
    (void)host_drain(first);
    struct host_result got = host_drain(second);
    assert_int_equal(got.last.kind, EVENT_END);
    request_release(first);
    request_release(second);
    request_release(running);
    engine_stop(e);
    e = start(1);
    p.n_prompt = 1510;
    got = host_run(e, &p);
    assert_int_equal(got.last.n_cached, 1500);
    engine_stop(e);
}

/* A conversation that is stored and cannot be taken up is read again: that ends no turn. */
static void test_no_load(void **state)
{
    (void)state;
    struct engine *e = start(1);
    struct request_params p = host_params(1000, 4), other = host_params(1000, 400);
    struct store_stats stats;
    p.prompt = host_prompt + 6000;
    other.prompt = host_prompt + 4500; /* takes the room that the turn will need */
    (void)host_run(e, &p);
    engine_stop(e);
    p.n_prompt = 1010;
    e = host_start(1, 0, 8192, 128);
    struct host_result wanted = host_run(e, &p);
    engine_stop(e);
    e = start(1);
    struct request *running = host_submit(e, &other), *waiting = host_submit(e, &p);
    while (host_next(running).kind != EVENT_TOKEN)
        ;
    mem_fail_above(STORE_PIECE_BYTES); /* a load's buffer is a little larger */
    request_release(running);
    struct host_result got = host_drain(waiting);
    mem_fail_above(0);
    request_release(waiting);
    assert_int_equal(got.last.kind, EVENT_END);
    assert_int_equal(got.last.n_cached, 0);
    host_same_ids(&got, &wanted);
    assert_true(engine_store_stats(e, &stats));
    assert_int_equal(stats.n_loaded, 0);
    engine_stop(e);
}

struct tight {
    uint64_t memory_limit, n_segments;
};

static void live_tight(void *ctx)
{
    struct tight *t = ctx;
    struct request_params p = host_params(200, 4);
    struct store_stats stats;
    struct err err = {0};
    struct engine *e = NULL;
    struct engine_options o = {.device = {.kind = DEVICE_CPU, .n_threads = 1}, .context_length = 1024, .n_parallel = 1, .chunk_rows = 128, .session_dir = folder, .memory_limit = t->memory_limit};
    test_ok(engine_start(host_model, &o, &e, &err), &err, "engine");
    p.prompt = host_prompt + (t->memory_limit ? 7700 : 7300);
    t->memory_limit = engine_plan(e)->total_bytes;
    (void)host_run(e, &p);
    engine_stop(e); /* and its last turn is on disk */
    test_ok(engine_start(host_model, &o, &e, &err), &err, "engine");
    assert_true(engine_store_stats(e, &stats));
    t->n_segments = stats.n_segments;
    engine_stop(e);
}

/* Where no snapshots fit nothing can be saved, and the log says so. */
static void test_no_snapshots(void **state)
{
    (void)state;
    char text[4096];
    struct tight t = {0};
    test_capture(live_tight, &t, text, sizeof text);
    assert_null(strstr(text, "nothing will be"));
    uint64_t before = t.n_segments;
    assert_true(before > 0);
    test_capture(live_tight, &t, text, sizeof text);
    assert_non_null(strstr(text, "nothing will be"));
    assert_int_equal(t.n_segments, before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_beside_others), cmocka_unit_test(test_leaving), cmocka_unit_test(test_together), cmocka_unit_test(test_no_load), cmocka_unit_test(test_saved_first),
                                       cmocka_unit_test(test_no_snapshots)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
