/* apr run: one prompt, one answer. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/prompt.h"
#include "cli/talk.h"

/* The prompt's text: the argument, or standard input without its last newline. */
static int read_prompt(const struct talk *t, struct buf *out)
{
    struct cli *c = t->c;
    if (c->n_args > 1) {
        buf_init(out, MEM_TEXT, INPUT_MAX);
        buf_add_str(out, c->args[1]);
        return out->failed ? err_set(&c->err, out->failed, "the prompt is too large") : 0;
    }
    if (isatty(STDIN_FILENO))
        talk_note(t, "reading the prompt from the terminal; Ctrl-D ends it");
    TRY(cli_read_input(c, "-", out));
    if (out->len > 0 && out->data[out->len - 1] == '\n')
        out->data[--out->len] = 0;
    return 0;
}

static int vars_from_prompt(struct cli *c, const struct buf *prompt, json_t **vars)
{
    json_t *messages = json_array();
    if (c->o[O_SYSTEM].set)
        json_array_append_new(messages, json_pack("{s:s, s:o}", "role", "system", "content", cli_json_text(c->o[O_SYSTEM].s, strlen(c->o[O_SYSTEM].s))));
    json_array_append_new(messages, json_pack("{s:s, s:o}", "role", "user", "content", cli_json_text(buf_str(prompt), prompt->len)));
    int rc = prompt_vars(c, messages, vars);
    json_decref(messages);
    return rc;
}

static int answer(struct talk *t, const json_t *vars, const struct buf *prompt)
{
    struct talk_answer a;
    talk_answer_init(&a);
    int rc = vars ? talk_chat(t, vars, &a) : talk_complete(t, buf_str(prompt), prompt->len, &a);
    if (rc == 0) {
        talk_print_rates(&a);
        if (a.text.len == 0 && a.reasoning.len > 0 && strcmp(a.finish_reason, "length") == 0)
            talk_note(t, "the limit of tokens came before the end of the reasoning: there is no answer; raise --max-tokens, or use --no-think");
        if (t->c->o[O_JSON].set)
            rc = talk_print_json(t->c, &a, 0);
    }
    talk_answer_free(&a);
    return rc;
}

static int check_usage(struct cli *c)
{
    const struct opt_value *o = c->o;
    if (o[O_MESSAGES].set && c->n_args > 1)
        return cli_usage(c, "run: a prompt and --messages are given; one of them is too many");
    if (o[O_MESSAGES].set && (o[O_RAW].set || o[O_SYSTEM].set))
        return cli_usage(c, "run: --messages goes with neither --raw nor --system");
    if (o[O_RAW].set && (o[O_SYSTEM].set || o[O_THINK].set || o[O_NO_THINK].set || o[O_TEMPLATE_FILE].set))
        return cli_usage(c, "run: --raw knows no template: --system, --think, --no-think and --template-file do not go with it");
    return 0;
}

static int read_and_answer(struct talk *t)
{
    struct cli *c = t->c;
    struct buf prompt;
    json_t *vars = NULL;
    int rc;
    buf_init(&prompt, MEM_TEXT, 1);
    if (c->o[O_MESSAGES].set)
        rc = prompt_vars_from_file(c, c->o[O_MESSAGES].s, &vars);
    else
        rc = read_prompt(t, &prompt);
    if (rc == 0 && !vars && !c->o[O_RAW].set)
        rc = vars_from_prompt(c, &prompt, &vars);
    if (rc == 0)
        rc = answer(t, vars, &prompt);
    json_decref(vars);
    buf_free(&prompt);
    return rc;
}

int verb_run(struct cli *c)
{
    struct talk t;
    if (c->o[O_LIST_DEVICES].set)
        return cli_list_devices(c);
    TRY(check_usage(c));
    int rc = talk_open(c, &t);
    if (rc == 0)
        rc = read_and_answer(&t);
    talk_close(&t);
    return rc;
}
