#include "engine/store_index.h"

#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

#define SCHEMA "1" /* another one is made anew */

struct store_index {
    sqlite3 *db;
    sqlite3_stmt *put, *remove;
    char *path;                  /* of the file */
    int is_told;                 /* the log has the line about what cannot be written */
};

static const char *const files[] = {INDEX_FILE, INDEX_FILE "-wal", INDEX_FILE "-shm", INDEX_FILE "-journal"};
static const char *const aside[] = {INDEX_FILE ".old", INDEX_FILE ".old-wal", INDEX_FILE ".old-shm", INDEX_FILE ".old-journal"};

static const char create[] = "PRAGMA user_version=" SCHEMA ";"
                             "CREATE TABLE segment (key BLOB PRIMARY KEY, parent BLOB NOT NULL, model BLOB NOT NULL, first INTEGER NOT NULL, past INTEGER NOT NULL, bytes INTEGER NOT NULL,"
                             " last_used INTEGER NOT NULL, thin_bytes INTEGER NOT NULL, sum INTEGER NOT NULL) WITHOUT ROWID;";

static void close_db(struct store_index *x)
{
    sqlite3_finalize(x->put);
    sqlite3_finalize(x->remove);
    sqlite3_close(x->db);
    x->put = x->remove = NULL;
    x->db = NULL;
}

void store_index_close(struct store_index *x)
{
    if (!x)
        return;
    close_db(x);
    mem_free(x->path);
    mem_free(x);
}

/* Whatever stands where the index's files belong and is none must not be opened; `all` puts them aside too: they may be another program's. Links are removed, never what they lead to. */
static void clear_files(int dir, int all)
{
    struct stat st;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        int is_there = fstatat(dir, files[i], &st, AT_SYMLINK_NOFOLLOW) == 0;
        if (is_there && !S_ISREG(st.st_mode))
            (void)file_unlink_at(dir, files[i]);
        else if (all && (!is_there || file_rename_at(dir, files[i], aside[i]) != 0))
            (void)file_unlink_at(dir, is_there ? files[i] : aside[i]); /* nothing of an earlier one stays beside it */
    }
}

/* A database without a version that has something in it is not a new one. */
static int has_tables(sqlite3 *db)
{
    sqlite3_stmt *query = NULL;
    int some = sqlite3_prepare_v2(db, "SELECT 1 FROM sqlite_master", -1, &query, NULL) == SQLITE_OK && sqlite3_step(query) == SQLITE_ROW;
    sqlite3_finalize(query);
    return some;
}

/* The file is there with mode 0600 before the library opens it, since its companions get the same. */
static int open_db(struct store_index *x, int dir)
{
    int user_version = 0;
    sqlite3_stmt *query = NULL;
    int fd = file_open_at(dir, INDEX_FILE, O_RDWR | O_CREAT, 0600);
    if (fd < 0)
        return SQLITE_CANTOPEN;
    close(fd);
    int rc = sqlite3_open_v2(x->path, &x->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_NOFOLLOW, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_exec(x->db, "PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA wal_autocheckpoint=64; PRAGMA cache_size=-256;", NULL, NULL, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_prepare_v2(x->db, "PRAGMA user_version", -1, &query, NULL);
    if (rc == SQLITE_OK && sqlite3_step(query) == SQLITE_ROW)
        user_version = sqlite3_column_int(query, 0);
    sqlite3_finalize(query);
    if (rc == SQLITE_OK && user_version == 0 && has_tables(x->db))
        rc = SQLITE_SCHEMA;
    if (rc == SQLITE_OK && user_version == 0)
        rc = sqlite3_exec(x->db, "BEGIN;", NULL, NULL, NULL) == SQLITE_OK ? sqlite3_exec(x->db, create, NULL, NULL, NULL) : SQLITE_ERROR;
    if (rc == SQLITE_OK && user_version == 0)
        rc = sqlite3_exec(x->db, "COMMIT", NULL, NULL, NULL);
    else if (rc == SQLITE_OK && user_version != SCHEMA[0] - '0')
        rc = SQLITE_SCHEMA;
    if (rc == SQLITE_OK)
        rc = sqlite3_prepare_v3(x->db, "INSERT OR REPLACE INTO segment VALUES (?,?,?,?,?,?,?,?,?)", -1, SQLITE_PREPARE_PERSISTENT, &x->put, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_prepare_v3(x->db, "DELETE FROM segment WHERE key=?", -1, SQLITE_PREPARE_PERSISTENT, &x->remove, NULL);
    return rc;
}

/* Of what tells where a segment belongs: the database itself has no checksums. */
static int64_t row_sum(const struct segment *s)
{
    uint64_t fields[] = {s->key.low, s->key.high, s->parent_key.low, s->parent_key.high, s->model.low, s->model.high, (uint64_t)s->from, (uint64_t)s->to, s->bytes, s->thin_bytes};
    return (int64_t)hash_bytes(fields, sizeof fields, 0);
}

static int column_key(sqlite3_stmt *query, int column, struct hash_key *key)
{
    const void *data = sqlite3_column_blob(query, column);
    if (!data || sqlite3_column_bytes(query, column) != (int)sizeof *key)
        return -1;
    memcpy(key, data, sizeof *key);
    return 0;
}

static int read_row(sqlite3_stmt *query, struct segment *s)
{
    *s = (struct segment){.status = SEGMENT_READY, .has_file = 1};
    if (column_key(query, 0, &s->key) < 0 || column_key(query, 1, &s->parent_key) < 0 || column_key(query, 2, &s->model) < 0)
        return SQLITE_CORRUPT;
    sqlite3_int64 bytes = sqlite3_column_int64(query, 5), last_used = sqlite3_column_int64(query, 6);
    s->from = sqlite3_column_int64(query, 3);
    s->to = sqlite3_column_int64(query, 4);
    s->bytes = (uint64_t)bytes;
    s->last_used = (uint64_t)last_used;
    s->thin_bytes = (uint64_t)sqlite3_column_int64(query, 7);
    s->is_thin = s->bytes == s->thin_bytes;
    int is_sane = s->from >= 0 && s->to > s->from && bytes > 0 && last_used >= 0 && last_used <= (sqlite3_int64)1 << 60 && sqlite3_column_int64(query, 8) == row_sum(s);
    return is_sane ? SQLITE_OK : SQLITE_CORRUPT;
}

/* All rows, before any of them is told: a damaged index tells none. */
static int read_rows(struct store_index *x, store_index_row *row, void *ctx)
{
    for (int tell = 0; tell < 2; tell++) {
        sqlite3_stmt *query = NULL;
        struct segment s;
        int rc = sqlite3_prepare_v2(x->db, "SELECT key, parent, model, first, past, bytes, last_used, thin_bytes, sum FROM segment", -1, &query, NULL), step = SQLITE_DONE;
        while (rc == SQLITE_OK && (step = sqlite3_step(query)) == SQLITE_ROW) {
            rc = read_row(query, &s);
            if (rc == SQLITE_OK && tell)
                row(ctx, &s);
        }
        sqlite3_finalize(query);
        if (rc != SQLITE_OK || step != SQLITE_DONE)
            return rc != SQLITE_OK ? rc : step;
    }
    return SQLITE_OK;
}

struct store_index *store_index_open(const char *path, int dir, store_index_row *row, void *ctx)
{
    struct store_index *x = mem_alloc(MEM_STORE, sizeof *x);
    size_t n = strlen(path) + sizeof "/" INDEX_FILE;
    if (!x || !(x->path = mem_alloc(MEM_STORE, n))) {
        mem_free(x);
        return NULL;
    }
    snprintf(x->path, n, "%s/" INDEX_FILE, path);
    clear_files(dir, 0);
    int rc = open_db(x, dir);
    if (rc == SQLITE_OK)
        rc = read_rows(x, row, ctx);
    if (rc != SQLITE_OK && rc != SQLITE_FULL) {
        log_warn("sessions: %s: the index is unusable (%s); it is made again from the files, and this one is kept as " INDEX_FILE ".old", x->path, sqlite3_errstr(rc));
        close_db(x);
        clear_files(dir, 1);
        rc = open_db(x, dir);
    }
    if (rc == SQLITE_OK)
        return x;
    log_warn("sessions: %s: there can be no index (%s); the next start looks into every file", x->path, sqlite3_errstr(rc));
    store_index_close(x);
    return NULL;
}

/* rc of something that changes the index. */
static void note(struct store_index *x, int rc)
{
    if (rc == SQLITE_OK || x->is_told)
        return;
    log_warn("sessions: %s: cannot be written (%s); the next start reads from the files what is missing", x->path, sqlite3_errstr(rc));
    x->is_told = 1;
}

void store_index_begin(struct store_index *x)
{
    if (x)
        note(x, sqlite3_exec(x->db, "BEGIN", NULL, NULL, NULL));
}

void store_index_end(struct store_index *x)
{
    if (!x || sqlite3_get_autocommit(x->db))
        return;
    int rc = sqlite3_exec(x->db, "COMMIT", NULL, NULL, NULL);
    note(x, rc);
    if (rc != SQLITE_OK)
        (void)sqlite3_exec(x->db, "ROLLBACK", NULL, NULL, NULL);
}

static void bind_key(sqlite3_stmt *statement, int at, const struct hash_key *key)
{
    (void)sqlite3_bind_blob(statement, at, key, sizeof *key, SQLITE_TRANSIENT);
}

static void run(struct store_index *x, sqlite3_stmt *statement)
{
    (void)sqlite3_step(statement);
    note(x, sqlite3_reset(statement));
}

void store_index_put(struct store_index *x, const struct segment *s)
{
    if (!x)
        return;
    bind_key(x->put, 1, &s->key);
    bind_key(x->put, 2, &s->parent_key);
    bind_key(x->put, 3, &s->model);
    (void)sqlite3_bind_int64(x->put, 4, s->from);
    (void)sqlite3_bind_int64(x->put, 5, s->to);
    (void)sqlite3_bind_int64(x->put, 6, (sqlite3_int64)s->bytes);
    (void)sqlite3_bind_int64(x->put, 7, (sqlite3_int64)s->last_used);
    (void)sqlite3_bind_int64(x->put, 8, (sqlite3_int64)s->thin_bytes);
    (void)sqlite3_bind_int64(x->put, 9, row_sum(s));
    run(x, x->put);
}

void store_index_remove(struct store_index *x, struct hash_key key)
{
    if (!x)
        return;
    bind_key(x->remove, 1, &key);
    run(x, x->remove);
}
