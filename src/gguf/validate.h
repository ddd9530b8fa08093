/* Whether the numbers of a sound file are numbers. */
#ifndef GGUF_VALIDATE_H
#define GGUF_VALIDATE_H

#include "gguf/gguf.h"

struct gguf_validation {
    uint64_t n_tensors, n_elements; /* looked at */
    uint64_t n_bad_tensors;         /* that hold a NaN or an infinity */
};

/* Decodes every tensor of a weight type and looks for values that are not finite: a block's scale that is NaN or infinite makes its values so.
 * ERR_NUMERIC names the first such tensor, row and element; *out (may be NULL) is filled then too. Reads the whole file: seconds for a large one. */
int gguf_validate_data(const struct gguf *g, struct gguf_validation *out, struct err *err) MUST_CHECK;

#endif
