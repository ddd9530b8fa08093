/* Opening a device and its memory. The only file that knows the backends. */
#include "compute/device.h"

#include <string.h>
#include <sys/resource.h>

#include "compute/cpu/cpu.h"
#include "compute/memory.h"

int device_open(const struct device_options *options, struct device **out, struct err *err)
{
    if (options->kind != DEVICE_CPU)
        return err_set(err, ERR_DEVICE, "this build of apr has no CUDA backend; use --no-gpu to run on the CPU");
    struct device *dev = mem_alloc(MEM_WORKSPACE, sizeof *dev);
    struct cpu *cpu = NULL;
    if (!dev)
        return err_set(err, ERR_NO_MEMORY, "out of memory for the device");
    int rc = cpu_open(options, &cpu, err);
    if (rc < 0) {
        mem_free(dev);
        return rc;
    }
    *dev = (struct device){.op = &cpu_op_table, .kind = DEVICE_CPU, .arithmetic = options->arithmetic, .rung = cpu->kernels.name, .n_threads = pool_n_threads(cpu->pool), .impl = cpu};
    *out = dev;
    return 0;
}

void device_close(struct device *dev)
{
    if (!dev)
        return;
    cpu_close(dev->impl);
    mem_free(dev);
}

size_t device_scratch_bytes(const struct device_options *options)
{
    return cpu_scratch_bytes(options);
}

const char *const *device_cpu_rungs(void)
{
    return cpu_rungs();
}

int device_memory(const struct device *dev, struct device_memory *out, struct err *err)
{
    struct rlimit limit;
    (void)dev;
    int limited = getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
    return memory_survey("", limited ? (uint64_t)limit.rlim_cur : UINT64_MAX, out, err);
}

void *device_alloc(struct device *dev, enum mem_label label, size_t bytes)
{
    (void)dev;
    return mem_alloc_aligned(label, bytes);
}

void device_free(struct device *dev, void *p)
{
    (void)dev;
    mem_free(p);
}

void *device_reserve(struct device *dev, size_t bytes)
{
    (void)dev;
    return mem_reserve(bytes);
}

int device_commit(struct device *dev, enum mem_label label, void *base, size_t from, size_t to)
{
    (void)dev;
    return mem_commit(label, base, from, to);
}

void device_decommit(struct device *dev, enum mem_label label, void *base, size_t from, size_t to)
{
    (void)dev;
    mem_decommit(label, base, from, to);
}

void device_release(struct device *dev, enum mem_label label, void *base, size_t bytes, size_t committed)
{
    (void)dev;
    mem_release(label, base, bytes, committed);
}

void device_copy(struct device *dev, void *to, const void *from, size_t bytes)
{
    (void)dev;
    memcpy(to, from, bytes);
}

void device_zero(struct device *dev, void *p, size_t bytes)
{
    (void)dev;
    memset(p, 0, bytes);
}

void device_read(struct device *dev, void *host, const void *from, size_t bytes)
{
    (void)dev;
    memcpy(host, from, bytes);
}

void device_write(struct device *dev, void *to, const void *host, size_t bytes)
{
    (void)dev;
    memcpy(to, host, bytes);
}
