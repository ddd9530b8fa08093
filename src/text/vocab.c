/* Loading the words of a model. Invariant: every merge's parts and product are tokens, every byte has one. */
#include "text/vocab.h"

#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "text/vocab_internal.h"

#define MAX_TOKENS (1 << 24)
#define MAX_TOKEN_BYTES 4096 /* as stored */

struct loader {
    const struct gguf *g;
    struct vocab *v;
    struct err *err;
    int16_t byte_of[512]; /* code point of the byte map -> byte, -1 = none */
    int code_of[256];
};

static int fail(const struct loader *l, int code, const char *key, const char *what)
{
    return err_set(l->err, code, "%s: key %s %s", gguf_path(l->g), key, what);
}

/* GPT-2's map: printable bytes stand for themselves, the others are numbered from U+0100 on. */
static void build_byte_map(struct loader *l)
{
    int next = 256;
    memset(l->byte_of, -1, sizeof l->byte_of);
    for (int b = 0; b < 256; b++) {
        int printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
        l->code_of[b] = printable ? b : next++;
        l->byte_of[l->code_of[b]] = (int16_t)b;
    }
}

/* Bytes of a byte-mapped token; a code point outside the map stands for itself. Returns how many. */
static uint32_t decode_token(const struct loader *l, const char *text, uint32_t n, char *out)
{
    uint32_t used = 0;
    for (uint32_t i = 0; i < n;) {
        uint32_t c = 0;
        int length = utf8_decode(text + i, n - i, &c);
        if (length > 0 && c < 512 && l->byte_of[c] >= 0) {
            out[used++] = (char)l->byte_of[c];
        } else {
            uint32_t step = length > 0 ? (uint32_t)length : 1;
            memcpy(out + used, text + i, step);
            used += step;
            i += step;
            continue;
        }
        i += (uint32_t)length;
    }
    return used;
}

static const struct gguf_kv *find_array(const struct loader *l, const char *key, int required, int *rc)
{
    const struct gguf_kv *kv = gguf_find(l->g, key);
    *rc = 0;
    if (!kv && required)
        *rc = fail(l, ERR_FORMAT, key, "is missing: the file holds no vocabulary");
    else if (kv && kv->type != GGUF_ARRAY)
        *rc = fail(l, ERR_FORMAT, key, "is not an array");
    return *rc < 0 ? NULL : kv;
}

static int load_tokens(struct loader *l)
{
    static const char key[] = "tokenizer.ggml.tokens";
    struct vocab *v = l->v;
    struct gguf_string s;
    uint64_t cursor = 0, total = 0;
    int rc;
    const struct gguf_kv *kv = find_array(l, key, 1, &rc);
    TRY(rc);
    if (kv->elem_type != GGUF_STRING || kv->n == 0 || kv->n > MAX_TOKENS)
        return fail(l, ERR_FORMAT, key, kv->elem_type != GGUF_STRING ? "is not an array of strings" : "has no tokens, or too many");
    v->n_tokens = (int32_t)kv->n;
    v->tokens = mem_alloc_array(MEM_TEXT, (size_t)kv->n, sizeof *v->tokens);
    v->decoded = mem_alloc(MEM_TEXT, (size_t)kv->n_bytes + 1); /* decoding never makes a token longer */
    if (!v->tokens || !v->decoded)
        return fail(l, ERR_NO_MEMORY, key, "does not fit the memory");
    for (int32_t i = 0; gguf_array_next_string(kv, &cursor, &s); i++) {
        if (s.len > MAX_TOKEN_BYTES)
            return err_set(l->err, ERR_LIMIT, "%s: key %s: token %d has %zu bytes; the limit is %d", gguf_path(l->g), key, i, s.len, MAX_TOKEN_BYTES);
        v->tokens[i] = (struct token){.stored = s.data, .n_stored = (uint32_t)s.len, .kind = TOKEN_NORMAL, .bytes = v->decoded + total};
        v->tokens[i].n_bytes = decode_token(l, s.data, (uint32_t)s.len, v->decoded + total);
        total += v->tokens[i].n_bytes;
    }
    return 0;
}

static int load_kinds(struct loader *l)
{
    static const char key[] = "tokenizer.ggml.token_type";
    int rc;
    const struct gguf_kv *kv = find_array(l, key, 1, &rc);
    TRY(rc);
    if (kv->elem_type != GGUF_I32 && kv->elem_type != GGUF_U32)
        return fail(l, ERR_FORMAT, key, "is not an array of 32-bit numbers");
    if (kv->n != (uint64_t)l->v->n_tokens)
        return err_set(l->err, ERR_FORMAT, "%s: key %s has %llu entries for %d tokens", gguf_path(l->g), key, (unsigned long long)kv->n, l->v->n_tokens);
    for (int32_t i = 0; i < l->v->n_tokens; i++) {
        int64_t kind = gguf_array_i64(kv, (uint64_t)i);
        struct token *t = &l->v->tokens[i];
        t->kind = (uint8_t)(kind >= TOKEN_NORMAL && kind <= TOKEN_BYTE ? kind : TOKEN_UNUSED);
        if (t->kind == TOKEN_CONTROL || t->kind == TOKEN_USER_DEFINED) { /* stored as raw text */
            t->bytes = t->stored;
            t->n_bytes = t->n_stored;
        }
    }
    return 0;
}

/* The slot of a text, or the free one where it belongs. A slot holds the upper half of the hash and id + 1: other tokens of its chain are rarely looked at. */
static uint64_t *slot_of(const struct vocab *v, const char *text, size_t len, uint64_t *hash)
{
    *hash = hash_bytes(text, len, 0) & ~(uint64_t)UINT32_MAX;
    size_t i = (size_t)(*hash >> 32) & v->slot_mask;
    for (; v->slots[i]; i = (i + 1) & v->slot_mask) {
        if ((v->slots[i] ^ *hash) >> 32)
            continue;
        const struct token *t = &v->tokens[(uint32_t)v->slots[i] - 1];
        if (t->n_stored == len && memcmp(t->stored, text, len) == 0)
            break;
    }
    return &v->slots[i];
}

static int build_text_index(struct loader *l)
{
    struct vocab *v = l->v;
    size_t size = 16;
    while (size < 2 * (size_t)v->n_tokens)
        size *= 2;
    v->slots = mem_alloc_array(MEM_TEXT, size, sizeof *v->slots);
    if (!v->slots)
        return fail(l, ERR_NO_MEMORY, "tokenizer.ggml.tokens", "does not fit the memory");
    v->slot_mask = size - 1;
    for (int32_t i = 0; i < v->n_tokens; i++) {
        uint64_t hash, *slot = slot_of(v, v->tokens[i].stored, v->tokens[i].n_stored, &hash);
        if (*slot)
            v->tokens[i].is_repeated = 1; /* the first id stands for the text */
        else
            *slot = hash | ((uint32_t)i + 1);
    }
    for (int b = 0; b < 256; b++) {
        char text[4];
        int n = utf8_encode((uint32_t)l->code_of[b], text);
        v->byte_ids[b] = vocab_find(v, text, (size_t)n);
        if (v->byte_ids[b] < 0 || v->tokens[v->byte_ids[b]].kind == TOKEN_CONTROL)
            return err_set(l->err, ERR_FORMAT, "%s: key tokenizer.ggml.tokens has no plain token for byte 0x%02X", gguf_path(l->g), b);
    }
    return 0;
}

static struct merge *merge_slot(const struct vocab *v, uint64_t pair)
{
    size_t i = (size_t)(pair * 0x9E3779B97F4A7C15u >> 20) & v->merge_mask;
    while (v->merges[i].pair != EMPTY_PAIR && v->merges[i].pair != pair)
        i = (i + 1) & v->merge_mask;
    return &v->merges[i];
}

const struct merge *vocab_merge(const struct vocab *v, int32_t left, int32_t right)
{
    const struct merge *m = merge_slot(v, (uint64_t)(uint32_t)left << 32 | (uint32_t)right);
    return m->pair == EMPTY_PAIR ? NULL : m;
}

static int merge_error(const struct loader *l, uint64_t rank, struct gguf_string s, const char *what)
{
    return err_set(l->err, ERR_FORMAT, "%s: key tokenizer.ggml.merges: entry %llu \"%.*s\" %s", gguf_path(l->g), (unsigned long long)rank, (int)(s.len < 60 ? s.len : 60), s.data, what);
}

/* Files list the products of the merges in the order of the merges, so the one after the last is tried before the table. */
static int32_t find_product(const struct vocab *v, int32_t guess, const char *text, size_t len)
{
    if (guess < v->n_tokens && !v->tokens[guess].is_repeated && v->tokens[guess].n_stored == len && memcmp(v->tokens[guess].stored, text, len) == 0)
        return guess;
    return vocab_find(v, text, len);
}

static int add_merge(struct loader *l, uint64_t rank, struct gguf_string s, int32_t *last_product)
{
    const struct vocab *v = l->v;
    const char *space = s.len > 1 ? memchr(s.data + 1, ' ', s.len - 1) : NULL;
    char joined[MAX_TOKEN_BYTES];
    if (!space)
        return merge_error(l, rank, s, "has no space between two tokens");
    size_t a = (size_t)(space - s.data), b = s.len - a - 1;
    if (a > sizeof joined || b > sizeof joined - a)
        return merge_error(l, rank, s, "is too long");
    memcpy(joined, s.data, a);
    memcpy(joined + a, space + 1, b);
    int32_t left = vocab_find(v, s.data, a), right = vocab_find(v, space + 1, b), product = find_product(v, *last_product + 1, joined, a + b);
    if (left < 0 || right < 0 || product < 0)
        return merge_error(l, rank, s, product < 0 && left >= 0 && right >= 0 ? "makes no token" : "names an unknown token");
    *last_product = product;
    if (v->tokens[product].kind == TOKEN_CONTROL) /* plain text never becomes one: such a merge is left out (B119) */
        return 0;
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    struct merge *m = merge_slot(v, pair);
    if (m->pair == EMPTY_PAIR)
        *m = (struct merge){.pair = pair, .rank = (uint32_t)rank, .product = product};
    return 0;
}

static int load_merges(struct loader *l)
{
    static const char key[] = "tokenizer.ggml.merges";
    struct gguf_string s;
    uint64_t cursor = 0, rank = 0;
    size_t size = 16;
    int32_t last_product = -1;
    int rc;
    const struct gguf_kv *kv = find_array(l, key, 1, &rc);
    TRY(rc);
    if (kv->elem_type != GGUF_STRING || kv->n > MAX_TOKENS)
        return fail(l, ERR_FORMAT, key, "is not an array of strings, or is too long");
    while (size < 2 * kv->n)
        size *= 2;
    l->v->merges = mem_alloc_array(MEM_TEXT, size, sizeof *l->v->merges);
    if (!l->v->merges)
        return fail(l, ERR_NO_MEMORY, key, "does not fit the memory");
    l->v->merge_mask = size - 1;
    for (size_t i = 0; i < size; i++)
        l->v->merges[i].pair = EMPTY_PAIR;
    while (gguf_array_next_string(kv, &cursor, &s))
        TRY(add_merge(l, rank++, s, &last_product));
    return 0;
}

static int load_id(const struct loader *l, const char *key, int32_t *out)
{
    uint64_t id;
    int rc = gguf_get_u64(l->g, key, 0, (uint64_t)l->v->n_tokens - 1, &id, l->err);
    if (rc == 1)
        *out = (int32_t)id;
    return rc < 0 ? rc : 0;
}

/* More ids that end an answer, as some files name them (B115). */
static int load_more_ends(struct loader *l)
{
    static const char key[] = "tokenizer.ggml.eos_token_ids";
    int rc;
    const struct gguf_kv *kv = find_array(l, key, 0, &rc);
    if (!kv)
        return rc;
    if (kv->elem_type > GGUF_I32 && kv->elem_type != GGUF_U64 && kv->elem_type != GGUF_I64)
        return fail(l, ERR_FORMAT, key, "is not an array of integers");
    for (uint64_t i = 0; i < kv->n; i++) {
        int64_t id = gguf_array_i64(kv, i);
        if (id < 0 || id >= l->v->n_tokens)
            return fail(l, ERR_FORMAT, key, "holds an id outside the vocabulary");
        l->v->tokens[id].is_eog = 1;
    }
    return 0;
}

/* What ends a generation: the file's ids and the tokens known by their text (B115). */
static int load_ends(struct loader *l)
{
    static const char *const texts[] = {"<|im_end|>", "<|endoftext|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"};
    struct vocab *v = l->v;
    v->eos = v->bos = v->padding = -1;
    TRY(load_id(l, "tokenizer.ggml.eos_token_id", &v->eos));
    TRY(load_id(l, "tokenizer.ggml.bos_token_id", &v->bos));
    TRY(load_id(l, "tokenizer.ggml.padding_token_id", &v->padding));
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        int32_t id = vocab_find(v, texts[i], strlen(texts[i]));
        if (id < 0)
            continue;
        v->tokens[id].is_eog = 1;
        if (v->eos < 0) {
            v->eos = id;
            log_warn("%s: key tokenizer.ggml.eos_token_id is missing; %s (%d) ends an answer", gguf_path(l->g), texts[i], id);
        }
    }
    if (v->eos < 0)
        return fail(l, ERR_FORMAT, "tokenizer.ggml.eos_token_id", "is missing, and no token is named <|im_end|> or <|endoftext|>");
    v->tokens[v->eos].is_eog = 1;
    return load_more_ends(l);
}

static int check_model(const struct loader *l)
{
    struct gguf_string s;
    int rc = gguf_get_string(l->g, "tokenizer.ggml.model", &s, l->err);
    if (rc < 0)
        return rc;
    if (rc == 0)
        return fail(l, ERR_FORMAT, "tokenizer.ggml.model", "is missing: the file holds no vocabulary");
    if (s.len != 4 || memcmp(s.data, "gpt2", 4) != 0)
        return err_set(l->err, ERR_UNSUPPORTED, "%s: key tokenizer.ggml.model is \"%.*s\"; only byte-level BPE (gpt2) is supported", gguf_path(l->g), (int)(s.len < 30 ? s.len : 30), s.data);
    rc = gguf_get_string(l->g, "tokenizer.ggml.pre", &s, l->err);
    if (rc < 0)
        return rc;
    if (rc == 1 && (s.len != 6 || memcmp(s.data, "qwen35", 6) != 0))
        return err_set(l->err, ERR_UNSUPPORTED, "%s: key tokenizer.ggml.pre is \"%.*s\"; only qwen35 is supported", gguf_path(l->g), (int)(s.len < 30 ? s.len : 30), s.data);
    return 0;
}

static int load_all(struct loader *l)
{
    build_byte_map(l);
    TRY(check_model(l));
    TRY(load_tokens(l));
    TRY(load_kinds(l));
    TRY(build_text_index(l));
    TRY(load_merges(l));
    if (special_build(l->v) < 0)
        return fail(l, ERR_NO_MEMORY, "tokenizer.ggml.token_type", "does not fit the memory");
    return load_ends(l);
}

int vocab_load(const struct gguf *g, struct vocab **out, struct err *err)
{
    struct loader l = {.g = g, .err = err, .v = mem_alloc(MEM_TEXT, sizeof *l.v)};
    if (!l.v)
        return err_set(err, ERR_NO_MEMORY, "%s: out of memory for the vocabulary", gguf_path(g));
    int rc = load_all(&l);
    if (rc < 0)
        vocab_free(l.v);
    else
        *out = l.v;
    return rc;
}

void vocab_free(struct vocab *v)
{
    if (!v)
        return;
    mem_free(v->tokens);
    mem_free(v->decoded);
    mem_free(v->slots);
    mem_free(v->merges);
    mem_free(v->specials);
    mem_free(v);
}

int32_t vocab_n_tokens(const struct vocab *v)
{
    return v->n_tokens;
}

enum token_kind vocab_kind(const struct vocab *v, int32_t id)
{
    return (enum token_kind)v->tokens[id].kind;
}

int32_t vocab_find(const struct vocab *v, const char *text, size_t len)
{
    uint64_t hash;
    return (int32_t)(uint32_t)*slot_of(v, text, len, &hash) - 1;
}

int32_t vocab_eos(const struct vocab *v)
{
    return v->eos;
}

int32_t vocab_bos(const struct vocab *v)
{
    return v->bos;
}

int32_t vocab_padding(const struct vocab *v)
{
    return v->padding;
}

int vocab_is_eog(const struct vocab *v, int32_t id)
{
    return v->tokens[id].is_eog;
}

int vocab_is_emittable(const struct vocab *v, int32_t id)
{
    return v->tokens[id].kind != TOKEN_UNUSED;
}

void vocab_piece(const struct vocab *v, int32_t id, const char **bytes, size_t *n)
{
    *bytes = v->tokens[id].bytes;
    *n = v->tokens[id].n_bytes;
}

void vocab_stored(const struct vocab *v, int32_t id, const char **bytes, size_t *n)
{
    *bytes = v->tokens[id].stored;
    *n = v->tokens[id].n_stored;
}
