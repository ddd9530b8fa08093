/* The operations of op.h on the CPU: work is cut into independent rows, heads or channel groups that threads take from a counter; a single row runs where it is. */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "compute/cpu/cpu.h"
#include "compute/cpu/matmul.h"
#include "gguf/quant.h"

/* One job: fn over items 0..n-1. */
struct job {
    void (*fn)(const void *args, int64_t item);
    const void *args;
    int64_t n;
    long chunk;
    atomic_long next;
};

static void job_main(void *arg, int thread, int n_threads)
{
    struct job *job = arg;
    (void)thread;
    (void)n_threads;
    for (long i; (i = pool_next(&job->next, job->chunk, (long)job->n)) < job->n;)
        for (long j = i; j < i + job->chunk && j < job->n; j++)
            job->fn(job->args, j);
}

static const struct cpu_kernels *kernels_of(const struct device *dev)
{
    return &((struct cpu *)dev->impl)->kernels;
}

static void run_items(struct device *dev, int64_t n, long chunk, void (*fn)(const void *, int64_t), const void *args)
{
    struct job job = {.fn = fn, .args = args, .n = n, .chunk = chunk};
    if (n <= chunk)
        job_main(&job, 0, 1);
    else
        pool_run(((struct cpu *)dev->impl)->pool, job_main, &job);
}

struct rows_args { /* what row-wise operations need */
    const struct cpu_kernels *k;
    const void *a, *b;
    const float *x, *scale;
    float *out;
    const int32_t *ids;
    float eps, factor;
    int64_t d, stride;
    int n_head, head_d;
};

static void embed_row(const void *args, int64_t i)
{
    const struct rows_args *a = args;
    const struct weight *w = a->a;
    quant_type(w->type)->decode((const uint8_t *)w->data + (size_t)a->ids[i] * w->row_bytes, a->out + i * w->n_in, (size_t)w->n_in);
}

static void op_embed(struct device *dev, const struct weight *w, const int32_t *ids, int64_t n, float *out)
{
    struct rows_args args = {.a = w, .ids = ids, .out = out};
    run_items(dev, n, 4, embed_row, &args);
}

static void rms_norm_item(const void *args, int64_t i)
{
    const struct rows_args *a = args;
    a->k->rms_norm_row(a->x + i * a->d, a->scale, a->eps, a->d, a->out + i * a->d);
}

static void op_rms_norm(struct device *dev, const float *x, const float *scale, float eps, int64_t n, int64_t d, float *out)
{
    struct rows_args args = {.k = kernels_of(dev), .x = x, .scale = scale, .eps = eps, .d = d, .out = out};
    run_items(dev, n, 8, rms_norm_item, &args);
}

#define FLAT_CHUNK 16384 /* floats a thread takes at a time of element-wise work */

static void add_item(const void *args, int64_t i)
{
    const struct rows_args *a = args;
    int64_t first = i * FLAT_CHUNK, n = a->d - first < FLAT_CHUNK ? a->d - first : FLAT_CHUNK;
    a->k->add(a->out + first, a->x + first, n);
}

static void op_add(struct device *dev, float *x, const float *y, int64_t n)
{
    struct rows_args args = {.k = kernels_of(dev), .out = x, .x = y, .d = n};
    run_items(dev, (n + FLAT_CHUNK - 1) / FLAT_CHUNK, 1, add_item, &args);
}

static void swiglu_item(const void *args, int64_t i)
{
    const struct rows_args *a = args;
    int64_t first = i * FLAT_CHUNK, n = a->d - first < FLAT_CHUNK ? a->d - first : FLAT_CHUNK;
    a->k->swiglu(a->x + first, (const float *)a->b + first, n, a->out + first);
}

static void op_swiglu(struct device *dev, const float *gate, const float *up, int64_t n, float *out)
{
    struct rows_args args = {.k = kernels_of(dev), .x = gate, .b = up, .out = out, .d = n};
    run_items(dev, (n + FLAT_CHUNK - 1) / FLAT_CHUNK, 1, swiglu_item, &args);
}

struct rope_args {
    const struct cpu_kernels *kernels;
    const float *qg, *q_scale, *k_scale, *cos_sin;
    float *k, *q, eps;
    int n_head, n_head_kv, d, n_rot;
};

static void rotate(float *x, const float *cos_sin, int n_rot)
{
    int half = n_rot / 2;
    for (int i = 0; i < half; i++) {
        float u = x[i], v = x[i + half], c = cos_sin[i], s = cos_sin[half + i];
        x[i] = u * c - v * s;
        x[i + half] = u * s + v * c;
    }
}

static void rope_item(const void *args, int64_t i)
{
    const struct rope_args *a = args;
    const float *cos_sin = a->cos_sin + i * a->n_rot;
    for (int h = 0; h < a->n_head; h++) {
        float *q = a->q + (i * a->n_head + h) * a->d;
        a->kernels->rms_norm_row(a->qg + (i * a->n_head + h) * 2 * a->d, a->q_scale, a->eps, a->d, q);
        rotate(q, cos_sin, a->n_rot);
    }
    for (int h = 0; h < a->n_head_kv; h++) {
        float *k = a->k + (i * a->n_head_kv + h) * a->d;
        a->kernels->rms_norm_row(k, a->k_scale, a->eps, a->d, k);
        rotate(k, cos_sin, a->n_rot);
    }
}

static void op_qk_norm_rope(struct device *dev, const float *qg, float *k, const float *q_scale, const float *k_scale, float eps, const float *cos_sin, int64_t n, int n_head,
                            int n_head_kv, int d, int n_rot, float *q)
{
    struct rope_args args = {kernels_of(dev), qg, q_scale, k_scale, cos_sin, k, q, eps, n_head, n_head_kv, d, n_rot};
    run_items(dev, n, 2, rope_item, &args);
}

struct store_args {
    const struct cpu_kernels *kernels;
    const struct op_span *spans;
    const struct op_kv *kv;
    const float *k, *v;
    int64_t width;
};

/* The span that holds batch row `row`. */
static int span_of(const struct op_span *spans, int64_t row)
{
    int i = 0;
    while (row >= spans[i].first_row + spans[i].n_rows)
        i++;
    return i;
}

static int64_t rows_of(const struct op_span *spans, int n_spans)
{
    return spans[n_spans - 1].first_row + spans[n_spans - 1].n_rows;
}

static void store_item(const void *args, int64_t row)
{
    const struct store_args *a = args;
    int i = span_of(a->spans, row);
    const struct op_kv *kv = &a->kv[i];
    size_t at = (size_t)(a->spans[i].position + row - a->spans[i].first_row) * kv_head_bytes(kv->type, a->width);
    a->kernels->kv_pack(kv->type, a->k + row * a->width, a->width, (uint8_t *)kv->k + at);
    a->kernels->kv_pack(kv->type, a->v + row * a->width, a->width, (uint8_t *)kv->v + at);
}

static void op_kv_store(struct device *dev, const struct op_span *spans, const struct op_kv *kv, int n_spans, const float *k, const float *v, int n_head_kv, int d)
{
    struct store_args args = {kernels_of(dev), spans, kv, k, v, (int64_t)n_head_kv * d}; /* whole heads are whole blocks: a row is packed in one go */
    run_items(dev, rows_of(spans, n_spans), 32, store_item, &args);
}

/* Attention is cut into tiles of consecutive rows of one span on one KV head; how many rows changes the speed and not the numbers. */
struct attention_job {
    struct cpu *cpu;
    const struct op_span *spans;
    const struct op_kv *kv;
    const float *q;
    int n_head, n_head_kv, d;
    float scale;
    float *out;
    int64_t tile_rows;
    long n_tiles;
    atomic_long next;
};

static int64_t tiles_of(const struct attention_job *a, int span)
{
    return (a->spans[span].n_rows + a->tile_rows - 1) / a->tile_rows * a->n_head_kv;
}

static void attention_tile(const struct attention_job *a, int64_t tile, int thread)
{
    int i = 0, group = a->n_head / a->n_head_kv;
    for (; tile >= tiles_of(a, i); i++)
        tile -= tiles_of(a, i);
    const struct op_span *span = &a->spans[i];
    int64_t r0 = tile / a->n_head_kv * a->tile_rows, m = tile % a->n_head_kv, left = span->n_rows - r0;
    size_t head = kv_head_bytes(a->kv[i].type, a->d);
    for (int h0 = 0; h0 < group; h0 += ATTENTION_LANES) {
        int64_t at = ((span->first_row + r0) * a->n_head + m * group + h0) * a->d;
        struct attention_tile t = {
            .q = a->q + at, .row_stride = (int64_t)a->n_head * a->d, .n_rows = (int)(left < a->tile_rows ? left : a->tile_rows),
            .n_group = group - h0 < ATTENTION_LANES ? group - h0 : ATTENTION_LANES, .d = a->d, .type = a->kv[i].type,
            .k = (const uint8_t *)a->kv[i].k + (size_t)m * head, .v = (const uint8_t *)a->kv[i].v + (size_t)m * head,
            .kv_stride = (int64_t)head * a->n_head_kv, .n_keys = span->position + r0 + 1, .scale = a->scale,
            .scratch = (float *)(a->cpu->panels + (size_t)thread * a->cpu->panel_bytes), .n_scratch = (int64_t)(a->cpu->panel_bytes / sizeof(float)), .out = a->out + at,
        };
        a->cpu->kernels.attention(&t);
    }
}

static void attention_main(void *arg, int thread, int n_threads)
{
    struct attention_job *a = arg;
    (void)n_threads;
    for (long i; (i = pool_next(&a->next, 1, a->n_tiles)) < a->n_tiles;)
        attention_tile(a, a->n_tiles - 1 - i, thread); /* the last rows see the most keys: the longest work first */
}

static void op_attention(struct device *dev, const struct op_span *spans, const struct op_kv *kv, int n_spans, const float *q, int n_head, int n_head_kv, int d, float scale,
                         float *out)
{
    struct attention_job a = {.cpu = dev->impl, .spans = spans, .kv = kv, .q = q, .n_head = n_head, .n_head_kv = n_head_kv, .d = d, .scale = scale, .out = out};
    int64_t most = ATTENTION_LANES / (n_head / n_head_kv), fair = rows_of(spans, n_spans) * n_head_kv / (4 * dev->n_threads);
    a.tile_rows = most < fair ? most : fair;
    if (a.tile_rows < 1)
        a.tile_rows = 1;
    for (int i = 0; i < n_spans; i++)
        a.n_tiles += (long)tiles_of(&a, i);
    if (a.n_tiles == 1)
        attention_main(&a, 0, 1);
    else
        pool_run(a.cpu->pool, attention_main, &a);
}

static void sigmoid_gate_item(const void *args, int64_t i)
{
    const struct rows_args *a = args;
    for (int h = 0; h < a->n_head; h++)
        a->k->sigmoid_mul(a->out + (i * a->n_head + h) * a->head_d, a->x + (i * a->n_head + h) * 2 * a->head_d + a->head_d, a->head_d);
}

static void op_sigmoid_gate(struct device *dev, float *x, const float *qg, int64_t n, int n_head, int d)
{
    struct rows_args args = {.k = kernels_of(dev), .out = x, .x = qg, .n_head = n_head, .head_d = d};
    run_items(dev, n, 4, sigmoid_gate_item, &args);
}

struct conv_args {
    const struct cpu_kernels *k;
    const struct op_span *spans;
    const struct op_delta_state *state;
    const float *u, *taps;
    float *out;
    int64_t n_channel, n_groups;
    int n_conv;
};

#define CHANNEL_GROUP 512

static void conv_item(const void *args, int64_t item)
{
    const struct conv_args *a = args;
    int i = (int)(item / a->n_groups);
    int64_t c0 = item % a->n_groups * CHANNEL_GROUP, c1 = c0 + CHANNEL_GROUP < a->n_channel ? c0 + CHANNEL_GROUP : a->n_channel;
    int64_t at = a->spans[i].first_row * a->n_channel;
    a->k->conv_silu(a->state[i].conv, a->u + at, a->spans[i].n_rows, a->n_channel, a->taps, a->n_conv, c0, c1, a->out + at);
}

static void op_conv_silu(struct device *dev, const struct op_span *spans, const struct op_delta_state *state, int n_spans, const float *u, const float *taps, int64_t n_channel,
                         int n_conv, float *out)
{
    struct conv_args args = {kernels_of(dev), spans, state, u, taps, out, n_channel, (n_channel + CHANNEL_GROUP - 1) / CHANNEL_GROUP, n_conv};
    run_items(dev, n_spans * args.n_groups, 1, conv_item, &args);
}

static void l2_norm_item(const void *args, int64_t i)
{
    const struct rows_args *a = args;
    for (int h = 0; h < a->n_head; h++) {
        float *x = a->out + i * a->stride + (int64_t)h * a->head_d;
        float factor = a->factor / sqrtf(a->k->dot(x, x, a->head_d) + a->eps);
        for (int j = 0; j < a->head_d; j++)
            x[j] *= factor;
    }
}

static void op_l2_norm(struct device *dev, float *x, int64_t n, int64_t stride, int n_head, int d, float eps, float factor)
{
    struct rows_args args = {.k = kernels_of(dev), .out = x, .stride = stride, .n_head = n_head, .head_d = d, .eps = eps, .factor = factor};
    run_items(dev, n, 4, l2_norm_item, &args);
}

static void op_delta_gates(struct device *dev, float *alpha, float *beta, const float *a_neg, const float *dt_bias, int64_t n, int n_head)
{
    (void)dev;
    for (int64_t i = 0; i < n; i++)
        for (int h = 0; h < n_head; h++) {
            float x = alpha[i * n_head + h] + dt_bias[h], b = beta[i * n_head + h];
            alpha[i * n_head + h] = a_neg[h] * (x > 20 ? x : log1pf(expf(x)));
            beta[i * n_head + h] = b >= 0 ? 1 / (1 + expf(-b)) : expf(b) / (1 + expf(b));
        }
}

struct delta_args {
    const struct cpu_kernels *k;
    const struct op_span *spans;
    const struct op_delta_state *state;
    const float *qkv, *g, *beta;
    float *out;
    int64_t stride;
    int n_head_k, n_head_v, d, parts;
};

static void delta_item(const void *args, int64_t item)
{
    const struct delta_args *a = args;
    int part = (int)(item % a->parts), head = (int)(item / a->parts % a->n_head_v), i = (int)(item / a->parts / a->n_head_v);
    const struct op_span *span = &a->spans[i];
    const float *rows = a->qkv + span->first_row * a->stride;
    int key_head = head % a->n_head_k, keys = a->n_head_k * a->d;
    struct delta_head h = {.s = a->state[i].s + (int64_t)head * a->d * a->d, .q = rows + key_head * a->d, .k = rows + keys + key_head * a->d, .v = rows + 2 * keys + head * a->d,
                           .g = a->g + span->first_row * a->n_head_v + head, .beta = a->beta + span->first_row * a->n_head_v + head, .stride = a->stride,
                           .gate_stride = a->n_head_v, .out_stride = (int64_t)a->n_head_v * a->d, .n_tokens = span->n_rows, .d = a->d,
                           .row0 = part * a->d / a->parts, .row1 = (part + 1) * a->d / a->parts,
                           .out = a->out + span->first_row * a->n_head_v * a->d + (int64_t)head * a->d};
    a->k->delta(&h);
}

static void op_delta_rule(struct device *dev, const struct op_span *spans, const struct op_delta_state *state, int n_spans, const float *qkv, int64_t stride, const float *g,
                          const float *beta, int n_head_k, int n_head_v, int d, float *out)
{
    struct delta_args args = {kernels_of(dev), spans, state, qkv, g, beta, out, stride, n_head_k, n_head_v, d, d % 8 == 0 ? 4 : 1};
    run_items(dev, (int64_t)n_spans * n_head_v * args.parts, 1, delta_item, &args);
}

static void gated_norm_item(const void *args, int64_t i)
{
    const struct rows_args *a = args;
    for (int h = 0; h < a->n_head; h++) {
        int64_t at = (i * a->n_head + h) * a->head_d;
        a->k->rms_norm_row(a->out + at, a->scale, a->eps, a->head_d, a->out + at);
        a->k->silu_mul(a->out + at, a->x + at, a->head_d);
    }
}

static void op_gated_rms_norm(struct device *dev, float *o, const float *z, const float *scale, float eps, int64_t n, int n_head, int d)
{
    struct rows_args args = {.k = kernels_of(dev), .out = o, .x = z, .scale = scale, .eps = eps, .n_head = n_head, .head_d = d};
    run_items(dev, n, 2, gated_norm_item, &args);
}

static void route_row(float *p, int n_expert, int k, int32_t *experts, float *weights)
{
    float best = p[0], sum = 0, chosen = 0;
    for (int e = 1; e < n_expert; e++)
        best = fmaxf(best, p[e]);
    for (int e = 0; e < n_expert; e++)
        sum += p[e] = expf(p[e] - best);
    for (int e = 0; e < n_expert; e++)
        p[e] /= sum;
    for (int i = 0; i < k; i++) {
        int top = -1;
        for (int e = 0; e < n_expert; e++) {
            int taken = 0;
            for (int j = 0; j < i; j++)
                taken |= experts[j] == e;
            if (!taken && (top < 0 || p[e] > p[top]))
                top = e;
        }
        experts[i] = top;
        chosen += weights[i] = p[top];
    }
    for (int i = 0; i < k; i++)
        weights[i] /= chosen;
}

static void op_route(struct device *dev, float *logits, int64_t n, int n_expert, int k, int32_t *experts, float *weights)
{
    (void)dev;
    for (int64_t i = 0; i < n; i++)
        route_row(logits + i * n_expert, n_expert, k, experts + i * k, weights + i * k);
}

static void op_scatter_add(struct device *dev, float *x, const float *y, const int32_t *rows, const float *w, int64_t n, int64_t d)
{
    const struct cpu_kernels *k = kernels_of(dev);
    for (int64_t i = 0; i < n; i++)
        k->axpy(x + rows[i] * d, w ? w[i] : 1, y + i * d, d);
}

static void op_gather(struct device *dev, const float *x, const int32_t *rows, int64_t n, int64_t d, float *out)
{
    (void)dev;
    for (int64_t i = 0; i < n; i++)
        memcpy(out + i * d, x + rows[i] * d, (size_t)d * sizeof *out);
}

static void op_shared_gate_add(struct device *dev, const float *x, const float *w, int64_t n_in, const float *y, int64_t n, int64_t d, float *gate, float *out)
{
    const struct cpu_kernels *k = kernels_of(dev);
    for (int64_t i = 0; i < n; i++) {
        float s = k->dot(x + i * n_in, w, n_in);
        gate[i] = s >= 0 ? 1 / (1 + expf(-s)) : expf(s) / (1 + expf(s));
        k->axpy(out + i * d, gate[i], y + i * d, d);
    }
}

const struct op_table cpu_op_table = {
    .embed = op_embed, .rms_norm = op_rms_norm, .matmul = cpu_matmul, .add = op_add, .swiglu = op_swiglu, .qk_norm_rope = op_qk_norm_rope, .kv_store = op_kv_store,
    .attention = op_attention, .sigmoid_gate = op_sigmoid_gate, .conv_silu = op_conv_silu, .l2_norm = op_l2_norm, .delta_gates = op_delta_gates,
    .delta_rule = op_delta_rule, .gated_rms_norm = op_gated_rms_norm, .route = op_route, .scatter_add = op_scatter_add, .gather = op_gather,
    .shared_gate_add = op_shared_gate_add,
};
