/* Loading a vocabulary: what a good file gives, and a refusal with the key's name for every broken one (S8, B115, B116, B119). */
#include <string.h>

#include "base/mem.h"
#include "support/test.h"
#include "support/words.h"
#include "text/vocab.h"

/* Loads the keys; a refusal must have the code and name what is said. */
static void check_refused(const struct metadata *m, int code, const char *word)
{
    struct gguf *g = metadata_open(m);
    struct vocab *v = NULL;
    struct err err = {0};
    int rc = vocab_load(g, &v, &err);
    if (rc != code || !strstr(err.message, word) || v)
        fail_msg("%s: code %d, expected %d with \"%s\"", err.code ? err.message : "loaded", rc, code, word);
    assert_int_equal(mem_bytes(MEM_TEXT), 0);
    gguf_close(g);
}

struct sample {
    struct words w;
    struct metadata m;
    int32_t eos;
};

static void sample_init(struct sample *s)
{
    words_init(&s->w);
    words_join(&s->w, "a", "b");
    words_join(&s->w, "ab", "c");
    s->eos = words_add(&s->w, "<|end|>", TOKEN_CONTROL);
    metadata_init(&s->m);
}

static void sample_free(struct sample *s)
{
    metadata_free(&s->m);
    words_free(&s->w);
}

static void test_good(void **unused)
{
    (void)unused;
    struct words w;
    const char *bytes;
    size_t n;
    words_init(&w);
    words_join(&w, "a", "b");
    int32_t think = words_add(&w, "<think>", TOKEN_USER_DEFINED), pad = words_add(&w, "[PAD]", TOKEN_UNUSED), odd = words_add(&w, "odd", (enum token_kind)77);
    int32_t end = words_add(&w, "<|im_end|>", TOKEN_CONTROL), file = words_add(&w, "<|file_sep|>", TOKEN_CONTROL);
    struct vocab *v = words_load(&w, 3);
    assert_int_equal(vocab_n_tokens(v), w.n);
    assert_int_equal(vocab_find(v, "ab", 2), 256);
    assert_int_equal(vocab_find(v, "abc", 3), -1);
    assert_int_equal(vocab_find(v, "", 0), -1);
    assert_int_equal(vocab_find(v, "\xC4\xA0", 2), ' ');
    assert_int_equal(vocab_kind(v, 256), TOKEN_NORMAL);
    assert_int_equal(vocab_kind(v, think), TOKEN_USER_DEFINED);
    assert_int_equal(vocab_kind(v, end), TOKEN_CONTROL);
    assert_int_equal(vocab_kind(v, odd), TOKEN_UNUSED);
    assert_true(vocab_is_emittable(v, think) && vocab_is_emittable(v, 256) && vocab_is_emittable(v, end));
    assert_false(vocab_is_emittable(v, pad));
    assert_int_equal(vocab_eos(v), 3);
    assert_int_equal(vocab_bos(v), -1);
    assert_int_equal(vocab_padding(v), -1);
    assert_true(vocab_is_eog(v, 3) && vocab_is_eog(v, end) && vocab_is_eog(v, file)); /* B115 */
    assert_false(vocab_is_eog(v, think) || vocab_is_eog(v, 256));
    for (int32_t b = 0; b < 256; b++) {
        vocab_piece(v, b, &bytes, &n);
        assert_int_equal(n, 1);
        assert_int_equal((unsigned char)*bytes, b);
    }
    vocab_stored(v, '\n', &bytes, &n);
    assert_int_equal(n, 2);
    assert_memory_equal(bytes, "\xC4\x8A", 2);
    vocab_piece(v, think, &bytes, &n);
    assert_int_equal(n, 7);
    assert_memory_equal(bytes, "<think>", 7);
    vocab_free(v);
    words_free(&w);
}

static void test_missing_keys(void **unused)
{
    (void)unused;
    static const char *const keys[] = {"tokens", "token_type", "merges", "model"};
    for (size_t skip = 0; skip < 4; skip++) {
        struct sample s;
        sample_init(&s);
        if (skip != 0)
            metadata_strings(&s.m, "tokenizer.ggml.tokens", (const char *const *)s.w.texts, s.w.n);
        if (skip != 1)
            metadata_ints(&s.m, "tokenizer.ggml.token_type", GGUF_I32, s.w.kinds, s.w.n);
        if (skip != 2)
            metadata_strings(&s.m, "tokenizer.ggml.merges", (const char *const *)s.w.merges, s.w.n_merges);
        if (skip != 3)
            metadata_string(&s.m, "tokenizer.ggml.model", "gpt2");
        metadata_int(&s.m, "tokenizer.ggml.eos_token_id", GGUF_U32, s.eos);
        check_refused(&s.m, ERR_FORMAT, keys[skip]);
        sample_free(&s);
    }
}

static void test_other_tokenizers(void **unused)
{
    (void)unused;
    for (int i = 0; i < 2; i++) {
        struct sample s;
        sample_init(&s);
        metadata_string(&s.m, "tokenizer.ggml.model", i ? "gpt2" : "llama");
        metadata_string(&s.m, "tokenizer.ggml.pre", i ? "qwen2" : "qwen35");
        check_refused(&s.m, ERR_UNSUPPORTED, i ? "qwen2" : "llama");
        sample_free(&s);
    }
}

/* One key of a wrong type or length at a time. S8: an array of bytes is not read as 32-bit numbers. */
static void test_wrong_arrays(void **unused)
{
    (void)unused;
    enum { TOKENS_OF_INTS, NO_TOKENS, KINDS_OF_BYTES, KINDS_OF_LONGS, KINDS_SHORT, KINDS_LONG, KINDS_SCALAR, MERGES_OF_INTS, N };
    static const char *const words[N] = {"tokens", "tokens", "token_type", "token_type", "258 entries", "260 entries", "token_type", "merges"};
    for (int wrong = 0; wrong < N; wrong++) {
        struct sample s;
        sample_init(&s);
        metadata_string(&s.m, "tokenizer.ggml.model", "gpt2");
        if (wrong == TOKENS_OF_INTS)
            metadata_ints(&s.m, "tokenizer.ggml.tokens", GGUF_I32, s.w.kinds, s.w.n);
        else
            metadata_strings(&s.m, "tokenizer.ggml.tokens", (const char *const *)s.w.texts, wrong == NO_TOKENS ? 0 : s.w.n);
        if (wrong == KINDS_SCALAR)
            metadata_int(&s.m, "tokenizer.ggml.token_type", GGUF_I32, 1);
        else
            metadata_ints(&s.m, "tokenizer.ggml.token_type", wrong == KINDS_OF_BYTES ? GGUF_U8 : wrong == KINDS_OF_LONGS ? GGUF_I64 : GGUF_I32, s.w.kinds,
                          s.w.n - (wrong == KINDS_SHORT) + (wrong == KINDS_LONG));
        if (wrong == MERGES_OF_INTS)
            metadata_ints(&s.m, "tokenizer.ggml.merges", GGUF_I32, s.w.kinds, s.w.n);
        else
            metadata_strings(&s.m, "tokenizer.ggml.merges", (const char *const *)s.w.merges, s.w.n_merges);
        metadata_int(&s.m, "tokenizer.ggml.eos_token_id", GGUF_U32, s.eos);
        check_refused(&s.m, ERR_FORMAT, words[wrong]);
        sample_free(&s);
    }
}

static void test_wrong_merges(void **unused)
{
    (void)unused;
    static const struct {
        const char *merge, *word;
    } cases[] = {{"ab", "no space"}, {"", "no space"}, {" a", "no space"}, {"a zz", "unknown token"}, {"zz a", "unknown token"}, {"b a", "makes no token"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sample s;
        sample_init(&s);
        words_merge(&s.w, cases[i].merge);
        words_keys(&s.w, &s.m);
        metadata_int(&s.m, "tokenizer.ggml.eos_token_id", GGUF_U32, s.eos);
        check_refused(&s.m, ERR_FORMAT, cases[i].word);
        check_refused(&s.m, ERR_FORMAT, "entry 2");
        sample_free(&s);
    }
}

/* Every byte has a token that is not a control token (B116: none is ever -1). */
static void test_missing_bytes(void **unused)
{
    (void)unused;
    for (int i = 0; i < 2; i++) {
        struct sample s;
        sample_init(&s);
        if (i) {
            s.w.kinds['\n'] = TOKEN_CONTROL;
        } else {
            mem_free(s.w.texts['\n']);
            s.w.texts['\n'] = mem_strndup(MEM_OTHER, "newline", 7);
        }
        words_keys(&s.w, &s.m);
        metadata_int(&s.m, "tokenizer.ggml.eos_token_id", GGUF_U32, s.eos);
        check_refused(&s.m, ERR_FORMAT, "byte 0x0A");
        sample_free(&s);
    }
}

static void test_wrong_ends(void **unused)
{
    (void)unused;
    static const int32_t beyond[] = {1, 259}, below[] = {-1}, fine[] = {7, 9};
    struct sample s;
    sample_init(&s);
    words_keys(&s.w, &s.m);
    check_refused(&s.m, ERR_FORMAT, "eos_token_id");
    metadata_int(&s.m, "tokenizer.ggml.eos_token_id", GGUF_U32, 259);
    check_refused(&s.m, ERR_FORMAT, "eos_token_id");
    for (int i = 0; i < 5; i++) {
        struct metadata m;
        metadata_init(&m);
        words_keys(&s.w, &m);
        metadata_int(&m, "tokenizer.ggml.eos_token_id", GGUF_U32, s.eos);
        if (i == 0)
            metadata_ints(&m, "tokenizer.ggml.eos_token_ids", GGUF_I32, beyond, 2);
        else if (i == 1)
            metadata_ints(&m, "tokenizer.ggml.eos_token_ids", GGUF_I32, below, 1);
        else if (i == 2)
            metadata_ints(&m, "tokenizer.ggml.eos_token_ids", GGUF_BOOL, fine + 2, 0);
        else if (i == 3)
            metadata_int(&m, "tokenizer.ggml.eos_token_ids", GGUF_U32, 1);
        else
            metadata_int(&m, "tokenizer.ggml.padding_token_id", GGUF_U32, 259);
        check_refused(&m, ERR_FORMAT, i < 4 ? "eos_token_ids" : "padding_token_id");
        metadata_free(&m);
    }
    struct metadata m; /* B115: every id of the list ends an answer */
    struct vocab *v = NULL;
    struct err err = {0};
    metadata_init(&m);
    words_keys(&s.w, &m);
    metadata_int(&m, "tokenizer.ggml.eos_token_id", GGUF_U32, s.eos);
    metadata_int(&m, "tokenizer.ggml.bos_token_id", GGUF_U16, 5);
    metadata_int(&m, "tokenizer.ggml.padding_token_id", GGUF_I64, 258);
    metadata_ints(&m, "tokenizer.ggml.eos_token_ids", GGUF_U64, fine, 2);
    struct gguf *g = metadata_open(&m);
    test_ok(vocab_load(g, &v, &err), &err, "vocabulary");
    assert_true(vocab_is_eog(v, 7) && vocab_is_eog(v, 9) && vocab_is_eog(v, s.eos));
    assert_false(vocab_is_eog(v, 8));
    assert_int_equal(vocab_bos(v), 5);
    assert_int_equal(vocab_padding(v), 258);
    vocab_free(v);
    gguf_close(g);
    metadata_free(&m);
    sample_free(&s);
}

/* A file that names no end has one when a token is called <|im_end|>. */
static void test_end_by_name(void **unused)
{
    (void)unused;
    struct sample s;
    struct vocab *v = NULL;
    struct err err = {0};
    sample_init(&s);
    int32_t end = words_add(&s.w, "<|im_end|>", TOKEN_CONTROL);
    words_keys(&s.w, &s.m);
    struct gguf *g = metadata_open(&s.m);
    test_ok(vocab_load(g, &v, &err), &err, "vocabulary");
    assert_int_equal(vocab_eos(v), end);
    assert_true(vocab_is_eog(v, end));
    vocab_free(v);
    gguf_close(g);
    sample_free(&s);
}

static void test_long_token(void **unused)
{
    (void)unused;
    for (size_t n = 4096; n <= 4097; n++) {
        struct sample s;
        char *text = mem_alloc(MEM_OTHER, n + 1);
        memset(text, 'x', n);
        sample_init(&s);
        words_add(&s.w, text, TOKEN_NORMAL);
        mem_free(text);
        words_keys(&s.w, &s.m);
        metadata_int(&s.m, "tokenizer.ggml.eos_token_id", GGUF_U32, s.eos);
        if (n > 4096) {
            check_refused(&s.m, ERR_LIMIT, "token 259");
        } else {
            struct vocab *v = words_load(&s.w, s.eos);
            assert_int_equal(vocab_n_tokens(v), 260);
            vocab_free(v);
        }
        sample_free(&s);
    }
}

static void check_ids(const struct vocab *v, const char *text, enum encode_mode mode, const int32_t *want, size_t n)
{
    struct ids ids = {0};
    struct err err = {0};
    test_ok(vocab_encode(v, text, strlen(text), mode, NULL, 0, &ids, &err), &err, text);
    if (ids.len != n || (n && memcmp(ids.data, want, n * sizeof *want) != 0))
        fail_msg("\"%s\": %zu ids, the first is %d; expected %zu, %d", text, ids.len, ids.len ? ids.data[0] : -1, n, n ? want[0] : -1);
    ids_free(&ids);
}

/* The first of equal texts stands for it, wherever it comes up; a token without text does no harm. */
static void test_repeated_and_empty(void **unused)
{
    (void)unused;
    struct words w;
    words_init(&w);
    words_add(&w, "", TOKEN_USER_DEFINED);
    int32_t ab = words_add(&w, "ab", TOKEN_NORMAL);
    words_add(&w, "ab", TOKEN_NORMAL);
    int32_t mark = words_add(&w, "<x>", TOKEN_USER_DEFINED);
    words_add(&w, "<x>", TOKEN_CONTROL);
    words_add(&w, "", TOKEN_NORMAL);
    words_merge(&w, "a b");
    struct vocab *v = words_load(&w, 0);
    assert_int_equal(vocab_find(v, "ab", 2), ab);
    assert_int_equal(vocab_find(v, "", 0), 256);
    check_ids(v, "ab", ENCODE_PLAIN, &ab, 1);
    check_ids(v, "<x>", ENCODE_PLAIN, &mark, 1);
    check_ids(v, "<x>", ENCODE_SPECIAL, &mark, 1);
    check_ids(v, "", ENCODE_SPECIAL, NULL, 0);
    vocab_free(v);
    words_free(&w);
}

/* Of a merge that is listed twice the first counts; a product that another product stands before is found all the same. */
static void test_merge_order(void **unused)
{
    (void)unused;
    struct words w;
    words_init(&w);
    int32_t bc = words_add(&w, "bc", TOKEN_NORMAL), ab = words_add(&w, "ab", TOKEN_NORMAL), abc = words_add(&w, "abc", TOKEN_NORMAL);
    words_merge(&w, "a b");
    words_merge(&w, "b c");
    words_merge(&w, "a b");
    struct vocab *v = words_load(&w, 0);
    check_ids(v, "abc", ENCODE_PLAIN, (int32_t[]){ab, 'c'}, 2);
    check_ids(v, "bc", ENCODE_PLAIN, &bc, 1);
    assert_int_equal(vocab_find(v, "abc", 3), abc); /* a token, and no merge leads to it: not used */
    vocab_free(v);
    words_free(&w);
}

/* B119: even a file whose merges spell a control token does not get one out of plain text. */
static void test_control_by_merging(void **unused)
{
    (void)unused;
    struct words w;
    words_init(&w);
    int32_t xy = words_add(&w, "xy", TOKEN_CONTROL), ab = words_add(&w, "ab", TOKEN_USER_DEFINED), pq = words_add(&w, "pq", TOKEN_NORMAL);
    words_merge(&w, "x y");
    words_merge(&w, "a b");
    words_merge(&w, "p q");
    struct vocab *v = words_load(&w, 0);
    check_ids(v, "xy", ENCODE_PLAIN, (int32_t[]){'x', 'y'}, 2);
    check_ids(v, "xy", ENCODE_SPECIAL, &xy, 1);
    check_ids(v, "ab", ENCODE_PLAIN, &ab, 1);
    check_ids(v, "pq", ENCODE_PLAIN, &pq, 1);
    vocab_free(v);
    words_free(&w);
}

/* Every allocation that fails gives an error and leaves nothing behind. */
static void test_no_memory(void **unused)
{
    (void)unused;
    struct sample s;
    sample_init(&s);
    words_keys(&s.w, &s.m);
    metadata_int(&s.m, "tokenizer.ggml.eos_token_id", GGUF_U32, s.eos);
    struct gguf *g = metadata_open(&s.m);
    int rc = -1, n = 1;
    for (; rc < 0 && n < 100; n++) {
        struct vocab *v = NULL;
        struct err err = {0};
        mem_fail_nth(n);
        rc = vocab_load(g, &v, &err);
        mem_fail_nth(0);
        if (rc < 0) {
            assert_int_equal(rc, ERR_NO_MEMORY);
            assert_null(v);
            assert_true(strlen(err.message) > 0);
        }
        vocab_free(v);
        assert_int_equal(mem_bytes(MEM_TEXT), 0);
    }
    assert_int_equal(rc, 0);
    assert_true(n > 5);
    gguf_close(g);
    sample_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good), cmocka_unit_test(test_missing_keys), cmocka_unit_test(test_other_tokenizers), cmocka_unit_test(test_wrong_arrays),
        cmocka_unit_test(test_wrong_merges), cmocka_unit_test(test_missing_bytes), cmocka_unit_test(test_wrong_ends), cmocka_unit_test(test_end_by_name),
        cmocka_unit_test(test_long_token), cmocka_unit_test(test_repeated_and_empty), cmocka_unit_test(test_merge_order), cmocka_unit_test(test_control_by_merging),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
