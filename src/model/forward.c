/* The order of layers: residual stream x, two normed branches a layer, head on the rows that want logits. */
#include "model/forward.h"

#include <math.h>
#include <string.h>

#include "model/runner.h"

static int check_batch(const struct runner *r, const struct batch_span *spans, int n_spans, int64_t *n_rows, struct err *err)
{
    int64_t rows = 0, logit_rows = 0;
    if (n_spans < 1 || n_spans > MAX_SPANS)
        return err_set(err, ERR_INVALID, "a batch of %d spans (1 to %d are possible)", n_spans, MAX_SPANS);
    for (int i = 0; i < n_spans; i++) {
        const struct batch_span *s = &spans[i];
        if (s->n < 1 || s->n_logits < 0 || s->n_logits > s->n)
            return err_set(err, ERR_INVALID, "span %d has %lld tokens and asks for %lld rows of logits", i, (long long)s->n, (long long)s->n_logits);
        for (int k = 0; k < i; k++)
            if (spans[k].seq == s->seq)
                return err_set(err, ERR_INVALID, "spans %d and %d are of one sequence", k, i);
        if (s->n > s->seq->capacity - s->seq->length)
            return err_set(err, ERR_INVALID, "span %d ends at position %lld, the state holds %lld", i, (long long)(s->seq->length + s->n), (long long)s->seq->capacity);
        for (int64_t k = 0; k < s->n; k++)
            if (s->ids[k] < 0 || s->ids[k] >= r->m->config.n_vocab)
                return err_set(err, ERR_INVALID, "token id %d is outside the vocabulary of %lld", s->ids[k], (long long)r->m->config.n_vocab);
        rows += s->n;
        logit_rows += s->n_logits;
    }
    if (rows > r->rows || logit_rows > r->max_logit_rows)
        return err_set(err, ERR_INVALID, "a batch of %lld rows and %lld rows of logits; the workspace holds %lld and %lld", (long long)rows, (long long)logit_rows,
                       (long long)r->rows, (long long)r->max_logit_rows);
    *n_rows = rows;
    return 0;
}

/* Angles in f64, so that position 262143 is as exact as position 1; one table for all layers and heads. */
static void fill_rope(struct pass *p)
{
    int half = p->r->m->config.n_rot / 2;
    for (int i = 0; i < p->n_spans; i++)
        for (int64_t k = 0; k < p->op_spans[i].n_rows; k++) {
            float *row = p->r->ws.cos_sin + (p->op_spans[i].first_row + k) * 2 * half;
            for (int j = 0; j < half; j++) {
                double angle = (double)(p->op_spans[i].position + k) * p->r->rope_freq[j];
                row[j] = (float)cos(angle);
                row[half + j] = (float)sin(angle);
            }
        }
}

static void begin(struct pass *p, struct runner *r, const struct batch_span *spans, int n_spans, int64_t n_rows)
{
    int64_t row = 0;
    p->r = r;
    p->spans = spans;
    p->n_spans = n_spans;
    p->n_rows = n_rows;
    p->full_index = p->linear_index = 0;
    for (int i = 0; i < n_spans; i++) {
        p->op_spans[i] = (struct op_span){.first_row = row, .n_rows = spans[i].n, .position = spans[i].seq->length};
        r->dev->op->embed(r->dev, &r->m->token_embd, spans[i].ids, spans[i].n, r->ws.x + row * r->m->config.d_model);
        row += spans[i].n;
    }
    fill_rope(p);
}

static void run_layer(struct pass *p, int layer)
{
    const struct model_config *c = &p->r->m->config;
    const struct layer_weights *w = &p->r->m->layers[layer];
    const struct op_table *op = p->r->dev->op;
    struct workspace *ws = &p->r->ws;
    int64_t d = c->d_model;
    p->layer = layer;
    pass_trace(p, "input", ws->x, d);
    op->rms_norm(p->r->dev, ws->x, w->attn_norm, c->rms_eps, p->n_rows, d, ws->h);
    pass_trace(p, "attn_norm", ws->h, d);
    if (c->is_full[layer])
        forward_attention(p, w);
    else
        forward_delta_net(p, w);
    pass_trace(p, "mixer_out", ws->mix, d);
    op->add(p->r->dev, ws->x, ws->mix, p->n_rows * d);
    pass_trace(p, "residual", ws->x, d);
    op->rms_norm(p->r->dev, ws->x, w->post_attention_norm, c->rms_eps, p->n_rows, d, ws->h);
    pass_trace(p, "post_norm", ws->h, d);
    if (c->is_moe)
        forward_moe(p, w);
    else
        forward_ffn(p, w);
    pass_trace(p, "ffn_out", ws->mix, d);
    op->add(p->r->dev, ws->x, ws->mix, p->n_rows * d);
    pass_trace(p, "output", ws->x, d);
}

/* Norm and head on the asked rows only. */
static void run_head(struct pass *p)
{
    const struct model_config *c = &p->r->m->config;
    struct workspace *ws = &p->r->ws;
    int64_t n = 0, d = c->d_model;
    for (int i = 0; i < p->n_spans; i++) {
        int64_t want = p->spans[i].n_logits;
        const float *from = ws->x + (p->op_spans[i].first_row + p->spans[i].n - want) * d;
        device_copy(p->r->dev, ws->last + n * d, from, (size_t)(want * d) * sizeof(float));
        n += want;
    }
    if (n == 0)
        return;
    p->r->dev->op->rms_norm(p->r->dev, ws->last, p->r->m->output_norm, c->rms_eps, n, d, ws->last);
    const struct weight *w = &p->r->m->output;
    p->r->dev->op->matmul(p->r->dev, &w, &ws->logits, 1, ws->last, n);
}

int model_forward(struct runner *r, const struct batch_span *spans, int n_spans, const float **logits, struct err *err)
{
    struct pass p;
    int64_t n_rows = 0;
    TRY(check_batch(r, spans, n_spans, &n_rows, err));
    begin(&p, r, spans, n_spans, n_rows);
    for (int i = 0; i < r->m->config.n_layer; i++)
        run_layer(&p, i);
    run_head(&p);
    for (int i = 0; i < n_spans; i++)
        spans[i].seq->length += spans[i].n;
    *logits = r->ws.logits;
    return 0;
}
