/* A timeline that is edited, regenerated, cancelled and short of memory: always the cold result, with no more read again than has to be. */
#include <string.h>

#include "base/mem.h"
#include "engine/snapshot.h"
#include "support/model.h"
#include "support/test.h"

#define FORK 1001
#define SERVED 6000

static const char model[] = "r2-q8_0";

struct text { /* a token list under construction */
    int32_t ids[SERVED];
    size_t n;
};

/* A message: the fork token, then n - 1 others that `seed` tells. */
static void add_message(struct text *t, uint64_t seed, size_t n)
{
    t->ids[t->n++] = FORK;
    for (size_t i = 1; i < n; i++)
        t->ids[t->n++] = (int32_t)test_random(&seed, 1000);
}

static struct session *new_session(struct rig *rig)
{
    struct session *s = NULL;
    struct err err = {0};
    test_ok(session_create(rig->r, KV_F32, SERVED, &s, &err), &err, "session");
    return s;
}

static int64_t sync_text(struct session *s, const struct text *t)
{
    struct err err = {0};
    struct sync_result r;
    size_t marks[SNAPSHOT_MARKS];
    struct sync_request q = {.tokens = t->ids, .n = t->n, .marks = marks, .n_marks = snapshot_marks(t->ids, t->n, FORK, marks)};
    test_ok(session_sync(s, &q, &r, &err), &err, "sync");
    assert_int_equal(r.n_reused + r.n_prefilled, t->n);
    assert_int_equal(state_length(session_state(s)), t->n);
    int64_t before = 0; /* every snapshot is of a prefix of what is held now */
    for (int i = 0; i < session_snapshots(s)->n; i++) {
        int64_t position = state_snapshot_position(session_snapshots(s)->at[i]);
        assert_in_range(position, before + 1, t->n);
        before = position;
    }
    return r.n_reused;
}

static void answer(struct session *s, size_t n)
{
    struct err err = {0};
    for (size_t i = 0; i < n; i++)
        test_ok(rig_step(&s, &(int32_t){(int32_t)(i * 7 % 1000)}, 1, &err), &err, "step");
}

/* The session's logits are those of a fresh one. */
static void same_as_cold(struct rig *rig, struct session *s, const struct text *t)
{
    struct session *cold = new_session(rig);
    session_set_snapshots(cold, 0);
    assert_int_equal(sync_text(cold, t), 0);
    assert_memory_equal(session_logits(s), session_logits(cold), (size_t)rig->m->config.n_vocab * 4);
    session_free(cold);
}

/* What is given up is chosen by distance from the end, not by age (B11), and there is no number of tokens beyond which nothing is kept (B27). */
static void test_victims(void **unused)
{
    static const struct {
        int64_t positions[5];
        int n, victim;
    } cases[] = {{{100}, 1, 0}, {{100, 200}, 2, 0}, {{100, 110, 120}, 3, 1}, {{100, 110, 500, 510}, 4, 0}, {{10, 500, 510, 900, 901}, 5, 0}, {{100, 300, 310, 320, 400}, 5, 2}};
    (void)unused;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(snapshot_victim(cases[i].positions, cases[i].n, cases[i].positions[cases[i].n - 1], 0), cases[i].victim);
    assert_int_equal(snapshot_victim((int64_t[]){10, 500, 510, 900, 901}, 5, 901, 10), 1); /* the pinned one is spared */
    assert_int_equal(snapshot_victim((int64_t[]){10, 500}, 2, 500, 10), 0);                 /* unless it is the only one to go */
    uint64_t seed = 3; /* one added at a time for ever: the last is never given up, and going back d tokens reads at most a bounded share of d again */
    int64_t held[8], length = 0;
    int n = 0;
    for (int i = 0; i < 3000; i++) {
        if (n == 8) {
            int victim = snapshot_victim(held, n, length, 0);
            assert_in_range(victim, 0, n - 2);
            n--;
            memmove(held + victim, held + victim + 1, (size_t)(n - victim) * sizeof *held);
        }
        length += 1 + test_random(&seed, 500);
        held[n++] = length;
    }
    assert_true(held[0] < length * 9 / 10 && held[3] > held[0] + 1000); /* they reach back by distance, not by age: 750,000 tokens on eight */
    assert_true(length - held[6] < length / 20);                        /* and are dense where it is edited */
}

static void test_marks(void **unused)
{
    size_t out[SNAPSHOT_MARKS];
    (void)unused;
    assert_int_equal(snapshot_marks((int32_t[]){9, 1, 2}, 3, 9, out), 0); /* the first token is the beginning itself */
    assert_int_equal(snapshot_marks(NULL, 0, 9, out), 0);
    assert_int_equal(snapshot_marks((int32_t[]){9, 1, 9, 2}, 4, 9, out), 1);
    assert_int_equal(out[0], 2);
    assert_int_equal(snapshot_marks((int32_t[]){9, 9, 9, 9}, 4, 9, out), 3);
    assert_int_equal(out[0] * 100 + out[1] * 10 + out[2], 123);
    assert_int_equal(snapshot_marks((int32_t[]){9, 1, 9, 1, 9, 9, 1, 1, 9, 9}, 10, 9, out), 4); /* the first after the beginning, and the last three */
    assert_int_equal(out[0] * 1000 + out[1] * 100 + out[2] * 10 + out[3], 2589);
}

/* However long a conversation grows, another with the same system block starts from the end of it. */
static void test_shared_system_block(void **unused)
{
    struct rig rig;
    static struct text t, other;
    (void)unused;
    rig_open(&rig, model, NULL, ARITHMETIC_DEFAULT, 2, 128, 2);
    struct session *s = new_session(&rig), *second = new_session(&rig);
    session_set_snapshots(s, 4);
    t.n = other.n = 0;
    for (int i = 0; i < 1900; i++)
        t.ids[t.n++] = i == 0 || i == 60 ? FORK : (int32_t)(i * 31 % 900 + 1);
    sync_text(s, &t);
    answer(s, 5);
    for (int i = 0; i < 200; i++)
        other.ids[other.n++] = i < 61 ? t.ids[i] : (int32_t)(i * 17 % 900 + 1);
    assert_int_equal(session_reusable(s, other.ids, other.n), 60);
    struct sync_request q = {.tokens = other.ids, .n = other.n, .donor = s};
    struct sync_result r;
    struct err err = {0};
    test_ok(session_sync(second, &q, &r, &err), &err, "sync");
    assert_int_equal(r.n_reused, 60);
    same_as_cold(&rig, second, &other);
    session_free(s);
    session_free(second);
    rig_close(&rig);
}

/* System and tools, user, the answer's head; then what a chat does to it: regenerate (B12), drop its reasoning so that the prompt's end reads otherwise (B5, B9), edit the last question
 * (B4), begin anew under the same system block (B8, B19). Each goes on from the newest place that still holds (B1), and without snapshots from nowhere, as it says (B17, B179). */
static void test_conversation(void **unused)
{
    struct rig rig;
    static struct text t, head, other;
    (void)unused;
    rig_open(&rig, model, NULL, ARITHMETIC_DEFAULT, 2, 128, 2);
    struct session *s = new_session(&rig);
    memset(&t, 0, sizeof t);
    add_message(&t, 1, 100);
    add_message(&t, 2, 60);
    add_message(&t, 3, 5);
    head = t;
    assert_int_equal(sync_text(s, &t), 0);
    answer(s, 90);
    assert_int_equal(sync_text(s, &t), t.n); /* regenerated: nothing is read again */
    same_as_cold(&rig, s, &t);
    answer(s, 90);

    t.n = 163; /* the reasoning is dropped: the history has another answer, then a next question */
    for (int i = 0; i < 40; i++)
        t.ids[t.n++] = i;
    size_t second = t.n;
    add_message(&t, 4, 50);
    add_message(&t, 5, 5);
    assert_int_equal(sync_text(s, &t), 160);
    same_as_cold(&rig, s, &t);
    answer(s, 10);

    other = t; /* the last question is edited */
    other.n = second;
    add_message(&other, 6, 70);
    add_message(&other, 5, 5);
    assert_int_equal(sync_text(s, &other), second);
    same_as_cold(&rig, s, &other);

    other.n = 100; /* another conversation under the same system block */
    add_message(&other, 7, 33);
    add_message(&other, 8, 4);
    assert_int_equal(sync_text(s, &other), 100);
    same_as_cold(&rig, s, &other);
    answer(s, 3);

    session_set_snapshots(s, 0); /* without snapshots everything is read again, and there are none */
    assert_int_equal(sync_text(s, &head), 0);
    assert_int_equal(session_snapshots(s)->n, 0);
    same_as_cold(&rig, s, &head);
    session_free(s);
    rig_close(&rig);
}

/* Long prompts can be cut every SNAPSHOT_INTERVAL tokens (B8). */
static void test_interval(void **unused)
{
    struct rig rig;
    static struct text t;
    (void)unused;
    rig_open(&rig, model, NULL, ARITHMETIC_DEFAULT, 2, 512, 1);
    struct session *s = new_session(&rig);
    memset(&t, 0, sizeof t);
    add_message(&t, 1, SNAPSHOT_INTERVAL + 500);
    assert_int_equal(sync_text(s, &t), 0);
    t.ids[SNAPSHOT_INTERVAL + 300]++;
    assert_int_equal(sync_text(s, &t), SNAPSHOT_INTERVAL);
    t.ids[300]++;
    assert_int_equal(sync_text(s, &t), 0);
    session_free(s);
    rig_close(&rig);
    assert_int_equal(mem_bytes(MEM_STATE), 0);
}

/* A walk of random edits on one session, small sets of snapshots included; they never take more memory than was planned for them (B42, B177). */
static void test_random_edits(void **unused)
{
    struct rig rig;
    static struct text t;
    uint64_t seed = 5;
    int64_t reused = 0;
    (void)unused;
    rig_open(&rig, model, NULL, ARITHMETIC_DEFAULT, 2, 64, 1);
    for (int max = 1; max <= 3; max++) {
        struct session *s = new_session(&rig);
        session_set_snapshots(s, max);
        size_t before = mem_bytes(MEM_STATE);
        memset(&t, 0, sizeof t);
        for (int i = 0; i < 12; i++) {
            if (t.n > 0 && test_random(&seed, 3) == 0)
                t.n -= test_random(&seed, (uint32_t)t.n / 2 + 1);
            add_message(&t, seed, 1 + test_random(&seed, 90));
            reused += sync_text(s, &t);
            same_as_cold(&rig, s, &t);
            if (test_random(&seed, 2))
                answer(s, 1 + test_random(&seed, 20));
        }
        assert_int_equal(session_anomalies(s), 0);
        assert_true(mem_bytes(MEM_STATE) - before <= state_bytes(session_state(s)) + (size_t)max * 1200000 + 100000);
        session_free(s);
    }
    assert_true(reused > 2000);
    rig_close(&rig);
    assert_int_equal(mem_bytes(MEM_STATE), 0);
}

/* What a copy reads of its donor is what the donor read. */
static void test_donor(void **unused)
{
    struct rig rig;
    static struct text t;
    struct err err = {0};
    struct sync_result r;
    (void)unused;
    rig_open(&rig, model, NULL, ARITHMETIC_DEFAULT, 2, 128, 1);
    struct session *from = new_session(&rig), *s = new_session(&rig);
    memset(&t, 0, sizeof t);
    add_message(&t, 1, 90);
    add_message(&t, 2, 60);
    sync_text(from, &t);
    same_as_cold(&rig, from, &t);
    struct text whole = t;
    t.n = 90; /* the first message, and another second one */
    add_message(&t, 3, 50);
    test_ok(session_sync(s, &(struct sync_request){.tokens = t.ids, .n = t.n, .donor = from}, &r, &err), &err, "a copy of a part");
    assert_int_equal(r.n_reused, 90);
    same_as_cold(&rig, s, &t);
    add_message(&whole, 4, 20);
    test_ok(session_sync(s, &(struct sync_request){.tokens = whole.ids, .n = whole.n, .donor = from}, &r, &err), &err, "a copy of all");
    assert_int_equal(r.n_reused, 150);
    same_as_cold(&rig, s, &whole);
    session_free(s);
    session_free(from);
    rig_close(&rig);
}

/* What was given back and taken again: what is held stays, and only what is new is read. */
static void test_growth(void **unused)
{
    struct rig rig;
    static struct text t;
    (void)unused;
    rig_open(&rig, model, NULL, ARITHMETIC_DEFAULT, 2, 128, 1);
    struct session *s = new_session(&rig);
    memset(&t, 0, sizeof t);
    add_message(&t, 1, 90);
    sync_text(s, &t);
    for (int i = 2; i < 5; i++) {
        state_shrink(session_state(s), 0);
        assert_int_equal(state_capacity(session_state(s)), t.n);
        size_t held = t.n;
        add_message(&t, (uint64_t)i, 40);
        assert_int_equal(sync_text(s, &t), held);
        assert_int_equal(state_capacity(session_state(s)), STATE_MIN_CAPACITY);
    }
    same_as_cold(&rig, s, &t);
    session_free(s);
    rig_close(&rig);
}

/* Headroom ends at the served context, whatever the file declares (8192 here). */
static void test_served_context(void **unused)
{
    struct rig rig;
    struct err err = {0};
    struct sync_result r;
    (void)unused;
    rig_open(&rig, model, NULL, ARITHMETIC_DEFAULT, 2, 16, 1);
    struct session *s = new_session(&rig);
    test_ok(session_sync(s, &(struct sync_request){.tokens = (int32_t[]){1, 2}, .n = 2, .reserve = 5000}, &r, &err), &err, "sync");
    assert_int_equal(state_capacity(session_state(s)), SERVED);
    assert_int_equal(session_sync(s, &(struct sync_request){.tokens = (int32_t[]){1, 2}, .n = 2, .reserve = SERVED + 1}, &r, &err), ERR_CONTEXT_LENGTH);
    session_free(s);
    rig_close(&rig);
}

/* A state that is not as long as the tokens: read anew, and counted. */
static void test_anomaly(void **unused)
{
    struct rig rig;
    static struct text t;
    (void)unused;
    rig_open(&rig, model, NULL, ARITHMETIC_DEFAULT, 2, 64, 1);
    struct session *s = new_session(&rig);
    memset(&t, 0, sizeof t);
    add_message(&t, 1, 50);
    sync_text(s, &t);
    state_seq(session_state(s))->length--;
    add_message(&t, 2, 10);
    assert_int_equal(sync_text(s, &t), 0);
    assert_int_equal(session_anomalies(s), 1);
    same_as_cold(&rig, s, &t);
    session_free(s);
    rig_close(&rig);
}

/* What a pass over the model refuses, whoever asks. */
static void test_refused_spans(void **unused)
{
    struct rig rig;
    struct state *s = NULL;
    struct err err = {0};
    const float *logits;
    int32_t ids[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    (void)unused;
    rig_open(&rig, model, NULL, ARITHMETIC_DEFAULT, 1, 8, 4);
    test_ok(state_create(&rig.m->config, rig.dev, KV_F32, 64, &s, &err), &err, "state");
    test_ok(state_reserve_exact(s, 5, &err), &err, "reserve");
    struct batch_span bad[] = {{.ids = ids, .n = 6, .n_logits = 1}, {.ids = ids, .n = 0}, {.ids = ids, .n = 2, .n_logits = 3}, {.ids = (int32_t[]){1024}, .n = 1}, {.ids = (int32_t[]){-1}, .n = 1}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        bad[i].seq = state_seq(s);
        assert_int_equal(model_forward(rig.r, &bad[i], 1, &logits, &err), ERR_INVALID);
        assert_int_equal(state_length(s), 0);
    }
    struct batch_span twice[2] = {{.seq = state_seq(s), .ids = ids, .n = 1}, {.seq = state_seq(s), .ids = ids, .n = 1}};
    assert_int_equal(model_forward(rig.r, twice, 2, &logits, &err), ERR_INVALID);
    struct batch_span good = {.seq = state_seq(s), .ids = ids, .n = 5, .n_logits = 1};
    test_ok(model_forward(rig.r, &good, 1, &logits, &err), &err, "as many as fit");
    state_free(s);
    rig_close(&rig);
}

struct watcher {
    atomic_int cancel;
    int64_t stop_at;
    int calls, reclaims, gives;
    struct session *idle;
};

static void on_progress(void *ctx, int64_t done, int64_t total)
{
    struct watcher *w = ctx;
    assert_true(done <= total);
    w->calls++;
    if (w->stop_at && done >= w->stop_at)
        atomic_store(&w->cancel, 1);
}

static uint64_t on_reclaim(void *ctx, uint64_t bytes)
{
    struct watcher *w = ctx;
    assert_true(bytes > 0);
    w->reclaims++;
    return w->gives ? session_give_back(w->idle) : 0;
}

/* B142, B144: reading a prompt ends within one chunk, and what was read is worth something. */
static void test_cancel(void **unused)
{
    struct rig rig;
    static struct text t;
    struct watcher w = {.stop_at = 100};
    struct err err = {0};
    struct sync_result r;
    (void)unused;
    rig_open(&rig, model, NULL, ARITHMETIC_DEFAULT, 2, 64, 1);
    struct session *s = new_session(&rig);
    memset(&t, 0, sizeof t);
    add_message(&t, 1, 300);
    struct sync_request q = {.tokens = t.ids, .n = t.n, .cancel = &w.cancel, .progress = on_progress, .ctx = &w, .rows = 30};
    assert_int_equal(session_sync(s, &q, &r, &err), ERR_CANCELLED);
    assert_int_equal(w.calls, 4); /* within one chunk */
    assert_int_equal(state_length(session_state(s)), 120);
    assert_null(session_logits(s));
    assert_int_equal(sync_text(s, &t), 120); /* asked again, it goes on */
    same_as_cold(&rig, s, &t);
    session_free(s);
    rig_close(&rig);
}

/* B170: [headroom, exact], then what can be read again is given back and the exact size is tried once more. */
static void test_reclaim(void **unused)
{
    struct rig rig;
    static struct text t;
    struct err err = {0};
    struct sync_result r;
    (void)unused;
    rig_open(&rig, model, NULL, ARITHMETIC_DEFAULT, 2, 64, 1);
    struct session *s = new_session(&rig), *idle = new_session(&rig);
    struct watcher w = {.idle = idle};
    size_t row = 2 * (size_t)rig.m->config.n_head_kv * (size_t)rig.m->config.d_head * 4;
    memset(&t, 0, sizeof t);
    add_message(&t, 1, 200);
    sync_text(idle, &t);
    sync_text(s, &t);
    runner_trim_rows(rig.r, 1);
    mem_set_ceiling(mem_total() + 100 * row);
    struct sync_request q = {.tokens = t.ids, .n = t.n, .reserve = 5000, .reclaim = on_reclaim, .reclaim_ctx = &w};
    assert_int_equal(session_sync(s, &q, &r, &err), ERR_CAPACITY); /* nobody has anything to give */
    assert_int_equal(w.reclaims, 1);
    assert_int_equal(state_capacity(session_state(s)), 4096);
    assert_int_equal(state_capacity(session_state(idle)), 4096);
    w.gives = 1;
    t.ids[t.n++] = 17;
    q.n = t.n;
    test_ok(session_sync(s, &q, &r, &err), &err, "after a reclaim");
    assert_int_equal(w.reclaims, 2);
    assert_int_equal(r.n_reused, 200);                             /* growing does not read again */
    assert_int_equal(state_capacity(session_state(s)), 5000);      /* exactly the turn */
    assert_int_equal(state_bytes(session_state(idle)), 0);
    assert_int_equal(session_give_back(idle), 0);                  /* there is no more */
    mem_set_ceiling(SIZE_MAX);
    same_as_cold(&rig, s, &t);
    t.n = 200;
    assert_int_equal(sync_text(idle, &t), 0); /* what gave its memory back works as before */
    same_as_cold(&rig, idle, &t);
    session_free(s);
    session_free(idle);
    rig_close(&rig);
}

/* A step that fails moves nobody. */
static void test_failing_step(void **unused)
{
    struct rig rig;
    static struct text t;
    struct err err = {0};
    size_t n;
    (void)unused;
    rig_open(&rig, model, NULL, ARITHMETIC_DEFAULT, 2, 64, 2);
    struct session *s[2] = {new_session(&rig), new_session(&rig)};
    memset(&t, 0, sizeof t);
    add_message(&t, 1, 40);
    for (int i = 0; i < 2; i++)
        sync_text(s[i], &t);
    assert_int_equal(rig_step(s, (int32_t[]){5, 5000}, 2, &err), ERR_INVALID);
    assert_int_equal(rig_step((struct session *[]){s[0], s[0]}, (int32_t[]){5, 6}, 2, &err), ERR_INVALID);
    assert_int_equal(rig_step(s, (int32_t[]){5, 6}, 0, &err), ERR_INVALID);
    for (int i = 0; i < 2; i++) {
        session_tokens(s[i], &n);
        assert_int_equal(n, 40);
        assert_int_equal(state_length(session_state(s[i])), 40);
        same_as_cold(&rig, s[i], &t); /* the logits are still there */
    }
    test_ok(rig_step(s, (int32_t[]){5, 6}, 2, &err), &err, "step");
    t.ids[t.n++] = 5;
    same_as_cold(&rig, s[0], &t);
    t.ids[t.n - 1] = 6;
    same_as_cold(&rig, s[1], &t);
    session_free(s[0]);
    session_free(s[1]);
    rig_close(&rig);
}

/* The n-th allocation of a turn fails, for every n: afterwards the session answers as if nothing had been. */
static void test_failing_allocations(void **unused)
{
    struct rig rig;
    static struct text t;
    int failures = 0;
    (void)unused;
    rig_open(&rig, model, NULL, ARITHMETIC_DEFAULT, 2, 64, 1);
    for (long n = 1; n < 16; n++) {
        struct session *s = new_session(&rig);
        struct err err = {0};
        struct sync_result r;
        memset(&t, 0, sizeof t);
        add_message(&t, 1, 150);
        mem_fail_nth(n);
        int rc = session_sync(s, &(struct sync_request){.tokens = t.ids, .n = t.n}, &r, &err);
        mem_fail_nth(0);
        failures += rc < 0;
        assert_true(rc == 0 || rc == ERR_NO_MEMORY || rc == ERR_CAPACITY);
        add_message(&t, 2, 50);
        sync_text(s, &t);
        same_as_cold(&rig, s, &t);
        assert_int_equal(session_anomalies(s), 0);
        session_free(s);
    }
    assert_true(failures >= 3);
    rig_close(&rig);
    assert_int_equal(mem_bytes(MEM_STATE), 0);
}

struct reading {
    int64_t rows;
};

static void on_row(void *ctx, int64_t done, int64_t total)
{
    struct reading *reading = ctx;
    assert_true(done <= total);
    reading->rows++;
}

/* Reads t one row at a time: what is said to be reused was not read (B17). Returns how many tokens that were. */
static int64_t sync_counted(struct session *s, const struct text *t)
{
    struct err err = {0};
    struct sync_result r;
    struct reading reading = {0};
    size_t marks[SNAPSHOT_MARKS];
    test_ok(session_sync(s, &(struct sync_request){.tokens = t->ids, .n = t->n, .rows = 1, .marks = marks, .n_marks = snapshot_marks(t->ids, t->n, FORK, marks), .progress = on_row, .ctx = &reading},
                         &r, &err), &err, "sync");
    assert_int_equal(reading.rows, r.n_prefilled);
    assert_int_equal(r.n_reused + reading.rows, t->n);
    return r.n_reused;
}

/* B3, B7: prompts of a few dozen tokens have snapshots too, and the last one always stays. */
static void test_short_prompts(void **unused)
{
    struct rig rig;
    static struct text t;
    (void)unused;
    rig_open(&rig, model, NULL, ARITHMETIC_DEFAULT, 1, 64, 1);
    for (size_t n = SNAPSHOT_MIN_POSITION; n < 64; n += 11) {
        struct session *s = new_session(&rig);
        session_set_snapshots(s, 1);
        memset(&t, 0, sizeof t);
        add_message(&t, 1, n);
        assert_int_equal(sync_counted(s, &t), 0);
        answer(s, 5);
        assert_int_equal(sync_counted(s, &t), n); /* again: nothing is read */
        answer(s, 5);
        t.ids[t.n++] = 900; /* another answer, then a question */
        add_message(&t, 2, 5);
        assert_int_equal(sync_counted(s, &t), n);
        same_as_cold(&rig, s, &t);
        session_free(s);
    }
    rig_close(&rig);
}

/* B10, B16: prompts that end or part right before, at and right behind a snapshot; shorter ones are cut, not cleared. */
static void test_selection(void **unused)
{
    struct rig rig;
    static struct text t, cut;
    static const struct {
        size_t n, edit; /* length; the first token that is another, 0 = none */
        int64_t reused; /* snapshots are at 40, 90 and at the end, 120, whose logits are kept */
    } cases[] = {{120, 0, 120}, {119, 0, 90}, {91, 0, 90}, {90, 0, 40}, {89, 0, 40}, {41, 0, 40}, {40, 0, 0}, {39, 0, 0}, {120, 119, 90}, {120, 91, 90}, {120, 90, 90}, {120, 89, 40}, {120, 40, 40},
                 {120, 39, 0}, {130, 0, 120}, {130, 120, 120}, {130, 119, 90}};
    (void)unused;
    rig_open(&rig, model, NULL, ARITHMETIC_DEFAULT, 1, 64, 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct session *s = new_session(&rig);
        memset(&t, 0, sizeof t);
        add_message(&t, 1, 40);
        add_message(&t, 2, 50);
        add_message(&t, 3, 30);
        assert_int_equal(sync_text(s, &t), 0);
        answer(s, 4);
        cut = t;
        add_message(&cut, 4, 10);
        cut.n = cases[i].n;
        if (cases[i].edit)
            cut.ids[cases[i].edit] ^= 1;
        int64_t reused = sync_counted(s, &cut);
        if (reused != cases[i].reused)
            fail_msg("%zu tokens, another from %zu on: %lld reused, not %lld", cases[i].n, cases[i].edit, (long long)reused, (long long)cases[i].reused);
        same_as_cold(&rig, s, &cut);
        session_free(s);
    }
    rig_close(&rig);
}

/* B9: text without turns whose end is tokenised otherwise the next time: at most an interval is read again. */
static void test_raw_text(void **unused)
{
    enum { INTERVALS = TEST_THREAD_SANITIZED ? 1 : 3 };
    struct rig rig;
    static struct text t;
    (void)unused;
    rig_open(&rig, model, NULL, ARITHMETIC_DEFAULT, 1, 512, 1);
    struct session *s = new_session(&rig);
    memset(&t, 0, sizeof t);
    add_message(&t, 1, INTERVALS * SNAPSHOT_INTERVAL + 20);
    assert_int_equal(sync_text(s, &t), 0);
    t.ids[t.n - 1] ^= 1;
    assert_int_equal(sync_text(s, &t), INTERVALS * SNAPSHOT_INTERVAL);
    same_as_cold(&rig, s, &t);
    session_free(s);
    rig_close(&rig);
}

/* B14, B22, B33: a copy shares its donor's snapshots; it goes back to them when the donor has forgotten, given back or is gone, and the donor does when the copy is. */
static void test_copies(void **unused)
{
    struct rig rig;
    static struct text t, other;
    (void)unused;
    rig_open(&rig, model, NULL, ARITHMETIC_DEFAULT, 1, 64, 1);
    for (int fate = 0; fate < 5; fate++) {
        struct session *s[2] = {new_session(&rig), new_session(&rig)};
        struct err err = {0};
        struct sync_result r;
        memset(&t, 0, sizeof t);
        add_message(&t, 1, 60);
        add_message(&t, 2, 60);
        sync_text(s[0], &t);
        other = t;
        add_message(&other, 3, 20);
        test_ok(session_sync(s[1], &(struct sync_request){.tokens = other.ids, .n = other.n, .donor = s[0]}, &r, &err), &err, "copy");
        assert_int_equal(r.n_reused, 120);
        same_as_cold(&rig, s[1], &other);
        int gone = fate == 4, left = 1 - gone; /* four fates of the donor, one of the copy */
        if (fate == 0)
            session_reset(s[0]);
        if (fate == 1)
            session_give_back(s[0]);
        if (fate == 2)
            session_drop_snapshots(s[0]);
        if (fate == 3 || fate == 4)
            session_free(s[gone]);
        other.n = 60; /* back to what both hold */
        add_message(&other, 4, 20);
        assert_int_equal(sync_text(s[left], &other), 60);
        same_as_cold(&rig, s[left], &other);
        if (fate < 3) {
            sync_text(s[0], &t); /* the donor as it was, and nothing of the copy's */
            same_as_cold(&rig, s[0], &t);
            session_free(s[0]);
            s[0] = NULL;
        }
        if (fate < 3 || left == 1)
            session_free(s[1]);
        if (fate == 4)
            session_free(s[0]);
    }
    rig_close(&rig);
    assert_int_equal(mem_bytes(MEM_STATE), 0);
}

/* B177, B178: a full set takes the next snapshot in place of one it gives up: no byte more, not even for a moment. */
static void test_full_set(void **unused)
{
    struct rig rig;
    static struct text t;
    (void)unused;
    rig_open(&rig, model, NULL, ARITHMETIC_DEFAULT, 1, 64, 1);
    struct session *s = new_session(&rig);
    session_set_snapshots(s, 3);
    memset(&t, 0, sizeof t);
    for (uint64_t i = 0; i < 4; i++)
        add_message(&t, i, 50);
    sync_text(s, &t);
    assert_int_equal(session_snapshots(s)->n, 3);
    size_t held = mem_total();
    for (uint64_t i = 4; i < 12; i++) {
        mem_set_ceiling(held + 65536); /* token lists */
        add_message(&t, i, 50);
        sync_text(s, &t);
        assert_int_equal(session_snapshots(s)->n, 3);
        assert_int_equal(state_snapshot_position(session_snapshots(s)->at[2]), t.n); /* the newest is there */
        mem_set_ceiling(SIZE_MAX);
    }
    same_as_cold(&rig, s, &t);
    session_free(s);
    rig_close(&rig);
}

/* B134, B183, B184: around each size that something inside has (rows, chunks, intervals, capacities) the answer is that of any other way to read, and the workspace stays what it is. */
static void test_around_sizes(void **unused)
{
    static const size_t sizes[] = {32, 64, 128, 256, 512, 1024, 2048, 4096, 5000};
    struct rig rig;
    static struct text t;
    (void)unused;
    rig_open(&rig, model, NULL, ARITHMETIC_DEFAULT, 1, 512, 1);
    struct session *s = new_session(&rig), *other = new_session(&rig);
    session_set_snapshots(other, 0);
    memset(&t, 0, sizeof t);
    add_message(&t, 7, 5100);
    size_t workspace = mem_bytes(MEM_WORKSPACE);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if ((TEST_SANITIZED && sizes[i] > 1024) || (TEST_THREAD_SANITIZED && sizes[i] > 128))
            break;
        for (t.n = sizes[i] - 1; t.n <= sizes[i] + 1; t.n++) {
            struct err err = {0};
            struct sync_result r;
            sync_text(s, &t);
            test_ok(session_sync(other, &(struct sync_request){.tokens = t.ids, .n = t.n, .rows = 100}, &r, &err), &err, "by hundreds");
            if (memcmp(session_logits(s), session_logits(other), (size_t)rig.m->config.n_vocab * 4) != 0)
                fail_msg("at %zu tokens the logits depend on how they were read", t.n);
        }
        if (i % 3 == 0) { /* and not only as far as the two go the same way */
            t.n = sizes[i];
            sync_text(s, &t);
            same_as_cold(&rig, s, &t);
        }
    }
    assert_int_equal(mem_bytes(MEM_WORKSPACE), workspace);
    session_free(s);
    session_free(other);
    rig_close(&rig);
}

/* B37, B183: a batch beyond the state, the rows or the rows of logits that there is room for is refused before anything is touched. */
static void test_bounds(void **unused)
{
    struct rig rig;
    struct err err = {0};
    const float *logits;
    static const int32_t ids[64];
    (void)unused;
    rig_open(&rig, model, NULL, ARITHMETIC_DEFAULT, 1, 32, 2);
    struct session *s = new_session(&rig);
    struct seq *seq = state_seq(session_state(s));
    assert_int_equal(model_forward(rig.r, &(struct batch_span){.seq = seq, .ids = ids, .n = 1}, 1, &logits, &err), ERR_INVALID); /* no memory yet */
    test_ok(state_reserve(session_state(s), 20, &err), &err, "reserve");
    state_shrink(session_state(s), 20);
    assert_int_equal(model_forward(rig.r, &(struct batch_span){.seq = seq, .ids = ids, .n = 21}, 1, &logits, &err), ERR_INVALID);
    assert_non_null(strstr(err.message, "21"));
    test_ok(state_reserve(session_state(s), 64, &err), &err, "reserve");
    assert_int_equal(model_forward(rig.r, &(struct batch_span){.seq = seq, .ids = ids, .n = 33}, 1, &logits, &err), ERR_INVALID);
    assert_int_equal(model_forward(rig.r, &(struct batch_span){.seq = seq, .ids = ids, .n = 10, .n_logits = 3}, 1, &logits, &err), ERR_INVALID);
    assert_int_equal(model_forward(rig.r, &(struct batch_span){.seq = seq, .ids = ids, .n = 0}, 1, &logits, &err), ERR_INVALID);
    assert_int_equal(state_length(session_state(s)), 0);
    test_ok(model_forward(rig.r, &(struct batch_span){.seq = seq, .ids = ids, .n = 32, .n_logits = 2}, 1, &logits, &err), &err, "all there is room for");
    session_free(s);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_victims), cmocka_unit_test(test_marks), cmocka_unit_test(test_shared_system_block),   cmocka_unit_test(test_conversation), cmocka_unit_test(test_interval),            cmocka_unit_test(test_random_edits),
        cmocka_unit_test(test_cancel),  cmocka_unit_test(test_reclaim), cmocka_unit_test(test_failing_step), cmocka_unit_test(test_failing_allocations),
        cmocka_unit_test(test_short_prompts), cmocka_unit_test(test_selection), cmocka_unit_test(test_raw_text), cmocka_unit_test(test_copies), cmocka_unit_test(test_full_set),
        cmocka_unit_test(test_around_sizes), cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_donor),   cmocka_unit_test(test_growth),  cmocka_unit_test(test_served_context), cmocka_unit_test(test_anomaly),          cmocka_unit_test(test_refused_spans),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
