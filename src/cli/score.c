#include "cli/score.h"

#include "engine/capacity.h"

#define FORWARD_ROWS CAPACITY_CHUNK_ROWS
#define LOGIT_BYTES ((int64_t)64 << 20)   /* logits of one forward at most */

static int64_t rows_of(const struct model_config *k)
{
    int64_t rows = LOGIT_BYTES / ((int64_t)sizeof(float) * k->n_vocab);
    return rows < 1 ? 1 : rows > FORWARD_ROWS ? FORWARD_ROWS : rows;
}

int score_open(struct cli *c, unsigned load_flags, struct scorer *s)
{
    struct cli_device device;
    *s = (struct scorer){.c = c};
    TRY(cli_resolve_device(c, &device));
    return cli_load_model(c, load_flags, &s->model);
}

int score_reserve(struct scorer *s, int64_t n_positions)
{
    struct cli *c = s->c;
    struct plan plan;
    struct engine_options options;
    const struct model_config *k = &s->model->config;
    if (n_positions > k->n_ctx_declared)
        return err_set(&c->err, ERR_CONTEXT_LENGTH, "%s: %lld tokens are more than the model's context of %lld", gguf_path(s->model->file), (long long)n_positions, (long long)k->n_ctx_declared);
    cli_engine_options(c, &options);
    options.context_length = n_positions;
    options.chunk_rows = rows_of(k);
    options.n_parallel = 1;
    TRY(capacity_plan(s->model, &options, &plan, &c->err));
    s->n_rows = options.chunk_rows;
    TRY(device_open(&options.device, &s->device, &c->err));
    cli_print_backend(s->device);
    TRY(runner_create(s->model, s->device, s->n_rows, s->n_rows, &s->runner, &c->err));
    TRY(runner_reserve_rows(s->runner, s->n_rows, &c->err));
    TRY(state_create(k, s->device, plan.cache_type, n_positions, &s->state, &c->err));
    return state_reserve(s->state, n_positions, &c->err);
}

void score_close(struct scorer *s)
{
    state_free(s->state);
    runner_free(s->runner);
    device_close(s->device);
    model_free(s->model);
}

int score_ids(struct scorer *s, const int32_t *ids, size_t n, size_t first, score_row *row, void *ctx)
{
    size_t n_vocab = (size_t)s->model->config.n_vocab;
    state_reset(s->state);
    for (size_t at = 0; at < n;) {
        size_t rows = n - at < (size_t)s->n_rows ? n - at : (size_t)s->n_rows;
        size_t end = at + rows, from = first > at ? first : at;
        size_t wanted = from < end ? end - from : 0;
        const float *logits = NULL;
        struct batch_span span = {.seq = state_seq(s->state), .ids = ids + at, .n = (int64_t)rows, .n_logits = (int64_t)wanted};
        TRY(model_forward(s->runner, &span, 1, &logits, &s->c->err));
        for (size_t i = 0; i < wanted; i++)
            TRY(row(ctx, end - wanted + i, logits + i * n_vocab));
        at = end;
    }
    return 0;
}
