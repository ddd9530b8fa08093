/* A model ready to answer and one answer from it, as `run` and `chat` show it: text to standard output as it comes, reasoning to standard error or nowhere.
 * One thread. */
#ifndef CLI_TALK_H
#define CLI_TALK_H

#include "cli/common.h"
#include "engine/answer.h"

struct talk {
    struct cli *c;
    struct model *model;
    struct chat_template *template_file; /* --template-file's; else NULL */
    struct engine *engine;
    struct sample_params sampling;
    struct logit_bias bias[OPT_LIST_MAX];
    int show_reasoning, dim_reasoning;   /* on standard error */
    int show_progress;                   /* of a long prompt, on standard error */
    int quiet;                           /* collect only: --json */
    int terminal;                        /* standard output is one: control characters are made harmless */
};

/* Device resolution, loading, engine. talk_close also after a failure. */
int talk_open(struct cli *c, struct talk *t) MUST_CHECK;
void talk_close(struct talk *t);

/* A line for the person, on standard error unless -q. */
void talk_note(const struct talk *t, const char *format, ...) PRINTF_LIKE(2, 3);

struct talk_answer {
    struct buf text, reasoning;
    struct buf calls;                    /* {"name": ..., "arguments": ...} with ", " between, arguments as the model wrote them */
    struct ids prompt_ids, ids;
    const char *finish_reason;
    char stop[200];                      /* the stop string that ended it, or "" */
    int64_t n_prompt, n_cached, n_generated;
    double prefill_ms, decode_ms;
};

void talk_answer_init(struct talk_answer *a);
void talk_answer_free(struct talk_answer *a);

/* vars: what the template sees. Interrupted by talk_interrupt: finish_reason "cancelled". */
int talk_chat(struct talk *t, const json_t *vars, struct talk_answer *a) MUST_CHECK;
int talk_complete(struct talk *t, const char *text, size_t n, struct talk_answer *a) MUST_CHECK;

/* One JSON object on a line, to standard output; turn 0: none is named. */
int talk_print_json(struct cli *c, const struct talk_answer *a, int turn) MUST_CHECK;
/* "prompt 20 tokens (0 cached) in 12 ms, 1667 tok/s; answer 10 tokens in 35 ms, 286 tok/s" to standard error with -v */
void talk_print_rates(const struct talk_answer *a);

/* SIGINT from now on stops the answer in progress instead of the program. */
void talk_catch_interrupts(void);
/* Whether SIGINT came since the last call. */
int talk_interrupted(void);
int talk_interrupt_waits(void); /* looks, and leaves it */

#endif
