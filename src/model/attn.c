/* Full attention with an output gate: q and gate interleaved per head, k and v cached after RoPE. */
#include "model/runner.h"

void forward_attention(struct pass *p, const struct layer_weights *w)
{
    const struct model_config *c = &p->r->m->config;
    const struct op_table *op = p->r->dev->op;
    struct device *dev = p->r->dev;
    struct workspace *ws = &p->r->ws;
    int64_t n = p->n_rows, q = (int64_t)c->n_head * c->d_head, kv = (int64_t)c->n_head_kv * c->d_head;
    const struct weight *in[3] = {&w->attn_q, &w->attn_k, &w->attn_v}, *out = &w->attn_output;
    op->matmul(dev, in, (float *[]){ws->qkv, ws->k, ws->v}, 3, ws->h, n);
    op->qk_norm_rope(dev, ws->qkv, ws->k, w->attn_q_norm, w->attn_k_norm, c->rms_eps, ws->cos_sin, n, c->n_head, c->n_head_kv, c->d_head, c->n_rot, ws->z);
    pass_trace(p, "gate", ws->qkv, 2 * q);
    pass_trace(p, "q_rope", ws->z, q);
    pass_trace(p, "k_rope", ws->k, kv);
    pass_trace(p, "v", ws->v, kv);
    for (int i = 0; i < p->n_spans; i++)
        p->kv[i] = p->spans[i].seq->kv[p->full_index];
    op->kv_store(dev, p->op_spans, p->kv, p->n_spans, ws->k, ws->v, c->n_head_kv, c->d_head);
    op->attention(dev, p->op_spans, p->kv, p->n_spans, ws->z, c->n_head, c->n_head_kv, c->d_head, c->attention_scale, ws->o);
    pass_trace(p, "attn", ws->o, q);
    op->sigmoid_gate(dev, ws->o, ws->qkv, n, c->n_head, c->d_head);
    pass_trace(p, "attn_gated", ws->o, q);
    op->matmul(dev, &out, &ws->mix, 1, ws->o, n);
    p->full_index++;
}
