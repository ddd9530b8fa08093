/* One sequence's decode state on a device: KV rows up to a capacity, convolution window, recurrent matrices, length. Nothing else allocates model memory after start.
 * Address space for the served context is reserved once and pages are committed as it grows: growing moves nothing. Owned by the engine thread. */
#ifndef ENGINE_STATE_H
#define ENGINE_STATE_H

#include "model/forward.h"

#define STATE_MIN_CAPACITY 4096

struct state;

/* Takes address space only: no memory before the first state_reserve. max_positions: the served context. */
int state_create(const struct model_config *c, struct device *dev, enum kv_type type, int64_t max_positions, struct state **out, struct err *err) MUST_CHECK;
void state_free(struct state *s);
struct seq *state_seq(struct state *s);
int64_t state_length(const struct state *s);
int64_t state_capacity(const struct state *s);
uint64_t state_bytes(const struct state *s);   /* committed now */

/* MIN_CAPACITY doubled until it covers `positions`, clamped to `served`, never below `positions`. Pure. */
int64_t grown_capacity(int64_t positions, int64_t min_capacity, int64_t served);

/* The capacities that the last reserve tried to commit, in order. */
struct state_attempts {
    int n;
    int64_t capacity[4];
};
const struct state_attempts *state_attempts(const struct state *s);
/* Bytes that `positions` need beyond what is committed now. */
uint64_t state_missing_bytes(const struct state *s, int64_t positions);

/* Room for `positions`: [headroom, exact] as the contract's section 2 says, with its notice line when the headroom failed. Keeps what the state holds; never re-prefills.
 * ERR_CONTEXT_LENGTH above the served context, ERR_CAPACITY by name when the exact size fails too. */
int state_reserve(struct state *s, int64_t positions, struct err *err) MUST_CHECK;
/* The same without headroom: the one attempt that follows a reclaim. */
int state_reserve_exact(struct state *s, int64_t positions, struct err *err) MUST_CHECK;

/* Empty again: length 0, convolution and recurrent state zero; memory is kept. */
void state_reset(struct state *s);
/* Gives the pages above `positions` back (positions >= length). */
void state_shrink(struct state *s, int64_t positions);
/* Empty, and all memory given back. */
void state_release(struct state *s);
/* The recurrent part alone, for snapshots: copied out of and into a live state; KV rows above are cut. bytes = plan_state_bytes. Shared by whoever holds a reference, and then
 * never changed. */
struct state_snapshot;
int state_snapshot_take(const struct state *s, struct state_snapshot **out, struct err *err) MUST_CHECK;
/* The snapshot, of which there is one reference, becomes that of where the state is now; it was taken of a state of the same model. */
void state_snapshot_update(struct state_snapshot *snapshot, const struct state *s);
struct state_snapshot *state_snapshot_ref(struct state_snapshot *snapshot);
int state_snapshot_is_shared(const struct state_snapshot *snapshot);
void state_snapshot_free(struct state_snapshot *snapshot); /* lets go of one reference */
int64_t state_snapshot_position(const struct state_snapshot *snapshot);
uint64_t state_snapshot_bytes(const struct state_snapshot *snapshot);
const void *state_snapshot_data(const struct state_snapshot *snapshot);
/* The state goes back to the snapshot's position: position <= length of s, whose rows below are the same tokens (the caller's duty). */
int state_rewind(struct state *s, const struct state_snapshot *snapshot, struct err *err) MUST_CHECK;

/* to becomes what from was at the snapshot (NULL: what it is now): rows are copied, from is left as it is. Same model, device and row type; to has room for them already. */
int state_fork(struct state *to, const struct state *from, const struct state_snapshot *snapshot, struct err *err) MUST_CHECK;

/* The state as bytes on the host, for who keeps it elsewhere: the KV rows of positions [from, to), one array after the other, and the recurrent part, copied in whatever pieces.
 * What is written lies above the length until state_set_length says that it holds: rows below `length` (<= capacity) and the recurrent part were all written. */
struct state_shape {
    uint64_t row_bytes;           /* of one position in one array */
    uint64_t recurrent_bytes;
    uint32_t n_arrays;
};
struct state_shape state_shape(const struct state *s);
void state_read_rows(const struct state *s, int64_t from, int64_t to, uint64_t offset, void *host, size_t n);
void state_write_rows(struct state *s, int64_t from, int64_t to, uint64_t offset, const void *host, size_t n);
void state_write_recurrent(struct state *s, uint64_t offset, const void *host, size_t n);
void state_set_length(struct state *s, int64_t length);
void state_snapshot_read(const struct state_snapshot *snapshot, uint64_t offset, void *host, size_t n);

/* How often the state became another than the one before and what follows it, and how many of its positions stayed the last time. Who reads rows over several steps can tell whether
 * they still are what they were. */
struct state_cuts {
    uint64_t n;
    int64_t kept;
};
struct state_cuts state_cuts(const struct state *s);

#endif
