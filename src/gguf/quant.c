/* The type table and the formats of 32 elements and fewer. The order of the f32 operations is part of the definition: every decoder rounds as the formula is written. */
#include "gguf/quant.h"

#include <string.h>
#include <strings.h>

#include "gguf/quant_decode.h"

const int8_t quant_iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
const int8_t quant_fp4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

static float from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 0x3FF;
    if (exponent == 31)
        return from_bits(sign | 0x7F800000 | mantissa << 13);
    if (exponent)
        return from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
    float value = (float)mantissa * 0x1p-24f; /* subnormal or zero: exact */
    return sign ? -value : value;
}

uint16_t f32_to_f16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t sign = bits >> 16 & 0x8000, rest = bits & 0x7FFFFFFF;
    if (rest > 0x7F800000)
        return (uint16_t)(sign | 0x7E00);
    if (rest >= 0x477FF000) /* rounds to 65536 or more */
        return (uint16_t)(sign | 0x7C00);
    if (rest < 0x38800000) { /* below the smallest normal half: adding 0.5 puts the rounded result in the low bits */
        float magic = from_bits(rest) + 0.5f;
        memcpy(&bits, &magic, sizeof bits);
        return (uint16_t)(sign | (bits - 0x3F000000));
    }
    rest += 0xC8000FFF + (rest >> 13 & 1);
    return (uint16_t)(sign | rest >> 13);
}

static void decode_f32(const void *blocks, float *out, size_t n)
{
    memcpy(out, blocks, n * sizeof *out);
}

static void decode_f16(const void *blocks, float *out, size_t n)
{
    const uint8_t *b = blocks;
    for (size_t i = 0; i < n; i++)
        out[i] = read_f16(b + 2 * i);
}

static void decode_bf16(const void *blocks, float *out, size_t n)
{
    const uint8_t *b = blocks;
    for (size_t i = 0; i < n; i++)
        out[i] = bf16_to_f32(read_u16(b + 2 * i));
}

static void decode_q4_0(const void *blocks, float *out, size_t n)
{
    const uint8_t *b = blocks;
    for (size_t k = 0; k < n; k += 32, b += 18) {
        float d = read_f16(b);
        for (int i = 0; i < 16; i++) {
            out[k + i] = d * (float)((b[2 + i] & 15) - 8);
            out[k + i + 16] = d * (float)((b[2 + i] >> 4) - 8);
        }
    }
}

static void decode_q4_1(const void *blocks, float *out, size_t n)
{
    const uint8_t *b = blocks;
    for (size_t k = 0; k < n; k += 32, b += 20) {
        float d = read_f16(b), m = read_f16(b + 2);
        for (int i = 0; i < 16; i++) {
            out[k + i] = d * (float)(b[4 + i] & 15) + m;
            out[k + i + 16] = d * (float)(b[4 + i] >> 4) + m;
        }
    }
}

static void decode_q5_0(const void *blocks, float *out, size_t n)
{
    const uint8_t *b = blocks;
    for (size_t k = 0; k < n; k += 32, b += 22) {
        float d = read_f16(b);
        uint32_t high = read_u32(b + 2);
        for (int i = 0; i < 16; i++) {
            out[k + i] = d * (float)(((b[6 + i] & 15) | (int)(high >> i & 1) << 4) - 16);
            out[k + i + 16] = d * (float)(((b[6 + i] >> 4) | (int)(high >> (i + 16) & 1) << 4) - 16);
        }
    }
}

static void decode_q5_1(const void *blocks, float *out, size_t n)
{
    const uint8_t *b = blocks;
    for (size_t k = 0; k < n; k += 32, b += 24) {
        float d = read_f16(b), m = read_f16(b + 2);
        uint32_t high = read_u32(b + 4);
        for (int i = 0; i < 16; i++) {
            out[k + i] = d * (float)((b[8 + i] & 15) | (int)(high >> i & 1) << 4) + m;
            out[k + i + 16] = d * (float)((b[8 + i] >> 4) | (int)(high >> (i + 16) & 1) << 4) + m;
        }
    }
}

static void decode_q8_0(const void *blocks, float *out, size_t n)
{
    const uint8_t *b = blocks;
    for (size_t k = 0; k < n; k += 32, b += 34) {
        float d = read_f16(b);
        for (int i = 0; i < 32; i++)
            out[k + i] = d * (float)(int8_t)b[2 + i];
    }
}

static void decode_iq4_nl(const void *blocks, float *out, size_t n)
{
    const uint8_t *b = blocks;
    for (size_t k = 0; k < n; k += 32, b += 18) {
        float d = read_f16(b);
        for (int i = 0; i < 16; i++) {
            out[k + i] = d * (float)quant_iq4_values[b[2 + i] & 15];
            out[k + i + 16] = d * (float)quant_iq4_values[b[2 + i] >> 4];
        }
    }
}

/* 2^(e - 128), subnormal for the two smallest. */
static float e8m0_half(uint8_t e)
{
    return e < 2 ? from_bits(0x00200000u << e) : from_bits((uint32_t)(e - 1) << 23);
}

static void decode_mxfp4(const void *blocks, float *out, size_t n)
{
    const uint8_t *b = blocks;
    for (size_t k = 0; k < n; k += 32, b += 17) {
        float d = e8m0_half(b[0]);
        for (int i = 0; i < 16; i++) {
            out[k + i] = d * (float)quant_fp4_values[b[1 + i] & 15];
            out[k + i + 16] = d * (float)quant_fp4_values[b[1 + i] >> 4];
        }
    }
}

static const struct quant_type types[] = {
    {QUANT_F32, "F32", 1, 4, decode_f32},
    {QUANT_F16, "F16", 1, 2, decode_f16},
    {QUANT_Q4_0, "Q4_0", 32, 18, decode_q4_0},
    {QUANT_Q4_1, "Q4_1", 32, 20, decode_q4_1},
    {QUANT_Q5_0, "Q5_0", 32, 22, decode_q5_0},
    {QUANT_Q5_1, "Q5_1", 32, 24, decode_q5_1},
    {QUANT_Q8_0, "Q8_0", 32, 34, decode_q8_0},
    {QUANT_Q8_1, "Q8_1", 32, 36, NULL},
    {QUANT_Q2_K, "Q2_K", 256, 84, decode_q2_k},
    {QUANT_Q3_K, "Q3_K", 256, 110, decode_q3_k},
    {QUANT_Q4_K, "Q4_K", 256, 144, decode_q4_k},
    {QUANT_Q5_K, "Q5_K", 256, 176, decode_q5_k},
    {QUANT_Q6_K, "Q6_K", 256, 210, decode_q6_k},
    {QUANT_Q8_K, "Q8_K", 256, 292, NULL},
    {QUANT_IQ2_XXS, "IQ2_XXS", 256, 66, decode_iq2_xxs},
    {QUANT_IQ2_XS, "IQ2_XS", 256, 74, decode_iq2_xs},
    {QUANT_IQ3_XXS, "IQ3_XXS", 256, 98, decode_iq3_xxs},
    {QUANT_IQ1_S, "IQ1_S", 256, 50, decode_iq1_s},
    {QUANT_IQ4_NL, "IQ4_NL", 32, 18, decode_iq4_nl},
    {QUANT_IQ3_S, "IQ3_S", 256, 110, decode_iq3_s},
    {QUANT_IQ2_S, "IQ2_S", 256, 82, decode_iq2_s},
    {QUANT_IQ4_XS, "IQ4_XS", 256, 136, decode_iq4_xs},
    {QUANT_I8, "I8", 1, 1, NULL},
    {QUANT_I16, "I16", 1, 2, NULL},
    {QUANT_I32, "I32", 1, 4, NULL},
    {QUANT_I64, "I64", 1, 8, NULL},
    {QUANT_F64, "F64", 1, 8, NULL},
    {QUANT_IQ1_M, "IQ1_M", 256, 56, decode_iq1_m},
    {QUANT_BF16, "BF16", 1, 2, decode_bf16},
    {QUANT_TQ1_0, "TQ1_0", 256, 54, decode_tq1_0},
    {QUANT_TQ2_0, "TQ2_0", 256, 66, decode_tq2_0},
    {QUANT_MXFP4, "MXFP4", 32, 17, decode_mxfp4},
    {QUANT_NVFP4, "NVFP4", 64, 36, NULL}, /* needs its companion scale tensors: refused by name */
    {QUANT_Q1_0, "Q1_0", 128, 18, NULL},
    {QUANT_Q2_0, "Q2_0", 64, 18, NULL},
};

#define N_TYPES (sizeof types / sizeof *types)

const struct quant_type *quant_type(uint32_t id)
{
    for (size_t i = 0; i < N_TYPES; i++)
        if (types[i].id == id)
            return &types[i];
    return NULL;
}

const struct quant_type *quant_type_by_name(const char *name)
{
    for (size_t i = 0; i < N_TYPES; i++)
        if (strcasecmp(types[i].name, name) == 0)
            return &types[i];
    return NULL;
}

const char *quant_name(uint32_t id)
{
    const struct quant_type *type = quant_type(id);
    return type ? type->name : "?";
}

size_t quant_row_bytes(uint32_t id, uint64_t n)
{
    const struct quant_type *type = quant_type(id);
    return type ? (size_t)(n / (uint64_t)type->block_elems) * (size_t)type->block_bytes : 0;
}
