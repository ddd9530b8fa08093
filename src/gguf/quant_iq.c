/* Codebook and ternary formats: an index chooses 8 (or 4) small values from a grid, a sign byte and a scale follow. */
#include "gguf/iq_grids.h"
#include "gguf/quant_decode.h"

/* The sign byte of a 7-bit index: its eighth bit makes the number of ones even. */
static uint8_t sign_byte(unsigned index)
{
    return (uint8_t)(index | (unsigned)__builtin_parity(index) << 7);
}

/* n_values values of `bits` bits each, packed in a grid entry, times scale, negated where signs has a one. */
static void put_grid(float *out, uint16_t entry, int n_values, int bits, const int8_t *values, float scale, unsigned signs)
{
    for (int i = 0; i < n_values; i++) {
        float value = scale * (float)values[entry >> (bits * i) & ((1 << bits) - 1)];
        out[i] = signs >> i & 1 ? -value : value;
    }
}

void decode_iq2_xxs(const void *blocks, float *out, size_t n)
{
    const uint8_t *b = blocks;
    for (size_t k = 0; k < n; k += 256, b += 66) {
        float d = read_f16(b);
        for (int ib = 0; ib < 8; ib++) {
            const uint8_t *q = b + 2 + 8 * ib;
            uint32_t w = read_u32(q + 4);
            float scale = d * (0.5f + (float)(w >> 28)) * 0.25f;
            for (int l = 0; l < 4; l++)
                put_grid(out + k + 32 * ib + 8 * l, iq2_xxs_grid[q[l]], 8, 2, iq2_xxs_values, scale, sign_byte(w >> (7 * l) & 127));
        }
    }
}

void decode_iq2_xs(const void *blocks, float *out, size_t n)
{
    const uint8_t *b = blocks;
    for (size_t k = 0; k < n; k += 256, b += 74) {
        float d = read_f16(b);
        for (int i = 0; i < 32; i++) { /* groups of 8 */
            unsigned q = read_u16(b + 2 + 2 * i);
            unsigned nibble = b[66 + i / 4] >> (4 * (i % 4 / 2)) & 15;
            float scale = d * (0.5f + (float)nibble) * 0.25f;
            put_grid(out + k + 8 * i, iq2_xs_grid[q & 511], 8, 2, iq2_xs_values, scale, sign_byte(q >> 9));
        }
    }
}

void decode_iq2_s(const void *blocks, float *out, size_t n)
{
    const uint8_t *b = blocks;
    for (size_t k = 0; k < n; k += 256, b += 82) {
        float d = read_f16(b);
        for (int i = 0; i < 32; i++) {
            unsigned index = b[2 + i] | (unsigned)(b[66 + i / 4] >> (2 * (i % 4)) & 3) << 8;
            unsigned nibble = b[74 + i / 4] >> (4 * (i % 4 / 2)) & 15;
            float scale = d * (0.5f + (float)nibble) * 0.25f;
            put_grid(out + k + 8 * i, iq2_s_grid[index], 8, 2, iq2_s_values, scale, b[34 + i]);
        }
    }
}

void decode_iq3_xxs(const void *blocks, float *out, size_t n)
{
    const uint8_t *b = blocks;
    for (size_t k = 0; k < n; k += 256, b += 98) {
        float d = read_f16(b);
        for (int ib = 0; ib < 8; ib++) {
            uint32_t w = read_u32(b + 66 + 4 * ib);
            float scale = d * (0.5f + (float)(w >> 28)) * 0.5f;
            for (int l = 0; l < 4; l++) {
                const uint8_t *q = b + 2 + 8 * ib + 2 * l;
                unsigned signs = sign_byte(w >> (7 * l) & 127);
                put_grid(out + k + 32 * ib + 8 * l, iq3_xxs_grid[q[0]], 4, 3, iq3_xxs_values, scale, signs);
                put_grid(out + k + 32 * ib + 8 * l + 4, iq3_xxs_grid[q[1]], 4, 3, iq3_xxs_values, scale, signs >> 4);
            }
        }
    }
}

void decode_iq3_s(const void *blocks, float *out, size_t n)
{
    const uint8_t *b = blocks;
    for (size_t k = 0; k < n; k += 256, b += 110) {
        float d = read_f16(b);
        for (int i = 0; i < 64; i++) { /* groups of 4 */
            unsigned index = b[2 + i] | (unsigned)(b[66 + i / 8] >> (i % 8) & 1) << 8;
            unsigned nibble = b[106 + i / 16] >> (4 * (i / 8 % 2)) & 15;
            put_grid(out + k + 4 * i, iq3_s_grid[index], 4, 3, iq3_s_values, d * (float)(1 + 2 * nibble), (unsigned)b[74 + i / 2] >> (4 * (i & 1)));
        }
    }
}

static void put_ternary(float *out, unsigned index, float scale, float delta)
{
    for (int i = 0; i < 8; i++)
        out[i] = scale * ((float)iq1_s_values[iq1_s_grid[index] >> (2 * i) & 3] + delta);
}

void decode_iq1_s(const void *blocks, float *out, size_t n)
{
    const uint8_t *b = blocks;
    for (size_t k = 0; k < n; k += 256, b += 50) {
        float d = read_f16(b);
        for (int i = 0; i < 32; i++) {
            unsigned high = read_u16(b + 34 + 2 * (i / 4));
            unsigned index = b[2 + i] | (high >> (3 * (i % 4)) & 7) << 8;
            put_ternary(out + k + 8 * i, index, d * (float)(2 * (high >> 12 & 7) + 1), high & 0x8000 ? -0.125f : 0.125f);
        }
    }
}

void decode_iq1_m(const void *blocks, float *out, size_t n)
{
    const uint8_t *b = blocks;
    for (size_t k = 0; k < n; k += 256, b += 56) {
        unsigned half = 0;
        for (int i = 0; i < 4; i++) /* the block's scale is spread over the top nibbles of the four scale words */
            half |= (unsigned)(read_u16(b + 48 + 2 * i) >> 12) << (4 * i);
        float d = f16_to_f32((uint16_t)half);
        for (int i = 0; i < 32; i++) {
            unsigned high = b[32 + i / 2] >> (4 * (i & 1)) & 15;
            unsigned scale = read_u16(b + 48 + 2 * (i / 8)) >> (3 * (i / 2 % 4)) & 7;
            put_ternary(out + k + 8 * i, b[i] | (high & 7) << 8, d * (float)(2 * scale + 1), high & 8 ? -0.125f : 0.125f);
        }
    }
}

void decode_tq1_0(const void *blocks, float *out, size_t n)
{
    static const uint8_t power[5] = {1, 3, 9, 27, 81};
    const uint8_t *b = blocks;
    for (size_t k = 0; k < n; k += 256, b += 54) {
        float d = read_f16(b + 52);
        for (int i = 0; i < 256; i++) {
            unsigned byte = i < 160 ? b[i % 32] : i < 240 ? b[32 + (i - 160) % 16] : b[48 + (i - 240) % 4];
            unsigned digit = i < 160 ? (unsigned)i / 32 : i < 240 ? (unsigned)(i - 160) / 16 : (unsigned)(i - 240) / 4;
            unsigned v = byte * power[digit] & 255;
            out[k + i] = d * (float)((int)(v * 3 >> 8) - 1);
        }
    }
}

void decode_tq2_0(const void *blocks, float *out, size_t n)
{
    const uint8_t *b = blocks;
    for (size_t k = 0; k < n; k += 256, b += 66) {
        float d = read_f16(b + 64);
        for (int i = 0; i < 256; i++)
            out[k + i] = d * (float)((b[32 * (i / 128) + i % 32] >> (2 * (i % 128 / 32)) & 3) - 1);
    }
}
