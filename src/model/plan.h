/* The memory arithmetic as data: one line a part, all from metadata. Printing, refusing and planning read the same numbers. Pure. */
#ifndef MODEL_PLAN_H
#define MODEL_PLAN_H

#include "base/buf.h"
#include "compute/device.h"
#include "model/config.h"

#define PLAN_SNAPSHOTS 5          /* wanted for each sequence: points a conversation may go back to */

struct plan {
    uint64_t weight_bytes;        /* mapped on the CPU: counted, reclaimable */
    uint64_t kv_bytes_per_position;
    int64_t n_positions;          /* served context */
    uint64_t state_bytes;         /* convolution and recurrent state of one sequence */
    int n_slots;
    int n_snapshots;              /* of state_bytes each, for each sequence: PLAN_SNAPSHOTS, or fewer where no more fit beside total_bytes, which leaves them out */
    uint64_t workspace_bytes;
    uint64_t overhead_bytes;
    uint64_t total_bytes;
    int64_t workspace_rows;
};

struct plan_request {
    const struct model_config *config;
    uint64_t weight_bytes;
    int64_t n_positions;          /* > 0: exactly this; 0: the largest that fits (beside the snapshots, where they fit), up to the declared context */
    int n_slots;
    uint64_t budget_bytes;        /* what may be used in all */
    uint64_t total_bytes;         /* of the device: tells exceeds_device from co_tenant */
    const char *source;           /* where the budget came from */
    int64_t workspace_rows;
    size_t scratch_bytes;         /* of the device */
};

uint64_t plan_kv_bytes_per_position(const struct model_config *c);
uint64_t plan_state_bytes(const struct model_config *c);

/* ERR_CAPACITY with the `capacity:` line of the contract when it does not fit (boundary inclusive). */
int plan_make(const struct plan_request *request, struct plan *out, struct err *err) MUST_CHECK;

/* One line a part, for people. */
int plan_write(const struct plan *p, struct buf *out);

#endif
