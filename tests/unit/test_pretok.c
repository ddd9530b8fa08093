/* How text is cut before it is merged: the pieces of the qwen35 expression (B113), the added tokens, and NFC against the Unicode library's. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "support/test.h"
#include "support/words.h"
#include "text/vocab_internal.h"

/* Pieces are separated by a vertical bar. */
static void check_pieces(const char *marked)
{
    char text[256];
    size_t n = 0, i = 0;
    for (const char *p = marked; *p; p++)
        if (*p != '|')
            text[n++] = *p;
    for (const char *p = marked; i < n; p++) {
        size_t want = strcspn(p, "|"), got = pretok_next(text + i, n - i);
        if (got != want)
            fail_msg("\"%s\": the piece at byte %zu has %zu bytes, expected %zu", marked, i, got, want);
        i += got;
        p += want;
    }
}

static void test_pieces(void **unused)
{
    (void)unused;
    static const char *const cases[] = {
        "a", "Hello| world|!", " a| b", "it|'s| it|'S", "we|'ll| we|'LL| they|'Re| I|'ve| I|'m| you|'d| don|'t", "a|'x", "''", "'''|s", "'rx", "'lx", "'vx", "'|5",
        "'s|even", "'T|was", "'LL|o", "'ll|ama", "a|'\xC5\xBF", "1|2|3", "a|1|b", " |1", "x|=|1", "$a", " $|a", "$$|a", "a|.\n", "a|.\n\n|b", "a| .\r\n|b", "!!\n| x",
        "a|  | b", "a|  ", "a| ", " |\t|1", "a|\n| b", "a| \n \n|  | b", "a|\r\n|b", "\n\n|a", "\t|\ta", "\ta", "\xC2\xA0""a", "a|\xE3\x80\x80""b", "\xE2\x80\xA8\n|1", "\xE2\x80\xA8|1",
        "e\xCC\x81t\xC3\xA9", "\xCC\x81\xCC\x81", "1|\xCC\x81", "a|.\xCC\x81" "b", " \xCC\x81", "..|\xCC\x81" "a", "\xE0\xA4\x95\xE0\xA4\xBF\xE0\xA4\xA8\xE0\xA5\x8D", /* B113: marks stay in the word */
        "\xD9\xA3|\xC2\xBD|\xE2\x85\xA3", "\xE4\xBD\xA0\xE5\xA5\xBD|\xEF\xBC\x8C\xE4\xB8\x96", "\xF0\x9F\x98\x80\xF0\x9F\x98\x80", " \xF0\x9F\x98\x80|a", "\xE2\x80\x8B" "a", "\x1C\x1D",
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_pieces(cases[i]);
}

/* Whatever the text, the pieces cover it and end between code points. */
static void test_cover(void **unused)
{
    (void)unused;
    static const char *const bits[] = {"a", "'", "s", "ll", " ", "  ", "\n", "\r", "\t", "1", ".", "=", "\xCC\x81", "\xC3\xA9", "\xE3\x80\x80", "\xE4\xBD\xA0", "\xF0\x9F\x98\x80", "\xC2\xBD", "\0"};
    uint64_t state = 3;
    for (int round = 0; round < 20000; round++) {
        struct buf text;
        buf_init(&text, MEM_OTHER, 4096);
        for (uint32_t k = 1 + test_random(&state, 12); k > 0; k--) {
            const char *bit = bits[test_random(&state, sizeof bits / sizeof *bits)];
            buf_add(&text, bit, *bit ? strlen(bit) : 1);
        }
        for (size_t i = 0, step; i < text.len; i += step) {
            step = pretok_next(text.data + i, text.len - i);
            assert_in_range(step, 1, text.len - i);
            assert_true(utf8_valid(text.data + i, step));
        }
        buf_free(&text);
    }
}

static void check_encoding(const struct vocab *v, const char *text, enum encode_mode mode, struct text_span span, const int32_t *want, size_t n)
{
    struct ids ids = {0};
    struct err err = {0};
    test_ok(vocab_encode(v, text, strlen(text), mode, &span, span.end > span.start, &ids, &err), &err, text);
    if (ids.len != n || memcmp(ids.data, want, n * sizeof *want) != 0)
        fail_msg("\"%s\" [%zu, %zu): %zu ids from %d, expected %zu from %d", text, span.start, span.end, ids.len, ids.data[0], n, want[0]);
    ids_free(&ids);
}

/* Longest first, leftmost; unused and unknown tokens are no text; in an untrusted span a shorter token that ends before it, or a user-defined one, may still match. */
static void test_added_tokens(void **unused)
{
    (void)unused;
    struct words w;
    words_init(&w);
    int32_t a = words_add(&w, "<a>", TOKEN_CONTROL), ab = words_add(&w, "<a><b>", TOKEN_CONTROL), abc = words_add(&w, "<a><b><c>", TOKEN_USER_DEFINED), b = words_add(&w, "<b>", TOKEN_USER_DEFINED);
    int32_t head = words_add(&w, "<", TOKEN_USER_DEFINED);
    words_add(&w, "[PAD]", TOKEN_UNUSED);
    words_add(&w, "[UNK]", TOKEN_UNKNOWN);
    struct vocab *v = words_load(&w, 0);
    const struct text_span none = {0, 0};
#define CHECK(text, mode, span, ...) check_encoding(v, text, mode, span, (int32_t[]){__VA_ARGS__}, sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t))
#define SPAN(from, to) ((struct text_span){from, to})
    CHECK("<a>", ENCODE_SPECIAL, none, a);
    CHECK("<a><b>", ENCODE_SPECIAL, none, ab);
    CHECK("<a><b><c>", ENCODE_SPECIAL, none, abc);
    CHECK("<a><b><c", ENCODE_SPECIAL, none, ab, head, 'c');
    CHECK("<b><a><b>", ENCODE_SPECIAL, none, b, ab);
    CHECK("<<a>", ENCODE_SPECIAL, none, head, a);
    CHECK("<A>", ENCODE_SPECIAL, none, head, 'A', '>');
    CHECK("<a>", ENCODE_PLAIN, none, head, 'a', '>');
    CHECK("<a><b>", ENCODE_PLAIN, none, head, 'a', '>', b);
    CHECK("<a><b><c>", ENCODE_PLAIN, none, abc);
    CHECK("<a><b>", ENCODE_SPECIAL, SPAN(3, 6), a, b);
    CHECK("<a><b>", ENCODE_SPECIAL, SPAN(5, 6), a, b);
    CHECK("<a><b>", ENCODE_SPECIAL, SPAN(2, 3), head, 'a', '>', b);
    CHECK("<a><b>", ENCODE_SPECIAL, SPAN(6, 9), ab);
    CHECK("<a><b><c>", ENCODE_SPECIAL, SPAN(4, 5), abc);
    CHECK("<a><a>", ENCODE_SPECIAL, SPAN(0, 3), head, 'a', '>', a);
    CHECK("<a><a>", ENCODE_SPECIAL, SPAN(0, 4), head, 'a', '>', head, 'a', '>');
    CHECK("[PAD]", ENCODE_SPECIAL, none, '[', 'P', 'A', 'D', ']');
    CHECK("[UNK]", ENCODE_SPECIAL, none, '[', 'U', 'N', 'K', ']');
#undef CHECK
#undef SPAN
    vocab_free(v);
    words_free(&w);
}

static void check_nfc(struct nfc *w, const char *text, size_t n)
{
    utf8proc_uint8_t *want = NULL;
    utf8proc_ssize_t n_want = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n, &want, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    const char *got = text;
    size_t n_got = n;
    assert_true(n_want >= 0);
    assert_int_equal(nfc_normalize(w, &got, &n_got), 0);
    if (n_got != (size_t)n_want || memcmp(got, want, n_got) != 0)
        fail_msg("NFC of %zu bytes from 0x%02X 0x%02X 0x%02X: %zu bytes, expected %zd", n, text[0] & 0xFF, n > 1 ? text[1] & 0xFF : 0, n > 2 ? text[2] & 0xFF : 0, n_got, n_want);
    free(want);
}

static void nfc_open(struct nfc *w)
{
    buf_init(&w->out, MEM_TEXT, 1 << 28);
    buf_init(&w->points, MEM_TEXT, 1 << 28);
}

static void nfc_close(struct nfc *w)
{
    buf_free(&w->out);
    buf_free(&w->points);
}

/* Each code point alone, behind a letter and in front of a mark; and no code point that composes with one before it counts as stable. */
static void test_nfc_code_points(void **unused)
{
    (void)unused;
    struct nfc w;
    nfc_open(&w);
    for (uint32_t c = 1; c <= 0x10FFFF; c++) {
        char text[16] = "a";
        int n = utf8_encode(c, text + 1), unused_class = 0;
        utf8proc_int32_t parts[8];
        if (n == 0 || (c >= 0x30000 && c < 0xE0000))
            continue;
        memcpy(text + 1 + n, "\xCC\xA7", 2);
        check_nfc(&w, text + 1, (size_t)n);
        check_nfc(&w, text, (size_t)n + 3);
        if (utf8proc_decompose_char((utf8proc_int32_t)c, parts, 8, UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, &unused_class) > 1) {
            assert_false(nfc_is_stable(c) && c >= 0x300 && (c < 0xAC00 || c > 0xD7A3));
            assert_false(nfc_is_stable((uint32_t)parts[1]));
        }
    }
    nfc_close(&w);
}

static void test_nfc_texts(void **unused)
{
    (void)unused;
    static const uint16_t points[] = {'a', 'e', 'o', '>', ' ', 0xE9, 0x300, 0x301, 0x308, 0x323, 0x327, 0x331, 0x338, 0x344, 0x345, 0x1100, 0x1161, 0x11A8, 0xAC00, 0xAC01, 0x212B, 0x2126, 0x915, 0x93C, 0x958, 0x9C7, 0x9BE,
                                      0xF71, 0xF72, 0xF73, 0x1EA5, 0x1FB7, 0x4F60, 0xFB2C, 0x3042, 0x3099};
    uint64_t state = 11;
    struct nfc w;
    nfc_open(&w);
    for (int round = 0; round < 30000; round++) {
        char text[400];
        size_t n = 0;
        uint32_t count = test_random(&state, round % 50 ? 12 : 90);
        for (uint32_t k = 0; k < count; k++)
            n += (size_t)utf8_encode(points[test_random(&state, sizeof points / sizeof *points)], text + n);
        check_nfc(&w, text, n);
    }
    for (int round = 0; round < 50; round++) { /* runs that are not sorted by insertion */
        char text[2000] = "a";
        size_t n = 1;
        for (int k = 0; k < 300; k++)
            n += (size_t)utf8_encode(points[6 + test_random(&state, 9)], text + n);
        check_nfc(&w, text, n);
    }
    nfc_close(&w);
}

/* Plain text is not copied. */
static void test_nfc_leaves_alone(void **unused)
{
    (void)unused;
    static const char text[] = "plain, caf\xC3\xA9, \xE4\xBD\xA0\xE5\xA5\xBD, \xED\x95\x9C\xEA\xB8\x80, \xF0\x9F\x98\x80";
    const char *got = text;
    size_t n = sizeof text - 1;
    struct nfc w;
    nfc_open(&w);
    assert_int_equal(nfc_normalize(&w, &got, &n), 0);
    assert_ptr_equal(got, text);
    assert_int_equal(w.out.cap, 0);
    nfc_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces), cmocka_unit_test(test_cover), cmocka_unit_test(test_added_tokens), cmocka_unit_test(test_nfc_code_points), cmocka_unit_test(test_nfc_texts),
        cmocka_unit_test(test_nfc_leaves_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
