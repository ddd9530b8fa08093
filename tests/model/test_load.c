/* What a file must have and hold to be a model: every key and its range, every tensor and its shape, the variants that other writers make (B187). */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "gguf/quant.h"
#include "support/edit.h"
#include "support/model.h"
#include "support/test.h"

/* Loads the file as it was edited. Refused: the sentence names `word` and the file, and the header alone is refused as well. */
static void expect_refusal(struct edit *e, int code, const char *word)
{
    struct model *m = NULL;
    const char *path = edit_write(e);
    size_t before = mem_total();
    for (int header_only = 0; header_only < 2; header_only++) {
        struct err err = {0};
        int rc = model_load(path, MODEL_NO_TOKENISER | (header_only ? MODEL_HEADER_ONLY : 0), &m, &err);
        if (rc >= 0)
            fail_msg("a file with a bad %s was loaded", word);
        if (rc != code || !strstr(err.message, word) || strncmp(err.message, path, strlen(path)) != 0 || strchr(err.message, '\n'))
            fail_msg("expected %s and the word %s, got %s: %s", err_kind(code), word, err_kind(rc), err.message);
    }
    assert_int_equal(mem_total(), before);
    edit_free(e);
}

static void test_keys(void **unused)
{
    static const struct {
        const char *model, *key;
        int64_t bad[6];
        int n_bad;
    } keys[] = {
        {"r2-q8_0", "block_count", {0, -1, 513, 1 << 30}, 4},
        {"r2-q8_0", "context_length", {0, -1, 1LL << 40}, 3},
        {"r2-q8_0", "embedding_length", {0, 7, 1 << 20}, 3},
        {"r2-q8_0", "feed_forward_length", {0, -5, 1 << 30}, 3},
        {"r2-q8_0", "attention.head_count", {0, -2, 2000}, 3},
        {"r3-q4_k_m", "attention.head_count", {5}, 1},
        {"r2-q8_0", "attention.head_count_kv", {0, 3, -1}, 3},
        {"r2-q8_0", "attention.key_length", {0, 4, 252, 5000}, 4},
        {"r2-q8_0", "attention.value_length", {0, 128}, 2},
        {"r2-q8_0", "rope.dimension_count", {0, 1, 63, 258, 4096}, 5},
        {"r2-q8_0", "ssm.conv_kernel", {0, 1, 17}, 3},
        {"r2-q8_0", "ssm.state_size", {0, 100, 5000}, 3},
        {"r2-q8_0", "ssm.group_count", {0, 3, 5000}, 3},
        {"r2-q8_0", "ssm.time_step_rank", {0, 3, 5000}, 3},
        {"r2-q8_0", "ssm.inner_size", {0, 100, -1}, 3},
        {"moe-q4_k_m", "expert_count", {0, 5000, -2}, 3},
        {"moe-q4_k_m", "expert_used_count", {0, 9, 65}, 3},
        {"moe-q4_k_m", "expert_feed_forward_length", {0, 1 << 30}, 2},
        {"moe-q4_k_m", "expert_shared_feed_forward_length", {0, 1 << 30}, 2},
    };
    (void)unused;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        char key[96];
        snprintf(key, sizeof key, "%s.%s", strncmp(keys[i].model, "moe", 3) == 0 ? "qwen35moe" : "qwen35", keys[i].key);
        for (int k = -2; k < keys[i].n_bad; k++) {
            struct edit *e = edit_open(keys[i].model);
            int code = ERR_FORMAT;
            if (k == -2)
                edit_drop_key(e, key);
            else if (k == -1)
                edit_set_string(e, key, "4");
            else
                edit_set_int(e, key, GGUF_I64, keys[i].bad[k]);
            if (k >= 0 && (keys[i].bad[k] == 252 || keys[i].bad[k] == 128 || (keys[i].bad[k] == 100 && strstr(key, "state"))))
                code = ERR_UNSUPPORTED; /* possible, and not served */
            expect_refusal(e, code, keys[i].key);
        }
    }
}

static void test_float_keys(void **unused)
{
    static const struct {
        const char *key;
        double bad;
        int code;
    } keys[] = {
        {"qwen35.attention.layer_norm_rms_epsilon", 0, ERR_FORMAT},   {"qwen35.attention.layer_norm_rms_epsilon", -1e-6, ERR_FORMAT},
        {"qwen35.attention.layer_norm_rms_epsilon", 1e-60, ERR_FORMAT}, {"qwen35.attention.layer_norm_rms_epsilon", 0.0 / 0.0, ERR_FORMAT},
        {"qwen35.rope.freq_base", 0, ERR_FORMAT},                     {"qwen35.rope.freq_base", -1e7, ERR_FORMAT},
        {"qwen35.rope.freq_base", 1.0 / 0.0, ERR_FORMAT},             {"qwen35.rope.freq_base", 1e300, ERR_FORMAT},
        {"qwen35.attention.scale", -1, ERR_FORMAT},                   {"qwen35.attention.scale", 1e300, ERR_FORMAT},
        {"qwen35.rope.scaling.factor", 4, ERR_UNSUPPORTED},           {"qwen35.rope.scale_linear", 2, ERR_UNSUPPORTED},
    };
    (void)unused;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        struct edit *e = edit_open("r2-q8_0");
        edit_set_float(e, keys[i].key, keys[i].bad);
        expect_refusal(e, keys[i].code, keys[i].key);
    }
    struct edit *e = edit_open("r2-q8_0");
    edit_set_string(e, "qwen35.rope.scaling.type", "yarn");
    edit_set_float(e, "qwen35.rope.scaling.factor", 4);
    expect_refusal(e, ERR_UNSUPPORTED, "rope.scaling.type yarn");
    e = edit_open("r2-q8_0");
    edit_set_string(e, "general.architecture", "qwen3next");
    expect_refusal(e, ERR_UNSUPPORTED, "qwen3next");
    e = edit_open("r2-q8_0");
    edit_set_int(e, "qwen35.ssm.v_head_reordered", GGUF_BOOL, 0);
    expect_refusal(e, ERR_UNSUPPORTED, "ssm.v_head_reordered");
    e = edit_open("r2-q8_0");
    edit_set_int(e, "qwen35.nextn_predict_layers", GGUF_U32, 2);
    expect_refusal(e, ERR_FORMAT, "nextn_predict_layers");
    e = edit_open("r2-q8_0");
    edit_set_int(e, "qwen35.full_attention_interval", GGUF_U32, 0);
    expect_refusal(e, ERR_FORMAT, "full_attention_interval");
}

static void test_array_keys(void **unused)
{
    static const struct {
        const char *key;
        int64_t values[5];
        size_t n;
        int code;
    } bad[] = {
        {"attention.head_count_kv", {0, 0}, 2, ERR_FORMAT},       {"attention.head_count_kv", {1, 2}, 2, ERR_UNSUPPORTED}, {"attention.head_count_kv", {0}, 0, ERR_FORMAT},
        {"feed_forward_length", {512, 256}, 2, ERR_UNSUPPORTED},  {"attention.recurrent_layers", {1}, 1, ERR_FORMAT},
        {"rope.dimension_sections", {11, 11, 11, 11, 0}, 5, ERR_FORMAT}, {"rope.dimension_sections", {40, 0, 0, 0}, 4, ERR_FORMAT}, {"rope.dimension_sections", {-1, 0, 0, 0}, 4, ERR_FORMAT},
    };
    (void)unused;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct edit *e = edit_open("r2-q8_0");
        char key[96];
        snprintf(key, sizeof key, "qwen35.%s", bad[i].key);
        edit_set_ints(e, key, GGUF_I32, bad[i].values, bad[i].n);
        expect_refusal(e, bad[i].code, bad[i].key);
    }
}

/* B186: each tensor that is missing or has another shape is named, and so is the file. */
static void test_tensors(void **unused)
{
    static const char *const models[] = {"r2-q8_0", "moe-q4_k_m", "r3-q4_k_m"};
    (void)unused;
    for (size_t k = 0; k < sizeof models / sizeof *models; k++) {
        struct edit *all = edit_open(models[k]);
        size_t n = gguf_n_tensors(edit_source(all)), step = k == 0 ? 1 : 5;
        for (size_t i = 0; i < n; i += step) {
            const struct gguf_tensor *t = gguf_tensor_at(edit_source(all), i);
            char name[96];
            snprintf(name, sizeof name, "%.*s", (int)t->name.len, t->name.data);
            if (strcmp(name, "output.weight") == 0)
                continue; /* tied without it */
            struct edit *e = edit_open(models[k]);
            edit_drop_tensor(e, name);
            expect_refusal(e, ERR_FORMAT, name);
            e = edit_open(models[k]);
            uint64_t ne[4] = {t->ne[0], t->ne[1], t->ne[2], t->ne[3]};
            int last = t->n_dims - 1;
            if (ne[last] < 2)
                ne[last] = 2;
            else
                ne[last] /= 2; /* a part of the data is enough then; vectors stay whole blocks */
            size_t n_bytes = quant_row_bytes(t->type, ne[0]) * ne[1] * ne[2];
            edit_set_tensor(e, name, t->type, ne, t->n_dims, t->data, n_bytes < t->n_bytes ? n_bytes : t->n_bytes);
            expect_refusal(e, ERR_FORMAT, strcmp(name, "token_embd.weight") == 0 ? "token_embd" : name);
        }
        edit_free(all);
    }
    struct edit *e = edit_open("r2-q8_0");
    uint64_t ne[1] = {1};
    edit_set_tensor(e, "blk.0.ffn_up.scale", QUANT_F32, ne, 1, &(float){2}, 4);
    expect_refusal(e, ERR_UNSUPPORTED, "blk.0.ffn_up.scale");
}

/* The logits of p7's last token. */
static float *logits_of(const char *path, size_t *n_vocab)
{
    struct rig rig;
    struct err err = {0};
    struct session *s = NULL;
    struct sync_result result;
    size_t n;
    rig_open_path(&rig, path, NULL, ARITHMETIC_DEFAULT, 2, 16, 1);
    int32_t *ids = rig_prompt("r2-q8_0", "p7", &n);
    test_ok(session_create(rig.r, KV_F32, 64, &s, &err), &err, "session");
    test_ok(session_sync(s, &(struct sync_request){.tokens = ids, .n = n}, &result, &err), &err, "sync");
    *n_vocab = (size_t)rig.m->config.n_vocab;
    float *out = mem_alloc(MEM_OTHER, *n_vocab * sizeof *out);
    memcpy(out, session_logits(s), *n_vocab * sizeof *out);
    session_free(s);
    mem_free(ids);
    rig_close(&rig);
    return out;
}

static void expect_same(struct edit *a, struct edit *b)
{
    size_t n, n_other;
    float *x = logits_of(edit_write(a), &n), *y = logits_of(edit_write(b), &n_other);
    assert_int_equal(n, n_other);
    assert_memory_equal(x, y, n * sizeof *x);
    mem_free(x);
    mem_free(y);
    edit_free(a);
    edit_free(b);
}

static void test_key_variants(void **unused)
{
    static const int64_t ff[4] = {512, 512, 512, 512}, kv[4] = {0, 1, 0, 0}, mask[2] = {1, 0};
    (void)unused;
    struct edit *e = edit_open("r2-q8_0");
    struct model *m = NULL;
    struct err err = {0};
    uint64_t n_kv = 0, n_ff = 0;
    int64_t many_kv[2], many_ff[2];
    assert_int_equal(gguf_get_u64(edit_source(e), "qwen35.attention.head_count_kv", 1, 99, &n_kv, &err), 1);
    assert_int_equal(gguf_get_u64(edit_source(e), "qwen35.feed_forward_length", 1, 1 << 20, &n_ff, &err), 1);
    for (int i = 0; i < 2; i++) {
        many_kv[i] = kv[i] * (int64_t)n_kv;
        many_ff[i] = ff[i] / 512 * (int64_t)n_ff;
    }
    edit_set_ints(e, "qwen35.attention.head_count_kv", GGUF_I32, many_kv, 2);
    edit_set_ints(e, "qwen35.feed_forward_length", GGUF_U32, many_ff, 2);
    edit_set_ints(e, "qwen35.attention.recurrent_layers", GGUF_BOOL, mask, 2);
    edit_set_int(e, "qwen35.full_attention_interval", GGUF_U16, 7); /* the mask says more */
    edit_set_int(e, "qwen35.ssm.v_head_reordered", GGUF_BOOL, 1);
    edit_set_int(e, "qwen35.block_count", GGUF_U64, 2);
    edit_set_string(e, "qwen35.rope.scaling.type", "none");
    edit_set_float(e, "qwen35.rope.scaling.factor", 8);
    edit_set_float(e, "qwen35.attention.scale", 0);
    edit_rename_tensor(e, "blk.0.ssm_dt.bias", "blk.0.ssm_dt");
    test_ok(model_load(edit_write(e), MODEL_NO_TOKENISER | MODEL_HEADER_ONLY, &m, &err), &err, "variants");
    assert_int_equal(m->config.n_layer, 2);
    assert_true(m->config.is_full[1] && !m->config.is_full[0]);
    assert_null(m->token_embd.data);
    model_free(m);
    expect_same(e, edit_open("r2-q8_0"));
}

/* Tensors of no use to text are passed over, whatever they are; blocks above the last are (B52, B192). */
static void test_passed_over(void **unused)
{
    static const char *const names[] = {"v.blk.0.attn_q.weight", "mm.0.weight", "mtp.layers.0.norm", "output_extra.weight", "rope_freqs.weight", "blk.2.nextn.eh_proj.weight", "blk.2.ffn_up.scale"};
    (void)unused;
    struct edit *e = edit_open("r2-q8_0");
    uint64_t ne[1] = {3};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        edit_set_tensor(e, names[i], QUANT_F32, ne, 1, (float[3]){1, 2, 3}, 12);
    edit_set_int(e, "qwen35.block_count", GGUF_U32, 3);
    edit_set_int(e, "qwen35.nextn_predict_layers", GGUF_U32, 1);
    expect_same(e, edit_open("r2-q8_0"));
    struct rig rig;
    rig_open(&rig, "mtp-q4_k_m", NULL, ARITHMETIC_DEFAULT, 1, 1, 1);
    assert_int_equal(rig.m->config.n_mtp, 1);
    rig_close(&rig);
}

/* gate and up of all experts in one tensor: per expert, gate rows, then up rows. */
static void test_fused_experts(void **unused)
{
    (void)unused;
    struct edit *e = edit_open("moe-q4_k_m"), *plain = edit_open("moe-q4_k_m");
    int n_fused = 0;
    for (int layer = 0; layer < 8; layer++) {
        char gate_name[64], up_name[64], name[64];
        snprintf(gate_name, sizeof gate_name, "blk.%d.ffn_gate_exps.weight", layer);
        snprintf(up_name, sizeof up_name, "blk.%d.ffn_up_exps.weight", layer);
        snprintf(name, sizeof name, "blk.%d.ffn_gate_up_exps.weight", layer);
        const struct gguf_tensor *gate = gguf_find_tensor(edit_source(e), gate_name), *up = gguf_find_tensor(edit_source(e), up_name);
        if (!gate || !up || gate->type != up->type)
            continue;
        uint64_t ne[3] = {gate->ne[0], 2 * gate->ne[1], gate->ne[2]}, one = gate->n_bytes / gate->ne[2];
        uint8_t *data = mem_alloc(MEM_OTHER, 2 * gate->n_bytes);
        for (uint64_t x = 0; x < gate->ne[2]; x++) {
            memcpy(data + 2 * x * one, (const uint8_t *)gate->data + x * one, one);
            memcpy(data + (2 * x + 1) * one, (const uint8_t *)up->data + x * one, one);
        }
        edit_drop_tensor(e, gate_name);
        edit_drop_tensor(e, up_name);
        edit_set_tensor(e, name, gate->type, ne, 3, data, 2 * gate->n_bytes);
        mem_free(data);
        n_fused++;
    }
    assert_true(n_fused > 0);
    expect_same(e, plain);
}

/* The output head is the file's own, and the embedding only where there is none. */
static void test_heads(void **unused)
{
    static const struct {
        const char *model;
        int is_tied;
    } cases[] = {{"r2-q8_0", 1}, {"moe-q4_k_m", 0}, {"r3-q4_k_m", 0}};
    (void)unused;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct rig rig;
        rig_open(&rig, cases[i].model, NULL, ARITHMETIC_DEFAULT, 1, 1, 1);
        assert_int_equal(rig.m->output.data == rig.m->token_embd.data, cases[i].is_tied);
        rig_close(&rig);
    }
}

/* A vector that is not stored as f32 is decoded: the same values as bf16 and as f32. */
static void test_decoded_vectors(void **unused)
{
    static const char *const names[] = {"output_norm.weight", "blk.0.attn_norm.weight", "blk.0.ssm_conv1d.weight", "blk.0.ssm_a", "blk.1.attn_q_norm.weight"};
    (void)unused;
    struct edit *e = edit_open("r2-q8_0"), *plain = edit_open("r2-q8_0");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct gguf_tensor *t = gguf_find_tensor(edit_source(e), names[i]);
        size_t n = t->n_bytes / 4;
        uint32_t *wide = mem_alloc(MEM_OTHER, n * 4);
        uint16_t *narrow = mem_alloc(MEM_OTHER, n * 2);
        memcpy(wide, t->data, n * 4);
        for (size_t k = 0; k < n; k++) {
            narrow[k] = (uint16_t)(wide[k] >> 16);
            wide[k] &= 0xFFFF0000u;
        }
        edit_set_tensor(e, names[i], QUANT_BF16, t->ne, t->n_dims, narrow, n * 2);
        edit_set_tensor(plain, names[i], QUANT_F32, t->ne, t->n_dims, wide, n * 4);
        mem_free(wide);
        mem_free(narrow);
    }
    expect_same(e, plain);
}

static void test_names(void **unused)
{
    struct model *m = NULL;
    struct err err = {0};
    char name[64], folder[] = "/tmp/apr-names-XXXXXX", path[256];
    const char *folders[] = {"/nowhere/at/all", folder, NULL};
    (void)unused;
    struct edit *e = edit_open("r2-q8_0");
    edit_set_string(e, "general.name", "Qwen3.5 \xC3\xA9 4B");
    test_ok(model_load(edit_write(e), MODEL_NO_TOKENISER | MODEL_HEADER_ONLY, &m, &err), &err, "load");
    assert_int_equal(model_name(m, name, sizeof name), 13);
    assert_string_equal(name, "Qwen3.5----4B");
    assert_int_equal(model_name(m, name, 5), 4);
    assert_string_equal(name, "Qwen");
    model_free(m);
    edit_drop_key(e, "general.name");
    test_ok(model_load(edit_write(e), MODEL_NO_TOKENISER | MODEL_HEADER_ONLY, &m, &err), &err, "load");
    model_name(m, name, sizeof name);
    assert_string_equal(name, strrchr(edit_write(e), '/') + 1);
    model_free(m);
    edit_free(e);

    assert_non_null(mkdtemp(folder));
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, i ? "%s/apr-tiny.gguf" : "%s/other.gguf", folder);
        fclose(fopen(path, "wb"));
    }
    char found[256];
    test_ok(model_resolve("tiny", folders, found, sizeof found, &err), &err, "tiny");
    assert_string_equal(found, path);
    test_ok(model_resolve("other", folders, found, sizeof found, &err), &err, "other");
    assert_non_null(strstr(found, "/other.gguf"));
    test_ok(model_resolve("./x", folders, found, sizeof found, &err), &err, "a path");
    assert_string_equal(found, "./x");
    assert_int_equal(model_resolve("absent", folders, found, sizeof found, &err), ERR_NOT_FOUND);
    assert_non_null(strstr(err.message, folder));
    assert_non_null(strstr(err.message, "/nowhere/at/all"));
    assert_int_equal(model_resolve("a/path/too/long", folders, found, 4, &err), ERR_INVALID);
    unlink(path);
    snprintf(path, sizeof path, "%s/other.gguf", folder);
    unlink(path);
    rmdir(folder);
}

/* Memory that fails at any point of loading: an error, and nothing is left behind. */
static void test_failing_allocations(void **unused)
{
    int failures = 0;
    (void)unused;
    for (long n = 1; n < 60; n++) {
        struct model *m = NULL;
        struct err err = {0};
        mem_fail_nth(n);
        int rc = model_load(test_path("models/r2-q8_0.gguf"), MODEL_NO_TOKENISER, &m, &err);
        mem_fail_nth(0);
        assert_true(rc == 0 || (rc == ERR_NO_MEMORY && err.message[0]));
        failures += rc < 0;
        model_free(rc == 0 ? m : NULL);
        assert_int_equal(mem_bytes(MEM_MODEL) + mem_bytes(MEM_GGUF), 0);
    }
    assert_true(failures >= 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys),         cmocka_unit_test(test_float_keys),    cmocka_unit_test(test_array_keys),       cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_key_variants), cmocka_unit_test(test_passed_over),   cmocka_unit_test(test_fused_experts),    cmocka_unit_test(test_decoded_vectors),
        cmocka_unit_test(test_names),        cmocka_unit_test(test_heads),         cmocka_unit_test(test_failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
