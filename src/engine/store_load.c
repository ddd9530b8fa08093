/* From the disk into a state, piece by piece, each checked before it is copied. Invariant: the state's length is 0 until everything is there. */
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/store_internal.h"

struct store_load {
    struct store *store;
    struct state *state;
    struct state_cuts cuts;      /* of the state: nobody else changed it */
    const int32_t *tokens;
    struct segment **chain;      /* [n] from the beginning on, pinned */
    int n, at;
    int fd;                      /* of chain[at]; -1: not open yet */
    struct segment_header header;
    uint64_t piece;              /* the next of that segment */
    unsigned char *buffer;       /* SEGMENT_BUFFER_BYTES */
};

static void free_load(struct store_load *load)
{
    if (load->fd >= 0)
        close(load->fd);
    mem_free(load->chain);
    mem_free(load->buffer);
    mem_free(load);
}

static void end_load(struct store_load *load, int is_done)
{
    struct store *st = load->store;
    pthread_mutex_lock(&st->lock);
    tree_pin(load->chain[load->n - 1], -1);
    st->stats.n_loaded += is_done != 0;
    st->has_dead = 1; /* what was killed while it was pinned can go now */
    pthread_cond_signal(&st->work);
    pthread_mutex_unlock(&st->lock);
    free_load(load);
}

/* Pins the chain that ends with the match. ERR_NOT_FOUND when it went away since it was found. */
static int take_chain(struct store_load *load, const struct store_match *match)
{
    struct store *st = load->store;
    int rc = ERR_NOT_FOUND;
    pthread_mutex_lock(&st->lock);
    struct segment *last = tree_get(&st->tree, match->key);
    if (last && last->to == match->n && last->status == SEGMENT_READY && !last->is_thin) {
        for (struct segment *s = last; s; s = s->parent)
            load->n++;
        load->chain = mem_alloc_array(MEM_STORE, (size_t)load->n, sizeof *load->chain);
        rc = load->chain ? 0 : ERR_NO_MEMORY;
        int at = load->n;
        for (struct segment *s = last; load->chain && s; s = s->parent)
            load->chain[--at] = s;
        if (load->chain) {
            tree_pin(last, 1);
            tree_touch(&st->tree, last);
        }
    }
    pthread_mutex_unlock(&st->lock);
    return rc;
}

int store_load_begin(struct store *st, const struct store_match *match, const int32_t *tokens, struct state *s, struct store_load **out, struct err *err)
{
    state_reset(s);
    if (match->n < 1 || match->n > state_capacity(s))
        return err_set(err, ERR_INVALID, "%lld stored positions do not fit a state of %lld", (long long)match->n, (long long)state_capacity(s));
    struct store_load *load = mem_alloc(MEM_STORE, sizeof *load);
    if (!load)
        return err_set(err, ERR_NO_MEMORY, "out of memory for loading a conversation");
    *load = (struct store_load){.store = st, .state = s, .cuts = state_cuts(s), .tokens = tokens, .fd = -1};
    load->buffer = mem_alloc(MEM_STORE, SEGMENT_BUFFER_BYTES);
    int rc = load->buffer ? take_chain(load, match) : ERR_NO_MEMORY;
    if (rc == 0) {
        *out = load;
        return 0;
    }
    free_load(load);
    return err_set(err, rc, rc == ERR_NOT_FOUND ? "the stored conversation is gone" : "out of memory for loading a conversation");
}

/* Is the file what the tree says it is, and made of a state like this one? */
static int check_header(const struct store_load *load, struct err *err)
{
    const struct segment *s = load->chain[load->at];
    const struct segment_header *h = &load->header;
    struct state_shape shape = state_shape(load->state);
    if (!hash_key_equal(h->key, s->key) || !hash_key_equal(h->parent, s->parent_key) || !hash_key_equal(h->model, load->store->model) || h->from != s->from || h->to != s->to)
        return err_set(err, ERR_FORMAT, "is another segment than its name tells");
    if (h->row_bytes != shape.row_bytes || h->n_arrays != shape.n_arrays || h->recurrent_bytes != shape.recurrent_bytes)
        return err_set(err, ERR_FORMAT, "was made of another state");
    return 0;
}

static int open_segment(struct store_load *load, struct err *err)
{
    char name[SEGMENT_NAME_BYTES];
    int is_thin;
    segment_name(load->chain[load->at]->key, SEGMENT_ENDING, name);
    load->fd = segment_open(load->store->dir, name, &load->header, &is_thin, err);
    TRY(load->fd);
    if (is_thin && load->at + 1 == load->n)
        return err_set(err, ERR_FORMAT, "has lost its end");
    load->piece = 0;
    TRY(check_header(load, err));
    return segment_check_ids(load->fd, &load->header, load->tokens + load->header.from, load->buffer, err);
}

/* Only the last segment's recurrent state is of use. Returns how many segments are left. */
static int read_piece(struct store_load *load, struct err *err)
{
    const struct segment_header *h = &load->header;
    int is_last = load->at + 1 == load->n;
    uint64_t n_pieces = is_last ? segment_n_pieces(h) : segment_n_row_pieces(h);
    if (load->piece < n_pieces) {
        struct segment_piece p = segment_piece(h, load->piece);
        TRY(segment_read_piece(load->fd, h, load->piece++, load->buffer, err));
        if (p.is_recurrent)
            state_write_recurrent(load->state, p.offset, load->buffer, p.n);
        else
            state_write_rows(load->state, h->from, h->to, p.offset, load->buffer, p.n);
    }
    if (load->piece < n_pieces)
        return load->n - load->at;
    file_forget(load->fd);
    close(load->fd);
    load->fd = -1;
    return load->n - ++load->at;
}

/* The segment to blame, and all that builds on it, are of no use to anybody; but a process short of descriptors or memory blames none. */
static void blame(struct store_load *load, const struct err *why)
{
    struct store *st = load->store;
    struct segment *s = load->chain[load->at];
    char name[SEGMENT_NAME_BYTES];
    segment_name(s->key, SEGMENT_ENDING, name);
    log_warn("sessions: %s/%s: %s; ignored, its tokens are read again", st->path, name, why->message);
    if (why->code == ERR_NO_MEMORY)
        return;
    pthread_mutex_lock(&st->lock);
    st->stats.n_ignored += (uint64_t)tree_kill(&st->tree, s);
    pthread_mutex_unlock(&st->lock);
}

static int is_untouched(const struct store_load *load)
{
    return state_cuts(load->state).n == load->cuts.n && state_length(load->state) == 0 && state_capacity(load->state) >= load->chain[load->n - 1]->to;
}

int store_load_step(struct store_load *load, struct err *err)
{
    struct state *s = load->state;
    int64_t n = load->chain[load->n - 1]->to;
    if (!is_untouched(load)) {
        store_load_cancel(load);
        return err_set(err, ERR_INTERNAL, "the state was used while it was loaded");
    }
    int rc = load->fd < 0 ? open_segment(load, err) : 0;
    if (rc == 0)
        rc = read_piece(load, err);
    if (rc > 0)
        return 1;
    if (rc < 0) {
        blame(load, err);
        state_reset(s);
    } else {
        state_set_length(s, n);
    }
    end_load(load, rc == 0);
    return rc;
}

void store_load_cancel(struct store_load *load)
{
    if (!load)
        return;
    state_reset(load->state);
    end_load(load, 0);
}

int store_load(struct store *st, const struct store_match *match, const int32_t *tokens, struct state *s, struct err *err)
{
    struct store_load *load = NULL;
    TRY(store_load_begin(st, match, tokens, s, &load, err));
    int rc = 1;
    while (rc > 0)
        rc = store_load_step(load, err);
    return rc;
}
