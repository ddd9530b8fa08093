/* Conversations on disk, so that they survive a restart. A folder holds segments, one file each: the tokens [from, to) of a timeline, their KV rows and the recurrent state at `to`.
 * A segment's name is the hash of all its tokens [0, to) and of the model, and it names the segment that ends at `from`: conversations that fork share their beginning, and a turn
 * writes only what is new. The folder holds at most the budget: to keep to it, recurrent states where a conversation only passed through are given up first, then the ends of
 * conversations, always what was not used for longest. What is found there is believed only as far as its checksums and token ids prove it: everything else costs a line on the log and
 * reading the tokens again, never a wrong answer.
 *
 * All functions are the engine thread's; a thread of the store's own does the writing, and only loading waits for the disk. Nothing here ends a turn: what cannot be saved is not. */
#ifndef ENGINE_STORE_H
#define ENGINE_STORE_H

#include "base/hash.h"
#include "engine/state.h"
#include "engine/store_stats.h"

struct store;

/* What decides a state's numbers: the model's metadata, tensor table, size and samples of its weights, the device's arithmetic, the row type, this version of the program. */
struct hash_key store_fingerprint(const struct model *m, const struct device *dev, enum kv_type type);

struct store_options {
    const char *dir;             /* made with mode 0700 when missing */
    uint64_t budget_bytes;       /* of all segments in it, other models' too */
    struct hash_key model;       /* store_fingerprint */
    void (*wake)(void *ctx);     /* from the store's thread: a piece that had to wait can be given now. May be NULL; must not call the store */
    void *ctx;
};

/* ERR_NOT_FOUND, ERR_INVALID (no folder, others may write there), ERR_BUSY (another process has it) or ERR_IO, naming the folder and the way out. */
int store_open(const struct store_options *options, struct store **out, struct err *err) MUST_CHECK;
/* Waits up to so long for what was given to be on disk, and drops the rest. Every writing and load has ended before. */
void store_close(struct store *st, int deadline_ms);
/* Waits up to so long until there is nothing left to write; 1 when there is not. */
int store_wait(struct store *st, int ms);

/* ---- saving ---- */

/* A segment on its way: begun, given piece by piece between steps, complete with the last piece. */
struct store_writing;

/* Begins to save `s` as it was at the snapshot; tokens[0, its position) are what s holds. Only what follows the longest beginning that is stored (or on its way) will be written.
 * NULL when all of it is, and when it cannot be saved. Keeps a reference to the snapshot. */
struct store_writing *store_begin(struct store *st, const struct state *s, const int32_t *tokens, struct state_snapshot *at);

enum store_progress {
    STORE_LATER,                 /* nothing was copied: the disk is behind. Try at the next step, or when woken */
    STORE_MORE,                  /* a piece (STORE_PIECE_BYTES at most) was copied; there are more */
    STORE_OVER                   /* all are copied, or saving failed, or s went back below the snapshot: the writing is no longer the caller's */
};
#define STORE_PIECE_BYTES (256 << 10)
#define STORE_QUEUE_BYTES (8 << 20) /* copied and not written yet, at most */

/* s: the state given to store_begin. */
enum store_progress store_piece(struct store_writing *w, const struct state *s);
/* The state will go away: nothing of the segment is kept. NULL is fine. */
void store_abandon(struct store_writing *w);

/* ---- loading ---- */

struct store_match {
    int64_t n;                   /* tokens; 0 = nothing is stored of them */
    struct hash_key key;
};

/* The longest stored beginning of tokens[0, n). From memory, microseconds. There are no logits in it: leave at least one token to be read behind it, i.e. ask for one fewer. */
struct store_match store_find(struct store *st, const int32_t *tokens, size_t n);

/* A load in progress; the state is its until it ends. */
struct store_load;

/* Begins to fill s with a match of these tokens (borrowed until the load ends). s has room for match->n positions; what it held is forgotten (a session's state: session_reset before,
 * session_adopt after). Any error, here and below, leaves s empty: the tokens are to be read instead. The file that was to blame is gone then, and a line on the log says why. */
int store_load_begin(struct store *st, const struct store_match *match, const int32_t *tokens, struct state *s, struct store_load **out, struct err *err) MUST_CHECK;
/* Reads one piece: 1 = there are more; 0 = s holds match->n positions; negative = failed. The load has ended unless 1. */
int store_load_step(struct store_load *load, struct err *err) MUST_CHECK;
/* Ends it early; s is empty. NULL is fine. */
void store_load_cancel(struct store_load *load);
/* All of it at once. */
int store_load(struct store *st, const struct store_match *match, const int32_t *tokens, struct state *s, struct err *err) MUST_CHECK;

/* Any thread. */
void store_stats(struct store *st, struct store_stats *out);

#endif
