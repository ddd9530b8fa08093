/* The engine thread's side: opening, giving pieces, looking up. Invariant: nothing here waits for the disk once the store is open, but store_wait and store_close. */
#include "engine/store.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"
#include "engine/store_internal.h"

static void free_store(struct store *st)
{
    store_index_close(st->index);
    tree_free(&st->tree);
    if (st->dir >= 0)
        close(st->dir);
    if (st->lock_fd >= 0)
        close(st->lock_fd); /* and with it the lock */
    pthread_mutex_destroy(&st->lock);
    pthread_cond_destroy(&st->work);
    pthread_cond_destroy(&st->idle);
    mem_free(st->buffers);
    mem_free(st->path);
    mem_free(st);
}

static int take_buffers(struct store *st, struct err *err)
{
    st->buffers = mem_alloc_array(MEM_STORE, STORE_N_BUFFERS, SEGMENT_BUFFER_BYTES);
    if (!st->buffers)
        return err_set(err, ERR_NO_MEMORY, "out of memory for the sessions");
    for (int i = 0; i < STORE_N_BUFFERS; i++) {
        st->jobs[i] = (struct store_job){.data = st->buffers + (size_t)i * SEGMENT_BUFFER_BYTES, .next = st->free_jobs};
        st->free_jobs = &st->jobs[i];
    }
    return 0;
}

/* Signals are other threads' business. */
static int start_thread(struct store *st, struct err *err)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = thread_create(&st->thread, store_writer_main, st);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc != 0)
        return err_set(err, ERR_IO, "sessions: the writing thread could not be created: %s", strerror(rc));
    st->thread_started = 1;
    return 0;
}

int store_open(const struct store_options *options, struct store **out, struct err *err)
{
    struct store *st = mem_alloc(MEM_STORE, sizeof *st);
    if (!st)
        return err_set(err, ERR_NO_MEMORY, "out of memory for the sessions");
    *st = (struct store){.dir = -1, .lock_fd = -1, .model = options->model, .budget_bytes = options->budget_bytes, .wake = options->wake, .wake_ctx = options->ctx};
    st->last = &st->first;
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&st->work, NULL);
    pthread_cond_init(&st->idle, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&st->lock, NULL);
    int rc = take_buffers(st, err);
    if (rc == 0)
        rc = store_folder_open(st, options->dir, err);
    if (rc == 0)
        rc = store_folder_read(st, err);
    if (rc == 0)
        rc = start_thread(st, err);
    if (rc < 0)
        free_store(st);
    else
        *out = st;
    return rc;
}

int store_wait(struct store *st, int ms)
{
    struct timespec until = clock_after(ms);
    int rc = 0;
    pthread_mutex_lock(&st->lock);
    while ((st->first || st->is_busy || st->has_dead) && rc == 0)
        rc = pthread_cond_timedwait(&st->idle, &st->lock, &until);
    int is_idle = !st->first && !st->is_busy && !st->has_dead;
    pthread_mutex_unlock(&st->lock);
    return is_idle;
}

void store_close(struct store *st, int deadline_ms)
{
    if (!st)
        return;
    if (!store_wait(st, deadline_ms))
        log_warn("sessions: %s: the disk did not take everything in time; the last of it is not saved", st->path);
    pthread_mutex_lock(&st->lock);
    st->stopping = 1;
    for (struct store_job *job = st->first; job; job = job->next)
        atomic_store(&job->w->is_lost, 1);
    pthread_cond_signal(&st->work);
    pthread_mutex_unlock(&st->lock);
    pthread_join(st->thread, NULL);
    free_store(st);
}

void store_enqueue(struct store *st, struct store_job *job)
{
    job->next = NULL;
    *st->last = job;
    st->last = &job->next;
    pthread_cond_signal(&st->work);
}

static int prepare_header(const struct state *s, const struct store *st, int64_t from, int64_t to, struct segment_header *h)
{
    struct state_shape shape = state_shape(s);
    *h = (struct segment_header){.model = st->model, .from = from, .to = to, .row_bytes = shape.row_bytes, .n_arrays = shape.n_arrays, .recurrent_bytes = shape.recurrent_bytes};
    uint64_t bytes = segment_file_bytes(h);
    return bytes > 0 && bytes <= st->budget_bytes;
}

/* Finds where the segment begins and puts it into the tree, unless it is there or is too large for the budget. */
static struct segment *add_segment(struct store *st, const struct state *s, const int32_t *tokens, int64_t to, struct segment_header *h, int *is_too_large)
{
    struct hash_key key;
    struct segment *parent = tree_longest(&st->tree, st->model, tokens, to, TREE_CONTINUE, &key);
    if (parent)
        tree_touch(&st->tree, parent);
    if (parent && parent->to == to)
        return NULL;
    if (tree_get(&st->tree, key)) { /* dead, and not gone yet */
        st->has_dead = 1;
        pthread_cond_signal(&st->work);
        return NULL;
    }
    if (!prepare_header(s, st, parent ? parent->to : 0, to, h)) {
        st->stats.n_failed++;
        *is_too_large = 1;
        return NULL;
    }
    h->key = key;
    if (parent)
        h->parent = parent->key;
    segment_header_seal(h);
    struct segment *added = tree_add(&st->tree, &(struct segment){.key = key, .parent_key = h->parent, .model = st->model, .parent = parent, .from = h->from, .to = to,
                                                                   .bytes = segment_file_bytes(h), .thin_bytes = segment_thin_bytes(h), .status = SEGMENT_WRITING, .pins = 1});
    if (added)
        tree_touch(&st->tree, added);
    return added;
}

struct store_writing *store_begin(struct store *st, const struct state *s, const int32_t *tokens, struct state_snapshot *at)
{
    int64_t to = state_snapshot_position(at);
    int is_too_large = 0;
    if (to < 1 || to > state_length(s) || state_snapshot_bytes(at) != state_shape(s).recurrent_bytes)
        return NULL;
    struct store_writing *w = mem_alloc(MEM_STORE, sizeof *w);
    if (!w)
        return NULL;
    *w = (struct store_writing){.store = st, .fd = -1, .cuts = state_cuts(s), .end = {.w = w}};
    pthread_mutex_lock(&st->lock);
    w->segment = add_segment(st, s, tokens, to, &w->header, &is_too_large);
    pthread_mutex_unlock(&st->lock);
    if (is_too_large && !st->is_told_small) {
        log_warn("sessions: %s: a conversation of %lld tokens is larger than the whole budget and is not saved", st->path, (long long)to);
        st->is_told_small = 1;
    }
    if (!w->segment) {
        mem_free(w);
        return NULL;
    }
    w->at = state_snapshot_ref(at);
    w->ids = mem_alloc_array(MEM_STORE, (size_t)(to - w->header.from), sizeof *w->ids);
    if (!w->ids) {
        store_abandon(w);
        return NULL;
    }
    memcpy(w->ids, tokens + w->header.from, (size_t)(to - w->header.from) * sizeof *w->ids);
    return w;
}

/* From here on it is the writer's. */
static void end_writing(struct store_writing *w, struct store_job *last)
{
    struct store *st = w->store;
    state_snapshot_free(w->at);
    w->at = NULL;
    pthread_mutex_lock(&st->lock);
    if (last)
        store_enqueue(st, last);
    store_enqueue(st, &w->end);
    pthread_mutex_unlock(&st->lock);
}

void store_abandon(struct store_writing *w)
{
    if (!w)
        return;
    atomic_store(&w->is_lost, 1);
    end_writing(w, NULL);
}

/* Are the rows below the snapshot still what they were when it began? */
static int is_intact(struct store_writing *w, const struct state *s)
{
    struct state_cuts cuts = state_cuts(s);
    int intact = cuts.n == w->cuts.n || (cuts.n == w->cuts.n + 1 && cuts.kept >= w->header.to);
    w->cuts = cuts;
    return intact;
}

static struct store_job *take_buffer(struct store *st)
{
    pthread_mutex_lock(&st->lock);
    struct store_job *job = st->free_jobs;
    if (job)
        st->free_jobs = job->next;
    else
        st->is_waited_for = 1;
    pthread_mutex_unlock(&st->lock);
    return job;
}

enum store_progress store_piece(struct store_writing *w, const struct state *s)
{
    struct store *st = w->store;
    if (atomic_load(&w->is_lost) || !is_intact(w, s)) {
        store_abandon(w);
        return STORE_OVER;
    }
    struct store_job *job = take_buffer(st);
    if (!job)
        return STORE_LATER;
    struct segment_piece p = segment_piece(&w->header, w->n_given);
    if (p.is_recurrent)
        state_snapshot_read(w->at, p.offset, job->data, p.n);
    else
        state_read_rows(s, w->header.from, w->header.to, p.offset, job->data, p.n);
    job->w = w;
    if (++w->n_given == segment_n_pieces(&w->header)) {
        end_writing(w, job);
        return STORE_OVER;
    }
    pthread_mutex_lock(&st->lock);
    store_enqueue(st, job);
    pthread_mutex_unlock(&st->lock);
    return STORE_MORE;
}

struct store_match store_find(struct store *st, const int32_t *tokens, size_t n)
{
    struct store_match match = {0};
    pthread_mutex_lock(&st->lock);
    const struct segment *s = tree_longest(&st->tree, st->model, tokens, (int64_t)n, TREE_LOAD, NULL);
    if (s)
        match = (struct store_match){.n = s->to, .key = s->key};
    pthread_mutex_unlock(&st->lock);
    return match;
}

void store_stats(struct store *st, struct store_stats *out)
{
    pthread_mutex_lock(&st->lock);
    *out = st->stats;
    out->budget_bytes = st->budget_bytes;
    for (size_t i = 0; i < st->tree.n; i++) {
        const struct segment *s = st->tree.at[i];
        if (s->status == SEGMENT_READY) {
            out->bytes += s->bytes;
            out->n_segments++;
        }
    }
    pthread_mutex_unlock(&st->lock);
}
