#include "support/edit.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "support/test.h"

#define MAX_ENTRIES 1024
#define ALIGNMENT 32

struct entry {
    char name[96];
    uint32_t type;
    uint64_t ne[4];
    int n_dims;
    const void *data; /* of a key: as it stands in the file, array header included */
    size_t n_bytes;
    struct buf own;   /* holds data when it is not the source's */
};

struct edit {
    struct gguf *source;
    struct entry keys[MAX_ENTRIES], tensors[MAX_ENTRIES];
    int n_keys, n_tensors;
    char path[64];
};

static struct entry *entry_of(struct entry *entries, int *n, const char *name)
{
    for (int i = 0; i < *n; i++)
        if (strcmp(entries[i].name, name) == 0) {
            buf_free(&entries[i].own);
            return &entries[i];
        }
    if (*n == MAX_ENTRIES)
        fail_msg("too many entries");
    struct entry *e = &entries[(*n)++];
    *e = (struct entry){.ne = {1, 1, 1, 1}};
    snprintf(e->name, sizeof e->name, "%s", name);
    buf_init(&e->own, MEM_OTHER, 1u << 28);
    return e;
}

static void drop(struct entry *entries, int *n, const char *name)
{
    for (int i = 0; i < *n; i++)
        if (strcmp(entries[i].name, name) == 0) {
            buf_free(&entries[i].own);
            memmove(&entries[i], &entries[i + 1], (size_t)(--*n - i) * sizeof *entries);
            return;
        }
    fail_msg("%s is not there to be dropped", name);
}

static void own(struct entry *e, const void *data, size_t n)
{
    buf_add(&e->own, data, n);
    e->data = e->own.data;
    e->n_bytes = e->own.len;
}

struct edit *edit_open(const char *model)
{
    struct edit *e = mem_alloc(MEM_OTHER, sizeof *e);
    struct err err = {0};
    char name[96];
    test_ok(gguf_open(test_path("models/%s.gguf", model), 0, &e->source, &err), &err, model);
    for (size_t i = 0; i < gguf_n_kv(e->source); i++) {
        const struct gguf_kv *kv = gguf_kv_at(e->source, i);
        snprintf(name, sizeof name, "%.*s", (int)kv->key.len, kv->key.data);
        struct entry *k = entry_of(e->keys, &e->n_keys, name);
        uint32_t elem = kv->elem_type;
        k->type = kv->type;
        if (kv->type == GGUF_ARRAY) {
            own(k, &elem, 4);
            own(k, &kv->n, 8);
        }
        own(k, kv->data, kv->n_bytes);
    }
    for (size_t i = 0; i < gguf_n_tensors(e->source); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(e->source, i);
        snprintf(name, sizeof name, "%.*s", (int)t->name.len, t->name.data);
        struct entry *k = entry_of(e->tensors, &e->n_tensors, name);
        k->type = t->type;
        k->n_dims = t->n_dims;
        memcpy(k->ne, t->ne, sizeof k->ne);
        k->data = t->data;
        k->n_bytes = t->n_bytes;
    }
    return e;
}

void edit_free(struct edit *e)
{
    for (int i = 0; i < e->n_keys; i++)
        buf_free(&e->keys[i].own);
    for (int i = 0; i < e->n_tensors; i++)
        buf_free(&e->tensors[i].own);
    if (e->path[0])
        unlink(e->path);
    gguf_close(e->source);
    mem_free(e);
}

const struct gguf *edit_source(const struct edit *e)
{
    return e->source;
}

static size_t int_bytes(enum gguf_type type)
{
    static const uint8_t sizes[] = {[GGUF_U8] = 1, [GGUF_I8] = 1, [GGUF_U16] = 2, [GGUF_I16] = 2, [GGUF_U32] = 4, [GGUF_I32] = 4, [GGUF_BOOL] = 1, [GGUF_U64] = 8, [GGUF_I64] = 8};
    return sizes[type];
}

void edit_set_int(struct edit *e, const char *key, enum gguf_type type, int64_t value)
{
    struct entry *k = entry_of(e->keys, &e->n_keys, key);
    k->type = type;
    own(k, &value, int_bytes(type)); /* little-endian */
}

void edit_set_float(struct edit *e, const char *key, double value)
{
    struct entry *k = entry_of(e->keys, &e->n_keys, key);
    k->type = GGUF_F64;
    own(k, &value, sizeof value);
}

void edit_set_string(struct edit *e, const char *key, const char *value)
{
    struct entry *k = entry_of(e->keys, &e->n_keys, key);
    uint64_t n = strlen(value);
    k->type = GGUF_STRING;
    own(k, &n, 8);
    own(k, value, n);
}

void edit_set_ints(struct edit *e, const char *key, enum gguf_type elem_type, const int64_t *values, size_t n)
{
    struct entry *k = entry_of(e->keys, &e->n_keys, key);
    uint32_t elem = elem_type;
    uint64_t count = n;
    k->type = GGUF_ARRAY;
    own(k, &elem, 4);
    own(k, &count, 8);
    for (size_t i = 0; i < n; i++)
        own(k, &values[i], int_bytes(elem_type));
}

void edit_drop_key(struct edit *e, const char *key)
{
    drop(e->keys, &e->n_keys, key);
}

void edit_set_tensor(struct edit *e, const char *name, uint32_t type, const uint64_t *ne, int n_dims, const void *data, size_t n_bytes)
{
    struct buf copy;
    buf_init(&copy, MEM_OTHER, 1u << 28);
    buf_add(&copy, data, n_bytes); /* data may be the entry's own */
    struct entry *t = entry_of(e->tensors, &e->n_tensors, name);
    t->type = type;
    t->n_dims = n_dims;
    for (int i = 0; i < 4; i++)
        t->ne[i] = i < n_dims ? ne[i] : 1;
    own(t, copy.data, copy.len);
    buf_free(&copy);
}

void edit_rename_tensor(struct edit *e, const char *name, const char *to)
{
    for (int i = 0; i < e->n_tensors; i++)
        if (strcmp(e->tensors[i].name, name) == 0) {
            snprintf(e->tensors[i].name, sizeof e->tensors[i].name, "%s", to);
            return;
        }
    fail_msg("%s is not there to be renamed", name);
}

void edit_drop_tensor(struct edit *e, const char *name)
{
    drop(e->tensors, &e->n_tensors, name);
}

static void add_name(struct buf *out, const char *name)
{
    uint64_t n = strlen(name);
    buf_add(out, &n, 8);
    buf_add(out, name, n);
}

static void add_padding(struct buf *out)
{
    while (out->len % ALIGNMENT)
        buf_add_char(out, 0);
}

const char *edit_write(struct edit *e)
{
    struct buf out;
    uint64_t counts[2] = {(uint64_t)e->n_tensors, (uint64_t)e->n_keys}, offset = 0;
    buf_init(&out, MEM_OTHER, 1u << 28);
    buf_add(&out, "GGUF\3\0\0\0", 8);
    buf_add(&out, counts, sizeof counts);
    for (int i = 0; i < e->n_keys; i++) {
        add_name(&out, e->keys[i].name);
        buf_add(&out, &e->keys[i].type, 4);
        buf_add(&out, e->keys[i].data, e->keys[i].n_bytes);
    }
    for (int i = 0; i < e->n_tensors; i++) {
        const struct entry *t = &e->tensors[i];
        uint32_t n_dims = (uint32_t)t->n_dims;
        add_name(&out, t->name);
        buf_add(&out, &n_dims, 4);
        buf_add(&out, t->ne, 8 * (size_t)t->n_dims);
        buf_add(&out, &t->type, 4);
        buf_add(&out, &offset, 8);
        offset += (t->n_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    for (int i = 0; i < e->n_tensors; i++) {
        add_padding(&out);
        buf_add(&out, e->tensors[i].data, e->tensors[i].n_bytes);
    }
    if (!e->path[0]) {
        snprintf(e->path, sizeof e->path, "/tmp/apr-edit-XXXXXX");
        close(mkstemp(e->path));
    }
    FILE *file = fopen(e->path, "wb");
    if (!file || out.failed || fwrite(out.data, 1, out.len, file) != out.len || fclose(file) != 0)
        fail_msg("%s cannot be written", e->path);
    buf_free(&out);
    return e->path;
}
