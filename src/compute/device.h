/* A device: where state and activations live and what runs the operations. The only header that other rooms see of the backends, together with op.h.
 * Owned by the engine thread. */
#ifndef COMPUTE_DEVICE_H
#define COMPUTE_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "compute/op.h"

enum device_kind { DEVICE_CPU, DEVICE_CUDA };

enum arithmetic {
    ARITHMETIC_DEFAULT, /* activations of matrix products may be quantised to int8 with a scale per 16 */
    ARITHMETIC_EXACT    /* f32 activations times decoded weights: the oracle */
};

struct device_options {
    enum device_kind kind;
    enum arithmetic arithmetic;
    int n_threads;          /* CPU; 0 = pool_default_threads() */
    const char *cpu_rung;   /* NULL = the best this machine runs; else "scalar", "avx2": ERR_DEVICE when not to be had, naming what is */
    int64_t max_rows;       /* rows of the largest batch: sizes the scratch for prepared activations */
    int64_t max_n_in;       /* largest n_in of any matmul */
};

struct device {
    const struct op_table *op;
    enum device_kind kind;
    enum arithmetic arithmetic;
    const char *rung;       /* "scalar", "avx2" */
    int n_threads;
    void *impl;             /* the backend's own */
};

int device_open(const struct device_options *options, struct device **out, struct err *err) MUST_CHECK;
void device_close(struct device *dev);

/* Scratch bytes that device_open will take for these options: part of the plan. */
size_t device_scratch_bytes(const struct device_options *options);

/* What the device has and what is free of it now, in bytes. For the CPU: the least of what the machine has available, of what every memory cgroup above this process leaves
 * (file pages that can be dropped count as free, as the machine's do), and of the address space that the process may still take. */
#define DEVICE_ADDRESS_SOURCE "ulimit -v"
struct device_memory {
    uint64_t total, free;
    const char *source;          /* what leaves the least: "MemAvailable", "cgroup memory.max", "cgroup memory.limit_in_bytes", DEVICE_ADDRESS_SOURCE */
    uint64_t memory_total, memory_free; /* the same without the address space, of which mapped files take and pages do not */
    const char *memory_source;
    uint64_t address_limit, address_free; /* UINT64_MAX when unlimited */
};
int device_memory(const struct device *dev, struct device_memory *out, struct err *err) MUST_CHECK;

/* Zeroed device memory, and reservations whose pages come later (see base/mem.h for the meaning). */
void *device_alloc(struct device *dev, enum mem_label label, size_t bytes);
void device_free(struct device *dev, void *p);
void *device_reserve(struct device *dev, size_t bytes);
int device_commit(struct device *dev, enum mem_label label, void *base, size_t from, size_t to) MUST_CHECK;
void device_decommit(struct device *dev, enum mem_label label, void *base, size_t from, size_t to);
void device_release(struct device *dev, enum mem_label label, void *base, size_t bytes, size_t committed);
void device_copy(struct device *dev, void *to, const void *from, size_t bytes);       /* within the device */
void device_zero(struct device *dev, void *p, size_t bytes);
void device_read(struct device *dev, void *host, const void *from, size_t bytes);     /* to host memory; waits */
void device_write(struct device *dev, void *to, const void *host, size_t bytes);      /* from host memory, which may change when it returns */

/* "scalar", "avx2", ... that this build has and this machine runs, best first, NULL at the end. */
const char *const *device_cpu_rungs(void);

#endif
