/* The base room: counted memory and its fault list, growing strings, UTF-8 by table 3-7, JSON bounds and Python's number forms, threads. */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/utf8.h"
#include "support/test.h"

/* ---- errors ---- */

static void test_err(void **unused)
{
    (void)unused;
    struct err err = {0};
    assert_int_equal(err_set(&err, ERR_FORMAT, "key %s is %d", "a", 3), ERR_FORMAT);
    assert_int_equal(err.code, ERR_FORMAT);
    assert_string_equal(err.message, "key a is 3");
    assert_int_equal(err_prefix(&err, "%s", "file"), ERR_FORMAT);
    assert_string_equal(err.message, "file: key a is 3");
    assert_int_equal(err_set(NULL, ERR_IO, "x"), ERR_IO);
    assert_int_equal(err_prefix(NULL, "x"), ERR_INTERNAL);
    char *big = mem_alloc(MEM_OTHER, 5000);
    memset(big, 'x', 4999);
    err_set(&err, ERR_IO, "%s", big); /* cut, not overflown */
    assert_int_equal(strlen(err.message), sizeof err.message - 1);
    err_prefix(&err, "%s", big);
    assert_int_equal(strlen(err.message), sizeof err.message - 1);
    mem_free(big);
    for (int code = 0; code >= ERR_INTERNAL; code--)
        for (int other = 0; other > code; other--)
            assert_string_not_equal(err_kind(code), err_kind(other));
    assert_string_equal(err_kind(ERR_INTERNAL), "internal");
    assert_string_equal(err_kind(ERR_INTERNAL - 1), "unknown");
    assert_string_equal(err_kind(1), "unknown");
}

/* ---- memory ---- */

static void test_mem_counts(void **unused)
{
    (void)unused;
    size_t other = mem_bytes(MEM_OTHER), text = mem_bytes(MEM_TEXT), total = mem_total();
    char *a = mem_alloc(MEM_OTHER, 100), *b = mem_alloc_aligned(MEM_TEXT, 1000), *empty = mem_alloc(MEM_OTHER, 0);
    assert_non_null(empty);
    assert_int_equal((uintptr_t)a % 16, 0);
    assert_int_equal((uintptr_t)b % 64, 0);
    for (int i = 0; i < 100; i++)
        assert_int_equal(a[i], 0);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(b[i], 0);
    assert_int_equal(mem_bytes(MEM_OTHER), other + 100);
    assert_int_equal(mem_bytes(MEM_TEXT), text + 1000);
    assert_int_equal(mem_total(), total + 1100);
    memset(a, 7, 100);
    a = mem_realloc(MEM_OTHER, a, 10000);
    assert_int_equal(a[99], 7);
    assert_int_equal(mem_bytes(MEM_OTHER), other + 10000);
    a = mem_realloc(MEM_OTHER, a, 10);
    assert_int_equal(mem_bytes(MEM_OTHER), other + 10);
    assert_null(mem_realloc(MEM_TEXT, b, 2000)); /* the aligned kind does not move */
    char *copy = mem_strndup(MEM_OTHER, "abcdef", 3);
    assert_string_equal(copy, "abc");
    assert_null(mem_alloc_array(MEM_OTHER, SIZE_MAX / 2, 4)); /* the product would wrap */
    assert_null(mem_alloc(MEM_OTHER, SIZE_MAX - 8));
    assert_null(mem_realloc(MEM_OTHER, copy, SIZE_MAX - 8));
    mem_free(copy);
    mem_free(a);
    mem_free(b);
    mem_free(empty);
    mem_free(NULL);
    assert_int_equal(mem_bytes(MEM_OTHER), other);
    assert_int_equal(mem_bytes(MEM_TEXT), text);
    assert_int_equal(mem_total(), total);
    for (int label = 0; label < MEM_N_LABELS; label++)
        assert_string_not_equal(mem_label_name((enum mem_label)label), "?");
    assert_string_equal(mem_label_name(MEM_N_LABELS), "?");
}

static void test_mem_faults(void **unused)
{
    (void)unused;
    size_t total = mem_total();
    mem_set_ceiling(total + 1000);
    void *a = mem_alloc(MEM_OTHER, 600);
    assert_non_null(a);
    assert_null(mem_alloc(MEM_OTHER, 401));
    assert_null(mem_alloc_aligned(MEM_OTHER, 401));
    void *b = mem_alloc(MEM_OTHER, 400); /* to the byte */
    assert_non_null(b);
    assert_null(mem_realloc(MEM_OTHER, a, 601));
    assert_int_equal(mem_total(), total + 1000); /* what was refused is not counted */
    mem_free(b);
    a = mem_realloc(MEM_OTHER, a, 1000);
    assert_non_null(a);
    mem_free(a);
    mem_set_ceiling(SIZE_MAX);
    mem_fail_nth(2);
    a = mem_alloc(MEM_OTHER, 1);
    assert_non_null(a);
    assert_null(mem_alloc(MEM_OTHER, 1));
    b = mem_alloc(MEM_OTHER, 1); /* once only */
    assert_non_null(b);
    mem_fail_nth(1);
    assert_null(mem_realloc(MEM_OTHER, b, 50));
    mem_free(a);
    mem_free(b);
    mem_fail_above(100);
    assert_null(mem_alloc(MEM_OTHER, 101));
    a = mem_alloc(MEM_OTHER, 100);
    assert_non_null(a);
    mem_free(a);
    mem_fail_above(0);
    a = mem_alloc(MEM_OTHER, 101);
    assert_non_null(a);
    mem_free(a);
    assert_int_equal(mem_total(), total);
}

static void test_mem_reserve(void **unused)
{
    (void)unused;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), before = mem_bytes(MEM_STATE), total = mem_total();
    char *base = mem_reserve((size_t)1 << 36); /* 64 GiB of addresses, no memory */
    assert_non_null(base);
    assert_int_equal(mem_total(), total);
    assert_int_equal(mem_commit(MEM_STATE, base, 0, 10), 0);
    assert_int_equal(mem_bytes(MEM_STATE), before + page);
    memset(base, 1, page);
    assert_int_equal(mem_commit(MEM_STATE, base, 10, page), 0); /* inside a page that is there */
    assert_int_equal(mem_bytes(MEM_STATE), before + page);
    assert_int_equal(mem_commit(MEM_STATE, base, 10, 3 * page + 1), 0);
    assert_int_equal(mem_bytes(MEM_STATE), before + 4 * page);
    assert_int_equal(base[0], 1); /* growing keeps what is there */
    for (size_t i = page; i < 4 * page; i++)
        assert_int_equal(base[i], 0);
    memset(base + page, 2, 3 * page);
    mem_set_ceiling(mem_total() + page);
    assert_int_equal(mem_commit(MEM_STATE, base, 4 * page, 6 * page), ERR_NO_MEMORY);
    assert_int_equal(mem_bytes(MEM_STATE), before + 4 * page);
    assert_int_equal(mem_commit(MEM_STATE, base, 4 * page, 5 * page), 0);
    mem_set_ceiling(SIZE_MAX);
    mem_decommit(MEM_STATE, base, 2 * page - 1, 5 * page); /* the page that still holds something stays */
    assert_int_equal(mem_bytes(MEM_STATE), before + 2 * page);
    assert_int_equal(base[2 * page - 1], 2);
    assert_int_equal(mem_commit(MEM_STATE, base, 2 * page, 3 * page), 0);
    assert_int_equal(base[2 * page], 0); /* given back, so zero again */
    mem_release(MEM_STATE, base, (size_t)1 << 36, 3 * page);
    assert_int_equal(mem_bytes(MEM_STATE), before);
    mem_release(MEM_STATE, NULL, 0, 0);
    assert_int_equal(mem_total(), total);
    assert_null(mem_reserve(SIZE_MAX / 2));
}

/* Calls of the system that say no: nothing is counted that is not there, and what is given back is given back. */
static void test_mem_calls(void **unused)
{
    (void)unused;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), before = mem_bytes(MEM_STATE), reserved = mem_reserved();
    mem_fail_call(MEM_CALL_MAP, 1);
    assert_true(mem_fail_pending());
    assert_null(mem_reserve(page));
    assert_false(mem_fail_pending());
    char *base = mem_reserve(3 * page);
    assert_non_null(base);
    assert_int_equal(mem_reserved(), reserved + 3 * page);
    mem_fail_call(MEM_CALL_PROTECT, 2);
    assert_int_equal(mem_commit(MEM_STATE, base, 0, page), 0);
    assert_int_equal(mem_commit(MEM_STATE, base, page, 3 * page), ERR_NO_MEMORY);
    assert_int_equal(mem_bytes(MEM_STATE), before + page);
    assert_int_equal(mem_commit(MEM_STATE, base, page, 3 * page), 0);
    memset(base, 1, 3 * page);
    mem_fail_call(MEM_CALL_MAP, 1); /* there is no place for a mapping in their stead: the pages go all the same */
    mem_decommit(MEM_STATE, base, page, 3 * page);
    assert_int_equal(mem_bytes(MEM_STATE), before + page);
    assert_int_equal(mem_commit(MEM_STATE, base, page, 3 * page), 0);
    assert_int_equal(base[page], 0);
    assert_int_equal(base[page - 1], 1);
    mem_release(MEM_STATE, base, 3 * page, 3 * page);
    assert_int_equal(mem_bytes(MEM_STATE), before);
    assert_int_equal(mem_reserved(), reserved);
    mem_fail_call(MEM_CALL_THREAD, 2);
    struct pool *pool = NULL;
    struct err err = {0};
    assert_int_equal(pool_create(4, &pool, &err), ERR_IO); /* the first is ended again */
    assert_non_null(strstr(err.message, "thread 3 of 4 could not be created"));
    assert_false(mem_fail_pending());
    mem_fail_call(MEM_CALL_THREAD, 1);
    mem_fail_call(MEM_CALL_THREAD, 0);
    test_ok(pool_create(2, &pool, &err), &err, "pool");
    pool_free(pool);
}

/* ---- growing strings ---- */

static void test_buf(void **unused)
{
    (void)unused;
    struct buf b;
    size_t before = mem_bytes(MEM_OTHER);
    buf_init(&b, MEM_OTHER, 1000);
    assert_string_equal(buf_str(&b), "");
    for (int i = 0; i < 250; i++)
        assert_int_equal(buf_addf(&b, "%04d", i), 0);
    assert_int_equal(b.len, 1000);
    assert_int_equal(b.data[1000], 0);
    assert_memory_equal(b.data + 996, "0249", 4);
    assert_int_equal(buf_add_char(&b, 'x'), ERR_LIMIT);
    assert_int_equal(b.len, 1000);
    buf_remove_front(&b, 996);
    assert_string_equal(buf_str(&b), "0249");
    assert_int_equal(buf_add_str(&b, "y"), ERR_LIMIT); /* sticky */
    buf_remove_front(&b, 100);
    assert_int_equal(b.len, 0);
    buf_clear(&b);
    assert_int_equal(buf_add(&b, "a\0b", 3), 0);
    assert_memory_equal(b.data, "a\0b", 4);
    assert_int_equal(buf_reserve(&b, SIZE_MAX), ERR_LIMIT); /* no sum that wraps */
    buf_free(&b);
    buf_init(&b, MEM_OTHER, SIZE_MAX);
    assert_int_equal(buf_add(&b, "a", 1), 0);
    assert_int_equal(buf_reserve(&b, SIZE_MAX - 2), ERR_NO_MEMORY);
    assert_string_equal(buf_str(&b), "a");
    buf_free(&b);
    mem_fail_nth(1);
    assert_int_equal(buf_add_str(&b, "abc"), ERR_NO_MEMORY);
    assert_int_equal(buf_addf(&b, "%d", 1), ERR_NO_MEMORY);
    mem_fail_nth(0);
    assert_string_equal(buf_str(&b), "");
    buf_free(&b);
    assert_int_equal(mem_bytes(MEM_OTHER), before);
}

static void test_ids(void **unused)
{
    (void)unused;
    struct ids ids = {0};
    int32_t more[100];
    for (int32_t i = 0; i < 1000; i++)
        assert_int_equal(ids_push(&ids, i), 0);
    for (int32_t i = 0; i < 100; i++)
        more[i] = 1000 + i;
    assert_int_equal(ids_append(&ids, more, 100), 0);
    assert_int_equal(ids_append(&ids, NULL, 0), 0);
    assert_int_equal(ids.len, 1100);
    for (int32_t i = 0; i < 1100; i++)
        assert_int_equal(ids.data[i], i);
    assert_int_equal(ids_append(&ids, more, SIZE_MAX / 4), ERR_NO_MEMORY);
    ids_free(&ids);
    assert_null(ids.data);
}

/* ---- UTF-8 ---- */

/* Unicode's table 3-7, row by row: the ranges of each byte. */
static const struct {
    unsigned char low[4], high[4];
    int n;
} rows[] = {
    {{0x00}, {0x7F}, 1},
    {{0xC2, 0x80}, {0xDF, 0xBF}, 2},
    {{0xE0, 0xA0, 0x80}, {0xE0, 0xBF, 0xBF}, 3},
    {{0xE1, 0x80, 0x80}, {0xEC, 0xBF, 0xBF}, 3},
    {{0xED, 0x80, 0x80}, {0xED, 0x9F, 0xBF}, 3},
    {{0xEE, 0x80, 0x80}, {0xEF, 0xBF, 0xBF}, 3},
    {{0xF0, 0x90, 0x80, 0x80}, {0xF0, 0xBF, 0xBF, 0xBF}, 4},
    {{0xF1, 0x80, 0x80, 0x80}, {0xF3, 0xBF, 0xBF, 0xBF}, 4},
    {{0xF4, 0x80, 0x80, 0x80}, {0xF4, 0x8F, 0xBF, 0xBF}, 4},
};

/* How many bytes of s[0..n) a row allows from its start; *row_n is that row's length. The largest over all rows. */
static int longest_row(const unsigned char *s, int n, int *row_n)
{
    int best = 0;
    *row_n = 0;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        int k = 0;
        while (k < rows[r].n && k < n && s[k] >= rows[r].low[k] && s[k] <= rows[r].high[k])
            k++;
        if (k > best) {
            best = k;
            *row_n = rows[r].n;
        }
    }
    return best;
}

/* Every first two bytes, followed by bytes at the edges of the ranges: the answer is what the table says. */
static void test_utf8_decode(void **unused)
{
    (void)unused;
    static const unsigned char edge[] = {0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC2, 0xE0, 0xF4, 0xFF};
    const int n_edges = (int)sizeof edge;
    int valid = 0;
    for (int first = 0; first < 65536 * n_edges * n_edges / 7; first++) {
        int i = first * 7; /* a seventh of all, spread */
        unsigned char s[4] = {(unsigned char)(i / n_edges / n_edges >> 8), (unsigned char)(i / n_edges / n_edges), edge[i / n_edges % n_edges], edge[i % n_edges]};
        for (int n = 1; n <= 4; n++) {
            uint32_t c = 0xFFFFFFFF;
            int row_n, k = longest_row(s, n, &row_n), got = utf8_decode((const char *)s, (size_t)n, &c);
            int want = k == 0 ? -1 : k == row_n ? k : k == n ? 0 : -k;
            if (got != want)
                fail_msg("%02x %02x %02x %02x, %d bytes: %d, expected %d", s[0], s[1], s[2], s[3], n, got, want);
            if (got > 0) {
                char back[4];
                assert_int_equal(utf8_encode(c, back), got);
                assert_memory_equal(back, s, (size_t)got);
                valid++;
            }
        }
    }
    assert_true(valid > 10000);
    uint32_t c;
    assert_int_equal(utf8_decode("", 0, &c), 0);
}

/* Unicode's own examples, table 3-8 and its neighbours: one U+FFFD for each maximal subpart. */
static void test_utf8_subparts(void **unused)
{
    (void)unused;
    static const struct {
        const char *bytes;
        const char *lengths; /* of each step: digits, - before a broken one */
    } cases[] = {
        {"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41", "-1-1-1-1-1-1-1-11"},
        {"\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41", "-1-1-1-1-1-1-1-11"},
        {"\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42", "-1-1-1-1-11-1-11"},
        {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", "-2-1-3-21"},
        {"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80z", "2341"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct buf steps;
        const char *s = cases[i].bytes;
        size_t n = strlen(s);
        buf_init(&steps, MEM_OTHER, 1000);
        for (size_t at = 0; at < n;) {
            uint32_t c;
            int length = utf8_decode(s + at, n - at, &c);
            assert_int_not_equal(length, 0);
            buf_addf(&steps, "%d", length);
            at += (size_t)(length < 0 ? -length : length);
        }
        assert_string_equal(buf_str(&steps), cases[i].lengths);
        assert_int_equal(utf8_valid(s, n), !strchr(cases[i].lengths, '-'));
        buf_free(&steps);
    }
    char out[4];
    assert_int_equal(utf8_encode(0xD800, out), 0);
    assert_int_equal(utf8_encode(0xDFFF, out), 0);
    assert_int_equal(utf8_encode(0x110000, out), 0);
    assert_int_equal(utf8_encode(0x10FFFF, out), 4);
    assert_false(utf8_valid("a\xE2\x82", 3));
    assert_true(utf8_valid("", 0));
}

/* ---- JSON ---- */

static void test_json_floats(void **unused)
{
    (void)unused;
    static const struct {
        double value;
        const char *text;
    } cases[] = {
        {1, "1.0"}, {0, "0.0"}, {-0.0, "-0.0"}, {0.1, "0.1"}, {-2.5, "-2.5"}, {100, "100.0"}, {1e15, "1000000000000000.0"}, {1e16, "1e+16"}, {123456789012345680.0, "1.2345678901234568e+17"},
        {1e22, "1e+22"}, {1e23, "1e+23"}, {1e-4, "0.0001"}, {1e-5, "1e-05"}, {1.5e-7, "1.5e-07"}, {5e-324, "5e-324"}, {2.2250738585072014e-308, "2.2250738585072014e-308"},
        {1.7976931348623157e308, "1.7976931348623157e+308"}, {1e100, "1e+100"}, {1.0 / 3, "0.3333333333333333"}, {0.30000000000000004, "0.30000000000000004"}, {9007199254740993.0, "9007199254740992.0"},
        {0x1p-44, "5.684341886080802e-14"}, {0x1p-1022, "2.2250738585072014e-308"}, {-0x1p-44, "-5.684341886080802e-14"}, {9.5e-10, "9.5e-10"}, {0.00012345, "0.00012345"},
        {NAN, "NaN"}, {INFINITY, "Infinity"}, {-INFINITY, "-Infinity"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct buf b;
        buf_init(&b, MEM_OTHER, 100);
        assert_int_equal(json_write_float(&b, cases[i].value), 0);
        assert_string_equal(buf_str(&b), cases[i].text);
        buf_free(&b);
    }
}

static void check_python(const char *text, int indent, const char *want)
{
    struct err err = {0};
    struct buf b;
    json_t *value = NULL;
    buf_init(&b, MEM_OTHER, 100000);
    test_ok(json_parse(text, strlen(text), &value, &err), &err, text);
    assert_int_equal(json_write_python(&b, value, indent), 0);
    assert_string_equal(buf_str(&b), want);
    json_decref(value);
    buf_free(&b);
}

static void test_json_python(void **unused)
{
    (void)unused;
    check_python("{\"b\":1,\"a\":[true,false,null,-3,2.50,\"x\"],\"c\":{}}", -1, "{\"b\": 1, \"a\": [true, false, null, -3, 2.5, \"x\"], \"c\": {}}");
    check_python("{\"b\":[1,{\"c\":[]}]}", 2, "{\n  \"b\": [\n    1,\n    {\n      \"c\": []\n    }\n  ]\n}");
    check_python("[]", 4, "[]");
    check_python("\"\\u00e9\\ud83d\\ude00\\u0001\\u007f\\n\\r\\t\\b\\f\\\"\\\\\\/\\u2028\"", -1, "\"\xC3\xA9\xF0\x9F\x98\x80\\u0001\x7F\\n\\r\\t\\b\\f\\\"\\\\/\xE2\x80\xA8\"");
    check_python("{\"a\": 1, \"b\": 2, \"a\": 3}", -1, "{\"a\": 3, \"b\": 2}");
    check_python("9223372036854775807", -1, "9223372036854775807");
    check_python("[123456789012345678901234567890, -123456789012345678901234567890]", -1, "[123456789012345678901234567890, -123456789012345678901234567890]");
    check_python("1E3", -1, "1000.0");
    struct buf b;
    buf_init(&b, MEM_OTHER, 1000);
    json_write_string(&b, "\xC3\xA9\xF0\x9F\x98\x80\x7F\0z", 9, 1);
    assert_string_equal(buf_str(&b), "\"\\u00e9\\ud83d\\ude00\\u007f\\u0000z\"");
    buf_clear(&b);
    json_write_escaped(&b, "a\"\n", 3, 0);
    json_write_escaped(&b, "", 0, 0);
    assert_string_equal(buf_str(&b), "a\\\"\\n");
    buf_free(&b);
}

static void test_json_parse(void **unused)
{
    (void)unused;
    static const char *const broken[] = {"", " ", "{", "[1,]", "[,1]", "[1 2]", "{\"a\":1,}", "{,}", "{\"a\":}", "[1] x", "'a'", "{\"a\" 1}", "nul", "\"\xFF\"", "\"a\nb\"", "01", "1.", "[NaN]", "\"\\ud800\"", "\"\\ud800\\u0041\"", "{\"a\\u0000b\":1}", "{\"a\":1}}", "\"\\x\"", "[1e999]"};
    struct err err = {0};
    json_t *value = NULL;
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        err.message[0] = 0;
        int rc = json_parse(broken[i], strlen(broken[i]), &value, &err);
        if (rc != ERR_FORMAT || !err.message[0])
            fail_msg("\"%s\" gave %d, \"%s\"", broken[i], rc, err.message);
    }
    char deep[1000];
    for (int depth = 199; depth <= 202; depth++) {
        memset(deep, '[', (size_t)depth);
        memset(deep + depth, ']', (size_t)depth);
        int rc = json_parse(deep, 2 * (size_t)depth, &value, &err);
        assert_int_equal(rc, depth <= 200 ? 0 : ERR_LIMIT);
        if (rc == 0)
            json_decref(value);
    }
    struct buf many; /* hostile depth ends in a sentence, not in the stack */
    buf_init(&many, MEM_OTHER, 1 << 24);
    while (many.len < 1 << 20)
        buf_add_str(&many, "{\"a\":[");
    assert_true(json_parse(many.data, many.len, &value, &err) < 0);
    buf_free(&many);
    assert_int_equal(json_parse("\"[[[\\\"[[\" ", 10, &value, &err), 0); /* brackets in strings do not nest */
    json_decref(value);
    assert_int_equal(json_parse("[1]garbage", 3, &value, &err), 0); /* n counts, not a NUL */
    json_decref(value);
    assert_int_equal(json_parse("\"a\\u0000b\"", 10, &value, &err), 0);
    assert_int_equal(json_string_length(value), 3);
    assert_memory_equal(json_string_value(value), "a\0b", 4);
    json_decref(value);
    assert_int_equal(json_parse("\"a\0b\"", 5, &value, &err), ERR_FORMAT); /* a bare one is a control character */
}

/* ---- hashing ---- */

static void test_hash(void **unused)
{
    (void)unused;
    assert_true(hash_bytes("abc", 3, 0) == hash_bytes("abcd", 3, 0));
    assert_true(hash_bytes("abc", 3, 0) != hash_bytes("abd", 3, 0));
    assert_true(hash_bytes("abc", 3, 0) != hash_bytes("abc", 3, 1));
}

/* ---- threads ---- */

struct counts {
    atomic_int runs[8];
    atomic_long next;
    atomic_long sum;
    int n_threads;
    int wrong;
};

static void count_run(void *arg, int thread, int n_threads)
{
    struct counts *c = arg;
    if (n_threads != c->n_threads || thread < 0 || thread >= n_threads) {
        c->wrong = 1;
        return;
    }
    atomic_fetch_add(&c->runs[thread], 1);
    for (long first; (first = pool_next(&c->next, 3, 20)) < 20;)
        for (long i = first; i < first + 3 && i < 20; i++)
            atomic_fetch_add(&c->sum, i);
}

/* Every thread's index comes exactly once a run, all work is done when pool_run returns, also when threads went to sleep in between. */
static void test_pool(void **unused)
{
    (void)unused;
    enum { RUNS = 10000 };
    for (int n = 1; n <= 4; n++) {
        struct pool *pool = NULL;
        struct err err = {0};
        struct counts c = {.n_threads = n};
        test_ok(pool_create(n, &pool, &err), &err, "pool");
        assert_int_equal(pool_n_threads(pool), n);
        for (int run = 1; run <= RUNS; run++) {
            atomic_store(&c.next, 0);
            atomic_store(&c.sum, 0);
            pool_run(pool, count_run, &c);
            assert_int_equal(atomic_load(&c.sum), 190);
            for (int thread = 0; thread < n; thread++)
                assert_int_equal(atomic_load(&c.runs[thread]), run);
            if (run % 2500 == 0)
                usleep(2000);
        }
        assert_false(c.wrong);
        pool_free(pool);
    }
    struct counts alone = {.n_threads = 1};
    pool_run(NULL, count_run, &alone);
    assert_int_equal(atomic_load(&alone.runs[0]), 1);
    assert_int_equal(pool_n_threads(NULL), 1);
    pool_free(NULL);
}

static void test_pool_limits(void **unused)
{
    (void)unused;
    struct pool *pool = NULL;
    struct err err = {0};
    size_t before = mem_total();
    assert_int_equal(pool_create(0, &pool, &err), ERR_INVALID);
    assert_int_equal(pool_create(-1, &pool, &err), ERR_INVALID);
    assert_int_equal(pool_create(1025, &pool, &err), ERR_INVALID);
    for (long nth = 1; nth <= 2; nth++) {
        mem_fail_nth(nth);
        assert_int_equal(pool_create(2, &pool, &err), ERR_NO_MEMORY);
    }
    mem_fail_nth(0);
    assert_null(pool);
    assert_int_equal(mem_total(), before);
    assert_in_range(pool_default_threads(), 1, 4096);
    for (int i = 0; i < 50; i++) { /* started and stopped without a run */
        test_ok(pool_create(3, &pool, &err), &err, "pool");
        pool_free(pool);
    }
    assert_int_equal(mem_total(), before);
}

/* Memory that fails while JSON is read is never an error of the text, and never another text. */
static void test_json_starved(void **unused)
{
    (void)unused;
    static const char text[] = "{\"a\": [\"a text \\n that is longer than the first bytes of a buffer, and longer still, so that it grows\", 1.5, 12345678901234567890123], \"b\": {\"c\": \"\\u00e9\", \"d\": null}}";
    json_t *whole = NULL;
    struct err err = {0};
    int refused = 0;
    test_ok(json_parse(text, sizeof text - 1, &whole, &err), &err, "whole");
    size_t before = mem_bytes(MEM_JSON);
    for (long n = 1, came = 1; came; n++) {
        json_t *value = NULL;
        mem_fail_nth(n);
        int rc = json_parse(text, sizeof text - 1, &value, &err);
        came = !mem_fail_pending();
        mem_fail_nth(0);
        assert_true(rc == 0 || rc == ERR_NO_MEMORY);
        assert_true(rc < 0 || json_equal(value, whole));
        refused += rc < 0;
        json_decref(value);
        assert_int_equal(mem_bytes(MEM_JSON), before);
    }
    assert_true(refused > 10);
    json_decref(whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_err),          cmocka_unit_test(test_mem_counts),    cmocka_unit_test(test_mem_faults),  cmocka_unit_test(test_mem_reserve), cmocka_unit_test(test_mem_calls), cmocka_unit_test(test_json_starved), cmocka_unit_test(test_buf),
        cmocka_unit_test(test_ids),          cmocka_unit_test(test_utf8_decode),   cmocka_unit_test(test_utf8_subparts), cmocka_unit_test(test_json_floats), cmocka_unit_test(test_json_python),
        cmocka_unit_test(test_json_parse),   cmocka_unit_test(test_hash),          cmocka_unit_test(test_pool),        cmocka_unit_test(test_pool_limits),
    };
    json_use_mem();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
