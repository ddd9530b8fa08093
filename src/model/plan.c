/* need = weights + KV bytes per position x positions + state x slots + workspace + overhead: checked sums of figures that come from metadata. */
#include "model/plan.h"

#include <stdio.h>

#include "base/mem.h"
#include "model/forward.h"

#define MIB(bytes) ((double)(bytes) / 1048576.0)
#define OVERHEAD_BYTES (24u << 20) /* program, stacks, queues, buffers of connections */
#define MIN_POSITIONS 4096         /* a context below this is not shortened for the sake of snapshots */

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

/* Sums and products that stop at the largest number: a plan that overflows never fits. */
static uint64_t sum(uint64_t a, uint64_t b)
{
    uint64_t out;
    return size_add(a, b, &out) ? UINT64_MAX : out;
}

static uint64_t product(uint64_t a, uint64_t b)
{
    uint64_t out;
    return size_mul(a, b, &out) ? UINT64_MAX : out;
}

static uint64_t states_bytes(const struct plan *p)
{
    return product(p->state_bytes, (uint64_t)p->n_slots);
}

static uint64_t snapshots_bytes(const struct plan *p)
{
    return product(states_bytes(p), (uint64_t)p->n_snapshots);
}

/* Everything but the KV rows. */
static uint64_t fixed_bytes(const struct plan *p)
{
    return sum(sum(sum(p->weight_bytes, states_bytes(p)), snapshots_bytes(p)), sum(p->workspace_bytes, p->overhead_bytes));
}

/* Of one position, over all sequences. */
static uint64_t position_bytes(const struct plan *p)
{
    return product(p->kv_bytes_per_position, (uint64_t)p->n_slots);
}

static uint64_t kv_bytes(const struct plan *p)
{
    return product(position_bytes(p), (uint64_t)p->n_positions);
}

/* The most positions that fit beside the rest; 0 when none do. */
static int64_t largest_context(const struct plan *p, const struct plan_request *r)
{
    uint64_t fixed = fixed_bytes(p), per = position_bytes(p), declared = (uint64_t)r->config->n_ctx_declared;
    if (fixed > r->budget_bytes)
        return 0;
    uint64_t n = per ? (r->budget_bytes - fixed) / per : declared;
    return (int64_t)(n > declared ? declared : n);
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
                   (unsigned long long)position_bytes(p), MIB(states_bytes(p)), MIB(p->workspace_bytes), MIB(p->overhead_bytes),
                   MIB(p->total_bytes), MIB(r->budget_bytes), MIB(r->total_bytes), r->source, advice);
}

/* As many as fit beside the rest. */
static int snapshots_that_fit(const struct plan *p, uint64_t budget_bytes)
{
    uint64_t left = budget_bytes - p->total_bytes;
    int n = 0;
    while (n < PLAN_SNAPSHOTS && product(states_bytes(p), (uint64_t)n + 1) <= left)
        n++;
    return n;
}

int plan_make(const struct plan_request *r, struct plan *out, struct err *err)
{
    const struct model_config *c = r->config;
    struct plan p = {.weight_bytes = r->weight_bytes, .kv_bytes_per_position = plan_kv_bytes_per_position(c), .n_slots = r->n_slots, .state_bytes = plan_state_bytes(c),
                     .workspace_rows = r->workspace_rows, .workspace_bytes = sum(runner_workspace_bytes(c, r->workspace_rows, r->n_slots), r->scratch_bytes),
                     .overhead_bytes = OVERHEAD_BYTES};
    if (r->n_positions > 0) {
        p.n_positions = r->n_positions;
    } else {
        p.n_snapshots = PLAN_SNAPSHOTS;
        p.n_positions = largest_context(&p, r);
        p.n_snapshots = 0;
        if (p.n_positions < MIN_POSITIONS && p.n_positions < c->n_ctx_declared)
            p.n_positions = largest_context(&p, r); /* too little is left: positions before snapshots */
        if (p.n_positions < 1)
            p.n_positions = 1; /* refused below, with the figures of the smallest */
    }
    p.total_bytes = sum(fixed_bytes(&p), kv_bytes(&p));
    if (p.total_bytes > r->budget_bytes)
        return refuse(&p, r, err);
    p.n_snapshots = snapshots_that_fit(&p, r->budget_bytes);
    *out = p;
    return 0;
}

int plan_write(const struct plan *p, struct buf *out)
{
    buf_addf(out, "plan: weights   %10.1f MiB (mapped from the file)\n", MIB(p->weight_bytes));
    buf_addf(out, "plan: KV        %10.1f MiB at most (%lld positions x %llu B, f32; taken as used)\n", MIB(kv_bytes(p)), (long long)p->n_positions,
             (unsigned long long)p->kv_bytes_per_position);
    buf_addf(out, "plan: state     %10.1f MiB (%d sequence%s)\n", MIB(states_bytes(p)), p->n_slots, p->n_slots == 1 ? "" : "s");
    buf_addf(out, "plan: workspace %10.1f MiB (%lld rows)\n", MIB(p->workspace_bytes), (long long)p->workspace_rows);
    buf_addf(out, "plan: overhead  %10.1f MiB\n", MIB(p->overhead_bytes));
    buf_addf(out, "plan: total     %10.1f MiB\n", MIB(p->total_bytes));
    return buf_addf(out, "plan: snapshots %10.1f MiB more (%d a sequence, given back when a turn needs the memory)\n", MIB(snapshots_bytes(p)), p->n_snapshots);
}
