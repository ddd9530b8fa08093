/* Choosing a rung, and the scratch memory of the CPU backend. A rung is taken only when the processor has the instructions AND the system saves their registers. */
#include "compute/cpu/cpu.h"

#include <cpuid.h>
#include <string.h>

static int machine_has_avx2(void)
{
    unsigned a, b, c, d, low, high;
    if (!__get_cpuid(1, &a, &b, &c, &d))
        return 0;
    const unsigned fma = 1u << 12, osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29;
    if ((c & (fma | osxsave | avx | f16c)) != (fma | osxsave | avx | f16c))
        return 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if ((low & 6) != 6) /* xmm and ymm state */
        return 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & 1u << 5);
}

const char *const *cpu_rungs(void)
{
    static const char *const with_avx2[] = {"avx2", "scalar", NULL};
    return machine_has_avx2() ? with_avx2 : with_avx2 + 1;
}

int cpu_kernels_choose(const char *rung, struct cpu_kernels *out, struct err *err)
{
    const char *const *rungs = cpu_rungs();
    const char *wanted = rung ? rung : rungs[0];
    int found = 0;
    for (int i = 0; rungs[i]; i++)
        found |= strcmp(rungs[i], wanted) == 0;
    if (!found)
        return err_set(err, ERR_DEVICE, "cpu-rung %s is not to be had on this machine; it runs: %s%s%s", wanted, rungs[0], rungs[1] ? ", " : "", rungs[1] ? rungs[1] : "");
    memset(out, 0, sizeof *out);
    cpu_kernels_scalar(out);
    if (strcmp(wanted, "avx2") == 0)
        cpu_kernels_avx2(out);
    return 0;
}

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

/* Strides for rows of n_in values; the padding keeps rows apart by whole cache lines and the sums a multiple of 8. */
static void act_strides(struct act *a, int64_t n_in)
{
    a->n_in = n_in;
    a->q_stride = round_up(n_in, 64);
    a->d_stride = round_up(n_in / 16, 16);
    a->s_stride = round_up(n_in / 16, 8);
}

static size_t act_bytes(int64_t n_in, int64_t rows)
{
    struct act a;
    act_strides(&a, n_in);
    return (size_t)rows * (size_t)(a.q_stride + 4 * a.d_stride + 4 * a.s_stride) + 256;
}

static size_t panel_bytes(int64_t n_in)
{
    size_t int8 = (size_t)PANEL_ROWS * (size_t)(round_up(n_in, 64) + round_up(n_in, 32) + 4 * round_up(n_in / 16 + 1, 8)) + 256;
    size_t f32 = (size_t)PANEL_ROWS * (size_t)n_in * 4 + 64;
    return (int8 > f32 ? int8 : f32) + 4096;
}

static int n_threads_of(const struct device_options *options)
{
    return options->n_threads > 0 ? options->n_threads : pool_default_threads();
}

size_t cpu_scratch_bytes(const struct device_options *options)
{
    return act_bytes(options->max_n_in, options->max_rows) + (size_t)n_threads_of(options) * panel_bytes(options->max_n_in);
}

int cpu_open(const struct device_options *options, struct cpu **out, struct err *err)
{
    struct cpu *cpu = mem_alloc(MEM_WORKSPACE, sizeof *cpu);
    if (!cpu)
        return err_set(err, ERR_NO_MEMORY, "out of memory for the CPU backend");
    int threads = n_threads_of(options);
    cpu->max_rows = options->max_rows;
    cpu->max_n_in = options->max_n_in;
    cpu->panel_bytes = panel_bytes(options->max_n_in);
    int rc = cpu_kernels_choose(options->cpu_rung, &cpu->kernels, err);
    if (rc == 0)
        rc = pool_create(threads, &cpu->pool, err);
    if (rc == 0) {
        cpu->act.q = mem_alloc_aligned(MEM_WORKSPACE, act_bytes(options->max_n_in, options->max_rows));
        cpu->panels = mem_alloc_aligned(MEM_WORKSPACE, (size_t)threads * cpu->panel_bytes);
        if (!cpu->act.q || !cpu->panels)
            rc = err_set(err, ERR_NO_MEMORY, "out of memory: %zu bytes of scratch for %lld rows", cpu_scratch_bytes(options), (long long)options->max_rows);
    }
    if (rc < 0)
        cpu_close(cpu);
    else
        *out = cpu;
    return rc;
}

void cpu_close(struct cpu *cpu)
{
    if (!cpu)
        return;
    pool_free(cpu->pool);
    mem_free(cpu->act.q);
    mem_free(cpu->panels);
    mem_free(cpu);
}
