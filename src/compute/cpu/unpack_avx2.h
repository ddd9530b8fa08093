/* AVX2 forms of the commonest unpackers; see unpack.h for what they do. */
#ifndef COMPUTE_CPU_UNPACK_AVX2_H
#define COMPUTE_CPU_UNPACK_AVX2_H

#include <stdint.h>

void unpack_q4_0_avx2(const uint8_t *row, int64_t n_in, uint8_t *q, float *scale, float *min);
void unpack_q8_0_avx2(const uint8_t *row, int64_t n_in, uint8_t *q, float *scale, float *min);
void unpack_q4_k_avx2(const uint8_t *row, int64_t n_in, uint8_t *q, float *scale, float *min);
void unpack_q5_k_avx2(const uint8_t *row, int64_t n_in, uint8_t *q, float *scale, float *min);
void unpack_q6_k_avx2(const uint8_t *row, int64_t n_in, uint8_t *q, float *scale, float *min);

#endif
