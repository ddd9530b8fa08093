/* What the C tests share. */
#ifndef SUPPORT_TEST_H
#define SUPPORT_TEST_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/err.h"

/* Sanitizers make arithmetic some ten times slower: numbers are checked on fewer models then, every line still runs. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TEST_SANITIZED 1
#else
#define TEST_SANITIZED 0
#endif
#if defined(__SANITIZE_THREAD__) /* slower still: what has no threads needs hardly be run */
#define TEST_THREAD_SANITIZED 1
#else
#define TEST_THREAD_SANITIZED 0
#endif

/* A whole file, NUL-terminated; fails the test when it cannot be read. Free with mem_free. */
char *test_read_file(const char *path, size_t *n);

/* TEST_DATA/name, in a ring of static buffers. */
const char *test_path(const char *format, ...) PRINTF_LIKE(1, 2);

/* The JSON document of a file under TEST_DATA, and its lines as one array for .jsonl files. Fails the test when broken. */
json_t *test_json(const char *name);
json_t *test_json_lines(const char *name);

/* What goes to stderr while fn(ctx) runs, up to n - 1 bytes. */
void test_capture(void (*fn)(void *ctx), void *ctx, char *out, size_t n);

/* Fails with err's sentence when rc is negative. */
void test_ok(int rc, const struct err *err, const char *what);

/* A small deterministic generator: 0..n-1. */
uint32_t test_random(uint64_t *state, uint32_t n);
float test_gauss(uint64_t *state);

#endif
