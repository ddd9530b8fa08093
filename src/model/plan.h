/* The memory arithmetic as data: one line a part, all from metadata. Printing, refusing and planning read the same numbers. Pure. */
#ifndef MODEL_PLAN_H
#define MODEL_PLAN_H

#include "base/buf.h"
#include "compute/device.h"
#include "model/config.h"

#define PLAN_SNAPSHOTS 8          /* wanted for each sequence: points a conversation may go back to */
#define PLAN_SLOTS 4              /* sequences decoded together where nothing was asked and their states fit */
#define PLAN_CACHE_AUTO (-1)      /* f32 where it fits, else f16 */

struct plan {
    uint64_t weight_bytes;        /* mapped on the CPU: counted, reclaimable */
    enum kv_type cache_type;
    uint64_t kv_bytes_per_position; /* at cache_type, over all full-attention layers */
    int64_t n_positions;          /* served context. Its KV rows are counted once: the sequences share them */
    uint64_t state_bytes;         /* convolution and recurrent state of one sequence */
    int n_slots;
    int n_snapshots;              /* of state_bytes each, for each sequence: PLAN_SNAPSHOTS, or fewer where no more fit beside total_bytes, which leaves them out */
    uint64_t workspace_bytes;
    uint64_t overhead_bytes;
    uint64_t total_bytes;
    int64_t workspace_rows;
    uint64_t more_kv_bytes;       /* beside total_bytes and the snapshots: KV rows with which each sequence may hold the served context, as far as there is room */
    uint64_t state_budget_bytes;  /* KV rows, states, snapshots and each sequence's own buffers: what decode state may take in all */
    uint64_t address_bytes;       /* of address space, weights and threads included: every sequence reserves KV rows for the whole served context */
};

struct plan_request {
    const struct model_config *config;
    uint64_t weight_bytes;
    int cache_type;               /* enum kv_type, or PLAN_CACHE_AUTO */
    int64_t n_positions;          /* > 0: exactly this; 0: the largest that fits, up to the declared context, where at most a quarter of what the fixed parts leave goes to
                                   * states and snapshots */
    int n_slots;                  /* 0: PLAN_SLOTS, or fewer where their states do not fit beside the rest */
    uint64_t budget_bytes;        /* what may be used in all */
    uint64_t total_bytes;         /* of the device: tells exceeds_device from co_tenant */
    const char *source;           /* where the budget came from */
    uint64_t address_budget;      /* address space for the weights and all that comes after; UINT64_MAX when unlimited */
    uint64_t address_limit;       /* of the process, for the sentence */
    uint64_t address_threads;     /* that stacks and such take of it, besides the plan's parts */
    int64_t workspace_rows;
    size_t scratch_bytes;         /* of the device */
};

const char *plan_cache_name(enum kv_type type); /* "f32", "f16", "q8_0" */

/* Over all full-attention layers. q8_0 only where d_head is a multiple of 32. */
uint64_t plan_kv_bytes_per_position(const struct model_config *c, enum kv_type type);
uint64_t plan_state_bytes(const struct model_config *c);

/* ERR_CAPACITY with the `capacity:` line of the contract when it does not fit (boundary inclusive). ERR_UNSUPPORTED for a cache type that the model cannot have. */
int plan_make(const struct plan_request *request, struct plan *out, struct err *err) MUST_CHECK;

/* One line a part, for people. */
int plan_write(const struct plan *p, struct buf *out);

#endif
