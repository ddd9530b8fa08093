/* The workspace: one allocation whose size is the plan's, carved into the arrays of a pass. */
#include "model/runner.h"

#include <math.h>

#include "base/mem.h"

static int64_t max_of(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Hands out pieces of `memory`, or only counts when it is NULL. */
struct carver {
    uint8_t *memory;
    size_t used;
};

static void *carve(struct carver *c, int64_t n, int64_t size)
{
    size_t at = c->used;
    c->used += ((size_t)n * (size_t)size + 63) & ~(size_t)63;
    return c->memory ? c->memory + at : NULL;
}

static struct workspace layout(struct carver *a, const struct model_config *c, int64_t rows, int64_t logit_rows)
{
    int64_t q = (int64_t)c->n_head * c->d_head, inner = (int64_t)c->n_head_v * c->d_state, kv = (int64_t)c->n_head_kv * c->d_head;
    int64_t used = c->is_moe ? c->n_expert_used : 0;
    int64_t ff = c->is_moe ? max_of(c->d_ff_shared, c->d_ff_expert) : c->d_ff, f = sizeof(float);
    struct workspace w = {0};
    w.x = carve(a, rows * c->d_model, f);
    w.h = carve(a, rows * c->d_model, f);
    w.mix = carve(a, rows * c->d_model, f);
    w.qkv = carve(a, rows * max_of(config_n_channel(c), 2 * q), f);
    w.conv = carve(a, rows * config_n_channel(c), f);
    w.z = carve(a, rows * max_of(inner, q), f);
    w.o = carve(a, rows * max_of(inner, q), f);
    w.k = carve(a, rows * kv, f);
    w.v = carve(a, rows * kv, f);
    w.alpha = carve(a, rows * c->n_head_v, f);
    w.beta = carve(a, rows * c->n_head_v, f);
    w.gate = carve(a, rows * ff, f);
    w.up = carve(a, rows * ff, f);
    w.cos_sin = carve(a, rows * c->n_rot, f);
    w.router = carve(a, rows * c->n_expert, f);
    w.weights = carve(a, rows * used, f);
    w.expert_in = carve(a, c->is_moe ? rows * c->d_model : 0, f);
    w.routed_out = carve(a, rows * used * c->d_model, f);
    w.shared_gate = carve(a, c->is_moe ? rows : 0, f);
    w.experts = carve(a, rows * used, sizeof(int32_t));
    w.rows = carve(a, rows * used, sizeof(int32_t));
    w.slots = carve(a, rows * used, sizeof(int32_t));
    w.first_slot = carve(a, c->is_moe ? c->n_expert + 1 : 0, sizeof(int32_t));
    w.last = carve(a, logit_rows * c->d_model, f);
    w.logits = carve(a, logit_rows * c->n_vocab, f);
    return w;
}

size_t runner_workspace_bytes(const struct model_config *c, int64_t max_rows, int64_t max_logit_rows)
{
    struct carver count = {0};
    (void)layout(&count, c, max_rows, max_logit_rows);
    return count.used;
}

int runner_create(const struct model *m, struct device *dev, int64_t max_rows, int64_t max_logit_rows, struct runner **out, struct err *err)
{
    if (max_rows < 1 || max_logit_rows < 1)
        return err_set(err, ERR_INVALID, "a runner needs at least one row and one row of logits");
    struct runner *r = mem_alloc(MEM_WORKSPACE, sizeof *r);
    size_t bytes = runner_workspace_bytes(&m->config, max_rows, max_logit_rows);
    int half = m->config.n_rot / 2;
    if (r) {
        r->dev = dev;
        r->memory = device_alloc(dev, MEM_WORKSPACE, bytes);
        r->rope_freq = mem_alloc_array(MEM_WORKSPACE, (size_t)half, sizeof *r->rope_freq);
    }
    if (!r || !r->memory || !r->rope_freq) {
        runner_free(r);
        return err_set(err, ERR_NO_MEMORY, "out of memory: the workspace for %lld rows needs %zu bytes", (long long)max_rows, bytes);
    }
    struct carver a = {.memory = r->memory};
    r->m = m;
    r->max_rows = max_rows;
    r->max_logit_rows = max_logit_rows;
    r->ws = layout(&a, &m->config, max_rows, max_logit_rows);
    for (int i = 0; i < half; i++)
        r->rope_freq[i] = pow(m->config.rope_freq_base, -2.0 * i / m->config.n_rot);
    *out = r;
    return 0;
}

void runner_free(struct runner *r)
{
    if (!r)
        return;
    if (r->memory)
        device_free(r->dev, r->memory);
    mem_free(r->rope_freq);
    mem_free(r);
}

const struct model *runner_model(const struct runner *r)
{
    return r->m;
}

struct device *runner_device(const struct runner *r)
{
    return r->dev;
}

int64_t runner_max_rows(const struct runner *r)
{
    return r->max_rows;
}

void runner_set_trace(struct runner *r, forward_trace *trace, void *ctx)
{
    r->trace = trace;
    r->trace_ctx = ctx;
}
