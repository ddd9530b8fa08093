/* apr serve plan: the memory arithmetic, from the header alone. */
#include <stdio.h>
#include <string.h>

#include "cli/common.h"
#include "engine/capacity.h"

static json_t *plan_json(const struct model *m, const struct plan *p)
{
    const char *path = gguf_path(m->file);
    const struct {
        const char *name;
        uint64_t value;
    } figures[] = {{"weight_bytes", p->weight_bytes},
                   {"kv_bytes_per_position", p->kv_bytes_per_position},
                   {"context_length", (uint64_t)p->n_positions},
                   {"declared_context_length", (uint64_t)m->config.n_ctx_declared},
                   {"slots", (uint64_t)p->n_slots},
                   {"state_bytes_per_slot", p->state_bytes},
                   {"snapshots_per_slot", (uint64_t)p->n_snapshots},
                   {"workspace_bytes", p->workspace_bytes},
                   {"workspace_rows", (uint64_t)p->workspace_rows},
                   {"overhead_bytes", p->overhead_bytes},
                   {"total_bytes", p->total_bytes},
                   {"state_budget_bytes", p->state_budget_bytes}};
    json_t *out = json_object();
    json_object_set_new(out, "file", cli_json_text(path, strlen(path)));
    json_object_set_new(out, "cache_type", json_string(plan_cache_name(p->cache_type)));
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
        json_object_set_new(out, figures[i].name, json_integer((json_int_t)figures[i].value));
    return out;
}

static int print_plan(struct cli *c, const struct model *m, const struct plan *p)
{
    struct buf out;
    if (c->o[O_JSON].set)
        return cli_print_json(c, plan_json(m, p), 2);
    buf_init(&out, MEM_OTHER, 1 << 16);
    plan_write(p, &out);
    fwrite(buf_str(&out), 1, out.len, stdout);
    printf("plan: context   %lld of %lld tokens declared\n", (long long)p->n_positions, (long long)m->config.n_ctx_declared);
    buf_free(&out);
    return 0;
}

int verb_serve_plan(struct cli *c)
{
    struct model *m = NULL;
    struct plan plan;
    struct engine_options options;
    cli_engine_options(c, &options);
    int rc = cli_load_model(c, MODEL_HEADER_ONLY | MODEL_NO_TOKENISER, &m);
    if (rc == 0)
        rc = capacity_plan(m, &options, &plan, &c->err);
    if (rc == 0)
        rc = print_plan(c, m, &plan);
    model_free(m);
    return rc;
}
