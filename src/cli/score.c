#include "cli/score.h"

#include <string.h>

#define FORWARD_ROWS 512
#define LEAST_ROWS 32
#define LOGIT_BYTES ((int64_t)64 << 20)   /* logits of one forward at most */

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* The largest n_in of any matrix of the model. */
static int64_t widest_input(const struct model_config *k)
{
    int64_t ff = larger(k->d_ff, larger(k->d_ff_expert, k->d_ff_shared));
    return larger(larger(k->d_model, ff), larger((int64_t)k->n_head * k->d_head, (int64_t)k->n_head_v * k->d_state));
}

static int64_t rows_of(const struct model_config *k)
{
    int64_t rows = LOGIT_BYTES / ((int64_t)sizeof(float) * k->n_vocab);
    return rows < 1 ? 1 : rows > FORWARD_ROWS ? FORWARD_ROWS : rows;
}

static void device_options_for(const struct cli *c, const struct model_config *k, int64_t n_rows, struct device_options *out)
{
    cli_device_options(c, out);
    out->max_rows = n_rows;
    out->max_n_in = widest_input(k);
}

int score_plan(struct cli *c, const struct model *m, int64_t n_positions, int n_slots, struct plan *out)
{
    struct device_options options, small;
    struct device *dev = NULL;
    struct device_memory memory;
    device_options_for(c, &m->config, FORWARD_ROWS, &options);
    small = options;
    small.max_rows = 1;
    small.max_n_in = 256;
    TRY(device_open(&small, &dev, &c->err));
    int rc = device_memory(dev, &memory, &c->err);
    device_close(dev);
    TRY(rc);
    struct plan_request request = {
        .config = &m->config, .weight_bytes = m->weight_bytes, .n_positions = n_positions, .n_slots = n_slots, .budget_bytes = memory.free, .total_bytes = memory.total,
        .source = memory.source, .workspace_rows = FORWARD_ROWS, .scratch_bytes = device_scratch_bytes(&options),
    };
    if (c->o[O_MEMORY_LIMIT].set && (uint64_t)c->o[O_MEMORY_LIMIT].i < memory.free) {
        request.budget_bytes = (uint64_t)c->o[O_MEMORY_LIMIT].i;
        request.source = "--memory-limit";
    }
    rc = plan_make(&request, out, &c->err);
    for (struct err smaller; rc == ERR_CAPACITY && request.workspace_rows > LEAST_ROWS;) { /* as the engine steps down; a refusal shows the figures of what was asked */
        request.workspace_rows = options.max_rows = request.workspace_rows / 2;
        request.scratch_bytes = device_scratch_bytes(&options);
        rc = plan_make(&request, out, &smaller);
    }
    return rc;
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
    struct device_options options;
    const struct model_config *k = &s->model->config;
    if (n_positions > k->n_ctx_declared)
        return err_set(&c->err, ERR_CONTEXT_LENGTH, "%s: %lld tokens are more than the model's context of %lld", gguf_path(s->model->file), (long long)n_positions, (long long)k->n_ctx_declared);
    TRY(score_plan(c, s->model, n_positions, 1, &plan));
    s->n_rows = rows_of(k);
    device_options_for(c, k, s->n_rows, &options);
    TRY(device_open(&options, &s->device, &c->err));
    cli_print_backend(s->device);
    TRY(runner_create(s->model, s->device, s->n_rows, s->n_rows, &s->runner, &c->err));
    TRY(runner_reserve_rows(s->runner, s->n_rows, &c->err));
    TRY(state_create(k, s->device, KV_F32, n_positions, &s->state, &c->err));
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
