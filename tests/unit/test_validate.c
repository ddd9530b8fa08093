/* Numbers that are no numbers, found wherever they stand in a tensor and in whatever type. */
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
        assert_true(seen.n_elements > 1000000);
        gguf_close(g);
    }
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
        const char *says;
    } cases[] = {
        {"r2-f32", "output_norm.weight", 255 * 4, "\0\0\x80\x7F", 4, "element 255 of row 0"},
        {"r2-f32", "blk.0.ffn_up.weight", 256 * 4 * 3 + 8, "\1\0\x80\xFF", 4, "element 2 of row 3"},
        {"r2-f16", "blk.0.ffn_up.weight", 256 * 2 * 5, "\0\xFC", 2, "element 0 of row 5"},
        {"r2-bf16", "blk.1.ffn_down.weight", 2, "\xC0\x7F", 2, "element 1 of row 0"},
        {"r2-q8_0", "blk.0.ffn_up.weight", 34 * 9, "\0\x7E", 2, "element 32 of row 1"},
        {"r2-q2_k", "blk.0.ffn_up.weight", 80, "\0\x7C", 2, "row 0"},
        {"r2-q4_k", "blk.0.ffn_up.weight", 2, "\0\x7C", 2, "row 0"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err err = {0};
        assert_int_equal(validate_patched(cases[i].model, cases[i].tensor, cases[i].at, cases[i].bytes, cases[i].n, &err), ERR_NUMERIC);
        assert_non_null(strstr(err.message, cases[i].tensor));
        assert_non_null(strstr(err.message, cases[i].says));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(sound_models_pass), cmocka_unit_test(bad_numbers_are_named)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
