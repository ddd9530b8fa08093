/* Times the tokeniser on inputs that trip others, one letter, spaces, tiny words, and on prose.   bench_tokenize VOCAB.gguf [TEXT] */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "text/vocab.h"

#define PROSE_TOKENS 262144

/* The best of three. */
static void run(const struct vocab *v, const char *name, const char *text, size_t n)
{
    double best = 0;
    size_t n_ids = 0;
    for (int i = 0; i < 3; i++) {
        struct ids ids = {0};
        struct err err = {0};
        uint64_t start = clock_ns();
        if (vocab_encode(v, text, n, ENCODE_PLAIN, NULL, 0, &ids, &err) < 0)
            fprintf(stderr, "%s: %s\n", name, err.message);
        double ms = clock_ms_since(start);
        best = i == 0 || ms < best ? ms : best;
        n_ids = ids.len;
        ids_free(&ids);
    }
    printf("%-24s %9zu bytes %8zu tokens %8.1f ms %8.1f MB/s %10.0f tokens/s\n", name, n, n_ids, best, (double)n / 1e3 / best, (double)n_ids * 1e3 / best);
}

static void run_repeated(const struct vocab *v, const char *name, const char *unit, size_t bytes)
{
    size_t n_unit = strlen(unit);
    char *text = mem_alloc(MEM_OTHER, bytes);
    for (size_t i = 0; text && i < bytes; i++)
        text[i] = unit[i % n_unit];
    if (text)
        run(v, name, text, bytes);
    mem_free(text);
}

static int is_word(const char *bytes, size_t n)
{
    for (size_t i = 1; i < n; i++)
        if (bytes[i] < 'a' || bytes[i] > 'z')
            return 0;
    return n > 2 && bytes[0] == ' ';
}

/* Words of the vocabulary, early ones more often, with some punctuation: about one token each. */
static void run_prose(const struct vocab *v)
{
    struct buf text;
    struct ids words = {0};
    uint64_t state = 1;
    buf_init(&text, MEM_OTHER, 1 << 26);
    for (int32_t id = 0; id < vocab_n_tokens(v); id++) {
        const char *bytes;
        size_t n;
        vocab_piece(v, id, &bytes, &n);
        if (is_word(bytes, n) && ids_push(&words, id) < 0)
            break;
    }
    for (int i = 0; words.len && i < PROSE_TOKENS; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        double u = (double)(state >> 40) / (1 << 24);
        const char *bytes;
        size_t n;
        vocab_piece(v, words.data[(size_t)((double)words.len * u * u * u)], &bytes, &n);
        if (state >> 20 & 15)
            buf_add(&text, bytes, n);
        else
            buf_add_str(&text, state >> 24 & 1 ? "." : ",");
    }
    run(v, "262,144 tokens of prose", buf_str(&text), text.len);
    buf_free(&text);
    ids_free(&words);
}

static int run_file(const struct vocab *v, const char *path)
{
    FILE *file = fopen(path, "rb");
    struct buf text;
    char part[1 << 16];
    if (!file) {
        fprintf(stderr, "%s cannot be opened\n", path);
        return 1;
    }
    buf_init(&text, MEM_OTHER, (size_t)1 << 30);
    for (size_t n; (n = fread(part, 1, sizeof part, file)) > 0;)
        buf_add(&text, part, n);
    fclose(file);
    run(v, path, buf_str(&text), text.len);
    buf_free(&text);
    return 0;
}

int main(int argc, char **argv)
{
    struct gguf *g = NULL;
    struct vocab *v = NULL;
    struct err err = {0};
    if (argc < 2) {
        fprintf(stderr, "usage: %s VOCAB.gguf [TEXT]\n", argv[0]);
        return 2;
    }
    uint64_t start = clock_ns();
    if (gguf_open(argv[1], 0, &g, &err) < 0 || vocab_load(g, &v, &err) < 0) {
        fprintf(stderr, "%s\n", err.message);
        gguf_close(g);
        return 1;
    }
    printf("%-24s %.1f ms\n", "load", clock_ms_since(start));
    run_repeated(v, "10 MB of a", "a", 10000000);
    run_repeated(v, "1 MB of spaces", " ", 1000000);
    run_repeated(v, "5 MB of \"ab \"", "ab ", 5000000);
    run_prose(v);
    int rc = argc > 2 ? run_file(v, argv[2]) : 0;
    vocab_free(v);
    gguf_close(g);
    return rc;
}
