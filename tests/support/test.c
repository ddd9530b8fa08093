#include "support/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/mem.h"

/* Of any test program: APR_TEST_CASE=NAME runs the cases of this name (with * and ?) alone. */
__attribute__((constructor)) static void choose_cases(void)
{
    const char *pattern = getenv("APR_TEST_CASE");
    if (pattern)
        cmocka_set_test_filter(pattern);
}

char *test_read_file(const char *path, size_t *n)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        fail_msg("%s cannot be opened", path);
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    char *data = mem_alloc(MEM_OTHER, (size_t)size + 1);
    if (!data || fread(data, 1, (size_t)size, file) != (size_t)size)
        fail_msg("%s cannot be read", path);
    fclose(file);
    *n = (size_t)size;
    return data;
}

void test_capture(void (*fn)(void *ctx), void *ctx, char *out, size_t n)
{
    FILE *file = tmpfile();
    int saved = dup(2);
    fflush(stderr);
    dup2(fileno(file), 2);
    fn(ctx);
    fflush(stderr);
    dup2(saved, 2);
    close(saved);
    rewind(file);
    size_t got = fread(out, 1, n - 1, file);
    out[got] = 0;
    fclose(file);
}

const char *test_path(const char *format, ...)
{
    static char ring[8][1024];
    static unsigned next;
    char *out = ring[next++ % 8], name[512];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    snprintf(out, sizeof ring[0], "%s/%s", TEST_DATA, name);
    return out;
}

json_t *test_json(const char *name)
{
    size_t n;
    char *text = test_read_file(test_path("%s", name), &n);
    struct err err = {0};
    json_t *value = NULL;
    test_ok(json_parse(text, n, &value, &err), &err, name);
    mem_free(text);
    return value;
}

json_t *test_json_lines(const char *name)
{
    size_t n;
    char *text = test_read_file(test_path("%s", name), &n);
    json_t *all = json_array();
    for (char *line = text; line < text + n;) {
        char *end = memchr(line, '\n', (size_t)(text + n - line));
        size_t length = end ? (size_t)(end - line) : (size_t)(text + n - line);
        struct err err = {0};
        json_t *value = NULL;
        if (length) {
            test_ok(json_parse(line, length, &value, &err), &err, name);
            json_array_append_new(all, value);
        }
        line += length + 1;
    }
    mem_free(text);
    return all;
}

void test_ok(int rc, const struct err *err, const char *what)
{
    if (rc < 0)
        fail_msg("%s: %s (%s)", what, err && err->code ? err->message : "no message", err_kind(rc));
}

uint32_t test_random(uint64_t *state, uint32_t n)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    uint32_t x = (uint32_t)(*state >> 33);
    return n ? (uint32_t)((uint64_t)x * n >> 31) : 0;
}

float test_gauss(uint64_t *state)
{
    double u = (test_random(state, 1u << 30) + 1.0) / (1u << 30), v = test_random(state, 1u << 30) / (double)(1u << 30);
    return (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
}
