#include "support/store.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "support/test.h"

void line_make(struct line *line, struct rig *rig, uint64_t seed, const int64_t *ends, int n, const struct line *other, int64_t common)
{
    struct err err = {0};
    struct sync_result r;
    *line = (struct line){.n = n};
    for (int64_t i = 0; i < LINE_TOKENS; i++)
        line->ids[i] = i < common ? other->ids[i] : (int32_t)test_random(&seed, 1000);
    test_ok(session_create(rig->r, KV_F32, LINE_TOKENS + 8, &line->s, &err), &err, "session");
    for (int i = 0; i < n; i++) {
        line->ends[i] = ends[i];
        test_ok(session_sync(line->s, &(struct sync_request){.tokens = line->ids, .n = (size_t)ends[i]}, &r, &err), &err, "sync");
        test_ok(state_snapshot_take(session_state(line->s), &line->at[i], &err), &err, "snapshot");
    }
}

void line_free(struct line *line)
{
    for (int i = 0; i < line->n; i++)
        state_snapshot_free(line->at[i]);
    session_free(line->s);
}

void shelf_open(struct shelf *shelf)
{
    struct err err = {0};
    struct store_options options = {.dir = shelf->dir, .budget_bytes = shelf->budget, .model = shelf->model};
    test_ok(store_open(&options, &shelf->st, &err), &err, "store");
}

void shelf_make(struct shelf *shelf, struct rig *rig, uint64_t budget)
{
    *shelf = (struct shelf){.dir = "/tmp/apr-store-XXXXXX", .budget = budget, .model = store_fingerprint(rig->m, rig->dev, KV_F32)};
    assert_non_null(mkdtemp(shelf->dir));
    shelf_open(shelf);
}

void shelf_close(struct shelf *shelf)
{
    store_close(shelf->st, 10000);
    shelf->st = NULL;
}

void shelf_remove(struct shelf *shelf)
{
    shelf_close(shelf);
    DIR *d = opendir(shelf->dir);
    for (struct dirent *entry; (entry = readdir(d)) != NULL;)
        if (unlinkat(dirfd(d), entry->d_name, 0) != 0)
            (void)unlinkat(dirfd(d), entry->d_name, AT_REMOVEDIR);
    closedir(d);
    assert_int_equal(rmdir(shelf->dir), 0);
}

int shelf_save(struct shelf *shelf, const struct line *line, int i)
{
    const struct state *s = session_state(line->s);
    struct store_writing *w = store_begin(shelf->st, s, line->ids, line->at[i]);
    int is_begun = w != NULL;
    for (enum store_progress p = STORE_MORE; w && p != STORE_OVER;) {
        p = store_piece(w, s);
        if (p == STORE_LATER)
            usleep(1000);
    }
    assert_true(store_wait(shelf->st, 60000));
    return is_begun;
}

int shelf_files(const struct shelf *shelf, uint64_t *bytes)
{
    struct stat st;
    int n = 0;
    DIR *d = opendir(shelf->dir);
    *bytes = 0;
    for (struct dirent *entry; (entry = readdir(d)) != NULL;) {
        size_t length = strlen(entry->d_name);
        assert_true(length < 4 || strcmp(entry->d_name + length - 4, ".tmp") != 0);
        if (length > 4 && strcmp(entry->d_name + length - 4, ".seg") == 0 && fstatat(dirfd(d), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0) {
            *bytes += (uint64_t)st.st_size;
            n++;
        }
    }
    closedir(d);
    return n;
}

void shelf_path(const struct shelf *shelf, const struct line *line, int i, char out[128])
{
    struct hash_stream h;
    hash_stream_begin(&h);
    hash_stream_add(&h, &shelf->model, sizeof shelf->model);
    hash_stream_add(&h, line->ids, (size_t)line->ends[i] * sizeof *line->ids);
    struct hash_key key = hash_stream_key(&h);
    snprintf(out, 128, "%s/%016llx%016llx.seg", shelf->dir, (unsigned long long)key.high, (unsigned long long)key.low);
}

void line_same(const struct line *line, int i, const struct state *s)
{
    static unsigned char a[1 << 20], b[1 << 20];
    struct state_shape shape = state_shape(s);
    uint64_t total = (uint64_t)line->ends[i] * shape.row_bytes * shape.n_arrays;
    struct state_snapshot *snapshot = NULL;
    struct err err = {0};
    assert_int_equal(state_length(s), line->ends[i]);
    for (uint64_t at = 0; at < total; at += sizeof a) {
        size_t n = total - at < sizeof a ? (size_t)(total - at) : sizeof a;
        state_read_rows(s, 0, line->ends[i], at, a, n);
        state_read_rows(session_state(line->s), 0, line->ends[i], at, b, n);
        assert_memory_equal(a, b, n);
    }
    test_ok(state_snapshot_take(s, &snapshot, &err), &err, "snapshot");
    assert_memory_equal(state_snapshot_data(snapshot), state_snapshot_data(line->at[i]), state_snapshot_bytes(snapshot));
    state_snapshot_free(snapshot);
}

int64_t shelf_check(struct shelf *shelf, struct rig *rig, const struct line *line, int64_t n)
{
    struct state *s = NULL;
    struct err err = {0};
    struct store_match match = {.n = n + 1};
    test_ok(state_create(&rig->m->config, rig->dev, KV_F32, LINE_TOKENS, &s, &err), &err, "state");
    test_ok(state_reserve(s, n, &err), &err, "room");
    for (int64_t before; (before = match.n) > 0;) {
        match = store_find(shelf->st, line->ids, (size_t)n);
        assert_true(match.n < before);
        if (match.n == 0)
            break;
        if (store_load(shelf->st, &match, line->ids, s, &err) == 0) {
            int i = 0;
            while (i < line->n && line->ends[i] != match.n)
                i++;
            assert_true(i < line->n);
            line_same(line, i, s);
            break;
        }
        assert_int_equal(state_length(s), 0);
    }
    state_free(s);
    assert_true(store_wait(shelf->st, 60000)); /* what was bad is gone */
    return match.n;
}
