#include "cli/prompt.h"

int prompt_load_template(struct cli *c, const struct gguf *g, const struct vocab *v, struct chat_template **out)
{
    struct buf source;
    if (!c->o[O_TEMPLATE_FILE].set) {
        int rc = chat_template_load(g, v, NULL, 0, out, &c->err);
        if (rc == ERR_NOT_FOUND)
            return err_set(&c->err, ERR_NOT_FOUND, "%s has no chat template; give one with --template-file FILE", gguf_path(g));
        return rc;
    }
    int rc = cli_read_input(c, c->o[O_TEMPLATE_FILE].s, &source);
    if (rc == 0) {
        rc = chat_template_load(g, v, buf_str(&source), source.len, out, &c->err);
        if (rc < 0)
            err_prefix(&c->err, "%s", c->o[O_TEMPLATE_FILE].s);
    }
    buf_free(&source);
    return rc;
}

static int set_switches(struct cli *c, json_t *vars)
{
    const struct opt_value *o = c->o;
    if (o[O_THINK].set && o[O_NO_THINK].set)
        return cli_usage(c, "--think and --no-think contradict each other");
    if (!json_object_get(vars, "add_generation_prompt"))
        json_object_set_new(vars, "add_generation_prompt", json_true());
    if (o[O_THINK].set || o[O_NO_THINK].set)
        json_object_set_new(vars, "enable_thinking", json_boolean(o[O_THINK].set));
    return 0;
}

/* Puts normalised messages into vars (a fresh object) and the switches on top. */
static int finish_vars(struct cli *c, const json_t *messages, json_t *vars)
{
    json_t *normal = NULL;
    TRY(chat_normalise_messages(messages, &normal, &c->err));
    json_object_set_new(vars, "messages", normal);
    return set_switches(c, vars);
}

int prompt_vars(struct cli *c, const json_t *messages, json_t **out)
{
    json_t *vars = json_object();
    int rc = vars ? finish_vars(c, messages, vars) : err_set(&c->err, ERR_NO_MEMORY, "out of memory for the messages");
    if (rc < 0)
        json_decref(vars);
    else
        *out = vars;
    return rc;
}

int prompt_vars_from_file(struct cli *c, const char *path, json_t **out)
{
    json_t *document = NULL, *vars = NULL;
    TRY(cli_read_json(c, path, &document));
    const json_t *messages = json_is_object(document) ? json_object_get(document, "messages") : document;
    int rc = 0;
    if (!json_is_array(messages))
        rc = err_set(&c->err, ERR_FORMAT, "%s: neither an array of messages nor an object with \"messages\"", path);
    else
        vars = json_is_object(document) ? json_copy(document) : json_object();
    if (rc == 0 && json_object_size(vars) != json_object_size(document)) /* a copy in too little memory has fewer */
        rc = err_set(&c->err, ERR_NO_MEMORY, "out of memory for the messages");
    if (rc == 0)
        rc = finish_vars(c, messages, vars);
    json_decref(document);
    if (rc < 0)
        json_decref(vars);
    else
        *out = vars;
    return rc;
}
