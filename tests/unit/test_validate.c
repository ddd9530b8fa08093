/* Numbers that are no numbers, found wherever they stand in a tensor and in whatever type. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "gguf/gguf.h"
#include "gguf/quant.h"
#include "gguf/validate.h"
#include "support/test.h"

static void sound_models_pass(void **state)
{
    static const char *const names[] = {"r1-q4_k_m", "r2-f32", "r2-f16", "r2-bf16", "r2-q8_0", "r2-q2_k", "r2-iq4_xs", "moe-q4_k_m"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct gguf *g = NULL;
        struct err err = {0};
        struct gguf_validation seen;
        test_ok(gguf_open(test_path("models/%s.gguf", names[i]), 0, &g, &err), &err, names[i]);
        test_ok(gguf_validate_data(g, &seen, &err), &err, names[i]);
        assert_int_equal(seen.n_tensors, gguf_n_tensors(g));
        assert_int_equal(seen.n_bad_tensors, 0);
        assert_int_equal(seen.n_bad_elements, 0);
        assert_true(seen.n_elements > 1000000);
        gguf_close(g);
    }
}

static void header_only_has_nothing_to_look_at(void **state)
{
    struct gguf *g = NULL;
    struct err err = {0};
    struct gguf_validation seen;
    (void)state;
    test_ok(gguf_open(test_path("models/r2-q8_0.gguf"), GGUF_HEADER_ONLY, &g, &err), &err, "open");
    test_ok(gguf_validate_data(g, &seen, &err), &err, "validate");
    assert_int_equal(seen.n_tensors, 0);
    gguf_close(g);
}

/* A copy of a golden model with `n` bytes at an offset of a tensor replaced; then what validation says. */
static int validate_patched(const char *model, const char *tensor, uint64_t at, const void *bytes, size_t n, struct err *err)
{
    char path[] = "/tmp/apr-validate-XXXXXX";
    size_t size;
    struct gguf *g = NULL;
    struct err ignored = {0};
    char *data = test_read_file(test_path("models/%s.gguf", model), &size);
    test_ok(gguf_open(test_path("models/%s.gguf", model), 0, &g, &ignored), &ignored, model);
    const struct gguf_tensor *t = gguf_find_tensor(g, tensor);
    assert_non_null(t);
    assert_true(at + n <= t->n_bytes);
    memcpy(data + t->offset + at, bytes, n);
    gguf_close(g);
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, size), size);
    close(fd);
    mem_free(data);
    test_ok(gguf_open(path, 0, &g, &ignored), &ignored, path);
    int rc = gguf_validate_data(g, NULL, err);
    gguf_close(g);
    unlink(path);
    return rc;
}

static void bad_numbers_are_named(void **state)
{
    static const struct {
        const char *model, *tensor;
        uint64_t at;
        const char *bytes;
        size_t n;
        const char *says, *count;
    } cases[] = {
        {"r2-f32", "output_norm.weight", 255 * 4, "\0\0\x80\x7F", 4, "element 255 of row 0", "one of 1 such"},
        {"r2-f32", "blk.0.ffn_up.weight", 256 * 4 * 3 + 8, "\1\0\x80\xFF", 4, "element 2 of row 3", "one of 1 such"},
        {"r2-f16", "blk.0.ffn_up.weight", 256 * 2 * 5, "\0\xFC\1\x7C", 4, "element 0 of row 5", "one of 2 such"},
        {"r2-bf16", "blk.1.ffn_down.weight", 2, "\xC0\x7F", 2, "element 1 of row 0", "one of 1 such"},
        {"r2-q8_0", "blk.0.ffn_up.weight", 34 * 9, "\0\x7E", 2, "element 32 of row 1", "one of 32 such"},
        {"r2-q2_k", "blk.0.ffn_up.weight", 80, "\0\x7C", 2, "element 0 of row 0", "one of 256 such"},
        {"r2-q4_k", "blk.0.ffn_up.weight", 2, "\0\x7C", 2, "element 0 of row 0", "one of 256 such"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err err = {0};
        assert_int_equal(validate_patched(cases[i].model, cases[i].tensor, cases[i].at, cases[i].bytes, cases[i].n, &err), ERR_NUMERIC);
        assert_non_null(strstr(err.message, cases[i].tensor));
        assert_non_null(strstr(err.message, cases[i].says));
        assert_non_null(strstr(err.message, cases[i].count));
    }
}

/* Random bytes make every kind of scale, bad ones among them: what the search says is what decoding shows. */
static void check_type(const struct quant_type *type, size_t n, uint64_t seed)
{
    size_t bytes = quant_row_bytes(type->id, n);
    uint8_t *blocks = mem_alloc(MEM_OTHER, bytes);
    float *values = mem_alloc(MEM_OTHER, n * sizeof *values);
    for (size_t i = 0; i < bytes; i++)
        blocks[i] = (uint8_t)test_random(&seed, 256);
    type->decode(blocks, values, n);
    uint64_t want = 0, first = n;
    for (size_t i = 0; i < n; i++)
        if (!isfinite(values[i]) && want++ == 0)
            first = i;
    struct gguf_tensor t = {.n_dims = 1, .ne = {n, 1, 1, 1}, .type = type->id, .n_bytes = bytes, .data = blocks};
    struct gguf_bad_numbers bad;
    assert_int_equal(gguf_validate_tensor(&t, &bad), 1);
    if (bad.n != want || bad.first != first)
        fail_msg("%s: %llu bad from %llu, expected %llu from %llu", type->name, (unsigned long long)bad.n, (unsigned long long)bad.first, (unsigned long long)want, (unsigned long long)first);
    mem_free(blocks);
    mem_free(values);
}

static void every_type_agrees_with_its_decoder(void **state)
{
    int checked = 0;
    (void)state;
    for (uint32_t id = 0; id < 64; id++) {
        const struct quant_type *type = quant_type(id);
        if (!type || !type->decode)
            continue;
        for (uint64_t seed = 0; seed < 40; seed++)
            check_type(type, (size_t)type->block_elems * (1 + seed), seed);
        for (uint64_t seed = 0; seed < 3; seed++)
            check_type(type, 256 * 64 + (size_t)type->block_elems, seed);
        checked++;
    }
    assert_true(checked >= 24);
}

static void types_that_are_no_weights_are_passed_over(void **state)
{
    uint8_t data[8] = {0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF};
    struct gguf_tensor t = {.n_dims = 1, .ne = {1, 1, 1, 1}, .type = QUANT_I64, .n_bytes = 8, .data = data};
    struct gguf_bad_numbers bad = {7, 7};
    (void)state;
    assert_int_equal(gguf_validate_tensor(&t, &bad), 0);
    assert_int_equal(bad.n, 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sound_models_pass),
        cmocka_unit_test(header_only_has_nothing_to_look_at),
        cmocka_unit_test(bad_numbers_are_named),
        cmocka_unit_test(every_type_agrees_with_its_decoder),
        cmocka_unit_test(types_that_are_no_weights_are_passed_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
