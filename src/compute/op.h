/* The operations of a forward pass: one signature and one contract each, implemented by every device. All activations are f32, row-major, rows of different
 * sequences side by side. Law: a row's numbers depend on that row and its sequence alone, never on who else is in the batch, on the chunk or on the thread
 * count; the order of additions along k and along keys is fixed per rung. Only the engine thread calls. Shapes are slowest first. Nothing here allocates. */
#ifndef COMPUTE_OP_H
#define COMPUTE_OP_H

#include <stddef.h>
#include <stdint.h>

/* A matrix of n_out rows of n_in contiguous weights: y[o] = sum_i W[o][i] x[i]. */
struct weight {
    const char *name;
    uint32_t type;      /* gguf/quant.h; dispatch is always on the tensor's own type */
    int64_t n_in, n_out;
    size_t row_bytes;
    const void *data;   /* device address; on the CPU the mapped file */
};

/* Rows first_row .. first_row + n_rows - 1 of the batch are consecutive positions of one sequence, from `position` on. */
struct op_span {
    int64_t first_row, n_rows;
    int64_t position;
};

/* How cached keys and values are kept: f32 as computed; f16 rounded to nearest even; or Q8_0 as in GGUF, blocks of 32 int8 with an f16 scale: the largest magnitude / 127 as f16,
 * and each value over that scale rounded to nearest even. What is finite stays finite: beyond the type's largest number (65504, or 127 * 65504) it becomes that number; what
 * is not finite stays so (with q8_0 its whole block becomes NaN). */
enum kv_type { KV_F32, KV_F16, KV_Q8_0, KV_N_TYPES };

/* Bytes of one head of d values; d is a multiple of 32 for q8_0. */
static inline size_t kv_head_bytes(enum kv_type type, int64_t d)
{
    return type == KV_F32 ? (size_t)d * 4 : type == KV_F16 ? (size_t)d * 2 : (size_t)d / 32 * 34;
}

/* One sequence's cache in one full-attention layer: [capacity][n_head_kv] heads of kv_head_bytes each. */
struct op_kv {
    enum kv_type type;
    void *k, *v;
};

/* One sequence's state in one linear-attention layer: conv [n_conv - 1][n_channel] (oldest first, raw inputs) and
 * s [n_head_v][d_value][d_key] (value-major: a row holds d_key contiguous floats). */
struct op_delta_state {
    float *conv, *s;
};

struct device;

struct op_table {
    /* out [n][w->n_in] = rows ids[0..n) of w, decoded. */
    void (*embed)(struct device *dev, const struct weight *w, const int32_t *ids, int64_t n, float *out);
    /* out [n][d] = x / sqrt(mean(x^2) + eps) * scale; out may be x. */
    void (*rms_norm)(struct device *dev, const float *x, const float *scale, float eps, int64_t n, int64_t d, float *out);
    /* For every w[i], i < n_w (all with the same n_in): out[i] [n][w[i]->n_out] = x [n][n_in] W^T. One preparation of x for all of them. */
    void (*matmul)(struct device *dev, const struct weight *const *w, float *const *out, int n_w, const float *x, int64_t n);
    /* x [n] += y [n] */
    void (*add)(struct device *dev, float *x, const float *y, int64_t n);
    /* out = silu(gate) * up, element-wise; out may be gate. */
    void (*swiglu)(struct device *dev, const float *gate, const float *up, int64_t n, float *out);
    /* qg [n][n_head][2 * d] holds per head d query values, then d gate values: q [n][n_head][d] = RMSNorm of the query with scale [d], then rotated; gate is left in qg.
     * k [n][n_head_kv][d] is normed with its scale and rotated in place. cos_sin [n][n_rot]: n_rot/2 cosines, then n_rot/2 sines of the row's position. */
    void (*qk_norm_rope)(struct device *dev, const float *qg, float *k, const float *q_scale, const float *k_scale, float eps, const float *cos_sin, int64_t n,
                         int n_head, int n_head_kv, int d, int n_rot, float *q);
    /* Stores k, v [n][n_head_kv * d] at their spans' positions in kv[span], in its type. d is any number for f32 and f16, a multiple of 32 for q8_0: the caller has refused
     * other models. */
    void (*kv_store)(struct device *dev, const struct op_span *spans, const struct op_kv *kv, int n_spans, const float *k, const float *v, int n_head_kv, int d);
    /* out [n][n_head][d]: causal softmax attention of q over kv[span] rows 0..position of the row (already stored), query head j on KV head j / (n_head / n_head_kv).
     * Cached values are exact in f32, so that the same sums are made of them whether a row comes alone or with others. */
    void (*attention)(struct device *dev, const struct op_span *spans, const struct op_kv *kv, int n_spans, const float *q, int n_head, int n_head_kv, int d, float scale,
                      float *out);
    /* x [n][n_head][d] *= sigmoid(gate), gate at qg[row][head][d..2d). */
    void (*sigmoid_gate)(struct device *dev, float *x, const float *qg, int64_t n, int n_head, int d);
    /* Depthwise causal convolution then silu: out [n][n_channel], taps [n_channel][n_conv] (tap n_conv-1 = the current row). Moves each span's conv state on. out may not be u. */
    void (*conv_silu)(struct device *dev, const struct op_span *spans, const struct op_delta_state *state, int n_spans, const float *u, const float *taps, int64_t n_channel,
                      int n_conv, float *out);
    /* In place on rows of stride `stride` floats: n_head heads of d floats from x: x *= factor / sqrt(sum(x^2) + eps). */
    void (*l2_norm)(struct device *dev, float *x, int64_t n, int64_t stride, int n_head, int d, float eps, float factor);
    /* g [n][n_head] = a_neg[head] * softplus(alpha + dt_bias[head]) in place of alpha; beta = sigmoid(beta) in place. */
    void (*delta_gates)(struct device *dev, float *alpha, float *beta, const float *a_neg, const float *dt_bias, int64_t n, int n_head);
    /* Gated delta rule over each span from and into its state. qkv [n][stride]: q [n_head_k][d], k [n_head_k][d] (both normed, q scaled), v [n_head_v][d]; value head j uses key
     * head j % n_head_k. g, beta [n][n_head_v]. out [n][n_head_v][d]. */
    void (*delta_rule)(struct device *dev, const struct op_span *spans, const struct op_delta_state *state, int n_spans, const float *qkv, int64_t stride, const float *g,
                       const float *beta, int n_head_k, int n_head_v, int d, float *out);
    /* o [n][n_head][d] = RMSNorm(o, scale [d]) * silu(z), in place. */
    void (*gated_rms_norm)(struct device *dev, float *o, const float *z, const float *scale, float eps, int64_t n, int n_head, int d);
    /* Per row: softmax over logits [n][n_expert] in place; the k largest (ties: lower index) to experts [n][k], their probabilities over their sum to weights [n][k]. */
    void (*route)(struct device *dev, float *logits, int64_t n, int n_expert, int k, int32_t *experts, float *weights);
    /* x[row] += y[i] * w[i] for rows[i], i < n, in order; rows may repeat. x [.][d], y [n][d]. factor of row: w NULL = 1. */
    void (*scatter_add)(struct device *dev, float *x, const float *y, const int32_t *rows, const float *w, int64_t n, int64_t d);
    /* out[i] = x[rows[i]] */
    void (*gather)(struct device *dev, const float *x, const int32_t *rows, int64_t n, int64_t d, float *out);
    /* out [n][d] += sigmoid(x [n][n_in] . w [n_in]) * y [n][d]; the sigmoid goes to gate [n]. (MoE's shared expert.) */
    void (*shared_gate_add)(struct device *dev, const float *x, const float *w, int64_t n_in, const float *y, int64_t n, int64_t d, float *gate, float *out);
};

#endif
