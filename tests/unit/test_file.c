/* Files as they may be found: links, other kinds, short ones; and the fault list. Streams of a hash. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "support/test.h"

static int folder(char *name)
{
    assert_non_null(mkdtemp(name));
    int dir = open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(dir >= 0);
    return dir;
}

static void test_kinds(void **unused)
{
    char name[] = "/tmp/apr-file-XXXXXX", data[8];
    uint64_t bytes;
    int dir = folder(name);
    (void)unused;
    int fd = file_open_at(dir, "a", O_RDWR | O_CREAT | O_EXCL, 0600);
    assert_true(fd >= 0);
    assert_int_equal(file_allocate(fd, 100), 0);
    assert_int_equal(file_write_at(fd, "abcdefgh", 8, 96), 0);
    assert_int_equal(file_size(fd, &bytes), 0);
    assert_int_equal(bytes, 104);
    assert_int_equal(file_read_at(fd, data, 8, 96), 0);
    assert_memory_equal(data, "abcdefgh", 8);
    assert_int_equal(file_read_at(fd, data, 8, 97), -1);
    assert_int_equal(errno, ENODATA);
    assert_int_equal(file_sync(fd), 0);
    file_forget(fd);
    close(fd);
    assert_int_equal(symlinkat("a", dir, "link"), 0);
    assert_int_equal(file_open_at(dir, "link", O_RDONLY, 0), -1);
    assert_int_equal(errno, ELOOP);
    assert_int_equal(mkfifoat(dir, "fifo", 0600), 0);
    fd = file_open_at(dir, "fifo", O_RDONLY, 0); /* does not wait for a writer */
    assert_true(fd >= 0);
    assert_int_equal(file_size(fd, &bytes), -1);
    assert_int_equal(errno, EINVAL);
    close(fd);
    assert_int_equal(file_rename_at(dir, "a", "b"), 0);
    const char *const names[] = {"b", "link", "fifo"};
    for (int i = 0; i < 3; i++)
        assert_int_equal(file_unlink_at(dir, names[i]), 0);
    assert_int_equal(file_unlink_at(dir, "b"), -1);
    assert_int_equal(errno, ENOENT);
    close(dir);
    rmdir(name);
}

static void test_faults(void **unused)
{
    char name[] = "/tmp/apr-file-XXXXXX", data[8];
    int dir = folder(name);
    (void)unused;
    int fd = file_open_at(dir, "a", O_RDWR | O_CREAT, 0600);
    file_fail(FILE_WRITE, 2, 2, ENOSPC);
    assert_int_equal(file_write_at(fd, "12345678", 8, 0), 0);
    assert_int_equal(file_write_at(fd, "abcdefgh", 8, 0), -1);
    assert_int_equal(errno, ENOSPC);
    assert_int_equal(file_allocate(fd, 100), -1);
    assert_int_equal(file_read_at(fd, data, 8, 0), 0);
    assert_memory_equal(data, "abcd5678", 8); /* torn */
    assert_int_equal(file_write_at(fd, "12345678", 8, 0), 0);
    assert_int_equal(file_calls(FILE_WRITE), 4);
    assert_int_equal(file_calls(FILE_READ), 1);
    assert_int_equal(file_calls(FILE_ANY), 5);
    file_fail(FILE_ANY, 1, LONG_MAX, EIO);
    assert_int_equal(file_read_at(fd, data, 8, 0), -1);
    assert_int_equal(file_sync(fd), -1);
    assert_int_equal(file_rename_at(dir, "a", "b"), -1);
    assert_int_equal(file_unlink_at(dir, "a"), -1);
    assert_int_equal(file_open_at(dir, "a", O_RDONLY, 0), -1);
    assert_int_equal(errno, EIO);
    file_fail(FILE_ANY, 0, 0, 0);
    assert_int_equal(file_unlink_at(dir, "a"), 0);
    close(fd);
    close(dir);
    rmdir(name);
}

static void test_hash_stream(void **unused)
{
    static unsigned char data[5000];
    struct hash_stream whole, parts;
    uint64_t seed = 1;
    (void)unused;
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)test_random(&seed, 256);
    hash_stream_begin(&parts);
    struct hash_key before = hash_stream_key(&parts);
    for (size_t at = 0, n; at < sizeof data; at += n) {
        n = test_random(&seed, 300);
        if (n > sizeof data - at)
            n = sizeof data - at;
        hash_stream_add(&parts, data + at, n);
        hash_stream_begin(&whole);
        hash_stream_add(&whole, data, at + n);
        struct hash_key here = hash_stream_key(&parts);
        assert_true(hash_key_equal(here, hash_stream_key(&whole)));
        assert_true(n == 0 || !hash_key_equal(here, before));
        before = here;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_kinds), cmocka_unit_test(test_faults), cmocka_unit_test(test_hash_stream)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
