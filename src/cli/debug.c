#include "cli/debug.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "gguf/quant.h"

int debug_answer(struct cli *c, json_t *value, struct buf *out)
{
    if (value)
        json_write_python(out, value, -1);
    json_decref(value);
    return value && !out->failed ? 0 : err_set(&c->err, ERR_NO_MEMORY, "out of memory for the answer");
}

static int one_case(struct cli *c, debug_case *fn, void *ctx, const json_t *in)
{
    struct buf out;
    if (!json_is_object(in))
        return err_set(&c->err, ERR_FORMAT, "not a JSON object");
    buf_init(&out, MEM_OTHER, INPUT_MAX);
    int rc = fn(c, ctx, in, &out);
    if (rc == 0 && buf_add_char(&out, '\n') < 0)
        rc = err_set(&c->err, out.failed, "the answer is too large");
    if (rc == 0)
        fwrite(out.data, 1, out.len, stdout);
    buf_free(&out);
    return rc;
}

static int one_document(struct cli *c, debug_case *fn, void *ctx, const json_t *document, size_t *n_cases)
{
    size_t i;
    json_t *item;
    if (!json_is_array(document)) {
        ++*n_cases;
        return one_case(c, fn, ctx, document);
    }
    json_array_foreach(document, i, item)
    {
        ++*n_cases;
        TRY(one_case(c, fn, ctx, item));
    }
    return 0;
}

/* An array may be spread over lines: then standard input is one document. */
static int whole_array(struct cli *c, debug_case *fn, void *ctx, const struct buf *first_line, size_t *n_cases)
{
    struct buf rest;
    json_t *document = NULL;
    int rc = cli_read_input(c, "-", &rest);
    struct buf all;
    buf_init(&all, MEM_OTHER, INPUT_MAX);
    buf_add(&all, buf_str(first_line), first_line->len);
    buf_add_char(&all, '\n');
    buf_add(&all, buf_str(&rest), rest.len);
    if (rc == 0)
        rc = json_parse(buf_str(&all), all.len, &document, &c->err);
    if (rc == 0)
        rc = one_document(c, fn, ctx, document, n_cases);
    json_decref(document);
    buf_free(&rest);
    buf_free(&all);
    return rc;
}

static int one_line(struct cli *c, debug_case *fn, void *ctx, const struct buf *line, size_t *n_cases)
{
    json_t *document = NULL;
    TRY(json_parse(buf_str(line), line->len, &document, &c->err));
    int rc = one_document(c, fn, ctx, document, n_cases);
    json_decref(document);
    fflush(stdout);
    return rc;
}

int debug_each(struct cli *c, debug_case *fn, void *ctx)
{
    struct buf line;
    size_t n_cases = 0;
    int rc;
    buf_init(&line, MEM_OTHER, LINE_MAX_BYTES);
    while ((rc = cli_read_line(c, stdin, &line)) == 1) {
        const char *text = buf_str(&line);
        if (strspn(text, " \t") == line.len)
            continue;
        int spread = n_cases == 0 && text[0] == '[' && line.data[line.len - 1] != ']';
        rc = spread ? whole_array(c, fn, ctx, &line, &n_cases) : one_line(c, fn, ctx, &line, &n_cases);
        if (rc < 0)
            break;
    }
    buf_free(&line);
    return rc < 0 ? err_prefix(&c->err, "case %zu", n_cases ? n_cases : 1) : 0;
}

int verb_debug_dequant(struct cli *c)
{
    static unsigned char blocks[1 << 16];
    static float values[1 << 16];
    const struct quant_type *type = quant_type_by_name(c->args[0]);
    if (!type || !type->decode)
        return cli_usage(c, "debug dequant: \"%.60s\" is not a block type of weights", c->args[0]);
    size_t block = (size_t)type->block_bytes, elems = (size_t)type->block_elems;
    size_t most = sizeof blocks / block < sizeof values / sizeof *values / elems ? sizeof blocks / block : sizeof values / sizeof *values / elems;
    size_t got;
    while ((got = fread(blocks, 1, most * block, stdin)) > 0) {
        if (got % block)
            return err_set(&c->err, ERR_FORMAT, "standard input ends inside a block of %zu bytes", block);
        type->decode(blocks, values, got / block * elems);
        fwrite(values, sizeof *values, got / block * elems, stdout);
    }
    return 0;
}
