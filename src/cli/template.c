/* apr template: messages rendered by the chat template, as text or as ids. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/json.h"
#include "cli/common.h"
#include "cli/prompt.h"

static int print_prompt(struct cli *c, const struct chat_prompt *p)
{
    if (c->o[O_JSON].set)
        return cli_print_json(c,
                              json_pack("{s:o, s:o, s:b}", "text", json_stringn(buf_str(&p->rendered.text), p->rendered.text.len), "ids", cli_json_ids(p->ids.data, p->ids.len), "in_reasoning",
                                        p->in_reasoning),
                              -1);
    if (!c->o[O_SHOW_TOKENS].set) {
        fwrite(buf_str(&p->rendered.text), 1, p->rendered.text.len, stdout);
        return 0;
    }
    for (size_t i = 0; i < p->ids.len; i++)
        printf("%s%d", i ? " " : "", p->ids.data[i]);
    putchar('\n');
    return 0;
}

int verb_template(struct cli *c)
{
    char path[4096];
    struct gguf *g = NULL;
    struct vocab *v = NULL;
    struct chat_template *t = NULL;
    json_t *vars = NULL;
    struct chat_prompt p;
    memset(&p, 0, sizeof p);
    if (!c->o[O_MESSAGES].set)
        return cli_usage(c, "template: --messages FILE is missing");
    int rc = cli_model_path(c, path, sizeof path);
    if (rc == 0)
        rc = gguf_open(path, GGUF_HEADER_ONLY, &g, &c->err);
    if (rc == 0)
        rc = vocab_load(g, &v, &c->err);
    if (rc == 0)
        rc = prompt_load_template(c, g, v, &t);
    if (rc == 0)
        rc = prompt_vars_from_file(c, c->o[O_MESSAGES].s, &vars);
    if (rc == 0)
        rc = chat_render(t, vars, &p, &c->err);
    if (rc == 0) {
        rc = print_prompt(c, &p);
        chat_prompt_free(&p);
    }
    json_decref(vars);
    chat_template_free(t);
    vocab_free(v);
    gguf_close(g);
    return rc;
}
