/* The reader on sound files: typed reads, lookups, tensors, alignment, header-only, and what a file refused looks like from inside. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "gguf/gguf.h"
#include "gguf/quant.h"
#include "support/gguf_make.h"
#include "support/test.h"

static char folder[] = "/tmp/apr-gguf-XXXXXX";

static const char *in_folder(const char *name)
{
    static char ring[4][256];
    static unsigned next;
    char *out = ring[next++ % 4];
    snprintf(out, sizeof ring[0], "%s/%s", folder, name);
    return out;
}

static struct gguf *open_made(const struct gguf_make *m, unsigned flags)
{
    struct buf file;
    struct gguf *g = NULL;
    struct err err = {0};
    make_finish(m, &file);
    make_write(in_folder("made.gguf"), file.data, file.len);
    buf_free(&file);
    test_ok(gguf_open(in_folder("made.gguf"), flags, &g, &err), &err, "made");
    return g;
}

static void refuse_file(const char *path, unsigned flags, int code, const char *word)
{
    struct gguf *g = NULL;
    struct err err = {0};
    size_t before = mem_bytes(MEM_GGUF);
    int rc = gguf_open(path, flags, &g, &err);
    if (rc != code || !strstr(err.message, word))
        fail_msg("%s: %d (%s), expected %d with \"%s\"", path, rc, err.message, code, word);
    assert_null(g);
    assert_int_equal(strncmp(err.message, path, strlen(path)), 0);
    assert_null(strchr(err.message, '\n'));
    assert_int_equal(mem_bytes(MEM_GGUF), before);
}

static void refuse_made(const struct gguf_make *m, unsigned flags, int code, const char *word)
{
    struct buf file;
    make_finish(m, &file);
    make_write(in_folder("refused.gguf"), file.data, file.len);
    buf_free(&file);
    refuse_file(in_folder("refused.gguf"), flags, code, word);
}

static void integers(void **state)
{
    static const struct {
        const char *key;
        enum gguf_type type;
        size_t n;
        uint64_t bits, value;
    } cases[] = {
        {"a.u8", GGUF_U8, 1, 200, 200},
        {"a.i8", GGUF_I8, 1, 100, 100},
        {"a.u16", GGUF_U16, 2, 65535, 65535},
        {"a.i16", GGUF_I16, 2, 300, 300},
        {"a.u32", GGUF_U32, 4, 4294967295, 4294967295},
        {"a.i32", GGUF_I32, 4, 70000, 70000},
        {"a.u64", GGUF_U64, 8, 1ull << 40, 1ull << 40},
        {"a.i64", GGUF_I64, 8, 1ull << 41, 1ull << 41},
    };
    struct gguf_make m;
    (void)state;
    make_init(&m);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        make_scalar(&m, cases[i].key, cases[i].type, &cases[i].bits, cases[i].n);
    make_scalar(&m, "a.minus", GGUF_I32, &(int32_t){-4}, 4);
    make_scalar(&m, "a.huge", GGUF_U64, &(uint64_t){1ull << 63}, 8);
    make_scalar(&m, "a.bool", GGUF_BOOL, "\1", 1);
    make_string(&m, "a.text", "4", 1);
    struct gguf *g = open_made(&m, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t value = 0, other = 77;
        struct err err = {0};
        assert_int_equal(gguf_get_u64(g, cases[i].key, 0, UINT64_MAX, &value, &err), 1);
        assert_true(value == cases[i].value);
        assert_int_equal(gguf_get_u64(g, cases[i].key, value + 1, UINT64_MAX, &other, &err), ERR_FORMAT);
        assert_int_equal(gguf_get_u64(g, cases[i].key, 0, value - 1, &other, &err), ERR_FORMAT);
        assert_non_null(strstr(err.message, cases[i].key));
        assert_int_equal(other, 77);
    }
    static const char *const unusable[] = {"a.minus", "a.huge", "a.bool", "a.text"};
    for (size_t i = 0; i < 4; i++) {
        uint64_t value = 77;
        struct err err = {0};
        assert_int_equal(gguf_get_u64(g, unusable[i], 0, UINT64_MAX, &value, &err), ERR_FORMAT);
        assert_non_null(strstr(err.message, unusable[i]));
        assert_int_equal(value, 77);
    }
    uint64_t value = 77;
    struct err err = {0};
    assert_int_equal(gguf_get_u64(g, "a.none", 0, 1, &value, &err), 0);
    assert_int_equal(value, 77);
    gguf_close(g);
    make_free(&m);
}

static void other_scalars(void **state)
{
    struct gguf_make m;
    struct err err = {0};
    double number = 7;
    int flag = 7;
    struct gguf_string text = {0};
    (void)state;
    make_init(&m);
    make_scalar(&m, "a.f32", GGUF_F32, &(float){0.25f}, 4);
    make_scalar(&m, "a.f64", GGUF_F64, &(double){1e-6}, 8);
    make_scalar(&m, "a.nan", GGUF_F32, &(float){NAN}, 4);
    make_scalar(&m, "a.inf", GGUF_F64, &(double){-INFINITY}, 8);
    make_u32(&m, "a.u32", 1);
    make_scalar(&m, "a.yes", GGUF_BOOL, "\1", 1);
    make_scalar(&m, "a.no", GGUF_BOOL, "\0", 1);
    make_string(&m, "a.text", "caf\xE9\0x", 6);
    make_string(&m, "a.empty", "", 0);
    struct gguf *g = open_made(&m, 0);
    assert_int_equal(gguf_get_f64(g, "a.f32", &number, &err), 1);
    assert_true(number == 0.25);
    assert_int_equal(gguf_get_f64(g, "a.f64", &number, &err), 1);
    assert_true(number == 1e-6);
    assert_int_equal(gguf_get_f64(g, "a.nan", &number, &err), ERR_FORMAT);
    assert_int_equal(gguf_get_f64(g, "a.inf", &number, &err), ERR_FORMAT);
    assert_int_equal(gguf_get_f64(g, "a.u32", &number, &err), ERR_FORMAT);
    assert_non_null(strstr(err.message, "u32"));
    assert_int_equal(gguf_get_f64(g, "a.none", &number, &err), 0);
    assert_true(number == 1e-6);
    assert_int_equal(gguf_get_bool(g, "a.yes", &flag, &err), 1);
    assert_int_equal(flag, 1);
    assert_int_equal(gguf_get_bool(g, "a.no", &flag, &err), 1);
    assert_int_equal(flag, 0);
    assert_int_equal(gguf_get_bool(g, "a.u32", &flag, &err), ERR_FORMAT);
    assert_int_equal(gguf_get_string(g, "a.text", &text, &err), 1);
    assert_int_equal(text.len, 6);
    assert_memory_equal(text.data, "caf\xE9\0x", 6);
    assert_int_equal(gguf_get_string(g, "a.empty", &text, &err), 1);
    assert_int_equal(text.len, 0);
    assert_int_equal(gguf_get_string(g, "a.u32", &text, &err), ERR_FORMAT);
    assert_int_equal(gguf_get_string(g, "a.none", &text, &err), 0);
    gguf_close(g);
    make_free(&m);
}

static void arrays(void **state)
{
    struct gguf_make m;
    struct gguf_string text;
    uint64_t cursor = 0;
    (void)state;
    make_init(&m);
    make_array(&m, "i8", GGUF_I8, 3, "\xFF\x7F\x80", 3);
    make_array(&m, "u16", GGUF_U16, 2, "\1\0\xFF\xFF", 4);
    make_array(&m, "i32", GGUF_I32, 2, &(int32_t[]){-5, 11}, 8);
    make_array(&m, "u64", GGUF_U64, 2, &(uint64_t[]){3, UINT64_MAX}, 16);
    make_array(&m, "f32", GGUF_F32, 2, &(float[]){0.5f, -2}, 8);
    make_array(&m, "f64", GGUF_F64, 1, &(double[]){1e100}, 8);
    make_array(&m, "bool", GGUF_BOOL, 3, "\0\1\xC8", 3);
    make_array(&m, "none", GGUF_STRING, 0, "", 0);
    make_array(&m, "texts", GGUF_STRING, 3, "\2\0\0\0\0\0\0\0ab\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0c", 27);
    struct gguf *g = open_made(&m, 0);
    assert_int_equal(gguf_array_i64(gguf_find(g, "i8"), 0), -1);
    assert_int_equal(gguf_array_i64(gguf_find(g, "i8"), 2), -128);
    assert_int_equal(gguf_array_i64(gguf_find(g, "u16"), 1), 65535);
    assert_int_equal(gguf_array_i64(gguf_find(g, "i32"), 0), -5);
    assert_true(gguf_array_f64(gguf_find(g, "i32"), 1) == 11);
    assert_true(gguf_array_i64(gguf_find(g, "u64"), 1) == INT64_MAX);
    assert_true(gguf_array_f64(gguf_find(g, "f32"), 1) == -2);
    assert_true(gguf_array_f64(gguf_find(g, "f64"), 0) == 1e100);
    assert_int_equal(gguf_array_i64(gguf_find(g, "bool"), 0), 0);
    assert_int_equal(gguf_array_i64(gguf_find(g, "bool"), 2), 1); /* never an index */
    assert_int_equal(gguf_find(g, "none")->n, 0);
    assert_int_equal(gguf_array_next_string(gguf_find(g, "none"), &cursor, &text), 0);
    static const char *const want[] = {"ab", "", "c"};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(gguf_array_next_string(gguf_find(g, "texts"), &cursor, &text), 1);
        assert_int_equal(text.len, strlen(want[i]));
        assert_memory_equal(text.data, want[i], text.len);
    }
    assert_int_equal(gguf_array_next_string(gguf_find(g, "texts"), &cursor, &text), 0);
    cursor = 0;
    assert_int_equal(gguf_array_next_string(gguf_find(g, "u16"), &cursor, &text), 0);
    gguf_close(g);
    make_free(&m);
}

/* Many of both: a search that walks the table for each name would need 10^10 steps here (S10). */
static void lookups(void **state)
{
    enum { N = 100000 };
    struct gguf_make m;
    char name[32];
    (void)state;
    make_init(&m);
    for (uint32_t i = 0; i < N; i++) {
        snprintf(name, sizeof name, "key.%u", i);
        make_u32(&m, name, i);
        snprintf(name, sizeof name, "tensor.%u", i);
        make_tensor(&m, name, QUANT_F32, 1, &(uint64_t){1}, 32ull * i, 4);
    }
    struct gguf *g = open_made(&m, 0);
    assert_int_equal(gguf_n_kv(g), N);
    assert_int_equal(gguf_n_tensors(g), N);
    for (uint32_t i = 0; i < N; i++) {
        snprintf(name, sizeof name, "key.%u", i);
        const struct gguf_kv *kv = gguf_find(g, name);
        assert_ptr_equal(kv, gguf_kv_at(g, i));
        snprintf(name, sizeof name, "tensor.%u", i);
        assert_ptr_equal(gguf_find_tensor(g, name), gguf_tensor_at(g, i));
    }
    assert_null(gguf_find(g, "key."));
    assert_null(gguf_find(g, ""));
    assert_null(gguf_find(g, "tensor.1"));
    assert_null(gguf_find_tensor(g, "tensor.100000"));
    gguf_close(g);
    make_free(&m);
}

static void tensors(void **state)
{
    struct gguf_make m;
    (void)state;
    make_init(&m);
    m.alignment = 64;
    make_u32(&m, "general.alignment", 64);
    make_tensor(&m, "b", QUANT_Q4_K, 3, (uint64_t[]){512, 2, 3}, 128, 144 * 12);
    make_tensor(&m, "a", QUANT_F16, 1, (uint64_t[]){5}, 0, 10);
    make_tensor(&m, "c", QUANT_I64, 4, (uint64_t[]){1, 1, 1, 1}, 64, 8);
    struct gguf *g = open_made(&m, 0);
    assert_int_equal(gguf_alignment(g), 64);
    assert_int_equal(gguf_version(g), 3);
    const struct gguf_tensor *t = gguf_tensor_at(g, 0);
    assert_ptr_equal(t, gguf_find_tensor(g, "b"));
    assert_int_equal(t->n_dims, 3);
    assert_int_equal(t->ne[0], 512);
    assert_int_equal(t->ne[2], 3);
    assert_int_equal(t->ne[3], 1);
    assert_int_equal(t->n_bytes, 144 * 12);
    assert_int_equal(t->offset % 64, 0);
    assert_int_equal(((const uint8_t *)t->data)[3], 128 + 3);
    t = gguf_find_tensor(g, "a");
    assert_int_equal(t->n_bytes, 10);
    assert_int_equal(t->part, 0);
    assert_int_equal(((const uint8_t *)t->data)[9], 9);
    assert_int_equal(gguf_file_bytes(g), t->offset + m.data_bytes);
    gguf_close(g);
    m.version = 2;
    g = open_made(&m, 0);
    assert_int_equal(gguf_version(g), 2);
    gguf_close(g);
    make_free(&m);
}

static void tensors_refused(void **state)
{
    static const struct {
        const char *what;
        uint32_t type;
        int n_dims;
        uint64_t ne[5], offset;
        int code;
        const char *word;
    } cases[] = {
        {"overlap by a byte", QUANT_I8, 1, {33}, 0, ERR_FORMAT, "overlap"},
        {"same place", QUANT_I8, 1, {1}, 32, ERR_FORMAT, "overlap"},
        {"not aligned", QUANT_I8, 1, {1}, 68, ERR_FORMAT, "alignment"},
        {"no elements", QUANT_F32, 2, {4, 0}, 64, ERR_FORMAT, "dimension"},        /* S9 */
        {"wraps to little", QUANT_F32, 2, {1ull << 40, 1ull << 40}, 64, ERR_FORMAT, "overflow"}, /* S7 */
        {"bytes fit, elements do not", QUANT_IQ1_S, 3, {1ull << 40, 1ull << 20, 1ull << 3}, 64, ERR_FORMAT, "overflow"},
        {"offset wraps", QUANT_I8, 1, {64}, UINT64_MAX - 31, ERR_FORMAT, "overflow"}, /* S2 */
        {"removed type", 4, 1, {32}, 64, ERR_UNSUPPORTED, "type 4"},
        {"part of a block", QUANT_Q8_0, 1, {33}, 64, ERR_FORMAT, "multiple"},
        {"five dimensions", QUANT_F32, 5, {1, 1, 1, 1, 1}, 64, ERR_FORMAT, "5 dimensions"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (unsigned flags = 0; flags <= GGUF_HEADER_ONLY; flags++) {
            struct gguf_make m;
            make_init(&m);
            make_tensor(&m, "first", QUANT_I8, 1, (uint64_t[]){32}, 32, 32);
            make_tensor(&m, "second", cases[i].type, cases[i].n_dims, cases[i].ne, cases[i].offset, 0);
            m.data_bytes = 256;
            refuse_made(&m, flags, cases[i].code, cases[i].word);
            make_free(&m);
        }
}

/* What a file may call its keys and tensors ends up in messages and listings. */
static void names_with_control_characters(void **state)
{
    static const char key[] = "a\x1B[2J", nul[] = "a\0b";
    struct gguf_make m;
    (void)state;
    make_init(&m);
    make_raw_key(&m, key, sizeof key - 1, GGUF_U8);
    buf_add_char(&m.kv, 1);
    refuse_made(&m, 0, ERR_FORMAT, "a?[2J");
    make_free(&m);
    make_init(&m);
    make_raw_key(&m, nul, 3, GGUF_U8);
    buf_add_char(&m.kv, 1);
    refuse_made(&m, 0, ERR_FORMAT, "a?b");
    make_free(&m);
    make_init(&m);
    make_tensor(&m, "a\nb", QUANT_I8, 1, (uint64_t[]){1}, 0, 1);
    refuse_made(&m, 0, ERR_FORMAT, "a?b");
    make_free(&m);
}

static void counts_are_held_against_the_file(void **state)
{
    uint64_t head[3] = {0x0000000346554747u, 0, 0};
    (void)state;
    for (int which = 1; which <= 2; which++) {
        head[1] = head[2] = 0;
        head[which] = 1u << 21;
        make_write(in_folder("many.gguf"), head, sizeof head);
        mem_fail_above(1 << 16);
        refuse_file(in_folder("many.gguf"), 0, ERR_FORMAT, which == 1 ? "2097152 tensors, more than the 24 bytes of the file can hold" : "2097152 metadata keys, more than the 24 bytes of the file can hold");
        assert_int_equal(truncate(in_folder("many.gguf"), 100 << 20), 0); /* a hole that could hold them */
        refuse_file(in_folder("many.gguf"), 0, ERR_LIMIT, "at most 1048576");
        mem_fail_above(0);
    }
}

static void header_only(void **state)
{
    size_t n;
    struct gguf *whole = NULL, *head = NULL;
    struct err err = {0};
    char *data = test_read_file(test_path("models/r2-q8_0.gguf"), &n), missing[64];
    (void)state;
    test_ok(gguf_open(test_path("models/r2-q8_0.gguf"), 0, &whole, &err), &err, "whole");
    uint64_t start = UINT64_MAX, end = 0;
    for (size_t i = 0; i < gguf_n_tensors(whole); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(whole, i);
        start = t->offset < start ? t->offset : start;
        end = t->offset + t->n_bytes > end ? t->offset + t->n_bytes : end;
    }
    for (uint64_t more = 0; more <= 100; more += 100) {
        uint64_t kept = start + more;
        make_write(in_folder("head.gguf"), data, (size_t)kept);
        test_ok(gguf_open(in_folder("head.gguf"), GGUF_HEADER_ONLY, &head, &err), &err, "head");
        assert_int_equal(gguf_n_tensors(head), gguf_n_tensors(whole));
        for (size_t i = 0; i < gguf_n_tensors(head); i++) {
            const struct gguf_tensor *a = gguf_tensor_at(head, i), *b = gguf_tensor_at(whole, i);
            assert_null(a->data);
            assert_true(a->offset == b->offset && a->n_bytes == b->n_bytes && a->type == b->type);
        }
        gguf_close(head);
        snprintf(missing, sizeof missing, "%llu bytes are missing", (unsigned long long)(end - kept)); /* B190 */
        refuse_file(in_folder("head.gguf"), 0, ERR_FORMAT, missing);
    }
    gguf_close(whole);
    mem_free(data);
}

static void address_of_a_mapping(void **state)
{
    struct gguf *g = NULL;
    struct err err = {0};
    char path[512];
    (void)state;
    snprintf(path, sizeof path, "%s", test_path("models/r2-q8_0.gguf"));
    test_ok(gguf_open(path, 0, &g, &err), &err, "open");
    const struct gguf_tensor *t = gguf_tensor_at(g, gguf_n_tensors(g) - 1);
    const uint8_t *data = t->data, *file = data - t->offset;
    assert_string_equal(gguf_path_of_address(data), path);
    assert_string_equal(gguf_path_of_address(file), path);
    assert_string_equal(gguf_path_of_address(file + gguf_file_bytes(g) - 1), path);
    assert_null(gguf_path_of_address(file + gguf_file_bytes(g)));
    assert_null(gguf_path_of_address(&g));
    assert_null(gguf_path_of_address(NULL));
    gguf_close(g);
    assert_null(gguf_path_of_address(data));
}

/* The n-th allocation fails, for every n there is: an error, nothing left behind, and the next attempt works. */
static void allocations_that_fail(void **state)
{
    char path[512];
    size_t before = mem_bytes(MEM_GGUF);
    long n = 1;
    (void)state;
    snprintf(path, sizeof path, "%s", test_path("models/split/r2-q8_0-00002-of-00003.gguf"));
    for (;; n++) {
        struct gguf *g = NULL;
        struct err err = {0};
        mem_fail_nth(n);
        int rc = gguf_open(path, 0, &g, &err);
        mem_fail_nth(0);
        if (rc == 0) {
            gguf_close(g);
            break;
        }
        assert_int_equal(rc, ERR_NO_MEMORY);
        assert_null(g);
        assert_non_null(strstr(err.message, "memory"));
        assert_int_equal(mem_bytes(MEM_GGUF), before);
    }
    assert_true(n > 10);
    assert_int_equal(mem_bytes(MEM_GGUF), before);
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    static const char *const names[] = {"made.gguf", "refused.gguf", "many.gguf", "head.gguf"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unlink(in_folder(names[i]));
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(integers),
        cmocka_unit_test(other_scalars),
        cmocka_unit_test(arrays),
        cmocka_unit_test(lookups),
        cmocka_unit_test(tensors),
        cmocka_unit_test(tensors_refused),
        cmocka_unit_test(names_with_control_characters),
        cmocka_unit_test(counts_are_held_against_the_file),
        cmocka_unit_test(header_only),
        cmocka_unit_test(address_of_a_mapping),
        cmocka_unit_test(allocations_that_fail),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
