/* Where a model's path may lead: parts of a split file, links as download caches make them (B188), and what is no model at all. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "gguf/gguf.h"
#include "support/gguf_make.h"
#include "support/test.h"

#define PART "r2-q8_0-0000%d-of-00003.gguf"

static char folder[512];

/* folder/NAME in a ring of buffers. */
static const char *in_folder(const char *format, ...) PRINTF_LIKE(1, 2);
static const char *in_folder(const char *format, ...)
{
    static char ring[8][1024];
    static unsigned next;
    char *out = ring[next++ % 8], name[256];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    snprintf(out, sizeof ring[0], "%s/%s", folder, name);
    return out;
}

static const char *golden_part(int part)
{
    return test_path("models/split/" PART, part);
}

static void copy_part(int part, const char *to)
{
    size_t n;
    char *data = test_read_file(golden_part(part), &n);
    make_write(to, data, n);
    mem_free(data);
}

static void make_link(const char *to, const char *at)
{
    if (symlink(to, at) != 0)
        fail_msg("%s: %s", at, strerror(errno));
}

static void refuse(const char *path, int code, const char *word)
{
    struct gguf *g = NULL;
    struct err err = {0};
    size_t before = mem_bytes(MEM_GGUF);
    for (unsigned flags = 0; flags <= GGUF_HEADER_ONLY; flags++) {
        int rc = gguf_open(path, flags, &g, &err);
        if (rc != code || !strstr(err.message, word))
            fail_msg("%s: %d (%s), expected %d with \"%s\"", path, rc, err.message, code, word);
        assert_null(strchr(err.message, '\n'));
    }
    assert_null(g);
    assert_int_equal(mem_bytes(MEM_GGUF), before);
}

/* The split file holds what the whole one holds, from whichever path it is opened. */
static void check_split(const char *path)
{
    struct gguf *whole = NULL, *split = NULL;
    struct err err = {0};
    test_ok(gguf_open(test_path("models/r2-q8_0.gguf"), 0, &whole, &err), &err, "whole");
    test_ok(gguf_open(path, 0, &split, &err), &err, path);
    assert_string_equal(gguf_path(split), path);
    assert_int_equal(gguf_n_parts(split), 3);
    assert_int_equal(gguf_n_tensors(split), gguf_n_tensors(whole));
    assert_non_null(gguf_find(split, "general.architecture")); /* of part 0, whichever was named */
    uint64_t bytes = 0;
    int seen[3] = {0};
    for (int i = 0; i < 3; i++) {
        struct stat st;
        assert_int_equal(stat(gguf_part_path(split, i), &st), 0);
        bytes += (uint64_t)st.st_size;
    }
    assert_true(gguf_file_bytes(split) == bytes);
    for (size_t i = 0; i < gguf_n_tensors(split); i++) {
        char name[64];
        const struct gguf_tensor *t = gguf_tensor_at(split, i);
        snprintf(name, sizeof name, "%.*s", (int)t->name.len, t->name.data);
        const struct gguf_tensor *other = gguf_find_tensor(whole, name);
        assert_ptr_equal(gguf_find_tensor(split, name), t);
        assert_non_null(other);
        assert_int_equal(t->n_bytes, other->n_bytes);
        assert_memory_equal(t->data, other->data, t->n_bytes);
        assert_in_range(t->part, 0, 2);
        assert_string_equal(gguf_path_of_address(t->data), gguf_part_path(split, t->part));
        seen[t->part]++;
    }
    assert_true(seen[1] && seen[2]);
    gguf_close(split);
    gguf_close(whole);
}

static void any_part(void **state)
{
    (void)state;
    for (int part = 1; part <= 3; part++)
        check_split(golden_part(part));
}

/* snapshots/REV/PART -> ../../blobs/HASH: the names of the targets say nothing. */
static void links_of_a_cache(void **state)
{
    char here[1024];
    (void)state;
    mkdir(in_folder("blobs"), 0755);
    mkdir(in_folder("snapshots"), 0755);
    mkdir(in_folder("snapshots/rev"), 0755);
    for (int part = 1; part <= 3; part++) {
        char target[64];
        copy_part(part, in_folder("blobs/5ha%d", part));
        snprintf(target, sizeof target, "../../blobs/5ha%d", part);
        make_link(target, in_folder("snapshots/rev/" PART, part));
    }
    for (int part = 1; part <= 3; part++)
        check_split(in_folder("snapshots/rev/" PART, part));
    assert_non_null(getcwd(here, sizeof here));
    assert_int_equal(chdir(in_folder("snapshots/rev")), 0); /* a bare name */
    struct gguf *g = NULL;
    struct err err = {0};
    test_ok(gguf_open("r2-q8_0-00003-of-00003.gguf", 0, &g, &err), &err, "bare name");
    gguf_close(g);
    assert_int_equal(chdir(here), 0);
    unlink(in_folder("snapshots/rev/" PART, 3));
    refuse(in_folder("snapshots/rev/" PART, 1), ERR_NOT_FOUND, in_folder("snapshots/rev/" PART, 3));
    refuse(in_folder("snapshots/rev/" PART, 2), ERR_NOT_FOUND, "part 3 of the split file");
}

/* A link of another name, and a link whose own folder has no siblings: they lie beside the target. */
static void links_to_a_part(void **state)
{
    (void)state;
    mkdir(in_folder("links"), 0755);
    make_link(golden_part(2), in_folder("links/my-model"));
    check_split(in_folder("links/my-model"));
    make_link(golden_part(1), in_folder("links/" PART, 1));
    check_split(in_folder("links/" PART, 1));
}

static void parts_that_do_not_fit(void **state)
{
    (void)state;
    mkdir(in_folder("parts"), 0755);
    copy_part(1, in_folder("parts/alone.gguf"));
    refuse(in_folder("parts/alone.gguf"), ERR_FORMAT, "is not named like one");
    copy_part(1, in_folder("parts/" PART, 1));
    refuse(in_folder("parts/" PART, 1), ERR_NOT_FOUND, "00002-of-00003.gguf was not found");
    copy_part(3, in_folder("parts/" PART, 2));
    copy_part(2, in_folder("parts/" PART, 3));
    refuse(in_folder("parts/" PART, 1), ERR_FORMAT, "split.no is not 1");
    copy_part(2, in_folder("parts/" PART, 2));
    make_write(in_folder("parts/" PART, 3), "", 0); /* there, and unusable: not "not found" */
    refuse(in_folder("parts/" PART, 1), ERR_FORMAT, "is empty");
    copy_part(2, in_folder("parts/" PART, 3));
    refuse(in_folder("parts/" PART, 1), ERR_FORMAT, "split.no is not 2");
    make_write(in_folder("parts/" PART, 3), "GGUF", 4);
    refuse(in_folder("parts/" PART, 1), ERR_FORMAT, "00003-of-00003.gguf: the file ends");
}

/* Two parts with one tensor each, bent one way at a time. */
static void write_pair(uint16_t no, uint16_t count, int32_t n_tensors, const char *second_name)
{
    for (int i = 0; i < 2; i++) {
        struct gguf_make m;
        struct buf file;
        make_init(&m);
        make_scalar(&m, "split.no", GGUF_U16, i ? &no : &(uint16_t){0}, 2);
        make_scalar(&m, "split.count", GGUF_U16, i ? &count : &(uint16_t){2}, 2);
        make_scalar(&m, "split.tensors.count", GGUF_I32, &n_tensors, 4);
        make_tensor(&m, i ? second_name : "a", 0, 1, (uint64_t[]){1}, 0, 4);
        make_finish(&m, &file);
        make_write(in_folder("pair-0000%d-of-00002.gguf", i + 1), file.data, file.len);
        buf_free(&file);
        make_free(&m);
    }
}

static void split_keys_that_do_not_fit(void **state)
{
    struct gguf *g = NULL;
    struct err err = {0};
    (void)state;
    write_pair(1, 2, 2, "b");
    test_ok(gguf_open(in_folder("pair-00002-of-00002.gguf"), 0, &g, &err), &err, "pair");
    assert_int_equal(gguf_find_tensor(g, "b")->part, 1);
    assert_int_equal(gguf_find_tensor(g, "a")->part, 0);
    gguf_close(g);
    char path[1024];
    snprintf(path, sizeof path, "%s", in_folder("pair-00001-of-00002.gguf"));
    write_pair(1, 2, 2, "a");
    refuse(path, ERR_FORMAT, "tensor a occurs twice");
    write_pair(1, 2, 3, "b");
    refuse(path, ERR_FORMAT, "split.tensors.count is 3");
    write_pair(1, 2, -2, "b");
    refuse(path, ERR_FORMAT, "split.tensors.count is not a whole number");
    write_pair(0, 2, 2, "b");
    refuse(path, ERR_FORMAT, "split.no is not 1");
    write_pair(1, 3, 2, "b");
    refuse(path, ERR_FORMAT, "split.count is not 2");
    write_pair(2, 2, 2, "b");
    refuse(in_folder("pair-00002-of-00002.gguf"), ERR_FORMAT, "split.no 2 of split.count 2");
}

static void no_files(void **state)
{
    char path[1024];
    (void)state;
    mkdir(in_folder("a.gguf"), 0755);
    refuse(in_folder("a.gguf"), ERR_FORMAT, "is a directory");
    assert_int_equal(mkfifo(in_folder("b.gguf"), 0644), 0);
    alarm(20); /* opening a FIFO must not wait for a writer */
    refuse(in_folder("b.gguf"), ERR_FORMAT, "not a regular file");
    alarm(0);
    refuse("/dev/zero", ERR_FORMAT, "not a regular file");
    make_link("c.gguf", in_folder("c.gguf"));
    refuse(in_folder("c.gguf"), ERR_IO, "leads back to itself");
    make_link("nowhere", in_folder("d.gguf"));
    refuse(in_folder("d.gguf"), ERR_NOT_FOUND, "check the path");
    refuse(in_folder("e.gguf"), ERR_NOT_FOUND, "check the path");
    refuse("", ERR_NOT_FOUND, "check the path");
    make_write(in_folder("f.gguf"), "", 0);
    refuse(in_folder("f.gguf"), ERR_FORMAT, "is empty");
    make_write(in_folder("g.gguf"), "GGUF", 4);
    assert_int_equal(chmod(in_folder("g.gguf"), 0), 0);
    snprintf(path, sizeof path, "%s", in_folder("g.gguf"));
    int root = geteuid() == 0;
    if (root)
        assert_int_equal(seteuid(65534), 0); /* root may read everything */
    refuse(path, ERR_IO, "check its permissions");
    if (root)
        assert_int_equal(seteuid(0), 0);
}

static void what_else_it_may_be(void **state)
{
    static const struct {
        const char *bytes;
        size_t n;
        const char *says;
    } cases[] = {
        {"PK\3\4....", 8, "zip"},
        {"\x1F\x8B\x08\0", 4, "gzip"},
        {"\x28\xB5\x2F\xFD....", 8, "zstd"},
        {"\x80\x02}q", 4, "pickle"},
        {"lmgg\1\0\0\0", 8, "older GGML"},
        {"<!DOCTYPE html><title>404</title>", 33, "web page"},
        {"{\"error\":\"Repository not found\"}", 32, "JSON"},
        {"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", 56, "git lfs pull"},
        {"\x40\1\0\0\0\0\0\0{\"__metadata__\":{}}", 27, "safetensors"},
        {"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 16, "download did not finish"},
        {"MZ\x90\0", 4, "not \"GGUF\""},
        {"FUGG\0\0\0\3", 8, "not \"GGUF\""},
        {"GG", 2, "too short"},
        {"GGUF\0\0\0\3\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 24, "big-endian"}, /* B191 */
        {"GGUF\0\0\0\2\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 24, "big-endian"},
        {"GGUF\1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 24, "version 1"},
        {"GGUF\3\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 24, "no metadata and no tensors"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int big_or_old = strncmp(cases[i].says, "big", 3) == 0 || strncmp(cases[i].says, "version", 7) == 0;
        make_write(in_folder("other.gguf"), cases[i].bytes, cases[i].n);
        refuse(in_folder("other.gguf"), big_or_old ? ERR_UNSUPPORTED : ERR_FORMAT, cases[i].says);
    }
}

static int make_folder(void **state)
{
    static char name[] = "/tmp/apr-places-XXXXXX";
    (void)state;
    if (!mkdtemp(name) || chmod(name, 0755) != 0)
        return -1;
    return realpath(name, folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    static const char *const leaves[] = {"blobs/5ha1", "blobs/5ha2", "blobs/5ha3", "links/my-model", "parts/alone.gguf", "b.gguf", "c.gguf", "d.gguf", "f.gguf",
                                         "g.gguf", "other.gguf", "pair-00001-of-00002.gguf", "pair-00002-of-00002.gguf"};
    static const char *const folders[] = {"snapshots/rev", "links", "parts", "snapshots", "blobs", "a.gguf"};
    (void)state;
    for (size_t i = 0; i < sizeof leaves / sizeof *leaves; i++)
        unlink(in_folder("%s", leaves[i]));
    for (int part = 1; part <= 3; part++)
        for (int i = 0; i < 3; i++)
            unlink(in_folder("%s/" PART, folders[i], part));
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        rmdir(in_folder("%s", folders[i]));
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_part),
        cmocka_unit_test(links_of_a_cache),
        cmocka_unit_test(links_to_a_part),
        cmocka_unit_test(parts_that_do_not_fit),
        cmocka_unit_test(split_keys_that_do_not_fit),
        cmocka_unit_test(no_files),
        cmocka_unit_test(what_else_it_may_be),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
