/* Growing without moving: every KV array is a reservation for the served context, of which the first `capacity` rows are committed. */
#include "engine/state.h"

#include "base/log.h"
#include "base/mem.h"
#include "model/plan.h"

struct state {
    struct model_config config;
    struct device *dev;
    enum kv_type type;
    int64_t max_positions;
    size_t row_bytes;             /* of one position in one array */
    struct seq seq;
    void **arrays;                /* [2 * n_full]: k and v of each full layer */
    void *recurrent;              /* conv and s of all linear layers; NULL before the first reserve */
    size_t recurrent_bytes;
    struct state_attempts attempts;
    struct state_cuts cuts;
};

struct state_snapshot {
    int64_t position;
    int references;
    struct device *dev;
    void *data;
    size_t bytes;
};

static void seq_point_arrays(struct state *s)
{
    for (int i = 0; i < s->config.n_full; i++)
        s->seq.kv[i] = (struct op_kv){.type = s->type, .k = s->arrays[2 * i], .v = s->arrays[2 * i + 1]};
}

static void seq_point_recurrent(struct state *s)
{
    const struct model_config *c = &s->config;
    size_t conv = (size_t)(c->n_conv - 1) * (size_t)config_n_channel(c), matrix = (size_t)c->n_head_v * (size_t)c->d_state * (size_t)c->d_state;
    float *at = s->recurrent;
    for (int i = 0; i < c->n_linear; i++) {
        s->seq.delta[i] = (struct op_delta_state){.s = at, .conv = at + matrix};
        at += matrix + conv;
    }
}

int state_create(const struct model_config *c, struct device *dev, enum kv_type type, int64_t max_positions, struct state **out, struct err *err)
{
    uint64_t bytes;
    struct state *s = mem_alloc(MEM_STATE, sizeof *s);
    if (!s)
        return err_set(err, ERR_NO_MEMORY, "out of memory for a sequence");
    *s = (struct state){.config = *c, .dev = dev, .max_positions = max_positions, .type = type,
                        .row_bytes = (size_t)c->n_head_kv * kv_head_bytes(type, c->d_head),
                        .recurrent_bytes = (size_t)plan_state_bytes(c)};
    s->arrays = mem_alloc_array(MEM_STATE, (size_t)(2 * c->n_full) + 1, sizeof *s->arrays);
    s->seq.kv = mem_alloc_array(MEM_STATE, (size_t)c->n_full + 1, sizeof *s->seq.kv);
    s->seq.delta = mem_alloc_array(MEM_STATE, (size_t)c->n_linear + 1, sizeof *s->seq.delta);
    int ok = s->arrays && s->seq.kv && s->seq.delta && max_positions > 0 && !size_mul((uint64_t)max_positions, s->row_bytes, &bytes);
    for (int i = 0; ok && i < 2 * c->n_full; i++)
        ok = (s->arrays[i] = device_reserve(dev, (size_t)bytes)) != NULL;
    if (!ok) {
        state_free(s);
        return err_set(err, ERR_NO_MEMORY, "the address space for %lld positions could not be reserved", (long long)max_positions);
    }
    seq_point_arrays(s);
    *out = s;
    return 0;
}

void state_free(struct state *s)
{
    if (!s)
        return;
    for (int i = 0; s->arrays && i < 2 * s->config.n_full; i++)
        if (s->arrays[i])
            device_release(s->dev, MEM_STATE, s->arrays[i], (size_t)s->max_positions * s->row_bytes, (size_t)s->seq.capacity * s->row_bytes);
    if (s->recurrent)
        device_free(s->dev, s->recurrent);
    mem_free(s->arrays);
    mem_free(s->seq.kv);
    mem_free(s->seq.delta);
    mem_free(s);
}

struct seq *state_seq(struct state *s)
{
    return &s->seq;
}

int64_t state_length(const struct state *s)
{
    return s->seq.length;
}

int64_t state_capacity(const struct state *s)
{
    return s->seq.capacity;
}

uint64_t state_bytes(const struct state *s)
{
    return (uint64_t)(2 * s->config.n_full) * (uint64_t)s->seq.capacity * s->row_bytes + (s->recurrent ? s->recurrent_bytes : 0);
}

int64_t grown_capacity(int64_t positions, int64_t min_capacity, int64_t served)
{
    int64_t capacity = min_capacity;
    while (capacity < positions)
        capacity *= 2;
    if (capacity > served)
        capacity = served;
    return capacity < positions ? positions : capacity;
}

const struct state_attempts *state_attempts(const struct state *s)
{
    return &s->attempts;
}

uint64_t state_missing_bytes(const struct state *s, int64_t positions)
{
    int64_t rows = positions > s->seq.capacity ? positions - s->seq.capacity : 0;
    return (uint64_t)(2 * s->config.n_full) * (uint64_t)rows * s->row_bytes + (s->recurrent ? 0 : s->recurrent_bytes);
}

/* Commits every array up to `capacity` positions, or leaves all as they were. */
static int commit_to(struct state *s, int64_t capacity)
{
    if (s->attempts.n < (int)(sizeof s->attempts.capacity / sizeof *s->attempts.capacity))
        s->attempts.capacity[s->attempts.n++] = capacity;
    size_t from = (size_t)s->seq.capacity * s->row_bytes, to = (size_t)capacity * s->row_bytes;
    for (int i = 0; i < 2 * s->config.n_full; i++) {
        int rc = device_commit(s->dev, MEM_STATE, s->arrays[i], from, to);
        if (rc < 0) {
            while (i-- > 0)
                device_decommit(s->dev, MEM_STATE, s->arrays[i], from, to);
            return rc;
        }
    }
    s->seq.capacity = capacity;
    return 0;
}

static int refuse(const struct state *s, int64_t positions, struct err *err)
{
    double row = (double)s->row_bytes * 2 * s->config.n_full, mib = 1048576.0;
    return err_set(err, ERR_CAPACITY,
                   "capacity: a decode state for %lld positions would not allocate: %lld positions x %.0f B = %.1f MiB + state %.1f MiB, %.1f MiB of it held now. "
                   "Shorten the prompt or max_tokens, or give the server more memory",
                   (long long)positions, (long long)positions, row, row * (double)positions / mib, (double)s->recurrent_bytes / mib, (double)state_bytes(s) / mib);
}

/* The served context holds it, and the recurrent part is there. */
static int prepare(struct state *s, int64_t positions, struct err *err)
{
    if (positions > s->max_positions)
        return err_set(err, ERR_CONTEXT_LENGTH, "the turn needs %lld positions and the served context is %lld", (long long)positions, (long long)s->max_positions);
    if (s->recurrent)
        return 0;
    s->recurrent = device_alloc(s->dev, MEM_STATE, s->recurrent_bytes ? s->recurrent_bytes : 1);
    if (!s->recurrent)
        return refuse(s, positions, err);
    seq_point_recurrent(s);
    return 0;
}

int state_reserve_exact(struct state *s, int64_t positions, struct err *err)
{
    TRY(prepare(s, positions, err)); /* its attempt follows those of the reserve that failed */
    if (positions > s->seq.capacity && commit_to(s, positions) < 0)
        return refuse(s, positions, err);
    return 0;
}

int state_reserve(struct state *s, int64_t positions, struct err *err)
{
    s->attempts.n = 0;
    TRY(prepare(s, positions, err));
    if (positions <= s->seq.capacity)
        return 0;
    int64_t headroom = grown_capacity(positions, STATE_MIN_CAPACITY, s->max_positions);
    if (commit_to(s, headroom) == 0)
        return 0;
    if (headroom == positions)
        return refuse(s, positions, err);
    TRY(state_reserve_exact(s, positions, err));
    log_info("[qwen35] decode state: %lld positions would not allocate, sized to the turn (%lld) instead (#4443)", (long long)headroom, (long long)positions);
    return 0;
}

/* The state goes on from `length` positions of what it was. */
static void cut(struct state *s, int64_t length)
{
    s->seq.length = length;
    s->cuts = (struct state_cuts){.n = s->cuts.n + 1, .kept = length};
}

struct state_cuts state_cuts(const struct state *s)
{
    return s->cuts;
}

void state_reset(struct state *s)
{
    cut(s, 0);
    if (s->recurrent)
        device_zero(s->dev, s->recurrent, s->recurrent_bytes);
}

void state_shrink(struct state *s, int64_t positions)
{
    if (positions < s->seq.length)
        positions = s->seq.length;
    if (positions >= s->seq.capacity)
        return;
    for (int i = 0; i < 2 * s->config.n_full; i++)
        device_decommit(s->dev, MEM_STATE, s->arrays[i], (size_t)positions * s->row_bytes, (size_t)s->seq.capacity * s->row_bytes);
    s->seq.capacity = positions;
}

void state_release(struct state *s)
{
    cut(s, 0);
    state_shrink(s, 0);
    if (s->recurrent)
        device_free(s->dev, s->recurrent);
    s->recurrent = NULL;
}

int state_snapshot_take(const struct state *s, struct state_snapshot **out, struct err *err)
{
    struct state_snapshot *snapshot = mem_alloc(MEM_STATE, sizeof *snapshot);
    void *data = s->recurrent ? device_alloc(s->dev, MEM_STATE, s->recurrent_bytes ? s->recurrent_bytes : 1) : NULL;
    if (!snapshot || !data) {
        mem_free(snapshot);
        if (data)
            device_free(s->dev, data);
        return err_set(err, ERR_NO_MEMORY, "out of memory for a snapshot of %zu bytes", s->recurrent_bytes);
    }
    device_copy(s->dev, data, s->recurrent, s->recurrent_bytes);
    *snapshot = (struct state_snapshot){.position = s->seq.length, .references = 1, .dev = s->dev, .data = data, .bytes = s->recurrent_bytes};
    *out = snapshot;
    return 0;
}

void state_snapshot_update(struct state_snapshot *snapshot, const struct state *s)
{
    device_copy(s->dev, snapshot->data, s->recurrent, snapshot->bytes);
    snapshot->position = s->seq.length;
}

void state_snapshot_free(struct state_snapshot *snapshot)
{
    if (!snapshot || --snapshot->references > 0)
        return;
    device_free(snapshot->dev, snapshot->data);
    mem_free(snapshot);
}

struct state_snapshot *state_snapshot_ref(struct state_snapshot *snapshot)
{
    snapshot->references++;
    return snapshot;
}

int state_snapshot_is_shared(const struct state_snapshot *snapshot)
{
    return snapshot->references > 1;
}

uint64_t state_snapshot_bytes(const struct state_snapshot *snapshot)
{
    return snapshot->bytes;
}

const void *state_snapshot_data(const struct state_snapshot *snapshot)
{
    return snapshot->data;
}

int64_t state_snapshot_position(const struct state_snapshot *snapshot)
{
    return snapshot->position;
}

int state_rewind(struct state *s, const struct state_snapshot *snapshot, struct err *err)
{
    if (snapshot->position > s->seq.length || snapshot->bytes != s->recurrent_bytes)
        return err_set(err, ERR_INVALID, "a snapshot of position %lld cannot be restored at length %lld", (long long)snapshot->position, (long long)s->seq.length);
    device_copy(s->dev, s->recurrent, snapshot->data, snapshot->bytes);
    cut(s, snapshot->position);
    return 0;
}

int state_fork(struct state *to, const struct state *from, const struct state_snapshot *snapshot, struct err *err)
{
    int64_t n = snapshot ? snapshot->position : from->seq.length;
    if (n > from->seq.length || n > to->seq.capacity || !to->recurrent || !from->recurrent)
        return err_set(err, ERR_INVALID, "a sequence of %lld positions cannot become one of %lld", (long long)n, (long long)to->seq.capacity);
    for (int i = 0; i < 2 * from->config.n_full; i++)
        device_copy(to->dev, to->arrays[i], from->arrays[i], (size_t)n * from->row_bytes);
    device_copy(to->dev, to->recurrent, snapshot ? snapshot->data : from->recurrent, to->recurrent_bytes);
    cut(to, 0);
    to->seq.length = n;
    return 0;
}

struct state_shape state_shape(const struct state *s)
{
    return (struct state_shape){.row_bytes = s->row_bytes, .recurrent_bytes = s->recurrent_bytes, .n_arrays = (uint32_t)(2 * s->config.n_full)};
}

/* Where byte `offset` of the rows [from, to) lies; *n becomes how many follow it there, if those are fewer. */
static void *rows_at(const struct state *s, int64_t from, int64_t to, uint64_t offset, size_t *n)
{
    uint64_t span = (uint64_t)(to - from) * s->row_bytes, within = offset % span;
    if (*n > span - within)
        *n = (size_t)(span - within);
    return (char *)s->arrays[offset / span] + (uint64_t)from * s->row_bytes + within;
}

void state_read_rows(const struct state *s, int64_t from, int64_t to, uint64_t offset, void *host, size_t n)
{
    for (size_t done = 0, part; done < n; done += part) {
        part = n - done;
        const void *at = rows_at(s, from, to, offset + done, &part);
        device_read(s->dev, (char *)host + done, at, part);
    }
}

void state_write_rows(struct state *s, int64_t from, int64_t to, uint64_t offset, const void *host, size_t n)
{
    for (size_t done = 0, part; done < n; done += part) {
        part = n - done;
        void *at = rows_at(s, from, to, offset + done, &part);
        device_write(s->dev, at, (const char *)host + done, part);
    }
}

void state_write_recurrent(struct state *s, uint64_t offset, const void *host, size_t n)
{
    device_write(s->dev, (char *)s->recurrent + offset, host, n);
}

void state_set_length(struct state *s, int64_t length)
{
    cut(s, 0);
    s->seq.length = length;
}

void state_snapshot_read(const struct state_snapshot *snapshot, uint64_t offset, void *host, size_t n)
{
    device_read(snapshot->dev, host, (const char *)snapshot->data + offset, n);
}
