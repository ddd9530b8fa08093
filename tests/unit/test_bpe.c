/* Merging against its definition: the pair of lowest rank, the leftmost of equals, one at a time. Short pieces, long pieces and the memory of pieces give the same ids. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "support/test.h"
#include "support/words.h"
#include "text/vocab_internal.h"

static void merge_by_definition(const struct vocab *v, const char *piece, size_t n, struct ids *out)
{
    for (size_t i = 0; i < n; i++)
        assert_int_equal(ids_push(out, v->byte_ids[(unsigned char)piece[i]]), 0);
    for (;;) {
        const struct merge *best = NULL;
        size_t at = 0;
        for (size_t i = 0; i + 1 < out->len; i++) {
            const struct merge *m = vocab_merge(v, out->data[i], out->data[i + 1]);
            if (m && (!best || m->rank < best->rank)) {
                best = m;
                at = i;
            }
        }
        if (!best)
            return;
        out->data[at] = best->product;
        memmove(out->data + at + 1, out->data + at + 2, (out->len - at - 2) * sizeof *out->data);
        out->len--;
    }
}

static void check_same(const struct ids *got, const struct ids *want, const char *what, const char *piece, size_t n)
{
    if (got->len != want->len || memcmp(got->data, want->data, got->len * sizeof *got->data) != 0)
        fail_msg("%s of \"%.*s\": %zu ids, by definition %zu", what, (int)n, piece, got->len, want->len);
}

static void check_piece(const struct vocab *v, struct bpe_cache *cache, const char *piece, size_t n)
{
    struct ids want = {0}, got = {0};
    merge_by_definition(v, piece, n, &want);
    assert_int_equal(bpe_encode(v, piece, n, &got), 0);
    check_same(&got, &want, "merging", piece, n);
    for (int i = 0; i < 2; i++) {
        got.len = 0;
        assert_int_equal(bpe_encode_cached(v, cache, piece, n, &got), 0);
        check_same(&got, &want, i ? "remembering" : "merging and keeping", piece, n);
    }
    ids_free(&want);
    ids_free(&got);
}

static void check_random_pieces(const struct vocab *v, const char *letters, uint64_t seed, int rounds)
{
    uint64_t state = seed;
    struct bpe_cache *cache = bpe_cache_new();
    uint32_t n_letters = (uint32_t)strlen(letters);
    assert_non_null(cache);
    for (int round = 0; round < rounds; round++) {
        char piece[400];
        size_t n = 1 + test_random(&state, round % 3 == 0 ? 16 : round % 3 == 1 ? 60 : sizeof piece - 1);
        uint32_t variety = 1 + test_random(&state, n_letters);
        for (size_t i = 0; i < n; i++)
            piece[i] = letters[test_random(&state, variety)];
        check_piece(v, cache, piece, n);
    }
    bpe_cache_free(cache);
}

static void test_real(void **unused)
{
    (void)unused;
    struct gguf *g = NULL;
    struct vocab *v = NULL;
    struct err err = {0};
    test_ok(gguf_open(test_path("tokenizer/qwen35-vocab.gguf"), 0, &g, &err), &err, "open");
    test_ok(vocab_load(g, &v, &err), &err, "vocabulary");
    check_random_pieces(v, "etaoinshrdlu", 1, 600);
    check_random_pieces(v, " =-/*.<>", 2, 300);
    check_random_pieces(v, "\xE4\xBD\xA0\xE5\xA5\xBD\xCC\x81", 3, 300);
    vocab_free(v);
    gguf_close(g);
}

/* Vocabularies no training makes: the parts of a product may rank behind it, several merges make one product, ranks are in any order. */
static void test_any_ranks(void **unused)
{
    (void)unused;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        uint64_t state = seed;
        struct words w;
        char parts[200][16] = {"a", "b", "c"};
        size_t n_parts = 3, n_merges = 20 + test_random(&state, 100), order[150];
        char merges[150][40];
        words_init(&w);
        for (size_t i = 0; i < n_merges; i++) {
            const char *left = parts[test_random(&state, (uint32_t)n_parts)], *right = parts[test_random(&state, (uint32_t)n_parts)];
            if (strlen(left) + strlen(right) > 12) {
                left = "a";
                right = "b";
            }
            snprintf(merges[i], sizeof merges[i], "%s %s", left, right);
            snprintf(parts[n_parts], sizeof parts[n_parts], "%s%s", left, right);
            size_t k = 0;
            while (strcmp(parts[k], parts[n_parts]) != 0)
                k++;
            if (k == n_parts)
                words_add(&w, parts[n_parts++], TOKEN_NORMAL);
            order[i] = i;
        }
        for (size_t i = n_merges; i > 1; i--) {
            size_t k = test_random(&state, (uint32_t)i), kept = order[k];
            order[k] = order[i - 1];
            order[i - 1] = kept;
        }
        for (size_t i = 0; i < n_merges; i++)
            words_merge(&w, merges[order[i]]);
        struct vocab *v = words_load(&w, 0);
        check_random_pieces(v, "abcz", seed, 60);
        vocab_free(v);
        words_free(&w);
    }
}

/* An allocation that fails gives an error or the right ids, and what was in the list before stays. */
static void test_no_memory(void **unused)
{
    (void)unused;
    struct words w;
    words_init(&w);
    words_join(&w, "a", "b");
    words_join(&w, "ab", "ab");
    struct vocab *v = words_load(&w, 0);
    char text[3000];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = "ab\xCC\x81\xFF"[i % 5];
    memset(text + 100, 'a', 500);
    struct ids want = {0};
    struct err err = {0};
    test_ok(vocab_encode(v, text, sizeof text, ENCODE_PLAIN, NULL, 0, &want, &err), &err, "encode");
    size_t held = mem_bytes(MEM_TEXT);
    int n = 1, failures = 0;
    for (int done = 0; !done && n < 1000; n++) {
        struct ids got = {0};
        assert_int_equal(ids_push(&got, 42), 0);
        mem_fail_nth(n);
        int rc = vocab_encode(v, text, sizeof text, ENCODE_PLAIN, NULL, 0, &got, &err);
        done = rc == 0 && n > 60;
        mem_fail_nth(0);
        assert_true(rc == 0 || rc == ERR_NO_MEMORY);
        failures += rc < 0;
        assert_int_equal(got.len, rc < 0 ? 1 : want.len + 1);
        assert_int_equal(got.data[0], 42);
        if (rc == 0)
            assert_memory_equal(got.data + 1, want.data, want.len * sizeof *want.data);
        ids_free(&got);
        assert_int_equal(mem_bytes(MEM_TEXT), held);
    }
    assert_true(failures > 10);
    ids_free(&want);
    vocab_free(v);
    words_free(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_real), cmocka_unit_test(test_any_ranks), cmocka_unit_test(test_no_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
