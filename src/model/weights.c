/* Views of the tensors. A matrix stays where it is mapped; small f32 vectors do too, unless their type or alignment asks for a decoded copy. */
#include "model/weights.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "gguf/quant.h"

struct loader {
    struct model *m;
    struct err *err;
    int header_only;
    size_t owned_used, owned_cap;  /* floats */
    uint8_t *seen;                 /* per tensor of the file */
};

static int shape_error(const struct loader *l, const struct gguf_tensor *t, const uint64_t *want, int n)
{
    char have_text[96] = "", want_text[96] = "";
    size_t a = 0, b = 0;
    for (int i = 0; i < t->n_dims; i++)
        a += (size_t)snprintf(have_text + a, sizeof have_text - a, "%s%llu", i ? ", " : "", (unsigned long long)t->ne[i]);
    for (int i = 0; i < n; i++)
        b += (size_t)snprintf(want_text + b, sizeof want_text - b, "%s%llu", i ? ", " : "", (unsigned long long)want[i]);
    return err_set(l->err, ERR_FORMAT, "%s: tensor %.*s has shape [%s], expected [%s]", gguf_path(l->m->file), (int)t->name.len, t->name.data, have_text, want_text);
}

static const struct gguf_tensor *find(struct loader *l, const char *name)
{
    const struct gguf_tensor *t = gguf_find_tensor(l->m->file, name);
    if (t)
        l->seen[t - gguf_tensor_at(l->m->file, 0)] = 1;
    return t;
}

static int missing(const struct loader *l, const char *name)
{
    return err_set(l->err, ERR_FORMAT, "%s: tensor %s is missing", gguf_path(l->m->file), name);
}

static int check_shape(const struct loader *l, const struct gguf_tensor *t, uint64_t ne0, uint64_t ne1, uint64_t ne2)
{
    const uint64_t want[3] = {ne0, ne1, ne2};
    int n = ne2 > 1 ? 3 : ne1 > 1 ? 2 : 1;
    if (t->ne[0] != ne0 || t->ne[1] != ne1 || t->ne[2] != ne2 || t->ne[3] != 1)
        return shape_error(l, t, want, n);
    return 0;
}

static int check_type(const struct loader *l, const struct gguf_tensor *t)
{
    const struct quant_type *type = quant_type(t->type);
    if (!type || !type->decode)
        return err_set(l->err, ERR_UNSUPPORTED, "%s: tensor %.*s is of type %s, which apr cannot use as weights", gguf_path(l->m->file), (int)t->name.len, t->name.data,
                       quant_name(t->type));
    return 0;
}

/* "blk.N.suffix" */
static const char *layer_name(char *out, size_t n, int layer, const char *suffix)
{
    snprintf(out, n, "blk.%d.%s", layer, suffix);
    return out;
}

static int load_matrix3(struct loader *l, const char *name, int64_t n_in, int64_t n_out, int64_t n_stack, struct weight *out)
{
    const struct gguf_tensor *t = find(l, name);
    if (!t)
        return missing(l, name);
    TRY(check_type(l, t));
    TRY(check_shape(l, t, (uint64_t)n_in, (uint64_t)n_out, (uint64_t)n_stack));
    *out = (struct weight){.name = t->name.data, .type = t->type, .n_in = n_in, .n_out = n_out, .row_bytes = quant_row_bytes(t->type, (uint64_t)n_in), .data = t->data};
    l->m->weight_bytes += t->n_bytes;
    return 0;
}

static int load_matrix(struct loader *l, int layer, const char *suffix, int64_t n_in, int64_t n_out, struct weight *out)
{
    char name[64];
    return load_matrix3(l, layer_name(name, sizeof name, layer, suffix), n_in, n_out, 1, out);
}

/* n floats of shape [ne0, ne1] (or [n] alone where ne1 is 1). */
static int load_floats(struct loader *l, const char *name, int64_t ne0, int64_t ne1, const float **out)
{
    const struct gguf_tensor *t = find(l, name);
    if (!t)
        return missing(l, name);
    TRY(check_type(l, t));
    TRY(check_shape(l, t, (uint64_t)ne0, (uint64_t)ne1, 1));
    l->m->weight_bytes += t->n_bytes;
    if (l->header_only)
        return 0;
    if (t->type == QUANT_F32 && (uintptr_t)t->data % sizeof(float) == 0) {
        *out = t->data;
        return 0;
    }
    size_t n = (size_t)(ne0 * ne1);
    if (n > l->owned_cap - l->owned_used)
        return err_set(l->err, ERR_INTERNAL, "%s: no room for a copy of tensor %s", gguf_path(l->m->file), name);
    float *copy = l->m->owned + l->owned_used;
    l->owned_used += n;
    quant_type(t->type)->decode(t->data, copy, n);
    *out = copy;
    return 0;
}

static int load_layer_floats(struct loader *l, int layer, const char *suffix, int64_t ne0, int64_t ne1, const float **out)
{
    char name[64];
    return load_floats(l, layer_name(name, sizeof name, layer, suffix), ne0, ne1, out);
}

static int load_full_attention(struct loader *l, int i, struct layer_weights *w)
{
    const struct model_config *c = &l->m->config;
    int64_t q = (int64_t)c->n_head * c->d_head, kv = (int64_t)c->n_head_kv * c->d_head;
    TRY(load_matrix(l, i, "attn_q.weight", c->d_model, 2 * q, &w->attn_q));
    TRY(load_matrix(l, i, "attn_k.weight", c->d_model, kv, &w->attn_k));
    TRY(load_matrix(l, i, "attn_v.weight", c->d_model, kv, &w->attn_v));
    TRY(load_matrix(l, i, "attn_output.weight", q, c->d_model, &w->attn_output));
    TRY(load_layer_floats(l, i, "attn_q_norm.weight", c->d_head, 1, &w->attn_q_norm));
    return load_layer_floats(l, i, "attn_k_norm.weight", c->d_head, 1, &w->attn_k_norm);
}

static int load_linear_attention(struct loader *l, int i, struct layer_weights *w)
{
    const struct model_config *c = &l->m->config;
    int64_t inner = (int64_t)c->n_head_v * c->d_state;
    char name[64];
    TRY(load_matrix(l, i, "attn_qkv.weight", c->d_model, config_n_channel(c), &w->attn_qkv));
    TRY(load_matrix(l, i, "attn_gate.weight", c->d_model, inner, &w->attn_gate));
    TRY(load_matrix(l, i, "ssm_beta.weight", c->d_model, c->n_head_v, &w->ssm_beta));
    TRY(load_matrix(l, i, "ssm_alpha.weight", c->d_model, c->n_head_v, &w->ssm_alpha));
    TRY(load_matrix(l, i, "ssm_out.weight", inner, c->d_model, &w->ssm_out));
    TRY(load_layer_floats(l, i, "ssm_conv1d.weight", c->n_conv, config_n_channel(c), &w->ssm_conv1d));
    TRY(load_layer_floats(l, i, "ssm_a", c->n_head_v, 1, &w->ssm_a));
    TRY(load_layer_floats(l, i, "ssm_norm.weight", c->d_state, 1, &w->ssm_norm));
    const char *dt = gguf_find_tensor(l->m->file, layer_name(name, sizeof name, i, "ssm_dt")) ? "ssm_dt" : "ssm_dt.bias"; /* Ollama's name (B187) */
    return load_layer_floats(l, i, dt, c->n_head_v, 1, &w->ssm_dt_bias);
}

static int load_experts(struct loader *l, int i, struct layer_weights *w)
{
    const struct model_config *c = &l->m->config;
    char name[64];
    int64_t d = c->d_model, ff = c->d_ff_expert, n = c->n_expert;
    if (gguf_find_tensor(l->m->file, layer_name(name, sizeof name, i, "ffn_gate_up_exps.weight"))) {
        TRY(load_matrix3(l, name, d, 2 * ff, n, &w->ffn_gate_exps)); /* gate rows, then up rows, per expert */
        w->gate_expert_bytes = w->up_expert_bytes = w->ffn_gate_exps.row_bytes * (size_t)(2 * ff);
        w->ffn_gate_exps.n_out = ff;
        w->ffn_up_exps = w->ffn_gate_exps;
        if (!l->header_only)
            w->ffn_up_exps.data = (const uint8_t *)w->ffn_gate_exps.data + w->ffn_gate_exps.row_bytes * (size_t)ff;
    } else {
        TRY(load_matrix3(l, layer_name(name, sizeof name, i, "ffn_gate_exps.weight"), d, ff, n, &w->ffn_gate_exps));
        TRY(load_matrix3(l, layer_name(name, sizeof name, i, "ffn_up_exps.weight"), d, ff, n, &w->ffn_up_exps));
        w->gate_expert_bytes = w->ffn_gate_exps.row_bytes * (size_t)ff;
        w->up_expert_bytes = w->ffn_up_exps.row_bytes * (size_t)ff;
    }
    TRY(load_matrix3(l, layer_name(name, sizeof name, i, "ffn_down_exps.weight"), ff, d, n, &w->ffn_down_exps));
    w->down_expert_bytes = w->ffn_down_exps.row_bytes * (size_t)d;
    return 0;
}

static int load_ffn(struct loader *l, int i, struct layer_weights *w)
{
    const struct model_config *c = &l->m->config;
    if (!c->is_moe) {
        TRY(load_matrix(l, i, "ffn_gate.weight", c->d_model, c->d_ff, &w->ffn_gate));
        TRY(load_matrix(l, i, "ffn_up.weight", c->d_model, c->d_ff, &w->ffn_up));
        return load_matrix(l, i, "ffn_down.weight", c->d_ff, c->d_model, &w->ffn_down);
    }
    TRY(load_matrix(l, i, "ffn_gate_inp.weight", c->d_model, c->n_expert, &w->ffn_gate_inp));
    TRY(load_experts(l, i, w));
    TRY(load_layer_floats(l, i, "ffn_gate_inp_shexp.weight", c->d_model, 1, &w->ffn_gate_inp_shexp));
    TRY(load_matrix(l, i, "ffn_gate_shexp.weight", c->d_model, c->d_ff_shared, &w->ffn_gate_shexp));
    TRY(load_matrix(l, i, "ffn_up_shexp.weight", c->d_model, c->d_ff_shared, &w->ffn_up_shexp));
    return load_matrix(l, i, "ffn_down_shexp.weight", c->d_ff_shared, c->d_model, &w->ffn_down_shexp);
}

static int load_layer(struct loader *l, int i)
{
    struct layer_weights *w = &l->m->layers[i];
    int64_t d = l->m->config.d_model;
    TRY(load_layer_floats(l, i, "attn_norm.weight", d, 1, &w->attn_norm));
    TRY(load_layer_floats(l, i, "post_attention_norm.weight", d, 1, &w->post_attention_norm));
    TRY(l->m->config.is_full[i] ? load_full_attention(l, i, w) : load_linear_attention(l, i, w));
    return load_ffn(l, i, w);
}

/* Floats that decoded copies may need: of every small tensor, whatever its type. */
static int reserve_owned(struct loader *l)
{
    size_t n = 0;
    if (l->header_only)
        return 0;
    for (size_t i = 0; i < gguf_n_tensors(l->m->file); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(l->m->file, i);
        uint64_t elems = t->ne[0] * t->ne[1];
        int is_vector = t->ne[1] == 1 || (t->name.len > 17 && memcmp(t->name.data + t->name.len - 17, "ssm_conv1d.weight", 17) == 0);
        if (is_vector && (t->type != QUANT_F32 || (uintptr_t)t->data % sizeof(float)))
            n += (size_t)elems;
    }
    l->m->owned = mem_alloc_array(MEM_MODEL, n + 1, sizeof(float));
    if (!l->m->owned)
        return err_set(l->err, ERR_NO_MEMORY, "%s: out of memory for %zu small weights", gguf_path(l->m->file), n);
    l->owned_cap = n;
    return 0;
}

static int starts_with(struct gguf_string s, const char *prefix)
{
    size_t n = strlen(prefix);
    return s.len >= n && memcmp(s.data, prefix, n) == 0;
}

static int ends_with(struct gguf_string s, const char *suffix)
{
    size_t n = strlen(suffix);
    return s.len >= n && memcmp(s.data + s.len - n, suffix, n) == 0;
}

/* N of "blk.N.", -1 when the name does not begin so. */
static int layer_of(struct gguf_string name)
{
    int layer = -1;
    if (starts_with(name, "blk."))
        for (size_t k = 4; k < name.len && name.data[k] >= '0' && name.data[k] <= '9' && layer < 100000; k++)
            layer = (layer < 0 ? 0 : layer * 10) + name.data[k] - '0';
    return layer;
}

/* Known to be of no use to text: draft blocks, vision, an alternative head, tables that are computed here. */
static int is_passed_over(const struct loader *l, struct gguf_string name)
{
    static const char *const prefixes[] = {"mtp.", "v.", "mm.", "output_extra.", "rope_freqs."};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (starts_with(name, prefixes[i]))
            return 1;
    return layer_of(name) >= l->m->config.n_layer;
}

/* What no part of the model asked for is named once. A factor that belongs to a weight cannot be passed over: without it the numbers would be wrong. */
static int check_unused(const struct loader *l)
{
    const struct gguf *g = l->m->file;
    const struct gguf_tensor *first = NULL;
    size_t n = 0;
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        if (l->seen[i] || is_passed_over(l, t->name))
            continue;
        if (ends_with(t->name, ".scale") || ends_with(t->name, ".input_scale"))
            return err_set(l->err, ERR_UNSUPPORTED, "%s: tensor %.*s: weights with a scale of their own (NVFP4 files) are not supported", gguf_path(g), (int)t->name.len, t->name.data);
        first = first ? first : t;
        n++;
    }
    if (n)
        log_warn("%s: %zu tensor%s not used, the first is %.*s", gguf_path(g), n, n == 1 ? " is" : "s are", (int)first->name.len, first->name.data);
    return 0;
}

static int load_all(struct loader *l)
{
    struct model *m = l->m;
    const struct model_config *c = &m->config;
    TRY(reserve_owned(l));
    TRY(load_matrix3(l, "token_embd.weight", c->d_model, c->n_vocab, 1, &m->token_embd));
    TRY(load_floats(l, "output_norm.weight", c->d_model, 1, &m->output_norm));
    m->output = m->token_embd;
    if (gguf_find_tensor(m->file, "output.weight"))
        TRY(load_matrix3(l, "output.weight", c->d_model, c->n_vocab, 1, &m->output));
    for (int i = 0; i < c->n_layer; i++)
        TRY(load_layer(l, i));
    return check_unused(l);
}

int model_weights_load(struct model *m, int header_only, struct err *err)
{
    struct loader l = {.m = m, .err = err, .header_only = header_only};
    m->layers = mem_alloc_array(MEM_MODEL, (size_t)m->config.n_layer, sizeof *m->layers);
    l.seen = mem_alloc(MEM_MODEL, gguf_n_tensors(m->file) + 1);
    int rc = m->layers && l.seen ? load_all(&l) : err_set(err, ERR_NO_MEMORY, "%s: out of memory for %d layers", gguf_path(m->file), m->config.n_layer);
    mem_free(l.seen);
    return rc;
}
