/* An engine on a small model, and what its requests answer. */
#ifndef SUPPORT_ENGINE_H
#define SUPPORT_ENGINE_H

#include "engine/engine.h"
#include "support/test.h"

#define HOST_MAX_IDS 8192

extern struct model *host_model;               /* r2-q8_0, declared context 8192: between host_load and host_unload, a group's setup and teardown */
extern int32_t host_prompt[HOST_MAX_IDS];      /* what host_params points to */

int host_load(void **state);
int host_unload(void **state);
struct engine *host_start(int n_parallel, int queue_max, int64_t context, int64_t chunk_rows);

/* Greedy, without an end of its own; fills host_prompt anew, with the same ids each time. */
struct request_params host_params(size_t n_prompt, int64_t max_tokens);
struct request *host_submit(struct engine *e, const struct request_params *p);
struct token_event host_next(struct request *r);

struct host_result {
    int32_t ids[HOST_MAX_IDS];
    int n;
    struct token_event last;
};
/* Takes everything up to the last event. */
struct host_result host_drain(struct request *r);
/* Submits, drains, releases. */
struct host_result host_run(struct engine *e, const struct request_params *p);
void host_same_ids(const struct host_result *a, const struct host_result *b);
void host_wait_idle(struct engine *e, double limit_ms);

#endif
