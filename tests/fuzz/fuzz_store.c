/* Any bytes as a segment's file: as they are, then with the right sums put over them, then with the right size too, whole and thin. What the reader accepts lies within the file, without gaps; what a
 * store loads from a folder with such a file is what stands in it. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "engine/store_segment.h"

#define MAX_BYTES (1 << 20)
#define NAME "segment"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char folder[] = "/tmp/apr-fuzz-store-XXXXXX";
static int dir;
static struct device *dev;
static struct state *state;
static unsigned char buffer[SEGMENT_BUFFER_BYTES], file[MAX_BYTES];

static void check(int ok)
{
    if (!ok)
        abort();
}

static void remove_all(void)
{
    static const char *const names[] = {NAME, "lock", "index.db", "index.db-wal"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        (void)unlinkat(dir, names[i], 0);
    (void)rmdir(folder);
}

static void prepare(void)
{
    static struct model_config config = {.n_layer = 2, .n_full = 1, .n_linear = 1, .n_head = 1, .n_head_kv = 1, .d_head = 32, .n_conv = 4, .d_state = 16, .n_head_k = 1, .n_head_v = 1};
    struct err err;
    check(mkdtemp(folder) != NULL);
    dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    check(dir >= 0 && device_open(&(struct device_options){.kind = DEVICE_CPU, .n_threads = 1, .max_rows = 1, .max_n_in = 32}, &dev, &err) == 0);
    check(state_create(&config, dev, KV_F32, 64, &state, &err) == 0 && state_reserve(state, 64, &err) == 0);
    log_set_level(LOG_QUIET);
    check(freopen("/dev/null", "w", stderr) != NULL); /* warnings are expected, in thousands */
    atexit(remove_all);
}

static void put_file(const char *name, size_t n)
{
    int fd = openat(dir, name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    check(fd >= 0 && pwrite(fd, file, n, 0) == (ssize_t)n);
    close(fd);
}

/* The pieces follow each other up to the end of the file. */
static void check_layout(const struct segment_header *h, uint64_t n, int is_thin)
{
    uint64_t n_pieces = is_thin ? segment_n_row_pieces(h) : segment_n_pieces(h), at = sizeof *h + (uint64_t)(h->to - h->from) * 4, offset = 0;
    check((is_thin ? segment_thin_bytes(h) : segment_file_bytes(h)) == n);
    for (uint64_t i = 0; i < n_pieces; i++) {
        struct segment_piece p = segment_piece(h, i);
        if (i == segment_n_row_pieces(h))
            offset = 0;
        check(p.at == at && p.offset == offset && p.n > 0 && p.n <= STORE_PIECE_BYTES && p.is_recurrent == (i >= segment_n_row_pieces(h)));
        at += p.n + 8;
        offset += p.n;
    }
    check(at == n);
}

/* Returns whether the header was accepted; then *h is it. */
static int read_all(size_t n, struct segment_header *h, int repair)
{
    struct err err = {0};
    int is_thin, fd = segment_open(dir, NAME, h, &is_thin, &err);
    if (fd < 0) {
        check(*err.message && !strchr(err.message, '\n'));
        return 0;
    }
    check_layout(h, n, is_thin);
    check(segment_check_ids(fd, h, (const int32_t *)(const void *)(file + sizeof *h), buffer, &err) == 0);
    int rw = openat(dir, NAME, O_RDWR | O_CLOEXEC);
    uint64_t n_pieces = is_thin ? segment_n_row_pieces(h) : segment_n_pieces(h);
    for (uint64_t i = 0; i < n_pieces; i++) {
        struct segment_piece p = segment_piece(h, i);
        memcpy(buffer, file + p.at, p.n);
        check(!repair || segment_write_piece(rw, h, i, buffer) == 0);
        int rc = segment_read_piece(fd, h, i, buffer, &err);
        check(rc == 0 || (!repair && rc == ERR_FORMAT));
        check(rc < 0 || memcmp(buffer, file + p.at, p.n) == 0);
    }
    close(rw);
    close(fd);
    return 1;
}

static void seal(struct segment_header *h)
{
    segment_header_seal(h);
    memcpy(file, h, sizeof *h);
}

/* Under its own name, as the beginning of a conversation: it loads when it is of such a state, and then bit for bit. */
static void load_from_store(struct segment_header *h, size_t n)
{
    static int32_t ids[64];
    char name[SEGMENT_NAME_BYTES];
    struct err err;
    struct store *st = NULL;
    struct hash_stream hash;
    if (h->to - h->from > 64)
        return;
    h->to -= h->from;
    h->from = 0;
    h->parent = (struct hash_key){0};
    memcpy(ids, file + sizeof *h, (size_t)h->to * 4);
    hash_stream_begin(&hash);
    hash_stream_add(&hash, &h->model, sizeof h->model);
    hash_stream_add(&hash, ids, (size_t)h->to * 4);
    h->key = hash_stream_key(&hash);
    seal(h);
    put_file(NAME, n);
    check(read_all(n, h, 1));
    segment_name(h->key, SEGMENT_ENDING, name);
    check(renameat(dir, NAME, dir, name) == 0);
    check(store_open(&(struct store_options){.dir = folder, .budget_bytes = 1 << 24, .model = h->model}, &st, &err) == 0);
    struct store_match match = store_find(st, ids, (size_t)h->to);
    check(match.n == h->to && hash_key_equal(match.key, h->key));
    struct state_shape shape = state_shape(state);
    int is_alike = h->row_bytes == shape.row_bytes && h->n_arrays == shape.n_arrays && h->recurrent_bytes == shape.recurrent_bytes;
    check((store_load(st, &match, ids, state, &err) == 0) == is_alike && state_length(state) == (is_alike ? h->to : 0));
    if (is_alike) {
        struct segment_piece p = segment_piece(h, 0);
        state_read_rows(state, 0, h->to, 0, buffer, p.n);
        check(memcmp(buffer, file + p.at, p.n) == 0);
    }
    check(store_wait(st, 10000) && (faccessat(dir, name, F_OK, 0) == 0) == is_alike);
    store_close(st, 10000);
    (void)unlinkat(dir, name, 0);
    check(mem_bytes(MEM_STORE) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct segment_header h;
    if (!dev)
        prepare();
    if (size > MAX_BYTES)
        return 0;
    memset(file, 0, sizeof file);
    memcpy(file, data, size);
    put_file(NAME, size);
    (void)read_all(size, &h, 0);
    if (size < sizeof h)
        return 0;
    memcpy(&h, file, sizeof h);
    seal(&h);
    put_file(NAME, size);
    (void)read_all(size, &h, 1);
    memcpy(&h, file, sizeof h);
    h.reserved = 0;
    seal(&h);
    uint64_t n = segment_file_bytes(&h);
    if (n == 0 || n > MAX_BYTES)
        return 0;
    if (segment_thin_bytes(&h)) {
        put_file(NAME, (size_t)segment_thin_bytes(&h));
        check(read_all((size_t)segment_thin_bytes(&h), &h, 1));
    }
    put_file(NAME, (size_t)n);
    check(read_all((size_t)n, &h, 1));
    if (size % 8 == 0) /* slow */
        load_from_store(&h, (size_t)n);
    return 0;
}
