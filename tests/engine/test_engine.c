/* The engine thread as serve/ and cli/ see it: order, ends, cancelling, reuse, slow readers, failures (B105, S1, S23). */
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "support/engine.h"

static void test_events_in_order(void **state)
{
    (void)state;
    struct engine *e = host_start(1, 0, 2048, 32);
    struct request_params p = host_params(100, 12);
    struct request *r = host_submit(e, &p);
    int64_t done = 0;
    struct token_event event = host_next(r);
    assert_int_equal(event.kind, EVENT_STARTED);
    while ((event = host_next(r)).kind == EVENT_PREFILL) {
        assert_true(event.done > done);
        assert_int_equal(event.total, 100);
        done = event.done;
    }
    assert_int_equal(done, 100);
    for (int i = 0; i < 12; i++, event = host_next(r))
        assert_int_equal(event.kind, EVENT_TOKEN);
    assert_int_equal(event.kind, EVENT_END);
    assert_int_equal(event.finish, FINISH_LENGTH);
    assert_int_equal(event.n_prompt, 100);
    assert_int_equal(event.n_cached, 0);
    assert_int_equal(event.n_generated, 12);
    assert_true(event.prefill_ms > 0 && event.decode_ms > 0);
    request_release(r);
    engine_stop(e);
}

/* The first greedy token is the largest logit of the Hugging Face goldens. */
static void test_first_token_is_the_golden_one(void **state)
{
    size_t n_bytes, n_logits;
    (void)state;
    char *ids = test_read_file(test_path("models/r2-q8_0.p70.ids.i32"), &n_bytes), *logits = test_read_file(test_path("models/r2-q8_0.p70.last.f32"), &n_logits);
    const float *l = (const float *)logits;
    struct engine *e = host_start(1, 0, 2048, 0);
    struct request_params p = host_params(1, 1);
    p.prompt = (const int32_t *)ids;
    p.n_prompt = n_bytes / 4;
    struct host_result got = host_run(e, &p);
    int32_t best = 0;
    for (int32_t i = 1; i < (int32_t)(n_logits / 4); i++)
        if (vocab_is_emittable(host_model->vocab, i) && l[i] > l[best])
            best = i;
    assert_int_equal(got.ids[0], best);
    engine_stop(e);
    mem_free(ids);
    mem_free(logits);
}

/* B1, B2, B17: the next turn reads what is new, says so, and is answered as if it had read everything. */
static void test_next_turn_reuses(void **state)
{
    (void)state;
    struct engine *e = host_start(1, 0, 2048, 64);
    struct request_params p = host_params(300, 20);
    struct host_result first = host_run(e, &p), again = host_run(e, &p);
    host_same_ids(&first, &again);
    assert_int_equal(again.last.n_cached, 300);
    for (int i = 0; i < 20; i++)
        host_prompt[300 + i] = first.ids[i];
    p.n_prompt = 340; /* prompt, answer, twenty more */
    struct host_result turn = host_run(e, &p);
    assert_true(turn.last.n_cached >= 319);
    engine_stop(e);
    e = host_start(1, 0, 2048, 64);
    struct host_result cold = host_run(e, &p);
    assert_int_equal(cold.last.n_cached, 0);
    host_same_ids(&turn, &cold);
    engine_stop(e);
}

static void test_same_seed_same_ids(void **state)
{
    (void)state;
    struct engine *e = host_start(1, 0, 2048, 0);
    struct request_params p = host_params(40, 40);
    struct host_result greedy = host_run(e, &p);
    p.sampling.temperature = 1.5; /* temperature alone samples */
    p.sampling.has_seed = 1;
    p.sampling.seed = 7;
    struct host_result a = host_run(e, &p), b = host_run(e, &p);
    p.sampling.seed = 8;
    struct host_result c = host_run(e, &p);
    host_same_ids(&a, &b);
    assert_int_equal(c.n, 40);
    assert_true(memcmp(a.ids, c.ids, 40 * sizeof *a.ids) != 0);
    assert_true(memcmp(a.ids, greedy.ids, 40 * sizeof *a.ids) != 0);
    engine_stop(e);
}

/* B143: one that is cancelled, and one that is not, decoded together. */
static void test_cancel_touches_nobody_else(void **state)
{
    (void)state;
    struct engine *e = host_start(2, 0, 2048, 0);
    struct request_params p = host_params(50, 100), other = host_params(60, -1);
    struct host_result alone = host_run(e, &p);
    struct request *a = host_submit(e, &other);
    while (host_next(a).kind != EVENT_TOKEN)
        ;
    struct request *b = host_submit(e, &p);
    while (host_next(b).kind != EVENT_STARTED)
        ;
    request_cancel(a);
    struct host_result cancelled = host_drain(a), kept = host_drain(b);
    assert_int_equal(cancelled.last.kind, EVENT_END);
    assert_int_equal(cancelled.last.finish, FINISH_CANCELLED);
    host_same_ids(&alone, &kept);
    request_cancel(a);
    request_release(a);
    request_release(b);
    engine_stop(e);
}

/* B142, B144: the prompt is not read to its end for nobody. */
static void test_cancel_while_the_prompt_is_read(void **state)
{
    (void)state;
    struct engine *e = host_start(1, 0, 8192, 32);
    struct request_params p = host_params(2000, 10);
    struct request *r = host_submit(e, &p);
    while (host_next(r).kind != EVENT_PREFILL)
        ;
    request_cancel(r);
    struct host_result got = host_drain(r);
    assert_int_equal(got.last.finish, FINISH_CANCELLED);
    assert_int_equal(got.last.n_generated, 0);
    host_wait_idle(e, 1000);
    struct engine_stats stats;
    engine_stats_read(e, &stats);
    assert_int_equal(stats.n_cancelled, 1);
    request_release(r);
    p = host_params(200, 8);
    struct host_result after = host_run(e, &p); /* what was read stays usable, and right */
    engine_stop(e);
    e = host_start(1, 0, 8192, 32);
    struct host_result cold = host_run(e, &p);
    host_same_ids(&after, &cold);
    engine_stop(e);
}

/* B40 */
static void test_released_request_frees_its_slot(void **state)
{
    (void)state;
    struct engine *e = host_start(1, 0, 8192, 32);
    struct request_params p = host_params(20, -1);
    struct request *r = host_submit(e, &p);
    while (host_next(r).kind != EVENT_TOKEN)
        ;
    request_release(r);
    host_wait_idle(e, 1000);
    engine_stop(e);
}

/* A client that left while it waited is out of the queue at once, though the slot is taken. */
static void test_queue(void **state)
{
    (void)state;
    struct engine *e = host_start(1, 2, 8192, 0);
    struct err err = {0};
    struct engine_stats stats;
    struct request_params p = host_params(20, -1);
    struct request *running = host_submit(e, &p), *refused = NULL;
    while (host_next(running).kind != EVENT_TOKEN)
        ;
    struct request *first = host_submit(e, &p), *second = host_submit(e, &p);
    assert_int_equal(engine_submit(e, &p, &refused, &err), ERR_BUSY);
    assert_non_null(strstr(err.message, "queue is full"));
    request_cancel(first);
    struct host_result gone = host_drain(first);
    assert_int_equal(gone.last.finish, FINISH_CANCELLED);
    engine_stats_read(e, &stats);
    assert_int_equal(stats.n_waiting, 1);
    assert_int_equal(stats.n_running, 1);
    assert_int_equal(stats.n_refused, 1);
    request_cancel(running);
    while (host_next(second).kind != EVENT_TOKEN)
        ;
    request_release(first);
    request_release(second);
    request_release(running);
    engine_stop(e);
}

struct place { /* in the order in which requests were begun */
    atomic_int *n_begun;
    atomic_int at;
};

static void take_place(void *ctx)
{
    struct place *p = ctx;
    if (atomic_load(&p->at) == 0)
        atomic_store(&p->at, atomic_fetch_add(p->n_begun, 1) + 1);
}

static void test_order_is_first_come(void **state)
{
    (void)state;
    struct engine *e = host_start(1, 8, 2048, 0);
    struct request_params p = host_params(30, 30);
    struct request *r[4];
    atomic_int n_begun = 0;
    struct place places[4];
    p.notify = take_place;
    for (int i = 0; i < 4; i++) {
        places[i] = (struct place){.n_begun = &n_begun};
        p.ctx = &places[i];
        r[i] = host_submit(e, &p);
    }
    for (int i = 0; i < 4; i++) {
        struct host_result got = host_drain(r[i]);
        assert_int_equal(got.n, 30);
        assert_int_equal(atomic_load(&places[i].at), i + 1);
        request_release(r[i]);
    }
    engine_stop(e);
}

static void test_deadline(void **state)
{
    (void)state;
    struct engine *e = host_start(1, 0, 8192, 0);
    struct request_params p = host_params(20, -1), short_time = host_params(20, -1);
    p.deadline_s = 0.3;
    struct host_result got = host_run(e, &p);
    assert_int_equal(got.last.kind, EVENT_END);
    assert_int_equal(got.last.finish, FINISH_LENGTH);
    assert_true(got.n > 0);
    p.deadline_s = 0;
    struct request *running = host_submit(e, &p);
    while (host_next(running).kind != EVENT_TOKEN)
        ;
    short_time.deadline_s = 0.05; /* and it waits all that time */
    struct host_result waited = host_run(e, &short_time);
    assert_int_equal(waited.n, 0);
    request_release(running);
    engine_stop(e);
}

/* Who does not read is paused alone, and gets every token later. */
static void test_slow_reader(void **state)
{
    (void)state;
    struct engine *e = host_start(2, 0, 2048, 0);
    struct request_params p = host_params(30, 600);
    struct host_result fast = host_run(e, &p);
    struct request *slow = host_submit(e, &p);
    struct engine_stats stats;
    do {
        assert_true(request_wait(slow, 60000));
        engine_stats_read(e, &stats);
    } while (stats.generated_tokens < 600 + 200);
    struct host_result other = host_run(e, &p);
    host_same_ids(&fast, &other);
    engine_stats_read(e, &stats);
    assert_true(stats.generated_tokens < 600 + 600 + 300); /* the slow one stands at its ring's size */
    struct host_result late = host_drain(slow);
    host_same_ids(&fast, &late);
    request_release(slow);
    engine_stop(e);
}

/* And when that lasts it is let go, as one that left. */
static void test_slow_reader_is_dropped(void **state)
{
    (void)state;
    struct engine *e = NULL;
    struct err err = {0};
    struct engine_options o = {.device = {.kind = DEVICE_CPU, .n_threads = 1}, .context_length = 2048, .reader_timeout_ms = 200};
    test_ok(engine_start(host_model, &o, &e, &err), &err, "engine");
    struct request_params p = host_params(30, 600);
    struct request *slow = host_submit(e, &p);
    assert_true(request_wait(slow, 60000));
    host_wait_idle(e, 60000);
    struct engine_stats stats;
    engine_stats_read(e, &stats);
    assert_int_equal(stats.n_cancelled, 1);
    assert_true(stats.generated_tokens < 600);
    struct host_result got = host_drain(slow);
    assert_int_equal(got.last.finish, FINISH_CANCELLED);
    request_release(slow);
    engine_stop(e);
}

struct run_call {
    struct engine *e;
    struct request_params p;
};

static void do_run(void *ctx)
{
    const struct run_call *c = ctx;
    host_run(c->e, &c->p);
    host_wait_idle(c->e, 1000);
}

/* The line that scripts look for, once a prompt; none where nothing was read. */
static void test_prefill_line(void **state)
{
    (void)state;
    struct run_call call = {.e = host_start(1, 0, 2048, 32), .p = host_params(100, 2)};
    char text[1024];
    int n = 0;
    double ms, rate;
    test_capture(do_run, &call, text, sizeof text);
    assert_int_equal(sscanf(text, "[qwen35] cpu batched prefill: 100 tokens in %lf ms (%lf tok/s, from position 0)\n%n", &ms, &rate, &n), 2);
    assert_int_equal(n, strlen(text));
    test_capture(do_run, &call, text, sizeof text);
    assert_string_equal(text, "");
    call.p.n_prompt = 140;
    test_capture(do_run, &call, text, sizeof text);
    assert_non_null(strstr(text, "prefill: 40 tokens in "));
    assert_non_null(strstr(text, ", from position 100)\n"));
    engine_stop(call.e);
}

/* A failure ends its own request by name and leaves nothing behind. */
static void test_numbers_that_are_none(void **state)
{
    (void)state;
    const float *good = host_model->output_norm;
    float *bad = mem_alloc_array(MEM_OTHER, (size_t)host_model->config.d_model, sizeof *bad);
    for (int64_t i = 0; i < host_model->config.d_model; i++)
        bad[i] = NAN;
    struct engine *e = host_start(1, 0, 2048, 0);
    struct request_params p = host_params(50, 20);
    struct host_result before = host_run(e, &p);
    host_wait_idle(e, 1000);
    host_model->output_norm = bad;
    p.n_prompt = 51;
    struct host_result broken = host_run(e, &p);
    assert_int_equal(broken.last.kind, EVENT_ERROR);
    assert_int_equal(broken.last.error.code, ERR_NUMERIC);
    assert_int_equal(broken.n, 0);
    host_wait_idle(e, 1000);
    host_model->output_norm = good;
    p.n_prompt = 53; /* more of the same: what was read before the failure is not gone on from */
    struct host_result longer = host_run(e, &p);
    assert_int_equal(longer.last.n_cached, 0);
    p.n_prompt = 50;
    struct host_result after = host_run(e, &p);
    host_same_ids(&before, &after);
    struct engine_stats stats;
    engine_stats_read(e, &stats);
    assert_int_equal(stats.n_failed, 1);
    assert_int_equal(stats.n_finished, 3);
    engine_stop(e);
    mem_free(bad);
}

/* B40: what is held outlives whom it was asked of. */
static void test_stop_while_running(void **state)
{
    (void)state;
    struct engine *e = host_start(2, 0, 8192, 0);
    struct request_params p = host_params(40, -1);
    struct request *r[5];
    for (int i = 0; i < 5; i++)
        r[i] = host_submit(e, &p);
    while (host_next(r[0]).kind != EVENT_TOKEN)
        ;
    engine_stop(e);
    for (int i = 0; i < 5; i++) { /* held requests outlive the engine */
        struct host_result got = host_drain(r[i]);
        assert_int_equal(got.last.kind, EVENT_END);
        assert_int_equal(got.last.finish, FINISH_CANCELLED);
        request_cancel(r[i]);
        request_release(r[i]);
    }
}

static void test_drain(void **state)
{
    (void)state;
    struct engine *e = host_start(1, 0, 2048, 0);
    struct request_params p = host_params(40, 50);
    struct request *running = host_submit(e, &p), *waiting = host_submit(e, &p), *refused = NULL;
    struct err err = {0};
    engine_drain(e);
    assert_int_equal(engine_submit(e, &p, &refused, &err), ERR_BUSY);
    struct host_result a = host_drain(running), b = host_drain(waiting);
    assert_int_equal(a.n, 50);
    host_same_ids(&a, &b);
    host_wait_idle(e, 1000);
    request_release(running);
    request_release(waiting);
    engine_stop(e);
}

/* The prompt is refused whole; what max_tokens asks beyond the rest is clamped (B137), and nothing but the context ends an answer without it (B140). */
static void test_context_length(void **state)
{
    (void)state;
    struct engine *e = host_start(1, 0, 200, 0);
    struct request_params p = host_params(200, 5);
    struct request *r = NULL;
    struct err err = {0};
    assert_int_equal(engine_context(e), 200);
    assert_int_equal(engine_submit(e, &p, &r, &err), ERR_CONTEXT_LENGTH);
    assert_string_equal(err.message, "the prompt is 200 tokens and this server serves a context of 200: it was refused whole rather than truncated (#3571)");
    p.n_prompt = 199;
    p.max_tokens = 64000;
    struct host_result got = host_run(e, &p);
    assert_int_equal(got.n, 1);
    assert_int_equal(got.last.finish, FINISH_LENGTH);
    p.n_prompt = 150;
    p.max_tokens = -1;
    got = host_run(e, &p);
    assert_int_equal(got.n, 50);
    assert_int_equal(got.last.finish, FINISH_LENGTH);
    struct engine_stats stats;
    engine_stats_read(e, &stats);
    assert_int_equal(stats.n_requests, 2);
    engine_stop(e);
}

static void refused_as_invalid(struct engine *e, const struct request_params *p)
{
    struct request *r = NULL;
    struct err err = {0};
    assert_int_equal(engine_submit(e, p, &r, &err), ERR_INVALID);
    assert_true(*err.message);
}

static void test_bad_parameters(void **state)
{
    (void)state;
    struct engine *e = host_start(1, 0, 200, 0);
    struct request_params p = host_params(0, 5); /* B141: an empty prompt is not answered from what is held */
    refused_as_invalid(e, &p);
    p = host_params(3, 5);
    host_prompt[1] = -1;
    refused_as_invalid(e, &p);
    host_prompt[1] = (int32_t)host_model->config.n_vocab;
    refused_as_invalid(e, &p);
    p = host_params(3, 5);
    p.n_logprobs = MAX_LOGPROBS + 1;
    refused_as_invalid(e, &p);
    p = host_params(3, 5);
    p.sampling.temperature = -1;
    refused_as_invalid(e, &p);
    p.sampling.temperature = NAN;
    refused_as_invalid(e, &p);
    p = host_params(3, 5);
    p.sampling.bias = &(struct logit_bias){(int32_t)host_model->config.n_vocab, 1};
    p.sampling.n_bias = 1;
    refused_as_invalid(e, &p);
    engine_stop(e);
}

static void test_logprobs(void **state)
{
    (void)state;
    struct engine *e = host_start(1, 0, 2048, 0);
    struct request_params p = host_params(30, 10);
    p.n_logprobs = 5;
    struct request *r = host_submit(e, &p);
    struct token_event event;
    int n = 0;
    while ((event = host_next(r)).kind != EVENT_END) {
        if (event.kind != EVENT_TOKEN)
            continue;
        n++;
        assert_int_equal(event.n_top, 5);
        assert_true(event.logprob <= 0 && event.logprob <= event.top_logprobs[0]);
        for (int i = 1; i < 5; i++)
            assert_true(event.top_logprobs[i] <= event.top_logprobs[i - 1]);
    }
    assert_int_equal(n, 10);
    request_release(r);
    engine_stop(e);
}

/* Each end-of-generation token ends the text and is no part of it; a row without a token never comes out. */
static void test_ends_and_bans(void **state)
{
    (void)state;
    struct engine *e = host_start(1, 0, 2048, 0);
    int n_eog = 0, n_banned = 0;
    for (int32_t id = 0; id < vocab_n_tokens(host_model->vocab); id++) {
        int is_eog = vocab_is_eog(host_model->vocab, id), is_banned = !vocab_is_emittable(host_model->vocab, id);
        if (!is_eog && (!is_banned || n_banned > 2))
            continue;
        struct request_params p = host_params(10, 3);
        p.ignore_eog = 0;
        p.sampling.bias = &(struct logit_bias){id, 1000};
        p.sampling.n_bias = 1;
        struct host_result got = host_run(e, &p);
        if (is_banned) {
            n_banned++;
            for (int i = 0; i < got.n; i++)
                assert_int_not_equal(got.ids[i], id);
        } else {
            n_eog++;
            assert_int_equal(got.last.finish, FINISH_STOP);
            assert_int_equal(got.n, 0);
        }
    }
    assert_true(n_eog >= 2);
    engine_stop(e);
}

static void count_notice(void *ctx)
{
    atomic_fetch_add((atomic_int *)ctx, 1);
}

static void test_notify(void **state)
{
    (void)state;
    struct engine *e = host_start(1, 0, 8192, 0);
    atomic_int n = 0;
    struct request_params p = host_params(20, -1);
    p.notify = count_notice;
    p.ctx = &n;
    struct request *r = host_submit(e, &p);
    while (host_next(r).kind != EVENT_TOKEN)
        ;
    assert_true(atomic_load(&n) >= 2);
    request_release(r);
    int after = atomic_load(&n);
    host_wait_idle(e, 1000);
    assert_int_equal(atomic_load(&n), after); /* never after the release */
    engine_stop(e);
}

static void test_start_refusals(void **state)
{
    (void)state;
    struct engine *e = NULL;
    struct err err = {0};
    struct engine_options o = {.device = {.kind = DEVICE_CPU, .n_threads = 1}, .context_length = host_model->config.n_ctx_declared + 1};
    assert_int_equal(engine_start(host_model, &o, &e, &err), ERR_INVALID);
    assert_non_null(strstr(err.message, "--context-length 8193"));
    o.context_length = 4096;
    o.memory_limit = 1 << 20;
    assert_int_equal(engine_start(host_model, &o, &e, &err), ERR_CAPACITY);
    assert_int_equal(strncmp(err.message, "capacity: co_tenant: ", 10), 0);
}

/* An edit in the middle goes to another slot as a copy; back to the unedited version, nothing is read again. Always the cold answer. */
static void test_edit_and_back(void **state)
{
    (void)state;
    struct engine *e = host_start(2, 0, 4096, 64);
    struct request_params p = host_params(1600, 6);
    struct host_result first = host_run(e, &p);
    host_prompt[1100] ^= 1;
    struct host_result edited = host_run(e, &p);
    assert_int_equal(edited.last.n_cached, 1024); /* two snapshot intervals */
    host_prompt[1100] ^= 1;
    struct host_result back = host_run(e, &p);
    assert_int_equal(back.last.n_cached, 1600);
    host_same_ids(&first, &back);
    engine_stop(e);
    e = host_start(1, 0, 4096, 64);
    host_prompt[1100] ^= 1;
    struct host_result cold = host_run(e, &p);
    host_same_ids(&edited, &cold);
    engine_stop(e);
}

/* B35: while a long prompt is read, who generates goes on, and both answers are those given alone. */
static void test_prompt_beside_running(void **state)
{
    (void)state;
    struct engine *e = host_start(2, 0, 4096, 512);
    struct request_params p = host_params(50, 1500), other = host_params(1900, 8);
    p.prompt = host_prompt + 30;
    struct host_result alone = host_run(e, &p), other_alone = host_run(e, &other);
    engine_stop(e);
    e = host_start(2, 0, 4096, 512);
    struct request *a = host_submit(e, &p);
    struct token_event event;
    while (host_next(a).kind != EVENT_TOKEN)
        ;
    struct request *b = host_submit(e, &other);
    int pieces = 0, tokens = 1; /* of a, while b is read */
    while ((event = host_next(b)).kind != EVENT_TOKEN) {
        pieces += event.kind == EVENT_PREFILL;
        while (request_next(a, &event))
            tokens += event.kind == EVENT_TOKEN;
    }
    struct host_result rest = host_drain(a), got = host_drain(b);
    assert_true(pieces > 8 && tokens > 8);
    assert_int_equal(tokens + rest.n, 1500);
    assert_memory_equal(rest.ids, alone.ids + tokens, (size_t)rest.n * sizeof *rest.ids);
    assert_memory_equal(got.ids, other_alone.ids + 1, 7 * sizeof *got.ids);
    request_release(a);
    request_release(b);
    engine_stop(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_events_in_order), cmocka_unit_test(test_first_token_is_the_golden_one), cmocka_unit_test(test_next_turn_reuses), cmocka_unit_test(test_same_seed_same_ids),
        cmocka_unit_test(test_cancel_touches_nobody_else), cmocka_unit_test(test_cancel_while_the_prompt_is_read), cmocka_unit_test(test_released_request_frees_its_slot),
        cmocka_unit_test(test_queue), cmocka_unit_test(test_order_is_first_come), cmocka_unit_test(test_deadline), cmocka_unit_test(test_slow_reader),
        cmocka_unit_test(test_slow_reader_is_dropped), cmocka_unit_test(test_prefill_line),
        cmocka_unit_test(test_numbers_that_are_none), cmocka_unit_test(test_stop_while_running), cmocka_unit_test(test_drain), cmocka_unit_test(test_context_length),
        cmocka_unit_test(test_bad_parameters), cmocka_unit_test(test_logprobs), cmocka_unit_test(test_ends_and_bans), cmocka_unit_test(test_notify),
        cmocka_unit_test(test_start_refusals),
        cmocka_unit_test(test_edit_and_back), cmocka_unit_test(test_prompt_beside_running),
    };
    return cmocka_run_group_tests(tests, host_load, host_unload);
}
