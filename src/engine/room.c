/* Invariant: whatever is refused, the state holds the tokens it held, and the workspace the rows that a running batch needs. */
#include "engine/room.h"

#include "base/log.h"
#include "base/mem.h"

#define MIB(bytes) ((double)(bytes) / 1048576.0)

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static uint64_t reclaim(const struct room_request *q, uint64_t bytes)
{
    return q->reclaim ? q->reclaim(q->ctx, bytes) : 0;
}

static int room_for_state(const struct room_request *q, struct err *err)
{
    int rc = state_reserve(q->state, q->positions, err);
    if (rc != ERR_CAPACITY)
        return rc;
    uint64_t given = runner_trim_rows(q->runner, q->least_rows);
    given += reclaim(q, state_missing_bytes(q->state, q->positions));
    return given ? state_reserve_exact(q->state, q->positions, err) : rc;
}

static uint64_t rows_bytes(const struct runner *r, int64_t rows)
{
    return runner_workspace_bytes(&runner_model(r)->config, rows, runner_max_logit_rows(r));
}

/* Headroom goes before rows do. */
static int give_up_headroom(const struct room_request *q)
{
    int64_t headroom = state_capacity(q->state);
    if (headroom <= q->positions)
        return 0;
    state_shrink(q->state, q->positions);
    log_info("[qwen35] decode state: %lld positions would not allocate, sized to the turn (%lld) instead (#4443)", (long long)headroom, (long long)q->positions);
    return 1;
}

/* That the workspace could take now, with what it has. */
static uint64_t bytes_left(const struct runner *r)
{
    struct device_memory memory;
    struct err ignored;
    uint64_t left = mem_left(MEM_WORKSPACE);
    if (device_memory(runner_device(r), &memory, &ignored) == 0 && memory.memory_free < left)
        left = memory.memory_free;
    return left + mem_bytes(MEM_WORKSPACE);
}

static int room_for_rows(const struct room_request *q, struct err *err)
{
    int64_t most = smaller(q->rows, runner_max_rows(q->runner)), least = smaller(ROOM_MIN_ROWS, most), rows = most;
    if (least < q->least_rows)
        least = q->least_rows;
    int rc = runner_reserve_rows(q->runner, rows, err);
    if (rc == ERR_CAPACITY && give_up_headroom(q))
        rc = runner_reserve_rows(q->runner, rows, err);
    if (rc == ERR_CAPACITY && reclaim(q, rows_bytes(q->runner, rows)) > 0)
        rc = runner_reserve_rows(q->runner, rows, err);
    uint64_t left = rc == ERR_CAPACITY ? bytes_left(q->runner) : 0;
    while (rc == ERR_CAPACITY && rows > least) {
        rows = rows / 2 > least ? rows / 2 : least;
        rc = runner_reserve_rows(q->runner, rows, err);
    }
    if (rc == 0 && rows < most)
        log_info("[qwen35] batched prefill: workspace for %lld rows needs %.1f MiB, %.1f MiB free; using %lld rows", (long long)most, MIB(rows_bytes(q->runner, most)), MIB(left),
                 (long long)rows);
    return rc;
}

int room_for_turn(const struct room_request *q, struct err *err)
{
    int64_t held = state_capacity(q->state);
    TRY(room_for_state(q, err));
    int rc = room_for_rows(q, err);
    if (rc < 0)
        state_shrink(q->state, held);
    return rc;
}
