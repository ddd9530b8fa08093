/* From the queue into a slot: which one, how far back it goes, memory for the whole turn. What does not fit beside others waits for them; what does not fit alone is refused. */
#include "engine/engine_internal.h"

#include "base/clock.h"
#include "base/mem.h"
#include "engine/slot.h"

#define OPEN_AHEAD 1024
#define SAVING_MS 5000 /* that a request waits at most for its slot to be saved */

/* Rows of the output that stand for no token are never sampled. */
static void ban_tokens(const struct engine *e, struct request *r)
{
    const struct vocab *v = e->model->vocab;
    int32_t n = (int32_t)e->model->config.n_vocab;
    for (int32_t i = 0; v && i < n; i++)
        if (i >= vocab_n_tokens(v) || !vocab_is_emittable(v, i))
            sampler_ban(r->sampler, i);
}

static void view_slots(const struct engine *e, const struct request *r, struct slot_view *views)
{
    for (int i = 0; i < e->n_slots; i++) {
        const struct session *s = e->slots[i].session;
        size_t held;
        (void)session_tokens(s, &held);
        views[i] = (struct slot_view){.is_busy = e->slots[i].request != NULL, .is_saving = disk_is_saving(&e->slots[i]), .held = (int64_t)held, .idle_turns = e->turns - e->slots[i].last_turn};
        if (r) {
            views[i].common = (int64_t)session_common(s, r->prompt.data, r->prompt.len);
            views[i].reusable = session_reusable(s, r->prompt.data, r->prompt.len);
        }
    }
}

struct reclaim_from {
    struct engine *e;
    struct slot_choice spared;
};

/* What no turn needs, then idle sequences' memory, lowest value first, then the running ones' snapshots: what they held is read again when it is asked for. */
static uint64_t reclaim(void *ctx, uint64_t bytes)
{
    const struct reclaim_from *from = ctx;
    struct engine *e = from->e;
    struct slot_view views[MAX_PARALLEL];
    uint64_t given = 0;
    view_slots(e, NULL, views);
    views[from->spared.slot].held = 0;
    for (int i = 0; i < e->n_slots && given < bytes; i++) /* room that nothing is in comes first */
        if (i != from->spared.slot)
            given += session_trim(e->slots[i].session, e->slots[i].request ? e->slots[i].request->positions : 0);
    for (int victim; given < bytes && (victim = slot_victim(views, e->n_slots, from->spared.donor)) >= 0;) {
        given += session_give_back(e->slots[victim].session);
        views[victim].held = 0;
    }
    for (int i = 0; i < e->n_slots && given < bytes; i++)
        if (i != from->spared.slot && i != from->spared.donor)
            given += session_drop_snapshots(e->slots[i].session);
    return given;
}

/* Decode state lives within its part of the plan, and within what the machine has left beside the weights: others may have come since the start. */
static void limit_state(const struct engine *e)
{
    struct device_memory memory;
    struct err ignored;
    uint64_t limit = e->state_limit;
    if (device_memory(e->device, &memory, &ignored) == 0) {
        uint64_t weights = e->model->weight_bytes, left = mem_bytes(MEM_STATE) + (memory.memory_free > weights ? memory.memory_free - weights : 0);
        limit = left < limit ? left : limit;
    }
    mem_set_limit(MEM_STATE, limit < SIZE_MAX ? (size_t)limit : SIZE_MAX);
}

/* Tokens to make room for at once: as many as were asked for. Where nothing was, OPEN_AHEAD, and as many again when it comes to that: one open request does not take the memory of
 * all. */
static int64_t room_ahead(const struct request *r)
{
    int64_t left = r->budget - r->n_generated;
    return r->params.max_tokens >= 0 || left < OPEN_AHEAD ? left : OPEN_AHEAD;
}

int admit_grow(struct engine *e, int slot)
{
    struct request *r = e->slots[slot].request;
    struct state *s = session_state(r->session);
    struct reclaim_from from = {.e = e, .spared = {slot, -1}};
    struct err err = {0};
    if (state_length(s) < state_capacity(s))
        return 0;
    limit_state(e);
    r->positions = state_length(s) + room_ahead(r);
    return session_grow(r->session, r->positions, reclaim, &from, &err);
}

static void promise(const struct engine *e, struct request *r, int slot)
{
    int64_t left = e->plan.n_positions - (int64_t)r->prompt.len, asked = r->params.max_tokens;
    r->session = e->slots[slot].session;
    r->budget = asked < 0 || asked > left ? left : asked;
    r->positions = (int64_t)r->prompt.len + room_ahead(r);
    if (!r->opened_ns)
        r->opened_ns = clock_ns();
}

/* Room for the turn, and then the beginning of the prompt from the disk; without a load afterwards there is none to be had, and all of the prompt is read. */
static int open_stored(struct engine *e, struct request *r, int slot, const struct store_match *match, struct err *err)
{
    struct reclaim_from from = {.e = e, .spared = {slot, -1}};
    promise(e, r, slot);
    session_reset(r->session);
    limit_state(e);
    TRY(session_grow(r->session, r->positions, reclaim, &from, err));
    disk_load(e, slot, match);
    return 0;
}

static int open_prompt(struct engine *e, struct request *r, struct slot_choice choice, struct err *err)
{
    size_t marks[SNAPSHOT_MARKS];
    struct reclaim_from from = {.e = e, .spared = choice};
    promise(e, r, choice.slot);
    struct sync_request q = {.tokens = r->prompt.data, .n = r->prompt.len, .reserve = r->positions, .marks = marks,
                             .donor = choice.donor >= 0 ? e->slots[choice.donor].session : NULL, .rows = e->options.chunk_rows, .least_rows = e->n_slots, .reclaim = reclaim,
                             .reclaim_ctx = &from};
    if (e->fork_id >= 0)
        q.n_marks = snapshot_marks(r->prompt.data, r->prompt.len, e->fork_id, marks);
    limit_state(e);
    return session_open(r->session, &q, &r->n_cached, err);
}

/* A copy takes a second state: where there is no memory for it, the donor itself goes on, or, busy, what it holds is read again. */
static struct slot_choice without_copy(const struct engine *e, struct slot_choice choice)
{
    return (struct slot_choice){e->slots[choice.donor].request ? choice.slot : choice.donor, -1};
}

static void occupy(struct engine *e, int slot, struct request *r)
{
    pthread_mutex_lock(&e->lock);
    e->slots[slot].request = r;
    pthread_mutex_unlock(&e->lock);
}

static int prepare_sampler(const struct engine *e, struct request *r, struct err *err)
{
    if (r->sampler)
        return 0;
    TRY(sampler_create(&r->params.sampling, (int32_t)e->model->config.n_vocab, r->prompt.data, r->prompt.len, &r->sampler, err));
    ban_tokens(e, r);
    return 0;
}

/* Takes the head of the queue when there is a slot for it; n_running counts it from now on. */
static struct request *take_next(struct engine *e)
{
    struct request *r = NULL;
    pthread_mutex_lock(&e->lock);
    if (!e->stopping && e->n_running < e->n_slots && !(e->is_blocked && e->n_running > 0))
        r = queue_pop(&e->queue);
    e->n_running += r != NULL;
    pthread_mutex_unlock(&e->lock);
    return r;
}

/* Back to the head of the line; `is_blocked`: until something that runs has ended. */
static void put_back(struct engine *e, struct request *r, int slot, int is_blocked)
{
    pthread_mutex_lock(&e->lock);
    e->slots[slot].request = NULL;
    e->n_running--;
    queue_unpop(&e->queue, r);
    r->opened_ns = 0;
    pthread_mutex_unlock(&e->lock);
    e->is_blocked = is_blocked;
}

static int n_running(struct engine *e)
{
    pthread_mutex_lock(&e->lock);
    int n = e->n_running;
    pthread_mutex_unlock(&e->lock);
    return n;
}

/* Is what the slot holds on its way to the disk, and would this request change it? Then the disk gets a moment first. */
static int is_too_early(struct request *r, const struct slot *s, const struct slot_view *v)
{
    if (!disk_is_saving(s) || v->reusable == v->held)
        return 0;
    if (!r->delayed_ns)
        r->delayed_ns = clock_ns();
    return clock_ms_since(r->delayed_ns) < SAVING_MS && !disk_is_stuck(s);
}

/* Opens the request where it costs the least, from what is held in memory. */
static int open_held(struct engine *e, struct request *r, struct slot_choice *choice, struct err *err)
{
    int rc = open_prompt(e, r, *choice, err);
    if (rc != ERR_CAPACITY || choice->donor < 0)
        return rc;
    occupy(e, choice->slot, NULL);
    *choice = without_copy(e, *choice);
    occupy(e, choice->slot, r);
    return open_prompt(e, r, *choice, err);
}

static void begin_turn(struct engine *e, int slot, int rc, const struct err *err)
{
    struct request *r = e->slots[slot].request;
    if (rc < 0)
        sched_finish(e, slot, FINISH_STOP, err);
    else if (!e->slots[slot].load && session_unread(r->session) == 0)
        sched_prompt_read(e, slot);
}

void admit_loaded(struct engine *e, int slot)
{
    struct request *r = e->slots[slot].request;
    struct err err = {0};
    int rc = open_prompt(e, r, (struct slot_choice){slot, -1}, &err);
    begin_turn(e, slot, rc, &err);
}

int admit_next(struct engine *e)
{
    struct slot_view views[MAX_PARALLEL];
    struct store_match match;
    struct err err = {0};
    struct request *r = take_next(e);
    if (!r)
        return 0;
    view_slots(e, r, views);
    struct slot_choice choice = slot_choose(views, e->n_slots, (int64_t)r->prompt.len);
    int64_t stored = disk_find(e, r, views[choice.donor < 0 ? choice.slot : choice.donor].reusable, &match);
    if (stored)
        choice = slot_choose_fresh(views, e->n_slots, (int64_t)r->prompt.len);
    if (is_too_early(r, &e->slots[choice.slot], &views[choice.slot])) {
        put_back(e, r, choice.slot, 0);
        return 0;
    }
    occupy(e, choice.slot, r);
    int rc = prepare_sampler(e, r, &err);
    if (rc == 0 && stored)
        rc = open_stored(e, r, choice.slot, &match, &err);
    if (rc == 0 && !e->slots[choice.slot].load)
        rc = open_held(e, r, &choice, &err);
    if (rc == ERR_CAPACITY && n_running(e) > 1) {
        put_back(e, r, choice.slot, 1);
        return 0;
    }
    e->slots[choice.slot].last_turn = ++e->turns;
    request_put(r, &(struct token_event){.kind = EVENT_STARTED});
    begin_turn(e, choice.slot, rc, &err);
    return 1;
}
