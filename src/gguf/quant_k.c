/* The K formats and IQ4_XS: 256 elements in sub-blocks of 16 or 32 with small integer scales under one or two half floats. */
#include "gguf/quant_decode.h"

void decode_q2_k(const void *blocks, float *out, size_t n)
{
    const uint8_t *b = blocks;
    for (size_t k = 0; k < n; k += 256, b += 84) {
        float d = read_f16(b + 80), dmin = read_f16(b + 82);
        for (int s = 0; s < 16; s++) {
            const uint8_t *q = b + 16 + 32 * (s / 8) + 16 * (s & 1);
            int shift = s & 6;
            float scale = d * (float)(b[s] & 15), min = dmin * (float)(b[s] >> 4);
            for (int l = 0; l < 16; l++)
                out[k + 16 * s + l] = scale * (float)(q[l] >> shift & 3) - min;
        }
    }
}

void decode_q3_k(const void *blocks, float *out, size_t n)
{
    const uint8_t *b = blocks;
    for (size_t k = 0; k < n; k += 256, b += 110) {
        float d = read_f16(b + 108);
        for (int s = 0; s < 16; s++) {
            const uint8_t *high = b + 16 * (s & 1), *q = b + 32 + 32 * (s / 8) + 16 * (s & 1);
            int shift = s & 6, bit = s / 2; /* 4 * half + j */
            float scale = d * (float)q3_k_scale(b + 96, s);
            for (int l = 0; l < 16; l++)
                out[k + 16 * s + l] = scale * (float)((q[l] >> shift & 3) - 4 + (high[l] >> bit & 1) * 4);
        }
    }
}

void decode_q4_k(const void *blocks, float *out, size_t n)
{
    const uint8_t *b = blocks;
    for (size_t k = 0; k < n; k += 256, b += 144) {
        float d = read_f16(b), dmin = read_f16(b + 2);
        for (int j = 0; j < 8; j++) {
            const uint8_t *q = b + 16 + 32 * (j / 2);
            int sc, m, shift = 4 * (j & 1);
            k_scale_min(b + 4, j, &sc, &m);
            float scale = d * (float)sc, min = dmin * (float)m;
            for (int l = 0; l < 32; l++)
                out[k + 32 * j + l] = scale * (float)(q[l] >> shift & 15) - min;
        }
    }
}

void decode_q5_k(const void *blocks, float *out, size_t n)
{
    const uint8_t *b = blocks;
    for (size_t k = 0; k < n; k += 256, b += 176) {
        float d = read_f16(b), dmin = read_f16(b + 2);
        for (int j = 0; j < 8; j++) {
            const uint8_t *q = b + 48 + 32 * (j / 2), *high = b + 16;
            int sc, m, shift = 4 * (j & 1);
            k_scale_min(b + 4, j, &sc, &m);
            float scale = d * (float)sc, min = dmin * (float)m;
            for (int l = 0; l < 32; l++)
                out[k + 32 * j + l] = scale * (float)((q[l] >> shift & 15) | (high[l] >> j & 1) << 4) - min;
        }
    }
}

void decode_q6_k(const void *blocks, float *out, size_t n)
{
    const uint8_t *b = blocks;
    for (size_t k = 0; k < n; k += 256, b += 210) {
        const int8_t *scales = (const int8_t *)b + 192;
        float d = read_f16(b + 208);
        for (int s = 0; s < 16; s++) {
            int half = s / 8, j = s % 8 / 2;
            const uint8_t *low = b + 64 * half + 32 * (j & 1) + 16 * (s & 1), *high = b + 128 + 32 * half + 16 * (s & 1);
            int low_shift = 4 * (j >> 1), high_shift = 2 * j;
            float scale = d * (float)scales[s];
            for (int l = 0; l < 16; l++)
                out[k + 16 * s + l] = scale * (float)(((low[l] >> low_shift & 15) | (high[l] >> high_shift & 3) << 4) - 32);
        }
    }
}

void decode_iq4_xs(const void *blocks, float *out, size_t n)
{
    const uint8_t *b = blocks;
    for (size_t k = 0; k < n; k += 256, b += 136) {
        float d = read_f16(b);
        int scales_high = read_u16(b + 2);
        for (int j = 0; j < 8; j++) {
            int scale = (b[4 + j / 2] >> (4 * (j & 1)) & 15) | (scales_high >> (2 * j) & 3) << 4;
            float dl = d * (float)(scale - 32);
            for (int l = 0; l < 16; l++) {
                uint8_t q = b[8 + 16 * j + l];
                out[k + 32 * j + l] = dl * (float)quant_iq4_values[q & 15];
                out[k + 32 * j + l + 16] = dl * (float)quant_iq4_values[q >> 4];
            }
        }
    }
}
