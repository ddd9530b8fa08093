#include "support/metadata.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/test.h"

static void put(struct buf *b, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        buf_add_char(b, (char)(value >> 8 * i));
}

static void put_string(struct buf *b, const char *text)
{
    put(b, strlen(text), 8);
    buf_add_str(b, text);
}

static int int_bytes(enum gguf_type type)
{
    switch (type) {
    case GGUF_U8:
    case GGUF_I8:
    case GGUF_BOOL:
        return 1;
    case GGUF_U16:
    case GGUF_I16:
        return 2;
    case GGUF_U32:
    case GGUF_I32:
        return 4;
    default:
        return 8;
    }
}

static void put_key(struct metadata *m, const char *key, enum gguf_type type)
{
    put_string(&m->keys, key);
    put(&m->keys, (uint64_t)type, 4);
    m->n_keys++;
}

static void put_array_key(struct metadata *m, const char *key, enum gguf_type elem_type, size_t n)
{
    put_key(m, key, GGUF_ARRAY);
    put(&m->keys, (uint64_t)elem_type, 4);
    put(&m->keys, n, 8);
}

void metadata_init(struct metadata *m)
{
    m->n_keys = 0;
    buf_init(&m->keys, MEM_OTHER, 1 << 28);
}

void metadata_free(struct metadata *m)
{
    buf_free(&m->keys);
}

void metadata_string(struct metadata *m, const char *key, const char *value)
{
    put_key(m, key, GGUF_STRING);
    put_string(&m->keys, value);
}

void metadata_int(struct metadata *m, const char *key, enum gguf_type type, int64_t value)
{
    put_key(m, key, type);
    put(&m->keys, (uint64_t)value, int_bytes(type));
}

void metadata_strings(struct metadata *m, const char *key, const char *const *values, size_t n)
{
    put_array_key(m, key, GGUF_STRING, n);
    for (size_t i = 0; i < n; i++)
        put_string(&m->keys, values[i]);
}

void metadata_ints(struct metadata *m, const char *key, enum gguf_type elem_type, const int32_t *values, size_t n)
{
    put_array_key(m, key, elem_type, n);
    for (size_t i = 0; i < n; i++)
        put(&m->keys, (uint64_t)(int64_t)values[i], int_bytes(elem_type));
}

struct gguf *metadata_open(const struct metadata *m)
{
    char path[] = "/tmp/metadata-XXXXXX";
    struct buf file;
    struct gguf *g = NULL;
    struct err err = {0};
    buf_init(&file, MEM_OTHER, 1 << 28);
    buf_add_str(&file, "GGUF");
    put(&file, 3, 4);
    put(&file, 0, 8);
    put(&file, m->n_keys, 8);
    buf_add(&file, m->keys.data, m->keys.len);
    while (file.len % 32)
        put(&file, 0, 1);
    int fd = mkstemp(path);
    if (fd < 0 || write(fd, file.data, file.len) != (ssize_t)file.len)
        fail_msg("%s cannot be written", path);
    close(fd);
    int rc = gguf_open(path, 0, &g, &err);
    unlink(path);
    buf_free(&file);
    test_ok(rc, &err, "open");
    return g;
}
