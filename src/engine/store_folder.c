/* Opening the folder. Invariant: afterwards the tree holds exactly the segments whose files are there, whole by their size and with all they build on; what else carries a segment's name
 * is gone, and files with other names were not touched. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/store_internal.h"

#define LOCK_FILE "lock"

/* Nobody else can put files there. */
static int check_folder(const char *dir, int fd, struct err *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return err_set(err, ERR_IO, "sessions: %s: %s", dir, strerror(errno));
    if (st.st_uid != geteuid())
        return err_set(err, ERR_INVALID, "sessions: %s: belongs to another user; name a folder of your own", dir);
    if (st.st_mode & 022)
        return err_set(err, ERR_INVALID, "sessions: %s: others may write there; change that with chmod 700, or name another folder", dir);
    if (faccessat(fd, ".", W_OK | X_OK, AT_EACCESS) != 0)
        return err_set(err, ERR_INVALID, "sessions: %s: cannot be written to: %s", dir, strerror(errno));
    return 0;
}

/* A number and a line break; zeros where the machine lost power. */
static int is_lock(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (text[i] != 0 && text[i] != '\n' && (text[i] < '0' || text[i] > '9'))
            return 0;
    return 1;
}

/* Held as long as the descriptor is open, and by no dead process. The file tells who. */
static int take_lock(struct store *st, const char *dir, struct err *err)
{
    char who[32] = "";
    uint64_t bytes;
    st->lock_fd = file_open_at(st->dir, LOCK_FILE, O_RDWR | O_CREAT, 0600);
    if (st->lock_fd < 0 || file_size(st->lock_fd, &bytes) != 0)
        return err_set(err, ERR_IO, "sessions: %s/" LOCK_FILE ": cannot be opened: %s", dir, strerror(errno));
    if (flock(st->lock_fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK)
            return err_set(err, ERR_IO, "sessions: %s/" LOCK_FILE ": cannot be locked: %s", dir, strerror(errno));
        ssize_t n = pread(st->lock_fd, who, sizeof who - 1, 0);
        who[n > 0 ? strspn(who, "0123456789") : 0] = 0;
        return err_set(err, ERR_BUSY, "sessions: %s: is in use by another process%s%s; stop that one, or name another folder", dir, *who ? ", " : "", who);
    }
    ssize_t held = pread(st->lock_fd, who, sizeof who - 1, 0);
    if (held < 0 || (uint64_t)held != bytes || !is_lock(who, (size_t)held))
        return err_set(err, ERR_INVALID, "sessions: %s/" LOCK_FILE ": was not made by apr; name a folder of its own", dir);
    int n = snprintf(who, sizeof who, "%ld\n", (long)getpid());
    if (ftruncate(st->lock_fd, 0) != 0 || pwrite(st->lock_fd, who, (size_t)n, 0) != n)
        log_verbose("sessions: %s/" LOCK_FILE ": cannot be written: %s", dir, strerror(errno)); /* a full disk: the lock holds all the same */
    return 0;
}

int store_folder_open(struct store *st, const char *dir, struct err *err)
{
    char absolute[PATH_MAX];
    if (mkdir(dir, 0700) != 0 && errno != EEXIST)
        return err_set(err, errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, "sessions: %s: cannot be made: %s", dir, strerror(errno));
    st->dir = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (st->dir < 0)
        return err_set(err, errno == ENOTDIR ? ERR_INVALID : ERR_IO, "sessions: %s: %s", dir, errno == ENOTDIR ? "is not a folder; name one" : strerror(errno));
    TRY(check_folder(dir, st->dir, err));
    TRY(take_lock(st, dir, err));
    if (!realpath(dir, absolute))
        return err_set(err, ERR_IO, "sessions: %s: %s", dir, strerror(errno));
    st->path = mem_strndup(MEM_STORE, absolute, strlen(absolute));
    return st->path ? 0 : err_set(err, ERR_NO_MEMORY, "out of memory for the sessions");
}

static void add_row(void *ctx, const struct segment *row)
{
    struct store *st = ctx;
    (void)tree_add(&st->tree, row);
}

/* Something with a segment's name is none. */
static void ignore_file(struct store *st, const char *name, const char *why)
{
    log_warn("sessions: %s/%s: %s; ignored", st->path, name, why);
    st->stats.n_ignored++;
    if (file_unlink_at(st->dir, name) != 0 && errno != ENOENT)
        log_warn("sessions: %s/%s: cannot be removed: %s", st->path, name, strerror(errno));
}

/* A time of change as the tree's clock. */
static uint64_t last_changed(const struct stat *seen)
{
    int64_t seconds = seen->st_mtim.tv_sec, most = (int64_t)1 << 40;
    return (uint64_t)(seconds < 0 ? 0 : seconds > most ? most : seconds);
}

/* A file without a row: its own header tells what it is. Times of change give the order of use. */
static void adopt_file(struct store *st, const char *name, struct hash_key key, const struct stat *seen)
{
    struct segment_header h;
    struct err err;
    int is_thin, fd = segment_open(st->dir, name, &h, &is_thin, &err);
    if (fd == ERR_NO_MEMORY)
        log_warn("sessions: %s/%s: %s; ignored this time", st->path, name, err.message);
    else if (fd < 0)
        ignore_file(st, name, err.message);
    if (fd < 0)
        return;
    close(fd);
    if (!hash_key_equal(h.key, key)) {
        ignore_file(st, name, "has another name than its header tells");
        return;
    }
    struct segment s = {.key = h.key, .parent_key = h.parent, .model = h.model, .from = h.from, .to = h.to, .bytes = (uint64_t)seen->st_size, .status = SEGMENT_READY, .is_touched = 1,
                        .is_seen = 1, .has_file = 1, .is_thin = is_thin, .thin_bytes = segment_thin_bytes(&h), .last_used = last_changed(seen)};
    (void)tree_add(&st->tree, &s);
}

static void read_entry(struct store *st, const char *name)
{
    struct hash_key key;
    struct stat seen;
    if (segment_name_parse(name, SEGMENT_UNFINISHED, &key)) { /* whoever wrote it was stopped */
        (void)file_unlink_at(st->dir, name);
        return;
    }
    if (!segment_name_parse(name, SEGMENT_ENDING, &key))
        return;
    if (fstatat(st->dir, name, &seen, AT_SYMLINK_NOFOLLOW) != 0) {
        ignore_file(st, name, strerror(errno));
        return;
    }
    struct segment *s = tree_get(&st->tree, key);
    if (s && S_ISREG(seen.st_mode) && (uint64_t)seen.st_size == s->bytes) {
        s->is_seen = 1;
        return;
    }
    if (s)
        tree_remove(&st->tree, s); /* the row tells of another file: looked at as if there were none */
    adopt_file(st, name, key, &seen);
}

/* Removing and adding while a folder is read may show entries twice or never: its names first. */
static int list_names(struct store *st, struct buf *names, struct err *err)
{
    int fd = openat(st->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    if (!d) {
        int saved = errno;
        if (fd >= 0)
            close(fd);
        return err_set(err, ERR_IO, "sessions: %s: cannot be read: %s", st->path, strerror(saved));
    }
    for (struct dirent *entry; (entry = readdir(d)) != NULL;)
        buf_add(names, entry->d_name, strlen(entry->d_name) + 1);
    closedir(d);
    return names->failed ? err_set(err, ERR_NO_MEMORY, "sessions: %s: too many files to list", st->path) : 0;
}

/* Rows whose files are gone; the writer clears them away. */
static void drop_unseen(struct store *st)
{
    for (size_t i = 0; i < st->tree.n; i++)
        if (!st->tree.at[i]->is_seen)
            st->tree.at[i]->status = SEGMENT_DEAD;
}

static void put_touched(struct store *st)
{
    for (size_t i = 0; i < st->tree.n; i++) {
        struct segment *s = st->tree.at[i];
        if (s->is_touched && s->status == SEGMENT_READY)
            store_index_put(st->index, s);
        s->is_touched = 0;
    }
}

static void tell(const struct store *st, int n_orphans)
{
    uint64_t own = 0, foreign = 0;
    for (size_t i = 0; i < st->tree.n; i++) {
        const struct segment *s = st->tree.at[i];
        if (s->status == SEGMENT_READY)
            *(hash_key_equal(s->model, st->model) ? &own : &foreign) += s->bytes;
    }
    if (n_orphans)
        log_warn("sessions: %s: %d files continue something that is not there; ignored", st->path, n_orphans);
    if (foreign)
        log_info("sessions: %s: %.1f MiB are of other models or settings; ignored, within the budget, until they make room", st->path, (double)foreign / 1048576);
    log_verbose("sessions: %s: %.1f MiB of conversations", st->path, (double)own / 1048576);
}

int store_folder_read(struct store *st, struct err *err)
{
    struct buf names;
    buf_init(&names, MEM_STORE, (size_t)64 << 20);
    st->index = store_index_open(st->path, st->dir, add_row, st);
    int rc = list_names(st, &names, err);
    if (rc == 0) {
        store_index_begin(st->index);
        for (size_t at = 0; at < names.len; at += strlen(names.data + at) + 1)
            read_entry(st, names.data + at);
        drop_unseen(st);
        int n_orphans = tree_link(&st->tree);
        st->stats.n_ignored += (uint64_t)n_orphans;
        put_touched(st);
        store_index_end(st->index);
        st->has_dead = 1;
        tell(st, n_orphans);
    }
    buf_free(&names);
    return rc;
}
