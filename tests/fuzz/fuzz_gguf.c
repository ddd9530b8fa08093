/* Any bytes as a model file: opened header-only and in full, everything the reader vouches for is read, one block of each tensor is decoded. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mem.h"
#include "gguf/gguf.h"
#include "gguf/quant.h"
#include "gguf/validate.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint64_t sink; /* keeps the reads */

static void fail(const char *what)
{
    fprintf(stderr, "%s\n", what);
    __builtin_trap();
}

static void read_bytes(const void *data, uint64_t n)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < n; i++)
        sum += ((const uint8_t *)data)[i];
    sink += sum;
}

static void read_scalar(const struct gguf *g, const struct gguf_kv *kv)
{
    char key[256];
    uint64_t number;
    double real;
    int flag;
    struct gguf_string text;
    struct err err;
    if (kv->key.len >= sizeof key)
        return;
    memcpy(key, kv->key.data, kv->key.len);
    key[kv->key.len] = 0;
    if (gguf_find(g, key) != kv)
        fail("a key is not found");
    int n = 0;
    n += gguf_get_u64(g, key, 0, 1000, &number, &err) == 1;
    n += gguf_get_f64(g, key, &real, &err) == 1;
    n += gguf_get_bool(g, key, &flag, &err) == 1;
    if (gguf_get_string(g, key, &text, &err) == 1) {
        read_bytes(text.data, text.len);
        n++;
    }
    if (n > 1)
        fail("a value has two types");
}

static void read_array(const struct gguf_kv *kv)
{
    uint64_t cursor = 0, n = 0;
    struct gguf_string text;
    if (kv->elem_type == GGUF_STRING) {
        for (; gguf_array_next_string(kv, &cursor, &text); n++)
            read_bytes(text.data, text.len);
        if (n != kv->n)
            fail("an array of strings has another number of them");
        return;
    }
    for (uint64_t i = 0; i < kv->n; i++)
        sink += (uint64_t)gguf_array_i64(kv, i) + (gguf_array_f64(kv, i) > 0);
}

static void read_tensor(const struct gguf *g, const struct gguf_tensor *t, int header_only)
{
    char name[64];
    float values[256];
    const struct quant_type *type = quant_type(t->type);
    memcpy(name, t->name.data, t->name.len);
    name[t->name.len] = 0;
    if (gguf_find_tensor(g, name) != t || !type || (t->data == NULL) != header_only)
        fail("a tensor is not as promised");
    if (t->n_bytes != quant_row_bytes(t->type, t->ne[0]) * t->ne[1] * t->ne[2] * t->ne[3] || t->n_bytes < (uint64_t)type->block_bytes)
        fail("a tensor has another size");
    if (header_only)
        return;
    read_bytes(t->data, t->n_bytes);
    if (type->decode) {
        type->decode(t->data, values, (size_t)type->block_elems);
        type->decode((const uint8_t *)t->data + t->n_bytes - type->block_bytes, values, (size_t)type->block_elems);
    }
}

static void open_and_walk(const char *path, int header_only)
{
    struct gguf *g = NULL;
    struct err err = {0};
    struct gguf_validation seen;
    int rc = gguf_open(path, header_only ? GGUF_HEADER_ONLY : 0, &g, &err);
    if (rc < 0) {
        if (g || strncmp(err.message, path, strlen(path)) != 0 || strchr(err.message, '\n'))
            fail("a refusal is not one line about the file");
        return;
    }
    for (size_t i = 0; i < gguf_n_kv(g); i++) {
        const struct gguf_kv *kv = gguf_kv_at(g, i);
        read_bytes(kv->data, kv->n_bytes);
        read_scalar(g, kv);
        if (kv->type == GGUF_ARRAY)
            read_array(kv);
    }
    for (size_t i = 0; i < gguf_n_tensors(g); i++)
        read_tensor(g, gguf_tensor_at(g, i), header_only);
    if (gguf_validate_data(g, &seen, &err) < 0 && seen.n_bad_tensors == 0)
        fail("validation refuses nothing");
    gguf_close(g);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fd = -1;
    char path[64];
    if (fd < 0)
        fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != (ssize_t)size)
        fail("no memory file");
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    mem_fail_above(size * 8 + 8192); /* nothing may be asked for that the file does not justify */
    open_and_walk(path, 0);
    open_and_walk(path, 1);
    mem_fail_above(0);
    if (mem_bytes(MEM_GGUF) != 0)
        fail("memory was not given back");
    return 0;
}
