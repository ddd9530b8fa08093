/* Which sequence serves a request: a pure choice over what each holds. */
#ifndef ENGINE_SLOT_H
#define ENGINE_SLOT_H

#include <stdint.h>

struct slot_view {
    int is_busy;
    int is_saving;         /* what it holds is on its way to the disk: to change it means to wait */
    int64_t held;          /* tokens */
    int64_t common;        /* of the prompt's, from the beginning */
    int64_t reusable;      /* tokens of the prompt that need not be read again when it goes on from here; <= common */
    uint64_t idle_turns;   /* requests served elsewhere since this one was used */
};

struct slot_choice {
    int slot;              /* -1: all are busy */
    int donor;             /* to be copied from; -1 = the slot goes on from what it holds itself */
};

/* The cheapest way in tokens: those to be read, those that are lost with what the slot held (half: they may never be asked for again; less, the longer nobody has), and a little for
 * copying. So an empty slot is preferred, and a few words never throw a long conversation away while anything else can serve. A busy sequence may be a donor, never the slot. */
struct slot_choice slot_choose(const struct slot_view *views, int n, int64_t n_prompt);

/* The same for a prompt of which nothing is held: where the least is lost. */
struct slot_choice slot_choose_fresh(const struct slot_view *views, int n, int64_t n_prompt);

/* Which idle one gives its memory back first: the lowest of tokens held by turns idle; -1 when none holds any. `keep` (-1 = none) is spared. */
int slot_victim(const struct slot_view *views, int n, int keep);

#endif
