/* apr bench: rates of reading and of generating, by the engine's own clock. */
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/mem.h"
#include "cli/common.h"

#define PROMPT_TOKENS 512
#define GEN_TOKENS 64
#define REPEATS 3
#define MAX_REPEATS 1000

struct bench {
    struct cli *c;
    struct model *model;
    struct engine *engine;
    size_t n_prompt;
    int64_t n_gen;
    int n_repeat;
    double prefill[MAX_REPEATS], decode[MAX_REPEATS]; /* tok/s */
};

/* Ordinary tokens in no order; every run another prompt, so that nothing is reused. */
static int fill_prompt(const struct bench *b, int32_t *ids, uint64_t seed)
{
    const struct vocab *v = b->model->vocab;
    uint64_t x = seed * 0x9E3779B97F4A7C15u + 1;
    for (size_t i = 0; i < b->n_prompt; i++) {
        int tries = 0;
        do {
            x = x * 6364136223846793005u + 1442695040888963407u;
            ids[i] = (int32_t)((x >> 33) % (uint64_t)vocab_n_tokens(v));
        } while (vocab_kind(v, ids[i]) != TOKEN_NORMAL && ++tries < 1000);
    }
    return 0;
}

static int wait_end(struct bench *b, struct request *r, int run)
{
    struct token_event *event = mem_alloc(MEM_OTHER, sizeof *event);
    if (!event)
        return err_set(&b->c->err, ERR_NO_MEMORY, "out of memory");
    int rc = 1;
    while (rc == 1) {
        request_wait(r, 1000);
        while (rc == 1 && request_next(r, event) == 1) {
            if (event->kind == EVENT_ERROR)
                rc = err_set(&b->c->err, event->error.code, "%s", event->error.message);
            if (event->kind != EVENT_END)
                continue;
            b->prefill[run] = event->prefill_ms > 0 ? (double)(event->n_prompt - event->n_cached) * 1000 / event->prefill_ms : 0;
            b->decode[run] = event->decode_ms > 0 ? (double)event->n_generated * 1000 / event->decode_ms : 0;
            rc = 0;
        }
    }
    mem_free(event);
    return rc;
}

static int run_once(struct bench *b, int32_t *ids, int run)
{
    struct request *r = NULL;
    struct request_params p = {.prompt = ids, .n_prompt = b->n_prompt, .max_tokens = b->n_gen, .n_logprobs = -1, .ignore_eog = 1};
    sample_params_default(&p.sampling);
    p.sampling.temperature = 0;
    fill_prompt(b, ids, (uint64_t)run + 1);
    TRY(engine_submit(b->engine, &p, &r, &b->c->err));
    int rc = wait_end(b, r, run);
    request_release(r);
    if (rc == 0)
        log_verbose("run %d: prompt %.1f tok/s, generation %.1f tok/s", run + 1, b->prefill[run], b->decode[run]);
    return rc;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static json_t *rates_json(const double *sorted, int n)
{
    return json_pack("{s:f, s:f, s:f}", "median", sorted[n / 2], "min", sorted[0], "max", sorted[n - 1]);
}

static int print_rates(struct bench *b)
{
    int n = b->n_repeat;
    const struct device *dev = engine_device(b->engine);
    qsort(b->prefill, (size_t)n, sizeof *b->prefill, by_value);
    qsort(b->decode, (size_t)n, sizeof *b->decode, by_value);
    if (b->c->o[O_JSON].set)
        return cli_print_json(b->c,
                              json_pack("{s:I, s:I, s:i, s:s, s:i, s:o, s:o}", "prompt_tokens", (json_int_t)b->n_prompt, "gen_tokens", (json_int_t)b->n_gen, "repeat", n, "rung", dev->rung,
                                        "threads", dev->n_threads, "prefill_tok_s", rates_json(b->prefill, n), "decode_tok_s", rates_json(b->decode, n)),
                              -1);
    printf("prompt %zu: %.1f tok/s (%.1f-%.1f, %d)\n", b->n_prompt, b->prefill[n / 2], b->prefill[0], b->prefill[n - 1], n);
    printf("generate %lld: %.1f tok/s (%.1f-%.1f, %d)\n", (long long)b->n_gen, b->decode[n / 2], b->decode[0], b->decode[n - 1], n);
    return 0;
}

static int measure(struct bench *b)
{
    struct cli *c = b->c;
    struct engine_options options;
    cli_engine_options(c, &options);
    options.n_parallel = 1;
    TRY(engine_start(b->model, &options, &b->engine, &c->err));
    cli_print_backend(engine_device(b->engine));
    cli_quiet_engine();
    int32_t *ids = mem_alloc_array(MEM_OTHER, b->n_prompt, sizeof *ids);
    int rc = ids ? 0 : err_set(&c->err, ERR_NO_MEMORY, "out of memory for the prompt");
    for (int i = 0; rc == 0 && i < b->n_repeat; i++)
        rc = run_once(b, ids, i);
    mem_free(ids);
    return rc == 0 ? print_rates(b) : rc;
}

int verb_bench(struct cli *c)
{
    static struct bench b;
    struct cli_device device;
    const struct opt_value *o = c->o;
    if (o[O_LIST_DEVICES].set)
        return cli_list_devices(c);
    b.c = c;
    b.n_prompt = o[O_PROMPT_TOKENS].set ? (size_t)o[O_PROMPT_TOKENS].i : PROMPT_TOKENS;
    b.n_gen = o[O_GEN_TOKENS].set ? o[O_GEN_TOKENS].i : GEN_TOKENS;
    b.n_repeat = o[O_REPEAT].set ? (int)o[O_REPEAT].i : REPEATS;
    TRY(cli_resolve_device(c, &device));
    TRY(cli_load_model(c, 0, &b.model));
    int rc = measure(&b);
    if (b.engine)
        engine_stop(b.engine);
    model_free(b.model);
    return rc;
}
