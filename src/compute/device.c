/* Opening a device and its memory. The only file that knows the backends. */
#include "compute/device.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "compute/cpu/cpu.h"

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

/* "Name:   123 kB" of /proc/meminfo, in bytes; 0 when it is not there. */
static uint64_t meminfo(const char *name)
{
    char line[256];
    uint64_t bytes = 0;
    FILE *file = fopen("/proc/meminfo", "r");
    if (!file)
        return 0;
    size_t n = strlen(name);
    while (fgets(line, sizeof line, file))
        if (strncmp(line, name, n) == 0 && line[n] == ':') {
            bytes = strtoull(line + n + 1, NULL, 10) * 1024;
            break;
        }
    fclose(file);
    return bytes;
}

static uint64_t read_number(const char *path)
{
    char text[64] = "";
    FILE *file = fopen(path, "r");
    if (!file)
        return UINT64_MAX;
    char *line = fgets(text, sizeof text, file);
    fclose(file);
    return line && text[0] >= '0' && text[0] <= '9' ? strtoull(text, NULL, 10) : UINT64_MAX;
}

int device_memory(const struct device *dev, struct device_memory *out, struct err *err)
{
    static const char *const groups[2][2] = {
        {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"},
        {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"},
    };
    (void)dev;
    struct device_memory m = {.total = meminfo("MemTotal"), .free = meminfo("MemAvailable"), .source = "MemAvailable"};
    if (!m.total || !m.free)
        return err_set(err, ERR_IO, "/proc/meminfo does not tell how much memory is free; say --memory-limit SIZE");
    for (int i = 0; i < 2; i++) {
        uint64_t limit = read_number(groups[i][0]), used = read_number(groups[i][1]);
        if (limit >= m.total || used == UINT64_MAX)
            continue;
        uint64_t left = limit > used ? limit - used : 0;
        if (left < m.free) {
            m.free = left;
            m.source = "cgroup memory limit";
        }
        m.total = limit;
    }
    *out = m;
    return 0;
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
