/* The disk fails, memory fails, the process dies: it costs the saving and nothing else, and what is found afterwards is right. */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "support/store.h"
#include "support/test.h"

static const int64_t ends[] = {100, 250, 400};
#define BIG ((uint64_t)1 << 30)

static void open_scene(struct rig *rig, struct line *line, struct shelf *shelf, uint64_t budget)
{
    rig_open(rig, "r2-q8_0", NULL, ARITHMETIC_DEFAULT, 1, 64, 1);
    line_make(line, rig, 1, ends, 3, NULL, 0);
    shelf_make(shelf, rig, budget);
}

static void close_scene(struct rig *rig, struct line *line, struct shelf *shelf)
{
    shelf_remove(shelf);
    line_free(line);
    rig_close(rig);
    assert_int_equal(mem_bytes(MEM_STORE), 0);
    assert_int_equal(mem_bytes(MEM_STATE), 0);
}

/* A life of the store, whatever fails: opened, saved to, read from, closed. */
static void live(struct shelf *shelf, struct rig *rig, const struct line *line)
{
    struct err err = {0};
    struct store_options options = {.dir = shelf->dir, .budget_bytes = shelf->budget, .model = shelf->model};
    if (store_open(&options, &shelf->st, &err) < 0) {
        assert_true(err.code < 0 && *err.message);
        shelf->st = NULL;
        return;
    }
    for (int i = 0; i < 3; i++)
        shelf_save(shelf, line, i);
    (void)shelf_check(shelf, rig, line, 500);
    shelf_close(shelf);
}

struct faults {
    struct shelf *shelf;
    struct rig *rig;
    const struct line *line;
    enum file_call call;
    long nth, times, reached;
    int error_number;
};

static void live_with_faults(void *ctx)
{
    struct faults *f = ctx;
    file_fail(f->call, f->nth, f->times, f->error_number);
    live(f->shelf, f->rig, f->line);
    f->reached = file_calls(f->call);
    file_fail(f->call, 0, 0, 0);
}

/* Everything works again, without a restart of anything but the store. */
static void expect_health(struct shelf *shelf, struct rig *rig, const struct line *line)
{
    uint64_t bytes;
    shelf_open(shelf);
    (void)shelf_check(shelf, rig, line, 500);
    for (int i = 0; i < 3; i++)
        shelf_save(shelf, line, i);
    assert_int_equal(shelf_check(shelf, rig, line, 500), 400);
    shelf_close(shelf);
    shelf_open(shelf);
    assert_int_equal(shelf_check(shelf, rig, line, 500), 400);
    assert_int_equal(shelf_files(shelf, &bytes), 3);
    assert_true(bytes <= shelf->budget);
    shelf_remove(shelf);
    strcpy(shelf->dir, "/tmp/apr-store-XXXXXX");
    assert_non_null(mkdtemp(shelf->dir));
}

/* The n-th call fails, of all and of each kind, for every n that is reached: once, or from then on; with everything to be written, and with everything there. */
static void test_failing_calls(void **unused)
{
    struct rig rig;
    struct line line;
    struct shelf shelf;
    char text[1 << 16];
    long total = 0;
    (void)unused;
    open_scene(&rig, &line, &shelf, 3000000);
    shelf_close(&shelf);
    for (int mode = 0; mode < 4; mode++) {
        struct faults f = {.shelf = &shelf, .rig = &rig, .line = &line, .call = FILE_ANY, .times = mode % 2 ? LONG_MAX : 1, .error_number = mode % 2 ? ENOSPC : EIO};
        long step = TEST_SANITIZED ? 5 : 1;
        f.reached = 1;
        for (f.nth = 1; f.reached >= f.nth - step; f.nth += step) {
            if (mode >= 2)
                live(&shelf, &rig, &line);
            test_capture(live_with_faults, &f, text, sizeof text);
            expect_health(&shelf, &rig, &line);
            total++;
        }
    }
    print_message("torture: n-th call of the disk, alone or from then on: tried %ld, survived %ld, lost 0\n", total, total);
    assert_true(total > (TEST_SANITIZED ? 20 : 100));
    shelf_open(&shelf);
    close_scene(&rig, &line, &shelf);
}

static void save_thrice(void *ctx)
{
    struct faults *f = ctx;
    uint64_t bytes;
    file_fail(FILE_WRITE, 1, LONG_MAX, ENOSPC);
    for (int i = 0; i < 3; i++)
        shelf_save(f->shelf, f->line, 1);
    file_fail(FILE_WRITE, 0, 0, 0);
    assert_int_equal(shelf_files(f->shelf, &bytes), 1);
    shelf_save(f->shelf, f->line, 1);
    shelf_save(f->shelf, f->line, 2);
}

/* The disk is full: one line when it begins, one when it ends; what was saved before stays, nothing half written does. */
static void test_full_disk(void **unused)
{
    struct rig rig;
    struct line line;
    struct shelf shelf;
    char text[4096], expected[512];
    uint64_t bytes;
    struct store_stats stats;
    (void)unused;
    open_scene(&rig, &line, &shelf, BIG);
    shelf_save(&shelf, &line, 0);
    struct faults f = {.shelf = &shelf, .line = &line};
    test_capture(save_thrice, &f, text, sizeof text);
    snprintf(expected, sizeof expected, "warning: sessions: %s: a conversation cannot be saved: No space left on device\nsessions: %s: conversations are saved again\n", shelf.dir, shelf.dir);
    assert_string_equal(text, expected);
    assert_int_equal(shelf_files(&shelf, &bytes), 3);
    store_stats(shelf.st, &stats);
    assert_int_equal(stats.n_failed, 3);
    assert_int_equal(stats.n_written, 3);
    assert_int_equal(shelf_check(&shelf, &rig, &line, 500), 400);
    close_scene(&rig, &line, &shelf);
}

/* A turn that cannot be saved does not cost the one before: its state is not given up for one that may never be there. */
static void test_failed_turn(void **unused)
{
    struct rig rig;
    struct line line;
    struct shelf shelf;
    uint64_t bytes;
    (void)unused;
    open_scene(&rig, &line, &shelf, 1300000);
    shelf_save(&shelf, &line, 0);
    shelf_save(&shelf, &line, 1);
    file_fail(FILE_SYNC, 1, LONG_MAX, EIO);
    assert_int_equal(shelf_save(&shelf, &line, 2), 1);
    file_fail(FILE_SYNC, 0, 0, 0);
    assert_int_equal(shelf_files(&shelf, &bytes), 2);
    assert_int_equal(shelf_check(&shelf, &rig, &line, 500), 250);
    close_scene(&rig, &line, &shelf);
}

/* Files that cannot be removed count on: nothing is evicted in vain, and nothing is written over the budget. */
static void test_no_removal(void **unused)
{
    struct rig rig;
    struct line line, other;
    struct shelf shelf;
    uint64_t bytes;
    struct store_stats stats;
    (void)unused;
    open_scene(&rig, &line, &shelf, 1750000);
    line_make(&other, &rig, 2, ends, 3, NULL, 0);
    for (int i = 0; i < 3; i++)
        shelf_save(&shelf, &line, i);
    file_fail(FILE_UNLINK, 1, LONG_MAX, EROFS);
    for (int i = 0; i < 3; i++)
        shelf_save(&shelf, &other, 1);
    store_stats(shelf.st, &stats);
    assert_int_equal(stats.n_evicted, 1);
    assert_int_equal(shelf_files(&shelf, &bytes), 3);
    assert_true(bytes <= shelf.budget);
    file_fail(FILE_UNLINK, 0, 0, 0);
    shelf_save(&shelf, &other, 1);
    assert_int_equal(shelf_check(&shelf, &rig, &other, 500), 250);
    shelf_files(&shelf, &bytes);
    assert_true(bytes <= shelf.budget);
    line_free(&other);
    close_scene(&rig, &line, &shelf);
}

/* ---- the index's own calls ---- */

static atomic_long sqlite_calls, sqlite_fails_from;
static sqlite3_syscall_ptr real_pwrite, real_write, real_sync;

static int sqlite_fails(void)
{
    long at = atomic_fetch_add(&sqlite_calls, 1) + 1, from = atomic_load(&sqlite_fails_from);
    return from && at >= from;
}

static ssize_t failing_pwrite(int fd, const void *data, size_t n, off_t offset)
{
    if (sqlite_fails()) {
        errno = ENOSPC;
        return -1;
    }
    return ((ssize_t(*)(int, const void *, size_t, off_t))real_pwrite)(fd, data, n, offset);
}

static ssize_t failing_write(int fd, const void *data, size_t n)
{
    if (sqlite_fails()) {
        errno = ENOSPC;
        return -1;
    }
    return ((ssize_t(*)(int, const void *, size_t))real_write)(fd, data, n);
}

static int failing_fsync(int fd)
{
    if (sqlite_fails()) {
        errno = EIO;
        return -1;
    }
    return ((int (*)(int))real_sync)(fd);
}

static void live_captured(void *ctx)
{
    struct faults *f = ctx;
    live(f->shelf, f->rig, f->line);
}

/* The index cannot be written from the n-th time on: it does not matter. */
static void test_failing_index(void **unused)
{
    struct rig rig;
    struct line line;
    struct shelf shelf;
    char text[1 << 16];
    sqlite3_vfs *vfs = sqlite3_vfs_find(NULL);
    const char *name = vfs->xGetSystemCall(vfs, "pwrite64") ? "pwrite64" : "pwrite";
    (void)unused;
    open_scene(&rig, &line, &shelf, BIG);
    shelf_close(&shelf);
    real_pwrite = vfs->xGetSystemCall(vfs, name);
    real_write = vfs->xGetSystemCall(vfs, "write");
    real_sync = vfs->xGetSystemCall(vfs, "fsync");
    (void)vfs->xSetSystemCall(vfs, name, (sqlite3_syscall_ptr)failing_pwrite);
    (void)vfs->xSetSystemCall(vfs, "write", (sqlite3_syscall_ptr)failing_write);
    (void)vfs->xSetSystemCall(vfs, "fsync", (sqlite3_syscall_ptr)failing_fsync);
    struct faults f = {.shelf = &shelf, .rig = &rig, .line = &line};
    long n = 1, step = TEST_SANITIZED ? 5 : 1;
    for (long reached = 1; reached >= n - step; n += step) {
        atomic_store(&sqlite_calls, 0);
        atomic_store(&sqlite_fails_from, n);
        test_capture(live_captured, &f, text, sizeof text);
        const char *told = strstr(text, "cannot be written (");
        assert_true(!told || !strstr(told + 1, "cannot be written (")); /* once is enough */
        reached = atomic_load(&sqlite_calls);
        atomic_store(&sqlite_fails_from, 0);
        shelf_open(&shelf);
        assert_int_equal(shelf_check(&shelf, &rig, &line, 500), 400); /* the files were saved all the same */
        shelf_close(&shelf);
        expect_health(&shelf, &rig, &line);
    }
    assert_true(n > 10);
    (void)vfs->xSetSystemCall(vfs, name, NULL);
    (void)vfs->xSetSystemCall(vfs, "write", NULL);
    (void)vfs->xSetSystemCall(vfs, "fsync", NULL);
    shelf_open(&shelf);
    close_scene(&rig, &line, &shelf);
}

/* ---- memory ---- */

static void test_failing_allocations(void **unused)
{
    struct rig rig;
    struct line line;
    struct shelf shelf;
    int failures = 0;
    (void)unused;
    open_scene(&rig, &line, &shelf, BIG);
    shelf_close(&shelf);
    for (long n = 1; n < 30; n++) {
        struct err err = {0};
        struct store *st = NULL;
        struct store_options options = {.dir = shelf.dir, .budget_bytes = BIG, .model = shelf.model};
        mem_fail_nth(n);
        int rc = store_open(&options, &st, &err);
        mem_fail_nth(0);
        failures += rc < 0;
        assert_true(rc == 0 || rc == ERR_NO_MEMORY);
        store_close(st, 1000);
        assert_int_equal(mem_bytes(MEM_STORE), 0);
    }
    assert_true(failures >= 3);
    shelf_open(&shelf);
    for (long n = 1; n < 8; n++) {
        mem_fail_nth(n);
        shelf_save(&shelf, &line, 0);
        mem_fail_nth(0);
    }
    assert_int_equal(shelf_check(&shelf, &rig, &line, 500), 100);
    struct state *s = NULL;
    struct err err = {0};
    test_ok(state_create(&rig.m->config, rig.dev, KV_F32, LINE_TOKENS, &s, &err), &err, "state");
    test_ok(state_reserve(s, 400, &err), &err, "room");
    struct store_match match = store_find(shelf.st, line.ids, 500);
    for (long n = 1; n < 6; n++) {
        mem_fail_nth(n);
        int rc = store_load(shelf.st, &match, line.ids, s, &err);
        mem_fail_nth(0);
        assert_true(rc == 0 || rc == ERR_NO_MEMORY);
        assert_int_equal(state_length(s), rc == 0 ? 100 : 0);
        assert_true(rc == 0 || n < 4);
    }
    state_free(s);
    close_scene(&rig, &line, &shelf);
}

/* ---- death ---- */

/* Saves one line after the other for as long as it lives, and says through the pipe that it is open and what is on disk: line and end, counted from 1. */
static void write_until_killed(struct shelf *shelf, const struct line *lines, int n_lines, int out)
{
    struct store_options options = {.dir = shelf->dir, .budget_bytes = shelf->budget, .model = shelf->model};
    struct err err;
    if (store_open(&options, &shelf->st, &err) < 0 || write(out, "\0\0", 2) != 2)
        _exit(1);
    for (int turn = 0;; turn++) {
        const struct line *line = &lines[turn / 3 % n_lines];
        int i = turn % 3;
        struct store_writing *w = store_begin(shelf->st, session_state(line->s), line->ids, line->at[i]);
        while (w && store_piece(w, session_state(line->s)) != STORE_OVER)
            usleep(50);
        if (!store_wait(shelf->st, 60000))
            _exit(1);
        char said[2] = {(char)(turn / 3 % n_lines + 1), (char)(i + 1)};
        if (write(out, said, 2) != 2)
            _exit(1);
    }
}

/* Killed at any moment: what was said to be on disk is there and right, unless it was evicted; nothing is wrong, nothing half done is left. */
static void test_killed(void **unused)
{
    struct rig rig;
    struct line lines[4];
    struct shelf shelf;
    uint64_t seed = 7, bytes;
    uint32_t window_us = 30000;
    int rounds = TEST_SANITIZED ? 20 : 100, written = 0;
    (void)unused;
    open_scene(&rig, &lines[0], &shelf, BIG);
    shelf_close(&shelf);
    line_make(&lines[1], &rig, 2, ends, 3, &lines[0], 100);
    line_make(&lines[2], &rig, 3, ends, 3, &lines[0], 250);
    line_make(&lines[3], &rig, 4, ends, 3, NULL, 0);
    for (int round = 0; round < rounds; round++) {
        int fds[2], status;
        char said[2];
        int64_t safe[4] = {0};
        int evicts = round / 10 % 2;
        shelf.budget = evicts ? 2500000 : BIG;
        assert_int_equal(pipe(fds), 0);
        pid_t child = fork();
        if (child == 0)
            write_until_killed(&shelf, lines, 4, fds[1]);
        close(fds[1]);
        if (round % 4 && read(fds[0], said, 2) != 2) /* else while it opens, perhaps */
            fail_msg("the store could not be opened");
        usleep(test_random(&seed, (evicts ? 2 : 1) * window_us));
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        while (read(fds[0], said, 2) == 2) {
            int i = said[0] - 1;
            if (i < 0)
                continue;
            safe[i] = ends[said[1] - 1] > safe[i] ? ends[said[1] - 1] : safe[i];
            written++;
        }
        close(fds[0]);
        if (written <= round && window_us < 500000) /* a slow machine needs longer to have something to lose */
            window_us += window_us / 2;
        shelf_open(&shelf);
        for (int i = 0; i < 4; i++) {
            int64_t n = shelf_check(&shelf, &rig, &lines[i], 500);
            assert_true(evicts || n >= safe[i]);
        }
        struct store_stats stats;
        store_stats(shelf.st, &stats);
        assert_int_equal(stats.n_ignored, 0); /* nothing that was there was bad */
        int n = shelf_files(&shelf, &bytes);
        assert_int_equal(n, stats.n_segments);
        assert_true(bytes <= shelf.budget);
        if (round % 10 == 9) {
            shelf_remove(&shelf);
            strcpy(shelf.dir, "/tmp/apr-store-XXXXXX");
            assert_non_null(mkdtemp(shelf.dir));
        } else {
            shelf_close(&shelf);
        }
    }
    print_message("torture: killed while it saves: tried %d, survived %d, lost 0\n", rounds, rounds);
    assert_true(written > rounds / 2);
    shelf_open(&shelf);
    for (int i = 1; i < 4; i++)
        line_free(&lines[i]);
    close_scene(&rig, &lines[0], &shelf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_failing_calls), cmocka_unit_test(test_full_disk), cmocka_unit_test(test_failed_turn), cmocka_unit_test(test_no_removal), cmocka_unit_test(test_failing_index), cmocka_unit_test(test_failing_allocations), cmocka_unit_test(test_killed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
