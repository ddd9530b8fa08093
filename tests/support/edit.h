/* A golden GGUF file with changes, written to a temporary place: other keys, other tensors. */
#ifndef SUPPORT_EDIT_H
#define SUPPORT_EDIT_H

#include <stddef.h>
#include <stdint.h>

#include "gguf/gguf.h"

struct edit;

/* model: name under TEST_DATA/models. Every function fails the test when something is wrong. */
struct edit *edit_open(const char *model);
void edit_free(struct edit *e);
const struct gguf *edit_source(const struct edit *e);

/* Adds or replaces a key. */
void edit_set_int(struct edit *e, const char *key, enum gguf_type type, int64_t value);
void edit_set_float(struct edit *e, const char *key, double value);
void edit_set_string(struct edit *e, const char *key, const char *value);
void edit_set_ints(struct edit *e, const char *key, enum gguf_type elem_type, const int64_t *values, size_t n);
void edit_drop_key(struct edit *e, const char *key);

/* Adds or replaces a tensor; data is copied. */
void edit_set_tensor(struct edit *e, const char *name, uint32_t type, const uint64_t *ne, int n_dims, const void *data, size_t n_bytes);
void edit_rename_tensor(struct edit *e, const char *name, const char *to);
void edit_drop_tensor(struct edit *e, const char *name);

/* The path of the file as it is now; valid (and the file there) until the next write or edit_free. */
const char *edit_write(struct edit *e);

#endif
