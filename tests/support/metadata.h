/* A GGUF file of keys alone, made by hand: right and wrong ones. */
#ifndef SUPPORT_METADATA_H
#define SUPPORT_METADATA_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "gguf/gguf.h"

struct metadata {
    struct buf keys;
    uint64_t n_keys;
};

void metadata_init(struct metadata *m);
void metadata_free(struct metadata *m);

void metadata_string(struct metadata *m, const char *key, const char *value);
void metadata_int(struct metadata *m, const char *key, enum gguf_type type, int64_t value);
void metadata_strings(struct metadata *m, const char *key, const char *const *values, size_t n);
void metadata_ints(struct metadata *m, const char *key, enum gguf_type elem_type, const int32_t *values, size_t n);

/* Writes the file to a temporary place and opens it; the file is gone from the folder when this returns. Fails the test when that does not work. */
struct gguf *metadata_open(const struct metadata *m);

#endif
