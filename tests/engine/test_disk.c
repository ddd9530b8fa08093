/* The engine with a folder for conversations: what comes from there is what was there, beside others and when its client leaves. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
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
    for (int i = 0; i < 12; i++) {
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

/* The same conversation asked for by several at once. */
static void test_together(void **state)
{
    (void)state;
    struct engine *e = start(1);
    struct request_params p = host_params(2000, 30);
    p.prompt = host_prompt + 3000;
    struct host_result first = host_run(e, &p);
    engine_stop(e);
    e = start(4);
    struct request *r[4];
    for (int i = 0; i < 4; i++)
        r[i] = host_submit(e, &p);
    for (int i = 0; i < 4; i++) {
        struct host_result got = host_drain(r[i]);
        assert_int_equal(got.last.kind, EVENT_END);
        host_same_ids(&got, &first);
        request_release(r[i]);
    }
    engine_stop(e);
}

/* What is stored cannot be had (no memory for loading here; elsewhere it made room for another meanwhile): it is read again, and nobody is told. */
static void test_not_to_be_had(void **state)
{
    (void)state;
    struct engine *e = start(1);
    struct request_params p = host_params(200, 4);
    p.prompt = host_prompt + 900;
    (void)host_run(e, &p);
    engine_stop(e);
    p.n_prompt = 210;
    e = host_start(1, 0, 8192, 128);
    struct host_result wanted = host_run(e, &p);
    engine_stop(e);
    e = start(1);
    struct request_params other = host_params(20, 4000);
    struct request *first = host_submit(e, &other);
    while (host_next(first).kind != EVENT_TOKEN)
        ;
    struct request *r = host_submit(e, &p);
    mem_fail_above(STORE_PIECE_BYTES); /* while it waits in line, with all that a request takes itself */
    request_release(first);
    struct host_result got = host_drain(r);
    mem_fail_above(SIZE_MAX);
    request_release(r);
    if (got.last.kind != EVENT_END)
        fail_msg("%s", got.last.error.message);
    assert_int_equal(got.last.n_cached, 0);
    host_same_ids(&got, &wanted);
    engine_stop(e);
    e = start(1);
    got = host_run(e, &p);
    assert_true(got.last.n_cached >= 200);
    host_same_ids(&got, &wanted);
    engine_stop(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_beside_others), cmocka_unit_test(test_leaving), cmocka_unit_test(test_together), cmocka_unit_test(test_not_to_be_had)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
