/* Decoders of the block families, for the table in quant.c. Blocks are unaligned bytes: fields are read byte by byte. */
#ifndef GGUF_QUANT_DECODE_H
#define GGUF_QUANT_DECODE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "gguf/quant.h"

static inline uint16_t read_u16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}
static inline uint32_t read_u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
static inline float read_f16(const uint8_t *p)
{
    return f16_to_f32(read_u16(p));
}

extern const int8_t quant_iq4_values[16];  /* IQ4_NL, IQ4_XS */
extern const int8_t quant_fp4_values[16];  /* E2M1 doubled */

void decode_q2_k(const void *blocks, float *out, size_t n);
void decode_q3_k(const void *blocks, float *out, size_t n);
void decode_q4_k(const void *blocks, float *out, size_t n);
void decode_q5_k(const void *blocks, float *out, size_t n);
void decode_q6_k(const void *blocks, float *out, size_t n);
void decode_iq4_xs(const void *blocks, float *out, size_t n);
void decode_iq2_xxs(const void *blocks, float *out, size_t n);
void decode_iq2_xs(const void *blocks, float *out, size_t n);
void decode_iq2_s(const void *blocks, float *out, size_t n);
void decode_iq3_xxs(const void *blocks, float *out, size_t n);
void decode_iq3_s(const void *blocks, float *out, size_t n);
void decode_iq1_s(const void *blocks, float *out, size_t n);
void decode_iq1_m(const void *blocks, float *out, size_t n);
void decode_tq1_0(const void *blocks, float *out, size_t n);
void decode_tq2_0(const void *blocks, float *out, size_t n);

/* The 6-bit scale and minimum of sub-block j (0..7) of Q4_K and Q5_K. */
static inline void k_scale_min(const uint8_t *s, int j, int *scale, int *min)
{
    if (j < 4) {
        *scale = s[j] & 63;
        *min = s[j + 4] & 63;
    } else {
        *scale = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
        *min = s[j + 4] >> 4 | (s[j] >> 6) << 4;
    }
}

/* The 6-bit scale of sub-block s (0..15) of Q3_K, less its offset. */
static inline int q3_k_scale(const uint8_t *scales, int s)
{
    int low = s < 8 ? scales[s] & 15 : scales[s - 8] >> 4;
    int high = scales[8 + s % 4] >> (2 * (s / 4)) & 3;
    return (low | high << 4) - 32;
}

#endif
