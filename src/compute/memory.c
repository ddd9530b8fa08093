/* Reading limits. Invariant: what cannot be read limits nothing, except where no figure at all is left. */
#include "compute/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TEXT_BYTES 16384
#define PATH_BYTES 4096

/* A kernel file as text; "" when there is none. */
static const char *read_text(char out[TEXT_BYTES], const char *path)
{
    size_t n = 0;
    FILE *file = fopen(path, "r");
    if (file) {
        n = fread(out, 1, TEXT_BYTES - 1, file);
        fclose(file);
    }
    out[n] = 0;
    return out;
}

/* The number at the start of a text: UINT64_MAX for "max" and for what is none. */
static uint64_t parse_number(const char *text)
{
    return *text >= '0' && *text <= '9' ? strtoull(text, NULL, 10) : UINT64_MAX;
}

int memory_field(const char *text, const char *name, uint64_t *out)
{
    size_t n = strlen(name);
    for (const char *line = text; line && *line; line = strchr(line, '\n'), line += line != NULL) {
        if (strncmp(line, name, n) != 0 || (line[n] != ':' && line[n] != ' '))
            continue;
        const char *at = line + n + 1;
        char *end;
        at += strspn(at, " \t");
        if (*at < '0' || *at > '9')
            return 0;
        uint64_t value = strtoull(at, &end, 10);
        *out = strncmp(end, " kB", 3) == 0 ? value * 1024 : value;
        return 1;
    }
    return 0;
}

/* Is `word` one of the comma-separated names of list[0, n)? */
static int names_controller(const char *list, size_t n, const char *word)
{
    size_t len = strlen(word);
    for (size_t i = 0; i <= n;) {
        size_t end = i;
        while (end < n && list[end] != ',')
            end++;
        if (end - i == len && memcmp(list + i, word, len) == 0)
            return 1;
        i = end + 1;
    }
    return 0;
}

int memory_cgroup_path(const char *text, const char *controller, char *out, size_t n)
{
    for (const char *line = text; line && *line; line = strchr(line, '\n'), line += line != NULL) {
        size_t len = strcspn(line, "\n");
        const char *first = memchr(line, ':', len), *second = first ? memchr(first + 1, ':', len - (size_t)(first + 1 - line)) : NULL;
        if (!second || !names_controller(first + 1, (size_t)(second - first - 1), controller))
            continue;
        size_t path = len - (size_t)(second + 1 - line);
        if (path >= n || second[1] != '/' || strncmp(second + 1, "/..", 3) == 0)
            return 0;
        memcpy(out, second + 1, path);
        out[path] = 0;
        if (path == 1)
            out[0] = 0;
        return 1;
    }
    return 0;
}

struct cgroup_files {
    const char *controller, *mount, *limit, *usage, *inactive, *active, *source;
};

/* The limit of one group against what it cannot give up: file pages that are only cached go when memory is needed. */
static void narrow(const char *group, const struct cgroup_files *files, struct device_memory *m)
{
    char path[PATH_BYTES + 64], text[TEXT_BYTES];
    uint64_t cached = 0, inactive = 0, active = 0;
    snprintf(path, sizeof path, "%s/%s", group, files->limit);
    uint64_t limit = parse_number(read_text(text, path));
    snprintf(path, sizeof path, "%s/%s", group, files->usage);
    uint64_t used = parse_number(read_text(text, path));
    if (limit == UINT64_MAX)
        return;
    snprintf(path, sizeof path, "%s/memory.stat", group);
    read_text(text, path);
    if (memory_field(text, files->inactive, &inactive) && memory_field(text, files->active, &active))
        cached = inactive + active;
    used = used == UINT64_MAX ? 0 : used > cached ? used - cached : 0;
    uint64_t left = limit > used ? limit - used : 0;
    if (limit < m->memory_total)
        m->memory_total = limit;
    if (left < m->memory_free) {
        m->memory_free = left;
        m->memory_source = files->source;
    }
}

/* Every group from this process's own up to the mount: each may be the one that is short. */
static void narrow_by_groups(const char *root, const struct cgroup_files *files, struct device_memory *m)
{
    char path[PATH_BYTES], group[PATH_BYTES], text[TEXT_BYTES], below[PATH_BYTES / 2] = "";
    snprintf(path, sizeof path, "%.1000s/proc/self/cgroup", root);
    if (!memory_cgroup_path(read_text(text, path), files->controller, below, sizeof below))
        below[0] = 0; /* what is mounted is all that can be seen */
    for (;;) {
        snprintf(group, sizeof group, "%.1000s%s%s", root, files->mount, below);
        narrow(group, files, m);
        char *slash = strrchr(below, '/');
        if (!slash)
            return;
        *slash = 0;
    }
}

static void narrow_by_address(const char *root, struct device_memory *m)
{
    char path[PATH_BYTES], text[TEXT_BYTES];
    if (m->address_limit == UINT64_MAX)
        return;
    snprintf(path, sizeof path, "%.1000s/proc/self/statm", root);
    uint64_t pages = parse_number(read_text(text, path)), used = pages == UINT64_MAX ? 0 : pages * (uint64_t)sysconf(_SC_PAGESIZE);
    m->address_free = m->address_limit > used ? m->address_limit - used : 0;
    if (m->address_free < m->free) {
        m->free = m->address_free;
        m->source = DEVICE_ADDRESS_SOURCE;
    }
    if (m->address_limit < m->total)
        m->total = m->address_limit;
}

int memory_survey(const char *root, uint64_t address_limit, struct device_memory *out, struct err *err)
{
    static const struct cgroup_files versions[] = {
        {"", "/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file", "active_file", "cgroup memory.max"},
        {"memory", "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "total_active_file", "cgroup memory.limit_in_bytes"},
    };
    char path[PATH_BYTES], text[TEXT_BYTES];
    struct device_memory m = {.memory_source = "MemAvailable", .address_limit = address_limit, .address_free = UINT64_MAX};
    snprintf(path, sizeof path, "%.1000s/proc/meminfo", root);
    read_text(text, path);
    if (!memory_field(text, "MemTotal", &m.memory_total) || !memory_field(text, "MemAvailable", &m.memory_free) || !m.memory_total)
        return err_set(err, ERR_IO, "/proc/meminfo does not tell how much memory is free");
    for (int i = 0; i < 2; i++)
        narrow_by_groups(root, &versions[i], &m);
    m.total = m.memory_total;
    m.free = m.memory_free;
    m.source = m.memory_source;
    narrow_by_address(root, &m);
    *out = m;
    return 0;
}
