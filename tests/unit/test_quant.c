/* Block formats: decode equals the goldens bit for bit (-0 counts as 0), products stay within an f32 kernel's tolerance. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "gguf/quant.h"
#include "support/test.h"

static float *read_floats(const char *name, size_t *n)
{
    size_t bytes;
    char *data = test_read_file(test_path("quant/%s", name), &bytes);
    *n = bytes / 4;
    return (float *)data;
}

static int same(float a, float b)
{
    return memcmp(&a, &b, 4) == 0 || (a == 0 && b == 0) || (isnan(a) && isnan(b));
}

static void test_blocks(void **unused)
{
    (void)unused;
    json_t *index = test_json("quant/index.json"), *entry;
    const char *name;
    int checked = 0;
    json_object_foreach(index, name, entry) {
        const struct quant_type *type = quant_type_by_name(name);
        if (!type || !type->decode)
            fail_msg("no decoder for %s", name);
        assert_int_equal(type->id, json_integer_value(json_object_get(entry, "id")));
        assert_int_equal(type->block_elems, json_integer_value(json_object_get(entry, "elements")));
        assert_int_equal(type->block_bytes, json_integer_value(json_object_get(entry, "bytes")));
        char file[64];
        snprintf(file, sizeof file, "%s.values.f32", name);
        size_t n, bytes, n_row, row_bytes;
        float *want = read_floats(file, &n);
        char *blocks = test_read_file(test_path("quant/%s.blocks.bin", name), &bytes);
        assert_int_equal(bytes, quant_row_bytes(type->id, n));
        float *got = mem_alloc(MEM_OTHER, n * 4);
        type->decode(blocks, got, n);
        for (size_t i = 0; i < n; i++)
            if (!same(got[i], want[i]))
                fail_msg("%s element %zu of block %zu: %a, expected %a", name, i % (size_t)type->block_elems, i / (size_t)type->block_elems, got[i], want[i]);
        char *row = test_read_file(test_path("quant/%s.row.bin", name), &row_bytes);
        snprintf(file, sizeof file, "%s.x.f32", name);
        float *x = read_floats(file, &n_row);
        float *w = mem_alloc(MEM_OTHER, n_row * 4);
        type->decode(row, w, n_row);
        double dot = 0;
        for (size_t i = 0; i < n_row; i++)
            dot += (double)w[i] * x[i];
        double scale = json_real_value(json_object_get(entry, "dot_scale"));
        assert_true(fabs(dot - json_real_value(json_object_get(entry, "dot"))) <= 1e-6 * scale);
        mem_free(want);
        mem_free(blocks);
        mem_free(got);
        mem_free(row);
        mem_free(x);
        mem_free(w);
        checked++;
    }
    assert_true(checked >= 20);
    json_decref(index);
}

static void test_all_patterns(void **unused)
{
    (void)unused;
    size_t n;
    float *f16 = read_floats("F16.values.f32", &n);
    assert_int_equal(n, 65536);
    float *bf16 = read_floats("BF16.values.f32", &n);
    assert_int_equal(n, 65536);
    for (unsigned i = 0; i < 65536; i++) {
        assert_true(same(f16_to_f32((uint16_t)i), f16[i]));
        assert_true(same(bf16_to_f32((uint16_t)i), bf16[i]));
        if (!isnan(f16[i]))
            assert_int_equal(f32_to_f16(f16[i]), i);
    }
    assert_int_equal(f32_to_f16(65519.0f), 0x7BFF);
    assert_int_equal(f32_to_f16(65520.0f), 0x7C00);
    assert_int_equal(f32_to_f16(0x1p-25f), 0);       /* a tie goes to even */
    assert_int_equal(f32_to_f16(0x1.8p-25f), 1);
    mem_free(f16);
    mem_free(bf16);
}

static void test_removed_types(void **unused)
{
    (void)unused;
    static const uint32_t removed[] = {4, 5, 31, 32, 33, 36, 37, 38, 43, 97, 139, 202};
    for (size_t i = 0; i < sizeof removed / sizeof *removed; i++)
        assert_null(quant_type(removed[i]));
    assert_null(quant_type(QUANT_NVFP4)->decode);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_all_patterns),
        cmocka_unit_test(test_removed_types),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
