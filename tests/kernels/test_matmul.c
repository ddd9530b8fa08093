/* Matrix products on every rung and of every type: the golden dot products, odd shapes, alone as in a batch, the extremes of int8, NaN that must come out (B151, B154, B157). */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "compute/device.h"
#include "gguf/quant.h"
#include "support/test.h"

static struct device *open_device(const char *rung, enum arithmetic arithmetic, int threads)
{
    struct device *dev = NULL;
    struct err err = {0};
    struct device_options o = {.kind = DEVICE_CPU, .arithmetic = arithmetic, .n_threads = threads, .cpu_rung = rung, .max_rows = 64, .max_n_in = 2048};
    test_ok(device_open(&o, &dev, &err), &err, "device");
    return dev;
}

static void multiply(struct device *dev, const struct weight *w, const float *x, int64_t n, float *out)
{
    const struct weight *one = w;
    for (int64_t i = 0; i < n * w->n_out; i++)
        out[i] = NAN; /* what is not written shows */
    dev->op->matmul(dev, &one, &out, 1, x, n);
}

static void check_golden(const char *rung, enum arithmetic arithmetic, const char *name, const json_t *entry)
{
    size_t n_row, n_x;
    char *row = test_read_file(test_path("quant/%s.row.bin", name), &n_row);
    float *x = (float *)test_read_file(test_path("quant/%s.x.f32", name), &n_x), got;
    struct device *dev = open_device(rung, arithmetic, 1);
    const struct quant_type *type = quant_type_by_name(name);
    struct weight w = {.type = type->id, .n_in = (int64_t)(n_x / 4), .n_out = 1, .row_bytes = n_row, .data = row};
    multiply(dev, &w, x, 1, &got);
    double scale = json_real_value(json_object_get(entry, "dot_scale")), difference = fabs((double)got - json_real_value(json_object_get(entry, "dot")));
    if (!(difference <= (arithmetic == ARITHMETIC_EXACT ? 1e-6 : 6e-3) * scale))
        fail_msg("%s on %s: off by %g of %g", name, rung, difference, scale);
    device_close(dev);
    mem_free(row);
    mem_free(x);
}

static void test_goldens(void **unused)
{
    (void)unused;
    json_t *index = test_json("quant/index.json"), *entry;
    const char *name;
    for (const char *const *rung = device_cpu_rungs(); *rung; rung++)
        json_object_foreach(index, name, entry) {
            check_golden(*rung, ARITHMETIC_EXACT, name, entry);
            check_golden(*rung, ARITHMETIC_DEFAULT, name, entry);
        }
    json_decref(index);
}

/* Rows of a golden type's sound blocks, in turn, as a matrix. */
static void check_shapes(const char *rung, enum arithmetic arithmetic, const char *name, int64_t n_in, int64_t n_out)
{
    enum { ROWS = 17 };
    size_t n_row;
    uint64_t state = 99;
    char *row = test_read_file(test_path("quant/%s.row.bin", name), &n_row);
    const struct quant_type *type = quant_type_by_name(name);
    size_t bytes = quant_row_bytes(type->id, (uint64_t)n_in);
    char *data = mem_alloc(MEM_OTHER, bytes * (size_t)n_out + 64);
    float *x = mem_alloc(MEM_OTHER, (size_t)(ROWS * n_in) * 4), *batch = mem_alloc(MEM_OTHER, (size_t)(ROWS * n_out) * 4), *alone = mem_alloc(MEM_OTHER, (size_t)n_out * 4);
    float *decoded = mem_alloc(MEM_OTHER, (size_t)n_in * 4);
    for (int64_t o = 0; o < n_out; o++)
        memcpy(data + (size_t)o * bytes, row + (size_t)(o % 2) * (size_t)type->block_bytes, bytes);
    for (int64_t i = 0; i < ROWS * n_in; i++)
        x[i] = test_gauss(&state);
    struct weight w = {.type = type->id, .n_in = n_in, .n_out = n_out, .row_bytes = bytes, .data = data};
    struct device *dev = open_device(rung, arithmetic, 3);
    multiply(dev, &w, x, ROWS, batch);
    for (int r = 0; r < ROWS; r++) {
        multiply(dev, &w, x + r * n_in, 1, alone);
        if (memcmp(alone, batch + r * n_out, (size_t)n_out * 4) != 0)
            fail_msg("%s on %s [%lld x %lld]: row %d alone differs", name, rung, (long long)n_out, (long long)n_in, r);
        for (int64_t o = 0; o < n_out; o++) {
            double sum = 0, scale = 0;
            type->decode(data + (size_t)o * bytes, decoded, (size_t)n_in);
            for (int64_t i = 0; i < n_in; i++) {
                sum += (double)decoded[i] * x[r * n_in + i];
                scale += fabs((double)decoded[i] * x[r * n_in + i]);
            }
            if (!(fabs(sum - alone[o]) <= (arithmetic == ARITHMETIC_EXACT ? 2e-6 : 1e-2) * scale))
                fail_msg("%s on %s [%lld x %lld]: %g, expected %g", name, rung, (long long)n_out, (long long)n_in, (double)alone[o], sum);
        }
    }
    device_close(dev);
    mem_free(row);
    mem_free(data);
    mem_free(x);
    mem_free(batch);
    mem_free(alone);
    mem_free(decoded);
}

static void test_shapes(void **unused)
{
    (void)unused;
    static const char *const types[] = {"Q8_0", "Q4_0", "Q5_1", "IQ4_NL", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "MXFP4", "IQ2_S"};
    for (const char *const *rung = device_cpu_rungs(); *rung; rung++)
        for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
            int64_t block = quant_type_by_name(types[i])->block_elems;
            for (int64_t n_out = 1; n_out <= 33; n_out += n_out < 6 ? 1 : 27)
                check_shapes(*rung, i % 2 ? ARITHMETIC_DEFAULT : ARITHMETIC_EXACT, types[i], block * (n_out % 2 ? 1 : 3), n_out);
            check_shapes(*rung, ARITHMETIC_DEFAULT, types[i], block, 5);
        }
}

/* F32 rows of lengths that are no multiple of anything. */
static void test_odd_lengths(void **unused)
{
    (void)unused;
    uint64_t state = 5;
    float w[5 * 61], x[3 * 61], out[15];
    for (const char *const *rung = device_cpu_rungs(); *rung; rung++)
        for (int64_t n = 1; n <= 61; n += 3) {
            struct device *dev = open_device(*rung, ARITHMETIC_DEFAULT, 2);
            for (int64_t i = 0; i < 5 * n; i++)
                w[i] = test_gauss(&state);
            for (int64_t i = 0; i < 3 * n; i++)
                x[i] = test_gauss(&state);
            multiply(dev, &(struct weight){.type = QUANT_F32, .n_in = n, .n_out = 5, .row_bytes = (size_t)n * 4, .data = w}, x, 3, out);
            for (int k = 0; k < 15; k++) {
                double sum = 0;
                for (int64_t i = 0; i < n; i++)
                    sum += (double)w[k % 5 * n + i] * x[k / 5 * n + i];
                assert_true(fabs(sum - out[k]) <= 1e-5 * (1 + fabs(sum)));
            }
            device_close(dev);
        }
}

/* The largest int8 products there are do not wrap; zeros stay zero; NaN and infinities do not vanish. */
static void test_extremes(void **unused)
{
    (void)unused;
    uint8_t blocks[2 * 34];
    float x[64], out;
    for (const char *const *rung = device_cpu_rungs(); *rung; rung++) {
        struct device *dev = open_device(*rung, ARITHMETIC_DEFAULT, 1);
        struct weight w = {.type = QUANT_Q8_0, .n_in = 64, .n_out = 1, .row_bytes = sizeof blocks, .data = blocks};
        for (int k = 0; k < 2; k++) {
            blocks[34 * k] = 0;
            blocks[34 * k + 1] = 0x3C; /* 1.0 */
            memset(blocks + 34 * k + 2, 0x80, 32); /* -128 */
        }
        for (int i = 0; i < 64; i++)
            x[i] = -1e6f;
        multiply(dev, &w, x, 1, &out);
        assert_true(fabs(out / (64 * 128 * 1e6) - 1) < 1e-5);
        memset(x, 0, sizeof x);
        multiply(dev, &w, x, 1, &out);
        assert_true(out == 0);
        x[40] = NAN;
        multiply(dev, &w, x, 1, &out);
        assert_true(isnan(out));
        x[40] = INFINITY;
        multiply(dev, &w, x, 1, &out);
        assert_false(isfinite(out));
        device_close(dev);
    }
}

/* B196, B197: a rung that is not to be had is an error that names those that are. */
static void test_rungs(void **unused)
{
    (void)unused;
    struct device *dev = NULL;
    struct err err = {0};
    struct device_options o = {.cpu_rung = "avx9000", .max_rows = 1, .max_n_in = 32, .n_threads = 1};
    assert_int_equal(device_open(&o, &dev, &err), ERR_DEVICE);
    assert_non_null(strstr(err.message, "scalar"));
    o = (struct device_options){.kind = DEVICE_CUDA, .max_rows = 1, .max_n_in = 32};
    assert_int_equal(device_open(&o, &dev, &err), ERR_DEVICE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens), cmocka_unit_test(test_shapes), cmocka_unit_test(test_odd_lengths), cmocka_unit_test(test_extremes), cmocka_unit_test(test_rungs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
