/* Conversations on their way to and from the disk, a few pieces between the steps: what runs hardly notices. All of it does nothing without a store. The engine thread's. */
#ifndef ENGINE_DISK_H
#define ENGINE_DISK_H

#include "engine/engine.h"
#include "engine/store.h"

#define DISK_WRITINGS 4        /* of one slot, on their way at once; what comes then is not saved */
#define DISK_MIN_TOKENS 64     /* shorter conversations are not worth a file, nor fewer tokens less to read a load */

struct request;
struct slot;

/* Opens the store that the options name. */
int disk_open(struct engine *e, struct err *err) MUST_CHECK;
/* Gives the store what is on its way, for some seconds at most, and ends. */
void disk_close(struct engine *e);

/* The prompt is read: begins to save it up to where the next turn can go on from, whatever becomes of the answer in it. */
void disk_save_prompt(struct engine *e, int slot);
/* The turn is over: the same for all that its session holds now. */
void disk_save_turn(struct engine *e, int slot);
/* Some of what it holds is not on disk yet. */
int disk_is_saving(const struct slot *s);
/* And the disk has taken nothing of it for a while. */
int disk_is_stuck(const struct slot *s);

/* Where the store knows more of the request's prompt than `reusable` tokens, by enough to be worth it: how many; else 0. */
int64_t disk_find(struct engine *e, const struct request *r, int64_t reusable, struct store_match *match);
/* Begins to fill the slot's session, which has room, with the match. Where that cannot be (the match is gone meanwhile, memory is short), a line on the log says so, the slot has no load
 * and its session is empty. */
void disk_load(struct engine *e, int slot, const struct store_match *match);
void disk_cancel_load(struct slot *s);

/* Moves what is on its way for a while. A slot whose load ended, one way or the other, is handed to `loaded`. Returns whether anything moved. */
int disk_step(struct engine *e, void (*loaded)(struct engine *e, int slot));

#endif
