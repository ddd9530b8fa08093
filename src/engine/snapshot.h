/* Places a timeline can go back to: snapshots of the recurrent state at token positions, few and well chosen. Attention rows can be cut anywhere, recurrent state cannot. */
#ifndef ENGINE_SNAPSHOT_H
#define ENGINE_SNAPSHOT_H

#include "engine/state.h"

#define SNAPSHOTS_MAX 16
#define SNAPSHOT_MIN_GAP 32    /* tokens: reading fewer again costs no more than the extra pass that stopping for a snapshot takes */
#define SNAPSHOT_MIN_POSITION 8 /* the same for the first */
#define SNAPSHOT_INTERVAL 512 /* tokens: long prompts have one so often, until the set is full */
#define SNAPSHOT_MARKS 4

struct snapshots {
    struct state_snapshot *at[SNAPSHOTS_MAX]; /* ascending positions */
    int n, max;
    int64_t pinned; /* the position of one that other conversations may want too, the end of the system and tools block; 0 = none */
};

void snapshots_init(struct snapshots *set, int max);
void snapshots_clear(struct snapshots *set);
/* Drops what lies above `position`: the tokens there are no longer those that were read. */
void snapshots_cut(struct snapshots *set, int64_t position);
/* The newest at or below `position`; NULL when there is none. */
struct state_snapshot *snapshots_newest(const struct snapshots *set, int64_t position);
/* Is it worth stopping at `position`, above all that are held, to take one? */
int snapshots_wanted(const struct snapshots *set, int64_t position);
/* Takes one where the state is now, unless there is one, in place of the one that is missed least when the set is full. Without memory for it there is just none. */
void snapshots_keep(struct snapshots *set, const struct state *s);

/* Copies the references of those at or below `position` into an empty set. */
void snapshots_share(struct snapshots *to, const struct snapshots *from, int64_t position);
/* Lets go of all but the newest; returns the bytes that nobody holds any more. */
uint64_t snapshots_drop(struct snapshots *set);

/* Which of n >= 1 ascending positions to give up in a timeline of `length` tokens: never the last, not the pinned one while there is another, else the one whose neighbours are closest together for their distance from the
 * end, so that those kept grow sparser towards the beginning but reach back to it: to go back d tokens reads about a fixed share of d again. Pure. */
int snapshot_victim(const int64_t *positions, int n, int64_t length, int64_t pinned);

/* Where a conversation forks: before its second `fork` token (the end of the system and tools block) and before the last three (last user and assistant turns). Ascending
 * positions, at most SNAPSHOT_MARKS; returns how many. Pure. */
size_t snapshot_marks(const int32_t *ids, size_t n, int32_t fork, size_t out[SNAPSHOT_MARKS]);

#endif
