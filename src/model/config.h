/* The hyper-parameters of a Qwen3.5 file, read from its metadata alone and range-checked: never from constants, never from the model's name. */
#ifndef MODEL_CONFIG_H
#define MODEL_CONFIG_H

#include <stdint.h>

#include "base/err.h"
#include "gguf/gguf.h"

#define MODEL_MAX_LAYERS 512

struct model_config {
    char architecture[16];    /* "qwen35", "qwen35moe" */
    int is_moe;
    int n_layer;              /* main blocks: block_count less the MTP blocks */
    int n_mtp;                /* MTP blocks after them, skipped */
    int64_t n_ctx_declared;
    int64_t d_model;          /* embedding_length */
    int64_t d_ff;             /* dense */
    int64_t n_vocab;          /* rows of token_embd */
    int n_head, n_head_kv;    /* full attention */
    int d_head;               /* key_length == value_length */
    int n_rot;                /* rope.dimension_count */
    double rope_freq_base;
    float rms_eps;
    float attention_scale;
    int n_conv;               /* ssm.conv_kernel */
    int d_state;              /* ssm.state_size: key and value head size of the linear layers */
    int n_head_k, n_head_v;   /* ssm.group_count, ssm.time_step_rank */
    int n_expert, n_expert_used;
    int64_t d_ff_expert, d_ff_shared;
    float expert_weights_scale;
    int n_full, n_linear;     /* how many layers of each kind */
    uint8_t is_full[MODEL_MAX_LAYERS];
};

/* ERR_UNSUPPORTED for another architecture or a RoPE scaling that is not served, ERR_FORMAT for a missing or unusable key; the message names file and key. */
int model_config_read(const struct gguf *g, struct model_config *out, struct err *err) MUST_CHECK;

static inline int64_t config_n_channel(const struct model_config *c) /* of the convolution: q, k and v of a linear layer */
{
    return (int64_t)(2 * c->n_head_k + c->n_head_v) * c->d_state;
}

/* The largest n_in of any matrix product: sizes the device's scratch. */
int64_t config_widest_input(const struct model_config *c);

#endif
