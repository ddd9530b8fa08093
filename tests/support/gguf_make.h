/* Builds GGUF files byte by byte, sound or bent, for tests of the reader. */
#ifndef SUPPORT_GGUF_MAKE_H
#define SUPPORT_GGUF_MAKE_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "gguf/gguf.h"

struct gguf_make {
    struct buf kv, tensors; /* their sections, packed */
    uint64_t n_kv, n_tensors;
    uint32_t version, alignment;
    uint64_t data_bytes; /* of the data section, counting 0, 1, 2, ... */
};

void make_init(struct gguf_make *m); /* version 3, alignment 32, nothing in it */
void make_free(struct gguf_make *m);

/* A scalar of n bytes at value, or packed array elements. */
void make_scalar(struct gguf_make *m, const char *key, enum gguf_type type, const void *value, size_t n);
void make_array(struct gguf_make *m, const char *key, enum gguf_type elem, uint64_t n, const void *elements, size_t n_bytes);
void make_u32(struct gguf_make *m, const char *key, uint32_t value);
void make_string(struct gguf_make *m, const char *key, const char *data, size_t n);

/* The key's or name's bytes and length, where strlen would not do. */
void make_raw_key(struct gguf_make *m, const char *key, size_t n, uint32_t type);

/* offset: from the start of the data section. Grows data_bytes to hold n_bytes there. */
void make_tensor(struct gguf_make *m, const char *name, uint32_t type, int n_dims, const uint64_t *ne, uint64_t offset, uint64_t n_bytes);

/* The whole file; free with buf_free. */
void make_finish(const struct gguf_make *m, struct buf *out);

/* Writes bytes to a path; fails the test when that fails. */
void make_write(const char *path, const void *data, size_t n);

#endif
