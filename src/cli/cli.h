/* What the verbs share: the invocation, the options as an enum into the one table, and the way out. A verb returns 0 or a negative ERR_* with its sentence in c->err; only
 * main.c turns that into words and an exit status. */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include <jansson.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/opt.h"
#include "engine/engine.h"

enum { EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_DEVICE = 14 };

/* One bit each in the option table. */
enum verb_bit {
    VERB_INSPECT = 1 << 0, VERB_TENSORS = 1 << 1, VERB_VALIDATE = 1 << 2, VERB_TOKENIZE = 1 << 3, VERB_DETOKENIZE = 1 << 4, VERB_TEMPLATE = 1 << 5,
    VERB_RUN = 1 << 6, VERB_CHAT = 1 << 7, VERB_SERVE = 1 << 8, VERB_PLAN = 1 << 9, VERB_BENCH = 1 << 10, VERB_DEVICES = 1 << 11, VERB_LOGITS = 1 << 12,
    VERB_PERPLEXITY = 1 << 13, VERB_DEBUG = 1 << 14, VERB_GENERATE = 1 << 15, VERB_HELP = 1 << 16,
    VERB_ALL = (1 << 17) - 1
};

/* Index of the option's row in cli_options and of its value in cli->o. */
enum option {
    O_HELP, O_VERSION, O_JSON, O_VERBOSE, O_QUIET, O_MAN,
    O_HOST, O_PORT, O_PARALLEL, O_API_KEY, O_API_KEY_FILE, O_CORS, O_DRAIN_TIMEOUT, O_NO_METRICS, O_ALIAS, O_LIST_DEVICES, O_SESSION_DIR, O_SESSION_BUDGET,
    O_CONTEXT_LENGTH, O_MEMORY_LIMIT, O_CACHE_TYPE, O_DEBUG, O_THREADS, O_CPU_RUNG, O_EXACT, O_BACKEND, O_GPU_LAYERS, O_GPU, O_NO_GPU,
    O_TEMPERATURE, O_TOP_K, O_TOP_P, O_MIN_P, O_TYPICAL_P, O_REPETITION_PENALTY, O_PRESENCE_PENALTY, O_FREQUENCY_PENALTY, O_REPEAT_LAST_N, O_SEED, O_LOGIT_BIAS,
    O_MAX_TOKENS, O_STOP, O_SYSTEM, O_RAW, O_THINK, O_NO_THINK, O_SHOW_THINKING, O_MESSAGES, O_TEMPLATE_FILE,
    O_FILTER, O_FILE, O_NO_SPECIAL, O_SHOW_TOKENS, O_TOKENS_FILE, O_ROWS, O_OUTPUT, O_PROMPT_TOKENS, O_GEN_TOKENS, O_REPEAT,
    N_OPTIONS
};

extern const struct opt_spec cli_options[N_OPTIONS];

struct cli {
    const struct verb *verb;
    struct opt_value o[N_OPTIONS];
    char **args;          /* what is no option, n_args of them; NULL-terminated */
    int n_args;
    int usage;            /* the failure is the caller's wording: exit 2 */
    struct err err;
};

struct verb {
    const char *name;     /* "serve run" */
    uint64_t bit;
    const char *args;     /* "MODEL [TEXT]" */
    int min_args, max_args; /* max_args < 0: any number */
    const char *summary;
    const char *description;
    int (*run)(struct cli *c);
};

extern const struct verb cli_verbs[]; /* ends with name NULL */

int verb_inspect(struct cli *c);
int verb_tensors(struct cli *c);
int verb_validate(struct cli *c);
int verb_tokenize(struct cli *c);
int verb_detokenize(struct cli *c);
int verb_template(struct cli *c);
int verb_run(struct cli *c);
int verb_chat(struct cli *c);
int verb_serve_run(struct cli *c);
int verb_serve_plan(struct cli *c);
int verb_bench(struct cli *c);
int verb_devices(struct cli *c);
int verb_gpu(struct cli *c);
int verb_logits(struct cli *c);
int verb_perplexity(struct cli *c);
int verb_help(struct cli *c);
int verb_debug_tokenize(struct cli *c);
int verb_debug_detokenize(struct cli *c);
int verb_debug_template(struct cli *c);
int verb_debug_sample(struct cli *c);
int verb_debug_reply(struct cli *c);
int verb_debug_dequant(struct cli *c);
int verb_debug_generate(struct cli *c);

/* Sets c->err and c->usage; returns ERR_INVALID. */
int cli_usage(struct cli *c, const char *format, ...) PRINTF_LIKE(2, 3);

/* help.c: pages made of the two tables. */
void help_program(struct buf *out);
void help_verb(const struct verb *v, struct buf *out);
void help_man(struct buf *out);

#endif
