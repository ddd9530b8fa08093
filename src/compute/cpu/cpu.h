/* The CPU backend, as compute/device.c opens it. */
#ifndef COMPUTE_CPU_CPU_H
#define COMPUTE_CPU_CPU_H

#include "base/pool.h"
#include "compute/cpu/kernels.h"
#include "compute/device.h"

struct cpu {
    struct pool *pool;
    struct cpu_kernels kernels;
    struct act act;             /* of the matmul that runs */
    uint8_t *panels;            /* one per thread */
    size_t panel_bytes;
    int64_t max_rows, max_n_in;
};

extern const struct op_table cpu_op_table;

/* Rungs this machine runs, best first, NULL at the end. */
const char *const *cpu_rungs(void);
/* ERR_DEVICE when the rung is not to be had. */
int cpu_kernels_choose(const char *rung, struct cpu_kernels *out, struct err *err) MUST_CHECK;

int cpu_open(const struct device_options *options, struct cpu **out, struct err *err) MUST_CHECK;
void cpu_close(struct cpu *cpu);
size_t cpu_scratch_bytes(const struct device_options *options);

#endif
