/* Unpacking quantised rows into panels: w = scale * q - min with q in 0..63 or so, a scale and a minimum per 16. Plain loops over bytes; each rung's file includes this
 * and compiles it with its own flags. */
#ifndef COMPUTE_CPU_UNPACK_H
#define COMPUTE_CPU_UNPACK_H

#include <string.h>

#include "compute/cpu/kernels.h"
#include "gguf/quant.h"
#include "gguf/quant_decode.h"

static inline void put_scales(float *scale, float first, float second)
{
    for (int i = 0; i < 4; i++) {
        scale[i] = first;
        scale[i + 4] = second;
    }
}

static inline void put_uniform(float *scale, float *min, float s, float m)
{
    put_scales(scale, s, s);
    min[0] = min[1] = m;
}

static void unpack_q4_0(const uint8_t *b, int64_t n, uint8_t *q, float *scale, float *min)
{
    for (int64_t k = 0; k < n; k += 32, b += 18, q += 32, scale += 8, min += 2) {
        float d = read_f16(b);
        for (int i = 0; i < 16; i++) {
            q[i] = b[2 + i] & 15;
            q[i + 16] = b[2 + i] >> 4;
        }
        put_uniform(scale, min, d, 8 * d);
    }
}

static void unpack_q4_1(const uint8_t *b, int64_t n, uint8_t *q, float *scale, float *min)
{
    for (int64_t k = 0; k < n; k += 32, b += 20, q += 32, scale += 8, min += 2) {
        for (int i = 0; i < 16; i++) {
            q[i] = b[4 + i] & 15;
            q[i + 16] = b[4 + i] >> 4;
        }
        put_uniform(scale, min, read_f16(b), -read_f16(b + 2));
    }
}

static inline void put_q5(const uint8_t *low, uint32_t high, uint8_t *q)
{
    for (int i = 0; i < 16; i++) {
        q[i] = (uint8_t)((low[i] & 15) | (high >> i & 1) << 4);
        q[i + 16] = (uint8_t)(low[i] >> 4 | (high >> (i + 16) & 1) << 4);
    }
}

static void unpack_q5_0(const uint8_t *b, int64_t n, uint8_t *q, float *scale, float *min)
{
    for (int64_t k = 0; k < n; k += 32, b += 22, q += 32, scale += 8, min += 2) {
        float d = read_f16(b);
        put_q5(b + 6, read_u32(b + 2), q);
        put_uniform(scale, min, d, 16 * d);
    }
}

static void unpack_q5_1(const uint8_t *b, int64_t n, uint8_t *q, float *scale, float *min)
{
    for (int64_t k = 0; k < n; k += 32, b += 24, q += 32, scale += 8, min += 2) {
        put_q5(b + 8, read_u32(b + 4), q);
        put_uniform(scale, min, read_f16(b), -read_f16(b + 2));
    }
}

static void unpack_q8_0(const uint8_t *b, int64_t n, uint8_t *q, float *scale, float *min)
{
    (void)min;
    for (int64_t k = 0; k < n; k += 32, b += 34, q += 32, scale += 8) {
        float d = read_f16(b);
        memcpy(q, b + 2, 32);
        put_scales(scale, d, d);
    }
}

static inline void put_codebook(const uint8_t *b, const int8_t values[16], uint8_t *q)
{
    for (int i = 0; i < 16; i++) {
        q[i] = (uint8_t)values[b[i] & 15];
        q[i + 16] = (uint8_t)values[b[i] >> 4];
    }
}

static void unpack_iq4_nl(const uint8_t *b, int64_t n, uint8_t *q, float *scale, float *min)
{
    (void)min;
    for (int64_t k = 0; k < n; k += 32, b += 18, q += 32, scale += 8) {
        float d = read_f16(b);
        put_codebook(b + 2, quant_iq4_values, q);
        put_scales(scale, d, d);
    }
}

static void unpack_mxfp4(const uint8_t *b, int64_t n, uint8_t *q, float *scale, float *min)
{
    (void)min;
    for (int64_t k = 0; k < n; k += 32, b += 17, q += 32, scale += 8) {
        union {
            uint32_t u;
            float f;
        } d = {.u = b[0] < 2 ? 0x00200000u << b[0] : (uint32_t)(b[0] - 1) << 23}; /* 2^(e - 128) */
        put_codebook(b + 1, quant_fp4_values, q);
        put_scales(scale, d.f, d.f);
    }
}

static void unpack_iq4_xs(const uint8_t *b, int64_t n, uint8_t *q, float *scale, float *min)
{
    (void)min;
    for (int64_t k = 0; k < n; k += 256, b += 136) {
        float d = read_f16(b);
        int high = read_u16(b + 2);
        for (int j = 0; j < 8; j++, q += 32, scale += 8) {
            int s = (b[4 + j / 2] >> (4 * (j & 1)) & 15) | (high >> (2 * j) & 3) << 4;
            put_codebook(b + 8 + 16 * j, quant_iq4_values, q);
            put_scales(scale, d * (float)(s - 32), d * (float)(s - 32));
        }
    }
}

static void unpack_q4_k(const uint8_t *b, int64_t n, uint8_t *q, float *scale, float *min)
{
    for (int64_t k = 0; k < n; k += 256, b += 144) {
        float d = read_f16(b), dmin = read_f16(b + 2);
        for (int j = 0; j < 8; j++, q += 32, scale += 8, min += 2) {
            const uint8_t *low = b + 16 + 32 * (j / 2);
            int sc, m;
            k_scale_min(b + 4, j, &sc, &m);
            if (j & 1)
                for (int l = 0; l < 32; l++)
                    q[l] = low[l] >> 4;
            else
                for (int l = 0; l < 32; l++)
                    q[l] = low[l] & 15;
            put_uniform(scale, min, d * (float)sc, dmin * (float)m);
        }
    }
}

static void unpack_q5_k(const uint8_t *b, int64_t n, uint8_t *q, float *scale, float *min)
{
    for (int64_t k = 0; k < n; k += 256, b += 176) {
        float d = read_f16(b), dmin = read_f16(b + 2);
        for (int j = 0; j < 8; j++, q += 32, scale += 8, min += 2) {
            const uint8_t *low = b + 48 + 32 * (j / 2), *high = b + 16;
            int sc, m, shift = 4 * (j & 1);
            k_scale_min(b + 4, j, &sc, &m);
            for (int l = 0; l < 32; l++)
                q[l] = (uint8_t)((low[l] >> shift & 15) | (high[l] >> j & 1) << 4);
            put_uniform(scale, min, d * (float)sc, dmin * (float)m);
        }
    }
}

static void unpack_q6_k(const uint8_t *b, int64_t n, uint8_t *q, float *scale, float *min)
{
    for (int64_t k = 0; k < n; k += 256, b += 210) {
        const int8_t *s = (const int8_t *)b + 192;
        float d = read_f16(b + 208);
        for (int j = 0; j < 8; j++, q += 32, scale += 8, min += 2) {
            int half = j / 4, part = j % 4, low_shift = 4 * (part >> 1), high_shift = 2 * part;
            const uint8_t *low = b + 64 * half + 32 * (part & 1), *high = b + 128 + 32 * half;
            for (int l = 0; l < 32; l++)
                q[l] = (uint8_t)((low[l] >> low_shift & 15) | (high[l] >> high_shift & 3) << 4);
            float first = d * (float)s[2 * j], second = d * (float)s[2 * j + 1];
            put_scales(scale, first, second);
            min[0] = 32 * first;
            min[1] = 32 * second;
        }
    }
}

static void unpack_q3_k(const uint8_t *b, int64_t n, uint8_t *q, float *scale, float *min)
{
    for (int64_t k = 0; k < n; k += 256, b += 110) {
        float d = read_f16(b + 108);
        for (int j = 0; j < 8; j++, q += 32, scale += 8, min += 2) {
            int half = j / 4, part = j % 4;
            for (int l = 0; l < 32; l++)
                q[l] = (uint8_t)((b[32 + 32 * half + l] >> (2 * part) & 3) | (b[l] >> j & 1) << 2);
            float first = d * (float)q3_k_scale(b + 96, 2 * j), second = d * (float)q3_k_scale(b + 96, 2 * j + 1);
            put_scales(scale, first, second);
            min[0] = 4 * first;
            min[1] = 4 * second;
        }
    }
}

static void unpack_q2_k(const uint8_t *b, int64_t n, uint8_t *q, float *scale, float *min)
{
    for (int64_t k = 0; k < n; k += 256, b += 84) {
        float d = read_f16(b + 80), dmin = read_f16(b + 82);
        for (int j = 0; j < 8; j++, q += 32, scale += 8, min += 2) {
            int half = j / 4, part = j % 4;
            for (int l = 0; l < 32; l++)
                q[l] = b[16 + 32 * half + l] >> (2 * part) & 3;
            put_scales(scale, d * (float)(b[2 * j] & 15), d * (float)(b[2 * j + 1] & 15));
            min[0] = dmin * (float)(b[2 * j] >> 4);
            min[1] = dmin * (float)(b[2 * j + 1] >> 4);
        }
    }
}

static void unpack_fill(struct cpu_kernels *k)
{
    static const struct {
        int id;
        unpack_fn *fn;
        int is_signed;
    } all[] = {
        {QUANT_Q4_0, unpack_q4_0, 0},     {QUANT_Q4_1, unpack_q4_1, 0},     {QUANT_Q5_0, unpack_q5_0, 0}, {QUANT_Q5_1, unpack_q5_1, 0},
        {QUANT_Q8_0, unpack_q8_0, 1},     {QUANT_Q2_K, unpack_q2_k, 0},     {QUANT_Q3_K, unpack_q3_k, 0}, {QUANT_Q4_K, unpack_q4_k, 0},
        {QUANT_Q5_K, unpack_q5_k, 0},     {QUANT_Q6_K, unpack_q6_k, 0},     {QUANT_IQ4_NL, unpack_iq4_nl, 1}, {QUANT_IQ4_XS, unpack_iq4_xs, 1},
        {QUANT_MXFP4, unpack_mxfp4, 1},
    };
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) {
        k->unpack[all[i].id].fn = all[i].fn;
        k->unpack[all[i].id].is_signed = all[i].is_signed;
    }
}

#endif
