/* From flags and files to what the chat template sees. */
#ifndef CLI_PROMPT_H
#define CLI_PROMPT_H

#include "cli/common.h"

/* The file's template, or --template-file's. */
int prompt_load_template(struct cli *c, const struct gguf *g, const struct vocab *v, struct chat_template **out) MUST_CHECK;

/* The variables of a JSON file: an array of messages, or an object with messages. Messages are normalised; add_generation_prompt is true unless the file says
 * otherwise; --think and --no-think set enable_thinking. The caller owns *out. */
int prompt_vars_from_file(struct cli *c, const char *path, json_t **out) MUST_CHECK;

/* The same from an array of messages (borrowed). */
int prompt_vars(struct cli *c, const json_t *messages, json_t **out) MUST_CHECK;

#endif
