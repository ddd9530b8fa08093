#include "support/engine.h"

#include "base/clock.h"

#define WAIT_MS 60000

struct model *host_model;
int32_t host_prompt[HOST_MAX_IDS];

int host_load(void **state)
{
    struct err err = {0};
    (void)state;
    test_ok(model_load(test_path("models/r2-q8_0.gguf"), 0, &host_model, &err), &err, "model");
    return 0;
}

int host_unload(void **state)
{
    (void)state;
    model_free(host_model);
    return 0;
}

struct engine *host_start(int n_parallel, int queue_max, int64_t context, int64_t chunk_rows)
{
    struct engine *e = NULL;
    struct err err = {0};
    struct engine_options o = {.device = {.kind = DEVICE_CPU, .n_threads = 1}, .context_length = context, .n_parallel = n_parallel, .queue_max = queue_max, .chunk_rows = chunk_rows,
                               .reader_timeout_ms = 600000}; /* sanitizers are slow */
    test_ok(engine_start(host_model, &o, &e, &err), &err, "engine");
    return e;
}

struct request_params host_params(size_t n_prompt, int64_t max_tokens)
{
    uint64_t seed = 11;
    struct request_params p = {.prompt = host_prompt, .n_prompt = n_prompt, .max_tokens = max_tokens, .n_logprobs = -1, .ignore_eog = 1};
    for (size_t i = 0; i < HOST_MAX_IDS; i++)
        host_prompt[i] = (int32_t)test_random(&seed, 900);
    sample_params_default(&p.sampling);
    p.sampling.temperature = 0;
    return p;
}

struct request *host_submit(struct engine *e, const struct request_params *p)
{
    struct request *r = NULL;
    struct err err = {0};
    test_ok(engine_submit(e, p, &r, &err), &err, "submit");
    return r;
}

struct token_event host_next(struct request *r)
{
    struct token_event event;
    if (!request_next(r, &event)) {
        if (!request_wait(r, WAIT_MS))
            fail_msg("no event within %d ms", WAIT_MS);
        assert_true(request_next(r, &event));
    }
    return event;
}

struct host_result host_drain(struct request *r)
{
    struct host_result out = {0};
    for (;;) {
        struct token_event event = host_next(r);
        if (event.kind == EVENT_TOKEN) {
            assert_true(out.n < HOST_MAX_IDS);
            out.ids[out.n++] = event.id;
        } else if (event.kind == EVENT_END || event.kind == EVENT_ERROR) {
            out.last = event;
            assert_int_equal(request_next(r, &event), 0);
            return out;
        }
    }
}

struct host_result host_run(struct engine *e, const struct request_params *p)
{
    struct request *r = host_submit(e, p);
    struct host_result out = host_drain(r);
    request_release(r);
    return out;
}

void host_same_ids(const struct host_result *a, const struct host_result *b)
{
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->ids, b->ids, (size_t)a->n * sizeof *a->ids);
}

void host_wait_idle(struct engine *e, double limit_ms)
{
    uint64_t start_ns = clock_ns();
    while (!engine_idle(e))
        if (clock_ms_since(start_ns) > limit_ms)
            fail_msg("the engine is not idle after %.0f ms", limit_ms);
}
