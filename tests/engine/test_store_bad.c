/* A folder in which anything may have happened: whatever stands there in place of a segment or of the index is ignored, with a line on the log, and never becomes a wrong state. */
#include <dirent.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "engine/store_segment.h"
#include "support/store.h"
#include "support/test.h"

static const int64_t ends[] = {100, 250, 390};
#define BIG ((uint64_t)1 << 30)

/* A folder with one line of three segments, closed; and copies of its files. */
struct scene {
    struct rig rig;
    struct line line;
    struct shelf shelf;
    char path[3][128];
    char *data[3], *index;
    size_t n[3], n_index;
};

static void write_file(const char *path, const void *data, size_t n)
{
    (void)unlink(path);
    (void)rmdir(path);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, n), n);
    close(fd);
}

static const char *in_folder(const struct scene *sc, const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", sc->shelf.dir, name);
    return path;
}

static void scene_make(struct scene *sc)
{
    rig_open(&sc->rig, "r2-q8_0", NULL, ARITHMETIC_DEFAULT, 1, 64, 1);
    line_make(&sc->line, &sc->rig, 1, ends, 3, NULL, 0);
    shelf_make(&sc->shelf, &sc->rig, BIG);
    for (int i = 0; i < 3; i++) {
        shelf_save(&sc->shelf, &sc->line, i);
        shelf_path(&sc->shelf, &sc->line, i, sc->path[i]);
        sc->data[i] = test_read_file(sc->path[i], &sc->n[i]);
    }
    shelf_close(&sc->shelf);
    sc->index = test_read_file(in_folder(sc, "index.db"), &sc->n_index);
}

/* All files as they were. */
static void scene_restore(struct scene *sc)
{
    static const char *const names[] = {"index.db", "index.db-wal", "index.db-shm"};
    for (int i = 0; i < 3; i++) {
        write_file(sc->path[i], sc->data[i], sc->n[i]);
        (void)unlink(in_folder(sc, names[i]));
        (void)rmdir(in_folder(sc, names[i]));
    }
    write_file(in_folder(sc, "index.db"), sc->index, sc->n_index);
}

static void scene_free(struct scene *sc)
{
    shelf_open(&sc->shelf);
    shelf_remove(&sc->shelf);
    for (int i = 0; i < 3; i++)
        mem_free(sc->data[i]);
    mem_free(sc->index);
    line_free(&sc->line);
    rig_close(&sc->rig);
    assert_int_equal(mem_bytes(MEM_STORE), 0);
}

struct check_call {
    struct scene *sc;
    int64_t came;
    uint64_t n_ignored;
};

static void open_and_check(void *ctx)
{
    struct check_call *c = ctx;
    struct store_stats stats;
    shelf_open(&c->sc->shelf);
    c->came = shelf_check(&c->sc->shelf, &c->sc->rig, &c->sc->line, 500);
    store_stats(c->sc->shelf.st, &stats);
    c->n_ignored = stats.n_ignored;
}

/* Opens: so much comes, with a line on the log that has `word` (NULL: no line). */
static void expect_once(struct scene *sc, int64_t came, const char *word)
{
    char text[8192];
    struct check_call c = {.sc = sc};
    test_capture(open_and_check, &c, text, sizeof text);
    if (c.came != came || (word ? !strstr(text, word) : *text != 0))
        fail_msg("%d tokens came instead of %d; the log: %s (expected: %s)", (int)c.came, (int)came, text, word ? word : "nothing");
    assert_true((c.n_ignored > 0) == (word && came < 390));
}

/* And afterwards all can be saved and read again. Puts everything back. */
static void expect(struct scene *sc, int64_t came, const char *word)
{
    uint64_t bytes;
    expect_once(sc, came, word);
    for (int i = 0; i < 3; i++)
        shelf_save(&sc->shelf, &sc->line, i);
    for (int restart = 0; restart < 2; restart++) {
        assert_int_equal(shelf_check(&sc->shelf, &sc->rig, &sc->line, 500), 390);
        assert_int_equal(shelf_files(&sc->shelf, &bytes), 3);
        shelf_close(&sc->shelf);
        if (restart == 0)
            shelf_open(&sc->shelf);
    }
    scene_restore(sc);
}

static int64_t before(int i)
{
    return i ? ends[i - 1] : 0;
}

static void test_truncated(void **unused)
{
    struct scene sc;
    (void)unused;
    scene_make(&sc);
    for (int i = 0; i < 3; i++) {
        size_t sizes[] = {0, 1, 50, 111, 112, 113, 112 + 400, sc.n[i] / 2, sc.n[i] - 300000, sc.n[i] - 9, sc.n[i] - 1};
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
            assert_int_equal(truncate(sc.path[i], (off_t)sizes[k]), 0);
            expect(&sc, before(i), "bytes long");
        }
        assert_int_equal(truncate(sc.path[i], (off_t)sc.n[i] + 1), 0);
        expect(&sc, before(i), "bytes long");
    }
    scene_free(&sc);
}

/* One bit, anywhere: in every byte of the header, and all over the rest. */
static void test_flipped(void **unused)
{
    struct scene sc;
    uint64_t seed = 1;
    (void)unused;
    scene_make(&sc);
    for (int i = 0; i < 3; i++) {
        size_t n_flips = TEST_SANITIZED ? 30 : 112 + 60;
        for (size_t k = 0; k < n_flips; k++) {
            size_t at = TEST_SANITIZED && k < 15 ? k * 7 : k < 112 ? k : k == 112 ? sc.n[i] - 1 : k < 120 ? 112 + k : test_random(&seed, (uint32_t)sc.n[i]);
            char was = sc.data[i][at];
            sc.data[i][at] = (char)(was ^ (1 << test_random(&seed, 8)));
            write_file(sc.path[i], sc.data[i], sc.n[i]);
            sc.data[i][at] = was;
            /* A middle segment's recurrent state is not read on the way to the last one. */
            int is_unread = i < 2 && at >= sc.n[i] - 274432 - 16;
            if (k % 3 == 0)
                (void)unlink(in_folder(&sc, "index.db"));
            if (k % 20 == 0) {
                expect(&sc, is_unread ? 390 : before(i), is_unread ? NULL : "ignored");
                continue;
            }
            expect_once(&sc, is_unread ? 390 : before(i), is_unread ? NULL : "ignored");
            shelf_close(&sc.shelf);
            scene_restore(&sc);
        }
    }
    scene_free(&sc);
}

/* A state that nobody passes through is not believed either when it is asked for. */
static void test_flipped_state(void **unused)
{
    struct scene sc;
    (void)unused;
    scene_make(&sc);
    sc.data[1][sc.n[1] - 20] ^= 1;
    write_file(sc.path[1], sc.data[1], sc.n[1]);
    sc.data[1][sc.n[1] - 20] ^= 1;
    shelf_open(&sc.shelf);
    assert_int_equal(shelf_check(&sc.shelf, &sc.rig, &sc.line, 389), 100);
    assert_int_equal(store_find(sc.shelf.st, sc.line.ids, 500).n, 100); /* and nothing that was built on it */
    shelf_close(&sc.shelf);
    scene_free(&sc);
}

/* What a load that failed late had put into a state already is not in it any more when its tokens are read. */
static void test_failed_late(void **unused)
{
    struct scene sc;
    struct session *s = NULL;
    struct err err = {0};
    struct sync_result r;
    (void)unused;
    scene_make(&sc);
    sc.data[2][sc.n[2] - 20] ^= 1; /* in the last piece of the recurrent state */
    write_file(sc.path[2], sc.data[2], sc.n[2]);
    shelf_open(&sc.shelf);
    test_ok(session_create(sc.rig.r, KV_F32, LINE_TOKENS, &s, &err), &err, "session");
    test_ok(state_reserve(session_state(s), 500, &err), &err, "room");
    struct store_match match = store_find(sc.shelf.st, sc.line.ids, 500);
    assert_int_equal(match.n, 390);
    assert_int_equal(store_load(sc.shelf.st, &match, sc.line.ids, session_state(s), &err), ERR_FORMAT);
    test_ok(session_sync(s, &(struct sync_request){.tokens = sc.line.ids, .n = 390}, &r, &err), &err, "sync");
    line_same(&sc.line, 2, session_state(s));
    assert_memory_equal(session_logits(s), session_logits(sc.line.s), (size_t)sc.rig.m->config.n_vocab * 4);
    session_free(s);
    shelf_close(&sc.shelf);
    scene_free(&sc);
}

/* B31: a link is not followed, nor is anything else that is no file. */
static void test_other_kinds(void **unused)
{
    struct scene sc;
    char other[128];
    (void)unused;
    scene_make(&sc);
    for (int i = 0; i < 3; i++) {
        snprintf(other, sizeof other, "%s/elsewhere", sc.shelf.dir);
        assert_int_equal(rename(sc.path[i], other), 0); /* a link to the right bytes */
        assert_int_equal(symlink(other, sc.path[i]), 0);
        expect(&sc, before(i), "is a link");
        assert_int_equal(access(other, R_OK), 0); /* which are left alone */
        unlink(other);
        unlink(sc.path[i]);
        assert_int_equal(mkfifo(sc.path[i], 0600), 0);
        expect(&sc, before(i), "is no regular file");
        unlink(sc.path[i]);
        expect(&sc, before(i), i < 2 ? "continue something that is not there" : NULL);
        write_file(sc.path[i], sc.data[(i + 1) % 3], sc.n[(i + 1) % 3]); /* another segment's bytes */
        expect(&sc, before(i), "has another name");
        write_file(sc.path[i], "", 0);
        expect(&sc, before(i), "less than a header");
    }
    /* A folder cannot be removed; it is in nobody's way but its own segment's. */
    unlink(sc.path[2]);
    assert_int_equal(mkdir(sc.path[2], 0700), 0);
    struct check_call c = {.sc = &sc};
    char text[4096];
    test_capture(open_and_check, &c, text, sizeof text);
    assert_int_equal(c.came, 250);
    assert_non_null(strstr(text, "is no regular file"));
    test_capture((void (*)(void *))shelf_close, &sc.shelf, text, sizeof text);
    scene_restore(&sc);
    /* With the size that the index knows, but under it. */
    for (int i = 0; i < 3; i++) {
        char *zeros = mem_alloc(MEM_OTHER, sc.n[i]);
        write_file(sc.path[i], zeros, sc.n[i]);
        expect(&sc, before(i), "does not begin like a segment");
        mem_free(zeros);
        char *longer = mem_alloc(MEM_OTHER, sc.n[i]);
        memcpy(longer, sc.data[(i + 1) % 3], sc.n[i] < sc.n[(i + 1) % 3] ? sc.n[i] : sc.n[(i + 1) % 3]);
        write_file(sc.path[i], longer, sc.n[i]);
        expect(&sc, before(i), "ignored");
        mem_free(longer);
    }
    scene_free(&sc);
}

/* Right sums over wrong contents: the tokens of another conversation, and another model's mark. */
static void test_forged(void **unused)
{
    struct scene sc;
    (void)unused;
    scene_make(&sc);
    for (int i = 0; i < 3; i++) {
        char *data = mem_alloc(MEM_OTHER, sc.n[i]);
        int64_t first;
        uint64_t hash;
        memcpy(data, sc.data[i], sc.n[i]);
        data[112 + 4] ^= 1;
        write_file(sc.path[i], data, sc.n[i]);
        expect(&sc, before(i), "holds other tokens");
        memcpy(data, sc.data[i], sc.n[i]);
        const size_t places[] = {16, 32, 48, 64, 72, 80, 12, 88}; /* model, key, parent, from, to, row bytes, arrays, recurrent bytes */
        for (size_t k = 0; k < sizeof places / sizeof *places; k++) {
            memcpy(data, sc.data[i], 112);
            memcpy(&first, data + places[k], sizeof first);
            first += 1;
            memcpy(data + places[k], &first, sizeof first);
            hash = hash_bytes(data, 104, 1);
            memcpy(data + 104, &hash, sizeof hash);
            write_file(sc.path[i], data, sc.n[i]);
            expect(&sc, before(i), "ignored");
        }
        const int64_t absurd[] = {-1, 0, INT64_MAX, INT64_MIN, (int64_t)1 << 40, (int64_t)1 << 62};
        for (size_t k = 0; k < 6 * sizeof absurd / sizeof *absurd; k++) {
            memcpy(data, sc.data[i], 112);
            memcpy(data + (size_t[]){64, 72, 80, 88, 12, 96}[k % 6], &absurd[k / 6], (size_t[]){8, 8, 8, 8, 4, 8}[k % 6]);
            hash = hash_bytes(data, 104, 1);
            memcpy(data + 104, &hash, sizeof hash);
            if (memcmp(data, sc.data[i], 112) == 0)
                continue;
            write_file(sc.path[i], data, sc.n[i]);
            expect(&sc, before(i), "ignored");
        }
        mem_free(data);
    }
    scene_free(&sc);
}

/* A piece of another segment, with its checksum: in its own place, but not of these tokens. */
static void test_foreign_piece(void **unused)
{
    struct scene sc;
    struct segment_header h[2];
    struct segment_piece p[2];
    (void)unused;
    scene_make(&sc);
    for (int i = 0; i < 2; i++) {
        memcpy(&h[i], sc.data[i + 1], sizeof h[i]);
        p[i] = segment_piece(&h[i], segment_n_row_pieces(&h[i]));
        assert_true(p[i].is_recurrent);
    }
    assert_int_equal(segment_n_row_pieces(&h[0]), segment_n_row_pieces(&h[1]));
    char *data = mem_alloc(MEM_OTHER, sc.n[2]);
    memcpy(data, sc.data[2], sc.n[2]);
    memcpy(data + p[1].at, sc.data[1] + p[0].at, p[0].n + 8);
    write_file(sc.path[2], data, sc.n[2]);
    mem_free(data);
    expect(&sc, before(2), "another checksum");
    scene_free(&sc);
}

/* ---- the index ---- */

static void test_index(void **unused)
{
    struct scene sc;
    char other[128];
    (void)unused;
    scene_make(&sc);
    unlink(in_folder(&sc, "index.db"));
    expect(&sc, 390, NULL);
    size_t n;
    char *index = test_read_file(in_folder(&sc, "index.db"), &n);
    uint64_t seed = 1;
    for (int k = 0; k < (TEST_SANITIZED ? 10 : 60); k++) { /* bytes anywhere: rebuilt, or used with what it says being proved by the files */
        struct check_call c = {.sc = &sc};
        char text[8192], *damaged = mem_alloc(MEM_OTHER, n);
        memcpy(damaged, index, n);
        for (int i = 0; i < (k < 30 ? 1 : 200); i++)
            damaged[test_random(&seed, (uint32_t)(k % 2 ? n : 4096))] = (char)test_random(&seed, 256);
        write_file(in_folder(&sc, "index.db"), damaged, k % 5 == 4 ? n / 2 : n);
        test_capture(open_and_check, &c, text, sizeof text); /* shelf_check has proved what came */
        for (int i = 0; i < 3; i++)
            shelf_save(&sc.shelf, &sc.line, i);
        assert_int_equal(shelf_check(&sc.shelf, &sc.rig, &sc.line, 500), 390);
        test_capture((void (*)(void *))shelf_close, &sc.shelf, text, sizeof text);
        scene_restore(&sc);
        mem_free(damaged);
    }
    write_file(in_folder(&sc, "index.db"), "no database, but longer than a header of one would be; no database, but longer than a header of one would be", 104);
    expect(&sc, 390, "the index is unusable");
    write_file(in_folder(&sc, "index.db"), "", 0);
    expect(&sc, 390, NULL);
    unlink(in_folder(&sc, "index.db"));
    assert_int_equal(mkfifo(in_folder(&sc, "index.db"), 0600), 0);
    expect(&sc, 390, NULL);
    snprintf(other, sizeof other, "%s/elsewhere", sc.shelf.dir);
    write_file(other, index, n);
    unlink(in_folder(&sc, "index.db"));
    assert_int_equal(symlink(other, in_folder(&sc, "index.db")), 0);
    expect(&sc, 390, NULL);
    mem_free(index);
    index = test_read_file(other, &seed);
    assert_int_equal(seed, n); /* what the link led to was not written to */
    mem_free(index);
    unlink(other);
    unlink(in_folder(&sc, "index.db"));
    assert_int_equal(mkdir(in_folder(&sc, "index.db"), 0700), 0); /* there can be none: the files are enough */
    expect(&sc, 390, "there can be no index");
    scene_free(&sc);
}

static void change_index(struct scene *sc, const char *sql)
{
    sqlite3 *db = NULL;
    assert_int_equal(sqlite3_open(in_folder(sc, "index.db"), &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

/* An index that is whole and lies. */
static void test_lying_index(void **unused)
{
    static const struct {
        const char *sql;
        const char *word;
        int64_t came;
    } lies[] = {
        {"UPDATE segment SET past=300 WHERE past=250", "unusable", 390},
        {"UPDATE segment SET parent=zeroblob(16) WHERE past=390", "unusable", 390},
        {"UPDATE segment SET first=0 WHERE past=390", "unusable", 390},
        {"UPDATE segment SET bytes=bytes+1", "unusable", 390},
        {"UPDATE segment SET model=zeroblob(16) WHERE past=100", "unusable", 390},
        {"UPDATE segment SET thin_bytes=bytes", "unusable", 390},
        {"UPDATE segment SET last_used=0", NULL, 390},
        {"UPDATE segment SET last_used=-1", "unusable", 390},
        {"UPDATE segment SET first=-5", "unusable", 390},
        {"UPDATE segment SET past=first", "unusable", 390},
        {"UPDATE segment SET parent='short'", "unusable", 390},
        {"DELETE FROM segment", NULL, 390},
        {"DELETE FROM segment WHERE past=250", NULL, 390},
        {"INSERT INTO segment VALUES (zeroblob(16), zeroblob(16), zeroblob(16), 0, 70, 1000, 5, 0, 6)", "unusable", 390},
        {"PRAGMA user_version=7", "unusable", 390},
        {"DROP TABLE segment", "unusable", 390},
        {"DROP TABLE segment; CREATE TABLE segment (a)", "unusable", 390},
    };
    struct scene sc;
    (void)unused;
    scene_make(&sc);
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        change_index(&sc, lies[i].sql);
        expect(&sc, lies[i].came, lies[i].word);
    }
    scene_free(&sc);
}

/* What was left half done goes; what is not the store's stays. */
static void test_leftovers(void **unused)
{
    static const char *const gone[] = {"0123456789abcdef0123456789abcdef.tmp"}, *const kept[] = {"notes.txt", "0123.seg", "0123456789ABCDEF0123456789abcdef.seg", "x0123456789abcdef0123456789abcde.tmp"};
    struct scene sc;
    (void)unused;
    scene_make(&sc);
    write_file(in_folder(&sc, gone[0]), "x", 1);
    for (int i = 0; i < 4; i++)
        write_file(in_folder(&sc, kept[i]), "x", 1);
    shelf_open(&sc.shelf);
    assert_int_equal(shelf_check(&sc.shelf, &sc.rig, &sc.line, 500), 390);
    assert_int_not_equal(access(in_folder(&sc, gone[0]), F_OK), 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(access(in_folder(&sc, kept[i]), F_OK), 0);
    shelf_close(&sc.shelf);
    scene_free(&sc);
}

/* A folder that another program has files of these names in: none of them is lost. */
static void test_files_of_others(void **unused)
{
    struct scene sc;
    struct err err = {0};
    struct store *st = NULL;
    sqlite3 *db = NULL;
    size_t n;
    (void)unused;
    scene_make(&sc);
    for (int version = 0; version < 8; version += 7) {
        unlink(in_folder(&sc, "index.db"));
        change_index(&sc, version ? "CREATE TABLE photos (a); PRAGMA user_version=7" : "CREATE TABLE photos (a)");
        expect_once(&sc, 390, "kept as index.db.old");
        shelf_close(&sc.shelf);
        assert_int_equal(sqlite3_open(in_folder(&sc, "index.db.old"), &db), SQLITE_OK);
        assert_int_equal(sqlite3_exec(db, "SELECT a FROM photos", NULL, NULL, NULL), SQLITE_OK);
        sqlite3_close(db);
    }
    write_file(in_folder(&sc, "lock"), "notes\n", 6);
    assert_int_equal(store_open(&(struct store_options){.dir = sc.shelf.dir, .budget_bytes = BIG}, &st, &err), ERR_INVALID);
    assert_non_null(strstr(err.message, "was not made by apr"));
    char *text = test_read_file(in_folder(&sc, "lock"), &n);
    assert_int_equal(n, 6);
    assert_memory_equal(text, "notes\n", n);
    mem_free(text);
    write_file(in_folder(&sc, "lock"), "", 0);
    scene_free(&sc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_truncated), cmocka_unit_test(test_flipped), cmocka_unit_test(test_flipped_state), cmocka_unit_test(test_failed_late), cmocka_unit_test(test_other_kinds),
        cmocka_unit_test(test_forged),    cmocka_unit_test(test_index),   cmocka_unit_test(test_lying_index),   cmocka_unit_test(test_leftovers),
        cmocka_unit_test(test_foreign_piece),
        cmocka_unit_test(test_files_of_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
