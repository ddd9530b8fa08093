/* Block formats of tensors, and the scalar decode that defines what they mean (docs/model.md "Block formats"). Pure functions. */
#ifndef GGUF_QUANT_H
#define GGUF_QUANT_H

#include <stddef.h>
#include <stdint.h>

enum quant_id {
    QUANT_F32 = 0, QUANT_F16 = 1, QUANT_Q4_0 = 2, QUANT_Q4_1 = 3, QUANT_Q5_0 = 6, QUANT_Q5_1 = 7, QUANT_Q8_0 = 8, QUANT_Q8_1 = 9, QUANT_Q2_K = 10,
    QUANT_Q3_K = 11, QUANT_Q4_K = 12, QUANT_Q5_K = 13, QUANT_Q6_K = 14, QUANT_Q8_K = 15, QUANT_IQ2_XXS = 16, QUANT_IQ2_XS = 17, QUANT_IQ3_XXS = 18,
    QUANT_IQ1_S = 19, QUANT_IQ4_NL = 20, QUANT_IQ3_S = 21, QUANT_IQ2_S = 22, QUANT_IQ4_XS = 23, QUANT_I8 = 24, QUANT_I16 = 25, QUANT_I32 = 26,
    QUANT_I64 = 27, QUANT_F64 = 28, QUANT_IQ1_M = 29, QUANT_BF16 = 30, QUANT_TQ1_0 = 34, QUANT_TQ2_0 = 35, QUANT_MXFP4 = 39, QUANT_NVFP4 = 40,
    QUANT_Q1_0 = 41, QUANT_Q2_0 = 42
};

struct quant_type {
    uint32_t id;
    const char *name;     /* "Q4_K" */
    int block_elems;
    int block_bytes;
    /* Decodes n elements (a multiple of block_elems) from unaligned blocks; NULL: the type is known and cannot be a weight here. */
    void (*decode)(const void *blocks, float *out, size_t n);
};

/* NULL for ids that are removed or unknown. */
const struct quant_type *quant_type(uint32_t id);
const struct quant_type *quant_type_by_name(const char *name); /* case-insensitive */
const char *quant_name(uint32_t id);                            /* "?" when unknown */

/* Bytes of a row of n elements; n must be a multiple of the block. */
size_t quant_row_bytes(uint32_t id, uint64_t n);

float f16_to_f32(uint16_t bits);
uint16_t f32_to_f16(float value); /* round to nearest even */
static inline float bf16_to_f32(uint16_t bits)
{
    union {
        uint32_t u;
        float f;
    } v = {.u = (uint32_t)bits << 16};
    return v.f;
}

#endif
