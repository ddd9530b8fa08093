/* need = weights + KV bytes per position x positions + state x slots + workspace + overhead: checked sums of figures that come from metadata. */
#include "model/plan.h"

#include <stdio.h>

#include "base/mem.h"
#include "model/forward.h"

#define MIB(bytes) ((double)(bytes) / 1048576.0)
#define OVERHEAD_BYTES (24u << 20) /* program, stacks, queues, buffers of connections */

uint64_t plan_kv_bytes_per_position(const struct model_config *c)
{
    return (uint64_t)c->n_full * (uint64_t)c->n_head_kv * (uint64_t)c->d_head * 2 * sizeof(float);
}

uint64_t plan_state_bytes(const struct model_config *c)
{
    uint64_t conv = (uint64_t)(c->n_conv - 1) * (uint64_t)config_n_channel(c);
    uint64_t recurrent = (uint64_t)c->n_head_v * (uint64_t)c->d_state * (uint64_t)c->d_state;
    return (uint64_t)c->n_linear * (conv + recurrent) * sizeof(float);
}

/* Everything but the KV rows. */
static uint64_t fixed_bytes(const struct plan *p)
{
    return p->weight_bytes + p->state_bytes * (uint64_t)p->n_slots + p->workspace_bytes + p->overhead_bytes;
}

static uint64_t kv_bytes(const struct plan *p)
{
    return p->kv_bytes_per_position * (uint64_t)p->n_positions * (uint64_t)p->n_slots;
}

/* The most positions that fit beside the rest; 0 when none do. */
static int64_t largest_context(const struct plan *p, const struct plan_request *r)
{
    uint64_t fixed = fixed_bytes(p), per = p->kv_bytes_per_position * (uint64_t)p->n_slots;
    if (fixed >= r->budget_bytes)
        return 0;
    uint64_t n = per ? (r->budget_bytes - fixed) / per : (uint64_t)r->config->n_ctx_declared;
    return n > (uint64_t)r->config->n_ctx_declared ? r->config->n_ctx_declared : (int64_t)n;
}

static int refuse(const struct plan *p, const struct plan_request *r, struct err *err)
{
    int64_t fits = largest_context(p, r);
    int never = p->total_bytes > r->total_bytes;
    char advice[160];
    if (fits > 0)
        snprintf(advice, sizeof advice, "The largest context that fits is %lld: --context-length %lld", (long long)fits, (long long)fits);
    else
        snprintf(advice, sizeof advice, never ? "No context fits: use a smaller model or quantisation" : "No context fits now: free memory or raise --memory-limit");
    return err_set(err, ERR_CAPACITY,
                   "capacity: %s: weights %.0f MiB + KV %.0f MiB (%lld positions x %llu B at f32) + state %.0f MiB + workspace %.0f MiB + overhead %.0f MiB = %.0f MiB, "
                   "against %.0f MiB free of %.0f MiB (%s). %s",
                   never ? "exceeds_device" : "co_tenant", MIB(p->weight_bytes), MIB(kv_bytes(p)), (long long)p->n_positions,
                   (unsigned long long)(p->kv_bytes_per_position * (uint64_t)p->n_slots), MIB(p->state_bytes * (uint64_t)p->n_slots), MIB(p->workspace_bytes), MIB(p->overhead_bytes),
                   MIB(p->total_bytes), MIB(r->budget_bytes), MIB(r->total_bytes), r->source, advice);
}

int plan_make(const struct plan_request *r, struct plan *out, struct err *err)
{
    const struct model_config *c = r->config;
    struct plan p = {.weight_bytes = r->weight_bytes, .kv_bytes_per_position = plan_kv_bytes_per_position(c), .n_slots = r->n_slots, .state_bytes = plan_state_bytes(c),
                     .workspace_rows = r->workspace_rows, .workspace_bytes = runner_workspace_bytes(c, r->workspace_rows, r->n_slots) + r->scratch_bytes,
                     .overhead_bytes = OVERHEAD_BYTES};
    if (r->n_positions > 0) {
        p.n_positions = r->n_positions;
    } else {
        p.n_positions = largest_context(&p, r);
        if (p.n_positions < 1)
            p.n_positions = 1; /* refused below, with the figures of the smallest */
    }
    p.total_bytes = fixed_bytes(&p) + kv_bytes(&p);
    if (p.total_bytes > r->budget_bytes)
        return refuse(&p, r, err);
    *out = p;
    return 0;
}

int plan_write(const struct plan *p, struct buf *out)
{
    buf_addf(out, "plan: weights   %10.1f MiB (mapped from the file)\n", MIB(p->weight_bytes));
    buf_addf(out, "plan: KV        %10.1f MiB at most (%lld positions x %llu B, f32; taken as used)\n", MIB(kv_bytes(p)), (long long)p->n_positions,
             (unsigned long long)p->kv_bytes_per_position);
    buf_addf(out, "plan: state     %10.1f MiB (%d sequence%s)\n", MIB(p->state_bytes * (uint64_t)p->n_slots), p->n_slots, p->n_slots == 1 ? "" : "s");
    buf_addf(out, "plan: workspace %10.1f MiB (%lld rows)\n", MIB(p->workspace_bytes), (long long)p->workspace_rows);
    buf_addf(out, "plan: overhead  %10.1f MiB\n", MIB(p->overhead_bytes));
    return buf_addf(out, "plan: total     %10.1f MiB\n", MIB(p->total_bytes));
}
