/* Places a timeline can go back to: snapshots of the recurrent state at token positions, few and well chosen. Attention rows can be cut anywhere, recurrent state cannot. */
#ifndef ENGINE_SNAPSHOT_H
#define ENGINE_SNAPSHOT_H

#include "engine/state.h"

#define SNAPSHOTS_MAX 16
#define SNAPSHOT_MIN_GAP 32    /* tokens: reading fewer again costs no more than the extra pass that stopping for a snapshot takes */
#define SNAPSHOT_MIN_POSITION 8 /* the same for the first */
#define SNAPSHOT_INTERVAL 4096 /* tokens: long prompts have one at least so often */
#define SNAPSHOT_MARKS 4

struct snapshots {
    struct state_snapshot *at[SNAPSHOTS_MAX]; /* ascending positions */
    int n, max;
};

void snapshots_init(struct snapshots *set, int max);
void snapshots_clear(struct snapshots *set);
/* Drops what lies above `position`: the tokens there are no longer those that were read. */
void snapshots_cut(struct snapshots *set, int64_t position);
/* The newest at or below `position`; NULL when there is none. */
const struct state_snapshot *snapshots_newest(const struct snapshots *set, int64_t position);
/* Is it worth stopping at `position`, above all that are held, to take one? */
int snapshots_wanted(const struct snapshots *set, int64_t position);
/* Takes one where the state is now, unless there is one, in place of the one that is missed least when the set is full. Without memory for it there is just none. */
void snapshots_keep(struct snapshots *set, const struct state *s);

/* Which of n ascending positions to give up: the one whose loss costs the fewest tokens to read again. Pure. */
int snapshot_victim(const int64_t *positions, int n);

/* Where a conversation forks: before its second `fork` token (the end of the system and tools block) and before the last three (last user and assistant turns). Ascending
 * positions, at most SNAPSHOT_MARKS; returns how many. Pure. */
size_t snapshot_marks(const int32_t *ids, size_t n, int32_t fork, size_t out[SNAPSHOT_MARKS]);

#endif
