/* The AVX2 + FMA + F16C rung. A product of one weight row and one activation row is always summed the same way, whatever tile it is computed in: eight f32 lanes, lane l
 * holding elements 4l..4l+3 of each block of 32, blocks in increasing order, one fixed horizontal sum at the end. */
#include <math.h>
#include <string.h>

#include "compute/cpu/attention_avx2.h"
#include "compute/cpu/avx2.h"
#include "compute/cpu/kernels.h"
#include "compute/cpu/unpack.h"
#include "compute/cpu/unpack_avx2.h"

static inline __m256 sigmoid8(__m256 x)
{
    __m256 one = _mm256_set1_ps(1);
    return _mm256_div_ps(one, _mm256_add_ps(one, exp8(_mm256_sub_ps(_mm256_setzero_ps(), x))));
}

/* Largest magnitude of 16 values; NaN when one is not finite. */
static inline float largest16(__m256 v0, __m256 v1)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    __m256 bad = _mm256_or_ps(_mm256_cmp_ps(v0, v0, _CMP_UNORD_Q), _mm256_cmp_ps(v1, v1, _CMP_UNORD_Q));
    __m256 max = _mm256_max_ps(_mm256_andnot_ps(sign, v0), _mm256_andnot_ps(sign, v1));
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(max), _mm256_extractf128_ps(max, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    m = _mm_max_ss(m, _mm_movehdup_ps(m));
    float largest = _mm_cvtss_f32(m);
    return _mm256_movemask_ps(bad) || largest > 1e30f ? NAN : largest;
}

/* Sixteen values to int8: rounded so that the largest is +-127, then the scale that brings scale * q nearest to x in the least squares. */
static inline void quantise16(const float *x, int8_t *q, float *d, float *s16)
{
    __m256 v0 = _mm256_loadu_ps(x), v1 = _mm256_loadu_ps(x + 8);
    float largest = largest16(v0, v1), scale = largest > 1e-30f ? 0 : largest * 0; /* zero stays zero, NaN stays NaN */
    __m256 factor = _mm256_set1_ps(largest > 1e-30f ? 127 / largest : 0);
    __m256i w0 = _mm256_cvtps_epi32(_mm256_mul_ps(v0, factor)), w1 = _mm256_cvtps_epi32(_mm256_mul_ps(v1, factor));
    __m256 f0 = _mm256_cvtepi32_ps(w0), f1 = _mm256_cvtepi32_ps(w1);
    if (largest > 1e-30f)
        scale = sum_lanes(_mm256_fmadd_ps(v0, f0, _mm256_mul_ps(v1, f1))) / sum_lanes(_mm256_fmadd_ps(f0, f0, _mm256_mul_ps(f1, f1)));
    __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(w0, w1), 0xD8);
    _mm_storeu_si128((__m128i *)q, _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
    *d = scale;
    *s16 = scale * sum_lanes(_mm256_add_ps(f0, f1)); /* whole numbers below 2^24: exact in any order */
}

static void quantise_row(const float *x, int64_t n, int8_t *q, float *d, float *s16, int64_t n_s16)
{
    for (int64_t g = n / 16; g < n_s16; g++)
        s16[g] = 0;
    for (int64_t g = 0; g < n / 16; g++)
        quantise16(x + 16 * g, q + 16 * g, d + g, s16 + g);
}

/* The scales of a block's two halves, each over its four lanes. */
static inline __m256 half_scales(const float *d)
{
    return _mm256_permutevar_ps(_mm256_castpd_ps(_mm256_broadcast_sd((const double *)d)), _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1));
}

/* Lane sums of 32 products. Unsigned: |pair sums| <= 2 * 63 * 127 fits 16 bits. Signed: |w| <= 128, so 2 * 128 * 127 does too. */
static inline __m256 block_unsigned(__m256i w, __m256i x)
{
    return _mm256_cvtepi32_ps(_mm256_madd_epi16(_mm256_maddubs_epi16(w, x), _mm256_set1_epi16(1)));
}

static inline __m256 block_signed(__m256i w_abs, __m256i w, __m256i x)
{
    return _mm256_cvtepi32_ps(_mm256_madd_epi16(_mm256_maddubs_epi16(w_abs, _mm256_sign_epi8(x, w)), _mm256_set1_epi16(1)));
}

static inline float offset_sum(__m256 acc, const float *min, const float *s16, int64_t n)
{
    __m256 offset = _mm256_setzero_ps();
    for (int64_t g = 0; g < n; g += 8)
        offset = _mm256_fmadd_ps(_mm256_loadu_ps(min + g), _mm256_loadu_ps(s16 + g), offset);
    return sum_lanes(_mm256_sub_ps(acc, offset));
}

#define LOAD_W(r) __m256i w##r = _mm256_loadu_si256((const __m256i *)(w##r##p + 32 * b)); __m256 s##r = _mm256_loadu_ps(s##r##p + 8 * b);
#define ABS_W(r) __m256i u##r = _mm256_sign_epi8(w##r, w##r);
#define LOAD_X(c) __m256i x##c = _mm256_loadu_si256((const __m256i *)(x##c##p + 32 * b)); __m256 d##c = half_scales(d##c##p + 2 * b);
#define FMA_U(r, c) a##r##c = _mm256_fmadd_ps(block_unsigned(w##r, x##c), _mm256_mul_ps(s##r, d##c), a##r##c);
#define FMA_S(r, c) a##r##c = _mm256_fmadd_ps(block_signed(u##r, w##r, x##c), _mm256_mul_ps(s##r, d##c), a##r##c);
#define ROW(r) const uint8_t *w##r##p = p->q + (r0 + r) * p->q_stride; const float *s##r##p = p->scale + (r0 + r) * p->scale_stride;
#define COLUMN(c) const int8_t *x##c##p = x->q + (at + c) * x->q_stride; const float *d##c##p = x->d + (at + c) * x->d_stride;
#define ZERO(r, c) __m256 a##r##c = _mm256_setzero_ps();
#define OUT_S(r, c) out[c * ld + r0 + r] = sum_lanes(a##r##c);
#define OUT_U(r, c) out[c * ld + r0 + r] = offset_sum(a##r##c, p->min + (r0 + r) * p->min_stride, x->s16 + (at + c) * x->s_stride, x->s_stride);
#define FOUR(X, c) X(0, c) X(1, c) X(2, c) X(3, c)
#define EIGHT(X) FOUR(X, 0) FOUR(X, 1)

static void tile_4x2(const struct panel *p, int r0, const struct act *x, int64_t at, float *out, int64_t ld)
{
    ROW(0) ROW(1) ROW(2) ROW(3) COLUMN(0) COLUMN(1) EIGHT(ZERO)
    if (p->is_signed) {
        for (int64_t b = 0; b < p->n_in / 32; b++) {
            LOAD_X(0) LOAD_X(1)
            { LOAD_W(0) ABS_W(0) FMA_S(0, 0) FMA_S(0, 1) }
            { LOAD_W(1) ABS_W(1) FMA_S(1, 0) FMA_S(1, 1) }
            { LOAD_W(2) ABS_W(2) FMA_S(2, 0) FMA_S(2, 1) }
            { LOAD_W(3) ABS_W(3) FMA_S(3, 0) FMA_S(3, 1) }
        }
        EIGHT(OUT_S)
    } else {
        for (int64_t b = 0; b < p->n_in / 32; b++) {
            LOAD_X(0) LOAD_X(1)
            { LOAD_W(0) FMA_U(0, 0) FMA_U(0, 1) }
            { LOAD_W(1) FMA_U(1, 0) FMA_U(1, 1) }
            { LOAD_W(2) FMA_U(2, 0) FMA_U(2, 1) }
            { LOAD_W(3) FMA_U(3, 0) FMA_U(3, 1) }
        }
        EIGHT(OUT_U)
    }
}

static void tile_4x1(const struct panel *p, int r0, const struct act *x, int64_t at, float *out, int64_t ld)
{
    ROW(0) ROW(1) ROW(2) ROW(3) COLUMN(0) FOUR(ZERO, 0)
    if (p->is_signed) {
        for (int64_t b = 0; b < p->n_in / 32; b++) {
            LOAD_X(0) LOAD_W(0) LOAD_W(1) LOAD_W(2) LOAD_W(3) ABS_W(0) ABS_W(1) ABS_W(2) ABS_W(3) FOUR(FMA_S, 0)
        }
        FOUR(OUT_S, 0)
    } else {
        for (int64_t b = 0; b < p->n_in / 32; b++) {
            LOAD_X(0) LOAD_W(0) LOAD_W(1) LOAD_W(2) LOAD_W(3) FOUR(FMA_U, 0)
        }
        FOUR(OUT_U, 0)
    }
}

static void tile_1x1(const struct panel *p, int r0, const struct act *x, int64_t at, float *out, int64_t ld)
{
    ROW(0) COLUMN(0) ZERO(0, 0)
    if (p->is_signed) {
        for (int64_t b = 0; b < p->n_in / 32; b++) {
            LOAD_X(0) LOAD_W(0) ABS_W(0) FMA_S(0, 0)
        }
        OUT_S(0, 0)
    } else {
        for (int64_t b = 0; b < p->n_in / 32; b++) {
            LOAD_X(0) LOAD_W(0) FMA_U(0, 0)
        }
        OUT_U(0, 0)
    }
}

static void tile_int8(const struct panel *p, int r0, int n_r, const struct act *x, int64_t c0, int64_t c1, float *out, int64_t ld)
{
    int64_t c = c0;
    if (n_r == 4) {
        for (; c + 1 < c1; c += 2)
            tile_4x2(p, r0, x, c, out + (c - c0) * ld, ld);
        for (; c < c1; c++)
            tile_4x1(p, r0, x, c, out + (c - c0) * ld, ld);
        return;
    }
    for (; c < c1; c++)
        for (int r = r0; r < r0 + n_r; r++)
            tile_1x1(p, r, x, c, out + (c - c0) * ld, ld);
}

/* f32: eight lanes over k in steps of 8, the tail as one more masked step. */
#define F_ROW(r) const float *w##r = p->f32 + (r0 + r) * p->n_in;
#define F_COLUMN(c) const float *y##c = x + (at + c) * x_stride;
#define F_FMA(r, c) a##r##c = _mm256_fmadd_ps(v##r, z##c, a##r##c);
#define F_STEP(LOAD) \
    __m256 v0 = LOAD(w0 + i), v1 = LOAD(w1 + i), v2 = LOAD(w2 + i), v3 = LOAD(w3 + i), z0 = LOAD(y0 + i), z1 = LOAD(y1 + i); \
    EIGHT(F_FMA)
#define F_LOAD(address) _mm256_loadu_ps(address)
#define F_LOAD_TAIL(address) _mm256_maskload_ps(address, mask)

static void tile_f32_4x2(const struct panel *p, int r0, const float *x, int64_t x_stride, int64_t at, float *out, int64_t ld)
{
    F_ROW(0) F_ROW(1) F_ROW(2) F_ROW(3) F_COLUMN(0) F_COLUMN(1) EIGHT(ZERO)
    int64_t i = 0;
    for (; i + 8 <= p->n_in; i += 8) {
        F_STEP(F_LOAD)
    }
    if (i < p->n_in) {
        __m256i mask = tail_mask(p->n_in - i);
        F_STEP(F_LOAD_TAIL)
    }
    EIGHT(OUT_S)
}

static float dot(const float *a, const float *b, int64_t n)
{
    __m256 sum = _mm256_setzero_ps();
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        sum = _mm256_fmadd_ps(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i), sum);
    if (i < n) {
        __m256i mask = tail_mask(n - i);
        sum = _mm256_fmadd_ps(_mm256_maskload_ps(a + i, mask), _mm256_maskload_ps(b + i, mask), sum);
    }
    return sum_lanes(sum);
}

static void tile_f32(const struct panel *p, int r0, int n_r, const float *x, int64_t x_stride, int64_t c0, int64_t c1, float *out, int64_t ld)
{
    int64_t c = c0;
    if (n_r == 4)
        for (; c + 1 < c1; c += 2)
            tile_f32_4x2(p, r0, x, x_stride, c, out + (c - c0) * ld, ld);
    for (; c < c1; c++)
        for (int r = r0; r < r0 + n_r; r++)
            out[(c - c0) * ld + r] = dot(p->f32 + r * p->n_in, x + c * x_stride, p->n_in);
}

static void rms_norm_row(const float *x, const float *scale, float eps, int64_t d, float *out)
{
    float factor = 1 / sqrtf(dot(x, x, d) / (float)d + eps);
    for (int64_t i = 0; i < d; i++)
        out[i] = x[i] * factor * scale[i];
}

/* Applies an expression of vectors over n floats, the tail masked. */
#define FOR_EACH_8(n, BODY)                                           \
    for (int64_t i = 0; i < (n); i += 8) {                            \
        __m256i mask = tail_mask((n) - i < 8 ? (n) - i : 8);          \
        BODY                                                          \
    }
#define LOAD8(address) _mm256_maskload_ps(address, mask)
#define STORE8(address, value) _mm256_maskstore_ps(address, mask, value)

static void swiglu(const float *gate, const float *up, int64_t n, float *out)
{
    FOR_EACH_8(n, __m256 g = LOAD8(gate + i); STORE8(out + i, _mm256_mul_ps(_mm256_mul_ps(g, sigmoid8(g)), LOAD8(up + i)));)
}

static void sigmoid_mul(float *x, const float *gate, int64_t n)
{
    FOR_EACH_8(n, STORE8(x + i, _mm256_mul_ps(LOAD8(x + i), sigmoid8(LOAD8(gate + i))));)
}

static void silu_mul(float *x, const float *z, int64_t n)
{
    FOR_EACH_8(n, __m256 g = LOAD8(z + i); STORE8(x + i, _mm256_mul_ps(LOAD8(x + i), _mm256_mul_ps(g, sigmoid8(g))));)
}

static void add(float *x, const float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] += y[i];
}

static void axpy(float *x, float a, const float *y, int64_t n)
{
    __m256 factor = _mm256_set1_ps(a);
    FOR_EACH_8(n, STORE8(x + i, _mm256_fmadd_ps(factor, LOAD8(y + i), LOAD8(x + i)));)
}

/* Eight channels at a time; n_conv is small and the taps are strided, so they are gathered once a group. */
static void conv_silu(float *state, const float *u, int64_t n, int64_t n_channel, const float *taps, int n_conv, int64_t c0, int64_t c1, float *out)
{
    int past = n_conv - 1;
    for (int64_t c = c0; c < c1; c += 8) {
        __m256i mask = tail_mask(c1 - c < 8 ? c1 - c : 8);
        __m256 tap[16];
        __m256i index = _mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(n_conv));
        for (int j = 0; j < n_conv; j++)
            tap[j] = _mm256_mask_i32gather_ps(_mm256_setzero_ps(), taps + c * n_conv + j, index, _mm256_castsi256_ps(mask), 4);
        for (int64_t t = 0; t < n; t++) {
            __m256 sum = _mm256_setzero_ps();
            for (int j = 0; j < n_conv; j++) {
                int64_t at = t - past + j;
                sum = _mm256_fmadd_ps(tap[j], LOAD8(at < 0 ? state + (at + past) * n_channel + c : u + at * n_channel + c), sum);
            }
            STORE8(out + t * n_channel + c, _mm256_mul_ps(sum, sigmoid8(sum)));
        }
        for (int j = 0; j < past; j++) {
            int64_t at = n - past + j;
            STORE8(state + j * n_channel + c, LOAD8(at < 0 ? state + (at + past) * n_channel + c : u + at * n_channel + c));
        }
    }
}

/* Two rows of the state at a time share the loads of k and q. d is a multiple of 8 here; other sizes go through the scalar form. */
static void delta_two_rows(const struct delta_head *h, int y)
{
    float *row0 = h->s + (int64_t)y * h->d, *row1 = row0 + h->d;
    for (int64_t t = 0; t < h->n_tokens; t++) {
        const float *k = h->k + t * h->stride, *q = h->q + t * h->stride;
        __m256 a0 = _mm256_setzero_ps(), a1 = a0, b0 = a0, b1 = a0, kq8 = a0;
        for (int i = 0; i < h->d; i += 8) {
            __m256 k8 = _mm256_loadu_ps(k + i), q8 = _mm256_loadu_ps(q + i), r0 = _mm256_loadu_ps(row0 + i), r1 = _mm256_loadu_ps(row1 + i);
            a0 = _mm256_fmadd_ps(r0, k8, a0);
            b0 = _mm256_fmadd_ps(r0, q8, b0);
            a1 = _mm256_fmadd_ps(r1, k8, a1);
            b1 = _mm256_fmadd_ps(r1, q8, b1);
            kq8 = _mm256_fmadd_ps(k8, q8, kq8);
        }
        float decay = expf(h->g[t * h->gate_stride]), beta = h->beta[t * h->gate_stride], kq = sum_lanes(kq8);
        const float *v = h->v + t * h->stride + y;
        float e0 = beta * (v[0] - decay * sum_lanes(a0)), e1 = beta * (v[1] - decay * sum_lanes(a1));
        float *out = h->out + t * h->out_stride + y;
        out[0] = decay * sum_lanes(b0) + e0 * kq;
        out[1] = decay * sum_lanes(b1) + e1 * kq;
        __m256 decay8 = _mm256_set1_ps(decay), e0_8 = _mm256_set1_ps(e0), e1_8 = _mm256_set1_ps(e1);
        for (int i = 0; i < h->d; i += 8) {
            __m256 k8 = _mm256_loadu_ps(k + i);
            _mm256_storeu_ps(row0 + i, _mm256_fmadd_ps(e0_8, k8, _mm256_mul_ps(decay8, _mm256_loadu_ps(row0 + i))));
            _mm256_storeu_ps(row1 + i, _mm256_fmadd_ps(e1_8, k8, _mm256_mul_ps(decay8, _mm256_loadu_ps(row1 + i))));
        }
    }
}

static void (*delta_scalar)(const struct delta_head *h);

static void delta(const struct delta_head *h)
{
    if (h->d % 8 || (h->row1 - h->row0) % 2) {
        delta_scalar(h);
        return;
    }
    for (int y = h->row0; y < h->row1; y += 2)
        delta_two_rows(h, y);
}

void cpu_kernels_avx2(struct cpu_kernels *k)
{
    delta_scalar = k->delta;
    k->name = "avx2";
    k->quantise_row = quantise_row;
    k->tile_int8 = tile_int8;
    k->tile_f32 = tile_f32;
    k->rms_norm_row = rms_norm_row;
    k->swiglu = swiglu;
    k->sigmoid_mul = sigmoid_mul;
    k->silu_mul = silu_mul;
    k->add = add;
    k->axpy = axpy;
    k->dot = dot;
    k->conv_silu = conv_silu;
    k->kv_pack = kv_pack_avx2;
    k->attention = attention_avx2;
    k->delta = delta;
    unpack_fill(k);
    k->unpack[QUANT_Q4_0].fn = unpack_q4_0_avx2;
    k->unpack[QUANT_Q8_0].fn = unpack_q8_0_avx2;
    k->unpack[QUANT_Q4_K].fn = unpack_q4_k_avx2;
    k->unpack[QUANT_Q5_K].fn = unpack_q5_k_avx2;
    k->unpack[QUANT_Q6_K].fn = unpack_q6_k_avx2;
}
