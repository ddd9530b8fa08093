/* apr tensors: the tensor table, one line or one JSON object each. */
#include <inttypes.h>
#include <regex.h>
#include <stdio.h>
#include <string.h>

#include "cli/common.h"
#include "gguf/quant.h"

#define NAME_BYTES 256

static json_t *tensor_json(const struct gguf *g, const struct gguf_tensor *t)
{
    json_t *shape = json_array(), *out = json_object();
    for (int i = 0; i < t->n_dims; i++)
        json_array_append_new(shape, json_integer((json_int_t)t->ne[i]));
    json_object_set_new(out, "name", cli_json_text(t->name.data, t->name.len));
    json_object_set_new(out, "type", json_string(quant_name(t->type)));
    json_object_set_new(out, "shape", shape);
    json_object_set_new(out, "bytes", json_integer((json_int_t)t->n_bytes));
    json_object_set_new(out, "offset", json_integer((json_int_t)t->offset));
    if (gguf_n_parts(g) > 1)
        json_object_set_new(out, "part", json_integer(t->part + 1));
    return out;
}

static void print_tensor(const struct gguf_tensor *t)
{
    char shape[100] = "";
    size_t used = 0;
    for (int i = 0; i < t->n_dims && used < sizeof shape; i++)
        used += (size_t)snprintf(shape + used, sizeof shape - used, "%s%" PRIu64, i ? ", " : "", t->ne[i]);
    cli_write_safe(stdout, t->name.data, t->name.len);
    printf("%*s %-7s [%s] %" PRIu64 "\n", t->name.len < 36 ? (int)(36 - t->name.len) : 0, "", quant_name(t->type), shape, t->n_bytes);
}

static int matches(const regex_t *filter, const struct gguf_tensor *t)
{
    char name[NAME_BYTES];
    if (!filter)
        return 1;
    snprintf(name, sizeof name, "%.*s", (int)(t->name.len < NAME_BYTES ? t->name.len : NAME_BYTES - 1), t->name.data);
    return regexec(filter, name, 0, NULL, 0) == 0;
}

static int list(struct cli *c, const struct gguf *g, const regex_t *filter)
{
    json_t *array = json_array();
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        if (!matches(filter, t))
            continue;
        if (c->o[O_JSON].set)
            json_array_append_new(array, tensor_json(g, t));
        else
            print_tensor(t);
    }
    if (c->o[O_JSON].set)
        return cli_print_json(c, json_pack("{s:o}", "tensors", array), 2);
    json_decref(array);
    return 0;
}

int verb_tensors(struct cli *c)
{
    char path[4096], why[200];
    struct gguf *g = NULL;
    regex_t compiled, *filter = NULL;
    if (c->o[O_FILTER].set) {
        int bad = regcomp(&compiled, c->o[O_FILTER].s, REG_EXTENDED | REG_NOSUB);
        if (bad) {
            regerror(bad, &compiled, why, sizeof why);
            return cli_usage(c, "--filter: \"%.200s\" is not a regular expression: %s", c->o[O_FILTER].s, why);
        }
        filter = &compiled;
    }
    int rc = cli_model_path(c, path, sizeof path);
    if (rc == 0)
        rc = gguf_open(path, GGUF_HEADER_ONLY, &g, &c->err);
    if (rc == 0)
        rc = list(c, g, filter);
    if (filter)
        regfree(filter);
    gguf_close(g);
    return rc;
}
