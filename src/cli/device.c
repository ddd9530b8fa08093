/* What the device flags ask for against what this build can do, and the lines that say so. Invariant: a device asked for by name is never exchanged silently. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "cli/common.h"

#define NO_CUDA "this build of apr has no CUDA backend"

/* The flag, as typed, that asks for a GPU by name; NULL when none does. */
static const char *explicit_gpu(const struct opt_value *o, char *typed, size_t n)
{
    if (o[O_BACKEND].set && strcmp(o[O_BACKEND].s, "cuda") == 0)
        return "--backend cuda";
    if (o[O_GPU].set)
        return "--gpu";
    if (!o[O_GPU_LAYERS].set)
        return NULL;
    if (o[O_GPU_LAYERS].s ? strcmp(o[O_GPU_LAYERS].s, "all") == 0 : o[O_GPU_LAYERS].i > 0) {
        snprintf(typed, n, "--gpu-layers %s", o[O_GPU_LAYERS].typed);
        return typed;
    }
    return NULL;
}

static const char *explicit_cpu(const struct opt_value *o)
{
    if (o[O_NO_GPU].set)
        return "--no-gpu";
    if (o[O_BACKEND].set && strcmp(o[O_BACKEND].s, "cpu") == 0)
        return "--backend cpu";
    if (o[O_GPU_LAYERS].set && !o[O_GPU_LAYERS].s && o[O_GPU_LAYERS].i == 0)
        return "--gpu-layers 0";
    return NULL;
}

int cli_resolve_device(struct cli *c, struct cli_device *out)
{
    char typed[60];
    const char *gpu = explicit_gpu(c->o, typed, sizeof typed), *cpu = explicit_cpu(c->o);
    int automatic = c->o[O_GPU_LAYERS].set && c->o[O_GPU_LAYERS].s && strcmp(c->o[O_GPU_LAYERS].s, "auto") == 0;
    if (gpu && !cpu)
        return err_set(&c->err, ERR_DEVICE, "%s asks for a GPU, and %s; use --no-gpu to run on the CPU", gpu, NO_CUDA);
    if (gpu && cpu)
        log_warn("%s contradicts %s: %s wins, running on the CPU", gpu, cpu, cpu);
    if (!cpu)
        log_info("running on the CPU: %s", NO_CUDA);
    snprintf(out->requested, sizeof out->requested, "%s", cpu ? "0" : automatic ? "auto" : "unset");
    return 0;
}

void cli_device_options(const struct cli *c, struct device_options *out)
{
    *out = (struct device_options){.kind = DEVICE_CPU};
    out->arithmetic = c->o[O_EXACT].set ? ARITHMETIC_EXACT : ARITHMETIC_DEFAULT;
    out->n_threads = c->o[O_THREADS].set ? (int)c->o[O_THREADS].i : 0;
    out->cpu_rung = c->o[O_CPU_RUNG].set ? c->o[O_CPU_RUNG].s : NULL;
}

void cli_print_device_line(FILE *out, const struct cli_device *d, const struct model *m)
{
    fprintf(out, "gpu-layers: requested=%s resolved=0 total=%d (backend=cpu)\n", d->requested, m->config.n_layer);
    fflush(out);
}

void cli_print_backend(const struct device *dev)
{
    log_info("Backend: CPU (%s, %d threads)", dev->rung, dev->n_threads);
}

static json_t *cpu_json(const struct device_memory *m, const char *const *rungs, int n_threads)
{
    json_t *names = json_array(), *cpu = json_object();
    for (int i = 0; rungs[i]; i++)
        json_array_append_new(names, json_string(rungs[i]));
    json_object_set_new(cpu, "backend", json_string("cpu"));
    json_object_set_new(cpu, "rungs", names);
    json_object_set_new(cpu, "threads", json_integer(n_threads));
    json_object_set_new(cpu, "memory_total_bytes", json_integer((json_int_t)m->total));
    json_object_set_new(cpu, "memory_free_bytes", json_integer((json_int_t)m->free));
    json_object_set_new(cpu, "memory_source", json_string(m->source));
    return cpu;
}

int cli_list_devices(struct cli *c)
{
    struct device_options options;
    struct device *dev = NULL;
    struct device_memory memory;
    cli_device_options(c, &options);
    options.max_rows = 1;
    options.max_n_in = 1;
    TRY(device_open(&options, &dev, &c->err));
    int n_threads = dev->n_threads;
    int rc = device_memory(dev, &memory, &c->err);
    device_close(dev);
    TRY(rc);
    const char *const *rungs = device_cpu_rungs();
    if (c->o[O_JSON].set) {
        json_t *list = json_array();
        json_array_append_new(list, cpu_json(&memory, rungs, n_threads));
        return cli_print_json(c, json_pack("{s:o}", "devices", list), 2);
    }
    printf("cpu: %s", rungs[0] ? rungs[0] : "?");
    for (int i = 1; rungs[0] && rungs[i]; i++)
        printf(", %s", rungs[i]);
    printf("; %d threads; %.0f MiB free of %.0f MiB (%s)\n", n_threads, (double)memory.free / 1048576, (double)memory.total / 1048576, memory.source);
    return 0;
}

int verb_devices(struct cli *c)
{
    return cli_list_devices(c);
}

int verb_gpu(struct cli *c)
{
    if (c->o[O_JSON].set)
        return cli_print_json(c, json_pack("{s:[], s:s}", "devices", "reason", NO_CUDA), 2);
    printf("no GPU: %s\n", NO_CUDA);
    return 0;
}
