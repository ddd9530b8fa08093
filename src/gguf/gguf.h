/* A GGUF file (v2, v3, little-endian; one file or all parts of a split one) opened read-only: metadata, tensor table, mapped data.
 * Immutable after gguf_open; any thread may read it. Every length is checked against the file before it is used. */
#ifndef GGUF_GGUF_H
#define GGUF_GGUF_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum gguf_type { /* ids of the file format */
    GGUF_U8, GGUF_I8, GGUF_U16, GGUF_I16, GGUF_U32, GGUF_I32, GGUF_F32, GGUF_BOOL, GGUF_STRING, GGUF_ARRAY, GGUF_U64, GGUF_I64, GGUF_F64
};

struct gguf_string {
    const char *data; /* into the mapping; no NUL at the end, may hold NULs */
    size_t len;
};

struct gguf_kv {
    struct gguf_string key;
    enum gguf_type type;
    enum gguf_type elem_type; /* of an array */
    uint64_t n;               /* elements of an array, else 1 */
    const void *data;         /* packed value or elements, unaligned, into the mapping; strings are u64 length + bytes */
    uint64_t n_bytes;         /* of data */
};

struct gguf_tensor {
    struct gguf_string name;
    int n_dims;               /* 1..4 */
    uint64_t ne[4];           /* file order: ne[0] is contiguous; missing ones are 1 */
    uint32_t type;            /* gguf/quant.h */
    uint64_t offset;          /* from the start of its part's file */
    uint64_t n_bytes;
    int part;                 /* 0-based part that holds it */
    const void *data;         /* mapped; NULL when opened header-only */
};

struct gguf;

enum gguf_open_flags {
    GGUF_HEADER_ONLY = 1      /* do not require or map the data section (planning from a header) */
};

/* path: a file, any part of a split file, or a symlink to one (siblings are looked for beside the link first, then beside its target).
 * ERR_NOT_FOUND, ERR_IO, ERR_FORMAT, ERR_UNSUPPORTED (big-endian, version, removed or unknown tensor type), ERR_LIMIT; the message is one line that
 * starts with the file's path and names key or tensor. */
int gguf_open(const char *path, unsigned flags, struct gguf **out, struct err *err) MUST_CHECK;
void gguf_close(struct gguf *g);

const char *gguf_path(const struct gguf *g);          /* as given */
int gguf_n_parts(const struct gguf *g);
const char *gguf_part_path(const struct gguf *g, int part);
uint64_t gguf_file_bytes(const struct gguf *g);       /* over all parts */
uint32_t gguf_version(const struct gguf *g);
uint32_t gguf_alignment(const struct gguf *g);

size_t gguf_n_kv(const struct gguf *g);               /* of part 0 */
const struct gguf_kv *gguf_kv_at(const struct gguf *g, size_t i);
const struct gguf_kv *gguf_find(const struct gguf *g, const char *key); /* NULL when absent */

size_t gguf_n_tensors(const struct gguf *g);          /* over all parts, file order */
const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i);
const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name);

/* Typed reads. 1 = set, 0 = the key is absent (*out untouched), ERR_FORMAT = present with a wrong type or an unusable value (message names it).
 * Integers: any integer type (bool is not one) that fits [min, max]. Floats: f32 or f64, finite. */
int gguf_get_u64(const struct gguf *g, const char *key, uint64_t min, uint64_t max, uint64_t *out, struct err *err) MUST_CHECK;
int gguf_get_f64(const struct gguf *g, const char *key, double *out, struct err *err) MUST_CHECK;
int gguf_get_bool(const struct gguf *g, const char *key, int *out, struct err *err) MUST_CHECK;
int gguf_get_string(const struct gguf *g, const char *key, struct gguf_string *out, struct err *err) MUST_CHECK;

/* Element i of an array of any integer type, or of bool (i < n: the caller's duty). */
int64_t gguf_array_i64(const struct gguf_kv *kv, uint64_t i);
double gguf_array_f64(const struct gguf_kv *kv, uint64_t i); /* f32, f64 or an integer type */

/* Walks a string array without copying: start with *cursor = 0; 1 and *out while there is one, 0 at the end. */
int gguf_array_next_string(const struct gguf_kv *kv, uint64_t *cursor, struct gguf_string *out);

/* Async-signal-safe: the path of the open file whose mapping holds addr, or NULL. For the SIGBUS handler (a file that shrank under us). */
const char *gguf_path_of_address(const void *addr);

#endif
