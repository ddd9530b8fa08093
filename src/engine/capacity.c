#include "engine/capacity.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/pool.h"
#include "model/forward.h"

#define MIB(bytes) ((double)(bytes) / 1048576.0)
#define STACK_BYTES ((uint64_t)8 << 20)    /* of a thread: address space, hardly memory */
#define ARENA_BYTES ((uint64_t)64 << 20)   /* that the C library reserves for a thread's small blocks */
#define N_OTHER_THREADS 6                  /* the engine's, the server's and its workers */

/* Address space that threads take before they do anything. */
static uint64_t threads_bytes(const struct device_options *o)
{
    int n = o->n_threads > 0 ? o->n_threads : pool_default_threads();
    return (uint64_t)(n + N_OTHER_THREADS) * STACK_BYTES + 2 * ARENA_BYTES;
}

/* What is left of the address space, and what the weights have taken of it already: they are part of the plan. */
static void set_address(struct plan_request *q, const struct model *m, const struct device_memory *memory, const struct device_options *device)
{
    uint64_t mapped = gguf_file_bytes(m->file);
    q->address_limit = memory->address_limit;
    q->address_budget = memory->address_free;
    if (memory->address_free == UINT64_MAX)
        return;
    q->address_threads = threads_bytes(device);
    q->address_budget += mapped < m->weight_bytes ? mapped : m->weight_bytes;
}

static void settle_rows(const struct model *m, struct engine_options *o, int n_slots)
{
    if (o->chunk_rows <= 0)
        o->chunk_rows = CAPACITY_CHUNK_ROWS;
    if (o->context_length > 0 && o->chunk_rows > o->context_length)
        o->chunk_rows = o->context_length;
    int64_t least = n_slots > 0 ? n_slots : PLAN_SLOTS; /* a step decodes a row of each */
    if (o->chunk_rows < least)
        o->chunk_rows = least;
    o->device.max_rows = o->chunk_rows;
    o->device.max_n_in = config_widest_input(&m->config);
}

static uint64_t left_for_workspace(const struct plan_request *q, const struct plan *p)
{
    uint64_t memory = q->budget_bytes - p->total_bytes, address = q->address_budget - p->address_bytes;
    return p->workspace_bytes + (memory < address ? memory : address);
}

int capacity_plan(const struct model *m, struct engine_options *o, struct plan *out, struct err *err)
{
    struct device_memory memory;
    int n_slots = o->n_parallel < CAPACITY_MAX_SLOTS ? o->n_parallel : CAPACITY_MAX_SLOTS;
    if (o->context_length > m->config.n_ctx_declared)
        return err_set(err, ERR_INVALID, "--context-length %lld is above the model's declared context of %lld", (long long)o->context_length, (long long)m->config.n_ctx_declared);
    settle_rows(m, o, n_slots);
    TRY(device_memory(NULL, &memory, err));
    struct plan_request q = {.config = &m->config, .weight_bytes = m->weight_bytes, .cache_type = o->cache_type, .n_positions = o->context_length, .n_slots = n_slots,
                             .budget_bytes = memory.memory_free, .total_bytes = memory.memory_total, .source = memory.memory_source, .workspace_rows = o->chunk_rows,
                             .scratch_bytes = device_scratch_bytes(&o->device)};
    if (o->memory_limit && o->memory_limit < q.budget_bytes) {
        q.budget_bytes = o->memory_limit;
        q.source = "--memory-limit";
    }
    set_address(&q, m, &memory, &o->device);
    int64_t asked_rows = o->chunk_rows;
    uint64_t asked_bytes = runner_workspace_bytes(&m->config, asked_rows, n_slots > 0 ? n_slots : 1) + q.scratch_bytes;
    int rc = plan_make(&q, out, err);
    while (rc == ERR_CAPACITY && q.workspace_rows / 2 >= CAPACITY_MIN_CHUNK_ROWS) {
        struct err smaller;
        q.workspace_rows = o->device.max_rows = q.workspace_rows / 2;
        q.scratch_bytes = device_scratch_bytes(&o->device);
        rc = plan_make(&q, out, &smaller);
    }
    if (rc < 0)
        return rc; /* with the figures of what was asked */
    o->chunk_rows = o->device.max_rows = q.workspace_rows;
    if (q.workspace_rows < asked_rows)
        log_info("[qwen35] batched prefill: workspace for %lld rows needs %.0f MiB, %.0f MiB free; using %lld rows", (long long)asked_rows, MIB(asked_bytes), MIB(left_for_workspace(&q, out)),
                 (long long)q.workspace_rows);
    return 0;
}
