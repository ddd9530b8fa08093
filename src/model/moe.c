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

/* Sorts the choices by expert, rows in order: slots[first[e] .. first[e + 1]) are those of e, each row * n_used + choice. A row chooses an expert at most once. */
static void group_by_expert(const struct pass *p, int32_t *first, int32_t *slots)
{
    const struct model_config *c = &p->r->m->config;
    const int32_t *experts = p->r->ws.experts;
    int64_t n = p->n_rows * c->n_expert_used;
    memset(first, 0, (size_t)(c->n_expert + 1) * sizeof *first);
    for (int64_t i = 0; i < n; i++)
        first[experts[i] + 1]++;
    for (int e = 0; e < c->n_expert; e++)
        first[e + 1] += first[e];
    for (int64_t i = 0; i < n; i++)
        slots[first[experts[i]]++] = (int32_t)i;
    for (int e = c->n_expert; e > 0; e--) /* each start moved on to its end, which is the next one's start */
        first[e] = first[e - 1];
    first[0] = 0;
}

/* The n choices in `slots` are all of expert e; their outputs go to routed_out[slot]. */
static void run_expert(struct pass *p, const struct layer_weights *w, int e, const int32_t *slots, int64_t n)
{
    const struct model_config *c = &p->r->m->config;
    const struct op_table *op = p->r->dev->op;
    struct workspace *ws = &p->r->ws;
    int64_t d = c->d_model;
    struct weight gate = expert_of(&w->ffn_gate_exps, w->gate_expert_bytes, e), up = expert_of(&w->ffn_up_exps, w->up_expert_bytes, e),
                  down = expert_of(&w->ffn_down_exps, w->down_expert_bytes, e);
    const struct weight *in[2] = {&gate, &up}, *out = &down;
    for (int64_t i = 0; i < n; i++)
        ws->rows[i] = slots[i] / c->n_expert_used;
    op->gather(p->r->dev, ws->h, ws->rows, n, d, ws->expert_in);
    op->matmul(p->r->dev, in, (float *[]){ws->gate, ws->up}, 2, ws->expert_in, n);
    op->swiglu(p->r->dev, ws->gate, ws->up, n * c->d_ff_expert, ws->gate);
    op->matmul(p->r->dev, &out, &ws->expert_in, 1, ws->gate, n);
    for (int64_t i = 0; i < n; i++)
        device_copy(p->r->dev, ws->routed_out + slots[i] * d, ws->expert_in + i * d, (size_t)d * sizeof(float));
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
    group_by_expert(p, ws->first_slot, ws->slots);
    for (int e = 0; e < c->n_expert; e++)
        if (ws->first_slot[e + 1] > ws->first_slot[e])
            run_expert(p, w, e, ws->slots + ws->first_slot[e], ws->first_slot[e + 1] - ws->first_slot[e]);
    for (int64_t i = 0; i < n * k; i++) {
        ws->weights[i] *= c->expert_weights_scale;
        ws->rows[i] = (int32_t)(i / k);
    }
    device_zero(dev, ws->mix, (size_t)(n * d) * sizeof(float));
    op->scatter_add(dev, ws->mix, ws->routed_out, ws->rows, ws->weights, n * k, d);
    op->matmul(dev, shared, (float *[]){ws->gate, ws->up}, 2, ws->h, n);
    op->swiglu(dev, ws->gate, ws->up, n * c->d_ff_shared, ws->gate);
    op->matmul(dev, &down, &ws->expert_in, 1, ws->gate, n);
    op->shared_gate_add(dev, ws->h, w->ffn_gate_inp_shexp, d, ws->expert_in, n, d, ws->shared_gate, ws->mix);
    pass_trace(p, "shared_gate", ws->shared_gate, 1);
}
