/* Timelines to be stored, and folders to store them in. */
#ifndef SUPPORT_STORE_H
#define SUPPORT_STORE_H

#include "engine/store.h"
#include "support/model.h"

#define LINE_MAX_ENDS 6
#define LINE_TOKENS 600

/* A timeline with snapshots at `ends`, the last of which is where the session stands. */
struct line {
    struct session *s;
    int32_t ids[LINE_TOKENS];
    int64_t ends[LINE_MAX_ENDS];
    struct state_snapshot *at[LINE_MAX_ENDS];
    int n;
};

/* Tokens told by `seed`, but the first `common` of those of `other` (may be NULL). */
void line_make(struct line *line, struct rig *rig, uint64_t seed, const int64_t *ends, int n, const struct line *other, int64_t common);
void line_free(struct line *line);

struct shelf {
    char dir[32];
    uint64_t budget;
    struct hash_key model;
    struct store *st;
};

/* A fresh folder, open. */
void shelf_make(struct shelf *shelf, struct rig *rig, uint64_t budget);
void shelf_open(struct shelf *shelf);
void shelf_close(struct shelf *shelf);
void shelf_remove(struct shelf *shelf); /* closes, deletes the folder */
/* Stores the line up to its i-th end and waits for it; 1, or 0 when there was nothing to do. */
int shelf_save(struct shelf *shelf, const struct line *line, int i);
/* The files of segments: how many, and their bytes in all. There are none half written. */
int shelf_files(const struct shelf *shelf, uint64_t *bytes);
/* The file of the segment that ends at the line's i-th end. */
void shelf_path(const struct shelf *shelf, const struct line *line, int i, char out[128]);

/* What is stored of the line's first n tokens is loaded, again as long as loading fails, and is bit for bit what the line was there. Every failure leaves an empty state and a shorter match.
 * Returns how many tokens came. */
int64_t shelf_check(struct shelf *shelf, struct rig *rig, const struct line *line, int64_t n);
/* Is the state what the line was at that end? */
void line_same(const struct line *line, int i, const struct state *s);

#endif
