/* What a folder of segments holds, in memory: a forest in which a child begins where its parent ends. One owner at a time: the store's lock. */
#ifndef ENGINE_STORE_TREE_H
#define ENGINE_STORE_TREE_H

#include "base/hash.h"
#include "base/err.h"

enum segment_status {
    SEGMENT_WRITING,             /* its file is not there yet */
    SEGMENT_READY,
    SEGMENT_DEAD                 /* no longer looked at; its file is to go */
};

struct segment {
    struct hash_key key, parent_key, model;
    struct segment *parent;      /* NULL at the beginning of a timeline */
    int64_t from, to;
    uint64_t bytes;              /* of its file */
    uint64_t last_used;          /* by the tree's clock */
    enum segment_status status;
    int n_children;              /* that are in the tree, whatever their status */
    int pins;                    /* who writes or loads it: until then it stays in the tree */
    int is_touched;              /* last_used is newer than in the index */
    int is_seen;                 /* while the folder is read: its file is there */
    int is_stuck;                /* its file could not be removed this time */
    int has_file;                /* under its own name */
    int is_thin;                 /* without the recurrent state */
    uint64_t thin_bytes;         /* what its file then has; 0 = there is no such state */
    uint64_t walk;               /* the last of tree_longest's that came through here */
    int is_awaiting;             /* a child is not ready (tree_victim's note) */
};

struct tree {
    struct segment **at;         /* ascending `to`: parents before their children */
    size_t n, cap;
    uint64_t bytes;              /* of all in it */
    uint64_t clock;
    uint64_t walks;
};

void tree_free(struct tree *t);
/* A copy of *segment, whose parent is in the tree or NULL (until tree_link); NULL without memory, or when there is one with its key. */
struct segment *tree_add(struct tree *t, const struct segment *segment);
/* s has no children. A thin one that loses its last with it is of no use to anybody, and dead. */
void tree_remove(struct tree *t, struct segment *s);
struct segment *tree_get(const struct tree *t, struct hash_key key);

enum tree_use {
    TREE_LOAD,                   /* it is ready with all that it builds on, and not thin */
    TREE_CONTINUE                /* something may build on it, if only once it is written */
};
/* The one with the longest beginning of tokens[0, n) that is of use; NULL = none. *key (may be NULL) becomes that of all n. */
struct segment *tree_longest(struct tree *t, struct hash_key model, const int32_t *tokens, int64_t n, enum tree_use use, struct hash_key *key);

/* It and all that it builds on are used now; are pinned. */
void tree_touch(struct tree *t, struct segment *s);
void tree_pin(struct segment *s, int by);
/* It and all that build on it are dead. Returns how many. */
int tree_kill(struct tree *t, struct segment *s);
/* After segments were added in any order without parents: looks these up, and kills those that lack one, or that are thin without children. Returns how many of the
 * former there were. */
int tree_link(struct tree *t);

/* What to give up next; NULL = nothing. First the recurrent states (*thin) where one conversation only passed through and did not fork, then the ends of conversations. Of each those not
 * used for longest, nothing pinned, nothing stuck. */
struct segment *tree_victim(const struct tree *t, int *thin);
void tree_set_thin(struct tree *t, struct segment *s);
/* Dead, without children and pins, and not stuck; NULL = none. */
struct segment *tree_dead(const struct tree *t);

#endif
