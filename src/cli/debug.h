/* Cases on standard input, one JSON object a line, answers the same way: for checking one room at a time from outside. */
#ifndef CLI_DEBUG_H
#define CLI_DEBUG_H

#include "cli/common.h"

/* Appends the answer to one case, one JSON object without a newline. */
typedef int debug_case(struct cli *c, void *ctx, const json_t *in, struct buf *out);

/* Each line (or each element of a line that is an array) through fn. A case that fails ends it, named by its number. */
int debug_each(struct cli *c, debug_case *fn, void *ctx) MUST_CHECK;
/* An answer that is a value; takes the reference. */
int debug_answer(struct cli *c, json_t *value, struct buf *out) MUST_CHECK;

#endif
