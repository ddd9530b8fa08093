/* What the host leaves to a process: meminfo, every cgroup above it, the limit on address space; the least of them is named. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "compute/memory.h"
#include "support/gguf_make.h"
#include "support/test.h"

#define MIB (1024ull * 1024)

static char root[] = "/tmp/apr-memory-XXXXXX";

/* Writes ROOT/path, with its folders. */
static void put(const char *path, const char *text)
{
    char full[512];
    snprintf(full, sizeof full, "%s/%s", root, path);
    for (char *slash = full + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        mkdir(full, 0755);
        *slash = '/';
    }
    make_write(full, text, strlen(text));
}

static void clear(void)
{
    char command[600];
    snprintf(command, sizeof command, "rm -rf %s", root);
    assert_int_equal(system(command), 0);
    assert_int_equal(mkdir(root, 0755), 0);
    put("proc/meminfo", "MemTotal:       16384 kB\nMemFree:         1024 kB\nMemAvailable:    8192 kB\n");
}

static struct device_memory survey(uint64_t limit)
{
    struct device_memory m = {0};
    struct err err = {0};
    test_ok(memory_survey(root, limit, &m, &err), &err, "survey");
    return m;
}

static void test_field(void **unused)
{
    uint64_t n = 7;
    (void)unused;
    assert_int_equal(memory_field("MemTotal:   3 kB\nMemAvailable:\t2 kB\n", "MemAvailable", &n), 1);
    assert_int_equal(n, 2048);
    assert_int_equal(memory_field("a 1\nactive_file 456\n", "active_file", &n), 1);
    assert_int_equal(n, 456);
    n = 7;
    assert_int_equal(memory_field("inactive_file 456\n", "active_file", &n), 0);
    assert_int_equal(memory_field("active_file_x 456\n", "active_file", &n), 0);
    assert_int_equal(memory_field("active_file many\n", "active_file", &n), 0);
    assert_int_equal(memory_field("", "active_file", &n), 0);
    assert_int_equal(n, 7);
}

static void test_inner_path(void **unused)
{
    static const char *const v1 = "12:cpu,cpuacct:/x\n4:memory:/docker/1:2\n0::/y\n";
    char path[64];
    (void)unused;
    assert_int_equal(memory_cgroup_path(v1, "memory", path, sizeof path), 1);
    assert_string_equal(path, "/docker/1:2");
    assert_int_equal(memory_cgroup_path(v1, "", path, sizeof path), 1);
    assert_string_equal(path, "/y");
    assert_int_equal(memory_cgroup_path(v1, "cpuacct", path, sizeof path), 1);
    assert_string_equal(path, "/x");
    assert_int_equal(memory_cgroup_path(v1, "mem", path, sizeof path), 0);
    assert_int_equal(memory_cgroup_path(v1, "memory", path, 11), 0);
    assert_int_equal(memory_cgroup_path("0::/\n", "", path, sizeof path), 1);
    assert_string_equal(path, "");
    assert_int_equal(memory_cgroup_path("0::/../other\n", "", path, sizeof path), 0);
    assert_int_equal(memory_cgroup_path("0::", "", path, sizeof path), 0);
    assert_int_equal(memory_cgroup_path("", "", path, sizeof path), 0);
}

static void test_machine(void **unused)
{
    (void)unused;
    clear();
    struct device_memory m = survey(UINT64_MAX);
    assert_true(m.total == 16 * MIB && m.free == 8 * MIB && m.memory_free == 8 * MIB && m.address_free == UINT64_MAX);
    assert_string_equal(m.source, "MemAvailable");
    put("proc/meminfo", "MemTotal: 16384 kB\n");
    struct err err = {0};
    assert_int_equal(memory_survey(root, UINT64_MAX, &m, &err), ERR_IO);
}

static void test_cgroup_v2(void **unused)
{
    (void)unused;
    clear();
    put("proc/self/cgroup", "0::/a/b\n");
    put("sys/fs/cgroup/a/b/memory.max", "max\n");
    put("sys/fs/cgroup/a/b/memory.current", "123\n");
    assert_string_equal(survey(UINT64_MAX).source, "MemAvailable");
    put("sys/fs/cgroup/a/b/memory.max", "6291456\n"); /* 6 MiB, of which 1 is used */
    put("sys/fs/cgroup/a/b/memory.current", "1048576\n");
    struct device_memory m = survey(UINT64_MAX);
    assert_true(m.free == 5 * MIB && m.total == 6 * MIB);
    assert_string_equal(m.source, "cgroup memory.max");
    put("sys/fs/cgroup/a/memory.max", "7340032\n"); /* wider above, but fuller: 7 MiB, 4 used */
    put("sys/fs/cgroup/a/memory.current", "4194304\n");
    m = survey(UINT64_MAX);
    assert_true(m.free == 3 * MIB && m.total == 6 * MIB);
    put("sys/fs/cgroup/a/memory.stat", "anon 1\nfile 2\ninactive_file 1048576\nactive_file 524288\n"); /* 1.5 MiB of that can go */
    assert_int_equal(survey(UINT64_MAX).free, 4 * MIB + MIB / 2);
    put("sys/fs/cgroup/memory.max", "2097152\n"); /* the mount itself */
    put("sys/fs/cgroup/memory.current", "3000000\n");
    m = survey(UINT64_MAX);
    assert_true(m.free == 0 && m.total == 2 * MIB);
    put("proc/self/cgroup", "0::/not/mounted/here\n"); /* the mount still holds */
    assert_int_equal(survey(UINT64_MAX).total, 2 * MIB);
    put("proc/self/cgroup", "0::/../elsewhere\n");
    assert_int_equal(survey(UINT64_MAX).total, 2 * MIB);
}

static void test_cgroup_v1(void **unused)
{
    (void)unused;
    clear();
    put("proc/self/cgroup", "4:memory:/docker/x\n0::/\n");
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("sys/fs/cgroup/memory/memory.usage_in_bytes", "99999999\n");
    assert_string_equal(survey(UINT64_MAX).source, "MemAvailable");
    put("sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes", "4194304\n");
    put("sys/fs/cgroup/memory/docker/x/memory.usage_in_bytes", "3145728\n");
    put("sys/fs/cgroup/memory/docker/x/memory.stat", "inactive_file 1\nactive_file 1\ntotal_inactive_file 1048576\ntotal_active_file 0\n");
    struct device_memory m = survey(UINT64_MAX);
    assert_true(m.free == 2 * MIB && m.total == 4 * MIB);
    assert_string_equal(m.source, "cgroup memory.limit_in_bytes");
    put("sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes", "9223372036854771712\n");
    put("sys/fs/cgroup/memory/docker/memory.limit_in_bytes", "5242880\n");
    put("sys/fs/cgroup/memory/docker/memory.usage_in_bytes", "5242879\n");
    assert_int_equal(survey(UINT64_MAX).free, 1);
}

static void test_address(void **unused)
{
    char statm[64];
    (void)unused;
    clear();
    snprintf(statm, sizeof statm, "%ld 50 3 4\n", (long)MIB / sysconf(_SC_PAGESIZE));
    put("proc/self/statm", statm);
    struct device_memory m = survey(4 * MIB);
    assert_true(m.free == 3 * MIB && m.address_free == 3 * MIB && m.total == 4 * MIB && m.memory_free == 8 * MIB && m.memory_total == 16 * MIB);
    assert_string_equal(m.source, DEVICE_ADDRESS_SOURCE);
    assert_string_equal(m.memory_source, "MemAvailable");
    m = survey(12 * MIB); /* not the least, but known */
    assert_true(m.free == 8 * MIB && m.address_free == 11 * MIB);
    assert_string_equal(m.source, "MemAvailable");
    assert_int_equal(survey(MIB / 2).free, 0);
}

static int setup(void **unused)
{
    (void)unused;
    return mkdtemp(root) ? 0 : -1;
}

static int teardown(void **unused)
{
    char command[600];
    (void)unused;
    snprintf(command, sizeof command, "rm -rf %s", root);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_field),     cmocka_unit_test(test_inner_path),      cmocka_unit_test(test_machine),
        cmocka_unit_test(test_cgroup_v2), cmocka_unit_test(test_cgroup_v1), cmocka_unit_test(test_address),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
