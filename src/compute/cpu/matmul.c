/* out = x W^T for quantised W: a thread takes PANEL_ROWS weight rows, unpacks them once into its panel (int8 and scales, or f32) and runs all activation rows over it, in
 * blocks that stay in the first cache. The same path serves one row and five hundred, so both give the same numbers. */
#include "compute/cpu/matmul.h"

#include <stdatomic.h>
#include <string.h>

#include "compute/cpu/cpu.h"
#include "gguf/quant.h"

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

static void fill_panel(const struct product *p, struct panel *panel, const struct weight *w, int64_t first, int n_rows)
{
    unpack_fn *unpack = unpack_of(p, w);
    const uint8_t *row = (const uint8_t *)w->data + (size_t)first * w->row_bytes;
    if (!unpack) {
        const struct quant_type *type = quant_type(w->type);
        for (int r = 0; r < n_rows; r++)
            type->decode(row + (size_t)r * w->row_bytes, panel->f32 + r * w->n_in, (size_t)w->n_in);
        return;
    }
    panel->is_signed = p->cpu->kernels.unpack[w->type].is_signed;
    for (int r = 0; r < n_rows; r++) {
        float *min = panel->min + r * panel->min_stride;
        for (int64_t g = w->n_in / 16; g < panel->min_stride; g++)
            min[g] = 0;
        const uint8_t *bytes = row + (size_t)r * w->row_bytes;
        for (size_t i = 0; i < w->row_bytes; i += 64) /* the row that the next pass of this loop unpacks */
            __builtin_prefetch(bytes + w->row_bytes * 2 + i);
        unpack(bytes, w->n_in, panel->q + r * panel->q_stride, panel->scale + r * panel->scale_stride, min);
    }
}

static void run_panel(const struct product *p, struct panel *panel, const struct weight *w, float *out, int64_t first, int n_rows)
{
    const struct cpu_kernels *k = &p->cpu->kernels;
    int is_int8 = unpack_of(p, w) != NULL;
    int64_t block = COLUMN_BLOCK_BYTES / (w->n_in * (is_int8 ? 1 : 4)) & ~(int64_t)1;
    if (block < 2)
        block = 2;
    for (int64_t c0 = 0; c0 < p->n; c0 += block) {
        int64_t c1 = c0 + block < p->n ? c0 + block : p->n;
        float *to = out + c0 * w->n_out + first;
        for (int r = 0; r < n_rows; r += 4) {
            int n_r = n_rows - r < 4 ? n_rows - r : 4;
            if (is_int8)
                k->tile_int8(panel, r, n_r, &p->cpu->act, c0, c1, to, w->n_out);
            else
                k->tile_f32(panel, r, n_r, p->x, w->n_in, c0, c1, to, w->n_out);
        }
    }
}

static void run_products(void *arg, int thread, int n_threads)
{
    struct product *p = arg;
    struct panel panel;
    long base = 0, at = 0, total = 0;
    int i = 0;
    (void)n_threads;
    panel_layout(&panel, p->cpu->panels + (size_t)thread * p->cpu->panel_bytes, p->w[0]->n_in);
    for (int j = 0; j < p->n_w; j++)
        total += (long)((p->w[j]->n_out + PANEL_ROWS - 1) / PANEL_ROWS);
    while ((at = pool_next(&p->next_panel, 1, total)) < total) {
        long panels;
        while (at - base >= (panels = (long)((p->w[i]->n_out + PANEL_ROWS - 1) / PANEL_ROWS))) {
            base += panels;
            i++;
        }
        const struct weight *w = p->w[i];
        int64_t first = (int64_t)(at - base) * PANEL_ROWS;
        int n_rows = (int)(w->n_out - first < PANEL_ROWS ? w->n_out - first : PANEL_ROWS);
        fill_panel(p, &panel, w, first, n_rows);
        run_panel(p, &panel, w, p->out[i], first, n_rows);
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
