/* Times attention over long caches of every type, one row (decode) and many (prefill), through enough layers that no cache level holds them.
 *   bench_attention [THREADS [HEADS KV_HEADS [HEAD_SIZE]]] */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "compute/device.h"

#define COLD_BYTES ((size_t)256 << 20) /* of all layers together */
#define PREFILL_ROWS 256
#define REPEATS 15
#define MAX_LAYERS 64

struct setup {
    struct device *dev;
    int n_head, n_head_kv, d;
    float *q, *k, *v, *out;            /* [PREFILL_ROWS] rows */
};

struct caches {
    struct op_kv layers[MAX_LAYERS];
    int n;
    size_t bytes;                      /* of one layer */
};

static float noise(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)(*state >> 40) / (float)(1 << 23) - 1;
}

static void *take(size_t bytes)
{
    void *p = mem_alloc_aligned(MEM_OTHER, bytes);
    if (!p) {
        fprintf(stderr, "out of memory\n");
        exit(1);
    }
    return p;
}

static void store(const struct setup *s, const struct op_kv *kv, int64_t position, int64_t rows)
{
    struct op_span span = {.n_rows = rows, .position = position};
    s->dev->op->kv_store(s->dev, &span, kv, 1, s->k, s->v, s->n_head_kv, s->d);
}

static void fill(const struct setup *s, struct caches *c, enum kv_type type, int64_t positions)
{
    size_t row = (size_t)s->n_head_kv * kv_head_bytes(type, s->d);
    c->bytes = 2 * row * (size_t)positions;
    c->n = (int)(COLD_BYTES / c->bytes) + 1;
    c->n = c->n < 2 ? 2 : c->n > MAX_LAYERS ? MAX_LAYERS : c->n;
    for (int i = 0; i < c->n; i++) {
        c->layers[i] = (struct op_kv){.type = type, .k = take(c->bytes / 2), .v = take(c->bytes / 2)};
        for (int64_t at = 0; at < positions; at += PREFILL_ROWS)
            store(s, &c->layers[i], at, positions - at < PREFILL_ROWS ? positions - at : PREFILL_ROWS);
    }
}

static void drop(struct caches *c)
{
    for (int i = 0; i < c->n; i++) {
        mem_free(c->layers[i].k);
        mem_free(c->layers[i].v);
    }
}

/* Milliseconds a layer of attention for the last `rows` of `positions`, over n_layers layers. */
static double measure(const struct setup *s, const struct caches *c, int64_t positions, int64_t rows, int n_layers)
{
    struct op_span span = {.n_rows = rows, .position = positions - rows};
    uint64_t start = clock_ns();
    for (int l = 0; l < n_layers; l++)
        s->dev->op->attention(s->dev, &span, &c->layers[l], 1, s->q, s->n_head, s->n_head_kv, s->d, 0.0625f, s->out);
    return clock_ms_since(start) / n_layers;
}

/* The best of passes that take turns, so that what else the machine does meets all types alike. */
static void run(const struct setup *s, int64_t positions)
{
    static const char *const names[KV_N_TYPES] = {"f32", "f16", "q8_0"};
    int n_types = s->d % 32 ? KV_Q8_0 : KV_N_TYPES;
    struct caches c[KV_N_TYPES];
    double decode[KV_N_TYPES], prefill[KV_N_TYPES];
    for (int type = 0; type < n_types; type++) {
        fill(s, &c[type], (enum kv_type)type, positions);
        decode[type] = prefill[type] = 1e30;
    }
    for (int i = 0; i < REPEATS; i++)
        for (int type = 0; type < n_types; type++) {
            decode[type] = fmin(decode[type], measure(s, &c[type], positions, 1, c[type].n));
            if (i % 3 == 0)
                prefill[type] = fmin(prefill[type], measure(s, &c[type], positions, PREFILL_ROWS, 1));
        }
    for (int type = 0; type < n_types; type++) {
        printf("%6lld positions %-5s decode %8.3f ms a layer (%.2f of f32, %5.1f GB/s)   prefill of %d %8.1f ms (%.2f of f32)\n", (long long)positions, names[type], decode[type],
               decode[type] / decode[0], (double)c[type].bytes / 1e6 / decode[type], PREFILL_ROWS, prefill[type], prefill[type] / prefill[0]);
        drop(&c[type]);
    }
}

int main(int argc, char **argv)
{
    struct setup s = {.n_head = argc > 3 ? atoi(argv[2]) : 8, .n_head_kv = argc > 3 ? atoi(argv[3]) : 2, .d = argc > 4 ? atoi(argv[4]) : 256};
    struct err err = {0};
    struct device_options options = {.n_threads = argc > 1 ? atoi(argv[1]) : 0, .max_rows = PREFILL_ROWS, .max_n_in = (int64_t)s.n_head * s.d};
    uint64_t state = 1;
    if (device_open(&options, &s.dev, &err) < 0) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    size_t n_q = (size_t)PREFILL_ROWS * (size_t)(s.n_head * s.d), n_k = (size_t)PREFILL_ROWS * (size_t)(s.n_head_kv * s.d);
    s.q = take(n_q * 4);
    s.out = take(n_q * 4);
    s.k = take(n_k * 4);
    s.v = take(n_k * 4);
    for (size_t i = 0; i < n_q; i++)
        s.q[i] = noise(&state);
    for (size_t i = 0; i < n_k; i++) {
        s.k[i] = noise(&state);
        s.v[i] = noise(&state);
    }
    printf("%s, %d threads, %d heads on %d, of %d\n", s.dev->rung, s.dev->n_threads, s.n_head, s.n_head_kv, s.d);
    run(&s, 4096);
    run(&s, 32768);
    device_close(s.dev);
    return 0;
}
