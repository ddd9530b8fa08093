/* What became of conversations on disk. */
#ifndef ENGINE_STORE_STATS_H
#define ENGINE_STORE_STATS_H

#include <stdint.h>

struct store_stats {
    uint64_t budget_bytes, bytes;
    uint64_t n_segments;         /* on disk, other models' too */
    uint64_t n_written, n_failed; /* segments saved; segments that were to be and could not */
    uint64_t n_loaded;           /* whole conversations */
    uint64_t n_ignored;          /* files that were not what they should be */
    uint64_t n_thinned, n_evicted; /* segments that gave up their recurrent state; all of themselves */
};

#endif
