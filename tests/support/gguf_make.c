#include "support/gguf_make.h"

#include <stdio.h>
#include <string.h>

#include "support/test.h"

#define MAX_BYTES (256u << 20)

static void add_uint(struct buf *b, uint64_t value, int n_bytes)
{
    for (int i = 0; i < n_bytes; i++)
        buf_add_char(b, (char)(value >> (8 * i)));
}

static void add_text(struct buf *b, const char *text, size_t n)
{
    add_uint(b, n, 8);
    buf_add(b, text, n);
}

void make_init(struct gguf_make *m)
{
    *m = (struct gguf_make){.version = 3, .alignment = 32};
    buf_init(&m->kv, MEM_OTHER, MAX_BYTES);
    buf_init(&m->tensors, MEM_OTHER, MAX_BYTES);
}

void make_free(struct gguf_make *m)
{
    buf_free(&m->kv);
    buf_free(&m->tensors);
}

void make_raw_key(struct gguf_make *m, const char *key, size_t n, uint32_t type)
{
    add_text(&m->kv, key, n);
    add_uint(&m->kv, type, 4);
    m->n_kv++;
}

void make_scalar(struct gguf_make *m, const char *key, enum gguf_type type, const void *value, size_t n)
{
    make_raw_key(m, key, strlen(key), type);
    buf_add(&m->kv, value, n);
}

void make_array(struct gguf_make *m, const char *key, enum gguf_type elem, uint64_t n, const void *elements, size_t n_bytes)
{
    make_raw_key(m, key, strlen(key), GGUF_ARRAY);
    add_uint(&m->kv, elem, 4);
    add_uint(&m->kv, n, 8);
    buf_add(&m->kv, elements, n_bytes);
}

void make_u32(struct gguf_make *m, const char *key, uint32_t value)
{
    make_scalar(m, key, GGUF_U32, &value, 4);
}

void make_string(struct gguf_make *m, const char *key, const char *data, size_t n)
{
    make_raw_key(m, key, strlen(key), GGUF_STRING);
    add_text(&m->kv, data, n);
}

void make_tensor(struct gguf_make *m, const char *name, uint32_t type, int n_dims, const uint64_t *ne, uint64_t offset, uint64_t n_bytes)
{
    add_text(&m->tensors, name, strlen(name));
    add_uint(&m->tensors, (uint64_t)n_dims, 4);
    for (int i = 0; i < n_dims; i++)
        add_uint(&m->tensors, ne[i], 8);
    add_uint(&m->tensors, type, 4);
    add_uint(&m->tensors, offset, 8);
    if (offset + n_bytes > m->data_bytes)
        m->data_bytes = offset + n_bytes;
    m->n_tensors++;
}

void make_finish(const struct gguf_make *m, struct buf *out)
{
    buf_init(out, MEM_OTHER, MAX_BYTES);
    buf_add(out, "GGUF", 4);
    add_uint(out, m->version, 4);
    add_uint(out, m->n_tensors, 8);
    add_uint(out, m->n_kv, 8);
    buf_add(out, m->kv.data, m->kv.len);
    buf_add(out, m->tensors.data, m->tensors.len);
    while (m->data_bytes && out->len % m->alignment)
        buf_add_char(out, 0);
    for (uint64_t i = 0; i < m->data_bytes; i++)
        buf_add_char(out, (char)i);
    assert_int_equal(out->failed, 0);
}

void make_write(const char *path, const void *data, size_t n)
{
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(data, 1, n, file) != n || fclose(file) != 0)
        fail_msg("%s cannot be written", path);
}
