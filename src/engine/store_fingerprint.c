/* What a state's numbers depend on. Weights are sampled, not read: a file with the same metadata, tensor table, size and samples is taken for the same. */
#include <string.h>

#include "engine/store_segment.h"

#define SAMPLE_BYTES 256

static void add_string(struct hash_stream *h, struct gguf_string s)
{
    hash_stream_add(h, &s.len, sizeof s.len);
    hash_stream_add(h, s.data, s.len);
}

static void add_tensor(struct hash_stream *h, const struct gguf_tensor *t)
{
    const char *data = t->data;
    size_t n = t->n_bytes < SAMPLE_BYTES ? (size_t)t->n_bytes : SAMPLE_BYTES;
    add_string(h, t->name);
    hash_stream_add(h, t->ne, sizeof t->ne);
    hash_stream_add(h, &t->type, sizeof t->type);
    hash_stream_add(h, &t->n_bytes, sizeof t->n_bytes);
    if (!data)
        return;
    hash_stream_add(h, data, n);
    hash_stream_add(h, data + (t->n_bytes - n) / 2, n);
    hash_stream_add(h, data + (t->n_bytes - n), n);
}

struct hash_key store_fingerprint(const struct model *m, const struct device *dev, enum kv_type type)
{
    struct hash_stream h;
    const struct gguf *g = m->file;
    uint64_t numbers[] = {SEGMENT_VERSION, gguf_file_bytes(g), (uint64_t)dev->kind, (uint64_t)dev->arithmetic, (uint64_t)type};
    hash_stream_begin(&h);
    hash_stream_add(&h, APR_VERSION, sizeof APR_VERSION);
    hash_stream_add(&h, numbers, sizeof numbers);
    hash_stream_add(&h, dev->rung, strlen(dev->rung) + 1); /* sums have another order on another rung */
    for (size_t i = 0; i < gguf_n_kv(g); i++) {
        const struct gguf_kv *kv = gguf_kv_at(g, i);
        add_string(&h, kv->key);
        hash_stream_add(&h, kv->data, (size_t)kv->n_bytes);
    }
    for (size_t i = 0; i < gguf_n_tensors(g); i++)
        add_tensor(&h, gguf_tensor_at(g, i));
    return hash_stream_key(&h);
}
