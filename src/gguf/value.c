/* Typed reads of metadata values. Values are unaligned bytes of the mapping. */
#include <math.h>
#include <string.h>

#include "gguf/gguf.h"
#include "gguf/parse.h"
#include "gguf/quant_decode.h"

static int is_integer(enum gguf_type type)
{
    return type <= GGUF_I32 || type == GGUF_U64 || type == GGUF_I64;
}

int64_t gguf_array_i64(const struct gguf_kv *kv, uint64_t i)
{
    const uint8_t *p = (const uint8_t *)kv->data + i * (uint64_t)gguf_type_bytes(kv->elem_type);
    switch (kv->elem_type) {
    case GGUF_U8:
        return p[0];
    case GGUF_BOOL:
        return p[0] != 0;
    case GGUF_I8:
        return (int8_t)p[0];
    case GGUF_U16:
        return read_u16(p);
    case GGUF_I16:
        return (int16_t)read_u16(p);
    case GGUF_U32:
        return read_u32(p);
    case GGUF_I32:
        return (int32_t)read_u32(p);
    case GGUF_U64:
    case GGUF_I64: {
        uint64_t value = (uint64_t)read_u32(p) | (uint64_t)read_u32(p + 4) << 32;
        return kv->elem_type == GGUF_U64 && value > INT64_MAX ? INT64_MAX : (int64_t)value;
    }
    default:
        return 0;
    }
}

double gguf_array_f64(const struct gguf_kv *kv, uint64_t i)
{
    const uint8_t *p = (const uint8_t *)kv->data;
    if (kv->elem_type == GGUF_F32) {
        float value;
        memcpy(&value, p + 4 * i, 4);
        return (double)value;
    }
    if (kv->elem_type == GGUF_F64) {
        double value;
        memcpy(&value, p + 8 * i, 8);
        return value;
    }
    return (double)gguf_array_i64(kv, i);
}

/* A scalar seen as an array of one, so that one reader serves both. */
static struct gguf_kv as_array(const struct gguf_kv *kv)
{
    struct gguf_kv one = *kv;
    one.elem_type = kv->type;
    return one;
}

static int wrong_type(const struct gguf *g, const struct gguf_kv *kv, const char *expected, struct err *err)
{
    return err_set(err, ERR_FORMAT, "%s: key %.*s is of type %s, expected %s", gguf_path(g), (int)kv->key.len, kv->key.data, gguf_type_name(kv->type), expected);
}

int gguf_get_u64(const struct gguf *g, const char *key, uint64_t min, uint64_t max, uint64_t *out, struct err *err)
{
    const struct gguf_kv *kv = gguf_find(g, key);
    if (!kv)
        return 0;
    if (!is_integer(kv->type))
        return wrong_type(g, kv, "a whole number", err);
    struct gguf_kv one = as_array(kv);
    int64_t value = gguf_array_i64(&one, 0);
    if (kv->type == GGUF_U64 && value == INT64_MAX) /* what does not fit is cut to it */
        return err_set(err, ERR_FORMAT, "%s: key %s is 2^63 - 1 or more, expected %llu to %llu", gguf_path(g), key, (unsigned long long)min, (unsigned long long)max);
    if (value < 0 || (uint64_t)value < min || (uint64_t)value > max)
        return err_set(err, ERR_FORMAT, "%s: key %s is %lld, expected %llu to %llu", gguf_path(g), key, (long long)value, (unsigned long long)min, (unsigned long long)max);
    *out = (uint64_t)value;
    return 1;
}

int gguf_get_f64(const struct gguf *g, const char *key, double *out, struct err *err)
{
    const struct gguf_kv *kv = gguf_find(g, key);
    if (!kv)
        return 0;
    if (kv->type != GGUF_F32 && kv->type != GGUF_F64)
        return wrong_type(g, kv, "f32 or f64", err);
    struct gguf_kv one = as_array(kv);
    double value = gguf_array_f64(&one, 0);
    if (!isfinite(value))
        return err_set(err, ERR_FORMAT, "%s: key %s is not a finite number", gguf_path(g), key);
    *out = value;
    return 1;
}

int gguf_get_bool(const struct gguf *g, const char *key, int *out, struct err *err)
{
    const struct gguf_kv *kv = gguf_find(g, key);
    if (!kv)
        return 0;
    if (kv->type != GGUF_BOOL)
        return wrong_type(g, kv, "bool", err);
    *out = *(const uint8_t *)kv->data != 0;
    return 1;
}

int gguf_get_string(const struct gguf *g, const char *key, struct gguf_string *out, struct err *err)
{
    const struct gguf_kv *kv = gguf_find(g, key);
    if (!kv)
        return 0;
    if (kv->type != GGUF_STRING)
        return wrong_type(g, kv, "string", err);
    *out = (struct gguf_string){(const char *)kv->data + 8, (size_t)(kv->n_bytes - 8)};
    return 1;
}

int gguf_array_next_string(const struct gguf_kv *kv, uint64_t *cursor, struct gguf_string *out)
{
    if (kv->elem_type != GGUF_STRING || *cursor > kv->n_bytes || kv->n_bytes - *cursor < 8)
        return 0;
    const uint8_t *p = (const uint8_t *)kv->data + *cursor;
    uint64_t n = (uint64_t)read_u32(p) | (uint64_t)read_u32(p + 4) << 32;
    if (n > kv->n_bytes - *cursor - 8) /* the file was written to since it was opened */
        return 0;
    *out = (struct gguf_string){(const char *)p + 8, (size_t)n};
    *cursor += 8 + n;
    return 1;
}
