#include "engine/store_segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "segments are written as they lie in memory, which is to be little-endian"
#endif

#define MAX_POSITIONS ((int64_t)1 << 40)

static const char magic[8] = {'a', 'p', 'r', '-', 's', 'e', 'g', '\n'};

_Static_assert(sizeof(struct segment_header) == 112, "the header has no gaps");

void segment_header_seal(struct segment_header *h)
{
    memcpy(h->magic, magic, sizeof magic);
    h->version = SEGMENT_VERSION;
    h->hash = hash_bytes(h, offsetof(struct segment_header, hash), SEGMENT_VERSION);
}

static uint64_t n_tokens(const struct segment_header *h)
{
    return (uint64_t)(h->to - h->from);
}

static uint64_t rows_bytes(const struct segment_header *h) /* cannot overflow once segment_file_bytes did not */
{
    return n_tokens(h) * h->row_bytes * h->n_arrays;
}

static uint64_t pieces_of(uint64_t bytes)
{
    return bytes / STORE_PIECE_BYTES + (bytes % STORE_PIECE_BYTES != 0);
}

uint64_t segment_n_row_pieces(const struct segment_header *h)
{
    return pieces_of(rows_bytes(h));
}

uint64_t segment_n_pieces(const struct segment_header *h)
{
    return segment_n_row_pieces(h) + pieces_of(h->recurrent_bytes);
}

uint64_t segment_file_bytes(const struct segment_header *h)
{
    uint64_t rows, total;
    if (h->from < 0 || h->to <= h->from || h->to > MAX_POSITIONS || size_mul(n_tokens(h), h->row_bytes, &rows) || size_mul(rows, h->n_arrays, &rows) ||
        size_add(rows, h->recurrent_bytes, &total) || total > (uint64_t)1 << 60)
        return 0;
    return sizeof *h + n_tokens(h) * sizeof(int32_t) + total + segment_n_pieces(h) * 8;
}

uint64_t segment_thin_bytes(const struct segment_header *h)
{
    uint64_t bytes = segment_file_bytes(h);
    return bytes && h->recurrent_bytes ? bytes - h->recurrent_bytes - pieces_of(h->recurrent_bytes) * 8 : 0;
}

struct segment_piece segment_piece(const struct segment_header *h, uint64_t i)
{
    uint64_t n_rows = segment_n_row_pieces(h), at = sizeof *h + n_tokens(h) * sizeof(int32_t), total = rows_bytes(h);
    struct segment_piece p = {.is_recurrent = i >= n_rows};
    if (p.is_recurrent) {
        at += total + n_rows * 8;
        i -= n_rows;
        total = h->recurrent_bytes;
    }
    p.offset = i * STORE_PIECE_BYTES;
    p.n = total - p.offset < STORE_PIECE_BYTES ? (size_t)(total - p.offset) : STORE_PIECE_BYTES;
    p.at = at + i * (STORE_PIECE_BYTES + 8);
    return p;
}

int segment_header_check(const struct segment_header *h, uint64_t file_bytes, struct err *err)
{
    if (memcmp(h->magic, magic, sizeof magic) != 0)
        return err_set(err, ERR_FORMAT, "does not begin like a segment");
    if (h->version != SEGMENT_VERSION)
        return err_set(err, ERR_FORMAT, "is of version %u of the format, which is not this one's (%d)", h->version, SEGMENT_VERSION);
    if (h->hash != hash_bytes(h, offsetof(struct segment_header, hash), SEGMENT_VERSION))
        return err_set(err, ERR_FORMAT, "has a damaged header");
    uint64_t expected = segment_file_bytes(h);
    if (expected == 0 || h->reserved != 0)
        return err_set(err, ERR_FORMAT, "has a header that makes no sense");
    if (file_bytes != expected && file_bytes == segment_thin_bytes(h))
        return 1;
    if (file_bytes != expected)
        return err_set(err, ERR_FORMAT, "is %llu bytes long instead of %llu", (unsigned long long)file_bytes, (unsigned long long)expected);
    return 0;
}

/* Pieces of other places and of other segments have another checksum. */
static uint64_t piece_hash(const struct segment_header *h, uint64_t i, const void *data, size_t n)
{
    return hash_bytes(data, n, h->key.low ^ i);
}

int segment_write_head(int fd, const struct segment_header *h, const int32_t *ids)
{
    if (file_write_at(fd, h, sizeof *h, 0) != 0)
        return -1;
    return file_write_at(fd, ids, (size_t)n_tokens(h) * sizeof *ids, sizeof *h);
}

int segment_write_piece(int fd, const struct segment_header *h, uint64_t i, unsigned char *data)
{
    struct segment_piece p = segment_piece(h, i);
    uint64_t hash = piece_hash(h, i, data, p.n);
    memcpy(data + p.n, &hash, sizeof hash);
    return file_write_at(fd, data, p.n + sizeof hash, p.at);
}

static int read_failed(struct err *err)
{
    if (errno == ENODATA)
        return err_set(err, ERR_FORMAT, "ends too early");
    return err_set(err, ERR_IO, "cannot be read: %s", strerror(errno));
}

int segment_open(int dir, const char *name, struct segment_header *out, int *is_thin, struct err *err)
{
    uint64_t bytes;
    int fd = file_open_at(dir, name, O_RDONLY, 0);
    if (fd < 0 && errno == ELOOP)
        return err_set(err, ERR_FORMAT, "is a link");
    if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM))
        return err_set(err, ERR_NO_MEMORY, "cannot be opened: %s", strerror(errno));
    if (fd < 0)
        return err_set(err, errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, "cannot be opened: %s", strerror(errno));
    int rc = 0;
    if (file_size(fd, &bytes) != 0)
        rc = errno == EINVAL ? err_set(err, ERR_FORMAT, "is no regular file") : err_set(err, ERR_IO, "cannot be looked at: %s", strerror(errno));
    else if (bytes < sizeof *out)
        rc = err_set(err, ERR_FORMAT, "is %llu bytes long, less than a header", (unsigned long long)bytes);
    else if (file_read_at(fd, out, sizeof *out, 0) != 0)
        rc = read_failed(err);
    else
        rc = segment_header_check(out, bytes, err);
    if (rc >= 0) {
        *is_thin = rc;
        return fd;
    }
    close(fd);
    return rc;
}

int segment_check_ids(int fd, const struct segment_header *h, const int32_t *ids, void *buffer, struct err *err)
{
    uint64_t total = n_tokens(h) * sizeof *ids;
    for (uint64_t done = 0; done < total;) {
        size_t n = total - done < STORE_PIECE_BYTES ? (size_t)(total - done) : STORE_PIECE_BYTES;
        if (file_read_at(fd, buffer, n, sizeof *h + done) != 0)
            return read_failed(err);
        if (memcmp(buffer, (const char *)ids + done, n) != 0)
            return err_set(err, ERR_FORMAT, "holds other tokens than its name tells");
        done += n;
    }
    return 0;
}

int segment_read_piece(int fd, const struct segment_header *h, uint64_t i, unsigned char *data, struct err *err)
{
    struct segment_piece p = segment_piece(h, i);
    uint64_t hash;
    if (file_read_at(fd, data, p.n + sizeof hash, p.at) != 0)
        return read_failed(err);
    memcpy(&hash, data + p.n, sizeof hash);
    if (hash != piece_hash(h, i, data, p.n))
        return err_set(err, ERR_FORMAT, "is damaged: piece %llu has another checksum", (unsigned long long)i);
    return 0;
}

void segment_name(struct hash_key key, const char *ending, char out[SEGMENT_NAME_BYTES])
{
    snprintf(out, SEGMENT_NAME_BYTES, "%016llx%016llx%s", (unsigned long long)key.high, (unsigned long long)key.low, ending);
}

int segment_name_parse(const char *name, const char *ending, struct hash_key *key)
{
    struct hash_key k = {0};
    for (int i = 0; i < 32; i++) {
        uint64_t *half = i < 16 ? &k.high : &k.low;
        char c = name[i];
        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'))) /* the NUL of a shorter name too */
            return 0;
        *half = *half << 4 | (uint64_t)(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    if (strcmp(name + 32, ending) != 0)
        return 0;
    *key = k;
    return 1;
}
