/* Inside of a runner: the workspace of a forward pass, and the pieces that its files share. */
#ifndef MODEL_RUNNER_H
#define MODEL_RUNNER_H

#include "model/forward.h"

#define MAX_SPANS 256

/* Activations, [rows][...] each, of which the first `rows` of the runner are committed. `wide` serves in turn what is never needed together. */
struct workspace {
    float *x, *h, *mix;          /* [d_model] residual stream, normed input, a block's output */
    float *qkv, *conv;           /* [n_channel] or [2 q] */
    float *z;                    /* [inner] or [q] */
    float *o;                    /* [inner] or [q] */
    float *k, *v;                /* [n_head_kv * d_head] */
    float *alpha, *beta;         /* [n_head_v] */
    float *gate, *up;            /* [widest FFN] */
    float *cos_sin;              /* [n_rot] */
    float *router, *weights;     /* MoE: [n_expert], [n_used] */
    float *expert_in, *routed_out; /* MoE: [d_model] of one expert's rows, [n_used * d_model] */
    float *shared_gate;          /* MoE: [1] */
    int32_t *experts, *rows, *slots; /* MoE: [n_used] */
    int32_t *first_slot;         /* MoE: [n_expert + 1], once */
    float *last, *logits;        /* [logit rows][d_model], [logit rows][n_vocab] */
};

#define WORKSPACE_ARRAYS 32

/* One array of the workspace: a reservation for max_rows rows. */
struct workspace_array {
    size_t field;                /* of the pointer in struct workspace */
    size_t row_bytes;
    void *base;
};

struct runner {
    const struct model *m;
    struct device *dev;
    int64_t max_rows, max_logit_rows;
    int64_t rows;                /* committed in every array */
    struct workspace_array arrays[WORKSPACE_ARRAYS];
    int n_arrays;
    void *logit_memory;          /* first_slot, last, logits */
    struct workspace ws;
    double *rope_freq;           /* [n_rot / 2] */
    forward_trace *trace;
    void *trace_ctx;
};

/* One forward in flight. */
struct pass {
    struct runner *r;
    const struct batch_span *spans;
    int n_spans;
    int64_t n_rows;
    struct op_span op_spans[MAX_SPANS];
    struct op_kv kv[MAX_SPANS];
    struct op_delta_state delta[MAX_SPANS];
    int layer, full_index, linear_index;
};

/* Each reads ws.h and leaves the block's output in ws.mix. */
void forward_attention(struct pass *p, const struct layer_weights *w);
void forward_delta_net(struct pass *p, const struct layer_weights *w);
void forward_ffn(struct pass *p, const struct layer_weights *w);
void forward_moe(struct pass *p, const struct layer_weights *w);

static inline void pass_trace(const struct pass *p, const char *name, const float *data, int64_t n_cols)
{
    if (p->r->trace)
        p->r->trace(p->r->trace_ctx, p->layer, name, data, p->n_rows, n_cols);
}

#endif
