/* Replies of any bytes, cut anywhere: no crash, the same events as in one piece, valid UTF-8 in every event, complete arguments are JSON (S32).
 * Input: a byte of flags, a byte that seeds the cuts, then the text. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "text/reply.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FLAG_TOOLS = 1, FLAG_REASONING = 2, FLAG_STOP = 4, FLAG_RAW = 8 };

static const char tools_text[] =
    "[{\"function\": {\"name\": \"now\"}}, {\"function\": {\"name\": \"get_weather\", \"parameters\": {\"properties\": {\"city\": {\"type\": \"string\"}, \"days\": {\"type\": \"integer\"}, \"metric\": {\"type\": \"boolean\"}}}}},"
    "{\"function\": {\"name\": \"odd\", \"parameters\": {\"properties\": {\"n\": {\"type\": \"number\"}, \"o\": {\"type\": \"object\"}, \"a\": {\"type\": \"array\"}, \"s\": {\"type\": [\"string\", \"null\"]}, "
    "\"u\": {\"anyOf\": [{\"type\": \"integer\"}, {\"type\": \"string\"}]}, \"e\": {\"enum\": [\"x\", 1, null]}, \"z\": {}}}}}, {\"function\": {\"name\": \"now then\"}}]";

struct heard {
    struct buf all;       /* kind and text of each event, neighbours of one kind joined */
    struct buf arguments; /* of the call in work */
    enum reply_kind last;
    int has_nul;
};

static void require(int condition)
{
    if (!condition)
        abort();
}

static int listen(void *ctx, const struct reply_event *event)
{
    struct heard *h = ctx;
    require(utf8_valid(event->text, event->n));
    if (event->kind != h->last || event->kind == REPLY_CALL_BEGIN || event->kind == REPLY_CALL_END)
        buf_addf(&h->all, "\n%d.%d:", (int)event->kind, event->call);
    h->last = event->kind;
    buf_add(&h->all, event->text, event->n);
    if (event->kind == REPLY_CALL_BEGIN)
        buf_clear(&h->arguments);
    if (event->kind == REPLY_CALL_ARGS)
        buf_add(&h->arguments, event->text, event->n);
    if (event->kind == REPLY_CALL_END && !h->has_nul) {
        json_t *value = NULL;
        require(json_parse(buf_str(&h->arguments), h->arguments.len, &value, NULL) == 0);
        require(json_is_object(value));
        json_decref(value);
    }
    return 0;
}

/* seed 0: in one piece. */
static void run(struct heard *h, struct reply_options options, const char *text, size_t n, uint32_t seed)
{
    struct reply *r = NULL;
    const char *reason = "";
    int rc = 0;
    buf_init(&h->all, MEM_OTHER, 1 << 30);
    buf_init(&h->arguments, MEM_OTHER, 1 << 30);
    h->last = REPLY_CALL_END;
    h->has_nul = memchr(text, 0, n) || memmem(text, n, "u0000", 5); /* the JSON library has no such keys */
    options.sink = listen;
    options.ctx = h;
    require(reply_create(&options, &r, NULL) == 0);
    for (size_t at = 0, step = n; at < n && rc == 0; at += step) {
        if (seed) {
            seed = (seed * 1664525 + 1013904223) | 1;
            step = seed >> 24 < 128 ? 1 : (seed >> 16) % 40; /* empty pieces too */
        }
        step = step < n - at ? step : n - at;
        rc = reply_push(r, text + at, step);
    }
    require(rc == 0 || rc == REPLY_STOPPED);
    require(reply_finish(r, 1, &reason) == 0);
    buf_addf(&h->all, "\n%s %s %zu", reason, reply_matched_stop(r) ? reply_matched_stop(r) : "", reply_reasoning_bytes(r));
    reply_free(r);
    buf_free(&h->arguments);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static json_t *tools;
    static const char *const stops[] = {"END", "\n\n\n", "", "<END>", "x</"};
    if (!tools) {
        json_use_mem();
        require(json_parse(tools_text, strlen(tools_text), &tools, NULL) == 0);
    }
    if (size < 2 || size > 1 << 16)
        return 0;
    struct reply_options options = {.tools = data[0] & FLAG_TOOLS ? tools : NULL, .in_reasoning = !!(data[0] & FLAG_REASONING), .raw = !!(data[0] & FLAG_RAW), .stop = stops, .n_stop = data[0] & FLAG_STOP ? 5 : 0};
    struct heard whole, cut;
    size_t before = mem_total();
    char *text = mem_alloc(MEM_OTHER, size - 2); /* exactly as long, so that a read beyond shows */
    memcpy(text, data + 2, size - 2);
    run(&whole, options, text, size - 2, 0);
    run(&cut, options, text, size - 2, data[1] + 1u);
    require(whole.all.len == cut.all.len && memcmp(buf_str(&whole.all), buf_str(&cut.all), whole.all.len) == 0);
    buf_free(&whole.all);
    buf_free(&cut.all);
    mem_free(text);
    require(mem_total() == before);
    return 0;
}
