/* From what was asked and what is free to the plan: before anything big is taken, and without the weights. */
#ifndef ENGINE_CAPACITY_H
#define ENGINE_CAPACITY_H

#include "engine/engine.h"

#define CAPACITY_MAX_SLOTS 16
#define CAPACITY_CHUNK_ROWS 512     /* of a prompt's chunk, where nothing was asked */
#define CAPACITY_MIN_CHUNK_ROWS 32

/* Settles options->chunk_rows and the device's max_rows and max_n_in: 512 rows a chunk unless asked, halved down to 32 while that is what does not fit (slower
 * prompts, never one token at a time). ERR_INVALID above the declared context; ERR_CAPACITY with the figures of what was asked. */
int capacity_plan(const struct model *m, struct engine_options *options, struct plan *out, struct err *err) MUST_CHECK;

#endif
