/* Random operations on sessions that share a runner and copy from each other. After every one of them each session's logits, state and KV rows, and now and then its snapshots, are
 * bit for bit those of a fresh session that read the same tokens in one go. */
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/mem.h"
#include "model/plan.h"
#include "support/model.h"
#include "support/store.h"
#include "support/test.h"

#define N_OPERATIONS (TEST_THREAD_SANITIZED ? 40 : TEST_SANITIZED ? 200 : 2000)
#define N_SESSIONS 3
#define LONGEST 100       /* tokens of a prompt: a few snapshots apart, and quickly read again */
#define SERVED 6000       /* above the least capacity, so that states grow */
#define ROWS 64
#define FORK 1001
#define N_MESSAGES 12     /* from so few that conversations share their beginnings */
#define N_TRUTHS 8192

struct text {
    int32_t ids[2 * LONGEST];
    size_t n;
};

struct truth { /* what a fresh session comes to */
    uint64_t key, logits, recurrent, rows;
};

struct world {
    struct rig rig;
    struct session *s[N_SESSIONS];
    struct text held[N_SESSIONS];   /* what the session must hold */
    struct text prompt[N_SESSIONS]; /* what it read last */
    struct truth *truths;           /* [N_TRUTHS], by key */
    struct shelf shelf;
    struct store_writing *writing[N_SESSIONS]; /* begun and not given whole: what the session does meanwhile must not show in it */
    uint64_t seed;
    int64_t n_cold, reused;
    int n_failed, n_cancelled, n_copied, n_snapshots, n_saved, n_restored;
};

static uint32_t pick(struct world *w, uint32_t n)
{
    return test_random(&w->seed, n);
}

static void new_session(struct world *w, struct session **out)
{
    struct err err = {0};
    test_ok(session_create(w->rig.r, KV_F32, SERVED, out, &err), &err, "session");
}

/* ---- what is right ---- */

static uint64_t hash_recurrent(struct world *w, struct session *s)
{
    return hash_bytes(state_seq(session_state(s))->delta[0].s, plan_state_bytes(&w->rig.m->config), 1);
}

static uint64_t hash_rows(struct world *w, struct session *s)
{
    const struct model_config *c = &w->rig.m->config;
    const struct seq *seq = state_seq(session_state(s));
    uint64_t hash = 2;
    for (int i = 0; i < c->n_full; i++) {
        size_t bytes = (size_t)seq->length * (size_t)c->n_head_kv * kv_head_bytes(seq->kv[i].type, c->d_head);
        hash = hash_bytes(seq->kv[i].v, bytes, hash_bytes(seq->kv[i].k, bytes, hash));
    }
    return hash;
}

static uint64_t hash_logits(struct world *w, struct session *s)
{
    return hash_bytes(session_logits(s), (size_t)w->rig.m->config.n_vocab * sizeof(float), 3);
}

/* A fresh session reads ids[0, n), unless one did before. */
static const struct truth *truth_of(struct world *w, const int32_t *ids, size_t n)
{
    uint64_t key = hash_bytes(ids, n * sizeof *ids, 4) | 1;
    size_t at = key % N_TRUTHS;
    while (w->truths[at].key && w->truths[at].key != key)
        at = (at + 1) % N_TRUTHS;
    if (w->truths[at].key)
        return &w->truths[at];
    struct session *cold;
    struct sync_result r;
    struct err err = {0};
    new_session(w, &cold);
    session_set_snapshots(cold, 0);
    test_ok(session_sync(cold, &(struct sync_request){.tokens = ids, .n = n}, &r, &err), &err, "cold");
    w->truths[at] = (struct truth){key, hash_logits(w, cold), hash_recurrent(w, cold), hash_rows(w, cold)};
    session_free(cold);
    assert_true(++w->n_cold < N_TRUTHS * 3 / 4);
    return &w->truths[at];
}

static void verify_snapshots(struct world *w, int i)
{
    const struct snapshots *set = session_snapshots(w->s[i]);
    int64_t before = 0;
    assert_true(set->n <= set->max);
    for (int k = 0; k < set->n; k++) {
        int64_t position = state_snapshot_position(set->at[k]);
        assert_true(position > before && position <= (int64_t)w->held[i].n);
        uint64_t got = hash_bytes(state_snapshot_data(set->at[k]), state_snapshot_bytes(set->at[k]), 1);
        if (got != truth_of(w, w->held[i].ids, (size_t)position)->recurrent)
            fail_msg("the snapshot at %lld of session %d is not of its tokens", (long long)position, i);
        before = position;
    }
    w->n_snapshots += set->n;
}

static void verify(struct world *w, int i, const char *after)
{
    size_t n;
    const int32_t *ids = session_tokens(w->s[i], &n);
    if (n != w->held[i].n || (n && memcmp(ids, w->held[i].ids, n * sizeof *ids) != 0))
        fail_msg("after %s session %d holds %zu tokens, other than the %zu it read", after, i, n, w->held[i].n);
    assert_int_equal(state_length(session_state(w->s[i])), n);
    assert_int_equal(session_anomalies(w->s[i]), 0);
    if (n == 0) {
        assert_null(session_logits(w->s[i]));
        return;
    }
    const struct truth *t = truth_of(w, ids, n);
    if (hash_recurrent(w, w->s[i]) != t->recurrent)
        fail_msg("after %s the recurrent state of session %d is not that of its %zu tokens", after, i, n);
    if (hash_rows(w, w->s[i]) != t->rows)
        fail_msg("after %s the KV rows of session %d are not those of its %zu tokens", after, i, n);
    if (session_logits(w->s[i]) && hash_logits(w, w->s[i]) != t->logits)
        fail_msg("after %s the logits of session %d are not those of its %zu tokens", after, i, n);
}

/* ---- prompts ---- */

static void add_message(struct world *w, struct text *t)
{
    uint64_t seed = 100 + pick(w, N_MESSAGES);
    size_t n = 4 + test_random(&seed, 40);
    if (t->n + n > LONGEST)
        t->n = pick(w, 2) ? 0 : t->n / 3;
    t->ids[t->n++] = FORK;
    for (size_t i = 1; i < n; i++)
        t->ids[t->n++] = (int32_t)test_random(&seed, 1000);
}

static size_t common(const struct text *a, const struct text *b)
{
    size_t n = 0;
    while (n < a->n && n < b->n && a->ids[n] == b->ids[n])
        n++;
    return n;
}

static void note_held(struct world *w, int i)
{
    const int32_t *ids = session_tokens(w->s[i], &w->held[i].n);
    if (w->held[i].n)
        memcpy(w->held[i].ids, ids, w->held[i].n * sizeof *ids);
}

/* What was read of a prompt when reading ended early: a beginning of it, or what was held before. */
static void note_partial(struct world *w, int i, const struct text *t)
{
    struct text before = w->held[i];
    note_held(w, i);
    if (common(&w->held[i], t) != w->held[i].n && common(&w->held[i], &before) != w->held[i].n)
        fail_msg("session %d holds neither a beginning of what it read nor what it held", i);
}

/* A whole read, which must do; reused never exceeds what was held. */
static void read_text(struct world *w, int i, const struct text *t, struct sync_request q)
{
    struct err err = {0};
    struct sync_result r;
    size_t marks[SNAPSHOT_MARKS], most = common(q.donor ? &w->held[q.donor == w->s[(i + 1) % N_SESSIONS] ? (i + 1) % N_SESSIONS : (i + 2) % N_SESSIONS] : &w->held[i], t);
    q.tokens = t->ids;
    q.n = t->n;
    q.marks = marks;
    q.n_marks = snapshot_marks(t->ids, t->n, FORK, marks);
    q.rows = pick(w, 3) ? 0 : 1 + pick(w, 40);
    q.least_rows = N_SESSIONS;
    test_ok(session_sync(w->s[i], &q, &r, &err), &err, "read");
    assert_int_equal(r.n_reused + r.n_prefilled, t->n);
    assert_true(r.n_reused <= (int64_t)most);
    assert_non_null(session_logits(w->s[i]));
    w->reused += r.n_reused;
    w->prompt[i] = w->held[i] = *t;
}

/* ---- operations ---- */

static void extend(struct world *w, int i)
{
    struct text t = w->held[i];
    for (uint32_t n = 1 + pick(w, 2); n > 0; n--)
        add_message(w, &t);
    read_text(w, i, &t, (struct sync_request){0});
}

static void edit(struct world *w, int i)
{
    struct text t = w->held[i];
    if (t.n > 1) {
        size_t at = pick(w, (uint32_t)t.n);
        t.ids[at] = (t.ids[at] + 1) % 1000;
        if (pick(w, 2))
            t.n = at + 1;
    }
    if (t.n == 0 || pick(w, 2))
        add_message(w, &t);
    read_text(w, i, &t, (struct sync_request){0});
}

static void regenerate(struct world *w, int i)
{
    if (w->prompt[i].n == 0)
        return;
    struct text t = w->prompt[i];
    read_text(w, i, &t, (struct sync_request){0});
}

static void truncate_text(struct world *w, int i)
{
    struct text t = w->held[i];
    if (t.n < 2)
        return;
    t.n = 1 + pick(w, (uint32_t)t.n);
    read_text(w, i, &t, (struct sync_request){0});
}

/* Another session's conversation goes on here as well. */
static void copy(struct world *w, int i)
{
    int from = (i + 1 + (int)pick(w, N_SESSIONS - 1)) % N_SESSIONS;
    struct text t = w->held[from];
    if (t.n == 0)
        return;
    if (pick(w, 3) == 0)
        t.n = 1 + pick(w, (uint32_t)t.n);
    if (pick(w, 3))
        add_message(w, &t);
    read_text(w, i, &t, (struct sync_request){.donor = w->s[from]});
    w->n_copied++;
}

/* One to twelve tokens for each session that can, side by side. */
static void generate(struct world *w, int i)
{
    struct err err = {0};
    for (uint32_t steps = 1 + pick(w, 12); steps > 0; steps--) {
        struct session *s[N_SESSIONS];
        int32_t tokens[N_SESSIONS];
        int who[N_SESSIONS], n = 0;
        for (int k = 0; k < N_SESSIONS; k++)
            if (session_logits(w->s[k]) && w->held[k].n < LONGEST && (k == i || pick(w, 2))) {
                tokens[n] = (int32_t)pick(w, 1000);
                who[n] = k;
                s[n++] = w->s[k];
            }
        if (n == 0)
            return;
        test_ok(rig_step(s, tokens, n, &err), &err, "generate");
        for (int k = 0; k < n; k++)
            w->held[who[k]].ids[w->held[who[k]].n++] = tokens[k];
    }
}

struct watcher {
    atomic_int cancel;
    int64_t stop_at;
};

static void on_progress(void *ctx, int64_t done, int64_t total)
{
    struct watcher *watcher = ctx;
    (void)total;
    if (done >= watcher->stop_at)
        atomic_store(&watcher->cancel, 1);
}

/* The client leaves while its prompt is read. */
static void cancel(struct world *w, int i)
{
    struct text t = w->held[i];
    struct err err = {0};
    struct sync_result r;
    add_message(w, &t);
    struct watcher watcher = {.stop_at = (int64_t)pick(w, (uint32_t)t.n)};
    atomic_store(&watcher.cancel, watcher.stop_at == 0);
    size_t marks[SNAPSHOT_MARKS], n_marks = snapshot_marks(t.ids, t.n, FORK, marks);
    int rc = session_sync(w->s[i], &(struct sync_request){.tokens = t.ids, .n = t.n, .marks = marks, .n_marks = n_marks, .rows = 1 + pick(w, 20), .least_rows = N_SESSIONS, .cancel = &watcher.cancel,
                                                          .progress = on_progress, .ctx = &watcher}, &r, &err);
    if (rc == 0) {
        w->prompt[i] = w->held[i] = t;
        return;
    }
    assert_int_equal(rc, ERR_CANCELLED);
    note_partial(w, i, &t);
    w->n_cancelled++;
}

static void forget(struct world *w, int i)
{
    switch (pick(w, 4)) {
    case 0:
        session_reset(w->s[i]);
        w->held[i].n = 0;
        break;
    case 1:
        session_give_back(w->s[i]);
        assert_int_equal(state_bytes(session_state(w->s[i])), 0);
        w->held[i].n = 0;
        break;
    case 2:
        session_drop_snapshots(w->s[i]);
        assert_true(session_snapshots(w->s[i])->n <= 1);
        break;
    case 3:
        session_set_snapshots(w->s[i], (int)pick(w, 9));
        break;
    }
}

static void grow(struct world *w, int i)
{
    struct text t = w->held[i];
    int64_t positions = 1 + (int64_t)pick(w, SERVED);
    add_message(w, &t);
    if (pick(w, 2))
        state_shrink(session_state(w->s[i]), positions);
    read_text(w, i, &t, (struct sync_request){.reserve = positions});
    assert_true(state_capacity(session_state(w->s[i])) >= positions);
}

/* What is refused before anything is done leaves everything as it was. */
static void refuse(struct world *w, int i)
{
    static int32_t many[SERVED + 1];
    struct err err = {0};
    struct sync_result r;
    struct text t = w->held[i];
    add_message(w, &t);
    t.ids[t.n / 2] = (int32_t)w->rig.m->config.n_vocab + (int32_t)pick(w, 5);
    assert_int_equal(session_sync(w->s[i], &(struct sync_request){.tokens = t.ids, .n = t.n}, &r, &err), ERR_INVALID);
    assert_int_equal(session_sync(w->s[i], &(struct sync_request){.tokens = t.ids, .n = 0}, &r, &err), ERR_INVALID);
    assert_int_equal(session_sync(w->s[i], &(struct sync_request){.tokens = many, .n = SERVED + 1}, &r, &err), ERR_CONTEXT_LENGTH);
    if (w->held[i].n)
        assert_int_equal(rig_step(&w->s[i], &(int32_t){-1}, 1, &err), ERR_INVALID);
}

/* Memory is refused: one allocation, one page or one mapping, or all of it from some size on. */
static void set_fault(struct world *w)
{
    switch (pick(w, 4)) {
    case 0:
        mem_fail_nth(1 + (long)pick(w, 8));
        break;
    case 1:
        mem_fail_call(MEM_CALL_PROTECT, 1 + (long)pick(w, 3));
        break;
    case 2:
        mem_fail_call(MEM_CALL_MAP, 1 + (long)pick(w, 3));
        break;
    case 3:
        runner_trim_rows(w->rig.r, N_SESSIONS); /* else the workspace gives way, and all is well */
        mem_set_ceiling(mem_total() + pick(w, 600000));
        break;
    }
}

static void clear_faults(void)
{
    mem_fail_nth(0);
    mem_fail_call(MEM_CALL_PROTECT, 0);
    mem_fail_call(MEM_CALL_MAP, 0);
    mem_set_ceiling(SIZE_MAX);
}

/* A read that memory is too short for ends in a refusal by name or goes another way; asked again, all is well. */
static void starve(struct world *w, int i)
{
    int from = (i + 1) % N_SESSIONS, is_copy = pick(w, 2) && w->held[from].n > 0;
    struct text t = w->held[is_copy ? from : i];
    struct err err = {0};
    struct sync_result r;
    add_message(w, &t);
    if (pick(w, 2))
        session_give_back(w->s[i]);
    note_held(w, i);
    set_fault(w);
    int rc = session_sync(w->s[i], &(struct sync_request){.tokens = t.ids, .n = t.n, .least_rows = N_SESSIONS, .donor = is_copy ? w->s[from] : NULL}, &r, &err);
    clear_faults();
    if (rc == 0) {
        w->prompt[i] = w->held[i] = t;
        return;
    }
    assert_true(rc == ERR_NO_MEMORY || rc == ERR_CAPACITY);
    assert_true(err.message[0]);
    w->n_failed++;
    note_partial(w, i, &t);
    verify(w, i, "memory that was refused");
    read_text(w, i, &t, (struct sync_request){0});
}

/* Two prompts are read in pieces of any size, in one batch with a third session that generates. */
static void together(struct world *w, int i)
{
    struct text t[2];
    struct err err = {0};
    int who[2] = {i, (i + 1) % N_SESSIONS}, third = (i + 2) % N_SESSIONS;
    int64_t reused;
    for (int k = 0; k < 2; k++) {
        size_t marks[SNAPSHOT_MARKS];
        t[k] = w->held[who[k]];
        add_message(w, &t[k]);
        struct sync_request q = {.tokens = t[k].ids, .n = t[k].n, .marks = marks, .n_marks = snapshot_marks(t[k].ids, t[k].n, FORK, marks), .rows = ROWS, .least_rows = N_SESSIONS};
        test_ok(session_open(w->s[who[k]], &q, &reused, &err), &err, "open");
        w->reused += reused;
    }
    while (session_unread(w->s[who[0]]) + session_unread(w->s[who[1]]) > 0) {
        struct session_part parts[N_SESSIONS];
        int n = 0;
        if (session_logits(w->s[third]) && w->held[third].n < LONGEST && pick(w, 2)) {
            struct state *s = session_state(w->s[third]);
            int32_t token = (int32_t)pick(w, 1000);
            test_ok(state_reserve(s, state_length(s) + 1, &err), &err, "reserve");
            parts[n++] = (struct session_part){.session = w->s[third], .token = token};
            w->held[third].ids[w->held[third].n++] = token;
        }
        for (int k = 0; k < 2; k++)
            if (session_unread(w->s[who[k]]) > 0)
                parts[n++] = (struct session_part){.session = w->s[who[k]], .rows = 1 + pick(w, 20)};
        test_ok(session_run(parts, n, NULL, &err), &err, "pieces");
    }
    for (int k = 0; k < 2; k++)
        w->prompt[who[k]] = w->held[who[k]] = t[k];
}

/* At most so many pieces; 1 when the writing is over. */
static int give_pieces(struct world *w, int i, uint32_t n)
{
    for (; n > 0 && w->writing[i]; n--) {
        enum store_progress p = store_piece(w->writing[i], session_state(w->s[i]));
        if (p == STORE_LATER)
            assert_true(store_wait(w->shelf.st, 60000));
        else if (p == STORE_OVER)
            w->writing[i] = NULL;
    }
    return !w->writing[i];
}

/* Begins to save a session, goes on with it, or drops it; all of it at once as often as a piece. */
static void save(struct world *w, int i)
{
    if (!w->writing[i] && w->held[i].n > 0) {
        struct state_snapshot *at = session_keep(w->s[i]);
        w->writing[i] = at ? store_begin(w->shelf.st, session_state(w->s[i]), w->held[i].ids, at) : NULL;
    }
    if (pick(w, 12) == 0) {
        store_abandon(w->writing[i]);
        w->writing[i] = NULL;
    }
    w->n_saved += give_pieces(w, i, pick(w, 2) ? 1 : 1000);
}

/* The store begins anew, as after a restart. */
static void reopen(struct world *w)
{
    for (int i = 0; i < N_SESSIONS; i++) {
        store_abandon(w->writing[i]);
        w->writing[i] = NULL;
    }
    shelf_close(&w->shelf);
    shelf_open(&w->shelf);
}

/* A session becomes what the disk knows of a text that somebody holds, and goes on from there. */
static void restore(struct world *w, int i)
{
    struct text t = w->held[pick(w, N_SESSIONS)];
    struct err err = {0};
    if (pick(w, 8) == 0)
        reopen(w);
    add_message(w, &t);
    assert_true(store_wait(w->shelf.st, 60000));
    struct store_match match = store_find(w->shelf.st, t.ids, t.n - 1);
    if (match.n == 0)
        return;
    session_reset(w->s[i]);
    test_ok(session_grow(w->s[i], (int64_t)t.n, NULL, NULL, &err), &err, "room");
    test_ok(store_load(w->shelf.st, &match, t.ids, session_state(w->s[i]), &err), &err, "load");
    test_ok(session_adopt(w->s[i], t.ids, (size_t)match.n, &err), &err, "adopt");
    w->held[i] = t;
    w->held[i].n = (size_t)match.n;
    verify(w, i, "restore");
    read_text(w, i, &t, (struct sync_request){0});
    w->n_restored++;
}

static const struct operation {
    const char *name;
    void (*run)(struct world *w, int i);
    uint32_t weight;
} operations[] = {
    {"extend", extend, 16}, {"edit", edit, 16}, {"regenerate", regenerate, 10}, {"truncate", truncate_text, 6}, {"copy", copy, 12}, {"generate", generate, 14},
    {"cancel", cancel, 10}, {"forget", forget, 8}, {"grow", grow, 4}, {"refuse", refuse, 4}, {"starve", starve, 8}, {"together", together, 8},
    {"save", save, 16}, {"restore", restore, 20},
};

static const struct operation *pick_operation(struct world *w)
{
    uint32_t all = 0, at = 0;
    for (size_t k = 0; k < sizeof operations / sizeof *operations; k++)
        all += operations[k].weight;
    for (uint32_t x = pick(w, all); x >= operations[at].weight; at++)
        x -= operations[at].weight;
    return &operations[at];
}

/* B2, B12, B14, B33 */
static void test_random_operations(void **unused)
{
    static struct world w = {.seed = 20};
    uint64_t start_ns = clock_ns();
    (void)unused;
    rig_open(&w.rig, "r2-q8_0", NULL, ARITHMETIC_DEFAULT, 1, ROWS, N_SESSIONS);
    w.truths = mem_alloc_array(MEM_OTHER, N_TRUTHS, sizeof *w.truths);
    shelf_make(&w.shelf, &w.rig, 20 << 20);
    for (int i = 0; i < N_SESSIONS; i++)
        new_session(&w, &w.s[i]);
    for (int k = 0; k < N_OPERATIONS; k++) {
        const struct operation *o = pick_operation(&w);
        int i = (int)pick(&w, N_SESSIONS);
        o->run(&w, i);
        for (int s = 0; s < N_SESSIONS; s++) /* the others too: a copy leaves its donor untouched */
            verify(&w, s, o->name);
        if (k % 5 == 0)
            verify_snapshots(&w, i);
    }
    print_message("torture: random operations: tried %d, survived %d, lost 0 (%lld cold reads, %lld tokens reused, %d copies, %d cancelled, %d starved, %d saved, %d restored, %d snapshots compared) in %.1f s\n",
                  N_OPERATIONS, N_OPERATIONS, (long long)w.n_cold, (long long)w.reused, w.n_copied, w.n_cancelled, w.n_failed, w.n_saved, w.n_restored, w.n_snapshots, clock_ms_since(start_ns) / 1e3);
    if (TEST_THREAD_SANITIZED)
        w.reused += 12 * N_OPERATIONS; /* so few operations happen to reuse little */
    assert_true(w.reused > 12 * N_OPERATIONS && w.n_copied > N_OPERATIONS / 40 && w.n_cancelled > N_OPERATIONS / 40 && w.n_failed >= N_OPERATIONS / 400 && w.n_saved > N_OPERATIONS / 40 && w.n_restored > N_OPERATIONS / 80 && w.n_snapshots > N_OPERATIONS / 20);
    reopen(&w);
    shelf_remove(&w.shelf);
    for (int i = 0; i < N_SESSIONS; i++)
        session_free(w.s[i]);
    mem_free(w.truths);
    rig_close(&w.rig);
    assert_int_equal(mem_bytes(MEM_STATE), 0);
    assert_int_equal(mem_reserved(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_operations)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
