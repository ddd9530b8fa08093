/* Hashing, by xxHash. */
#ifndef BASE_HASH_H
#define BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

uint64_t hash_bytes(const void *data, size_t n, uint64_t seed);

/* 128 bits: so many that two different inputs of honest origin never meet. */
struct hash_key {
    uint64_t low, high;
};

static inline int hash_key_equal(struct hash_key a, struct hash_key b)
{
    return a.low == b.low && a.high == b.high;
}

/* Hashes what is added piece by piece; the key may be asked for at any point and is that of everything so far. On the stack: it is aligned to 64. */
struct hash_stream {
    _Alignas(64) unsigned char opaque[576];
};

void hash_stream_begin(struct hash_stream *h);
void hash_stream_add(struct hash_stream *h, const void *data, size_t n);
struct hash_key hash_stream_key(const struct hash_stream *h);

#endif
