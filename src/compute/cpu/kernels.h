/* What a rung of the CPU ladder provides: row-sized pieces without threads, from which cpu/op.c builds the operations. A rung starts as a copy of the one below and
 * overwrites what it does better. Law: the numbers of one (weight row, activation row) pair are the same in every tile shape of a rung. */
#ifndef COMPUTE_CPU_KERNELS_H
#define COMPUTE_CPU_KERNELS_H

#include <stdint.h>

#include "compute/op.h"

#define PANEL_ROWS 16 /* weight rows unpacked at a time */
#define N_TYPE_IDS 48

/* Activation rows as int8 with one f32 scale per 16 and the scaled sum of each 16 (for offsets and minima). Row r of each array begins at r * its stride. */
struct act {
    int64_t n_in;
    int8_t *q;
    float *d;              /* [n_in / 16] */
    float *s16;            /* [n_in / 16], zero-padded to a multiple of 8 */
    int64_t q_stride, d_stride, s_stride;
};

/* Up to PANEL_ROWS weight rows as w = scale * q - min: q unsigned (is_signed 0, so small that pairs of products fit 16 bits) or signed without minima. */
struct panel {
    int64_t n_in;
    int is_signed;
    uint8_t *q;            /* [row][n_in] */
    float *scale;          /* [row][n_in / 32][8]: four times the scale of the first 16, four times that of the second */
    float *min;            /* [row][n_in / 16], zero-padded to a multiple of 8; not used when signed */
    int64_t q_stride, scale_stride, min_stride;
    float *f32;            /* [row][n_in] for the f32 products; shares the memory of the others */
};

/* Unpacks one row of n_in weights into the panel's row. */
typedef void unpack_fn(const uint8_t *row, int64_t n_in, uint8_t *q, float *scale, float *min);

#define ATTENTION_LANES 64 /* pairs of a row and a head in one tile */
#define KEY_BLOCK 64       /* keys between two adjustments of the softmax; blocks begin at multiples of it, whatever row asks */

/* The query heads of n_rows consecutive positions of one sequence that share a KV head. n_rows * n_group <= ATTENTION_LANES. */
struct attention_tile {
    const float *q;        /* row r's [n_group][d] at r * row_stride */
    int64_t row_stride;
    int n_rows, n_group, d;
    enum kv_type type;
    const uint8_t *k, *v;  /* of this KV head, as kv_pack left it; key p at p * kv_stride bytes */
    int64_t kv_stride, n_keys; /* keys of row 0; row r has n_keys + r */
    float scale;
    float *scratch;        /* of n_scratch floats, uninitialised; whatever there is of it, the numbers are the same */
    int64_t n_scratch;
    float *out;            /* as q */
};

struct delta_head {        /* one value head over a span of tokens, rows row0..row1 of its state */
    float *s;              /* [d][d] value-major */
    const float *q, *k, *v;/* of the first token; token t at t * stride */
    const float *g, *beta; /* token t at t * gate_stride */
    int64_t stride, gate_stride, out_stride, n_tokens;
    int d, row0, row1;
    float *out;            /* [d] of the first token */
};

struct cpu_kernels {
    const char *name;
    struct {
        unpack_fn *fn;     /* NULL: the type goes through f32 */
        int is_signed;
    } unpack[N_TYPE_IDS];
    void (*quantise_row)(const float *x, int64_t n, int8_t *q, float *d, float *s16, int64_t n_s16);
    /* out[(c - c0) * ld + r] for panel rows r0 <= r < r0 + n_r (n_r <= 4) and activation rows c0 <= c < c1. */
    void (*tile_int8)(const struct panel *p, int r0, int n_r, const struct act *x, int64_t c0, int64_t c1, float *out, int64_t ld);
    /* The same over p->f32 and x [c][x_stride]. */
    void (*tile_f32)(const struct panel *p, int r0, int n_r, const float *x, int64_t x_stride, int64_t c0, int64_t c1, float *out, int64_t ld);
    void (*rms_norm_row)(const float *x, const float *scale, float eps, int64_t d, float *out);
    void (*swiglu)(const float *gate, const float *up, int64_t n, float *out);
    void (*sigmoid_mul)(float *x, const float *gate, int64_t n);
    void (*silu_mul)(float *x, const float *z, int64_t n);
    void (*add)(float *x, const float *y, int64_t n);
    void (*axpy)(float *x, float a, const float *y, int64_t n);
    float (*dot)(const float *a, const float *b, int64_t n);
    /* Channels c0..c1 over n tokens, conv state included: see op.h conv_silu. */
    void (*conv_silu)(float *state, const float *u, int64_t n, int64_t n_channel, const float *taps, int n_conv, int64_t c0, int64_t c1, float *out);
    /* n values as they are cached (op.h kv_store), kv_head_bytes(type, n) of them; n is a multiple of 32 for q8_0. Every rung gives the same bytes (but for which NaN). */
    void (*kv_pack)(enum kv_type type, const float *x, int64_t n, void *out);
    void (*attention)(const struct attention_tile *a);
    void (*delta)(const struct delta_head *h);
};

void cpu_kernels_scalar(struct cpu_kernels *k);
void cpu_kernels_avx2(struct cpu_kernels *k);

#endif
