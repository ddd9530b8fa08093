/* Reading hyper-parameters. Every value is bounded here, so that no later product of them can overflow. */
#include "model/config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct reader {
    const struct gguf *g;
    struct model_config *c;
    struct err *err;
    char key[128];
};

static const char *key_of(struct reader *r, const char *name)
{
    snprintf(r->key, sizeof r->key, "%s.%s", r->c->architecture, name);
    return r->key;
}

static int missing(struct reader *r, const char *key)
{
    return err_set(r->err, ERR_FORMAT, "%s: key %s is missing", gguf_path(r->g), key);
}

static int need_int(struct reader *r, const char *name, uint64_t min, uint64_t max, int64_t *out)
{
    uint64_t value;
    int rc = gguf_get_u64(r->g, key_of(r, name), min, max, &value, r->err);
    if (rc < 0)
        return rc;
    if (rc == 0)
        return missing(r, r->key);
    *out = (int64_t)value;
    return 0;
}

static int need_small(struct reader *r, const char *name, uint64_t min, uint64_t max, int *out)
{
    int64_t value;
    TRY(need_int(r, name, min, max, &value));
    *out = (int)value;
    return 0;
}

static int may_small(struct reader *r, const char *name, uint64_t min, uint64_t max, int *out)
{
    uint64_t value;
    int rc = gguf_get_u64(r->g, key_of(r, name), min, max, &value, r->err);
    if (rc == 1)
        *out = (int)value;
    return rc < 0 ? rc : 0;
}

static int check_float(struct reader *r, double value, double min, double max)
{
    if (value >= min && value <= max)
        return 0;
    return err_set(r->err, ERR_FORMAT, "%s: key %s is %g, expected a number from %g to %g", gguf_path(r->g), r->key, value, min, max);
}

static int need_float(struct reader *r, const char *name, double min, double max, double *out)
{
    int rc = gguf_get_f64(r->g, key_of(r, name), out, r->err);
    if (rc < 0)
        return rc;
    return rc == 0 ? missing(r, r->key) : check_float(r, *out, min, max);
}

/* 0 and absent both mean `otherwise`. */
static int may_float(struct reader *r, const char *name, double max, double otherwise, float *out)
{
    double value = 0;
    TRY(gguf_get_f64(r->g, key_of(r, name), &value, r->err));
    TRY(check_float(r, value, 0, max));
    *out = (float)(value > 0 ? value : otherwise);
    return 0;
}

static int is_int_array(const struct gguf_kv *kv)
{
    return kv->type == GGUF_ARRAY && (kv->elem_type <= GGUF_I32 || kv->elem_type == GGUF_U64 || kv->elem_type == GGUF_I64);
}

/* A number, or an array whose non-zero elements are all the same (other writers give one per layer). */
static int need_uniform(struct reader *r, const char *name, uint64_t min, uint64_t max, int64_t *out)
{
    const struct gguf_kv *kv = gguf_find(r->g, key_of(r, name));
    if (!kv || kv->type != GGUF_ARRAY)
        return need_int(r, name, min, max, out);
    int64_t found = 0;
    if (!is_int_array(kv))
        return err_set(r->err, ERR_FORMAT, "%s: key %s is not an array of whole numbers", gguf_path(r->g), r->key);
    for (uint64_t i = 0; i < kv->n; i++) {
        int64_t value = gguf_array_i64(kv, i);
        if (value && found && value != found)
            return err_set(r->err, ERR_UNSUPPORTED, "%s: key %s differs between layers (%lld and %lld)", gguf_path(r->g), r->key, (long long)found, (long long)value);
        if (value)
            found = value;
    }
    if (found < 0 || (uint64_t)found < min || (uint64_t)found > max)
        return err_set(r->err, ERR_FORMAT, "%s: key %s holds %lld, expected %llu to %llu", gguf_path(r->g), r->key, (long long)found, (unsigned long long)min, (unsigned long long)max);
    *out = found;
    return 0;
}

static int read_architecture(struct reader *r)
{
    struct gguf_string s;
    int rc = gguf_get_string(r->g, "general.architecture", &s, r->err);
    if (rc < 0)
        return rc;
    if (rc == 0)
        return missing(r, "general.architecture");
    int is_moe = s.len == 9 && memcmp(s.data, "qwen35moe", 9) == 0;
    if (!is_moe && !(s.len == 6 && memcmp(s.data, "qwen35", 6) == 0))
        return err_set(r->err, ERR_UNSUPPORTED, "%s: architecture %.*s is not supported; apr runs Qwen3.5-family files (qwen35, qwen35moe)", gguf_path(r->g),
                       (int)(s.len < 40 ? s.len : 40), s.data);
    r->c->is_moe = is_moe;
    memcpy(r->c->architecture, s.data, s.len);
    r->c->architecture[s.len] = 0;
    return 0;
}

static int read_layers(struct reader *r)
{
    struct model_config *c = r->c;
    int n_block, interval = 4;
    TRY(need_small(r, "block_count", 1, MODEL_MAX_LAYERS, &n_block));
    TRY(may_small(r, "nextn_predict_layers", 0, MODEL_MAX_LAYERS, &c->n_mtp));
    if (c->n_mtp >= n_block)
        return err_set(r->err, ERR_FORMAT, "%s: key %s is %d of block_count %d: no layer is left", gguf_path(r->g), key_of(r, "nextn_predict_layers"), c->n_mtp, n_block);
    c->n_layer = n_block - c->n_mtp;
    TRY(may_small(r, "full_attention_interval", 1, MODEL_MAX_LAYERS, &interval));
    for (int i = 0; i < c->n_layer; i++)
        c->is_full[i] = (i + 1) % interval == 0;
    const struct gguf_kv *mask = gguf_find(r->g, key_of(r, "attention.recurrent_layers"));
    if (mask) {
        int ok = mask->type == GGUF_ARRAY && (mask->elem_type == GGUF_BOOL || is_int_array(mask));
        if (!ok || mask->n < (uint64_t)c->n_layer)
            return err_set(r->err, ERR_FORMAT, "%s: key %s is not an array of at least %d bools", gguf_path(r->g), r->key, c->n_layer);
        for (int i = 0; i < c->n_layer; i++)
            c->is_full[i] = !gguf_array_i64(mask, (uint64_t)i);
    }
    for (int i = 0; i < c->n_layer; i++)
        c->n_full += c->is_full[i];
    c->n_linear = c->n_layer - c->n_full;
    return 0;
}

static int read_attention(struct reader *r)
{
    struct model_config *c = r->c;
    int64_t n_kv;
    int d_value;
    double eps;
    TRY(need_small(r, "attention.head_count", 1, 1024, &c->n_head));
    TRY(need_uniform(r, "attention.head_count_kv", 1, 1024, &n_kv));
    c->n_head_kv = (int)n_kv;
    if (c->n_head % c->n_head_kv)
        return err_set(r->err, ERR_FORMAT, "%s: attention.head_count %d is not a multiple of attention.head_count_kv %d", gguf_path(r->g), c->n_head, c->n_head_kv);
    TRY(need_small(r, "attention.key_length", 8, 1024, &c->d_head));
    TRY(need_small(r, "attention.value_length", 8, 1024, &d_value));
    if (d_value != c->d_head || c->d_head % 8)
        return err_set(r->err, ERR_UNSUPPORTED, "%s: attention.key_length %d and attention.value_length %d have to be equal multiples of 8", gguf_path(r->g), c->d_head, d_value);
    TRY(need_float(r, "attention.layer_norm_rms_epsilon", 1e-30, 1, &eps));
    c->rms_eps = (float)eps;
    return may_float(r, "attention.scale", 1e6, 1 / sqrt(c->d_head), &c->attention_scale);
}

/* Any scaling that would change the angles is refused: a model that runs with other angles answers, and wrongly. */
static int refuse_rope_scaling(struct reader *r)
{
    static const char *const factors[] = {"rope.scaling.factor", "rope.scale_linear"};
    struct gguf_string type = {0};
    TRY(gguf_get_string(r->g, key_of(r, "rope.scaling.type"), &type, r->err));
    if (type.len == 4 && memcmp(type.data, "none", 4) == 0)
        return 0;
    for (int i = 0; i < 2; i++) {
        double factor = 0;
        TRY(gguf_get_f64(r->g, key_of(r, factors[i]), &factor, r->err));
        if (factor != 0 && factor != 1)
            return err_set(r->err, ERR_UNSUPPORTED, "%s: RoPE scaling is not supported: key %s is %g, rope.scaling.type %.*s", gguf_path(r->g), r->key, factor,
                           type.len ? (int)(type.len < 20 ? type.len : 20) : 6, type.len ? type.data : "absent");
    }
    return 0;
}

static int read_rope(struct reader *r)
{
    struct model_config *c = r->c;
    TRY(need_small(r, "rope.dimension_count", 2, 1024, &c->n_rot));
    if (c->n_rot % 2 || c->n_rot > c->d_head)
        return err_set(r->err, ERR_FORMAT, "%s: key %s is %d, expected an even number up to the head size %d", gguf_path(r->g), r->key, c->n_rot, c->d_head);
    TRY(need_float(r, "rope.freq_base", 1e-6, 1e30, &c->rope_freq_base));
    const struct gguf_kv *sections = gguf_find(r->g, key_of(r, "rope.dimension_sections"));
    if (sections) {
        int64_t sum = 0;
        if (!is_int_array(sections) || sections->n > 4)
            return err_set(r->err, ERR_FORMAT, "%s: key %s is not an array of up to 4 whole numbers", gguf_path(r->g), r->key);
        for (uint64_t i = 0; i < sections->n; i++) {
            int64_t value = gguf_array_i64(sections, i);
            if (value < 0 || value > c->n_rot)
                return err_set(r->err, ERR_FORMAT, "%s: key %s holds %lld", gguf_path(r->g), r->key, (long long)value);
            sum += value;
        }
        if (sum > c->n_rot / 2)
            return err_set(r->err, ERR_FORMAT, "%s: the sum of %s is %lld, more than the %d pairs that rotate", gguf_path(r->g), r->key, (long long)sum, c->n_rot / 2);
    }
    return refuse_rope_scaling(r);
}

static int read_linear(struct reader *r)
{
    struct model_config *c = r->c;
    int64_t inner;
    int reordered = 1;
    TRY(need_small(r, "ssm.conv_kernel", 2, 16, &c->n_conv));
    TRY(need_small(r, "ssm.state_size", 8, 1024, &c->d_state));
    if (c->d_state % 8)
        return err_set(r->err, ERR_UNSUPPORTED, "%s: ssm.state_size %d is not a multiple of 8", gguf_path(r->g), c->d_state);
    TRY(need_small(r, "ssm.group_count", 1, 1024, &c->n_head_k));
    TRY(need_small(r, "ssm.time_step_rank", 1, 1024, &c->n_head_v));
    if (c->n_head_v % c->n_head_k)
        return err_set(r->err, ERR_FORMAT, "%s: ssm.time_step_rank %d is not a multiple of ssm.group_count %d", gguf_path(r->g), c->n_head_v, c->n_head_k);
    TRY(need_int(r, "ssm.inner_size", 1, 1u << 24, &inner));
    if (inner != (int64_t)c->n_head_v * c->d_state)
        return err_set(r->err, ERR_FORMAT, "%s: ssm.inner_size is %lld, expected ssm.time_step_rank x ssm.state_size = %lld", gguf_path(r->g), (long long)inner,
                       (long long)c->n_head_v * c->d_state);
    TRY(gguf_get_bool(r->g, key_of(r, "ssm.v_head_reordered"), &reordered, r->err));
    if (!reordered)
        return err_set(r->err, ERR_UNSUPPORTED, "%s: ssm.v_head_reordered is false: value heads in grouped order are not supported; convert the file again", gguf_path(r->g));
    return 0;
}

static int read_ffn(struct reader *r)
{
    struct model_config *c = r->c;
    const uint64_t widest = 1u << 20;
    if (!c->is_moe)
        return need_uniform(r, "feed_forward_length", 1, widest, &c->d_ff);
    TRY(need_small(r, "expert_count", 1, 4096, &c->n_expert));
    TRY(need_small(r, "expert_used_count", 1, (uint64_t)c->n_expert < 64 ? (uint64_t)c->n_expert : 64, &c->n_expert_used));
    TRY(need_int(r, "expert_feed_forward_length", 1, widest, &c->d_ff_expert));
    TRY(need_int(r, "expert_shared_feed_forward_length", 1, widest, &c->d_ff_shared));
    return may_float(r, "expert_weights_scale", 1e6, 1, &c->expert_weights_scale);
}

int model_config_read(const struct gguf *g, struct model_config *out, struct err *err)
{
    struct model_config c = {.expert_weights_scale = 1};
    struct reader r = {.g = g, .c = &c, .err = err};
    TRY(read_architecture(&r));
    TRY(read_layers(&r));
    TRY(need_int(&r, "context_length", 1, 1u << 30, &c.n_ctx_declared));
    TRY(need_int(&r, "embedding_length", 8, 1u << 18, &c.d_model));
    TRY(read_attention(&r));
    TRY(read_rope(&r));
    TRY(read_linear(&r));
    TRY(read_ffn(&r));
    const struct gguf_tensor *embd = gguf_find_tensor(g, "token_embd.weight");
    if (!embd)
        return err_set(err, ERR_FORMAT, "%s: tensor token_embd.weight is missing", gguf_path(g));
    if (embd->n_dims != 2 || embd->ne[0] != (uint64_t)c.d_model || embd->ne[1] > 1u << 24)
        return err_set(err, ERR_FORMAT, "%s: tensor token_embd.weight has shape [%llu, %llu], expected [%lld, vocabulary]", gguf_path(g), (unsigned long long)embd->ne[0],
                       (unsigned long long)embd->ne[1], (long long)c.d_model);
    c.n_vocab = (int64_t)embd->ne[1];
    const struct gguf_kv *tokens = gguf_find(g, "tokenizer.ggml.tokens");
    if (tokens && tokens->n != (uint64_t)c.n_vocab)
        return err_set(err, ERR_FORMAT, "%s: tensor token_embd.weight has %lld rows, tokenizer.ggml.tokens %llu tokens", gguf_path(g), (long long)c.n_vocab, (unsigned long long)tokens->n);
    *out = c;
    return 0;
}

int64_t config_widest_input(const struct model_config *c)
{
    int64_t all[] = {c->d_model, c->d_ff, c->d_ff_expert, c->d_ff_shared, (int64_t)c->n_head * c->d_head, (int64_t)c->n_head_v * c->d_state}, widest = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        widest = all[i] > widest ? all[i] : widest;
    return widest;
}
