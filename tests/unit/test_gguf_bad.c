/* Damaged and odd files (S2-S12, B190, B191), straight from the maker: the reader refuses what is wrong with the container, and lets through what only
 * a model or a vocabulary can judge. The lists below are that border. */
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "gguf/gguf.h"
#include "support/test.h"

extern char **environ;

/* Files that must be refused, by whoever loads the model (first letters of the names). */
static const char *const model_refuses[] = {
    "n_tensor-0.", "type-i32.", "dims-shape.", "dims-rows.", "dims-1d.", "missing-", "shape-", "no-qwen35.", "no-general.architecture.", "block_count-", "embedding_length-",
    "attention.", "full_attention_interval-", "rope.", "ssm.", "context_length-", "arch-", "nextn-all.", "sections-bad.",
};
/* ... and by whoever reads the vocabulary. */
static const char *const vocab_refuses[] = {
    "no-tokenizer.", "tokens-", "types-", "merge-", "eos-", "tokenizer-unknown.",
};

static int in_list(const char *const *list, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strncmp(name, list[i], strlen(list[i])) == 0)
            return 1;
    return 0;
}

static char folder[] = "/tmp/apr-bad-XXXXXX";
static json_t *manifest;

static int run(char *const *argv)
{
    pid_t pid;
    int status;
    if (posix_spawnp(&pid, argv[0], NULL, NULL, argv, environ) != 0 || waitpid(pid, &status, 0) != pid)
        return -1;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -1;
}

static int make_files(void **state)
{
    char path[128], maker[] = TEST_SOURCE "/tests/tools/make_badgguf.py";
    (void)state;
    if (!mkdtemp(folder) || run((char *[]){"python3", "-B", maker, folder, NULL}) != 0)
        return -1;
    snprintf(path, sizeof path, "%s/manifest.json", folder);
    manifest = json_load_file(path, 0, NULL);
    return json_is_array(manifest) ? 0 : -1;
}

static int remove_files(void **state)
{
    (void)state;
    json_decref(manifest);
    return run((char *[]){"rm", "-rf", "--", folder, NULL});
}

/* Reads all that the reader offers, so that a sanitizer sees every byte it vouched for. */
static uint64_t walk(const struct gguf *g)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < gguf_n_kv(g); i++) {
        const struct gguf_kv *kv = gguf_kv_at(g, i);
        struct gguf_string text;
        uint64_t cursor = 0;
        for (uint64_t k = 0; k < kv->n_bytes; k++)
            sum += ((const uint8_t *)kv->data)[k];
        while (gguf_array_next_string(kv, &cursor, &text))
            sum += text.len;
    }
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        sum += ((const uint8_t *)t->data)[0];
        sum += ((const uint8_t *)t->data)[t->n_bytes - 1];
    }
    return sum;
}

/* Opens an entry with no more memory at hand than a small multiple of the file. */
static int open_entry(json_t *entry, struct err *err)
{
    char path[256];
    struct stat st;
    struct gguf *g = NULL;
    snprintf(path, sizeof path, "%s/%s", folder, json_string_value(json_object_get(entry, "file")));
    assert_int_equal(stat(path, &st), 0);
    size_t before = mem_bytes(MEM_GGUF);
    mem_fail_above((size_t)st.st_size * 4 + 4096);
    uint64_t start = clock_ns();
    int rc = gguf_open(path, 0, &g, err);
    double ms = clock_ms_since(start);
    mem_fail_above(0);
    assert_true(ms < 1000);
    if (rc < 0) {
        assert_null(g);
        assert_null(strchr(err->message, '\n'));
        assert_int_equal(strncmp(err->message, path, strlen(path)), 0);
        assert_true(rc != ERR_NO_MEMORY);
    } else {
        assert_true(walk(g) > 0);
        gguf_close(g);
    }
    assert_int_equal(mem_bytes(MEM_GGUF), before);
    return rc;
}

static void damaged_containers_are_refused(void **state)
{
    size_t i, refused = 0, passed = 0;
    json_t *entry;
    (void)state;
    json_array_foreach(manifest, i, entry) {
        const char *file = json_string_value(json_object_get(entry, "file")), *word = json_string_value(json_object_get(entry, "name"));
        struct err err = {0};
        if (strcmp(json_string_value(json_object_get(entry, "must")), "refuse") != 0)
            continue;
        int theirs = in_list(model_refuses, sizeof model_refuses / sizeof *model_refuses, file) || in_list(vocab_refuses, sizeof vocab_refuses / sizeof *vocab_refuses, file);
        int rc = open_entry(entry, &err);
        if (theirs ? rc != 0 : rc == 0)
            fail_msg("%s (%s): %s", file, json_string_value(json_object_get(entry, "why")), rc ? err.message : "opens");
        if (rc < 0 && !strstr(err.message, word))
            fail_msg("%s: \"%s\" does not say %s", file, err.message, word);
        refused += !theirs;
        passed += theirs != 0;
    }
    assert_int_equal(refused, 82);
    assert_int_equal(passed, 75);
}

static void odd_files_open(void **state)
{
    size_t i, opened = 0;
    json_t *entry;
    (void)state;
    json_array_foreach(manifest, i, entry) {
        struct err err = {0};
        if (strcmp(json_string_value(json_object_get(entry, "must")), "load") != 0)
            continue;
        test_ok(open_entry(entry, &err), &err, json_string_value(json_object_get(entry, "file")));
        opened++;
    }
    assert_int_equal(opened, 20);
}

/* Cut anywhere in the header, the file is refused; and a header alone is enough to plan from. */
static void cut_anywhere(void **state)
{
    char path[256], cut[256];
    size_t n;
    struct gguf *g = NULL;
    struct err err = {0};
    (void)state;
    snprintf(path, sizeof path, "%s/good.gguf", folder);
    snprintf(cut, sizeof cut, "%s/cut.gguf", folder);
    char *data = test_read_file(path, &n);
    test_ok(gguf_open(path, 0, &g, &err), &err, path);
    uint64_t start = gguf_find_tensor(g, "token_embd.weight")->offset;
    gguf_close(g);
    FILE *file = fopen(cut, "wb");
    assert_int_equal(fwrite(data, 1, start, file), start);
    fclose(file);
    test_ok(gguf_open(cut, GGUF_HEADER_ONLY, &g, &err), &err, "header");
    gguf_close(g);
    for (uint64_t length = start - 1; length > 0; length -= length > 1500 ? 11 : 1) {
        g = NULL;
        assert_int_equal(truncate(cut, (off_t)length), 0);
        assert_true(gguf_open(cut, 0, &g, &err) < 0);
        assert_null(g);
        assert_non_null(strstr(err.message, "download it again")); /* seen as cut, not as what the bytes behind the end would say */
    }
    mem_free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(damaged_containers_are_refused),
        cmocka_unit_test(odd_files_open),
        cmocka_unit_test(cut_anywhere),
    };
    return cmocka_run_group_tests(tests, make_files, remove_files);
}
