/* The scalar rung: every kernel in plain C, correct and obvious, the reference the others are held against. */
#include <math.h>
#include <string.h>

#include "compute/cpu/kernels.h"
#include "compute/cpu/unpack.h"
#include "gguf/quant.h"

/* Sixteen values to int8: rounded so that the largest is +-127, then the scale that brings scale * q nearest to x in the least squares. */
static float quantise16(const float *x, int8_t *q)
{
    float max = 0, xq = 0, qq = 0;
    int finite = 1;
    for (int i = 0; i < 16; i++) {
        max = fmaxf(max, fabsf(x[i]));
        finite &= fabsf(x[i]) <= 1e30f;
    }
    memset(q, 0, 16);
    if (!finite || max <= 1e-30f)
        return finite ? 0 : NAN; /* what is not finite must come out so */
    for (int i = 0; i < 16; i++) {
        q[i] = (int8_t)nearbyintf(x[i] * (127 / max));
        xq += x[i] * (float)q[i];
        qq += (float)q[i] * (float)q[i];
    }
    return xq / qq;
}

static void quantise_row(const float *x, int64_t n, int8_t *q, float *d, float *s16, int64_t n_s16)
{
    for (int64_t g = n / 16; g < n_s16; g++)
        s16[g] = 0;
    for (int64_t g = 0; g < n / 16; g++) {
        int sum = 0;
        d[g] = quantise16(x + 16 * g, q + 16 * g);
        for (int i = 0; i < 16; i++)
            sum += q[16 * g + i];
        s16[g] = d[g] * (float)sum;
    }
}

static float dot_int8(const struct panel *p, int r, const struct act *x, int64_t c)
{
    const uint8_t *w = p->q + r * p->q_stride;
    const int8_t *q = x->q + c * x->q_stride;
    const float *scale = p->scale + r * p->scale_stride, *d = x->d + c * x->d_stride;
    float sum = 0, offset = 0;
    for (int64_t b = 0; b < p->n_in / 32; b++) {
        int half[2] = {0, 0};
        for (int i = 0; i < 32; i++)
            half[i / 16] += (p->is_signed ? (int8_t)w[32 * b + i] : w[32 * b + i]) * q[32 * b + i];
        sum += (float)half[0] * (scale[8 * b] * d[2 * b]) + (float)half[1] * (scale[8 * b + 4] * d[2 * b + 1]);
    }
    if (!p->is_signed)
        for (int64_t g = 0; g < p->n_in / 16; g++)
            offset += p->min[r * p->min_stride + g] * x->s16[c * x->s_stride + g];
    return sum - offset;
}

static void tile_int8(const struct panel *p, int r0, int n_r, const struct act *x, int64_t c0, int64_t c1, float *out, int64_t ld)
{
    for (int64_t c = c0; c < c1; c++)
        for (int r = r0; r < r0 + n_r; r++)
            out[(c - c0) * ld + r] = dot_int8(p, r, x, c);
}

static float dot(const float *a, const float *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return (float)sum;
}

static void tile_f32(const struct panel *p, int r0, int n_r, const float *x, int64_t x_stride, int64_t c0, int64_t c1, float *out, int64_t ld)
{
    for (int64_t c = c0; c < c1; c++)
        for (int r = r0; r < r0 + n_r; r++)
            out[(c - c0) * ld + r] = dot(p->f32 + r * p->n_in, x + c * x_stride, p->n_in);
}

static void rms_norm_row(const float *x, const float *scale, float eps, int64_t d, float *out)
{
    double sum = 0;
    for (int64_t i = 0; i < d; i++)
        sum += (double)x[i] * (double)x[i];
    float factor = (float)(1 / sqrt(sum / (double)d + (double)eps));
    for (int64_t i = 0; i < d; i++)
        out[i] = x[i] * factor * scale[i];
}

static float sigmoid(float x)
{
    return x >= 0 ? 1 / (1 + expf(-x)) : expf(x) / (1 + expf(x));
}

static void swiglu(const float *gate, const float *up, int64_t n, float *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = gate[i] * sigmoid(gate[i]) * up[i];
}

static void sigmoid_mul(float *x, const float *gate, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] *= sigmoid(gate[i]);
}

static void silu_mul(float *x, const float *z, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] *= z[i] * sigmoid(z[i]);
}

static void add(float *x, const float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] += y[i];
}

static void axpy(float *x, float a, const float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] += a * y[i];
}

static void conv_silu(float *state, const float *u, int64_t n, int64_t n_channel, const float *taps, int n_conv, int64_t c0, int64_t c1, float *out)
{
    int past = n_conv - 1;
    for (int64_t c = c0; c < c1; c++) {
        for (int64_t t = 0; t < n; t++) {
            float sum = 0;
            for (int j = 0; j < n_conv; j++) {
                int64_t at = t - past + j; /* before the span: from the state */
                sum += taps[c * n_conv + j] * (at < 0 ? state[(at + past) * n_channel + c] : u[at * n_channel + c]);
            }
            out[t * n_channel + c] = sum * sigmoid(sum);
        }
        for (int j = 0; j < past; j++) { /* the last `past` of state and span together, oldest first */
            int64_t at = n - past + j;
            state[j * n_channel + c] = at < 0 ? state[(at + past) * n_channel + c] : u[at * n_channel + c];
        }
    }
}

static uint16_t half(float x)
{
    return f32_to_f16(isfinite(x) ? fminf(fmaxf(x, -65504), 65504) : x);
}

static void pack_q8_0(const float *x, uint8_t *out)
{
    float max = 0;
    int finite = 1;
    for (int i = 0; i < 32; i++) {
        max = fmaxf(max, fabsf(x[i]));
        finite &= isfinite(x[i]) != 0;
    }
    uint16_t scale = finite ? half(max / 127) : 0x7E00;
    float inverse = finite && scale ? 1 / f16_to_f32(scale) : 0;
    memcpy(out, &scale, sizeof scale);
    for (int i = 0; i < 32; i++)
        out[2 + i] = finite ? (uint8_t)(int8_t)nearbyintf(fminf(fmaxf(x[i] * inverse, -127), 127)) : 0;
}

static void kv_pack(enum kv_type type, const float *x, int64_t n, void *out)
{
    uint8_t *to = out;
    if (type == KV_F32) {
        memcpy(to, x, (size_t)n * sizeof *x);
        return;
    }
    for (int64_t i = 0; type == KV_F16 && i < n; i++) {
        uint16_t h = half(x[i]);
        memcpy(to + 2 * i, &h, sizeof h);
    }
    for (int64_t i = 0; type == KV_Q8_0 && i < n; i += 32)
        pack_q8_0(x + i, to + i / 32 * 34);
}

#define PIECE 32

/* Values j .. j + n - 1 of a cached head, j a multiple of PIECE, n <= PIECE. */
static void kv_piece(enum kv_type type, const uint8_t *head, int j, int n, float *out)
{
    if (type == KV_F32)
        memcpy(out, head + 4 * (size_t)j, (size_t)n * sizeof *out);
    else
        quant_type(type == KV_F16 ? QUANT_F16 : QUANT_Q8_0)->decode(head + kv_head_bytes(type, j), out, (size_t)n);
}

static float dot_key(const float *q, enum kv_type type, const uint8_t *key, int d)
{
    float piece[PIECE];
    double sum = 0;
    for (int j = 0; j < d; j += PIECE) {
        int n = d - j < PIECE ? d - j : PIECE;
        kv_piece(type, key, j, n, piece);
        for (int i = 0; i < n; i++)
            sum += (double)q[j + i] * (double)piece[i];
    }
    return (float)sum;
}

static void add_value(float *out, float weight, enum kv_type type, const uint8_t *value, int d)
{
    float piece[PIECE];
    for (int j = 0; j < d; j += PIECE) {
        int n = d - j < PIECE ? d - j : PIECE;
        kv_piece(type, value, j, n, piece);
        axpy(out + j, weight, piece, n);
    }
}

static void attention_head(const struct attention_tile *a, const float *q, int64_t n_keys, float *out)
{
    float best = -INFINITY, total = 0, score[KEY_BLOCK];
    memset(out, 0, (size_t)a->d * sizeof *out);
    for (int64_t p0 = 0; p0 < n_keys; p0 += KEY_BLOCK) {
        int n = (int)(n_keys - p0 < KEY_BLOCK ? n_keys - p0 : KEY_BLOCK);
        float block_best = best;
        for (int i = 0; i < n; i++) {
            score[i] = dot_key(q, a->type, a->k + (p0 + i) * a->kv_stride, a->d) * a->scale;
            block_best = fmaxf(block_best, score[i]);
        }
        float fade = best == -INFINITY ? 0 : expf(best - block_best);
        total *= fade;
        for (int j = 0; j < a->d; j++)
            out[j] *= fade;
        for (int i = 0; i < n; i++) {
            float weight = expf(score[i] - block_best);
            total += weight;
            add_value(out, weight, a->type, a->v + (p0 + i) * a->kv_stride, a->d);
        }
        best = block_best;
    }
    for (int j = 0; j < a->d; j++)
        out[j] /= total;
}

static void attention(const struct attention_tile *a)
{
    for (int r = 0; r < a->n_rows; r++)
        for (int h = 0; h < a->n_group; h++) {
            int64_t at = r * a->row_stride + (int64_t)h * a->d;
            attention_head(a, a->q + at, a->n_keys + r, a->out + at);
        }
}

static void delta(const struct delta_head *h)
{
    for (int y = h->row0; y < h->row1; y++) {
        float *row = h->s + (int64_t)y * h->d;
        for (int64_t t = 0; t < h->n_tokens; t++) {
            const float *k = h->k + t * h->stride, *q = h->q + t * h->stride;
            float decay = expf(h->g[t * h->gate_stride]);
            float a = dot(row, k, h->d), b = dot(row, q, h->d), kq = dot(k, q, h->d);
            float e = h->beta[t * h->gate_stride] * (h->v[t * h->stride + y] - decay * a);
            h->out[t * h->out_stride + y] = decay * b + e * kq;
            for (int i = 0; i < h->d; i++)
                row[i] = decay * row[i] + e * k[i];
        }
    }
}

void cpu_kernels_scalar(struct cpu_kernels *k)
{
    *k = (struct cpu_kernels){
        .name = "scalar", .quantise_row = quantise_row, .tile_int8 = tile_int8, .tile_f32 = tile_f32, .rms_norm_row = rms_norm_row, .swiglu = swiglu,
        .sigmoid_mul = sigmoid_mul, .silu_mul = silu_mul, .add = add, .axpy = axpy, .dot = dot, .conv_silu = conv_silu, .kv_pack = kv_pack, .attention = attention, .delta = delta,
    };
    unpack_fill(k);
}
