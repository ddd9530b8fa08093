/* From the bytes of one part to its metadata and tensor tables. */
#ifndef GGUF_PARSE_H
#define GGUF_PARSE_H

#include "gguf/file.h"
#include "gguf/gguf.h"

struct gguf_part {
    struct file_map file;
    uint32_t version, alignment;
    struct gguf_kv *kv;
    size_t n_kv;
    struct gguf_tensor *tensors;
    size_t n_tensors;
    uint64_t data_start;
};

/* Parses part->file; part is the part's index. header_only: the data section may be missing. On failure the tables are freed, the file stays. */
int gguf_part_parse(struct gguf_part *part, int index, int header_only, struct err *err) MUST_CHECK;
void gguf_part_free(struct gguf_part *part);

/* A key or tensor name as it can be shown: printable ASCII, cut to 60 bytes. Returns out. */
const char *gguf_shown(struct gguf_string s, char out[64]);

/* Bytes of one element of a fixed-size type, 0 for strings and arrays, -1 for no type. */
int gguf_type_bytes(uint32_t type);
const char *gguf_type_name(uint32_t type);

#endif
