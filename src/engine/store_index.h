/* The index of a folder of segments, an SQLite file in it: what is there and when it was used last, so that a start need not look into every file. It is a cache of the folder and
 * nothing more: lost or damaged, it is made again from the files. One thread at a time. */
#ifndef ENGINE_STORE_INDEX_H
#define ENGINE_STORE_INDEX_H

#include "engine/store_tree.h"

struct store_index;

#define INDEX_FILE "index.db"

typedef void store_index_row(void *ctx, const struct segment *s);

/* Opens or makes the index of the folder at `path` (absolute, without links; also open as dir) and tells its rows. A damaged one, or another program's, is put aside and begun
 * again, with a line on the log; 0 rows then. NULL when there can be none: the line on the log says so, and all functions below do nothing. */
struct store_index *store_index_open(const char *path, int dir, store_index_row *row, void *ctx);
void store_index_close(struct store_index *x);

/* Many changes between begin and end are one transaction. The first that fails is on the log, the others are not. */
void store_index_begin(struct store_index *x);
void store_index_end(struct store_index *x);
void store_index_put(struct store_index *x, const struct segment *s);
void store_index_remove(struct store_index *x, struct hash_key key);

#endif
