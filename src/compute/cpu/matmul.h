/* Matrix products of the CPU backend. */
#ifndef COMPUTE_CPU_MATMUL_H
#define COMPUTE_CPU_MATMUL_H

#include "compute/device.h"

void cpu_matmul(struct device *dev, const struct weight *const *w, float *const *out, int n_w, const float *x, int64_t n);

#endif
