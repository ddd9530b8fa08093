/* Gated DeltaNet: projections, causal convolution, gates, delta rule from and into the sequences' states, gated norm, output. */
#include <math.h>

#include "model/runner.h"

#define L2_EPS 1e-6f

void forward_delta_net(struct pass *p, const struct layer_weights *w)
{
    const struct model_config *c = &p->r->m->config;
    const struct op_table *op = p->r->dev->op;
    struct device *dev = p->r->dev;
    struct workspace *ws = &p->r->ws;
    int64_t n = p->n_rows, channels = config_n_channel(c), inner = (int64_t)c->n_head_v * c->d_state, keys = (int64_t)c->n_head_k * c->d_state;
    const struct weight *in[4] = {&w->attn_qkv, &w->attn_gate, &w->ssm_alpha, &w->ssm_beta}, *out = &w->ssm_out;
    op->matmul(dev, in, (float *[]){ws->qkv, ws->z, ws->alpha, ws->beta}, 4, ws->h, n);
    pass_trace(p, "qkv", ws->qkv, channels);
    pass_trace(p, "z", ws->z, inner);
    op->delta_gates(dev, ws->alpha, ws->beta, w->ssm_a, w->ssm_dt_bias, n, c->n_head_v);
    pass_trace(p, "g", ws->alpha, c->n_head_v);
    pass_trace(p, "beta", ws->beta, c->n_head_v);
    for (int i = 0; i < p->n_spans; i++)
        p->delta[i] = p->spans[i].seq->delta[p->linear_index];
    op->conv_silu(dev, p->op_spans, p->delta, p->n_spans, ws->qkv, w->ssm_conv1d, channels, c->n_conv, ws->conv);
    pass_trace(p, "conv", ws->conv, channels);
    op->l2_norm(dev, ws->conv, n, channels, c->n_head_k, c->d_state, L2_EPS, (float)(1 / sqrt(c->d_state)));
    op->l2_norm(dev, ws->conv + keys, n, channels, c->n_head_k, c->d_state, L2_EPS, 1);
    pass_trace(p, "q_k_v", ws->conv, channels);
    op->delta_rule(dev, p->op_spans, p->delta, p->n_spans, ws->conv, channels, ws->alpha, ws->beta, c->n_head_k, c->n_head_v, c->d_state, ws->o);
    pass_trace(p, "delta", ws->o, inner);
    op->gated_rms_norm(dev, ws->o, ws->z, w->ssm_norm, c->rms_eps, n, c->n_head_v, c->d_state);
    pass_trace(p, "delta_gated", ws->o, inner);
    op->matmul(dev, &out, &ws->mix, 1, ws->o, n);
    p->linear_index++;
}
