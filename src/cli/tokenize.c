/* apr tokenize and detokenize. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "cli/common.h"

static void print_ids(const struct vocab *v, const struct ids *ids, int verbose)
{
    for (size_t i = 0; i < ids->len; i++)
        if (verbose) {
            const char *piece;
            size_t n;
            struct buf quoted;
            buf_init(&quoted, MEM_OTHER, 1 << 20);
            vocab_piece(v, ids->data[i], &piece, &n);
            json_write_string(&quoted, piece, n, 1);
            printf("%8d  %s\n", ids->data[i], buf_str(&quoted));
            buf_free(&quoted);
        } else {
            printf("%s%d", i ? " " : "", ids->data[i]);
        }
    if (!verbose)
        putchar('\n');
}

static int tokenize(struct cli *c, const struct vocab *v, const char *text, size_t n)
{
    struct ids ids = {0};
    int rc = vocab_encode(v, text, n, c->o[O_NO_SPECIAL].set ? ENCODE_PLAIN : ENCODE_SPECIAL, NULL, 0, &ids, &c->err);
    if (rc == 0 && c->o[O_JSON].set)
        rc = cli_print_json(c, json_pack("{s:o, s:I}", "ids", cli_json_ids(ids.data, ids.len), "n", (json_int_t)ids.len), -1);
    else if (rc == 0)
        print_ids(v, &ids, c->o[O_VERBOSE].set);
    ids_free(&ids);
    return rc;
}

/* The vocabulary alone: files without a model's tensors have one too. */
static int load_vocab(struct cli *c, struct gguf **g, struct vocab **v)
{
    char path[4096];
    TRY(cli_model_path(c, path, sizeof path));
    TRY(gguf_open(path, GGUF_HEADER_ONLY, g, &c->err));
    return vocab_load(*g, v, &c->err);
}

int verb_tokenize(struct cli *c)
{
    struct gguf *g = NULL;
    struct vocab *v = NULL;
    struct buf input;
    buf_init(&input, MEM_OTHER, 1);
    const char *text = c->n_args > 1 ? c->args[1] : NULL;
    if (text && c->o[O_FILE].set)
        return cli_usage(c, "tokenize: a text and --file are given; one of them is too many");
    int rc = load_vocab(c, &g, &v);
    if (rc == 0 && !text)
        rc = cli_read_input(c, c->o[O_FILE].set ? c->o[O_FILE].s : "-", &input);
    if (rc == 0)
        rc = tokenize(c, v, text ? text : buf_str(&input), text ? strlen(text) : input.len);
    buf_free(&input);
    vocab_free(v);
    gguf_close(g);
    return rc;
}

static int detokenize(struct cli *c, const struct vocab *v, struct buf *out)
{
    struct detok d;
    detok_init(&d, v, 1);
    for (int i = 1; i < c->n_args; i++) {
        char *end;
        errno = 0;
        long id = strtol(c->args[i], &end, 10);
        if (end == c->args[i] || *end || errno || id < 0 || id >= vocab_n_tokens(v))
            return cli_usage(c, "detokenize: \"%.100s\" is not a token id from 0 to %d", c->args[i], vocab_n_tokens(v) - 1);
        if (detok_push(&d, (int32_t)id, out) < 0)
            return err_set(&c->err, ERR_NO_MEMORY, "out of memory for the text");
    }
    return detok_finish(&d, out) < 0 ? err_set(&c->err, ERR_NO_MEMORY, "out of memory for the text") : 0;
}

int verb_detokenize(struct cli *c)
{
    struct gguf *g = NULL;
    struct vocab *v = NULL;
    struct buf out;
    buf_init(&out, MEM_OTHER, INPUT_MAX);
    int rc = load_vocab(c, &g, &v);
    if (rc == 0)
        rc = detokenize(c, v, &out);
    if (rc == 0 && c->o[O_JSON].set)
        rc = cli_print_json(c, json_pack("{s:o}", "text", json_stringn(buf_str(&out), out.len)), -1);
    else if (rc == 0 && buf_add_char(&out, '\n') == 0)
        fwrite(out.data, 1, out.len, stdout);
    buf_free(&out);
    vocab_free(v);
    gguf_close(g);
    return rc;
}
