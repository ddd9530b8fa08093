/* apr logits and apr perplexity: numbers for comparing with other programs. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/score.h"

#define PIECE_TOKENS 2048  /* of a text, unless --context-length says otherwise */

/* Raw little-endian ids. */
static int read_ids(struct cli *c, const char *path, struct ids *ids)
{
    struct buf bytes;
    int rc = cli_read_input(c, path, &bytes);
    if (rc == 0 && (bytes.len == 0 || bytes.len % 4))
        rc = err_set(&c->err, ERR_FORMAT, "%s: %zu bytes are no list of 32-bit token ids", path, bytes.len);
    for (size_t i = 0; rc == 0 && i < bytes.len; i += 4) {
        const unsigned char *p = (const unsigned char *)bytes.data + i;
        if (ids_push(ids, (int32_t)((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24)) < 0)
            rc = err_set(&c->err, ERR_NO_MEMORY, "%s: out of memory for the ids", path);
    }
    buf_free(&bytes);
    return rc;
}

struct writer {
    struct cli *c;
    FILE *file;
    const char *path;
    size_t n_vocab;
};

static int write_row(void *ctx, size_t i, const float *logits)
{
    struct writer *w = ctx;
    (void)i;
    if (fwrite(logits, sizeof *logits, w->n_vocab, w->file) != w->n_vocab)
        return err_set(&w->c->err, ERR_IO, "%s: %s", w->path, strerror(errno));
    return 0;
}

static int write_logits(struct cli *c, struct scorer *s, const struct ids *ids)
{
    int is_stdout = strcmp(c->o[O_OUTPUT].s, "-") == 0;
    struct writer w = {.c = c, .path = c->o[O_OUTPUT].s, .n_vocab = (size_t)s->model->config.n_vocab};
    int all = c->o[O_ROWS].set && c->o[O_ROWS].i == 1;
    w.file = is_stdout ? stdout : fopen(w.path, "wb");
    if (!w.file)
        return err_set(&c->err, ERR_IO, "%s: %s", w.path, strerror(errno));
    int rc = score_ids(s, ids->data, ids->len, all ? 0 : ids->len - 1, write_row, &w);
    if (!is_stdout && fclose(w.file) != 0 && rc == 0)
        rc = err_set(&c->err, ERR_IO, "%s: %s", w.path, strerror(errno));
    return rc;
}

int verb_logits(struct cli *c)
{
    struct scorer s;
    struct ids ids = {0};
    if (!c->o[O_TOKENS_FILE].set || !c->o[O_OUTPUT].set)
        return cli_usage(c, "logits: %s is missing", c->o[O_TOKENS_FILE].set ? "--output FILE" : "--tokens FILE");
    int rc = score_open(c, MODEL_NO_TOKENISER, &s);
    if (rc == 0)
        rc = read_ids(c, c->o[O_TOKENS_FILE].s, &ids);
    if (rc == 0)
        rc = score_reserve(&s, (int64_t)ids.len);
    if (rc == 0)
        rc = write_logits(c, &s, &ids);
    score_close(&s);
    ids_free(&ids);
    return rc;
}

struct likelihood {
    struct cli *c;
    const int32_t *ids;  /* of the piece */
    size_t n_vocab;
    double nll;
    uint64_t n;
};

static int add_row(void *ctx, size_t i, const float *logits)
{
    struct likelihood *l = ctx;
    double max = (double)logits[0], sum = 0;
    for (size_t j = 1; j < l->n_vocab; j++)
        max = fmax(max, (double)logits[j]);
    for (size_t j = 0; j < l->n_vocab; j++)
        sum += exp((double)logits[j] - max);
    double nll = max + log(sum) - (double)logits[l->ids[i + 1]];
    if (!isfinite(nll))
        return err_set(&l->c->err, ERR_NUMERIC, "the logits are not finite at token %zu of a piece", i);
    l->nll += nll;
    l->n++;
    return 0;
}

/* Pieces of piece_len tokens, each from an empty state; the last token of a piece has nothing to predict. */
static int score_text(struct scorer *s, const struct ids *ids, size_t piece_len, struct likelihood *l)
{
    for (size_t at = 0; at + 1 < ids->len; at += piece_len) {
        size_t n = ids->len - at < piece_len ? ids->len - at : piece_len;
        l->ids = ids->data + at;
        if (n > 1)
            TRY(score_ids(s, l->ids, n - 1, 0, add_row, l));
    }
    return 0;
}

static int print_likelihood(struct cli *c, const struct likelihood *l, size_t n_tokens)
{
    double mean = l->nll / (double)l->n;
    if (c->o[O_JSON].set)
        return cli_print_json(c, json_pack("{s:f, s:f, s:I, s:I}", "nll", mean, "perplexity", exp(mean), "scored", (json_int_t)l->n, "tokens", (json_int_t)n_tokens), -1);
    printf("nll %.6f nats/token, perplexity %.4f, %llu of %zu tokens scored\n", mean, exp(mean), (unsigned long long)l->n, n_tokens);
    return 0;
}

static int perplexity(struct cli *c, struct scorer *s, const struct ids *ids)
{
    int64_t piece = c->o[O_CONTEXT_LENGTH].set ? c->o[O_CONTEXT_LENGTH].i : PIECE_TOKENS;
    struct likelihood l = {.c = c, .n_vocab = (size_t)s->model->config.n_vocab};
    if (!c->o[O_CONTEXT_LENGTH].set && piece > s->model->config.n_ctx_declared)
        piece = s->model->config.n_ctx_declared;
    if (ids->len < 2)
        return err_set(&c->err, ERR_INVALID, "the text has %zu token%s; at least two are needed to predict one", ids->len, ids->len == 1 ? "" : "s");
    if (piece < 2)
        return cli_usage(c, "--context-length: pieces of %lld token hold nothing to predict", (long long)piece);
    TRY(score_reserve(s, piece));
    TRY(score_text(s, ids, (size_t)piece, &l));
    return print_likelihood(c, &l, ids->len);
}

int verb_perplexity(struct cli *c)
{
    struct scorer s;
    struct buf text;
    struct ids ids = {0};
    if (!c->o[O_FILE].set)
        return cli_usage(c, "perplexity: --file FILE is missing");
    buf_init(&text, MEM_OTHER, 1);
    int rc = score_open(c, 0, &s);
    if (rc == 0)
        rc = cli_read_input(c, c->o[O_FILE].s, &text);
    if (rc == 0)
        rc = vocab_encode(s.model->vocab, buf_str(&text), text.len, ENCODE_PLAIN, NULL, 0, &ids, &c->err);
    if (rc == 0)
        rc = perplexity(c, &s, &ids);
    buf_free(&text);
    ids_free(&ids);
    score_close(&s);
    return rc;
}
