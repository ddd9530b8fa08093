/* Whether the numbers of a sound file are numbers: no NaN, no infinity. */
#ifndef GGUF_VALIDATE_H
#define GGUF_VALIDATE_H

#include "gguf/gguf.h"

struct gguf_bad_numbers {
    uint64_t n;     /* elements that are NaN or infinite */
    uint64_t first; /* index of the first one, ne[0] fastest; the number of elements when there is none */
};

/* Looks at one mapped tensor; 1 when it was looked at, 0 when it is of a type that is no weight or is not mapped (*out untouched). Where a block's
 * scales say all there is to know, only they are read. Any thread; a caller that shows progress goes from tensor to tensor itself. */
int gguf_validate_tensor(const struct gguf_tensor *t, struct gguf_bad_numbers *out);

struct gguf_validation {
    uint64_t n_tensors, n_elements; /* looked at */
    uint64_t n_bad_tensors;         /* that hold a NaN or an infinity */
    uint64_t n_bad_elements;
};

/* Every tensor of the file. ERR_NUMERIC names the first bad tensor, row and element and how many there are; *out (may be NULL) is filled then too.
 * Touches the whole file: seconds for a large one. */
int gguf_validate_data(const struct gguf *g, struct gguf_validation *out, struct err *err) MUST_CHECK;

#endif
