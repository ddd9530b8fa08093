#define XXH_STATIC_LINKING_ONLY /* the size of a state */
#include "base/hash.h"

#include <xxhash.h>

_Static_assert(sizeof(XXH3_state_t) <= sizeof(struct hash_stream), "a stream holds the library's state");

uint64_t hash_bytes(const void *data, size_t n, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, n, seed);
}

void hash_stream_begin(struct hash_stream *h)
{
    XXH3_INITSTATE((XXH3_state_t *)h);
    XXH3_128bits_reset((XXH3_state_t *)h);
}

void hash_stream_add(struct hash_stream *h, const void *data, size_t n)
{
    if (n)
        XXH3_128bits_update((XXH3_state_t *)h, data, n);
}

struct hash_key hash_stream_key(const struct hash_stream *h)
{
    XXH128_hash_t hash = XXH3_128bits_digest((const XXH3_state_t *)h);
    return (struct hash_key){.low = hash.low64, .high = hash.high64};
}
