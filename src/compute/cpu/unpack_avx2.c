/* Unpacking the block types that most files are made of, in registers. The numbers are those of unpack.h. */
#include <immintrin.h>
#include <string.h>

#include "compute/cpu/unpack_avx2.h"
#include "gguf/quant_decode.h"

static inline float half_at(const uint8_t *p)
{
    return _cvtsh_ss(read_u16(p));
}

/* Rows follow one another in memory: the lines that will be unpacked some 2 KB later. */
static inline void prefetch_ahead(const uint8_t *b, int bytes)
{
    for (int i = 0; i < bytes; i += 64)
        _mm_prefetch((const char *)b + 1024 + i, _MM_HINT_T0);
}

static inline __m256i load32(const uint8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

static inline void store32(uint8_t *p, __m256i v)
{
    _mm256_storeu_si256((__m256i *)p, v);
}

/* Nibbles of 32 bytes: the low ones, or the high ones. */
static inline __m256i low_nibbles(__m256i v)
{
    return _mm256_and_si256(v, _mm256_set1_epi8(15));
}

static inline __m256i high_nibbles(__m256i v)
{
    return _mm256_and_si256(_mm256_srli_epi16(v, 4), _mm256_set1_epi8(15));
}

/* Bit `bit` of each byte, moved to bit `to` (to >= 0). */
static inline __m256i bits_to(__m256i v, int bit, int mask, int to)
{
    return _mm256_slli_epi16(_mm256_and_si256(_mm256_srli_epi16(v, bit), _mm256_set1_epi8((char)mask)), to);
}

/* Eight scales, each over the eight lanes of its block, and eight minima, twice each. */
static inline void put_k_scales(const uint8_t *packed, float d, float dmin, float *scale, float *min)
{
    uint32_t u[3];
    memcpy(u, packed, 12);
    uint64_t sc = (u[0] & 0x3F3F3F3F) | (uint64_t)((u[2] & 0x0F0F0F0F) | (u[0] >> 6 & 0x03030303) << 4) << 32;
    uint64_t m = (u[1] & 0x3F3F3F3F) | (uint64_t)((u[2] >> 4 & 0x0F0F0F0F) | (u[1] >> 6 & 0x03030303) << 4) << 32;
    __m256 s = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)sc))), _mm256_set1_ps(d));
    __m256 n = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)m))), _mm256_set1_ps(dmin));
    for (int j = 0; j < 8; j++)
        _mm256_storeu_ps(scale + 8 * j, _mm256_permutevar8x32_ps(s, _mm256_set1_epi32(j)));
    _mm256_storeu_ps(min, _mm256_permutevar8x32_ps(n, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3)));
    _mm256_storeu_ps(min + 8, _mm256_permutevar8x32_ps(n, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7)));
}

void unpack_q4_k_avx2(const uint8_t *b, int64_t n, uint8_t *q, float *scale, float *min)
{
    for (int64_t k = 0; k < n; k += 256, b += 144, q += 256, scale += 64, min += 16) {
        prefetch_ahead(b, 144);
        put_k_scales(b + 4, half_at(b), half_at(b + 2), scale, min);
        for (int i = 0; i < 4; i++) {
            __m256i v = load32(b + 16 + 32 * i);
            store32(q + 64 * i, low_nibbles(v));
            store32(q + 64 * i + 32, high_nibbles(v));
        }
    }
}

void unpack_q5_k_avx2(const uint8_t *b, int64_t n, uint8_t *q, float *scale, float *min)
{
    for (int64_t k = 0; k < n; k += 256, b += 176, q += 256, scale += 64, min += 16) {
        prefetch_ahead(b, 176);
        __m256i high = load32(b + 16);
        put_k_scales(b + 4, half_at(b), half_at(b + 2), scale, min);
        for (int i = 0; i < 4; i++) {
            __m256i v = load32(b + 48 + 32 * i);
            store32(q + 64 * i, _mm256_or_si256(low_nibbles(v), bits_to(high, 2 * i, 1, 4)));
            store32(q + 64 * i + 32, _mm256_or_si256(high_nibbles(v), bits_to(high, 2 * i + 1, 1, 4)));
        }
    }
}

void unpack_q6_k_avx2(const uint8_t *b, int64_t n, uint8_t *q, float *scale, float *min)
{
    for (int64_t k = 0; k < n; k += 256, b += 210, q += 256, scale += 64, min += 16) {
        prefetch_ahead(b, 210);
        __m256 d = _mm256_set1_ps(half_at(b + 208)), offset = _mm256_set1_ps(32);
        __m128i bytes = _mm_loadu_si128((const __m128i *)(b + 192));
        for (int half = 0; half < 2; half++) {
            __m256i low0 = load32(b + 64 * half), low1 = load32(b + 64 * half + 32), high = load32(b + 128 + 32 * half);
            uint8_t *to = q + 128 * half;
            store32(to, _mm256_or_si256(low_nibbles(low0), bits_to(high, 0, 3, 4)));
            store32(to + 32, _mm256_or_si256(low_nibbles(low1), bits_to(high, 2, 3, 4)));
            store32(to + 64, _mm256_or_si256(high_nibbles(low0), bits_to(high, 4, 3, 4)));
            store32(to + 96, _mm256_or_si256(high_nibbles(low1), bits_to(high, 6, 3, 4)));
            __m256 s = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(half ? _mm_srli_si128(bytes, 8) : bytes)), d);
            _mm256_storeu_ps(min + 8 * half, _mm256_mul_ps(s, offset));
            for (int j = 0; j < 4; j++)
                _mm256_storeu_ps(scale + 32 * half + 8 * j, _mm256_permutevar8x32_ps(s, _mm256_setr_epi32(2 * j, 2 * j, 2 * j, 2 * j, 2 * j + 1, 2 * j + 1, 2 * j + 1, 2 * j + 1)));
        }
    }
}

void unpack_q8_0_avx2(const uint8_t *b, int64_t n, uint8_t *q, float *scale, float *min)
{
    (void)min;
    for (int64_t k = 0; k < n; k += 32, b += 34, q += 32, scale += 8) {
        _mm256_storeu_ps(scale, _mm256_set1_ps(half_at(b)));
        store32(q, load32(b + 2));
    }
}

void unpack_q4_0_avx2(const uint8_t *b, int64_t n, uint8_t *q, float *scale, float *min)
{
    for (int64_t k = 0; k < n; k += 32, b += 18, q += 32, scale += 8, min += 2) {
        float d = half_at(b);
        __m128i v = _mm_loadu_si128((const __m128i *)(b + 2));
        store32(q, low_nibbles(_mm256_set_m128i(_mm_srli_epi16(v, 4), v)));
        _mm256_storeu_ps(scale, _mm256_set1_ps(d));
        min[0] = min[1] = 8 * d;
    }
}
