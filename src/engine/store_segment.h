/* The file of one segment: a header, the token ids, then the rows and the recurrent state in pieces, each followed by its checksum. Nothing read from it is used before it was checked
 * against the file's size, and no piece before its checksum was. A thin one was cut off behind the rows: others build on it, but nothing can go on from its end. */
#ifndef ENGINE_STORE_SEGMENT_H
#define ENGINE_STORE_SEGMENT_H

#include "base/hash.h"
#include "engine/store.h"

#define SEGMENT_VERSION 1
#define SEGMENT_NAME_BYTES 40

struct segment_header {          /* as in the file, little-endian */
    char magic[8];
    uint32_t version;
    uint32_t n_arrays;
    struct hash_key model, key, parent; /* parent: zero when from is 0 */
    int64_t from, to;
    uint64_t row_bytes, recurrent_bytes;
    uint64_t reserved;           /* zero */
    uint64_t hash;               /* of what stands above */
};

/* Fills in magic, version and hash. */
void segment_header_seal(struct segment_header *h);
/* Checks the header and that a file of so many bytes is what it describes: 0, or 1 when it is thin. The sentence goes on from the file's name. */
int segment_header_check(const struct segment_header *h, uint64_t file_bytes, struct err *err) MUST_CHECK;

/* Of a whole one and of a thin one; 0 when the sizes are absurd, or when there is no state that could be cut off. */
uint64_t segment_file_bytes(const struct segment_header *h);
uint64_t segment_thin_bytes(const struct segment_header *h);
/* Pieces of rows come first, those of the recurrent state behind them. */
uint64_t segment_n_row_pieces(const struct segment_header *h);
uint64_t segment_n_pieces(const struct segment_header *h);

struct segment_piece {
    int is_recurrent;
    uint64_t offset;             /* within the rows or the recurrent state */
    size_t n;
    uint64_t at;                 /* in the file; 8 bytes of checksum follow the n */
};
struct segment_piece segment_piece(const struct segment_header *h, uint64_t i);

#define SEGMENT_BUFFER_BYTES (STORE_PIECE_BYTES + 8)

/* data: SEGMENT_BUFFER_BYTES, of which the piece's n are filled. Writing returns -1 with errno. */
int segment_write_head(int fd, const struct segment_header *h, const int32_t *ids);
int segment_write_piece(int fd, const struct segment_header *h, uint64_t i, unsigned char *data);

/* Opens and checks the header; returns the descriptor, and *is_thin. ERR_NOT_FOUND, ERR_IO, ERR_FORMAT, and ERR_NO_MEMORY, which is not the file's fault; sentences go on from the file's name. */
int segment_open(int dir, const char *name, struct segment_header *out, int *is_thin, struct err *err) MUST_CHECK;
/* Are these the tokens [from, to)? buffer: SEGMENT_BUFFER_BYTES. */
int segment_check_ids(int fd, const struct segment_header *h, const int32_t *ids, void *buffer, struct err *err) MUST_CHECK;
int segment_read_piece(int fd, const struct segment_header *h, uint64_t i, unsigned char *data, struct err *err) MUST_CHECK;

/* 32 hexadecimal digits and the ending. */
#define SEGMENT_ENDING ".seg"
#define SEGMENT_UNFINISHED ".tmp"
void segment_name(struct hash_key key, const char *ending, char out[SEGMENT_NAME_BYTES]);
/* 1 and the key when this is such a name. */
int segment_name_parse(const char *name, const char *ending, struct hash_key *key);

#endif
