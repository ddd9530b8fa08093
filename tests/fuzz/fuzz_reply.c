/* A reply cut at random places against the same in one piece: the events add up to the same. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "text/reply.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int record(void *ctx, const struct reply_event *e)
{
    struct buf *heard = ctx;
    static int last;
    if (heard->len == 0)
        last = -1;
    if ((int)e->kind != last || e->kind == REPLY_CALL_BEGIN)
        buf_add_char(heard, (char)(1 + e->kind));
    last = (int)e->kind;
    return buf_add(heard, e->text, e->n);
}

static const json_t *tools(void)
{
    static const char text[] = "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":\"string\"},\"n\":{\"type\":[\"integer\",\"null\"]},"
                               "\"o\":{\"anyOf\":[{\"type\":\"object\"},{\"type\":\"array\"}]}}}}},{\"function\":{\"name\":\"now\"}}]";
    static json_t *value;
    struct err err;
    if (!value && json_parse(text, sizeof text - 1, &value, &err) < 0)
        abort();
    return value;
}

static void run(const uint8_t *data, size_t size, int cut, struct buf *heard)
{
    static const char *const stops[] = {"STOP", "</f", "a\nb"};
    struct reply_options o = {.tools = data[0] & 1 ? tools() : NULL, .in_reasoning = data[0] >> 1 & 1, .raw = (data[0] >> 2 & 7) == 7, .stop = stops,
                              .n_stop = data[0] >> 5 & 3, .sink = record, .ctx = heard};
    struct reply *r = NULL;
    struct err err;
    const char *reason;
    uint32_t state = data[1] + 1u;
    if (reply_create(&o, &r, &err) < 0)
        abort();
    for (size_t at = 2; at < size;) {
        state = state * 1103515245u + 12345u;
        size_t n = cut ? 1 + (state >> 16) % 7 : size - at;
        n = n > size - at ? size - at : n;
        if (reply_push(r, (const char *)data + at, n) < 0)
            abort();
        at += n;
    }
    if (reply_finish(r, data[0] >> 7, &reason) < 0)
        abort();
    buf_add_str(heard, reason);
    reply_free(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct buf whole, pieces;
    if (size < 2)
        return 0;
    buf_init(&whole, MEM_OTHER, 1 << 26);
    buf_init(&pieces, MEM_OTHER, 1 << 26);
    run(data, size, 0, &whole);
    run(data, size, 1, &pieces);
    if (whole.len != pieces.len || memcmp(buf_str(&whole), buf_str(&pieces), whole.len) != 0)
        abort();
    buf_free(&whole);
    buf_free(&pieces);
    return 0;
}
