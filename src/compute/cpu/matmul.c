/* out = x W^T for quantised W: a thread takes PANEL_ROWS weight rows, unpacks them once into its panel (int8 and scales, or f32) and runs all activation rows over it, in
 * blocks that stay in the first cache. The same path serves one row and five hundred, so both give the same numbers. */
#include "compute/cpu/matmul.h"

#include <stdatomic.h>
#include <string.h>

#include "compute/cpu/cpu.h"
#include "gguf/quant.h"

#define FEW_ROWS 4
#define COLUMN_BLOCK_BYTES 24576 /* activations held in the first cache while a panel's rows pass */

struct product {
    struct cpu *cpu;
    enum arithmetic arithmetic;
    const struct weight *const *w;
    float *const *out;
    int n_w;
    const float *x;
    int64_t n;
    atomic_long next_row, next_panel;
};

static unpack_fn *unpack_of(const struct product *p, const struct weight *w)
{
    if (p->arithmetic == ARITHMETIC_EXACT || w->type >= N_TYPE_IDS || w->n_in % 32)
        return NULL;
    return p->cpu->kernels.unpack[w->type].fn;
}

static void quantise_rows(void *arg, int thread, int n_threads)
{
    struct product *p = arg;
    struct act *a = &p->cpu->act;
    (void)thread;
    (void)n_threads;
    for (long r; (r = pool_next(&p->next_row, 1, (long)p->n)) < p->n;)
        p->cpu->kernels.quantise_row(p->x + r * a->n_in, a->n_in, a->q + r * a->q_stride, a->d + r * a->d_stride, a->s16 + r * a->s_stride, a->s_stride);
}

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

static void prepare_activations(struct product *p, int64_t n_in)
{
    struct act *a = &p->cpu->act;
    int64_t rows = p->cpu->max_rows;
    a->n_in = n_in;
    a->q_stride = round_up(n_in, 64);
    a->d_stride = round_up(n_in / 16, 16);
    a->s_stride = round_up(n_in / 16, 8);
    a->d = (float *)(a->q + rows * a->q_stride);
    a->s16 = a->d + rows * a->d_stride;
    atomic_store(&p->next_row, 0);
    if (p->n == 1)
        quantise_rows(p, 0, 1);
    else
        pool_run(p->cpu->pool, quantise_rows, p);
}

static void panel_layout(struct panel *panel, uint8_t *memory, int64_t n_in)
{
    panel->n_in = n_in;
    panel->q_stride = round_up(n_in, 64);
    panel->scale_stride = n_in / 4;
    panel->min_stride = round_up(n_in / 16, 8);
    panel->q = memory;
    panel->scale = (float *)(memory + PANEL_ROWS * panel->q_stride);
    panel->min = panel->scale + PANEL_ROWS * panel->scale_stride;
    panel->f32 = (float *)memory;
}

/* Unpacks weight rows first + r0 .. first + r0 + n_rows - 1 into the panel's rows from r0 on. */
static void fill_panel(const struct product *p, struct panel *panel, const struct weight *w, int64_t first, int r0, int n_rows)
{
    unpack_fn *unpack = unpack_of(p, w);
    const struct quant_type *type = quant_type(w->type);
    for (int r = r0; r < r0 + n_rows; r++) {
        const uint8_t *row = (const uint8_t *)w->data + (size_t)(first + r) * w->row_bytes;
        if (!unpack) {
            type->decode(row, panel->f32 + r * w->n_in, (size_t)w->n_in);
            continue;
        }
        float *min = panel->min + r * panel->min_stride;
        for (int64_t g = w->n_in / 16; g < panel->min_stride; g++)
            min[g] = 0;
        unpack(row, w->n_in, panel->q + r * panel->q_stride, panel->scale + r * panel->scale_stride, min);
    }
}

/* Panel rows r0 .. r0 + n_r - 1 (n_r <= 4) times activation rows c0 .. c1 - 1. */
static void run_tile(const struct product *p, struct panel *panel, const struct weight *w, float *out, int64_t first, int r0, int n_r, int64_t c0, int64_t c1)
{
    const struct cpu_kernels *k = &p->cpu->kernels;
    float *to = out + c0 * w->n_out + first;
    if (unpack_of(p, w))
        k->tile_int8(panel, r0, n_r, &p->cpu->act, c0, c1, to, w->n_out);
    else
        k->tile_f32(panel, r0, n_r, p->x, w->n_in, c0, c1, to, w->n_out);
}

/* Many rows: the whole panel first, then blocks of activations that stay in the first cache pass under it. Few rows: four weight rows at a time, so that fetching the next
 * ones overlaps with the arithmetic. The numbers are the same. */
static void run_panel(const struct product *p, struct panel *panel, const struct weight *w, float *out, int64_t first, int n_rows)
{
    if (p->n <= FEW_ROWS) {
        for (int r = 0; r < n_rows; r += 4) {
            int n_r = n_rows - r < 4 ? n_rows - r : 4;
            fill_panel(p, panel, w, first, r, n_r);
            run_tile(p, panel, w, out, first, r, n_r, 0, p->n);
        }
        return;
    }
    int64_t block = COLUMN_BLOCK_BYTES / (w->n_in * (unpack_of(p, w) ? 1 : 4)) & ~(int64_t)1;
    if (block < 2)
        block = 2;
    fill_panel(p, panel, w, first, 0, n_rows);
    for (int64_t c0 = 0; c0 < p->n; c0 += block)
        for (int r = 0; r < n_rows; r += 4)
            run_tile(p, panel, w, out, first, r, n_rows - r < 4 ? n_rows - r : 4, c0, c0 + block < p->n ? c0 + block : p->n);
}

static long panels_of(const struct weight *w)
{
    return (long)((w->n_out + PANEL_ROWS - 1) / PANEL_ROWS);
}

static void run_products(void *arg, int thread, int n_threads)
{
    struct product *p = arg;
    struct panel panel;
    long at, total = 0, chunk;
    panel_layout(&panel, p->cpu->panels + (size_t)thread * p->cpu->panel_bytes, p->w[0]->n_in);
    for (int j = 0; j < p->n_w; j++)
        total += panels_of(p->w[j]);
    chunk = total / (8 * n_threads); /* long runs of rows for the prefetchers, short enough to share evenly */
    chunk = chunk < 1 ? 1 : chunk > 16 ? 16 : chunk;
    while ((at = pool_next(&p->next_panel, chunk, total)) < total) {
        long end = at + chunk < total ? at + chunk : total, base = 0;
        int i = 0;
        for (; at < end; at++) {
            while (at - base >= panels_of(p->w[i]))
                base += panels_of(p->w[i++]);
            const struct weight *w = p->w[i];
            int64_t first = (int64_t)(at - base) * PANEL_ROWS;
            panel.is_signed = w->type < N_TYPE_IDS && p->cpu->kernels.unpack[w->type].is_signed;
            run_panel(p, &panel, w, p->out[i], first, (int)(w->n_out - first < PANEL_ROWS ? w->n_out - first : PANEL_ROWS));
        }
    }
}

void cpu_matmul(struct device *dev, const struct weight *const *w, float *const *out, int n_w, const float *x, int64_t n)
{
    struct product p = {.cpu = dev->impl, .arithmetic = dev->arithmetic, .w = w, .out = out, .n_w = n_w, .x = x, .n = n};
    int any_int8 = 0;
    if (n == 0)
        return;
    for (int i = 0; i < n_w; i++)
        any_int8 |= unpack_of(&p, w[i]) != NULL;
    if (any_int8)
        prepare_activations(&p, w[0]->n_in);
    pool_run(p.cpu->pool, run_products, &p);
}
