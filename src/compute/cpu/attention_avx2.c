/* Keys, values and attention on the AVX2 + FMA + F16C rung. A cached value is exact in f32 whatever its type, so a row's numbers are the same whether its keys are widened in
 * registers (one row: each is read once, memory is the limit) or once into scratch for all rows of a tile. The order of additions of one row and head is fixed: along d one
 * accumulator of eight lanes in steps of 8 and one horizontal sum; along keys in increasing order, blocks of KEY_BLOCK at multiples of it. */
#include "compute/cpu/attention_avx2.h"

#include <math.h>
#include <string.h>

#include "compute/cpu/avx2.h"

#define INLINE static inline __attribute__((always_inline)) /* type and counts are constants where these are called */
#define LARGEST_HALF 65504.0f

/* Eight halves: nearest even, finite stays finite, NaN and infinity as they are. */
static inline __m128i half8(__m256 x)
{
    __m256 bounded = _mm256_min_ps(_mm256_set1_ps(LARGEST_HALF), _mm256_max_ps(_mm256_set1_ps(-LARGEST_HALF), x)); /* in this order NaN stays NaN */
    __m256 infinite = _mm256_cmp_ps(_mm256_andnot_ps(_mm256_set1_ps(-0.0f), x), _mm256_set1_ps(INFINITY), _CMP_EQ_OQ);
    return _mm256_cvtps_ph(_mm256_blendv_ps(bounded, x, infinite), _MM_FROUND_TO_NEAREST_INT);
}

static void pack_f16(const float *x, int64_t n, uint8_t *out)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(out + 2 * i), half8(_mm256_loadu_ps(x + i)));
    if (i < n) {
        __m128i last = half8(_mm256_maskload_ps(x + i, tail_mask(n - i)));
        memcpy(out + 2 * i, &last, (size_t)(n - i) * 2);
    }
}

/* Largest magnitude of 32 values; NaN when one is not finite. */
static inline float largest32(const __m256 v[4])
{
    __m256 max = _mm256_setzero_ps(), bad = max;
    for (int i = 0; i < 4; i++) {
        bad = _mm256_or_ps(bad, _mm256_cmp_ps(_mm256_sub_ps(v[i], v[i]), _mm256_setzero_ps(), _CMP_NEQ_UQ));
        max = _mm256_max_ps(max, _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v[i]));
    }
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(max), _mm256_extractf128_ps(max, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    m = _mm_max_ss(m, _mm_movehdup_ps(m));
    return _mm256_movemask_ps(bad) ? NAN : _mm_cvtss_f32(m);
}

static void pack_q8_0(const float *x, uint8_t *out)
{
    __m256 v[4];
    __m256i w[4];
    for (int i = 0; i < 4; i++)
        v[i] = _mm256_loadu_ps(x + 8 * i);
    float largest = largest32(v), d = largest / 127;
    uint16_t scale = isnan(largest) ? 0x7E00 : (uint16_t)_cvtss_sh(d < LARGEST_HALF ? d : LARGEST_HALF, _MM_FROUND_TO_NEAREST_INT);
    memcpy(out, &scale, sizeof scale);
    if (isnan(largest) || !scale) {
        memset(out + 2, 0, 32);
        return;
    }
    __m256 inverse = _mm256_set1_ps(1 / _cvtsh_ss(scale));
    for (int i = 0; i < 4; i++)
        w[i] = _mm256_cvtps_epi32(_mm256_min_ps(_mm256_set1_ps(127), _mm256_max_ps(_mm256_set1_ps(-127), _mm256_mul_ps(v[i], inverse))));
    __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(w[0], w[1]), _mm256_packs_epi32(w[2], w[3]));
    _mm256_storeu_si256((__m256i *)(out + 2), _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
}

void kv_pack_avx2(enum kv_type type, const float *x, int64_t n, void *out)
{
    if (type == KV_F32)
        memcpy(out, x, (size_t)n * sizeof *x);
    else if (type == KV_F16)
        pack_f16(x, n, out);
    else
        for (int64_t i = 0; i < n; i += 32)
            pack_q8_0(x + i, (uint8_t *)out + i / 32 * 34);
}

/* Where a cached head's values from j on lie (the block of j with q8_0). */
INLINE const uint8_t *values_at(enum kv_type type, const uint8_t *head, int j)
{
    return head + (type == KV_F32 ? 4 * j : type == KV_F16 ? 2 * j : j / 32 * 34);
}

/* Eight values from the s-th on (s < 32) of those at `at`, in f32. */
INLINE __m256 load8(enum kv_type type, const uint8_t *at, int s)
{
    if (type == KV_F32)
        return _mm256_loadu_ps((const float *)at + s);
    if (type == KV_F16)
        return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(at + 2 * s)));
    uint16_t scale;
    memcpy(&scale, at, sizeof scale);
    __m256 d = _mm256_cvtph_ps(_mm_set1_epi16((short)scale));
    return _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(at + 2 + s)))));
}

/* The last n < 8 values of a head, zeros behind them; q8_0 has none. */
INLINE __m256 load_tail(enum kv_type type, const uint8_t *at, int n)
{
    uint16_t halves[8] = {0};
    if (type == KV_F32)
        return _mm256_maskload_ps((const float *)at, tail_mask(n));
    memcpy(halves, at, (size_t)n * 2);
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)halves));
}

/* Rows of keys or values: where they are in the cache, or widened in scratch. `ahead` is what will be read next, so that memory brings it while these are worked on: rows of
 * one head lie apart, which the processor's own prefetching follows badly. */
struct view {
    enum kv_type type;
    const uint8_t *at;
    int64_t stride;
    const uint8_t *ahead;
    int64_t ahead_stride;
    int n_ahead, ahead_bytes;
};

/* Asks for rows i .. i + n - 1 of what comes next. */
INLINE void fetch_ahead(const struct view *v, int i, int n)
{
    for (int r = i; r < i + n && r < v->n_ahead; r++)
        for (int line = 0; line < v->ahead_bytes; line += 64)
            _mm_prefetch((const char *)v->ahead + r * v->ahead_stride + line, _MM_HINT_T1);
}

#define MAX_HEADS 4 /* heads that share a load */

struct products {
    __m256 sum[MAX_HEADS][2];
};

/* One step of eight dimensions for n_heads heads and n_keys keys. */
INLINE void multiply8(struct products *p, int n_heads, int n_keys, const __m256 q[MAX_HEADS], const __m256 k[2])
{
    for (int h = 0; h < n_heads; h++)
        for (int i = 0; i < n_keys; i++)
            p->sum[h][i] = _mm256_fmadd_ps(q[h], k[i], p->sum[h][i]);
}

#define LOAD_Q(LOAD) for (int h = 0; h < n_heads; h++) q8[h] = LOAD;
#define LOAD_K(LOAD) for (int i = 0; i < n_keys; i++) k8[i] = LOAD;

/* score[h][0 .. n_keys - 1] (n_keys <= 2) of n_heads heads. */
INLINE void score_keys(enum kv_type type, int n_heads, int n_keys, const float *q, int d, float scale, const uint8_t *key, int64_t stride, float *score)
{
    struct products p;
    __m256 q8[MAX_HEADS], k8[2];
    int j = 0;
    for (int h = 0; h < n_heads; h++)
        p.sum[h][0] = p.sum[h][1] = _mm256_setzero_ps();
    for (; j + 32 <= d; j += 32)
        for (int s = 0; s < 32; s += 8) {
            LOAD_Q(_mm256_loadu_ps(q + h * d + j + s))
            LOAD_K(load8(type, values_at(type, key + i * stride, j), s))
            multiply8(&p, n_heads, n_keys, q8, k8);
        }
    for (; j + 8 <= d; j += 8) {
        LOAD_Q(_mm256_loadu_ps(q + h * d + j))
        LOAD_K(load8(type, values_at(type, key + i * stride, j), 0))
        multiply8(&p, n_heads, n_keys, q8, k8);
    }
    if (j < d) {
        LOAD_Q(_mm256_maskload_ps(q + h * d + j, tail_mask(d - j)))
        LOAD_K(load_tail(type, values_at(type, key + i * stride, j), d - j))
        multiply8(&p, n_heads, n_keys, q8, k8);
    }
    for (int h = 0; h < n_heads; h++)
        for (int i = 0; i < n_keys; i++)
            score[h * KEY_BLOCK + i] = sum_lanes(p.sum[h][i]) * scale;
}

INLINE void score_heads(enum kv_type type, int n_heads, const struct attention_tile *a, const float *q, int n, const struct view *k, float *score)
{
    int i = 0;
    for (; i + 2 <= n; i += 2) {
        fetch_ahead(k, i, 2);
        score_keys(type, n_heads, 2, q, a->d, a->scale, k->at + i * k->stride, k->stride, score + i);
    }
    if (i < n)
        score_keys(type, n_heads, 1, q, a->d, a->scale, k->at + i * k->stride, k->stride, score + i);
}

#define KEYS_AT_ONCE 8 /* read side by side, so that what they share of cache lines is still there for the next dimensions */

/* Dimensions j .. j + 8 * n_vectors - 1 (n_vectors <= 2): out = out * fade + sum of weight[i] * value i. */
INLINE void add_values(enum kv_type type, int n_heads, int n_vectors, int j, float *out, int d, const float *fade, int n, const struct view *v, const float *weight)
{
    __m256 sum[MAX_HEADS][2];
    for (int h = 0; h < n_heads; h++)
        for (int s = 0; s < n_vectors; s++)
            sum[h][s] = _mm256_mul_ps(_mm256_loadu_ps(out + h * d + j + 8 * s), _mm256_broadcast_ss(fade + h));
    for (int i = 0; i < n; i++) {
        const uint8_t *at = values_at(type, v->at + i * v->stride, j);
        __m256 x[2];
        for (int s = 0; s < n_vectors; s++)
            x[s] = load8(type, at, (type == KV_Q8_0 ? j % 32 : 0) + 8 * s);
        for (int h = 0; h < n_heads; h++) {
            __m256 w = _mm256_broadcast_ss(weight + h * KEY_BLOCK + i);
            for (int s = 0; s < n_vectors; s++)
                sum[h][s] = _mm256_fmadd_ps(w, x[s], sum[h][s]);
        }
    }
    for (int h = 0; h < n_heads; h++)
        for (int s = 0; s < n_vectors; s++)
            _mm256_storeu_ps(out + h * d + j + 8 * s, sum[h][s]);
}

/* The same for the last d % 8 dimensions. */
INLINE void add_value_tails(enum kv_type type, int n_heads, int j, float *out, int d, const float *fade, int n, const struct view *v, const float *weight)
{
    __m256i mask = tail_mask(d - j);
    for (int h = 0; h < n_heads; h++) {
        __m256 sum = _mm256_mul_ps(_mm256_maskload_ps(out + h * d + j, mask), _mm256_broadcast_ss(fade + h));
        for (int i = 0; i < n; i++)
            sum = _mm256_fmadd_ps(_mm256_broadcast_ss(weight + h * KEY_BLOCK + i), load_tail(type, values_at(type, v->at + i * v->stride, j), d - j), sum);
        _mm256_maskstore_ps(out + h * d + j, mask, sum);
    }
}

INLINE void value_heads(enum kv_type type, int n_heads, const struct attention_tile *a, float *out, const float *fade, int n, const struct view *v, const float *weight)
{
    static const float one[MAX_HEADS] = {1, 1, 1, 1};
    int step = (a->d / KEYS_AT_ONCE + 15) / 16 * 16, fetch = step ? (step * KEYS_AT_ONCE + a->d - 1) / a->d : 0; /* so many rows ahead every so many dimensions: evenly */
    for (int i = 0; i < n; i += KEYS_AT_ONCE) {
        struct view some = {.at = v->at + i * v->stride, .stride = v->stride};
        int j = 0, n_some = n - i < KEYS_AT_ONCE ? n - i : KEYS_AT_ONCE;
        for (; j + 16 <= a->d; j += 16) {
            if (v->n_ahead && j % step == 0)
                fetch_ahead(v, i + j / step * fetch, fetch);
            add_values(type, n_heads, 2, j, out, a->d, fade, n_some, &some, weight + i);
        }
        if (j + 8 <= a->d) {
            add_values(type, n_heads, 1, j, out, a->d, fade, n_some, &some, weight + i);
            j += 8;
        }
        if (j < a->d)
            add_value_tails(type, n_heads, j, out, a->d, fade, n_some, &some, weight + i);
        fade = one;
    }
}

/* All heads of a row, four, two and one at a time, with the type as a constant; the first ones fetch ahead. */
#define EACH_HEADS(rows, CALL)                                               \
    struct view view = *rows;                                                \
    for (int h = 0; h < a->n_group; view.n_ahead = 0) {                      \
        int left = a->n_group - h;                                           \
        if (left >= 4) {                                                     \
            CALL(4)                                                          \
            h += 4;                                                          \
        } else if (left >= 2) {                                              \
            CALL(2)                                                          \
            h += 2;                                                          \
        } else {                                                             \
            CALL(1)                                                          \
            h += 1;                                                          \
        }                                                                    \
    }
#define SCORE(n_heads) score_heads(TYPE, n_heads, a, q + (int64_t)h * a->d, n, &view, score + (int64_t)h * KEY_BLOCK);
#define VALUE(n_heads) value_heads(TYPE, n_heads, a, out + (int64_t)h * a->d, fade + h, n, &view, weight + (int64_t)h * KEY_BLOCK);

#define ROW_FUNCTIONS(suffix)                                                                                                                          \
    static void score_row_##suffix(const struct attention_tile *a, const float *q, int n, const struct view *k, float *score)                          \
    {                                                                                                                                                  \
        EACH_HEADS(k, SCORE)                                                                                                                           \
    }                                                                                                                                                  \
    static void value_row_##suffix(const struct attention_tile *a, float *out, const float *fade, int n, const struct view *v, const float *weight)    \
    {                                                                                                                                                  \
        EACH_HEADS(v, VALUE)                                                                                                                           \
    }

#define TYPE KV_F32
ROW_FUNCTIONS(f32)
#undef TYPE
#define TYPE KV_F16
ROW_FUNCTIONS(f16)
#undef TYPE
#define TYPE KV_Q8_0
ROW_FUNCTIONS(q8_0)
#undef TYPE

static void (*const score_row[])(const struct attention_tile *, const float *, int, const struct view *, float *) = {score_row_f32, score_row_f16, score_row_q8_0};
static void (*const value_row[])(const struct attention_tile *, float *, const float *, int, const struct view *, const float *) = {value_row_f32, value_row_f16, value_row_q8_0};

/* n rows of the cache in f32, [n][d]. */
static void widen(const struct attention_tile *a, const uint8_t *at, int n, float *out)
{
    for (int i = 0; i < n; i++, at += a->kv_stride, out += a->d) {
        int j = 0;
        for (; j + 8 <= a->d; j += 8)
            _mm256_storeu_ps(out + j, a->type == KV_F16 ? load8(KV_F16, values_at(KV_F16, at, j), 0) : load8(KV_Q8_0, values_at(KV_Q8_0, at, j), j % 32));
        if (j < a->d)
            _mm256_maskstore_ps(out + j, tail_mask(a->d - j), load_tail(KV_F16, values_at(KV_F16, at, j), a->d - j));
    }
}

/* n keys or values from `at` on as the rows of the tile shall read them: where several rows do and the scratch holds them, widened once. */
static struct view view_of(const struct attention_tile *a, const uint8_t *at, int n, const uint8_t *ahead, int n_ahead)
{
    struct view v = {.type = a->type, .at = at, .stride = a->kv_stride, .ahead = ahead, .ahead_stride = a->kv_stride, .n_ahead = n_ahead,
                     .ahead_bytes = (int)kv_head_bytes(a->type, a->d)};
    if (a->type == KV_F32 || a->n_rows == 1 || a->n_scratch < (int64_t)KEY_BLOCK * a->d)
        return v;
    widen(a, at, n, a->scratch);
    v.type = KV_F32;
    v.at = (const uint8_t *)a->scratch;
    v.stride = (int64_t)a->d * 4;
    return v;
}

/* One row and head: its softmax so far. */
struct lane {
    float best, total;
};

/* Scores become weights relative to the largest score so far; returns by what older sums fade. */
static float weigh(struct lane *lane, float *score, int n)
{
    float best = lane->best;
    for (int i = 0; i < n; i++)
        best = score[i] > best ? score[i] : best;
    float fade = lane->best == -INFINITY ? 0 : expf(lane->best - best);
    __m256 sum = _mm256_setzero_ps();
    for (int i = 0; i < n; i += 8) {
        __m256i mask = tail_mask(n - i < 8 ? n - i : 8);
        __m256 e = exp8(_mm256_sub_ps(_mm256_maskload_ps(score + i, mask), _mm256_set1_ps(best)));
        sum = _mm256_add_ps(sum, _mm256_and_ps(e, _mm256_castsi256_ps(mask)));
        _mm256_maskstore_ps(score + i, mask, e);
    }
    lane->total = lane->total * fade + sum_lanes(sum);
    lane->best = best;
    return fade;
}

/* How many of the keys p0 .. p0 + KEY_BLOCK - 1 row r sees. */
static int keys_of(const struct attention_tile *a, int r, int64_t p0)
{
    int64_t n = a->n_keys + r - p0;
    return (int)(n < 0 ? 0 : n < KEY_BLOCK ? n : KEY_BLOCK);
}

static void attend_block(const struct attention_tile *a, int64_t p0, struct lane *lanes)
{
    float score[ATTENTION_LANES * KEY_BLOCK], fade[ATTENTION_LANES];
    int last = a->n_rows - 1, most = keys_of(a, last, p0), g = a->n_group;
    const uint8_t *keys = a->k + p0 * a->kv_stride, *values = a->v + p0 * a->kv_stride;
    struct view k = view_of(a, keys, most, values, most);
    for (int r = 0; r < a->n_rows; r++, k.n_ahead = 0) {
        int n = keys_of(a, r, p0);
        score_row[k.type](a, a->q + r * a->row_stride, n, &k, score + (int64_t)r * g * KEY_BLOCK);
        for (int h = r * g; n > 0 && h < (r + 1) * g; h++)
            fade[h] = weigh(&lanes[h], score + (int64_t)h * KEY_BLOCK, n);
    }
    struct view v = view_of(a, values, most, keys + KEY_BLOCK * a->kv_stride, keys_of(a, last, p0 + KEY_BLOCK));
    for (int r = 0; r < a->n_rows; r++, v.n_ahead = 0)
        value_row[v.type](a, a->out + r * a->row_stride, fade + (int64_t)r * g, keys_of(a, r, p0), &v, score + (int64_t)r * g * KEY_BLOCK);
}

void attention_avx2(const struct attention_tile *a)
{
    struct lane lanes[ATTENTION_LANES];
    for (int r = 0; r < a->n_rows; r++)
        memset(a->out + r * a->row_stride, 0, (size_t)a->n_group * (size_t)a->d * sizeof *a->out);
    for (int l = 0; l < a->n_rows * a->n_group; l++)
        lanes[l] = (struct lane){.best = -INFINITY};
    for (int64_t p0 = 0; p0 < a->n_keys + a->n_rows - 1; p0 += KEY_BLOCK)
        attend_block(a, p0, lanes);
    for (int l = 0; l < a->n_rows * a->n_group; l++) {
        float *out = a->out + l / a->n_group * a->row_stride + (int64_t)(l % a->n_group) * a->d;
        for (int j = 0; j < a->d; j++)
            out[j] /= lanes[l].total;
    }
}
