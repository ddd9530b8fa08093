/* A model: config, weights as views into the mapped file, vocabulary, template. Immutable after load, shared by everyone; owns the open file. */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H

#include "compute/op.h"
#include "gguf/gguf.h"
#include "model/config.h"
#include "text/chat.h"
#include "text/vocab.h"

struct layer_weights { /* what a layer does not have has data NULL */
    const float *attn_norm, *post_attention_norm;                       /* [d_model] */
    struct weight attn_q, attn_k, attn_v, attn_output;                  /* full attention */
    const float *attn_q_norm, *attn_k_norm;                             /* [d_head] */
    struct weight attn_qkv, attn_gate, ssm_beta, ssm_alpha, ssm_out;    /* linear attention */
    const float *ssm_conv1d;                                            /* [n_channel][n_conv] */
    const float *ssm_dt_bias, *ssm_a, *ssm_norm;                        /* [n_head_v], [n_head_v], [d_state] */
    struct weight ffn_gate, ffn_up, ffn_down;                           /* dense */
    struct weight ffn_gate_inp;                                         /* router [n_expert][d_model] */
    struct weight ffn_gate_exps, ffn_up_exps, ffn_down_exps;            /* expert 0; expert e begins expert_bytes later each */
    size_t gate_expert_bytes, up_expert_bytes, down_expert_bytes;
    const float *ffn_gate_inp_shexp;                                    /* [d_model] */
    struct weight ffn_gate_shexp, ffn_up_shexp, ffn_down_shexp;
};

struct model {
    struct gguf *file;
    struct model_config config;
    struct vocab *vocab;
    struct chat_template *chat;   /* NULL when the file has none */
    struct weight token_embd, output;
    const float *output_norm;
    struct layer_weights *layers; /* [n_layer] */
    uint64_t weight_bytes;        /* tensors that a forward pass reads (no MTP, no vision) */
    float *owned;                 /* small f32 tensors that were stored in another type or unaligned, decoded */
};

enum model_load_flags {
    MODEL_HEADER_ONLY = 1,        /* config and shapes, no weights: for planning */
    MODEL_NO_TOKENISER = 2        /* for files that are measured by ids alone */
};

/* Every required tensor with exactly the implied shape, every type decodable, vocabulary and template coherent with them. MTP blocks, v.* and mtp.* tensors are
 * passed over. The message is one line that names file, tensor or key, and what was expected. */
int model_load(const char *path, unsigned flags, struct model **out, struct err *err) MUST_CHECK;
void model_free(struct model *m);

/* general.name, or the file's base name. */
int model_name(const struct model *m, char *out, size_t n); /* printable ASCII without spaces; returns its length */

/* MODEL as the user typed it: a path as it is; a bare name ("demo") is looked for as models/apr-NAME.gguf and models/NAME.gguf under each of the folders given (NULL-terminated).
 * ERR_NOT_FOUND says where was looked. out_path: caller's buffer. */
int model_resolve(const char *name, const char *const *folders, char *out_path, size_t out_bytes, struct err *err) MUST_CHECK;

#endif
