/* SwiGLU: down(silu(gate h) * up h). */
#include "model/runner.h"

void forward_ffn(struct pass *p, const struct layer_weights *w)
{
    const struct op_table *op = p->r->dev->op;
    struct workspace *ws = &p->r->ws;
    const struct weight *in[2] = {&w->ffn_gate, &w->ffn_up}, *out = &w->ffn_down;
    op->matmul(p->r->dev, in, (float *[]){ws->gate, ws->up}, 2, ws->h, p->n_rows);
    op->swiglu(p->r->dev, ws->gate, ws->up, p->n_rows * p->r->m->config.d_ff, ws->gate);
    op->matmul(p->r->dev, &out, &ws->mix, 1, ws->gate, p->n_rows);
}
