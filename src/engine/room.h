/* Memory for one turn, state and workspace together, in the contract's order: the state with headroom, then exactly; what can be read again given back and the exact size once
 * more; then rows for the prompt's chunks, for which the headroom is given up first, then what can be read again, and only then rows, by halves and never below ROOM_MIN_ROWS. */
#ifndef ENGINE_ROOM_H
#define ENGINE_ROOM_H

#include "engine/state.h"

#define ROOM_MIN_ROWS 32

struct room_request {
    struct state *state;
    struct runner *runner;
    int64_t positions;                               /* of the whole turn */
    int64_t rows;                                    /* wanted for a chunk; as many as the runner has at most */
    int64_t least_rows;                              /* never fewer: rows that others decode beside it, and one */
    uint64_t (*reclaim)(void *ctx, uint64_t bytes);  /* gives back at least `bytes` where it can; returns how many. May be NULL */
    void *ctx;
};

/* ERR_CONTEXT_LENGTH, ERR_CAPACITY by name; what the state holds is untouched then. */
int room_for_turn(const struct room_request *q, struct err *err) MUST_CHECK;

#endif
