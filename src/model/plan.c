/* need = weights + KV bytes per position x positions + state x slots + workspace + overhead: checked sums of figures that come from metadata.
 * The KV rows are counted once, however many sequences share them. */
#include "model/plan.h"

#include <stdio.h>

#include "base/mem.h"
#include "model/forward.h"

#define MIB(bytes) ((double)(bytes) / 1048576.0)
#define OVERHEAD_BYTES (24u << 20) /* program, stacks, queues, buffers of connections */
#define PAGE_BYTES 4096

const char *plan_cache_name(enum kv_type type)
{
    static const char *const names[KV_N_TYPES] = {"f32", "f16", "q8_0"};
    return (unsigned)type < KV_N_TYPES ? names[type] : "?";
}

uint64_t plan_kv_bytes_per_position(const struct model_config *c, enum kv_type type)
{
    return (uint64_t)c->n_full * (uint64_t)c->n_head_kv * kv_head_bytes(type, c->d_head) * 2;
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

/* Logits twice over, and what is lost where every KV array ends within a page. */
static uint64_t sequence_bytes(const struct model_config *c)
{
    return sum(product((uint64_t)c->n_vocab, 2 * sizeof(float)), product((uint64_t)c->n_full * 2 + 4, PAGE_BYTES));
}

static void set_slots(struct plan *p, const struct plan_request *r, int n_slots)
{
    p->n_slots = n_slots;
    p->workspace_bytes = sum(runner_workspace_bytes(r->config, r->workspace_rows, n_slots), r->scratch_bytes);
    p->overhead_bytes = sum(OVERHEAD_BYTES, product(sequence_bytes(r->config), (uint64_t)n_slots));
}

/* Everything but the KV rows. */
static uint64_t fixed_bytes(const struct plan *p)
{
    return sum(sum(sum(p->weight_bytes, states_bytes(p)), snapshots_bytes(p)), sum(p->workspace_bytes, p->overhead_bytes));
}

static uint64_t kv_bytes(const struct plan *p)
{
    return product(p->kv_bytes_per_position, (uint64_t)p->n_positions);
}

static void add_up(struct plan *p, const struct plan_request *r)
{
    p->total_bytes = sum(fixed_bytes(p), kv_bytes(p));
    p->address_bytes = sum(sum(fixed_bytes(p), r->address_threads), product(kv_bytes(p), (uint64_t)p->n_slots));
}

static int fits(const struct plan *p, const struct plan_request *r)
{
    return p->total_bytes <= r->budget_bytes && p->address_bytes <= r->address_budget;
}

/* Positions of `per` bytes each beside what is fixed; 0 when none fit. */
static int64_t positions_within(const struct plan_request *r, uint64_t fixed, uint64_t budget, uint64_t per)
{
    uint64_t declared = (uint64_t)r->config->n_ctx_declared;
    if (fixed > budget)
        return 0;
    uint64_t n = per ? (budget - fixed) / per : declared;
    return (int64_t)(n > declared ? declared : n);
}

static int64_t positions_by_memory(const struct plan *p, const struct plan_request *r)
{
    return positions_within(r, fixed_bytes(p), r->budget_bytes, p->kv_bytes_per_position);
}

static int64_t positions_by_address(const struct plan *p, const struct plan_request *r)
{
    return positions_within(r, sum(fixed_bytes(p), r->address_threads), r->address_budget, product(p->kv_bytes_per_position, (uint64_t)p->n_slots));
}

static int64_t largest_context(const struct plan *p, const struct plan_request *r)
{
    int64_t memory = positions_by_memory(p, r), address = positions_by_address(p, r);
    return memory < address ? memory : address;
}

static int refuse(const struct plan *p, const struct plan_request *r, struct err *err)
{
    int by_memory = p->total_bytes > r->budget_bytes;
    uint64_t free_bytes = by_memory ? r->budget_bytes : r->address_budget, device = by_memory ? r->total_bytes : r->address_limit;
    int never = p->total_bytes > device || !by_memory; /* what a process is allowed is no one else's */
    int64_t largest = largest_context(p, r);
    char advice[200], kept[100] = "";
    if (!by_memory)
        snprintf(kept, sizeof kept, "%d sequence%s reserve%s KV in full and threads take %.0f MiB. ", p->n_slots, p->n_slots == 1 ? "" : "s", p->n_slots == 1 ? "s" : "", MIB(r->address_threads));
    if (largest > 0)
        snprintf(advice, sizeof advice, "%sThe largest context that fits is %lld: --context-length %lld", kept, (long long)largest, (long long)largest);
    else if (!by_memory)
        snprintf(advice, sizeof advice, "%sNo context fits: raise the limit on address space", kept);
    else
        snprintf(advice, sizeof advice, never ? "No context fits: use a smaller model or quantisation" : "No context fits now: free memory or raise --memory-limit");
    return err_set(err, ERR_CAPACITY,
                   "capacity: %s: weights %.0f MiB + KV %.0f MiB (%lld positions x %llu B at %s) + state %.0f MiB + workspace %.0f MiB + overhead %.0f MiB = %.0f MiB, "
                   "against %.0f MiB free of %.0f MiB (%s). %s",
                   never ? "exceeds_device" : "co_tenant", MIB(p->weight_bytes), MIB(kv_bytes(p)), (long long)p->n_positions, (unsigned long long)p->kv_bytes_per_position,
                   plan_cache_name(p->cache_type), MIB(states_bytes(p)), MIB(p->workspace_bytes), MIB(p->overhead_bytes), MIB(p->total_bytes), MIB(free_bytes), MIB(device),
                   by_memory ? r->source : DEVICE_ADDRESS_SOURCE, advice);
}

static uint64_t less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

/* Slots and snapshots, and the context in what they leave. They get a quarter of what is left to decode state: a long context is worth little where every turn starts anew. */
static void open_context(struct plan *p, const struct plan_request *r)
{
    uint64_t others = sum(p->weight_bytes, sum(p->workspace_bytes, p->overhead_bytes));
    uint64_t memory = less(r->budget_bytes, others), address = less(r->address_budget, sum(others, r->address_threads)), quarter = (memory < address ? memory : address) / 4;
    int n_slots = r->n_slots > 0 ? r->n_slots : PLAN_SLOTS;
    while (r->n_slots == 0 && n_slots > 1 && product(p->state_bytes, (uint64_t)n_slots) > quarter)
        n_slots--;
    set_slots(p, r, n_slots);
    p->n_snapshots = PLAN_SNAPSHOTS;
    while (p->n_snapshots > 0 && sum(states_bytes(p), snapshots_bytes(p)) > quarter)
        p->n_snapshots--;
    while (r->n_slots == 0 && p->n_slots > 1 && positions_by_address(p, r) < positions_by_memory(p, r)) /* reservations are for all of the context each */
        set_slots(p, r, p->n_slots - 1);
    p->n_positions = largest_context(p, r);
    p->n_snapshots = 0;
    if (p->n_positions < 1)
        p->n_positions = 1; /* refused, with the figures of the smallest */
}

static void add_slots(struct plan *p, const struct plan_request *r)
{
    while (r->n_slots == 0 && p->n_slots < PLAN_SLOTS) {
        struct plan more = *p;
        set_slots(&more, r, p->n_slots + 1);
        add_up(&more, r);
        if (!fits(&more, r))
            return;
        *p = more;
    }
}

/* As many as fit beside the rest. */
static void add_snapshots(struct plan *p, const struct plan_request *r)
{
    uint64_t memory = r->budget_bytes - p->total_bytes, address = r->address_budget - p->address_bytes, left = memory < address ? memory : address;
    while (p->n_snapshots < PLAN_SNAPSHOTS && product(states_bytes(p), (uint64_t)p->n_snapshots + 1) <= left)
        p->n_snapshots++;
    uint64_t least = sum(sum(kv_bytes(p), states_bytes(p)), sum(snapshots_bytes(p), product(sequence_bytes(r->config), (uint64_t)p->n_slots)));
    uint64_t others = product(kv_bytes(p), (uint64_t)p->n_slots - 1), free_bytes = less(r->budget_bytes, sum(p->total_bytes, snapshots_bytes(p)));
    p->more_kv_bytes = others < free_bytes ? others : free_bytes;
    p->state_budget_bytes = sum(least, p->more_kv_bytes);
}

static struct plan plan_with(const struct plan_request *r, enum kv_type type)
{
    struct plan p = {.weight_bytes = r->weight_bytes, .cache_type = type, .kv_bytes_per_position = plan_kv_bytes_per_position(r->config, type), .n_positions = r->n_positions,
                     .state_bytes = plan_state_bytes(r->config), .workspace_rows = r->workspace_rows};
    set_slots(&p, r, r->n_slots > 0 ? r->n_slots : 1);
    if (r->n_positions <= 0)
        open_context(&p, r);
    add_up(&p, r);
    return p;
}

static int check_cache_type(const struct plan_request *r, struct err *err)
{
    if (r->cache_type < PLAN_CACHE_AUTO || r->cache_type >= KV_N_TYPES)
        return err_set(err, ERR_INVALID, "there is no cache type %d", r->cache_type);
    if (r->cache_type == KV_Q8_0 && r->config->d_head % 32)
        return err_set(err, ERR_UNSUPPORTED, "--cache-type q8_0 needs heads of a multiple of 32 values, and this model's have %d: use f16", r->config->d_head);
    return 0;
}

int plan_make(const struct plan_request *r, struct plan *out, struct err *err)
{
    TRY(check_cache_type(r, err));
    struct plan p = plan_with(r, r->cache_type == PLAN_CACHE_AUTO ? KV_F32 : (enum kv_type)r->cache_type);
    int whole = fits(&p, r) && (r->n_positions > 0 || p.n_positions == r->config->n_ctx_declared);
    if (r->cache_type == PLAN_CACHE_AUTO && !whole)
        p = plan_with(r, KV_F16);
    if (!fits(&p, r))
        return refuse(&p, r, err);
    add_slots(&p, r);
    add_snapshots(&p, r);
    *out = p;
    return 0;
}

int plan_write(const struct plan *p, struct buf *out)
{
    buf_addf(out, "plan: weights   %10.1f MiB (mapped from the file)\n", MIB(p->weight_bytes));
    buf_addf(out, "plan: KV        %10.1f MiB at most (%lld positions x %llu B, %s; taken as used)\n", MIB(kv_bytes(p)), (long long)p->n_positions,
             (unsigned long long)p->kv_bytes_per_position, plan_cache_name(p->cache_type));
    buf_addf(out, "plan: state     %10.1f MiB (%d sequence%s)\n", MIB(states_bytes(p)), p->n_slots, p->n_slots == 1 ? "" : "s");
    buf_addf(out, "plan: workspace %10.1f MiB (%lld rows)\n", MIB(p->workspace_bytes), (long long)p->workspace_rows);
    buf_addf(out, "plan: overhead  %10.1f MiB\n", MIB(p->overhead_bytes));
    buf_addf(out, "plan: total     %10.1f MiB\n", MIB(p->total_bytes));
    buf_addf(out, "plan: snapshots %10.1f MiB more (%d a sequence, given back when a turn needs the memory)\n", MIB(snapshots_bytes(p)), p->n_snapshots);
    return buf_addf(out, "plan: more KV   %10.1f MiB more (so that each sequence may hold the whole context; the same)\n", MIB(p->more_kv_bytes));
}
