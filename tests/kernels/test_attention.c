/* Keys, values and attention on every rung and in every cache type: what is stored against the block formats' own decode, attention against a double precision oracle over the
 * stored values, odd sizes, extremes, and to the bit: alone = in a batch = in any chunks = on any number of threads = with any scratch (B12, B155). */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "compute/device.h"
#include "gguf/quant.h"
#include "support/test.h"

static const char *const type_names[KV_N_TYPES] = {"f32", "f16", "q8_0"};
static const uint32_t type_ids[KV_N_TYPES] = {QUANT_F32, QUANT_F16, QUANT_Q8_0};

#define WIDE 4096 /* max_n_in with which scratch holds any block here */

static struct device *open_device(const char *rung, int threads, int64_t max_n_in)
{
    struct device *dev = NULL;
    struct err err = {0};
    struct device_options o = {.kind = DEVICE_CPU, .n_threads = threads, .cpu_rung = rung, .max_rows = 64, .max_n_in = max_n_in};
    test_ok(device_open(&o, &dev, &err), &err, "device");
    return dev;
}

/* One sequence's cache, every byte of it poison at first: NaN in f32 and f16, NaN scales in q8_0. */
struct cache {
    struct op_kv kv;
    size_t bytes;
};

static struct cache cache_open(enum kv_type type, int64_t positions, int n_head_kv, int d)
{
    struct cache c = {.bytes = (size_t)positions * (size_t)n_head_kv * kv_head_bytes(type, d)};
    c.kv = (struct op_kv){.type = type, .k = mem_alloc(MEM_OTHER, c.bytes), .v = mem_alloc(MEM_OTHER, c.bytes)};
    memset(c.kv.k, 0xFF, c.bytes);
    memset(c.kv.v, 0xFF, c.bytes);
    return c;
}

static void cache_close(struct cache *c)
{
    mem_free(c->kv.k);
    mem_free(c->kv.v);
}

static float *gauss(size_t n, float size, uint64_t seed)
{
    float *x = mem_alloc(MEM_OTHER, n * sizeof *x + 1);
    for (size_t i = 0; i < n; i++)
        x[i] = size * test_gauss(&seed);
    return x;
}

/* ---- what is stored ---- */

static float bounded(float x, float most)
{
    return isfinite(x) ? fminf(fmaxf(x, -most), most) : x;
}

static int same_or_both_nan(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b));
}

/* A stored block of 32: as near as its scale allows, NaN when anything was not finite. */
static void check_block(const float *x, const uint8_t *block, const char *rung)
{
    float got[32], max = 0;
    int finite = 1;
    uint16_t bits;
    quant_type(QUANT_Q8_0)->decode(block, got, 32);
    memcpy(&bits, block, 2);
    for (int i = 0; i < 32; i++) {
        finite &= isfinite(x[i]) != 0;
        max = fmaxf(max, fabsf(x[i]));
    }
    double scale = (double)f16_to_f32(bits), ulp = fmax(ldexp(1, -24), scale / 1024); /* the scale's own rounding counts 127 times */
    for (int i = 0; i < 32; i++) {
        if (!finite) {
            assert_true(isnan(got[i]));
            continue;
        }
        if (bits != f32_to_f16(bounded(max / 127, 65504)))
            fail_msg("%s: the scale of %g is %04x", rung, (double)max, bits);
        double want = (double)bounded(x[i], 127 * 65504.0f);
        if (!(fabs((double)got[i] - want) <= (scale * (1 + 1e-6) + 127 * ulp * (scale < 1e-4)) / 2 + 1e-7 * fabs(want)))
            fail_msg("%s: %g is stored as %g, scale %g", rung, (double)x[i], (double)got[i], scale);
    }
}

static void check_stored(const char *rung, enum kv_type type, const float *x, int64_t n, const uint8_t *stored)
{
    for (int64_t i = 0; type == KV_F32 && i < n; i++)
        assert_memory_equal(stored + 4 * i, x + i, 4);
    for (int64_t i = 0; type == KV_F16 && i < n; i++) {
        float got;
        quant_type(QUANT_F16)->decode(stored + 2 * i, &got, 1);
        if (!same_or_both_nan(got, f16_to_f32(f32_to_f16(bounded(x[i], 65504)))))
            fail_msg("%s: %g is stored as %g", rung, (double)x[i], (double)got);
    }
    for (int64_t i = 0; type == KV_Q8_0 && i < n; i += 32)
        check_block(x + i, stored + i / 32 * 34, rung);
}

/* Stores n_rows rows of `k`, `v` at `position` and looks at every byte of the cache: theirs as they should be, the others untouched. Leaves the keys' bytes in `out`. */
static void store_and_check(const char *rung, enum kv_type type, const float *k, const float *v, int64_t n_rows, int n_head_kv, int d, uint8_t *out)
{
    enum { BEFORE = 3, AFTER = 2 };
    int64_t positions = BEFORE + n_rows + AFTER, width = (int64_t)n_head_kv * d;
    size_t row = (size_t)n_head_kv * kv_head_bytes(type, d);
    struct cache c = cache_open(type, positions, n_head_kv, d);
    struct device *dev = open_device(rung, 2, WIDE);
    struct op_span span = {.first_row = 0, .n_rows = n_rows, .position = BEFORE};
    dev->op->kv_store(dev, &span, &c.kv, 1, k, v, n_head_kv, d);
    device_close(dev);
    for (size_t i = 0; i < c.bytes; i++)
        if (i < BEFORE * row || i >= (BEFORE + (size_t)n_rows) * row)
            assert_true(((uint8_t *)c.kv.k)[i] == 0xFF && ((uint8_t *)c.kv.v)[i] == 0xFF);
    check_stored(rung, type, k, n_rows * width, (uint8_t *)c.kv.k + BEFORE * row);
    check_stored(rung, type, v, n_rows * width, (uint8_t *)c.kv.v + BEFORE * row);
    memcpy(out, (uint8_t *)c.kv.k + BEFORE * row, (size_t)n_rows * row);
    cache_close(&c);
}

static void test_store(void **unused)
{
    (void)unused;
    static const int sizes[] = {1, 3, 7, 8, 9, 15, 31, 32, 33, 64, 80, 96, 128, 256};
    static const float magnitudes[] = {1, 1e-3f, 1e-7f, 1e-40f, 3e4f, 1e7f, 1e30f};
    enum { ROWS = 70, HEADS = 3 };
    for (int type = 0; type < KV_N_TYPES; type++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            for (size_t m = 0; m < sizeof magnitudes / sizeof *magnitudes; m++) {
                int d = sizes[i], rows = m == 0 ? ROWS : 2;
                size_t bytes = (size_t)(rows * HEADS) * kv_head_bytes((enum kv_type)type, d);
                if (type == KV_Q8_0 && d % 32)
                    continue;
                float *k = gauss((size_t)(rows * HEADS * d), magnitudes[m], 1 + i), *v = gauss((size_t)(rows * HEADS * d), magnitudes[m], 2 + i);
                uint8_t *first = mem_alloc(MEM_OTHER, bytes), *other = mem_alloc(MEM_OTHER, bytes);
                for (const char *const *rung = device_cpu_rungs(); *rung; rung++) {
                    store_and_check(*rung, (enum kv_type)type, k, v, rows, HEADS, d, rung == device_cpu_rungs() ? first : other);
                    if (rung != device_cpu_rungs() && memcmp(first, other, bytes))
                        fail_msg("%s, %d values of %g: rung %s stores other bytes", type_names[type], d, (double)magnitudes[m], *rung);
                }
                mem_free(k);
                mem_free(v);
                mem_free(first);
                mem_free(other);
            }
}

/* Every half there is comes back as it was; ties go to even; what is too large stays finite, what is not finite stays so. */
static void test_store_halves(void **unused)
{
    (void)unused;
    enum { N = 1 << 16 };
    static const float odd[] = {0, -0.0f, 1e-45f, -1e-45f, 2.9e-8f, 2.98023224e-8f, 3e-8f, 6e-5f, 65504, 65519, 65520, 65536, -65519, -65520, 1e30f, -1e30f, 3.4e38f,
                                1.00048828125f, 1.00146484375f, 2049, 2051, INFINITY, -INFINITY, NAN, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    enum { N_ODD = sizeof odd / sizeof *odd };
    float *x = mem_alloc(MEM_OTHER, N * sizeof *x);
    uint16_t *out = mem_alloc(MEM_OTHER, N * sizeof *out), *v = mem_alloc(MEM_OTHER, N * sizeof *v);
    for (int i = 0; i < N; i++)
        x[i] = f16_to_f32((uint16_t)i);
    for (const char *const *rung = device_cpu_rungs(); *rung; rung++) {
        struct device *dev = open_device(*rung, 1, 64);
        struct op_span span = {.n_rows = 1};
        dev->op->kv_store(dev, &span, &(struct op_kv){KV_F16, out, v}, 1, x, x, 1, N);
        for (int i = 0; i < N; i++)
            assert_true(out[i] == i || (isnan(x[i]) && isnan(f16_to_f32(out[i]))));
        assert_memory_equal(out, v, N * sizeof *out);
        dev->op->kv_store(dev, &span, &(struct op_kv){KV_F16, out, v}, 1, odd, odd, 1, N_ODD);
        check_stored(*rung, KV_F16, odd, N_ODD, (const uint8_t *)out);
        assert_true(out[8] == 0x7BFF && out[14] == 0x7BFF && out[15] == 0xFBFF && out[21] == 0x7C00 && out[17] == 0x3C00 && out[18] == 0x3C02);
        device_close(dev);
    }
    mem_free(x);
    mem_free(out);
    mem_free(v);
}

/* Blocks of 32 with one odd value each, beside ordinary ones. */
static void test_store_blocks(void **unused)
{
    (void)unused;
    static const float odd[] = {0, 1e-45f, -1e-40f, 1e-7f, 3.7e-6f, 127, -127, 1e30f, -1e30f, 3.4e38f, 8319008, 8319009, INFINITY, -INFINITY, NAN};
    enum { N_ODD = sizeof odd / sizeof *odd, D = 32 * 2 * N_ODD };
    float x[D];
    uint8_t k[2 * N_ODD * 34], v[sizeof k];
    uint64_t state = 3;
    for (int i = 0; i < N_ODD; i++)
        for (int e = 0; e < 64; e++)
            x[64 * i + e] = e == 3 + i ? odd[i] : e < 32 ? 0 : test_gauss(&state);
    for (const char *const *rung = device_cpu_rungs(); *rung; rung++) {
        struct device *dev = open_device(*rung, 1, 64);
        dev->op->kv_store(dev, &(struct op_span){.n_rows = 1}, &(struct op_kv){KV_Q8_0, k, v}, 1, x, x, 1, D);
        check_stored(*rung, KV_Q8_0, x, D, k);
        assert_memory_equal(k, v, sizeof k);
        for (int i = 0; i < 34; i++) /* a block of zeros is all zero */
            assert_int_equal(k[i], 0);
        device_close(dev);
    }
}

/* ---- attention ---- */

struct shape {
    int n_head, n_head_kv, d;
};

static float *decode_cache(enum kv_type type, const void *data, size_t n)
{
    float *out = mem_alloc(MEM_OTHER, n * sizeof *out);
    quant_type(type_ids[type])->decode(data, out, n);
    return out;
}

/* The oracle, over what is really stored. `bound`: the error that f32 sums may have. */
static void oracle(const struct shape *s, const float *k, const float *v, const float *q, int64_t n_keys, int head, float scale, double *out, double *bound)
{
    double best = -INFINITY, total = 0, largest = 0, reach = 0, *score = mem_alloc(MEM_OTHER, (size_t)n_keys * sizeof *score);
    int m = head / (s->n_head / s->n_head_kv);
    for (int64_t p = 0; p < n_keys; p++) {
        double sum = 0, size = 0;
        for (int j = 0; j < s->d; j++) {
            double product = (double)q[j] * (double)k[(p * s->n_head_kv + m) * s->d + j];
            sum += product;
            size += fabs(product);
        }
        score[p] = sum * (double)scale;
        reach = fmax(reach, size * (double)scale);
        best = fmax(best, score[p]);
    }
    for (int j = 0; j < s->d; j++)
        out[j] = 0;
    for (int64_t p = 0; p < n_keys; p++) {
        double weight = exp(score[p] - best);
        total += weight;
        for (int j = 0; j < s->d; j++) {
            double x = (double)v[(p * s->n_head_kv + m) * s->d + j];
            out[j] += weight * x;
            largest = fmax(largest, fabs(x));
        }
    }
    for (int j = 0; j < s->d; j++)
        out[j] /= total;
    *bound = (2e-6 + 4e-7 * reach) * largest + 1e-37;
    mem_free(score);
}

static void check_rows(const struct shape *s, const struct cache *c, const float *q, int64_t position, int64_t n_rows, float scale, const float *got, const char *rung)
{
    size_t n = (size_t)((position + n_rows) * s->n_head_kv * s->d);
    float *k = decode_cache(c->kv.type, c->kv.k, n), *v = decode_cache(c->kv.type, c->kv.v, n);
    double *want = mem_alloc(MEM_OTHER, (size_t)s->d * sizeof *want), bound;
    for (int64_t r = 0; r < n_rows; r++)
        for (int h = 0; h < s->n_head; h++) {
            const float *at = got + (r * s->n_head + h) * s->d;
            oracle(s, k, v, q + (r * s->n_head + h) * s->d, position + r + 1, h, scale, want, &bound);
            for (int j = 0; j < s->d; j++)
                if (!(fabs((double)at[j] - want[j]) <= bound))
                    fail_msg("%s %s, %d heads on %d of %d: position %lld, head %d, value %d: %g, expected %g, bound %g", rung, type_names[c->kv.type], s->n_head, s->n_head_kv, s->d,
                             (long long)(position + r), h, j, (double)at[j], want[j], bound);
        }
    mem_free(k);
    mem_free(v);
    mem_free(want);
}

static void attend(struct device *dev, const struct op_span *spans, const struct op_kv *kv, int n_spans, const float *q, const struct shape *s, float scale, float *out)
{
    int64_t rows = spans[n_spans - 1].first_row + spans[n_spans - 1].n_rows;
    for (int64_t i = 0; i < rows * s->n_head * s->d; i++)
        out[i] = NAN; /* what is not written shows */
    dev->op->attention(dev, spans, kv, n_spans, q, s->n_head, s->n_head_kv, s->d, scale, out);
}

/* Rows position .. position + n_rows - 1 of a sequence whose keys behind them are poison. `size`: of keys and values. */
static void check_against_oracle(const char *rung, enum kv_type type, const struct shape *s, int64_t position, int64_t n_rows, float size)
{
    int64_t n = position + n_rows;
    size_t width = (size_t)(s->n_head_kv * s->d), q_width = (size_t)(s->n_head * s->d);
    float *k = gauss((size_t)n * width, size, 5), *v = gauss((size_t)n * width, size, 6), *q = gauss((size_t)n_rows * q_width, fminf(1 / size, 1e30f), 7);
    float *out = mem_alloc(MEM_OTHER, (size_t)n_rows * q_width * sizeof *out), scale = 1 / sqrtf((float)s->d);
    struct cache c = cache_open(type, n + 5, s->n_head_kv, s->d);
    struct device *dev = open_device(rung, 2, WIDE);
    dev->op->kv_store(dev, &(struct op_span){.n_rows = n}, &c.kv, 1, k, v, s->n_head_kv, s->d);
    attend(dev, &(struct op_span){.n_rows = n_rows, .position = position}, &c.kv, 1, q, s, scale, out);
    check_rows(s, &c, q, position, n_rows, scale, out, rung);
    device_close(dev);
    cache_close(&c);
    mem_free(k);
    mem_free(v);
    mem_free(q);
    mem_free(out);
}

static const struct shape shapes[] = {{1, 1, 1}, {2, 1, 7}, {3, 3, 8}, {4, 2, 17}, {6, 2, 32}, {8, 2, 64}, {5, 1, 24}, {7, 1, 40}, {16, 2, 96}, {6, 2, 256}, {70, 1, 32}, {4, 4, 100}};

static int can(enum kv_type type, const struct shape *s)
{
    return type != KV_Q8_0 || s->d % 32 == 0;
}

static void test_oracle(void **unused)
{
    (void)unused;
    static const int64_t positions[] = {0, 1, 5, 62, 63, 64, 65, 126, 127, 128, 200}, rows[] = {1, 2, 3, 17, 66};
    for (const char *const *rung = device_cpu_rungs(); *rung; rung++)
        for (int type = 0; type < KV_N_TYPES; type++)
            for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
                for (size_t p = 0; can((enum kv_type)type, &shapes[i]) && p < sizeof positions / sizeof *positions; p++)
                    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
                        if ((i + p + r) % (TEST_SANITIZED ? 23 : strcmp(*rung, "scalar") == 0 ? 7 : 3) == 0) /* all of them take long */
                            check_against_oracle(*rung, (enum kv_type)type, &shapes[i], positions[p], rows[r], 1);
}

/* Keys and values far from one: the smallest and largest that the types and their products hold. */
static void test_magnitudes(void **unused)
{
    (void)unused;
    static const float sizes[] = {1e-38f, 1e-20f, 1e-6f, 1e-3f, 100, 1e4f, 1e6f, 1e20f, 1e30f};
    for (const char *const *rung = device_cpu_rungs(); *rung; rung++)
        for (int type = 0; type < KV_N_TYPES; type++)
            for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
                check_against_oracle(*rung, (enum kv_type)type, &(struct shape){4, 2, 64}, 70, 1, sizes[i]);
                check_against_oracle(*rung, (enum kv_type)type, &(struct shape){4, 2, 64}, 60, 9, sizes[i]);
            }
}

/* Scores so far apart that one key takes all, on both sides of a block's edge. */
static void test_one_key_takes_all(void **unused)
{
    (void)unused;
    enum { D = 32, N = 130 };
    float q[D], k[N * D], v[N * D], out[D];
    struct shape s = {1, 1, D};
    for (const char *const *rung = device_cpu_rungs(); *rung; rung++)
        for (int type = 0; type < KV_N_TYPES; type++)
            for (int winner = 0; winner < N; winner += 21) {
                struct cache c = cache_open((enum kv_type)type, N, 1, D);
                struct device *dev = open_device(*rung, 1, WIDE);
                for (int i = 0; i < D; i++)
                    q[i] = 100;
                for (int i = 0; i < N * D; i++) {
                    k[i] = i / D == winner ? 127 : -127;
                    v[i] = (float)(i / D);
                }
                dev->op->kv_store(dev, &(struct op_span){.n_rows = N}, &c.kv, 1, k, v, 1, D);
                attend(dev, &(struct op_span){.n_rows = 1, .position = N - 1}, &c.kv, 1, q, &s, 1, out);
                for (int i = 0; i < D; i++)
                    if (!(fabsf(out[i] - (float)winner) <= 1e-3f * (float)winner + 1e-30f))
                        fail_msg("%s %s: key %d wins, and %g comes out", *rung, type_names[type], winner, (double)out[i]);
                device_close(dev);
                cache_close(&c);
            }
}

/* What is not finite comes out of the rows that see it, and of no other. */
static void test_not_finite(void **unused)
{
    (void)unused;
    enum { D = 64, N = 80, BAD = 66 };
    struct shape s = {4, 1, D};
    static const float bad[] = {NAN, INFINITY};
    float out[N * 4 * D];
    for (const char *const *rung = device_cpu_rungs(); *rung; rung++)
        for (int type = 0; type < KV_N_TYPES; type++)
            for (int which = 0; which < 4; which++) {
                float *k = gauss(N * D, 1, 8), *v = gauss(N * D, 1, 9), *q = gauss(N * 4 * D, 1, 10);
                struct cache c = cache_open((enum kv_type)type, N, 1, D);
                struct device *dev = open_device(*rung, 2, WIDE);
                (which < 2 ? k : v)[BAD * D + 5] = bad[which % 2];
                dev->op->kv_store(dev, &(struct op_span){.n_rows = N}, &c.kv, 1, k, v, 1, D);
                attend(dev, &(struct op_span){.n_rows = N}, &c.kv, 1, q, &s, 0.125f, out);
                for (int r = 0; r < N; r++)
                    for (int h = 0; h < 4; h++) {
                        const float *at = out + (r * 4 + h) * D;
                        int all = 1;
                        for (int j = 0; j < D; j++)
                            all &= isfinite(at[j]) != 0;
                        if (r < BAD ? !all : isfinite(at[5]) && !(which == 1 && type != KV_Q8_0)) /* an infinite key may as well weigh nothing */
                            fail_msg("%s %s: what is not finite at %d, row %d head %d", *rung, type_names[type], BAD, r, h);
                    }
                device_close(dev);
                cache_close(&c);
                mem_free(k);
                mem_free(v);
                mem_free(q);
            }
}

/* ---- laws ---- */

struct law {
    const char *rung;
    enum kv_type type;
    struct shape s;
    int64_t n;
    float *k, *v, *q, *whole, scale;
};

static size_t q_width(const struct law *l)
{
    return (size_t)(l->s.n_head * l->s.d);
}

/* The sequence in pieces of `chunk` rows, stored and attended piece by piece, behind a sequence of `mate_rows` rows in the same batch (0: alone). */
static void run_pieces(const struct law *l, int64_t chunk, int64_t mate_rows, int threads, int64_t max_n_in, float *out)
{
    struct cache c = cache_open(l->type, l->n, l->s.n_head_kv, l->s.d), mate = cache_open(l->type, l->n + mate_rows + 9, l->s.n_head_kv, l->s.d);
    struct device *dev = open_device(l->rung, threads, max_n_in);
    size_t kw = (size_t)(l->s.n_head_kv * l->s.d), qw = q_width(l), most = (size_t)(chunk + mate_rows);
    float *k = mem_alloc(MEM_OTHER, most * kw * 4), *v = mem_alloc(MEM_OTHER, most * kw * 4), *q = mem_alloc(MEM_OTHER, most * qw * 4), *got = mem_alloc(MEM_OTHER, most * qw * 4);
    dev->op->kv_store(dev, &(struct op_span){.n_rows = 7}, &mate.kv, 1, l->v, l->k, l->s.n_head_kv, l->s.d);
    for (int64_t at = 0; at < l->n; at += chunk) {
        int64_t rows = l->n - at < chunk ? l->n - at : chunk;
        struct op_span spans[2] = {{.first_row = 0, .n_rows = mate_rows, .position = 7}, {.first_row = mate_rows, .n_rows = rows, .position = at}};
        struct op_kv kv[2] = {mate.kv, c.kv};
        int skip = mate_rows == 0;
        memcpy(k, l->v, (size_t)mate_rows * kw * 4); /* the mate is another sequence */
        memcpy(v, l->k, (size_t)mate_rows * kw * 4);
        memcpy(q, l->q, (size_t)mate_rows * qw * 4);
        memcpy(k + (size_t)mate_rows * kw, l->k + (size_t)at * kw, (size_t)rows * kw * 4);
        memcpy(v + (size_t)mate_rows * kw, l->v + (size_t)at * kw, (size_t)rows * kw * 4);
        memcpy(q + (size_t)mate_rows * qw, l->q + (size_t)at * qw, (size_t)rows * qw * 4);
        dev->op->kv_store(dev, spans + skip, kv + skip, 2 - skip, k, v, l->s.n_head_kv, l->s.d);
        attend(dev, spans + skip, kv + skip, 2 - skip, q, &l->s, l->scale, got);
        memcpy(out + (size_t)at * qw, got + (size_t)mate_rows * qw, (size_t)rows * qw * 4);
    }
    device_close(dev);
    cache_close(&c);
    cache_close(&mate);
    mem_free(k);
    mem_free(v);
    mem_free(q);
    mem_free(got);
}

static void same_as_whole(const struct law *l, int64_t chunk, int64_t mate_rows, int threads, int64_t max_n_in)
{
    float *out = mem_alloc(MEM_OTHER, (size_t)l->n * q_width(l) * 4);
    run_pieces(l, chunk, mate_rows, threads, max_n_in, out);
    if (memcmp(out, l->whole, (size_t)l->n * q_width(l) * 4))
        fail_msg("%s %s, %d heads on %d of %d: pieces of %lld rows beside %lld others, %d threads, inputs up to %lld: other numbers", l->rung, type_names[l->type], l->s.n_head,
                 l->s.n_head_kv, l->s.d, (long long)chunk, (long long)mate_rows, threads, (long long)max_n_in);
    mem_free(out);
}

static void check_laws(const char *rung, enum kv_type type, const struct shape *s)
{
    struct law l = {.rung = rung, .type = type, .s = *s, .n = 150, .scale = 1 / sqrtf((float)s->d)};
    size_t kw = (size_t)(l.n * s->n_head_kv * s->d), qw = (size_t)l.n * q_width(&l);
    l.k = gauss(kw, 1, 11);
    l.v = gauss(kw, 1, 12);
    l.q = gauss(qw, 1, 13);
    l.whole = mem_alloc(MEM_OTHER, qw * 4);
    run_pieces(&l, l.n, 0, 2, WIDE, l.whole);
    same_as_whole(&l, 1, 0, 1, WIDE);
    same_as_whole(&l, 1, 1, 3, 32); /* scratch for nothing */
    same_as_whole(&l, 7, 0, 3, 32);
    same_as_whole(&l, 64, 5, 1, WIDE);
    same_as_whole(&l, 65, 40, 2, 512);
    same_as_whole(&l, l.n, 1, 1, 32);
    same_as_whole(&l, l.n, 0, 5, WIDE);
    mem_free(l.k);
    mem_free(l.v);
    mem_free(l.q);
    mem_free(l.whole);
}

static void test_laws(void **unused)
{
    (void)unused;
    static const struct shape law_shapes[] = {{6, 2, 64}, {8, 2, 96}, {3, 1, 20}, {1, 1, 32}, {70, 1, 32}};
    for (const char *const *rung = device_cpu_rungs(); *rung; rung++)
        for (int type = 0; type < KV_N_TYPES; type++)
            for (size_t i = 0; i < sizeof law_shapes / sizeof *law_shapes; i++)
                if (can((enum kv_type)type, &law_shapes[i]) && !(TEST_SANITIZED && strcmp(*rung, "scalar") == 0 && i != 2 && i != 3))
                    check_laws(*rung, (enum kv_type)type, &law_shapes[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_store), cmocka_unit_test(test_store_halves), cmocka_unit_test(test_store_blocks), cmocka_unit_test(test_oracle), cmocka_unit_test(test_magnitudes),
        cmocka_unit_test(test_one_key_takes_all), cmocka_unit_test(test_not_finite), cmocka_unit_test(test_laws),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
