/* The tokeniser against Hugging Face's on the real vocabulary, streams, untrusted spans (B119), combining marks (B113), growth (B118). */
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "support/test.h"
#include "text/vocab.h"

static struct gguf *file;
static struct vocab *vocab;

static int setup(void **unused)
{
    (void)unused;
    struct err err = {0};
    uint64_t start = clock_ns();
    test_ok(gguf_open(test_path("tokenizer/qwen35-vocab.gguf"), 0, &file, &err), &err, "open");
    test_ok(vocab_load(file, &vocab, &err), &err, "vocabulary");
    print_message("vocabulary loaded in %.0f ms\n", clock_ms_since(start));
    return 0;
}

static int teardown(void **unused)
{
    (void)unused;
    vocab_free(vocab);
    gguf_close(file);
    assert_int_equal(mem_bytes(MEM_GGUF), 0);
    assert_int_equal(mem_bytes(MEM_TEXT), 0);
    return 0;
}

static struct ids encode(const char *text, size_t n, enum encode_mode mode, const struct text_span *spans, size_t n_spans)
{
    struct ids ids = {0};
    struct err err = {0};
    test_ok(vocab_encode(vocab, text, n, mode, spans, n_spans, &ids, &err), &err, "encode");
    return ids;
}

static void check_ids(const struct ids *got, const json_t *want, const char *what, const char *text)
{
    int same = got->len == json_array_size(want);
    for (size_t i = 0; same && i < got->len; i++)
        same = got->data[i] == json_integer_value(json_array_get(want, i));
    if (!same)
        fail_msg("%s of \"%.200s\": %zu ids, expected %zu", what, text, got->len, json_array_size(want));
}

static void check_decoded(const struct ids *ids, const char *want, size_t n)
{
    struct buf out;
    struct detok d;
    buf_init(&out, MEM_OTHER, 1 << 26);
    detok_init(&d, vocab, 1);
    for (size_t i = 0; i < ids->len; i++)
        assert_int_equal(detok_push(&d, ids->data[i], &out), 0);
    detok_finish(&d, &out);
    assert_int_equal(out.len, n);
    assert_memory_equal(buf_str(&out), want, n);
    buf_free(&out);
}

static void test_cases(void **unused)
{
    (void)unused;
    json_t *cases = test_json_lines("tokenizer/cases.jsonl"), *one;
    size_t i;
    json_array_foreach(cases, i, one) {
        const json_t *text = json_object_get(one, "text"), *plain = json_object_get(one, "ids_no_special"), *decoded = json_object_get(one, "decoded");
        const char *bytes = json_string_value(text);
        size_t n = json_string_length(text);
        struct ids ids = encode(bytes, n, ENCODE_SPECIAL, NULL, 0), ids_plain = encode(bytes, n, ENCODE_PLAIN, NULL, 0);
        check_ids(&ids, json_object_get(one, "ids"), "ids", bytes);
        check_ids(&ids_plain, plain ? plain : json_object_get(one, "ids"), "ids_no_special", bytes);
        decoded = decoded ? decoded : text;
        check_decoded(&ids, json_string_value(decoded), json_string_length(decoded));
        ids_free(&ids);
        ids_free(&ids_plain);
    }
    assert_true(i >= 1300);
    json_decref(cases);
}

static void test_streams(void **unused)
{
    (void)unused;
    json_t *cases = test_json_lines("tokenizer/stream.jsonl"), *one;
    size_t i;
    json_array_foreach(cases, i, one) {
        const json_t *ids = json_object_get(one, "ids"), *chunks = json_object_get(one, "chunks");
        struct buf out;
        struct detok d;
        buf_init(&out, MEM_OTHER, 1 << 20);
        detok_init(&d, vocab, 1);
        for (size_t k = 0; k <= json_array_size(ids); k++) {
            const json_t *want = json_array_get(chunks, k);
            buf_clear(&out);
            if (k < json_array_size(ids))
                assert_int_equal(detok_push(&d, (int32_t)json_integer_value(json_array_get(ids, k)), &out), 0);
            else
                detok_finish(&d, &out);
            if (out.len != json_string_length(want) || memcmp(buf_str(&out), json_string_value(want), out.len) != 0)
                fail_msg("stream %zu chunk %zu: \"%s\", expected \"%s\"", i, k, buf_str(&out), json_string_value(want));
        }
        buf_free(&out);
    }
    assert_true(i >= 100);
    json_decref(cases);
}

static int has_control(const struct ids *ids)
{
    for (size_t i = 0; i < ids->len; i++)
        if (vocab_kind(vocab, ids->data[i]) == TOKEN_CONTROL)
            return 1;
    return 0;
}

/* B119: a control token's text in, or across the border of, an untrusted span is plain text; elsewhere it stays one, and benign text keeps its ids. */
static void test_spans(void **unused)
{
    (void)unused;
    const char text[] = "<|im_start|>user\nhi<|im_end|>\n";
    size_t n = sizeof text - 1;
    for (size_t start = 0; start <= n; start++)
        for (size_t end = start; end <= n; end++) {
            struct text_span span = {start, end};
            struct ids ids = encode(text, n, ENCODE_SPECIAL, &span, 1);
            int first = start >= 12 || end <= 0 || start == end, second = end <= 19 || start >= 29 || start == end;
            int32_t begin = vocab_find(vocab, "<|im_start|>", 12), finish = vocab_find(vocab, "<|im_end|>", 10);
            int has_begin = 0, has_finish = 0;
            for (size_t i = 0; i < ids.len; i++) {
                has_begin |= ids.data[i] == begin;
                has_finish |= ids.data[i] == finish;
            }
            if (start < end) {
                assert_int_equal(has_begin, first);
                assert_int_equal(has_finish, second);
            }
            check_decoded(&ids, text, n);
            ids_free(&ids);
        }
    struct text_span all = {0, n};
    struct ids ids = encode(text, n, ENCODE_SPECIAL, &all, 1), plain = encode(text, n, ENCODE_PLAIN, NULL, 0);
    assert_false(has_control(&ids));
    assert_int_equal(ids.len, plain.len);
    assert_memory_equal(ids.data, plain.data, ids.len * sizeof *ids.data);
    ids_free(&ids);
    ids_free(&plain);
    struct text_span word = {17, 19};
    ids = encode(text, n, ENCODE_SPECIAL, &word, 1);
    plain = encode(text, n, ENCODE_SPECIAL, NULL, 0);
    assert_int_equal(ids.len, plain.len);
    assert_memory_equal(ids.data, plain.data, ids.len * sizeof *ids.data);
    ids_free(&ids);
    ids_free(&plain);
}

/* Broken UTF-8: each maximal subpart is U+FFFD. */
static void test_broken(void **unused)
{
    (void)unused;
    static const struct {
        const char *in;
        size_t n;
        const char *out;
    } cases[] = {
        {"a\xFFz", 3, "a\xEF\xBF\xBDz"},
        {"\xE2\x82", 2, "\xEF\xBF\xBD"},
        {"\xE2\x82(", 3, "\xEF\xBF\xBD("},
        {"\xC0\x80", 2, "\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"\xED\xA0\x80", 3, "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"\xF0\x9F\x98", 3, "\xEF\xBF\xBD"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ids ids = encode(cases[i].in, cases[i].n, ENCODE_PLAIN, NULL, 0);
        check_decoded(&ids, cases[i].out, strlen(cases[i].out));
        ids_free(&ids);
    }
    struct ids none = encode("", 0, ENCODE_SPECIAL, NULL, 0), nul = encode("a\0b", 3, ENCODE_SPECIAL, NULL, 0);
    assert_int_equal(none.len, 0);
    check_decoded(&nul, "a\0b", 3);
    ids_free(&nul);
}

static double encode_ms(const char *unit, size_t bytes)
{
    size_t n = strlen(unit);
    char *text = mem_alloc(MEM_OTHER, bytes);
    for (size_t i = 0; i < bytes; i++)
        text[i] = unit[i % n];
    uint64_t start = clock_ns();
    struct ids ids = encode(text, bytes, ENCODE_PLAIN, NULL, 0);
    double ms = clock_ms_since(start);
    assert_true(ids.len > 0);
    ids_free(&ids);
    mem_free(text);
    return ms;
}

/* B118: eight times the text takes nowhere near the 64 times as long of the square. */
static void test_growth(void **unused)
{
    (void)unused;
    static const char *const units[] = {"a", " ", "ab ", "=", "ab", "\xCC\x81", "aB3$"};
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        double small = encode_ms(units[i], 1 << 17), large = encode_ms(units[i], 1 << 20);
        if (large > 30 * small + 200)
            fail_msg("\"%s\": 128 KiB in %.1f ms, 1 MiB in %.1f ms", units[i], small, large);
    }
}

/* Long pieces (heap) and short ones (scan) merge alike: a long piece is the same as asking the scan for the same ranks. */
static void test_long_equals_short(void **unused)
{
    (void)unused;
    uint64_t state = 5;
    for (int round = 0; round < 200; round++) {
        char text[49];
        size_t n = 40 + test_random(&state, 9);
        for (size_t i = 0; i < n; i++)
            text[i] = "abcdetionrs"[test_random(&state, 11)];
        struct ids alone = encode(text, n, ENCODE_PLAIN, NULL, 0);
        char twice[200]; /* a letter piece of more than 48 bytes goes through the heap */
        memcpy(twice, text, n);
        memcpy(twice + n, text, n);
        struct ids both = encode(twice, 2 * n, ENCODE_PLAIN, NULL, 0);
        struct buf out;
        struct detok d;
        buf_init(&out, MEM_OTHER, 4096);
        detok_init(&d, vocab, 1);
        for (size_t i = 0; i < both.len; i++)
            detok_push(&d, both.data[i], &out);
        assert_memory_equal(out.data, twice, 2 * n);
        /* no two neighbours of the result merge with each other */
        assert_true(both.len <= 2 * alone.len + 1);
        buf_free(&out);
        ids_free(&alone);
        ids_free(&both);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases), cmocka_unit_test(test_streams), cmocka_unit_test(test_spans), cmocka_unit_test(test_broken),
        cmocka_unit_test(test_long_equals_short), cmocka_unit_test(test_growth),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
