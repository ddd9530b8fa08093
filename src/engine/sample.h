/* From logits to a token. Order: repetition penalty, presence and frequency penalties, logit bias, temperature, top-k, top-p, min-p, typical-p, softmax. */
#ifndef ENGINE_SAMPLE_H
#define ENGINE_SAMPLE_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "gguf/gguf.h"

struct logit_bias {
    int32_t id;
    double bias; /* <= -100 bans */
};

struct sample_params {
    double temperature;          /* 0 = greedy */
    double top_p, min_p, typical_p;
    double repetition_penalty, presence_penalty, frequency_penalty;
    int top_k;                   /* 0 = off */
    int repeat_last_n;           /* window of the repetition penalty over prompt and generated; -1 = all */
    uint64_t seed;
    int has_seed;                /* 0: a seed is drawn */
    const struct logit_bias *bias;
    size_t n_bias;
};

void sample_params_default(struct sample_params *p); /* neutral */
/* general.sampling.* of the file over what p holds. */
int sample_params_from_gguf(const struct gguf *g, struct sample_params *p, struct err *err) MUST_CHECK;
int sample_params_check(const struct sample_params *p, int32_t n_vocab, struct err *err) MUST_CHECK;

struct sampler;

int sampler_create(const struct sample_params *p, int32_t n_vocab, const int32_t *prompt, size_t n_prompt, struct sampler **out, struct err *err) MUST_CHECK;
void sampler_free(struct sampler *s);
void sampler_ban(struct sampler *s, int32_t id);
void sampler_accept(struct sampler *s, int32_t id);
int sampler_probabilities(struct sampler *s, const float *logits, double *p, struct err *err) MUST_CHECK;
/* Draws and accepts. ERR_NUMERIC when the logits are NaN, +inf or all -inf. */
int sampler_next(struct sampler *s, const float *logits, int32_t *id, struct err *err) MUST_CHECK;

/* log softmax of the raw logits: of `id`, and the k largest. */
double sample_logprob(const float *logits, int32_t n_vocab, int32_t id);
int sample_top(const float *logits, int32_t n_vocab, int k, int32_t *ids, double *logprobs);

#endif
