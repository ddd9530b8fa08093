/* Logits of given tokens, straight through the model and without the engine: what `logits` and `perplexity` measure. One thread. */
#ifndef CLI_SCORE_H
#define CLI_SCORE_H

#include "cli/common.h"
#include "engine/state.h"

struct scorer {
    struct cli *c;
    struct model *model;
    struct device *device;
    struct runner *runner;
    struct state *state;
    int64_t n_rows;      /* of a forward */
};

/* Loads the model and takes a device and state for n_positions, planned first. score_close also after a failure. */
int score_open(struct cli *c, unsigned load_flags, struct scorer *s) MUST_CHECK;
int score_reserve(struct scorer *s, int64_t n_positions) MUST_CHECK;
void score_close(struct scorer *s);

/* logits [n_vocab] that follow ids[0..i]. Returns 0, or a negative code that ends the scoring. */
typedef int score_row(void *ctx, size_t i, const float *logits);

/* From an empty state: row(ctx, i, ...) for every i in [first, n). */
int score_ids(struct scorer *s, const int32_t *ids, size_t n, size_t first, score_row *row, void *ctx) MUST_CHECK;

#endif
