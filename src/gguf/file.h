/* One mapped file of a model, and the table of live mappings that a SIGBUS handler may read. */
#ifndef GGUF_FILE_H
#define GGUF_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct file_map {
    char *path;
    const uint8_t *data;
    uint64_t bytes;
    int slot;      /* in the table of live mappings, or -1 */
};

/* Maps a regular file read-only; a directory, FIFO, link loop, unreadable or empty file is refused with a sentence that starts with its path. */
int file_map_open(const char *path, struct file_map *out, struct err *err) MUST_CHECK;
void file_map_close(struct file_map *map);

#endif
