/* Keeping snapshots. Invariant: positions ascend strictly, and each is a prefix of the tokens its session holds. */
#include "engine/snapshot.h"

#define NEARLY_FREE 64 /* tokens: reading so few again is no loss, however near the end it happens */

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

struct state_snapshot *snapshots_newest(const struct snapshots *set, int64_t position)
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

int snapshot_victim(const int64_t *positions, int n, int64_t length, int64_t pinned)
{
    int best = -1;
    double best_value = 0;
    for (int i = 0; i + 1 < n; i++) {
        int64_t before = i ? positions[i - 1] : 0, gap = positions[i + 1] - before; /* tokens between the two that stay */
        double value = (double)gap / (double)(length - before + NEARLY_FREE);
        if (positions[i] != pinned && (best < 0 || value < best_value)) {
            best = i;
            best_value = value;
        }
    }
    return best < 0 ? 0 : best;
}

/* Takes one out of a full set. */
static struct state_snapshot *take_victim(struct snapshots *set, int64_t length)
{
    int64_t positions[SNAPSHOTS_MAX];
    for (int i = 0; i < set->n; i++)
        positions[i] = state_snapshot_position(set->at[i]);
    int victim = snapshot_victim(positions, set->n, length, set->pinned);
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
        snapshot = take_victim(set, state_length(s));
        if (state_snapshot_is_shared(snapshot)) {
            state_snapshot_free(snapshot);
            snapshot = NULL;
        } else {
            state_snapshot_update(snapshot, s);
        }
    }
    if (snapshot || state_snapshot_take(s, &snapshot, &ignored) == 0)
        set->at[set->n++] = snapshot;
}

void snapshots_share(struct snapshots *to, const struct snapshots *from, int64_t position)
{
    for (int i = 0; i < from->n && to->n < to->max && state_snapshot_position(from->at[i]) <= position; i++)
        to->at[to->n++] = state_snapshot_ref(from->at[i]);
}

uint64_t snapshots_drop(struct snapshots *set)
{
    uint64_t bytes = 0;
    for (int i = 0; i + 1 < set->n; i++) {
        if (!state_snapshot_is_shared(set->at[i]))
            bytes += state_snapshot_bytes(set->at[i]);
        state_snapshot_free(set->at[i]);
    }
    if (set->n > 1) {
        set->at[0] = set->at[set->n - 1];
        set->n = 1;
    }
    return bytes;
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
