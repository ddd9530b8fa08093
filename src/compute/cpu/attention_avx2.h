/* The AVX2 forms of keys, values and attention; see kernels.h for what they do. */
#ifndef COMPUTE_CPU_ATTENTION_AVX2_H
#define COMPUTE_CPU_ATTENTION_AVX2_H

#include "compute/cpu/kernels.h"

void kv_pack_avx2(enum kv_type type, const float *x, int64_t n, void *out);
void attention_avx2(const struct attention_tile *a);

#endif
