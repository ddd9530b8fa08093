/* Mixture of experts: the rows that chose an expert go through it together; each row then adds its experts' outputs in its own order of choice, so that its sum does not
 * depend on the others in the batch. */
#include <string.h>

#include "model/runner.h"

static struct weight expert_of(const struct weight *w, size_t expert_bytes, int e)
{
    struct weight one = *w;
    one.data = (const uint8_t *)w->data + (size_t)e * expert_bytes;
    return one;
}

/* Rows that chose expert e, in order: `rows` gets the batch row, `slots` the place row * n_used + choice of its output. */
static int64_t rows_of_expert(const struct pass *p, int e, int32_t *rows, int32_t *slots)
{
    int k = p->r->m->config.n_expert_used;
    int64_t n = 0;
    for (int64_t i = 0; i < p->n_rows * k; i++)
        if (p->r->ws.experts[i] == e) {
            rows[n] = (int32_t)(i / k);
            slots[n++] = (int32_t)i;
        }
    return n;
}

static void run_expert(struct pass *p, const struct layer_weights *w, int e)
{
    const struct model_config *c = &p->r->m->config;
    const struct op_table *op = p->r->dev->op;
    struct workspace *ws = &p->r->ws;
    int32_t *rows = ws->rows, *slots = ws->rows + p->n_rows * c->n_expert_used;
    int64_t n = rows_of_expert(p, e, rows, slots), d = c->d_model;
    if (n == 0)
        return;
    struct weight gate = expert_of(&w->ffn_gate_exps, w->gate_expert_bytes, e), up = expert_of(&w->ffn_up_exps, w->up_expert_bytes, e),
                  down = expert_of(&w->ffn_down_exps, w->down_expert_bytes, e);
    const struct weight *in[2] = {&gate, &up}, *out = &down;
    op->gather(p->r->dev, ws->h, rows, n, d, ws->routed_in);
    op->matmul(p->r->dev, in, (float *[]){ws->gate, ws->up}, 2, ws->routed_in, n);
    op->swiglu(p->r->dev, ws->gate, ws->up, n * c->d_ff_expert, ws->gate);
    op->matmul(p->r->dev, &out, &ws->routed_in, 1, ws->gate, n);
    for (int64_t i = 0; i < n; i++)
        device_copy(p->r->dev, ws->routed_out + slots[i] * d, ws->routed_in + i * d, (size_t)d * sizeof(float));
}

void forward_moe(struct pass *p, const struct layer_weights *w)
{
    const struct model_config *c = &p->r->m->config;
    const struct op_table *op = p->r->dev->op;
    struct device *dev = p->r->dev;
    struct workspace *ws = &p->r->ws;
    int64_t n = p->n_rows, d = c->d_model, k = c->n_expert_used;
    const struct weight *router = &w->ffn_gate_inp, *shared[2] = {&w->ffn_gate_shexp, &w->ffn_up_shexp}, *down = &w->ffn_down_shexp;
    op->matmul(dev, &router, &ws->router, 1, ws->h, n);
    op->route(dev, ws->router, n, c->n_expert, c->n_expert_used, ws->experts, ws->weights);
    pass_trace(p, "router", ws->router, c->n_expert);
    pass_trace(p, "expert_weights", ws->weights, k);
    for (int e = 0; e < c->n_expert; e++)
        run_expert(p, w, e);
    for (int64_t i = 0; i < n * k; i++) {
        ws->weights[i] *= c->expert_weights_scale;
        ws->rows[i] = (int32_t)(i / k);
    }
    device_zero(dev, ws->mix, (size_t)(n * d) * sizeof(float));
    op->scatter_add(dev, ws->mix, ws->routed_out, ws->rows, ws->weights, n * k, d);
    op->matmul(dev, shared, (float *[]){ws->gate, ws->up}, 2, ws->h, n);
    op->swiglu(dev, ws->gate, ws->up, n * c->d_ff_shared, ws->gate);
    op->matmul(dev, &down, &ws->routed_in, 1, ws->gate, n);
    op->shared_gate_add(dev, ws->h, w->ffn_gate_inp_shexp, d, ws->routed_in, n, d, ws->shared_gate, ws->mix);
    pass_trace(p, "shared_gate", ws->shared_gate, 1);
}
