/* The container's grammar. Invariant: nothing is read, multiplied or allocated before the bytes that justify it are known to be there. */
#include "gguf/parse.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "gguf/quant.h"
#include "gguf/quant_decode.h"

#define MAX_COUNT (1u << 20) /* keys, tensors: the largest published model has 1,100 */
#define MAX_KEY 65535
#define MAX_TENSOR_NAME 63
#define MAX_STRING (1u << 30)
#define MAX_ELEMENTS (1ull << 30)
#define MAX_ALIGNMENT 65536
#define MAX_DIM (1ull << 40)
#define MAX_TENSOR_BYTES (1ull << 60) /* so that its elements can be counted in 63 bits as well: no format puts 8 into a byte */
#define LEAST_KV 14     /* length, one letter, type, one byte */
#define LEAST_TENSOR 33 /* length, one letter, dimensions, one of them, type, offset */
#define CUT_OFF "it is cut off: download it again"

struct reader {
    const char *path;
    const uint8_t *data;
    uint64_t at, bytes;
    struct err *err;
};

static int fail(const struct reader *r, int code, const char *what)
{
    return err_set(r->err, code, "%s: %s", r->path, what);
}

static int need(const struct reader *r, uint64_t n, const char *what)
{
    uint64_t left = r->bytes - r->at;
    if (left >= n)
        return 0;
    return err_set(r->err, ERR_FORMAT, "%s: the file ends inside %s, after %llu bytes: at least %llu bytes are missing; " CUT_OFF, r->path, what,
                   (unsigned long long)r->bytes, (unsigned long long)(n - left));
}

/* A count in the file that the rest of the file cannot hold. */
static int too_many(const struct reader *r, const char *what, uint64_t n, const char *things)
{
    return err_set(r->err, ERR_FORMAT, "%s: %s says it has %llu %s, more than the %llu bytes of the file can hold; it is damaged or cut off: download it again", r->path, what,
                   (unsigned long long)n, things, (unsigned long long)r->bytes);
}

static int take_u32(struct reader *r, uint32_t *out, const char *what)
{
    TRY(need(r, 4, what));
    *out = read_u32(r->data + r->at);
    r->at += 4;
    return 0;
}

static int take_u64(struct reader *r, uint64_t *out, const char *what)
{
    TRY(need(r, 8, what));
    *out = (uint64_t)read_u32(r->data + r->at) | (uint64_t)read_u32(r->data + r->at + 4) << 32;
    r->at += 8;
    return 0;
}

static int take_string(struct reader *r, uint64_t max, struct gguf_string *out, const char *what)
{
    uint64_t n;
    TRY(take_u64(r, &n, what));
    if (n > max)
        return err_set(r->err, ERR_LIMIT, "%s: %s has a length of %llu bytes, at most %llu are allowed", r->path, what, (unsigned long long)n, (unsigned long long)max);
    TRY(need(r, n, what));
    *out = (struct gguf_string){(const char *)r->data + r->at, (size_t)n};
    r->at += n;
    return 0;
}

const char *gguf_shown(struct gguf_string s, char out[64])
{
    size_t n = s.len < 60 ? s.len : 60;
    for (size_t i = 0; i < n; i++)
        out[i] = s.data[i] >= 0x20 && s.data[i] < 0x7F ? s.data[i] : '?';
    out[n] = 0;
    return out;
}

/* Keys and tensor names end up on terminals and in logs. */
static int check_name(const struct reader *r, struct gguf_string s, const char *what)
{
    char name[64];
    if (s.len == 0)
        return err_set(r->err, ERR_FORMAT, "%s: %s is empty", r->path, what);
    for (size_t i = 0; i < s.len; i++)
        if ((unsigned char)s.data[i] < 0x20 || s.data[i] == 0x7F)
            return err_set(r->err, ERR_FORMAT, "%s: %s holds a control character (%s)", r->path, what, gguf_shown(s, name));
    return 0;
}

int gguf_type_bytes(uint32_t type)
{
    static const int8_t bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return type < sizeof bytes ? bytes[type] : -1;
}

const char *gguf_type_name(uint32_t type)
{
    static const char *const names[] = {"u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"};
    return type < sizeof names / sizeof *names ? names[type] : "?";
}

/* What a file that is no GGUF file seems to be, and what to do about it. */
static const char *looks_like(const uint8_t *data, uint64_t n)
{
    static const struct {
        const char *bytes;
        int n;
        const char *what;
    } known[] = {
        {"PK\3\4", 4, "it looks like a zip archive: unpack it first"},
        {"\x1F\x8B", 2, "it looks like gzip: unpack it first"},
        {"\x28\xB5\x2F\xFD", 4, "it looks like zstd: unpack it first"},
        {"\x80\x02", 2, "it looks like a Python pickle: convert it to GGUF"},
        {"ggml", 4, "it looks like the older GGML format: convert it again"},
        {"lmgg", 4, "it looks like the older GGML format: convert it again"},
        {"tjgg", 4, "it looks like the older GGML format: convert it again"},
        {"version https://git-lfs", 23, "it is the pointer that Git LFS leaves: run git lfs pull"},
        {"<", 1, "it looks like a web page: the download went wrong"},
        {"{", 1, "it looks like JSON: the download went wrong, or it describes a model that lies elsewhere"},
        {"\0\0\0\0", 4, "it begins with zeros: its download did not finish"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (n >= (uint64_t)known[i].n && memcmp(data, known[i].bytes, (size_t)known[i].n) == 0)
            return known[i].what;
    if (n > 9 && memcmp(data + 8, "{\"", 2) == 0)
        return "it looks like safetensors: convert it to GGUF";
    return n < 4 ? "it is too short to be one: download it again" : "its first bytes are not \"GGUF\"";
}

static int parse_header(struct reader *r, uint32_t *version, uint64_t *n_tensors, uint64_t *n_kv)
{
    if (r->bytes < 4 || memcmp(r->data, "GGUF", 4) != 0)
        return err_set(r->err, ERR_FORMAT, "%s: not a GGUF file: %s", r->path, looks_like(r->data, r->bytes));
    r->at = 4;
    TRY(take_u32(r, version, "the header"));
    if (*version != 0 && (*version & 0xFFFF) == 0)
        return fail(r, ERR_UNSUPPORTED, "is a big-endian GGUF file; only little-endian ones can be used: convert it again");
    if (*version != 2 && *version != 3)
        return err_set(r->err, ERR_UNSUPPORTED, "%s: GGUF version %u is not supported (2 and 3 are): convert it again", r->path, *version);
    TRY(take_u64(r, n_tensors, "the header"));
    TRY(take_u64(r, n_kv, "the header"));
    uint64_t left = r->bytes - r->at;
    if (*n_kv > left / LEAST_KV)
        return too_many(r, "the header", *n_kv, "metadata keys");
    if (*n_tensors > left / LEAST_TENSOR)
        return too_many(r, "the header", *n_tensors, "tensors");
    if (*n_kv > MAX_COUNT || *n_tensors > MAX_COUNT)
        return err_set(r->err, ERR_LIMIT, "%s: the header counts %llu metadata keys and %llu tensors, at most %u of each are allowed", r->path, (unsigned long long)*n_kv,
                       (unsigned long long)*n_tensors, MAX_COUNT);
    return 0;
}

static int parse_array(struct reader *r, struct gguf_kv *kv, const char *what)
{
    uint32_t elem;
    TRY(take_u32(r, &elem, what));
    TRY(take_u64(r, &kv->n, what));
    int bytes = gguf_type_bytes(elem);
    if (bytes < 0)
        return err_set(r->err, ERR_FORMAT, "%s: %s is an array of elements of unknown type %u", r->path, what, elem);
    if (elem == GGUF_ARRAY)
        return err_set(r->err, ERR_UNSUPPORTED, "%s: %s is an array of arrays, which is not supported", r->path, what);
    uint64_t left = r->bytes - r->at, least = bytes ? (uint64_t)bytes : 8;
    if (kv->n > MAX_ELEMENTS || kv->n > left / least)
        return too_many(r, what, kv->n, "elements");
    kv->elem_type = (enum gguf_type)elem;
    kv->data = r->data + r->at;
    if (bytes) {
        r->at += kv->n * (uint64_t)bytes;
        return 0;
    }
    struct gguf_string s;
    for (uint64_t i = 0; i < kv->n; i++)
        TRY(take_string(r, MAX_STRING, &s, what));
    return 0;
}

static int parse_value(struct reader *r, struct gguf_kv *kv, const char *what)
{
    uint32_t type;
    struct gguf_string s;
    TRY(take_u32(r, &type, what));
    int bytes = gguf_type_bytes(type);
    if (bytes < 0)
        return err_set(r->err, ERR_FORMAT, "%s: %s has the unknown value type %u", r->path, what, type);
    kv->type = (enum gguf_type)type;
    kv->n = 1;
    kv->data = r->data + r->at;
    if (type == GGUF_ARRAY) {
        TRY(parse_array(r, kv, what));
    } else if (type == GGUF_STRING) {
        TRY(take_string(r, MAX_STRING, &s, what));
    } else {
        TRY(need(r, (uint64_t)bytes, what));
        if (type == GGUF_BOOL && r->data[r->at] > 1)
            return err_set(r->err, ERR_FORMAT, "%s: %s is a bool with the value %u", r->path, what, r->data[r->at]);
        r->at += (uint64_t)bytes;
    }
    kv->n_bytes = (uint64_t)(r->data + r->at - (const uint8_t *)kv->data);
    return 0;
}

static int parse_kvs(struct reader *r, struct gguf_part *part)
{
    for (size_t i = 0; i < part->n_kv; i++) {
        struct gguf_kv *kv = &part->kv[i];
        char name[64], what[80];
        TRY(take_string(r, MAX_KEY, &kv->key, "a metadata key"));
        TRY(check_name(r, kv->key, "a metadata key"));
        snprintf(what, sizeof what, "key %s", gguf_shown(kv->key, name));
        TRY(parse_value(r, kv, what));
    }
    return 0;
}

static int parse_alignment(const struct reader *r, struct gguf_part *part)
{
    part->alignment = 32;
    for (size_t i = 0; i < part->n_kv; i++) {
        const struct gguf_kv *kv = &part->kv[i];
        if (kv->key.len != 17 || memcmp(kv->key.data, "general.alignment", 17) != 0)
            continue;
        if (kv->type != GGUF_U32)
            return fail(r, ERR_FORMAT, "general.alignment is not a u32");
        uint32_t a = read_u32(kv->data);
        if (a == 0 || (a & (a - 1)) || a > MAX_ALIGNMENT)
            return err_set(r->err, ERR_FORMAT, "%s: general.alignment is %u, expected a power of two up to %d", r->path, a, MAX_ALIGNMENT);
        part->alignment = a;
    }
    return 0;
}

/* Bytes of a tensor from its dimensions, every product checked. */
static int tensor_bytes(const struct reader *r, struct gguf_tensor *t, const char *name)
{
    const struct quant_type *type = quant_type(t->type);
    if (!type)
        return err_set(r->err, ERR_UNSUPPORTED, "%s: tensor %s has type %u, which is unknown or was removed", r->path, name, t->type);
    if (t->ne[0] % (uint64_t)type->block_elems)
        return err_set(r->err, ERR_FORMAT, "%s: tensor %s has rows of %llu elements, not a multiple of the %d of a %s block", r->path, name,
                       (unsigned long long)t->ne[0], type->block_elems, type->name);
    uint64_t bytes = t->ne[0] / (uint64_t)type->block_elems;
    if (size_mul(bytes, (uint64_t)type->block_bytes, &bytes) || size_mul(bytes, t->ne[1], &bytes) || size_mul(bytes, t->ne[2], &bytes) ||
        size_mul(bytes, t->ne[3], &bytes) || bytes > MAX_TENSOR_BYTES)
        return err_set(r->err, ERR_FORMAT, "%s: tensor %s has dimensions whose product overflows", r->path, name);
    t->n_bytes = bytes;
    return 0;
}

static int parse_tensor(struct reader *r, struct gguf_tensor *t)
{
    char name[64];
    uint32_t n_dims;
    TRY(take_string(r, MAX_TENSOR_NAME, &t->name, "a tensor name"));
    TRY(check_name(r, t->name, "a tensor name"));
    gguf_shown(t->name, name);
    TRY(take_u32(r, &n_dims, name));
    if (n_dims < 1 || n_dims > 4)
        return err_set(r->err, ERR_FORMAT, "%s: tensor %s has %u dimensions, expected 1 to 4", r->path, name, n_dims);
    t->n_dims = (int)n_dims;
    for (uint32_t i = 0; i < 4; i++) {
        t->ne[i] = 1;
        if (i < n_dims)
            TRY(take_u64(r, &t->ne[i], name));
        if (t->ne[i] == 0 || t->ne[i] > MAX_DIM)
            return err_set(r->err, ERR_FORMAT, "%s: tensor %s has a dimension of %llu", r->path, name, (unsigned long long)t->ne[i]);
    }
    TRY(take_u32(r, &t->type, name));
    TRY(take_u64(r, &t->offset, name));
    return tensor_bytes(r, t, name);
}

/* Offsets become absolute and are held against the alignment. */
static int place_tensor(const struct reader *r, const struct gguf_part *part, struct gguf_tensor *t)
{
    char name[64];
    uint64_t end;
    if (t->offset % part->alignment)
        return err_set(r->err, ERR_FORMAT, "%s: tensor %s has offset %llu, not a multiple of the alignment %u", r->path, gguf_shown(t->name, name),
                       (unsigned long long)t->offset, part->alignment);
    if (size_add(t->offset, part->data_start, &t->offset) || size_add(t->offset, t->n_bytes, &end))
        return err_set(r->err, ERR_FORMAT, "%s: tensor %s has an offset that overflows", r->path, gguf_shown(t->name, name));
    return 0;
}

/* The file has to reach to the end of the tensor that lies last; what lacks is said once and in full. */
static int map_tensors(const struct reader *r, struct gguf_part *part)
{
    const struct gguf_tensor *last = NULL;
    char name[64];
    for (size_t i = 0; i < part->n_tensors; i++)
        if (!last || part->tensors[i].offset + part->tensors[i].n_bytes > last->offset + last->n_bytes)
            last = &part->tensors[i];
    uint64_t end = last ? last->offset + last->n_bytes : 0;
    if (end > r->bytes)
        return err_set(r->err, ERR_FORMAT, "%s: tensor %s ends at byte %llu but the file has %llu: %llu bytes are missing; " CUT_OFF, r->path, gguf_shown(last->name, name),
                       (unsigned long long)end, (unsigned long long)r->bytes, (unsigned long long)(end - r->bytes));
    for (size_t i = 0; i < part->n_tensors; i++)
        part->tensors[i].data = r->data + part->tensors[i].offset;
    return 0;
}

static int by_offset(const void *a, const void *b)
{
    const struct gguf_tensor *x = *(const struct gguf_tensor *const *)a, *y = *(const struct gguf_tensor *const *)b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static int check_overlaps(const struct reader *r, const struct gguf_part *part)
{
    const struct gguf_tensor **order = mem_alloc_array(MEM_GGUF, part->n_tensors + 1, sizeof *order);
    if (!order)
        return fail(r, ERR_NO_MEMORY, "out of memory for the tensor table");
    for (size_t i = 0; i < part->n_tensors; i++)
        order[i] = &part->tensors[i];
    qsort(order, part->n_tensors, sizeof *order, by_offset);
    int rc = 0;
    for (size_t i = 1; i < part->n_tensors && rc == 0; i++) {
        char a[64], b[64];
        if (order[i - 1]->offset + order[i - 1]->n_bytes > order[i]->offset)
            rc = err_set(r->err, ERR_FORMAT, "%s: tensors %s and %s overlap", r->path, gguf_shown(order[i - 1]->name, a), gguf_shown(order[i]->name, b));
    }
    mem_free(order);
    return rc;
}

static int parse_all(struct reader *r, struct gguf_part *part, int index, int header_only)
{
    uint64_t n_tensors, n_kv;
    TRY(parse_header(r, &part->version, &n_tensors, &n_kv));
    part->kv = mem_alloc_array(MEM_GGUF, n_kv + 1, sizeof *part->kv);
    part->tensors = mem_alloc_array(MEM_GGUF, n_tensors + 1, sizeof *part->tensors);
    if (!part->kv || !part->tensors)
        return fail(r, ERR_NO_MEMORY, "out of memory for the metadata tables");
    part->n_kv = (size_t)n_kv;
    TRY(parse_kvs(r, part));
    TRY(parse_alignment(r, part));
    part->n_tensors = (size_t)n_tensors;
    for (size_t i = 0; i < part->n_tensors; i++) {
        TRY(parse_tensor(r, &part->tensors[i]));
        part->tensors[i].part = index;
    }
    part->data_start = (r->at + part->alignment - 1) / part->alignment * part->alignment;
    for (size_t i = 0; i < part->n_tensors; i++)
        TRY(place_tensor(r, part, &part->tensors[i]));
    TRY(check_overlaps(r, part));
    return header_only ? 0 : map_tensors(r, part);
}

int gguf_part_parse(struct gguf_part *part, int index, int header_only, struct err *err)
{
    struct reader r = {.path = part->file.path, .data = part->file.data, .bytes = part->file.bytes, .err = err};
    int rc = parse_all(&r, part, index, header_only);
    if (rc < 0) {
        mem_free(part->kv);
        mem_free(part->tensors);
        part->kv = NULL;
        part->tensors = NULL;
        part->n_kv = part->n_tensors = 0;
    }
    return rc;
}

void gguf_part_free(struct gguf_part *part)
{
    mem_free(part->kv);
    mem_free(part->tensors);
    file_map_close(&part->file);
    *part = (struct gguf_part){.file.slot = -1};
}
