/* Sampling parameters: neutral values, what a file recommends, and the check that every request passes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/sample.h"

void sample_params_default(struct sample_params *p)
{
    *p = (struct sample_params){
        .temperature = 1,
        .top_p = 1,
        .typical_p = 1,
        .repetition_penalty = 1,
        .repeat_last_n = -1,
    };
}

struct range {
    const char *name;     /* in requests */
    const char *key;      /* after general.sampling. in files */
    size_t offset;        /* of the double in struct sample_params */
    double low, high;
};

static const struct range ranges[] = {
    {"temperature", "temp", offsetof(struct sample_params, temperature), 0, 100},
    {"top_p", "top_p", offsetof(struct sample_params, top_p), 0, 1},
    {"min_p", "min_p", offsetof(struct sample_params, min_p), 0, 1},
    {"typical_p", "typical_p", offsetof(struct sample_params, typical_p), 0, 1},
    {"repetition_penalty", "penalty_repeat", offsetof(struct sample_params, repetition_penalty), 0.001, 100},
    {"presence_penalty", "penalty_present", offsetof(struct sample_params, presence_penalty), -100, 100},
    {"frequency_penalty", "penalty_freq", offsetof(struct sample_params, frequency_penalty), -100, 100},
};

#define N_RANGES (sizeof ranges / sizeof *ranges)

static int in_range(const struct range *r, double value)
{
    return value >= r->low && value <= r->high; /* false for NaN */
}

/* A whole number of the file in [-1, INT32_MAX]; anything below counts as -1. */
static int read_int(const struct gguf *g, const char *key, int *out, struct err *err)
{
    const struct gguf_kv *kv = gguf_find(g, key);
    if (!kv)
        return 0;
    struct gguf_kv one = *kv;
    one.elem_type = kv->type;
    uint64_t value;
    if ((kv->type == GGUF_I32 || kv->type == GGUF_I64 || kv->type == GGUF_I16 || kv->type == GGUF_I8) && gguf_array_i64(&one, 0) < 0) {
        *out = -1;
        return 0;
    }
    TRY(gguf_get_u64(g, key, 0, INT32_MAX, &value, err));
    *out = (int)value;
    return 0;
}

int sample_params_from_gguf(const struct gguf *g, struct sample_params *p, struct err *err)
{
    struct sample_params read = *p;
    char key[64];
    for (size_t i = 0; i < N_RANGES; i++) {
        double value;
        snprintf(key, sizeof key, "general.sampling.%s", ranges[i].key);
        int found = gguf_get_f64(g, key, &value, err);
        TRY(found);
        if (!found)
            continue;
        /* Files store f32: 0.95 is a little off there, which the shortest decimal form undoes. */
        char text[32];
        snprintf(text, sizeof text, "%.7g", value);
        value = strtod(text, NULL);
        if (!in_range(&ranges[i], value))
            return err_set(err, ERR_FORMAT, "%s: key %s is %g, expected %g to %g", gguf_path(g), key, value, ranges[i].low, ranges[i].high);
        *(double *)((char *)&read + ranges[i].offset) = value;
    }
    TRY(read_int(g, "general.sampling.top_k", &read.top_k, err));
    TRY(read_int(g, "general.sampling.penalty_last_n", &read.repeat_last_n, err));
    if (read.top_k < 0)
        read.top_k = 0;
    *p = read;
    return 0;
}

int sample_params_check(const struct sample_params *p, int32_t n_vocab, struct err *err)
{
    for (size_t i = 0; i < N_RANGES; i++) {
        double value = *(const double *)((const char *)p + ranges[i].offset);
        if (!in_range(&ranges[i], value))
            return err_set(err, ERR_INVALID, "%s is %g, expected %g to %g", ranges[i].name, value, ranges[i].low, ranges[i].high);
    }
    if (p->top_k < 0)
        return err_set(err, ERR_INVALID, "top_k is %d, expected 0 (off) or more", p->top_k);
    if (p->repeat_last_n < -1)
        return err_set(err, ERR_INVALID, "repeat_last_n is %d, expected -1 (all), 0 (none) or more", p->repeat_last_n);
    for (size_t i = 0; i < p->n_bias; i++) {
        if (p->bias[i].id < 0 || p->bias[i].id >= n_vocab)
            return err_set(err, ERR_INVALID, "logit_bias: token %d is not in the vocabulary of %d", p->bias[i].id, n_vocab);
        if (!isfinite(p->bias[i].bias))
            return err_set(err, ERR_INVALID, "logit_bias: the value of token %d is not a finite number", p->bias[i].id);
    }
    return 0;
}
