/* Mapping files. Invariant: a slot's address range is published after its path and withdrawn before it, so that a signal handler never reads a freed path. */
#include "gguf/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "gguf/gguf.h"

#define N_SLOTS 256

static struct {
    _Atomic uintptr_t start, end; /* end 0: free; 1: being filled */
    char path[512];
} slots[N_SLOTS];

static int slot_take(const struct file_map *map)
{
    for (int i = 0; i < N_SLOTS; i++) {
        uintptr_t expected = 0;
        if (!atomic_compare_exchange_strong(&slots[i].end, &expected, 1))
            continue;
        size_t n = strlen(map->path);
        if (n >= sizeof slots[i].path)
            n = sizeof slots[i].path - 1;
        memcpy(slots[i].path, map->path, n);
        slots[i].path[n] = 0;
        atomic_store(&slots[i].start, (uintptr_t)map->data);
        atomic_store(&slots[i].end, (uintptr_t)map->data + map->bytes);
        return i;
    }
    return -1;
}

const char *gguf_path_of_address(const void *address)
{
    uintptr_t at = (uintptr_t)address;
    for (int i = 0; i < N_SLOTS; i++) {
        uintptr_t end = atomic_load(&slots[i].end);
        if (end > 1 && at >= atomic_load(&slots[i].start) && at < end)
            return slots[i].path;
    }
    return NULL;
}

static int open_regular(const char *path, uint64_t *bytes, struct err *err)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        int code = errno == ENOENT ? ERR_NOT_FOUND : ERR_IO;
        const char *hint = errno == ENOENT ? "; check the path" : errno == EACCES ? "; check its permissions" : errno == ELOOP ? "; the link leads back to itself" : "";
        return err_set(err, code, "%s: cannot be opened: %s%s", path, strerror(errno), hint);
    }
    int rc = 0;
    if (fstat(fd, &st) != 0)
        rc = err_set(err, ERR_IO, "%s: %s", path, strerror(errno));
    else if (S_ISDIR(st.st_mode))
        rc = err_set(err, ERR_FORMAT, "%s: is a directory; name the .gguf file in it", path);
    else if (!S_ISREG(st.st_mode))
        rc = err_set(err, ERR_FORMAT, "%s: is not a regular file; name a .gguf file", path);
    else if (st.st_size == 0)
        rc = err_set(err, ERR_FORMAT, "%s: is empty; download it again", path);
    if (rc < 0) {
        close(fd);
        return rc;
    }
    *bytes = (uint64_t)st.st_size;
    return fd;
}

int file_map_open(const char *path, struct file_map *out, struct err *err)
{
    struct file_map map = {.slot = -1};
    int fd = open_regular(path, &map.bytes, err);
    TRY(fd);
    int refused = mem_call_fails(MEM_CALL_MAP);
    void *data = refused ? MAP_FAILED : mmap(NULL, map.bytes, PROT_READ, MAP_SHARED, fd, 0);
    int saved = refused ? ENOMEM : errno;
    close(fd);
    if (data == MAP_FAILED)
        return err_set(err, ERR_IO, "%s: %llu bytes cannot be mapped: %s", path, (unsigned long long)map.bytes, strerror(saved));
    map.data = data;
    map.path = mem_strndup(MEM_GGUF, path, strlen(path));
    if (!map.path) {
        munmap(data, map.bytes);
        return err_set(err, ERR_NO_MEMORY, "%s: out of memory", path);
    }
    map.slot = slot_take(&map);
    *out = map;
    return 0;
}

void file_map_close(struct file_map *map)
{
    if (!map->data)
        return;
    if (map->slot >= 0)
        atomic_store(&slots[map->slot].end, 0);
    munmap((void *)map->data, map->bytes);
    mem_free(map->path);
    *map = (struct file_map){.slot = -1};
}
