/* Invariant: a slot with a load has a request, and its session is empty and takes part in no step until the load has ended. */
#include "engine/disk.h"

#include "base/clock.h"
#include "base/log.h"
#include "engine/engine_internal.h"

#define ALONE_MS 20.0          /* of copying between two looks at the queue, when nobody generates */
#define BESIDE_SHARE 0.3       /* of a step of those who do */
#define CLOSE_MS 10000
#define STUCK_MS 500          /* a disk that takes nothing for so long is not waited for */

/* From the store's thread. */
static void wake(void *ctx)
{
    struct engine *e = ctx;
    pthread_mutex_lock(&e->lock);
    pthread_cond_signal(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

int disk_open(struct engine *e, struct err *err)
{
    struct store_stats stats;
    if (!e->options.session_dir)
        return 0;
    struct store_options o = {.dir = e->options.session_dir, .budget_bytes = e->options.session_budget ? e->options.session_budget : ENGINE_SESSION_BUDGET,
                              .model = store_fingerprint(e->model, e->device, e->plan.cache_type), .wake = wake, .ctx = e};
    TRY(store_open(&o, &e->store, err));
    store_stats(e->store, &stats);
    log_info("sessions: %s holds %.1f MiB of at most %.1f MiB in %llu segments", o.dir, (double)stats.bytes / 1048576.0, (double)stats.budget_bytes / 1048576.0,
             (unsigned long long)stats.n_segments);
    if (e->plan.n_snapshots == 0)
        log_warn("sessions: no memory is left for snapshots, and what is saved is made of them: nothing will be; raise --memory-limit or lower --context-length or --parallel");
    return 0;
}

static void save(struct engine *e, int slot, struct state_snapshot *at)
{
    struct slot *s = &e->slots[slot];
    size_t n;
    if (!at || state_snapshot_position(at) < DISK_MIN_TOKENS)
        return;
    struct store_writing *w = store_begin(e->store, session_state(s->session), session_tokens(s->session, &n), at);
    if (w) {
        s->moved_ns = clock_ns();
        s->writings[s->n_writings++] = w;
    }
}

static int may_save(const struct engine *e, int slot)
{
    return e->store && !e->slots[slot].load && e->slots[slot].n_writings < DISK_WRITINGS;
}

void disk_save_prompt(struct engine *e, int slot)
{
    if (may_save(e, slot))
        save(e, slot, session_fork_point(e->slots[slot].session));
}

void disk_save_turn(struct engine *e, int slot)
{
    if (may_save(e, slot))
        save(e, slot, session_keep(e->slots[slot].session));
}

int disk_is_saving(const struct slot *s)
{
    return s->n_writings > 0;
}

int disk_is_stuck(const struct slot *s)
{
    return clock_ms_since(s->moved_ns) > STUCK_MS;
}

int64_t disk_find(struct engine *e, const struct request *r, int64_t reusable, struct store_match *match)
{
    if (!e->store || r->prompt.len < 2)
        return 0;
    *match = store_find(e->store, r->prompt.data, r->prompt.len - 1); /* there are no logits on disk */
    return match->n >= reusable + DISK_MIN_TOKENS ? match->n : 0;
}

void disk_load(struct engine *e, int slot, const struct store_match *match)
{
    struct slot *s = &e->slots[slot];
    struct err why = {0};
    if (store_load_begin(e->store, match, s->request->prompt.data, session_state(s->session), &s->load, &why) < 0)
        log_warn("sessions: %s; its tokens are read again", why.message);
}

void disk_cancel_load(struct slot *s)
{
    store_load_cancel(s->load);
    s->load = NULL;
}

/* The first of the slot's writings goes on; returns whether it moved. */
static int give_piece(struct slot *s)
{
    enum store_progress p = store_piece(s->writings[0], session_state(s->session));
    if (p != STORE_LATER)
        s->moved_ns = clock_ns();
    if (p != STORE_OVER)
        return p == STORE_MORE;
    s->n_writings--;
    for (int i = 0; i < s->n_writings; i++)
        s->writings[i] = s->writings[i + 1];
    return 1;
}

static int take_piece(struct engine *e, int slot, void (*loaded)(struct engine *e, int slot))
{
    struct slot *s = &e->slots[slot];
    struct err why = {0}; /* is on the log already */
    int64_t n = 0;
    int rc = store_load_step(s->load, &why);
    if (rc > 0)
        return 1;
    s->load = NULL;
    n = state_length(session_state(s->session));
    if (rc == 0 && session_adopt(s->session, s->request->prompt.data, (size_t)n, &why) < 0)
        log_warn("sessions: %s", why.message);
    loaded(e, slot);
    return 1;
}

static double time_to_spend(const struct engine *e)
{
    int n_generating = 0;
    for (int i = 0; i < e->n_slots; i++)
        n_generating += e->slots[i].request && !e->slots[i].load;
    return n_generating ? BESIDE_SHARE * e->pace.step_ms : ALONE_MS;
}

int disk_step(struct engine *e, void (*loaded)(struct engine *e, int slot))
{
    uint64_t start = clock_ns();
    int moved = 0;
    if (!e->store)
        return 0;
    double ms = time_to_spend(e);
    for (int more = 1; more;) {
        more = 0;
        for (int i = 0; i < e->n_slots; i++) {
            struct slot *s = &e->slots[i];
            more |= s->load ? take_piece(e, i, loaded) : s->n_writings > 0 ? give_piece(s) : 0;
        }
        moved |= more;
        if (clock_ms_since(start) >= ms)
            break;
    }
    return moved;
}

void disk_close(struct engine *e)
{
    uint64_t start = clock_ns();
    if (!e->store)
        return;
    for (int i = 0; i < e->n_slots; i++) {
        struct slot *s = &e->slots[i];
        if (s->load)
            disk_cancel_load(s);
        while (s->n_writings > 0 && clock_ms_since(start) < CLOSE_MS)
            if (!give_piece(s))
                (void)store_wait(e->store, 10);
        while (s->n_writings > 0)
            store_abandon(s->writings[--s->n_writings]);
    }
    double left = CLOSE_MS - clock_ms_since(start);
    store_close(e->store, left > 1 ? (int)left : 1);
    e->store = NULL;
}
