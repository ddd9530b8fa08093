#include "gguf/validate.h"

#include <string.h>

#include "gguf/quant.h"

#define PIECE_ELEMS 4096 /* a multiple of every block size */

/* The index of the first value that is NaN or infinite, or n. */
static size_t first_not_finite(const float *x, size_t n)
{
    uint32_t any = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        any |= (uint32_t)((bits & 0x7F800000u) == 0x7F800000u);
    }
    for (size_t i = 0; any && i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        if ((bits & 0x7F800000u) == 0x7F800000u)
            return i;
    }
    return n;
}

/* The same of a tensor's elements. */
static uint64_t first_bad_element(const struct gguf_tensor *t, const struct quant_type *type)
{
    float values[PIECE_ELEMS];
    uint64_t n = t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
    const unsigned char *blocks = t->data;
    for (uint64_t at = 0; at < n; at += PIECE_ELEMS) {
        size_t some = n - at < PIECE_ELEMS ? (size_t)(n - at) : PIECE_ELEMS;
        type->decode(blocks, values, some);
        size_t bad = first_not_finite(values, some);
        if (bad < some)
            return at + bad;
        blocks += some / (size_t)type->block_elems * (size_t)type->block_bytes;
    }
    return n;
}

int gguf_validate_data(const struct gguf *g, struct gguf_validation *out, struct err *err)
{
    struct gguf_validation seen = {0};
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        const struct quant_type *type = quant_type(t->type);
        if (!type || !type->decode || !t->data)
            continue;
        uint64_t n = t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3], bad = first_bad_element(t, type);
        seen.n_tensors++;
        seen.n_elements += n;
        if (bad == n)
            continue;
        if (seen.n_bad_tensors++ == 0)
            err_set(err, ERR_NUMERIC, "%s: tensor %.*s (%s): element %llu of row %llu is NaN or infinite; the file is damaged", gguf_part_path(g, t->part), (int)t->name.len, t->name.data,
                    type->name, (unsigned long long)(bad % t->ne[0]), (unsigned long long)(bad / t->ne[0]));
    }
    if (out)
        *out = seen;
    return seen.n_bad_tensors ? ERR_NUMERIC : 0;
}
