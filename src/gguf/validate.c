/* The search for numbers that are none. Invariant: what is counted is what decoding the tensor would show, also where only the scales are read. */
#include "gguf/validate.h"

#include <string.h>

#include "gguf/parse.h"
#include "gguf/quant.h"
#include "gguf/quant_decode.h"

#define PIECE_ELEMS 4096 /* a multiple of every block size */

/* Where a block's half-float scales stand. Where all bits of an exponent are set, every element of the block is NaN or infinite, and otherwise none is:
 * the largest half times the largest integers of a block stays far below the largest float. `second` is -1 where there is one scale. */
struct scale_fields {
    int16_t first, second;
};

static const struct scale_fields *scale_fields(uint32_t type)
{
    static const struct scale_fields fields[] = {
        [QUANT_Q4_0] = {0, -1},    [QUANT_Q4_1] = {0, 2},     [QUANT_Q5_0] = {0, -1},    [QUANT_Q5_1] = {0, 2},      [QUANT_Q8_0] = {0, -1},
        [QUANT_Q2_K] = {80, 82},   [QUANT_Q3_K] = {108, -1},  [QUANT_Q4_K] = {0, 2},     [QUANT_Q5_K] = {0, 2},      [QUANT_Q6_K] = {208, -1},
        [QUANT_IQ4_NL] = {0, -1},  [QUANT_IQ4_XS] = {0, -1},  [QUANT_IQ3_S] = {0, -1},   [QUANT_IQ3_XXS] = {0, -1},  [QUANT_IQ2_XXS] = {0, -1},
        [QUANT_IQ2_XS] = {0, -1},  [QUANT_IQ2_S] = {0, -1},   [QUANT_IQ1_S] = {0, -1},   [QUANT_TQ1_0] = {52, -1},   [QUANT_TQ2_0] = {64, -1},
    };
    return type < sizeof fields / sizeof *fields && fields[type].second ? &fields[type] : NULL;
}

static int is_bad_half(const uint8_t *p)
{
    return (read_u16(p) & 0x7C00) == 0x7C00;
}

static void note(struct gguf_bad_numbers *bad, uint64_t at, uint64_t n)
{
    if (bad->n == 0)
        bad->first = at;
    bad->n += n;
}

static void scan_scales(const struct gguf_tensor *t, const struct quant_type *type, const struct scale_fields *f, uint64_t n, struct gguf_bad_numbers *bad)
{
    const uint8_t *block = t->data;
    uint64_t elems = (uint64_t)type->block_elems;
    for (uint64_t at = 0; at < n; at += elems, block += type->block_bytes)
        if (is_bad_half(block + f->first) || (f->second >= 0 && is_bad_half(block + f->second)))
            note(bad, at, elems);
}

static void scan_floats(const float *values, size_t n, uint64_t at, struct gguf_bad_numbers *bad)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, values + i, sizeof bits);
        if ((bits & 0x7F800000u) == 0x7F800000u)
            note(bad, at + i, 1);
    }
}

/* Plain types, eight bytes at a time: adding the exponent's lowest bit to a full exponent carries into the place of the sign, which the mask left free. */
static int has_bad_lane(const uint8_t *p, size_t n_bytes, uint64_t mask, uint64_t lowest, uint64_t sign)
{
    uint64_t carried = 0;
    size_t at = 0;
    for (; at + 8 <= n_bytes; at += 8) {
        uint64_t word;
        memcpy(&word, p + at, 8);
        carried |= (word & mask) + lowest;
    }
    if (at < n_bytes) {
        uint64_t word = 0;
        memcpy(&word, p + at, n_bytes - at);
        carried |= (word & mask) + lowest;
    }
    return (carried & sign) != 0;
}

/* MXFP4: 2^(252 - 128) * 12 still fits a float. */
static int has_large_exponent(const uint8_t *block, size_t n_bytes)
{
    int large = 0;
    for (size_t at = 0; at < n_bytes; at += 17)
        large |= block[at] > 252;
    return large;
}

/* Whether a piece has to be decoded and looked at one by one. */
static int is_suspect(uint32_t type, const uint8_t *p, size_t n_bytes)
{
    switch (type) {
    case QUANT_F32:
        return has_bad_lane(p, n_bytes, 0x7F8000007F800000u, 0x0080000000800000u, 0x8000000080000000u);
    case QUANT_F16:
        return has_bad_lane(p, n_bytes, 0x7C007C007C007C00u, 0x0400040004000400u, 0x8000800080008000u);
    case QUANT_BF16:
        return has_bad_lane(p, n_bytes, 0x7F807F807F807F80u, 0x0080008000800080u, 0x8000800080008000u);
    case QUANT_MXFP4:
        return has_large_exponent(p, n_bytes);
    default:
        return 1;
    }
}

static void scan_values(const struct gguf_tensor *t, const struct quant_type *type, uint64_t n, struct gguf_bad_numbers *bad)
{
    float values[PIECE_ELEMS];
    const uint8_t *blocks = t->data;
    for (uint64_t at = 0; at < n; at += PIECE_ELEMS) {
        size_t some = n - at < PIECE_ELEMS ? (size_t)(n - at) : PIECE_ELEMS;
        size_t n_bytes = some / (size_t)type->block_elems * (size_t)type->block_bytes;
        if (is_suspect(t->type, blocks, n_bytes)) {
            type->decode(blocks, values, some);
            scan_floats(values, some, at, bad);
        }
        blocks += n_bytes;
    }
}

static uint64_t n_elements(const struct gguf_tensor *t)
{
    return t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3]; /* counted in 63 bits: the reader's check */
}

int gguf_validate_tensor(const struct gguf_tensor *t, struct gguf_bad_numbers *out)
{
    const struct quant_type *type = quant_type(t->type);
    if (!type || !type->decode || !t->data)
        return 0;
    const struct scale_fields *fields = scale_fields(t->type);
    uint64_t n = n_elements(t);
    struct gguf_bad_numbers bad = {.first = n};
    if (fields)
        scan_scales(t, type, fields, n, &bad);
    else
        scan_values(t, type, n, &bad);
    *out = bad;
    return 1;
}

int gguf_validate_data(const struct gguf *g, struct gguf_validation *out, struct err *err)
{
    struct gguf_validation seen = {0};
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        struct gguf_bad_numbers bad;
        char name[64];
        if (!gguf_validate_tensor(t, &bad))
            continue;
        seen.n_tensors++;
        seen.n_elements += n_elements(t);
        seen.n_bad_elements += bad.n;
        if (bad.n && seen.n_bad_tensors++ == 0)
            err_set(err, ERR_NUMERIC, "%s: tensor %s (%s): element %llu of row %llu is NaN or infinite, one of %llu such in this tensor; the file is damaged: download it again",
                    gguf_part_path(g, t->part), gguf_shown(t->name, name), quant_name(t->type), (unsigned long long)(bad.first % t->ne[0]),
                    (unsigned long long)(bad.first / t->ne[0]), (unsigned long long)bad.n);
    }
    if (out)
        *out = seen;
    return seen.n_bad_tensors ? ERR_NUMERIC : 0;
}
