/* apr serve plan: the memory arithmetic, from the header alone. */
#include <stdio.h>
#include <string.h>

#include "cli/score.h"

static int print_plan(struct cli *c, const struct model *m, const struct plan *p)
{
    struct buf out;
    if (c->o[O_JSON].set)
        return cli_print_json(c,
                              json_pack("{s:o, s:I, s:I, s:I, s:I, s:i, s:I, s:i, s:I, s:I, s:I}", "file", cli_json_text(gguf_path(m->file), strlen(gguf_path(m->file))), "weight_bytes",
                                        (json_int_t)p->weight_bytes, "kv_bytes_per_position", (json_int_t)p->kv_bytes_per_position, "context_length", (json_int_t)p->n_positions,
                                        "declared_context_length", (json_int_t)m->config.n_ctx_declared, "slots", p->n_slots, "state_bytes_per_slot", (json_int_t)p->state_bytes, "snapshots_per_slot",
                                        p->n_snapshots, "workspace_bytes",
                                        (json_int_t)p->workspace_bytes, "overhead_bytes", (json_int_t)p->overhead_bytes, "total_bytes", (json_int_t)p->total_bytes),
                              2);
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
    int n_slots = c->o[O_PARALLEL].set ? (int)c->o[O_PARALLEL].i : 1;
    int64_t n = c->o[O_CONTEXT_LENGTH].set ? c->o[O_CONTEXT_LENGTH].i : 0;
    int rc = cli_load_model(c, MODEL_HEADER_ONLY | MODEL_NO_TOKENISER, &m);
    if (rc == 0 && n > m->config.n_ctx_declared)
        rc = err_set(&c->err, ERR_INVALID, "--context-length %lld is above the model's declared context of %lld", (long long)n, (long long)m->config.n_ctx_declared);
    if (rc == 0)
        rc = score_plan(c, m, n, n_slots, &plan);
    if (rc == 0)
        rc = print_plan(c, m, &plan);
    model_free(m);
    return rc;
}
