/* Times the tokeniser on inputs that trip others: one letter, spaces, tiny words, prose.   bench_tokenize VOCAB.gguf [PROSE.txt] */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "text/vocab.h"

static void run(const struct vocab *v, const char *name, const char *unit, size_t n_unit, size_t bytes)
{
    struct ids ids = {0};
    struct err err = {0};
    char *text = mem_alloc(MEM_OTHER, bytes);
    for (size_t i = 0; text && i < bytes; i++)
        text[i] = unit[i % n_unit];
    uint64_t start = clock_ns();
    if (!text || vocab_encode(v, text, bytes, ENCODE_PLAIN, NULL, 0, &ids, &err) < 0)
        fprintf(stderr, "%s: %s\n", name, err.message);
    double ms = clock_ms_since(start);
    printf("%-28s %8zu tokens %8.1f ms %8.1f MB/s\n", name, ids.len, ms, (double)bytes / 1e3 / ms);
    ids_free(&ids);
    mem_free(text);
}

int main(int argc, char **argv)
{
    struct gguf *g = NULL;
    struct vocab *v = NULL;
    struct err err = {0};
    if (argc < 2) {
        fprintf(stderr, "usage: %s VOCAB.gguf\n", argv[0]);
        return 2;
    }
    uint64_t start = clock_ns();
    if (gguf_open(argv[1], 0, &g, &err) < 0 || vocab_load(g, &v, &err) < 0) {
        fprintf(stderr, "%s\n", err.message);
        gguf_close(g);
        return 1;
    }
    printf("%-28s %24.1f ms\n", "load", clock_ms_since(start));
    static const char prose[] = "The quick brown fox, having read 42 books about dogs, decides that it'd rather jump over the lazy one; nobody's surprised. ";
    run(v, "10 MB of a", "a", 1, 10000000);
    run(v, "1 MB of spaces", " ", 1, 1000000);
    run(v, "5 MB of \"ab \"", "ab ", 3, 5000000);
    run(v, "262,144 tokens of prose", prose, sizeof prose - 1, 262144 * 4);
    vocab_free(v);
    gguf_close(g);
    return 0;
}
