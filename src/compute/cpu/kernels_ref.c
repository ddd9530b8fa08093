/* The scalar rung: every kernel in plain C, correct and obvious, the reference the others are held against. */
#include <math.h>
#include <string.h>

#include "compute/cpu/kernels.h"
#include "compute/cpu/unpack.h"

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

#define KEY_BLOCK 64

static void attention(const struct attention_row *a)
{
    for (int h = 0; h < a->n_group; h++) {
        const float *q = a->q + (int64_t)h * a->d;
        float *out = a->out + (int64_t)h * a->d, best = -INFINITY, total = 0, score[KEY_BLOCK];
        memset(out, 0, (size_t)a->d * sizeof *out);
        for (int64_t p0 = 0; p0 < a->n_keys; p0 += KEY_BLOCK) {
            int n = (int)(a->n_keys - p0 < KEY_BLOCK ? a->n_keys - p0 : KEY_BLOCK);
            float block_best = best;
            for (int i = 0; i < n; i++) {
                score[i] = dot(q, a->k + (p0 + i) * a->kv_stride, a->d) * a->scale;
                block_best = fmaxf(block_best, score[i]);
            }
            float fade = best == -INFINITY ? 0 : expf(best - block_best);
            total *= fade;
            for (int j = 0; j < a->d; j++)
                out[j] *= fade;
            for (int i = 0; i < n; i++) {
                float weight = expf(score[i] - block_best);
                total += weight;
                axpy(out, weight, a->v + (p0 + i) * a->kv_stride, a->d);
            }
            best = block_best;
        }
        for (int j = 0; j < a->d; j++)
            out[j] /= total;
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
        .sigmoid_mul = sigmoid_mul, .silu_mul = silu_mul, .add = add, .axpy = axpy, .dot = dot, .conv_silu = conv_silu, .attention = attention, .delta = delta,
    };
    unpack_fill(k);
}
