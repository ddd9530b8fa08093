/* Keeping snapshots. Invariant: positions ascend strictly, and each is a prefix of the tokens its session holds. */
#include "engine/snapshot.h"

void snapshots_init(struct snapshots *set, int max)
{
    *set = (struct snapshots){.max = max < 0 ? 0 : max > SNAPSHOTS_MAX ? SNAPSHOTS_MAX : max};
}

void snapshots_cut(struct snapshots *set, int64_t position)
{
    while (set->n > 0 && state_snapshot_position(set->at[set->n - 1]) > position)
        state_snapshot_free(set->at[--set->n]);
}

void snapshots_clear(struct snapshots *set)
{
    snapshots_cut(set, -1);
}

const struct state_snapshot *snapshots_newest(const struct snapshots *set, int64_t position)
{
    int i = set->n;
    while (i > 0 && state_snapshot_position(set->at[i - 1]) > position)
        i--;
    return i > 0 ? set->at[i - 1] : NULL;
}

int snapshots_wanted(const struct snapshots *set, int64_t position)
{
    if (set->n == 0)
        return set->max > 0 && position >= SNAPSHOT_MIN_POSITION;
    return position - state_snapshot_position(set->at[set->n - 1]) >= SNAPSHOT_MIN_GAP;
}

int snapshot_victim(const int64_t *positions, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        if (positions[i] - positions[i - 1] < positions[best] - (best ? positions[best - 1] : 0))
            best = i;
    return best;
}

/* Takes one out of a full set, for its memory. */
static struct state_snapshot *take_victim(struct snapshots *set)
{
    int64_t positions[SNAPSHOTS_MAX];
    for (int i = 0; i < set->n; i++)
        positions[i] = state_snapshot_position(set->at[i]);
    int victim = snapshot_victim(positions, set->n);
    struct state_snapshot *taken = set->at[victim];
    set->n--;
    for (int i = victim; i < set->n; i++)
        set->at[i] = set->at[i + 1];
    return taken;
}

void snapshots_keep(struct snapshots *set, const struct state *s)
{
    struct state_snapshot *snapshot = NULL;
    struct err ignored;
    if (set->max == 0 || state_length(s) == 0 || (set->n > 0 && state_snapshot_position(set->at[set->n - 1]) == state_length(s)))
        return;
    if (set->n == set->max) {
        snapshot = take_victim(set);
        state_snapshot_update(snapshot, s);
    } else if (state_snapshot_take(s, &snapshot, &ignored) < 0) {
        return;
    }
    set->at[set->n++] = snapshot;
}

size_t snapshot_marks(const int32_t *ids, size_t n, int32_t fork, size_t out[SNAPSHOT_MARKS])
{
    size_t n_marks = 0, first = 0;
    for (size_t i = n; i > 1 && n_marks < SNAPSHOT_MARKS - 1; i--)
        if (ids[i - 1] == fork)
            out[n_marks++] = i - 1;
    for (size_t i = 1; i < n && first == 0; i++)
        if (ids[i] == fork)
            first = i;
    if (n_marks > 0 && first < out[n_marks - 1])
        out[n_marks++] = first;
    for (size_t i = 0; i < n_marks / 2; i++) {
        size_t swap = out[i];
        out[i] = out[n_marks - 1 - i];
        out[n_marks - 1 - i] = swap;
    }
    return n_marks;
}
