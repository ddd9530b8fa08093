/* The store's own thread: files, the budget, the index. Invariant: a segment's file gets its name only when all of it is on the disk, and loses it before the segment leaves the tree;
 * what is on disk is counted by the tree at all times. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/store_internal.h"

#define TOUCHED_BATCH 64

/* Removes what is dead, children before what they build on; returns how many could not be. What is dead and not pinned stays as it is while the lock is open: nobody looks at it, nothing
 * is added to it, and this thread alone removes it. */
static int sweep(struct store *st)
{
    struct segment *s;
    char name[SEGMENT_NAME_BYTES];
    int n_stuck = 0;
    pthread_mutex_lock(&st->lock);
    st->has_dead = 0;
    for (size_t i = 0; i < st->tree.n; i++)
        st->tree.at[i]->is_stuck = 0;
    while ((s = tree_dead(&st->tree)) != NULL) {
        pthread_mutex_unlock(&st->lock);
        segment_name(s->key, SEGMENT_ENDING, name);
        int gone = !s->has_file || file_unlink_at(st->dir, name) == 0 || errno == ENOENT;
        if (!gone)
            log_warn("sessions: %s/%s: cannot be removed: %s", st->path, name, strerror(errno));
        else if (s->has_file)
            store_index_remove(st->index, s->key);
        pthread_mutex_lock(&st->lock);
        if (gone)
            tree_remove(&st->tree, s);
        else
            s->is_stuck = 1;
        n_stuck += !gone;
    }
    pthread_mutex_unlock(&st->lock);
    return n_stuck;
}

/* Cuts the recurrent state off; whoever wants to go on from there is told from now on that it is not there. Negative when the file stays as it is. */
static int make_thin(struct store *st, struct segment *s)
{
    char name[SEGMENT_NAME_BYTES];
    segment_name(s->key, SEGMENT_ENDING, name);
    int fd = file_open_at(st->dir, name, O_RDWR, 0), rc = fd < 0 ? -1 : file_truncate(fd, s->thin_bytes);
    if (rc != 0)
        log_warn("sessions: %s/%s: cannot be cut: %s", st->path, name, strerror(errno));
    if (fd >= 0)
        close(fd);
    pthread_mutex_lock(&st->lock);
    if (rc == 0) {
        tree_set_thin(&st->tree, s);
        st->stats.n_thinned++;
    } else {
        s->is_thin = 0;
        s->is_stuck = 1;
    }
    s->pins--;
    pthread_mutex_unlock(&st->lock);
    return rc;
}

/* Gives up what is worth least until the tree fits the budget; negative when it cannot be. Once a file cannot be changed, no more are tried in vain. */
static int make_room(struct store *st)
{
    int n_stuck = sweep(st);
    for (int now = n_stuck;;) {
        pthread_mutex_lock(&st->lock);
        int fits = st->tree.bytes <= st->budget_bytes;
        int thin = 0;
        struct segment *victim = fits || now > n_stuck ? NULL : tree_victim(&st->tree, &thin);
        if (victim && thin) {
            victim->is_thin = 1;
            victim->pins++;
        } else if (victim) {
            victim->status = SEGMENT_DEAD;
            st->stats.n_evicted++;
        }
        pthread_mutex_unlock(&st->lock);
        if (fits)
            return 0;
        if (!victim)
            return -1;
        now = thin ? now - make_thin(st, victim) : sweep(st);
    }
}

static int begin_file(struct store *st, struct store_writing *w, struct err *err)
{
    char name[SEGMENT_NAME_BYTES];
    if (make_room(st) < 0)
        return err_set(err, ERR_LIMIT, "all of the budget is in use");
    segment_name(w->header.key, SEGMENT_UNFINISHED, name);
    w->fd = file_open_at(st->dir, name, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (w->fd < 0 && errno == EEXIST && file_unlink_at(st->dir, name) == 0) /* left over from one that failed */
        w->fd = file_open_at(st->dir, name, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (w->fd < 0 || file_allocate(w->fd, segment_file_bytes(&w->header)) != 0 || segment_write_head(w->fd, &w->header, w->ids) != 0)
        return err_set(err, ERR_IO, "%s", strerror(errno));
    return 0;
}

/* The disk has all of it before its name says so. */
static int finish_file(struct store *st, struct store_writing *w, struct err *err)
{
    char unfinished[SEGMENT_NAME_BYTES], name[SEGMENT_NAME_BYTES];
    segment_name(w->header.key, SEGMENT_UNFINISHED, unfinished);
    segment_name(w->header.key, SEGMENT_ENDING, name);
    if (file_sync(w->fd) != 0)
        return err_set(err, ERR_IO, "%s", strerror(errno));
    file_forget(w->fd);
    w->segment->has_file = 1; /* or so it may be */
    if (file_rename_at(st->dir, unfinished, name) != 0 || file_sync(st->dir) != 0)
        return err_set(err, ERR_IO, "%s", strerror(errno));
    return 0;
}

static void note_failure(struct store *st, struct store_writing *w, const struct err *why)
{
    atomic_store(&w->is_lost, 1);
    pthread_mutex_lock(&st->lock);
    st->stats.n_failed++;
    pthread_mutex_unlock(&st->lock);
    if (!st->is_failing)
        log_warn("sessions: %s: a conversation cannot be saved: %s", st->path, why->message);
    st->is_failing = 1;
}

static void run_piece(struct store *st, struct store_job *job)
{
    struct store_writing *w = job->w;
    struct err err = {0};
    if (atomic_load(&w->is_lost))
        return;
    int rc = w->fd < 0 ? begin_file(st, w, &err) : 0;
    if (rc == 0 && segment_write_piece(w->fd, &w->header, w->n_written++, job->data) != 0)
        rc = err_set(&err, ERR_IO, "%s", strerror(errno));
    if (rc < 0)
        note_failure(st, w, &err);
}

/* Uses that the index does not know of yet. */
static void put_touched(struct store *st)
{
    struct segment touched[TOUCHED_BATCH];
    for (size_t at = 0, n = TOUCHED_BATCH; n == TOUCHED_BATCH;) {
        n = 0;
        pthread_mutex_lock(&st->lock);
        for (; at < st->tree.n && n < TOUCHED_BATCH; at++) {
            struct segment *s = st->tree.at[at];
            if (s->is_touched && s->status == SEGMENT_READY) {
                touched[n++] = *s;
                s->is_touched = 0;
            }
        }
        pthread_mutex_unlock(&st->lock);
        if (n == 0)
            return;
        store_index_begin(st->index);
        for (size_t i = 0; i < n; i++)
            store_index_put(st->index, &touched[i]);
        store_index_end(st->index);
    }
}

/* The segment is part of the tree for good, or leaves it with its file. */
static void settle(struct store *st, struct store_writing *w, int is_saved)
{
    pthread_mutex_lock(&st->lock);
    if (!is_saved)
        (void)tree_kill(&st->tree, w->segment);
    else if (w->segment->status == SEGMENT_WRITING) /* else what it builds on failed meanwhile */
        w->segment->status = SEGMENT_READY;
    st->stats.n_written += w->segment->status == SEGMENT_READY;
    w->segment->pins--;
    pthread_mutex_unlock(&st->lock);
    if (is_saved && st->is_failing) {
        log_info("sessions: %s: conversations are saved again", st->path);
        st->is_failing = 0;
    }
}

static void run_end(struct store *st, struct store_writing *w)
{
    struct err err = {0};
    char name[SEGMENT_NAME_BYTES];
    if (!atomic_load(&w->is_lost) && finish_file(st, w, &err) < 0)
        note_failure(st, w, &err);
    if (w->fd >= 0) {
        segment_name(w->header.key, SEGMENT_UNFINISHED, name);
        close(w->fd);
        if (atomic_load(&w->is_lost) && file_unlink_at(st->dir, name) != 0 && errno != ENOENT)
            log_warn("sessions: %s/%s: cannot be removed: %s", st->path, name, strerror(errno));
    }
    settle(st, w, !atomic_load(&w->is_lost));
    (void)sweep(st);
    put_touched(st);
    mem_free(w->ids);
    mem_free(w);
}

/* Gives the buffer back; whoever waits for one is woken. */
static void recycle(struct store *st, struct store_job *job)
{
    pthread_mutex_lock(&st->lock);
    job->next = st->free_jobs;
    st->free_jobs = job;
    int wake = st->is_waited_for;
    st->is_waited_for = 0;
    pthread_mutex_unlock(&st->lock);
    if (wake && st->wake)
        st->wake(st->wake_ctx);
}

/* Waits for something to do: a job, or NULL and *dead when segments are to be removed; neither when the store closes. */
static struct store_job *next_job(struct store *st, int *dead)
{
    pthread_mutex_lock(&st->lock);
    st->is_busy = 0;
    while (!st->first && !st->has_dead && !st->stopping) {
        pthread_cond_broadcast(&st->idle);
        pthread_cond_wait(&st->work, &st->lock);
    }
    struct store_job *job = st->first;
    if (job) {
        st->first = job->next;
        if (!st->first)
            st->last = &st->first;
    }
    *dead = !job && st->has_dead && !st->stopping;
    st->is_busy = job || *dead;
    pthread_mutex_unlock(&st->lock);
    return job;
}

void *store_writer_main(void *arg)
{
    struct store *st = arg;
    int dead;
    for (struct store_job *job; (job = next_job(st, &dead)) || dead;) {
        if (!job) {
            (void)make_room(st); /* the budget may be smaller than it was */
        } else if (job->data) {
            run_piece(st, job);
            recycle(st, job);
        } else {
            run_end(st, job->w);
        }
    }
    put_touched(st);
    return NULL;
}
