/* The workspace: a reservation for each array of a pass, of which rows are committed as turns need them. Invariant: every array has the same rows committed. */
#include "model/runner.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "base/mem.h"

static int64_t max_of(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* The arrays that have a row for each row of a batch. Returns how many. */
static int layout(const struct model_config *c, struct workspace_array out[WORKSPACE_ARRAYS])
{
    int64_t q = (int64_t)c->n_head * c->d_head, inner = (int64_t)c->n_head_v * c->d_state, kv = (int64_t)c->n_head_kv * c->d_head, channel = config_n_channel(c);
    int64_t used = c->is_moe ? c->n_expert_used : 0, moe = c->is_moe ? 1 : 0, ff = c->is_moe ? max_of(c->d_ff_shared, c->d_ff_expert) : c->d_ff;
    int n = 0;
#define ARRAY(name, width) out[n++] = (struct workspace_array){.field = offsetof(struct workspace, name), .row_bytes = (size_t)(width) * sizeof *((struct workspace *)0)->name}
    ARRAY(x, c->d_model);
    ARRAY(h, c->d_model);
    ARRAY(mix, c->d_model);
    ARRAY(qkv, max_of(channel, 2 * q));
    ARRAY(conv, channel);
    ARRAY(z, max_of(inner, q));
    ARRAY(o, max_of(inner, q));
    ARRAY(k, kv);
    ARRAY(v, kv);
    ARRAY(alpha, c->n_head_v);
    ARRAY(beta, c->n_head_v);
    ARRAY(gate, ff);
    ARRAY(up, ff);
    ARRAY(cos_sin, c->n_rot);
    ARRAY(router, moe * c->n_expert);
    ARRAY(weights, used);
    ARRAY(expert_in, moe * c->d_model);
    ARRAY(routed_out, used * c->d_model);
    ARRAY(shared_gate, moe);
    ARRAY(experts, used);
    ARRAY(rows, used);
    ARRAY(slots, used);
#undef ARRAY
    return n;
}

/* Bytes of the arrays that do not grow with the batch, and where they begin: first_slot, last, logits. */
static size_t logit_layout(const struct model_config *c, int64_t logit_rows, size_t *last, size_t *logits)
{
    size_t first_slot = c->is_moe ? ((size_t)c->n_expert + 1) * sizeof(int32_t) : 0;
    *last = (first_slot + 63) & ~(size_t)63;
    *logits = *last + (((size_t)logit_rows * (size_t)c->d_model * sizeof(float) + 63) & ~(size_t)63);
    return *logits + (size_t)logit_rows * (size_t)c->n_vocab * sizeof(float);
}

static size_t page_up(size_t bytes)
{
    return (bytes + 4095) & ~(size_t)4095;
}

size_t runner_workspace_bytes(const struct model_config *c, int64_t max_rows, int64_t max_logit_rows)
{
    struct workspace_array arrays[WORKSPACE_ARRAYS];
    size_t last, logits, bytes = logit_layout(c, max_logit_rows, &last, &logits);
    int n = layout(c, arrays);
    for (int i = 0; i < n; i++)
        bytes += page_up(arrays[i].row_bytes * (size_t)max_rows);
    return bytes;
}

/* Address space for the arrays, memory for the logits. */
static int take_memory(struct runner *r)
{
    const struct model_config *c = &r->m->config;
    size_t last, logits, bytes = logit_layout(c, r->max_logit_rows, &last, &logits);
    r->logit_memory = device_alloc(r->dev, MEM_WORKSPACE, bytes);
    r->rope_freq = mem_alloc_array(MEM_WORKSPACE, (size_t)c->n_rot / 2, sizeof *r->rope_freq);
    if (!r->logit_memory || !r->rope_freq)
        return ERR_NO_MEMORY;
    r->ws.first_slot = r->logit_memory;
    r->ws.last = (float *)((char *)r->logit_memory + last);
    r->ws.logits = (float *)((char *)r->logit_memory + logits);
    r->n_arrays = layout(c, r->arrays);
    for (int i = 0; i < r->n_arrays; i++) {
        size_t n = r->arrays[i].row_bytes * (size_t)r->max_rows;
        r->arrays[i].base = n ? device_reserve(r->dev, n) : NULL;
        if (n && !r->arrays[i].base)
            return ERR_NO_MEMORY;
        memcpy((char *)&r->ws + r->arrays[i].field, &r->arrays[i].base, sizeof(void *));
    }
    return 0;
}

int runner_create(const struct model *m, struct device *dev, int64_t max_rows, int64_t max_logit_rows, struct runner **out, struct err *err)
{
    if (max_rows < 1 || max_logit_rows < 1)
        return err_set(err, ERR_INVALID, "a runner needs at least one row and one row of logits");
    struct runner *r = mem_alloc(MEM_WORKSPACE, sizeof *r);
    if (r)
        *r = (struct runner){.m = m, .dev = dev, .max_rows = max_rows, .max_logit_rows = max_logit_rows};
    if (!r || take_memory(r) < 0) {
        runner_free(r);
        return err_set(err, ERR_NO_MEMORY, "out of memory: the workspace for %lld rows needs %zu bytes", (long long)max_rows,
                       runner_workspace_bytes(&m->config, max_rows, max_logit_rows));
    }
    for (int i = 0; i < m->config.n_rot / 2; i++)
        r->rope_freq[i] = pow(m->config.rope_freq_base, -2.0 * i / m->config.n_rot);
    *out = r;
    return 0;
}

void runner_free(struct runner *r)
{
    if (!r)
        return;
    for (int i = 0; i < r->n_arrays; i++)
        if (r->arrays[i].base)
            device_release(r->dev, MEM_WORKSPACE, r->arrays[i].base, r->arrays[i].row_bytes * (size_t)r->max_rows, r->arrays[i].row_bytes * (size_t)r->rows);
    if (r->logit_memory)
        device_free(r->dev, r->logit_memory);
    mem_free(r->rope_freq);
    mem_free(r);
}

/* Gives rows [to, from) of the first n arrays back; returns the bytes. */
static uint64_t decommit_rows(struct runner *r, int n, int64_t from, int64_t to)
{
    uint64_t before = mem_bytes(MEM_WORKSPACE);
    for (int i = 0; i < n; i++)
        if (r->arrays[i].base)
            device_decommit(r->dev, MEM_WORKSPACE, r->arrays[i].base, r->arrays[i].row_bytes * (size_t)from, r->arrays[i].row_bytes * (size_t)to);
    return before - mem_bytes(MEM_WORKSPACE);
}

int runner_reserve_rows(struct runner *r, int64_t rows, struct err *err)
{
    if (rows > r->max_rows)
        return err_set(err, ERR_INVALID, "a batch of %lld rows; the workspace is made for %lld", (long long)rows, (long long)r->max_rows);
    if (rows <= r->rows)
        return 0;
    for (int i = 0; i < r->n_arrays; i++) {
        size_t row = r->arrays[i].row_bytes;
        if (r->arrays[i].base && device_commit(r->dev, MEM_WORKSPACE, r->arrays[i].base, row * (size_t)r->rows, row * (size_t)rows) < 0) {
            decommit_rows(r, i, r->rows, rows);
            return err_set(err, ERR_CAPACITY, "capacity: the workspace for %lld rows would not allocate: %.1f MiB", (long long)rows,
                           (double)runner_workspace_bytes(&r->m->config, rows, r->max_logit_rows) / 1048576.0);
        }
    }
    r->rows = rows;
    return 0;
}

uint64_t runner_trim_rows(struct runner *r, int64_t rows)
{
    if (rows >= r->rows)
        return 0;
    uint64_t bytes = decommit_rows(r, r->n_arrays, rows, r->rows);
    r->rows = rows;
    return bytes;
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

int64_t runner_max_logit_rows(const struct runner *r)
{
    return r->max_logit_rows;
}

int64_t runner_rows(const struct runner *r)
{
    return r->rows;
}

void runner_set_trace(struct runner *r, forward_trace *trace, void *ctx)
{
    r->trace = trace;
    r->trace_ctx = ctx;
}
