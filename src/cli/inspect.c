/* apr inspect: what is in a file, from its header. Shows what there is also where the model cannot be run, and then says why it cannot. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "cli/common.h"
#include "gguf/quant.h"

#define MIB(bytes) ((double)(bytes) / 1048576.0)
#define SHOWN_ELEMENTS 8        /* of an array, as text */
#define SHOWN_STRING 160        /* bytes of a string, as text */
#define JSON_ELEMENTS 64        /* a longer array is counted only */
#define MAX_TYPES 64

static const char *const type_names[] = {"u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"};

/* A scalar seen as an array of one, so that the array readers serve both. */
static struct gguf_kv as_array(const struct gguf_kv *kv)
{
    struct gguf_kv a = *kv;
    if (kv->type != GGUF_ARRAY) {
        a.elem_type = kv->type;
        a.type = GGUF_ARRAY;
        a.n = 1;
    }
    return a;
}

static json_t *element_json(const struct gguf_kv *a, uint64_t i, uint64_t *cursor)
{
    struct gguf_string s = {0};
    switch (a->elem_type) {
    case GGUF_STRING:
        return gguf_array_next_string(a, cursor, &s) == 1 ? cli_json_text(s.data, s.len) : json_null();
    case GGUF_F32:
    case GGUF_F64: {
        json_t *real = json_real(gguf_array_f64(a, i));
        return real ? real : json_null(); /* NaN and infinities have no JSON form */
    }
    case GGUF_BOOL:
        return json_boolean(gguf_array_i64(a, i) != 0);
    default:
        return json_integer(gguf_array_i64(a, i));
    }
}

static json_t *kv_json(const struct gguf_kv *kv)
{
    struct gguf_kv a = as_array(kv);
    uint64_t cursor = 0;
    if (kv->type != GGUF_ARRAY)
        return element_json(&a, 0, &cursor);
    if (kv->n > JSON_ELEMENTS)
        return json_pack("{s:s, s:I}", "array_of", type_names[kv->elem_type], "n", (json_int_t)kv->n);
    json_t *list = json_array();
    for (uint64_t i = 0; i < kv->n; i++)
        json_array_append_new(list, element_json(&a, i, &cursor));
    return list;
}

static void print_element(const struct gguf_kv *a, uint64_t i, uint64_t *cursor)
{
    struct buf text;
    buf_init(&text, MEM_OTHER, 1 << 20);
    if (a->elem_type == GGUF_STRING) {
        struct gguf_string s = {0};
        if (gguf_array_next_string(a, cursor, &s) == 1)
            json_write_string(&text, s.data, s.len < SHOWN_STRING ? s.len : SHOWN_STRING, 1);
        cli_write_safe(stdout, buf_str(&text), text.len);
        if (s.len > SHOWN_STRING)
            printf("... (%zu bytes)", s.len);
    } else if (a->elem_type == GGUF_F32 || a->elem_type == GGUF_F64) {
        printf("%.9g", gguf_array_f64(a, i));
    } else if (a->elem_type == GGUF_BOOL) {
        printf("%s", gguf_array_i64(a, i) ? "true" : "false");
    } else {
        printf("%" PRId64, gguf_array_i64(a, i));
    }
    buf_free(&text);
}

static void print_kv(const struct gguf_kv *kv)
{
    struct gguf_kv a = as_array(kv);
    uint64_t cursor = 0;
    printf("  ");
    cli_write_safe(stdout, kv->key.data, kv->key.len);
    printf(" = ");
    if (kv->type != GGUF_ARRAY) {
        print_element(&a, 0, &cursor);
    } else {
        printf("%s[%" PRIu64 "]:", type_names[kv->elem_type], kv->n);
        for (uint64_t i = 0; i < kv->n && i < SHOWN_ELEMENTS; i++) {
            printf(i ? ", " : " ");
            print_element(&a, i, &cursor);
        }
        if (kv->n > SHOWN_ELEMENTS)
            printf(", ...");
    }
    putchar('\n');
}

struct type_count {
    uint32_t type;
    uint64_t n_tensors, n_bytes, n_elements;
};

static int count_types(const struct gguf *g, struct type_count *counts)
{
    int n = 0;
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        int k = 0;
        while (k < n && counts[k].type != t->type)
            k++;
        if (k == MAX_TYPES)
            continue;
        if (k == n)
            counts[n++] = (struct type_count){.type = t->type};
        counts[k].n_tensors++;
        counts[k].n_bytes += t->n_bytes;
        counts[k].n_elements += t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
    }
    return n;
}

static uint64_t count_parameters(const struct type_count *counts, int n)
{
    uint64_t total = 0;
    for (int i = 0; i < n; i++)
        total += counts[i].n_elements;
    return total;
}

static json_t *config_json(const struct model *m)
{
    const struct model_config *k = &m->config;
    return json_pack("{s:s, s:i, s:i, s:i, s:i, s:I, s:I, s:I, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:I}", "architecture", k->architecture, "layers", k->n_layer, "full_attention_layers", k->n_full,
                     "linear_attention_layers", k->n_linear, "mtp_layers", k->n_mtp, "context_length", (json_int_t)k->n_ctx_declared, "embedding_length", (json_int_t)k->d_model, "vocabulary",
                     (json_int_t)k->n_vocab, "heads", k->n_head, "kv_heads", k->n_head_kv, "head_size", k->d_head, "linear_key_heads", k->n_head_k, "linear_value_heads", k->n_head_v, "experts",
                     k->n_expert, "experts_used", k->n_expert_used, "weight_bytes", (json_int_t)m->weight_bytes);
}

static int inspect_json(struct cli *c, const struct gguf *g, const struct model *m)
{
    struct type_count counts[MAX_TYPES];
    int n = count_types(g, counts);
    json_t *metadata = json_object(), *types = json_object(), *out = json_object();
    for (size_t i = 0; i < gguf_n_kv(g); i++) {
        const struct gguf_kv *kv = gguf_kv_at(g, i);
        json_t *key = cli_json_text(kv->key.data, kv->key.len);
        json_object_set_new(metadata, json_string_value(key), kv_json(kv));
        json_decref(key);
    }
    for (int i = 0; i < n; i++)
        json_object_set_new(types, quant_name(counts[i].type),
                            json_pack("{s:I, s:I}", "tensors", (json_int_t)counts[i].n_tensors, "bytes", (json_int_t)counts[i].n_bytes));
    json_object_set_new(out, "file", cli_json_text(gguf_path(g), strlen(gguf_path(g))));
    json_object_set_new(out, "parts", json_integer(gguf_n_parts(g)));
    json_object_set_new(out, "bytes", json_integer((json_int_t)gguf_file_bytes(g)));
    json_object_set_new(out, "gguf_version", json_integer(gguf_version(g)));
    json_object_set_new(out, "alignment", json_integer(gguf_alignment(g)));
    json_object_set_new(out, "parameters", json_integer((json_int_t)count_parameters(counts, n)));
    json_object_set_new(out, "n_tensors", json_integer((json_int_t)gguf_n_tensors(g)));
    json_object_set_new(out, "model", config_json(m));
    json_object_set_new(out, "types", types);
    json_object_set_new(out, "metadata", metadata);
    return cli_print_json(c, out, 2);
}

static void print_config(const struct model *m)
{
    const struct model_config *k = &m->config;
    printf("architecture: %s, %d layers (%d full attention, %d linear attention)%s\n", k->architecture, k->n_layer, k->n_full, k->n_linear, k->n_mtp ? ", draft blocks passed over" : "");
    printf("sizes: d %" PRId64 ", vocabulary %" PRId64 ", context %" PRId64 "\n", k->d_model, k->n_vocab, k->n_ctx_declared);
    printf("attention heads: %d query, %d KV, of %d; linear: %d key, %d value, of %d\n", k->n_head, k->n_head_kv, k->d_head, k->n_head_k, k->n_head_v, k->d_state);
    if (k->is_moe)
        printf("experts: %d, %d used, width %" PRId64 ", shared %" PRId64 "\n", k->n_expert, k->n_expert_used, k->d_ff_expert, k->d_ff_shared);
    else
        printf("feed-forward: %" PRId64 "\n", k->d_ff);
    printf("chat template: %s\n", m->chat ? "yes" : "none (apr run --raw works)");
}

static void print_file(const struct gguf *g, const struct model *m)
{
    struct type_count counts[MAX_TYPES];
    int n = count_types(g, counts);
    printf("file: %s (%d part%s, %.1f MiB, GGUF v%u, alignment %u)\n", gguf_path(g), gguf_n_parts(g), gguf_n_parts(g) == 1 ? "" : "s", MIB(gguf_file_bytes(g)), gguf_version(g),
           gguf_alignment(g));
    if (m)
        print_config(m);
    printf("tensors: %zu, %" PRIu64 " parameters\n", gguf_n_tensors(g), count_parameters(counts, n));
    for (int i = 0; i < n; i++)
        printf("  %-8s %6" PRIu64 " tensors %12.1f MiB\n", quant_name(counts[i].type), counts[i].n_tensors, MIB(counts[i].n_bytes));
    printf("metadata: %zu entries\n", gguf_n_kv(g));
    for (size_t i = 0; i < gguf_n_kv(g); i++)
        print_kv(gguf_kv_at(g, i));
}

int verb_inspect(struct cli *c)
{
    char path[4096];
    struct gguf *g = NULL;
    struct model *m = NULL;
    TRY(cli_model_path(c, path, sizeof path));
    TRY(gguf_open(path, 0, &g, &c->err));
    int rc = model_load(path, MODEL_HEADER_ONLY, &m, &c->err);
    if (rc == 0 && c->o[O_JSON].set)
        rc = inspect_json(c, g, m);
    else if (!c->o[O_JSON].set)
        print_file(g, m);
    model_free(m);
    gguf_close(g);
    return rc;
}
