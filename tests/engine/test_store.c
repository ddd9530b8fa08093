/* Conversations on disk: what comes back is bit for bit what went, in pieces of timelines that share their beginnings; the folder belongs to one process; the budget holds. */
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mem.h"
#include "model/plan.h"
#include "support/store.h"
#include "support/test.h"

static const char model[] = "r2-q8_0";
static const int64_t ends[] = {100, 250, 400};
#define BIG ((uint64_t)1 << 30)

static void open_rig(struct rig *rig)
{
    rig_open(rig, model, NULL, ARITHMETIC_DEFAULT, 1, 64, 1);
}

/* Loaded after a restart and adopted, it goes on as the live one does; B33: nothing of what the state held before is left. */
static void test_round_trip(void **unused)
{
    static const char *const models[] = {"r2-q8_0", "r3-q4_k_m", "moe-q4_k_m"};
    (void)unused;
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        struct rig rig;
        struct line line;
        struct shelf shelf;
        struct session *s = NULL;
        struct err err = {0};
        struct sync_result r;
        rig_open(&rig, models[m], NULL, ARITHMETIC_DEFAULT, 1, 64, 1);
        line_make(&line, &rig, 1, ends, 3, NULL, 0);
        shelf_make(&shelf, &rig, BIG);
        for (int i = 0; i < 3; i++)
            shelf_save(&shelf, &line, i);
        shelf_close(&shelf);
        shelf_open(&shelf);
        struct store_match match = store_find(shelf.st, line.ids, 500);
        assert_int_equal(match.n, 400);
        test_ok(session_create(rig.r, KV_F32, LINE_TOKENS, &s, &err), &err, "session");
        test_ok(state_reserve(session_state(s), 500, &err), &err, "room");
        test_ok(store_load(shelf.st, &match, line.ids, session_state(s), &err), &err, "load");
        line_same(&line, 2, session_state(s));
        test_ok(session_adopt(s, line.ids, 400, &err), &err, "adopt");
        test_ok(session_sync(s, &(struct sync_request){.tokens = line.ids, .n = 410}, &r, &err), &err, "sync");
        assert_int_equal(r.n_reused, 400);
        test_ok(session_sync(line.s, &(struct sync_request){.tokens = line.ids, .n = 410}, &r, &err), &err, "sync");
        for (int i = 0; i < 5; i++) {
            assert_memory_equal(session_logits(s), session_logits(line.s), (size_t)rig.m->config.n_vocab * 4);
            test_ok(rig_step(&s, &(int32_t){i}, 1, &err), &err, "step");
            test_ok(rig_step(&line.s, &(int32_t){i}, 1, &err), &err, "step");
        }
        session_free(s);
        shelf_remove(&shelf);
        line_free(&line);
        rig_close(&rig);
        assert_int_equal(mem_bytes(MEM_STORE), 0);
        assert_int_equal(mem_bytes(MEM_STATE), 0);
    }
}

/* A turn writes only what is new, a fork only what is its own, and the same again nothing. B28: after a restart, too, one can go back to where a turn ended. */
static void test_sharing(void **unused)
{
    struct rig rig;
    struct line a, b;
    struct shelf shelf;
    struct store_stats stats;
    uint64_t before, after;
    (void)unused;
    open_rig(&rig);
    line_make(&a, &rig, 1, ends, 3, NULL, 0);
    line_make(&b, &rig, 2, (int64_t[]){100, 180}, 2, &a, 100);
    uint64_t state = plan_state_bytes(&rig.m->config), row = plan_kv_bytes_per_position(&rig.m->config, KV_F32);
    shelf_make(&shelf, &rig, BIG);
    assert_int_equal(store_find(shelf.st, a.ids, 500).n, 0);
    shelf_save(&shelf, &a, 0);
    shelf_files(&shelf, &before);
    shelf_save(&shelf, &b, 0); /* all of it is there */
    assert_int_equal(shelf_files(&shelf, &after), 1);
    assert_int_equal(after, before);
    shelf_save(&shelf, &b, 1);
    assert_int_equal(shelf_files(&shelf, &after), 2);
    assert_in_range(after - before, 80 * row + state, 80 * row + state + 500);
    shelf_save(&shelf, &a, 2); /* without its second end: one segment from 100 on */
    assert_int_equal(shelf_files(&shelf, &before), 3);
    assert_in_range(before - after, 300 * row + state, 300 * row + state + 1500);
    for (int restart = 0; restart < 2; restart++) {
        assert_int_equal(shelf_check(&shelf, &rig, &a, 500), 400);
        assert_int_equal(shelf_check(&shelf, &rig, &a, 399), 100);
        assert_int_equal(shelf_check(&shelf, &rig, &a, 99), 0);
        assert_int_equal(shelf_check(&shelf, &rig, &b, 500), 180);
        store_stats(shelf.st, &stats);
        assert_int_equal(stats.n_segments, 3);
        assert_int_equal(stats.bytes, before);
        assert_int_equal(stats.n_written, restart ? 0 : 3);
        assert_int_equal(stats.n_loaded, 3);
        assert_int_equal(stats.n_ignored + stats.n_failed + stats.n_evicted, 0);
        shelf_close(&shelf);
        shelf_open(&shelf);
    }
    shelf_remove(&shelf);
    line_free(&a);
    line_free(&b);
    rig_close(&rig);
}

/* Two at once, piece by piece in turns, the second building on the first that is not there yet. */
static void test_interleaved(void **unused)
{
    struct rig rig;
    struct line a, b;
    struct shelf shelf;
    (void)unused;
    open_rig(&rig);
    line_make(&a, &rig, 1, ends, 3, NULL, 0);
    line_make(&b, &rig, 2, (int64_t[]){100, 180}, 2, &a, 100);
    for (int lost = 0; lost < 3; lost++) {
        shelf_make(&shelf, &rig, BIG);
        struct store_writing *w[2] = {store_begin(shelf.st, session_state(a.s), a.ids, a.at[0]), store_begin(shelf.st, session_state(b.s), b.ids, b.at[1])};
        const struct state *s[2] = {session_state(a.s), session_state(b.s)};
        assert_non_null(w[0]);
        assert_non_null(w[1]);
        assert_null(store_begin(shelf.st, s[0], a.ids, a.at[0])); /* on its way already */
        assert_int_equal(store_find(shelf.st, a.ids, 500).n, 0);  /* but not there yet */
        assert_int_not_equal(store_piece(w[0], s[0]), STORE_OVER);
        if (lost == 1) { /* what was to build on it is of no use */
            store_abandon(w[0]);
            w[0] = NULL;
        }
        for (int i = 1; w[0] || w[1]; i = !i) /* the child's end comes before the parent's */
            if (w[i] && (i == 1 || !w[1]) && store_piece(w[i], s[i]) == STORE_OVER)
                w[i] = NULL;
            else if (i == 1 && lost == 2 && w[0]) {
                store_abandon(w[0]);
                w[0] = NULL;
            }
        assert_true(store_wait(shelf.st, 60000));
        assert_int_equal(shelf_check(&shelf, &rig, &a, 500), lost ? 0 : 100);
        assert_int_equal(shelf_check(&shelf, &rig, &b, 500), lost ? 0 : 180);
        uint64_t bytes;
        assert_int_equal(shelf_files(&shelf, &bytes), lost ? 0 : 2);
        shelf_save(&shelf, &b, 1);
        assert_int_equal(shelf_check(&shelf, &rig, &b, 500), 180);
        shelf_remove(&shelf);
    }
    line_free(&a);
    line_free(&b);
    rig_close(&rig);
}

/* A state that goes back below the snapshot takes its writing with it; one that goes back less, or on, does not. */
static void test_moved(void **unused)
{
    struct rig rig;
    struct line a;
    struct shelf shelf;
    struct err err = {0};
    struct store_writing *w;
    uint64_t bytes;
    (void)unused;
    open_rig(&rig);
    line_make(&a, &rig, 1, ends, 3, NULL, 0);
    shelf_make(&shelf, &rig, BIG);
    struct state *s = session_state(a.s);
    w = store_begin(shelf.st, s, a.ids, a.at[1]);
    assert_int_equal(store_piece(w, s), STORE_MORE);
    test_ok(state_rewind(s, a.at[0], &err), &err, "rewind");
    assert_int_equal(store_piece(w, s), STORE_OVER);
    state_set_length(s, 400);
    w = store_begin(shelf.st, s, a.ids, a.at[2]);
    assert_int_equal(store_piece(w, s), STORE_MORE);
    test_ok(state_rewind(s, a.at[0], &err), &err, "rewind");
    state_seq(s)->length = 400; /* as if read again with other tokens */
    assert_int_equal(store_piece(w, s), STORE_OVER);
    assert_true(store_wait(shelf.st, 60000));
    assert_int_equal(shelf_files(&shelf, &bytes), 0);
    line_free(&a);
    line_make(&a, &rig, 1, ends, 3, NULL, 0);
    s = session_state(a.s);
    w = store_begin(shelf.st, s, a.ids, a.at[0]);
    assert_int_equal(store_piece(w, s), STORE_MORE);
    test_ok(state_rewind(s, a.at[1], &err), &err, "rewind");
    while (store_piece(w, s) != STORE_OVER)
        usleep(1000);
    assert_true(store_wait(shelf.st, 60000));
    assert_int_equal(shelf_files(&shelf, &bytes), 1);
    state_set_length(s, 400);
    assert_int_equal(shelf_check(&shelf, &rig, &a, 400), 100);
    shelf_remove(&shelf);
    line_free(&a);
    rig_close(&rig);
}

static atomic_int woken;

static void wake(void *ctx)
{
    (void)ctx;
    atomic_fetch_add(&woken, 1);
}

/* The engine never waits: when the disk is behind it is told so, and woken later. */
static void test_backlog(void **unused)
{
    struct rig rig;
    struct line a;
    struct shelf shelf;
    struct err err = {0};
    int later = 0;
    (void)unused;
    open_rig(&rig);
    line_make(&a, &rig, 1, (int64_t[]){600}, 1, NULL, 0);
    shelf_make(&shelf, &rig, BIG);
    for (int round = 0; round < 40 && later == 0; round++) {
        struct store_options options = {.dir = shelf.dir, .budget_bytes = BIG, .model = {.low = (uint64_t)round}, .wake = wake};
        struct store_writing *w[40] = {0};
        shelf_close(&shelf);
        test_ok(store_open(&options, &shelf.st, &err), &err, "store");
        for (int i = 0; i < 40; i++) { /* many ends of the same timeline */
            a.ids[0] = round * 40 + i;
            w[i] = store_begin(shelf.st, session_state(a.s), a.ids, a.at[0]);
            for (enum store_progress p = STORE_MORE; p != STORE_OVER;) {
                p = store_piece(w[i], session_state(a.s));
                later += p == STORE_LATER;
            }
        }
        assert_true(mem_bytes(MEM_STORE) < STORE_QUEUE_BYTES + ((size_t)1 << 20));
        assert_true(store_wait(shelf.st, 60000));
    }
    assert_true(later > 0);
    assert_true(atomic_load(&woken) > 0);
    struct store_stats stats;
    store_stats(shelf.st, &stats);
    assert_int_equal(stats.n_written, 40);
    shelf_remove(&shelf);
    line_free(&a);
    rig_close(&rig);
}

/* Closing with no time drops what is not on disk, and leaves nothing half done. */
static void test_deadline(void **unused)
{
    struct rig rig;
    struct line a;
    struct shelf shelf;
    (void)unused;
    open_rig(&rig);
    line_make(&a, &rig, 1, ends, 3, NULL, 0);
    shelf_make(&shelf, &rig, BIG);
    for (int i = 0; i < 3; i++) {
        struct store_writing *w = store_begin(shelf.st, session_state(a.s), a.ids, a.at[i]);
        while (store_piece(w, session_state(a.s)) != STORE_OVER)
            usleep(1000);
    }
    store_close(shelf.st, 0);
    shelf_open(&shelf);
    struct store_stats stats;
    store_stats(shelf.st, &stats);
    assert_int_equal(stats.n_ignored, 0);
    (void)shelf_check(&shelf, &rig, &a, 500);
    shelf_remove(&shelf);
    line_free(&a);
    rig_close(&rig);
}

/* ---- whose folder ---- */

struct open_call {
    const char *dir;
    int rc;
    struct err err;
};

static void open_dir(struct open_call *c)
{
    struct store *st = NULL;
    struct store_options options = {.dir = c->dir, .budget_bytes = BIG};
    c->err = (struct err){0};
    c->rc = store_open(&options, &st, &c->err);
    store_close(st, 1000);
}

static void test_folders(void **unused)
{
    char base[] = "/tmp/apr-store-XXXXXX", dir[64], expected[128];
    struct stat st;
    (void)unused;
    assert_non_null(mkdtemp(base));
    struct open_call c = {.dir = dir};
    snprintf(dir, sizeof dir, "%s/new", base);
    open_dir(&c);
    assert_int_equal(c.rc, 0);
    assert_int_equal(stat(dir, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
    open_dir(&c); /* again */
    assert_int_equal(c.rc, 0);
    assert_int_equal(chmod(dir, 0770), 0);
    open_dir(&c);
    assert_int_equal(c.rc, ERR_INVALID);
    assert_non_null(strstr(c.err.message, "others may write there; change that with chmod 700"));
    assert_int_equal(chmod(dir, 0700), 0);
    if (geteuid() == 0) {
        assert_int_equal(chown(dir, 1, 1), 0);
        open_dir(&c);
        assert_int_equal(c.rc, ERR_INVALID);
        assert_non_null(strstr(c.err.message, "belongs to another user"));
        assert_int_equal(chown(dir, 0, 0), 0);
    }
    snprintf(dir, sizeof dir, "%s/none/new", base);
    open_dir(&c);
    assert_int_equal(c.rc, ERR_NOT_FOUND);
    snprintf(dir, sizeof dir, "%s/file", base);
    close(open(dir, O_CREAT | O_WRONLY, 0600));
    open_dir(&c);
    assert_int_equal(c.rc, ERR_INVALID);
    snprintf(expected, sizeof expected, "sessions: %s: is not a folder; name one", dir);
    assert_string_equal(c.err.message, expected);
    assert_int_equal(unlink(dir), 0);
    snprintf(dir, sizeof dir, "%s/new", base);
    const char *const names[] = {"lock", "index.db"};
    for (int i = 0; i < 2; i++) {
        char path[96];
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 07777, 0600);
        unlink(path);
    }
    assert_int_equal(rmdir(dir), 0);
    assert_int_equal(rmdir(base), 0);
    assert_int_equal(mem_bytes(MEM_STORE), 0);
}

/* A second process is told who has it; a dead one has nothing. */
static void test_two_processes(void **unused)
{
    char dir[] = "/tmp/apr-store-XXXXXX", text[64], c;
    int ready[2], done[2], status;
    (void)unused;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(pipe(ready) | pipe(done), 0);
    pid_t child = fork();
    if (child == 0) {
        struct store *st = NULL;
        struct store_options options = {.dir = dir, .budget_bytes = BIG};
        struct err err;
        int rc = store_open(&options, &st, &err);
        if (rc == 0 && write(ready[1], "x", 1) == 1)
            rc = read(done[0], &c, 1) == 1 ? 0 : 1;
        _exit(rc == 0 ? 0 : 1); /* without a word, as if killed */
    }
    assert_int_equal(read(ready[0], &c, 1), 1);
    struct open_call call = {.dir = dir};
    open_dir(&call);
    assert_int_equal(call.rc, ERR_BUSY);
    snprintf(text, sizeof text, "%s: is in use by another process, %ld;", dir, (long)child);
    assert_non_null(strstr(call.err.message, text));
    assert_int_equal(write(done[1], "x", 1), 1);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    open_dir(&call);
    assert_int_equal(call.rc, 0);
    struct shelf shelf = {0};
    snprintf(shelf.dir, sizeof shelf.dir, "%s", dir);
    shelf_remove(&shelf);
    for (int i = 0; i < 2; i++) {
        close(ready[i]);
        close(done[i]);
    }
}

/* ---- the budget ---- */

/* Whatever is saved and loaded, the files are never more than the budget (B29; B177: room is made before anything is written), every part of a conversation has its beginning, and what
 * is there is right. */
static void test_budget(void **unused)
{
    struct rig rig;
    struct line lines[3];
    struct shelf shelf;
    uint64_t seed = 1, bytes;
    struct store_stats stats = {0};
    (void)unused;
    open_rig(&rig);
    line_make(&lines[0], &rig, 1, (int64_t[]){60, 130, 200, 300, 420, 600}, 6, NULL, 0);
    line_make(&lines[1], &rig, 2, (int64_t[]){60, 130, 260, 300}, 4, &lines[0], 130);
    line_make(&lines[2], &rig, 3, (int64_t[]){90, 100, 300}, 3, NULL, 0);
    shelf_make(&shelf, &rig, 1700000);
    for (int i = 0; i < (TEST_SANITIZED ? 60 : 300); i++) {
        struct line *line = &lines[test_random(&seed, 3)];
        int end = (int)test_random(&seed, (uint32_t)line->n);
        if (test_random(&seed, 3)) {
            int is_begun = shelf_save(&shelf, line, end);
            int n = shelf_files(&shelf, &bytes);
            store_stats(shelf.st, &stats);
            assert_true(bytes <= shelf.budget);
            assert_int_equal(bytes, stats.bytes);
            assert_int_equal(n, stats.n_segments);
            uint64_t chain = (uint64_t)line->ends[end] * 2048 + (uint64_t)(end + 1) * 280000;
            if (is_begun && chain < shelf.budget) /* it is there, whatever had to go */
                assert_int_equal(store_find(shelf.st, line->ids, (size_t)line->ends[end]).n, line->ends[end]);
        } else {
            (void)shelf_check(&shelf, &rig, line, line->ends[end]);
        }
        if (test_random(&seed, 20) == 0) {
            shelf_close(&shelf);
            shelf.budget = 900000 + test_random(&seed, 1200000);
            shelf_open(&shelf);
            assert_true(store_wait(shelf.st, 60000));
            shelf_files(&shelf, &bytes);
            assert_true(bytes <= shelf.budget); /* at once */
        }
        store_stats(shelf.st, &stats);
        assert_int_equal(stats.n_ignored, 0);
    }
    shelf_remove(&shelf);
    for (int i = 0; i < 3; i++)
        line_free(&lines[i]);
    rig_close(&rig);
}

/* The end not used for longest goes first, also over a restart; what has something behind it stays. */
static void test_eviction_order(void **unused)
{
    struct rig rig;
    struct line lines[4];
    struct shelf shelf;
    struct store_stats stats;
    uint64_t bytes;
    (void)unused;
    open_rig(&rig);
    line_make(&lines[0], &rig, 1, (int64_t[]){50, 100}, 2, NULL, 0);
    line_make(&lines[1], &rig, 2, (int64_t[]){100}, 1, NULL, 0);
    line_make(&lines[2], &rig, 3, (int64_t[]){100}, 1, NULL, 0);
    line_make(&lines[3], &rig, 4, (int64_t[]){50, 100}, 2, &lines[0], 50);
    shelf_make(&shelf, &rig, BIG);
    shelf_save(&shelf, &lines[0], 0);
    shelf_save(&shelf, &lines[0], 1);
    shelf_save(&shelf, &lines[3], 1); /* a fork: what it shares is kept whole */
    shelf_save(&shelf, &lines[1], 0);
    shelf_save(&shelf, &lines[2], 0);
    shelf_files(&shelf, &bytes);
    assert_int_equal(shelf_check(&shelf, &rig, &lines[0], 100), 100); /* used */
    shelf_close(&shelf);
    shelf.budget = bytes - 1;
    shelf_open(&shelf);
    assert_true(store_wait(shelf.st, 60000));
    const struct { int64_t held[4]; } steps[] = {{{100, 100, 100, 50}}, {{100, 100, 100, 0}}, {{100, 0, 100, 0}}};
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < 4; k++)
            assert_int_equal(store_find(shelf.st, lines[k].ids, 100).n, steps[i].held[k]);
        shelf_files(&shelf, &bytes);
        shelf_close(&shelf);
        shelf.budget = bytes - 1;
        shelf_open(&shelf);
        assert_true(store_wait(shelf.st, 60000));
        store_stats(shelf.st, &stats);
        assert_int_equal(stats.n_thinned, i == 0); /* with the fork gone, what was shared is only passed through */
        assert_int_equal(stats.n_evicted, i > 0);
    }
    assert_int_equal(store_find(shelf.st, lines[2].ids, 100).n, 0);
    assert_int_equal(shelf_check(&shelf, &rig, &lines[0], 100), 100);
    shelf_remove(&shelf);
    for (int i = 0; i < 4; i++)
        line_free(&lines[i]);
    rig_close(&rig);
}

/* B27: a conversation longer than the budget with all its states goes on without those it passed through, over restarts; and without an end, nothing thin is left. */
static void test_thin(void **unused)
{
    struct rig rig;
    struct line a, b;
    struct shelf shelf;
    struct store_stats stats;
    char path[128];
    uint64_t bytes;
    (void)unused;
    open_rig(&rig);
    line_make(&a, &rig, 1, (int64_t[]){60, 120, 180, 240, 300, 360}, 6, NULL, 0);
    line_make(&b, &rig, 2, (int64_t[]){150, 200}, 2, &a, 150);
    uint64_t state = plan_state_bytes(&rig.m->config), row = plan_kv_bytes_per_position(&rig.m->config, KV_F32);
    for (int indexed = 0; indexed < 2; indexed++) {
        shelf_make(&shelf, &rig, 360 * row + 2 * state + 10000);
        for (int i = 0; i < 6; i++)
            shelf_save(&shelf, &a, i);
        for (int restart = 0; restart < 2; restart++) {
            store_stats(shelf.st, &stats);
            assert_int_equal(stats.n_segments, 6);
            assert_true(stats.bytes <= shelf.budget);
            assert_int_equal(stats.n_failed + stats.n_evicted + stats.n_ignored, 0);
            assert_int_equal(stats.n_thinned, restart ? 0 : 4);
            assert_int_equal(shelf_check(&shelf, &rig, &a, 500), 360);
            assert_int_equal(shelf_check(&shelf, &rig, &a, 359), 300);
            assert_int_equal(shelf_check(&shelf, &rig, &a, 299), 0);
            assert_null(store_begin(shelf.st, session_state(a.s), a.ids, a.at[1])); /* what builds on it is there */
            shelf_close(&shelf);
            if (!indexed) {
                char index[64];
                snprintf(index, sizeof index, "%s/index.db", shelf.dir);
                unlink(index);
            }
            shelf_open(&shelf);
        }
        shelf_save(&shelf, &b, 1); /* a fork at a thin one: the rows are shared all the same */
        assert_int_equal(shelf_check(&shelf, &rig, &b, 500), 200);
        shelf_close(&shelf);
        shelf.budget = BIG;
        shelf_path(&shelf, &a, 5, path);
        unlink(path);
        shelf_path(&shelf, &a, 4, path);
        unlink(path);
        shelf_path(&shelf, &b, 1, path);
        unlink(path);
        shelf_open(&shelf);
        assert_true(store_wait(shelf.st, 60000));
        assert_int_equal(shelf_check(&shelf, &rig, &a, 500), 0);
        assert_int_equal(shelf_files(&shelf, &bytes), 0);
        for (int i = 0; i < 6; i++)
            shelf_save(&shelf, &a, i);
        assert_int_equal(shelf_check(&shelf, &rig, &a, 299), 240);
        shelf_remove(&shelf);
    }
    line_free(&a);
    line_free(&b);
    rig_close(&rig);
}

/* What a load is reading stays until it is done; the saving has to do without. */
static void test_load_in_use(void **unused)
{
    struct rig rig;
    struct line a, b;
    struct shelf shelf;
    struct state *s = NULL;
    struct store_load *load = NULL;
    struct store_stats stats;
    struct err err = {0};
    int rc, steps = 0;
    (void)unused;
    open_rig(&rig);
    line_make(&a, &rig, 1, ends, 3, NULL, 0);
    line_make(&b, &rig, 2, (int64_t[]){300}, 1, NULL, 0);
    shelf_make(&shelf, &rig, 1750000);
    for (int i = 0; i < 3; i++)
        shelf_save(&shelf, &a, i);
    struct store_match match = store_find(shelf.st, a.ids, 400);
    assert_int_equal(match.n, 400);
    test_ok(state_create(&rig.m->config, rig.dev, KV_F32, LINE_TOKENS, &s, &err), &err, "state");
    assert_int_equal(store_load_begin(shelf.st, &match, a.ids, s, &load, &err), ERR_INVALID); /* no room */
    test_ok(state_reserve(s, 400, &err), &err, "room");
    test_ok(store_load_begin(shelf.st, &match, a.ids, s, &load, &err), &err, "load");
    assert_int_equal(store_load_step(load, &err), 1);
    shelf_save(&shelf, &b, 0);
    assert_int_equal(store_find(shelf.st, b.ids, 300).n, 0);
    store_stats(shelf.st, &stats);
    assert_int_equal(stats.n_failed, 1);
    assert_int_equal(state_length(s), 0);
    while ((rc = store_load_step(load, &err)) == 1)
        steps++;
    test_ok(rc, &err, "load");
    assert_true(steps >= 5);
    line_same(&a, 2, s);
    test_ok(store_load_begin(shelf.st, &match, a.ids, s, &load, &err), &err, "load");
    assert_int_equal(store_load_step(load, &err), 1);
    store_load_cancel(load);
    assert_int_equal(state_length(s), 0);
    test_ok(store_load_begin(shelf.st, &match, a.ids, s, &load, &err), &err, "load");
    assert_int_equal(store_load_step(load, &err), 1);
    state_reset(s); /* somebody used it meanwhile */
    assert_int_equal(store_load_step(load, &err), ERR_INTERNAL);
    test_ok(store_load_begin(shelf.st, &match, a.ids, s, &load, &err), &err, "load");
    state_shrink(s, 300); /* somebody takes the memory away meanwhile */
    assert_int_equal(store_load_step(load, &err), ERR_INTERNAL);
    shelf_save(&shelf, &b, 0);
    assert_int_equal(store_find(shelf.st, b.ids, 300).n, 300);
    test_ok(state_reserve(s, 400, &err), &err, "room");
    assert_int_equal(store_load_begin(shelf.st, &match, a.ids, s, &load, &err), ERR_NOT_FOUND); /* gone since it was found */
    state_free(s);
    shelf_remove(&shelf);
    line_free(&a);
    line_free(&b);
    rig_close(&rig);
}

/* A file that differs in one weight, at the beginning, in the middle or at the end of a tensor. */
static void test_other_weights(void **unused)
{
    struct rig rig, other;
    char path[] = "/tmp/apr-weights-XXXXXX";
    size_t n;
    (void)unused;
    open_rig(&rig);
    struct hash_key own = store_fingerprint(rig.m, rig.dev, KV_F32);
    const struct gguf_tensor *t = gguf_tensor_at(rig.m->file, gguf_n_tensors(rig.m->file) / 2);
    const uint64_t places[] = {0, t->n_bytes / 2, t->n_bytes - 1};
    char *data = test_read_file(test_path("models/%s.gguf", model), &n);
    int fd = mkstemp(path);
    assert_int_equal(write(fd, data, n), n);
    for (int i = 0; i < 3; i++) {
        size_t at = (size_t)(t->offset + places[i]);
        char byte = (char)(data[at] ^ 1);
        assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
        rig_open_path(&other, path, NULL, ARITHMETIC_DEFAULT, 1, 64, 1);
        assert_true(!hash_key_equal(own, store_fingerprint(other.m, other.dev, KV_F32)));
        rig_close(&other);
        assert_int_equal(pwrite(fd, data + at, 1, (off_t)at), 1);
    }
    rig_open_path(&other, path, NULL, ARITHMETIC_DEFAULT, 1, 64, 1);
    assert_true(hash_key_equal(own, store_fingerprint(other.m, other.dev, KV_F32))); /* the name is no matter */
    rig_close(&other);
    rig_close(&rig);
    mem_free(data);
    close(fd);
    unlink(path);
}

/* B32: other weights, another row type, another arithmetic: other conversations. */
static void test_fingerprint(void **unused)
{
    struct rig rig, exact, other;
    struct line a;
    struct shelf shelf;
    struct store_stats stats;
    (void)unused;
    open_rig(&rig);
    rig_open(&exact, model, NULL, ARITHMETIC_EXACT, 1, 64, 1);
    rig_open(&other, "r2-q4_k", NULL, ARITHMETIC_DEFAULT, 1, 64, 1);
    line_make(&a, &rig, 1, ends, 3, NULL, 0);
    shelf_make(&shelf, &rig, BIG);
    shelf_save(&shelf, &a, 0);
    shelf_close(&shelf);
    struct hash_key own = shelf.model;
    assert_true(hash_key_equal(own, store_fingerprint(rig.m, rig.dev, KV_F32)));
    struct hash_key foreign[] = {store_fingerprint(rig.m, rig.dev, KV_F16), store_fingerprint(rig.m, exact.dev, KV_F32), store_fingerprint(other.m, rig.dev, KV_F32)};
    for (int i = 0; i < 3; i++) {
        shelf.model = foreign[i];
        shelf_open(&shelf);
        assert_int_equal(store_find(shelf.st, a.ids, 500).n, 0);
        store_stats(shelf.st, &stats);
        assert_int_equal(stats.n_segments, 1); /* it counts, and is kept */
        shelf_close(&shelf);
    }
    shelf.model = own;
    shelf_open(&shelf);
    assert_int_equal(shelf_check(&shelf, &rig, &a, 500), 100);
    shelf_close(&shelf);
    shelf.model = foreign[0];
    shelf.budget = 500000; /* until another's makes it go */
    shelf_open(&shelf);
    shelf_save(&shelf, &a, 0);
    store_stats(shelf.st, &stats);
    assert_int_equal(stats.n_segments, 1);
    assert_int_equal(stats.n_evicted, 1);
    shelf_remove(&shelf);
    line_free(&a);
    rig_close(&rig);
    rig_close(&exact);
    rig_close(&other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_sharing),       cmocka_unit_test(test_interleaved), cmocka_unit_test(test_moved),          cmocka_unit_test(test_backlog),     cmocka_unit_test(test_deadline),
        cmocka_unit_test(test_folders),    cmocka_unit_test(test_two_processes), cmocka_unit_test(test_budget),      cmocka_unit_test(test_eviction_order), cmocka_unit_test(test_thin), cmocka_unit_test(test_load_in_use), cmocka_unit_test(test_other_weights), cmocka_unit_test(test_fingerprint),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
