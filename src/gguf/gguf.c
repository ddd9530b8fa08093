/* Opening a model's file or all its parts, and looking things up. Invariant: keys are unique within a part, tensor names over all parts. */
#include "gguf/gguf.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/mem.h"
#include "gguf/parse.h"
#include "gguf/quant_decode.h"

#define MAX_PARTS 255

struct index { /* open addressing over entries of a table; 0 = free, else 1 + entry */
    uint32_t *slots;
    size_t mask;
    uint64_t seed; /* differs from run to run, so that no file can be made whose names all meet in one slot */
};

struct gguf {
    char *path;
    struct gguf_part *parts;
    int n_parts;
    struct gguf_tensor *tensors;
    size_t n_tensors;
    struct index keys, names;
};

static struct gguf_string key_at(const void *table, size_t i)
{
    return ((const struct gguf_kv *)table)[i].key;
}

static struct gguf_string name_at(const void *table, size_t i)
{
    return ((const struct gguf_tensor *)table)[i].name;
}

typedef struct gguf_string string_at(const void *table, size_t i);

/* Slot of s: the one that holds it, or the free one where it belongs. */
static uint32_t *index_slot(const struct index *index, const void *table, string_at *at, struct gguf_string s)
{
    size_t i = hash_bytes(s.data, s.len, index->seed) & index->mask;
    for (; index->slots[i]; i = (i + 1) & index->mask) {
        struct gguf_string other = at(table, index->slots[i] - 1);
        if (other.len == s.len && memcmp(other.data, s.data, s.len) == 0)
            break;
    }
    return &index->slots[i];
}

/* Returns the first entry that occurs twice in *twice, or -1 there. */
static int index_build(struct index *index, const void *table, size_t n, string_at *at, long *twice)
{
    size_t size = 16;
    while (size < 2 * n)
        size *= 2;
    index->slots = mem_alloc_array(MEM_GGUF, size, sizeof *index->slots);
    if (!index->slots)
        return ERR_NO_MEMORY;
    index->mask = size - 1;
    index->seed = (uintptr_t)index->slots >> 4;
    *twice = -1;
    for (size_t i = 0; i < n; i++) {
        uint32_t *slot = index_slot(index, table, at, at(table, i));
        if (*slot) {
            *twice = (long)i;
            return 0;
        }
        *slot = (uint32_t)i + 1;
    }
    return 0;
}

static int find_u64(const struct gguf_part *part, const char *key, uint64_t *out)
{
    size_t n = strlen(key);
    for (size_t i = 0; i < part->n_kv; i++) {
        const struct gguf_kv *kv = &part->kv[i];
        if (kv->key.len != n || memcmp(kv->key.data, key, n) != 0)
            continue;
        if (kv->type == GGUF_ARRAY || kv->type == GGUF_STRING || kv->type == GGUF_BOOL || kv->type == GGUF_F32 || kv->type == GGUF_F64)
            return -1;
        int64_t value = gguf_array_i64(&(struct gguf_kv){.elem_type = kv->type, .data = kv->data}, 0);
        if (value < 0)
            return -1;
        *out = (uint64_t)value;
        return 1;
    }
    return 0;
}

/* The name of part `index` of `count`, from the name of another part: PREFIX-00002-of-00003.gguf. */
static int sibling_path(const char *path, int index, int count, char *out, size_t out_bytes)
{
    size_t n = strlen(path);
    const size_t tail = strlen("-00001-of-00003.gguf");
    if (n <= tail || n >= out_bytes || strcmp(path + n - 5, ".gguf") != 0 || path[n - tail] != '-' || memcmp(path + n - 14, "-of-", 4) != 0)
        return ERR_FORMAT;
    memcpy(out, path, n - tail);
    snprintf(out + n - tail, out_bytes - (n - tail), "-%05d-of-%05d.gguf", index + 1, count);
    return 0;
}

/* Opens the sibling beside the name as typed; where there is none, beside what the name links to. */
static int open_sibling(const char *path, int index, int count, struct file_map *out, struct err *err)
{
    char beside[PATH_MAX], target[PATH_MAX], name[PATH_MAX];
    int named = sibling_path(path, index, count, beside, sizeof beside) == 0;
    int rc = named ? file_map_open(beside, out, err) : ERR_NOT_FOUND;
    if (rc != ERR_NOT_FOUND)
        return rc;
    if (realpath(path, target) && sibling_path(target, index, count, name, sizeof name) == 0) {
        rc = file_map_open(name, out, err);
        if (rc != ERR_NOT_FOUND)
            return rc;
        if (!named)
            return err_set(err, ERR_NOT_FOUND, "%s: part %d of the split file (split.count %d) is missing: %s was not found", path, index + 1, count, name);
    }
    if (named)
        return err_set(err, ERR_NOT_FOUND, "%s: part %d of the split file (split.count %d) is missing: %s was not found", path, index + 1, count, beside);
    return err_set(err, ERR_FORMAT, "%s: is one part of a split file (split.count %d) but is not named like one: give it back its name NAME-00001-of-%05d.gguf", path, count, count);
}

static int check_part(const struct gguf_part *part, int index, int count, struct err *err)
{
    uint64_t no, n;
    if (find_u64(part, "split.no", &no) != 1 || no != (uint64_t)index)
        return err_set(err, ERR_FORMAT, "%s: split.no is not %d", part->file.path, index);
    if (find_u64(part, "split.count", &n) != 1 || n != (uint64_t)count)
        return err_set(err, ERR_FORMAT, "%s: split.count is not %d as in the other parts", part->file.path, count);
    return 0;
}

static int open_parts(struct gguf *g, int header_only, struct err *err)
{
    struct gguf_part first = {.file.slot = -1};
    uint64_t count = 1, no = 0;
    int rc = file_map_open(g->path, &first.file, err);
    TRY(rc);
    rc = gguf_part_parse(&first, 0, header_only, err);
    if (rc == 0 && (find_u64(&first, "split.count", &count) < 0 || find_u64(&first, "split.no", &no) < 0))
        rc = err_set(err, ERR_FORMAT, "%s: split.count or split.no is not a whole number", g->path);
    if (rc == 0 && (count > MAX_PARTS || (count > 1 && no >= count)))
        rc = err_set(err, ERR_FORMAT, "%s: split.no %llu of split.count %llu makes no sense (at most %d parts)", g->path, (unsigned long long)no, (unsigned long long)count, MAX_PARTS);
    if (count == 0)
        count = 1;
    if (rc == 0) {
        g->parts = mem_alloc_array(MEM_GGUF, (size_t)count, sizeof *g->parts);
        if (!g->parts)
            rc = err_set(err, ERR_NO_MEMORY, "%s: out of memory", g->path);
    }
    if (rc < 0) {
        gguf_part_free(&first);
        return rc;
    }
    g->n_parts = (int)count;
    int mine = count > 1 ? (int)no : 0;
    for (int i = 0; i < g->n_parts; i++)
        g->parts[i].file.slot = -1;
    for (size_t i = 0; i < first.n_tensors; i++)
        first.tensors[i].part = mine;
    g->parts[mine] = first;
    for (int i = 0; i < g->n_parts; i++) {
        struct gguf_part *part = &g->parts[i];
        if (i != mine) {
            TRY(open_sibling(g->path, i, g->n_parts, &part->file, err));
            TRY(gguf_part_parse(part, i, header_only, err));
        }
        if (g->n_parts > 1)
            TRY(check_part(part, i, g->n_parts, err));
    }
    return 0;
}

static int join_tensors(struct gguf *g, struct err *err)
{
    size_t n = 0;
    uint64_t expected = 0;
    for (int i = 0; i < g->n_parts; i++)
        n += g->parts[i].n_tensors;
    if (n == 0 && !(g->parts[0].n_kv))
        return err_set(err, ERR_FORMAT, "%s: holds no metadata and no tensors", g->path);
    int counted = g->n_parts > 1 ? find_u64(&g->parts[0], "split.tensors.count", &expected) : 0;
    if (counted < 0)
        return err_set(err, ERR_FORMAT, "%s: split.tensors.count is not a whole number", g->path);
    if (counted && expected != n)
        return err_set(err, ERR_FORMAT, "%s: split.tensors.count is %llu, the parts hold %zu", g->path, (unsigned long long)expected, n);
    g->tensors = mem_alloc_array(MEM_GGUF, n + 1, sizeof *g->tensors);
    if (!g->tensors)
        return err_set(err, ERR_NO_MEMORY, "%s: out of memory for %zu tensors", g->path, n);
    for (int i = 0; i < g->n_parts; i++) {
        memcpy(g->tensors + g->n_tensors, g->parts[i].tensors, g->parts[i].n_tensors * sizeof *g->tensors);
        g->n_tensors += g->parts[i].n_tensors;
    }
    return 0;
}

static int build_indices(struct gguf *g, struct err *err)
{
    long twice;
    char name[64];
    if (index_build(&g->keys, g->parts[0].kv, g->parts[0].n_kv, key_at, &twice) < 0)
        return err_set(err, ERR_NO_MEMORY, "%s: out of memory", g->path);
    if (twice >= 0)
        return err_set(err, ERR_FORMAT, "%s: key %s occurs twice", g->path, gguf_shown(g->parts[0].kv[twice].key, name));
    if (index_build(&g->names, g->tensors, g->n_tensors, name_at, &twice) < 0)
        return err_set(err, ERR_NO_MEMORY, "%s: out of memory", g->path);
    if (twice >= 0)
        return err_set(err, ERR_FORMAT, "%s: tensor %s occurs twice", g->path, gguf_shown(g->tensors[twice].name, name));
    return 0;
}

int gguf_open(const char *path, unsigned flags, struct gguf **out, struct err *err)
{
    struct gguf *g = mem_alloc(MEM_GGUF, sizeof *g);
    if (!g)
        return err_set(err, ERR_NO_MEMORY, "%s: out of memory", path);
    int rc = 0;
    g->path = mem_strndup(MEM_GGUF, path, strlen(path));
    if (!g->path)
        rc = err_set(err, ERR_NO_MEMORY, "%s: out of memory", path);
    if (rc == 0)
        rc = open_parts(g, (flags & GGUF_HEADER_ONLY) != 0, err);
    if (rc == 0)
        rc = join_tensors(g, err);
    if (rc == 0)
        rc = build_indices(g, err);
    if (rc < 0)
        gguf_close(g);
    else
        *out = g;
    return rc;
}

void gguf_close(struct gguf *g)
{
    if (!g)
        return;
    for (int i = 0; i < g->n_parts; i++)
        gguf_part_free(&g->parts[i]);
    mem_free(g->parts);
    mem_free(g->tensors);
    mem_free(g->keys.slots);
    mem_free(g->names.slots);
    mem_free(g->path);
    mem_free(g);
}

const char *gguf_path(const struct gguf *g)
{
    return g->path;
}

int gguf_n_parts(const struct gguf *g)
{
    return g->n_parts;
}

const char *gguf_part_path(const struct gguf *g, int part)
{
    return g->parts[part].file.path;
}

uint64_t gguf_file_bytes(const struct gguf *g)
{
    uint64_t n = 0;
    for (int i = 0; i < g->n_parts; i++)
        n += g->parts[i].file.bytes;
    return n;
}

uint32_t gguf_version(const struct gguf *g)
{
    return g->parts[0].version;
}

uint32_t gguf_alignment(const struct gguf *g)
{
    return g->parts[0].alignment;
}

size_t gguf_n_kv(const struct gguf *g)
{
    return g->parts[0].n_kv;
}

const struct gguf_kv *gguf_kv_at(const struct gguf *g, size_t i)
{
    return &g->parts[0].kv[i];
}

const struct gguf_kv *gguf_find(const struct gguf *g, const char *key)
{
    uint32_t slot = *index_slot(&g->keys, g->parts[0].kv, key_at, (struct gguf_string){key, strlen(key)});
    return slot ? &g->parts[0].kv[slot - 1] : NULL;
}

size_t gguf_n_tensors(const struct gguf *g)
{
    return g->n_tensors;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i)
{
    return &g->tensors[i];
}

const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name)
{
    uint32_t slot = *index_slot(&g->names, g->tensors, name_at, (struct gguf_string){name, strlen(name)});
    return slot ? &g->tensors[slot - 1] : NULL;
}
