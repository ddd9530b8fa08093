/* Everything the engine asks the system for is refused once, in turn: each allocation, mapping, page and thread, and memory as a whole in 64 steps. Every demand ends in the right
 * answer or in a refusal by name, nothing leaks, and the next small request gets its tokens. */
#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "support/test.h"

#define N_DEMANDS 5
#define MAX_IDS 64
#define WAIT_MS 60000
#define STRIDE (TEST_THREAD_SANITIZED ? 25 : TEST_SANITIZED ? 5 : 1) /* every fifth fault where each run is ten times slower */

static struct model *m;
static int32_t fork_id;

/* ---- one engine's day: five demands and what they come to ---- */

struct demand {
    int32_t ids[MAX_IDS]; /* that came out */
    int n;
    int rc;               /* 0: answered; else refused with `sentence` */
    enum finish finish;
    char sentence[sizeof ((struct err *)0)->message];
};

struct day {
    int start_rc;
    struct err start_err;
    struct demand demands[N_DEMANDS];
    size_t peak;          /* bytes held before the end */
};

struct ask {
    struct request_params params;
    int32_t prompt[600];
    struct logit_bias bias;
    int cancel_after;     /* tokens; 0 = never */
};

/* n tokens that `seed` tells, with a message's beginning every 40. */
static void fill(struct ask *a, uint64_t seed, size_t from, size_t n)
{
    for (size_t i = from; i < from + n; i++)
        a->prompt[i] = i % 40 ? (int32_t)test_random(&seed, 900) : fork_id;
    a->params.n_prompt = from + n;
}

/* A first turn; its next one; a long one that needs headroom and whose client leaves; the first turn edited, sampled, with everything that costs memory; a small one. */
static void make_ask(struct ask *a, int which)
{
    memset(a, 0, sizeof *a);
    a->params = (struct request_params){.prompt = a->prompt, .max_tokens = 6, .n_logprobs = -1, .ignore_eog = 1};
    sample_params_default(&a->params.sampling);
    a->params.sampling.temperature = 0;
    fill(a, 1, 0, 90);
    switch (which) {
    case 1:
        fill(a, 2, 90, 40);
        break;
    case 2:
        fill(a, 3, 0, 70);
        a->params.max_tokens = 4200;
        a->cancel_after = 3;
        break;
    case 3:
        fill(a, 4, 60, 30);
        a->params.sampling.temperature = 1.3;
        a->params.sampling.has_seed = 1;
        a->params.sampling.seed = 9;
        a->params.sampling.presence_penalty = 0.5;
        a->bias = (struct logit_bias){7, -5};
        a->params.sampling.bias = &a->bias;
        a->params.sampling.n_bias = 1;
        a->params.n_logprobs = 3;
        break;
    case 4:
        fill(a, 5, 0, 20);
        break;
    }
}

static struct request *submit(struct engine *e, const struct ask *a, struct demand *out)
{
    struct request *r = NULL;
    struct err err = {0};
    out->rc = engine_submit(e, &a->params, &r, &err);
    snprintf(out->sentence, sizeof out->sentence, "%s", out->rc < 0 ? err.message : "");
    return out->rc < 0 ? NULL : r;
}

/* Takes what comes, up to the last event. */
static void collect(struct request *r, const struct ask *a, struct demand *out)
{
    struct token_event event = {0};
    if (!r)
        return;
    while (event.kind != EVENT_END && event.kind != EVENT_ERROR) {
        if (!request_next(r, &event)) {
            if (!request_wait(r, WAIT_MS))
                fail_msg("neither an answer nor a refusal came");
            continue;
        }
        if (event.kind == EVENT_TOKEN && out->n < MAX_IDS)
            out->ids[out->n++] = event.id;
        if (event.kind == EVENT_TOKEN && out->n == a->cancel_after)
            request_cancel(r);
    }
    out->finish = event.finish;
    if (event.kind == EVENT_ERROR) {
        out->rc = event.error.code;
        snprintf(out->sentence, sizeof out->sentence, "%s", event.error.message);
    }
    request_release(r);
}

static void serve_one(struct engine *e, int which, struct demand *out)
{
    static struct ask a;
    make_ask(&a, which);
    collect(submit(e, &a, out), &a, out);
}

static int start(struct engine **e, struct err *err)
{
    struct engine_options o = {.device = {.kind = DEVICE_CPU, .n_threads = 2}, .context_length = 8192, .n_parallel = 2, .chunk_rows = 64};
    return engine_start(m, &o, e, err);
}

static int fault_came; /* the one that was set */

/* The faults stop before the small request. */
static void stop_faults(void)
{
    fault_came = !mem_fail_pending();
    mem_fail_nth(0);
    for (int call = 0; call < MEM_N_CALLS; call++)
        mem_fail_call((enum mem_call)call, 0);
    mem_set_ceiling(SIZE_MAX);
}

static void live(struct day *day)
{
    static struct ask a[2];
    struct engine *e = NULL;
    memset(day, 0, sizeof *day);
    day->start_rc = start(&e, &day->start_err);
    if (day->start_rc < 0) {
        stop_faults();
        return;
    }
    serve_one(e, 0, &day->demands[0]);
    make_ask(&a[0], 1);
    make_ask(&a[1], 2);
    struct request *both[2] = {submit(e, &a[0], &day->demands[1]), submit(e, &a[1], &day->demands[2])};
    for (int i = 0; i < 2; i++)
        collect(both[i], &a[i], &day->demands[1 + i]);
    serve_one(e, 3, &day->demands[3]);
    day->peak = mem_total();
    stop_faults();
    serve_one(e, 4, &day->demands[4]);
    engine_stop(e);
}

/* ---- what is right ---- */

struct figures {
    int tried, answered, refused; /* days */
};

static struct day good;
static int n_threads_before;
static size_t bytes_before, reserved_before;

static int n_threads(void)
{
    int n = 0;
    DIR *folder = opendir("/proc/self/task");
    while (folder && readdir(folder))
        n++;
    if (folder)
        closedir(folder);
    return n;
}

static int is_named(int rc)
{
    return rc == ERR_NO_MEMORY || rc == ERR_CAPACITY || rc == ERR_IO;
}

/* An answer is the one without faults; a refusal says why. Which tokens a cancelled answer still had is a matter of time: those of the good one go first. */
static void check_demand(const struct demand *got, int which, const char *what, long n)
{
    const struct demand *want = &good.demands[which];
    int is_cut = got->rc < 0 || want->finish == FINISH_CANCELLED, n_ids = got->n < want->n ? got->n : want->n;
    if (got->rc < 0 && (!is_named(got->rc) || !got->sentence[0]))
        fail_msg("%s %ld: demand %d was refused with %d \"%s\"", what, n, which, got->rc, got->sentence);
    if (got->rc == 0 && got->finish != want->finish)
        fail_msg("%s %ld: demand %d ended with %d, not with %d", what, n, which, (int)got->finish, (int)want->finish);
    if ((!is_cut && got->n != want->n) || memcmp(got->ids, want->ids, (size_t)n_ids * sizeof *got->ids) != 0)
        fail_msg("%s %ld: demand %d was answered with other tokens", what, n, which);
}

static void check_day(const struct day *day, struct figures *f, const char *what, long n)
{
    int refused = day->start_rc < 0;
    f->tried++;
    if (refused && (!is_named(day->start_rc) || !day->start_err.message[0]))
        fail_msg("%s %ld: the start was refused with %d \"%s\"", what, n, day->start_rc, day->start_err.message);
    for (int i = 0; !refused && i < N_DEMANDS; i++)
        check_demand(&day->demands[i], i, what, n);
    if (!refused && day->demands[N_DEMANDS - 1].rc < 0)
        fail_msg("%s %ld: the small request afterwards was refused: %s", what, n, day->demands[N_DEMANDS - 1].sentence);
    for (int i = 0; i < N_DEMANDS - 1; i++)
        refused |= day->demands[i].rc < 0;
    f->refused += refused;
    f->answered += !refused;
    if (mem_total() != bytes_before || mem_reserved() != reserved_before)
        fail_msg("%s %ld: %zu bytes and %zu of address space were left behind", what, n, mem_total() - bytes_before, mem_reserved() - reserved_before);
    uint64_t start_ns = clock_ns(); /* a joined thread may be listed for a moment longer */
    while (n_threads() != n_threads_before)
        if (clock_ms_since(start_ns) > 5000)
            fail_msg("%s %ld: %d threads, there were %d", what, n, n_threads(), n_threads_before);
}

static void report(const char *what, const struct figures *f)
{
    print_message("torture: %s: tried %d, survived %d (%d answered in full, %d with refusals by name), lost 0\n", what, f->tried, f->answered + f->refused, f->answered, f->refused);
}

/* Lets the n-th call of a kind fail, for every n that a day reaches: it alone, or it and all after it. */
static int torture(void (*arm)(long n), const char *what, int for_good)
{
    static struct day day;
    struct figures f = {0};
    mem_fail_for_good(for_good);
    fault_came = 1;
    for (long n = 1; fault_came; n += STRIDE) {
        arm(n);
        live(&day);
        check_day(&day, &f, what, n);
    }
    mem_fail_for_good(0);
    report(what, &f);
    assert_true(f.answered > 0); /* the last, whose fault never came */
    return f.refused * STRIDE;
}

static void arm_allocation(long n)
{
    mem_fail_nth(n);
}

static void arm_mapping(long n)
{
    mem_fail_call(MEM_CALL_MAP, n);
}

static void arm_page(long n)
{
    mem_fail_call(MEM_CALL_PROTECT, n);
}

static void arm_thread(long n)
{
    mem_fail_call(MEM_CALL_THREAD, n);
}

/* Where memory is short already. */
static void arm_mapping_when_short(long n)
{
    size_t all = good.peak - bytes_before;
    mem_set_ceiling(bytes_before + all / 8 * 5);
    mem_fail_call(MEM_CALL_MAP, n);
}

/* B40: also of what is cancelled while it runs. */
static void test_allocations(void **state)
{
    (void)state;
    assert_true(torture(arm_allocation, "n-th allocation", 0) > 40);
    assert_true(torture(arm_allocation, "all from the n-th allocation", 1) > 60);
}

static void test_mappings(void **state)
{
    (void)state;
    assert_true(torture(arm_mapping, "n-th mmap", 0) > 10);
    assert_true(torture(arm_mapping_when_short, "n-th mmap in little memory", 0) > 10);
    assert_true(torture(arm_mapping_when_short, "all from the n-th mmap in little memory", 1) > 10);
}

static void test_pages(void **state)
{
    (void)state;
    torture(arm_page, "n-th mprotect", 0); /* a smaller size does, each time */
    assert_true(torture(arm_page, "all from the n-th mprotect", 1) > 5);
}

static void test_threads(void **state)
{
    (void)state;
    assert_true(torture(arm_thread, "n-th thread", 0) > 0);
}

/* All memory that a day takes, in 64 parts: from none of them to all (B170, B177). */
static void test_ceiling(void **state)
{
    static struct day day;
    struct figures f = {0};
    size_t all = good.peak - bytes_before;
    all += all / 16; /* what goes and comes between two looks */
    (void)state;
    for (int step = 0; step <= 64; step += STRIDE) {
        mem_set_ceiling(bytes_before + all * (size_t)step / 64);
        live(&day);
        check_day(&day, &f, "ceiling", step);
        if (step == 0)
            assert_true(day.start_rc < 0);
    }
    report("ceiling in 64 steps", &f);
    mem_set_ceiling(bytes_before + all);
    live(&day);
    check_day(&day, &f, "ceiling", 64);
    assert_true(f.answered > 0 && f.refused > 64 / STRIDE / 4);
}

/* Loading a model with its vocabulary and template: whichever allocation or mapping is refused, the sentence says so, nothing stays, and it loads the next time. */
static void load_with(void (*arm)(long n), const char *what)
{
    int tried = 0, refused = 0;
    size_t bytes = mem_total();
    fault_came = 1;
    for (long n = 1; fault_came; n += 1 + n / 50 * STRIDE) { /* all of the first, then fewer: the vocabulary's are all alike */
        struct model *other = NULL;
        struct err err = {0};
        arm(n);
        int rc = model_load(test_path("models/r2-q8_0.gguf"), 0, &other, &err);
        stop_faults();
        tried++;
        refused += rc < 0;
        if (rc < 0 && (!is_named(rc) || !err.message[0]))
            fail_msg("%s %ld: %d \"%s\"", what, n, rc, err.message);
        model_free(rc == 0 ? other : NULL);
        if (mem_total() != bytes)
            fail_msg("%s %ld: %zu bytes were left behind", what, n, mem_total() - bytes);
    }
    print_message("torture: %s of a load: tried %d, survived %d (%d refused by name), lost 0\n", what, tried, tried, refused);
    assert_true(refused > 0);
}

static void test_load(void **state)
{
    (void)state;
    load_with(arm_allocation, "n-th allocation");
    load_with(arm_mapping, "n-th mmap");
}

static int set_up(void **state)
{
    struct err err = {0};
    (void)state;
    log_set_level(LOG_QUIET);
    test_ok(model_load(test_path("models/r2-q8_0.gguf"), 0, &m, &err), &err, "model");
    fork_id = vocab_find(m->vocab, "<|im_start|>", 12);
    assert_true(fork_id >= 0);
    live(&good); /* twice: what a first time leaves for good is there then */
    bytes_before = mem_total();
    reserved_before = mem_reserved();
    n_threads_before = n_threads();
    live(&good);
    assert_int_equal(good.start_rc, 0);
    for (int i = 0; i < N_DEMANDS; i++)
        assert_int_equal(good.demands[i].rc, 0);
    assert_int_equal(good.demands[2].finish, FINISH_CANCELLED);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    model_free(m);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_allocations), cmocka_unit_test(test_mappings), cmocka_unit_test(test_pages), cmocka_unit_test(test_threads), cmocka_unit_test(test_ceiling), cmocka_unit_test(test_load),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
