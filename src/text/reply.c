/* The stages of a reply: whole characters (broken ones become U+FFFD) -> reasoning or content -> calls out of content -> stop strings -> trimming -> events.
 * Invariant: data in `in` is undecided; everything before it went out or was dropped for good. */
#include "text/reply.h"

#include <string.h>

#include "base/json.h"
#include "base/utf8.h"
#include "text/reply_scan.h"
#include "text/reply_stop.h"
#include "text/reply_value.h"
#include "text/space.h"

#define TRY_ALL(expression)         \
    do {                            \
        int all_rc_ = (expression); \
        if (all_rc_ != 0)           \
            return all_rc_;         \
    } while (0)

#define NO_LIMIT (SIZE_MAX / 4)

enum stage {
    STAGE_START,     /* white space, then perhaps <think> or a stray </think> */
    STAGE_REASONING,
    STAGE_STRAY,     /* after </think>: perhaps another one */
    STAGE_NEWLINES,  /* after a stray </think> */
    STAGE_CONTENT,
    STAGE_RAW
};

enum value_mode { VALUE_DROPPED, VALUE_STREAMED, VALUE_KEPT };

struct reply {
    reply_sink *sink;
    void *ctx;
    struct reply_tool *tools;
    size_t n_tools;
    struct stops stops;
    enum stage stage;
    int failed;           /* sticky: a sink's code, ERR_NO_MEMORY, or REPLY_STOPPED */
    struct buf partial;   /* an unfinished character */
    struct buf in;
    size_t at;            /* START, STRAY: where the tag would begin. REASONING: where </think> may begin next */
    struct scan scan;

    struct buf space;     /* white space that waits for what follows it */
    size_t n_reasoning, n_content;
    int n_calls;
    int in_call;
    int blank;            /* nothing but white space since the last call */

    const struct reply_tool *tool; /* of the call in work */
    enum value_mode mode;
    struct value_types types;
    struct buf key, value;
    json_t *seen;         /* the keys of this call */

    struct buf out;       /* of one kind, not yet handed over */
    enum reply_kind out_kind;
};

/* ---- events ---- */

static int send(struct reply *r, enum reply_kind kind, const char *text, size_t n)
{
    struct reply_event event = {.kind = kind, .call = r->n_calls > 0 ? r->n_calls - 1 : 0, .text = text, .n = n};
    int rc = r->sink(r->ctx, &event);
    return rc < 0 ? rc : 0;
}

static int flush(struct reply *r)
{
    TRY(r->out.failed);
    if (r->out.len > 0)
        TRY(send(r, r->out_kind, r->out.data, r->out.len));
    buf_clear(&r->out);
    return 0;
}

/* The buffer to add text of this kind to. Its failure shows when it is flushed. */
static struct buf *out(struct reply *r, enum reply_kind kind, int *rc)
{
    *rc = kind == r->out_kind ? 0 : flush(r);
    r->out_kind = kind;
    return &r->out;
}

static int emit(struct reply *r, enum reply_kind kind, const char *text, size_t n)
{
    int rc;
    struct buf *b = out(r, kind, &rc);
    TRY(rc);
    return buf_add(b, text, n);
}

/* ---- trimming ---- */

/* End of the last character that is no white space; 0 when there is none. */
static size_t solid_end(const char *text, size_t n)
{
    size_t start = 0;
    strip_space(text, &start, &n, 0, 1);
    return n;
}

static size_t leading_space(const char *text, size_t n)
{
    size_t start = 0;
    strip_space(text, &start, &n, 1, 0);
    return start;
}

static int reasoning_text(struct reply *r, const char *text, size_t n)
{
    if (r->n_reasoning == 0) {
        size_t skip = leading_space(text, n);
        text += skip;
        n -= skip;
    }
    size_t end = solid_end(text, n);
    if (end > 0) {
        TRY(emit(r, REPLY_REASONING, buf_str(&r->space), r->space.len));
        TRY(emit(r, REPLY_REASONING, text, end));
        r->n_reasoning += r->space.len + end;
        buf_clear(&r->space);
    }
    return buf_add(&r->space, text + end, n - end);
}

static int content_emit(struct reply *r, const char *text, size_t n)
{
    while (r->n_content == 0 && n > 0 && *text == '\n') {
        text++;
        n--;
    }
    r->n_content += n;
    return n ? emit(r, REPLY_TEXT, text, n) : 0;
}

static int content_space(struct reply *r)
{
    TRY(content_emit(r, buf_str(&r->space), r->space.len));
    buf_clear(&r->space);
    return 0;
}

static int content_text(struct reply *r, const char *text, size_t n)
{
    if (r->stage == STAGE_RAW)
        return n ? emit(r, REPLY_TEXT, text, n) : 0;
    size_t end = solid_end(text, n);
    if (end > 0) {
        TRY(content_space(r));
        TRY(content_emit(r, text, end));
        r->blank = 0;
    }
    return buf_add(&r->space, text + end, n - end);
}

/* The content ends: white space after the last call goes, other white space stays. */
static int content_end(struct reply *r)
{
    if (r->n_calls == 0 || !r->blank)
        TRY(content_space(r));
    buf_clear(&r->space);
    return 0;
}

/* White space that neither a call nor the end can take away goes out now. */
static int content_settle(struct reply *r)
{
    if (r->space.len == 0 || (r->n_calls > 0 && r->blank))
        return 0;
    if (solid_end(buf_str(&r->stops.held), r->stops.held.len) == 0 && scan_call_may_follow(&r->scan, buf_str(&r->in)))
        return 0;
    return content_space(r);
}

/* ---- what the scan finds ---- */

static int on_text(void *ctx, const char *text, size_t n)
{
    struct reply *r = ctx;
    size_t decided;
    if (r->stops.n == 0)
        return content_text(r, text, n);
    int stopped = stops_push(&r->stops, text, n, &decided);
    TRY(stopped);
    TRY(content_text(r, buf_str(&r->stops.held), decided));
    buf_remove_front(&r->stops.held, decided);
    if (stopped)
        TRY(content_end(r));
    return stopped;
}

/* What the stop strings hold back is content after all. */
static int stops_flush(struct reply *r)
{
    stops_reset(&r->stops);
    TRY(content_text(r, buf_str(&r->stops.held), r->stops.held.len));
    buf_clear(&r->stops.held);
    return 0;
}

static int on_begin(void *ctx, const struct reply_tool *tool)
{
    struct reply *r = ctx;
    TRY(stops_flush(r));
    buf_clear(&r->space);
    TRY(flush(r));
    json_decref(r->seen);
    r->tool = tool;
    r->seen = json_object();
    if (!r->seen)
        return ERR_NO_MEMORY;
    r->n_calls++;
    r->in_call = r->blank = 1;
    TRY(send(r, REPLY_CALL_BEGIN, tool->name, tool->n));
    return emit(r, REPLY_CALL_ARGS, "{", 1);
}

/* Starts `"key": ` in the arguments; of a key that comes again only the first value counts. */
static int write_key(struct reply *r, const char *key, size_t n)
{
    int rc;
    struct buf *b = out(r, REPLY_CALL_ARGS, &rc);
    TRY(rc);
    if (json_object_size(r->seen) > 1)
        buf_add_str(b, ", ");
    json_write_string(b, key, n, 0);
    return buf_add_str(b, ": ");
}

static int on_key(void *ctx, const char *key, size_t n)
{
    struct reply *r = ctx;
    if (json_object_getn(r->seen, key, n)) {
        r->mode = VALUE_DROPPED;
        return 0;
    }
    if (json_object_setn_new_nocheck(r->seen, key, n, json_true()) < 0)
        return ERR_NO_MEMORY;
    r->types = value_types_of(json_object_getn(r->tool->properties, key, n));
    r->mode = value_is_string(r->types) ? VALUE_STREAMED : VALUE_KEPT;
    if (r->mode == VALUE_STREAMED) {
        TRY(write_key(r, key, n));
        return emit(r, REPLY_CALL_ARGS, "\"", 1);
    }
    buf_clear(&r->key);
    buf_clear(&r->value);
    return buf_add(&r->key, key, n);
}

static int on_value(void *ctx, const char *text, size_t n)
{
    struct reply *r = ctx;
    int rc;
    if (r->mode == VALUE_KEPT)
        return buf_add(&r->value, text, n);
    if (r->mode == VALUE_DROPPED)
        return 0;
    struct buf *b = out(r, REPLY_CALL_ARGS, &rc);
    TRY(rc);
    return json_write_escaped(b, text, n, 0);
}

static int on_value_end(void *ctx)
{
    struct reply *r = ctx;
    int rc;
    if (r->mode == VALUE_DROPPED)
        return 0;
    if (r->mode == VALUE_STREAMED)
        return emit(r, REPLY_CALL_ARGS, "\"", 1);
    TRY(write_key(r, buf_str(&r->key), r->key.len));
    struct buf *b = out(r, REPLY_CALL_ARGS, &rc);
    TRY(rc);
    return value_write(b, buf_str(&r->value), r->value.len, r->types);
}

static int on_end(void *ctx)
{
    struct reply *r = ctx;
    TRY(emit(r, REPLY_CALL_ARGS, "}", 1));
    TRY(flush(r));
    r->in_call = 0;
    return send(r, REPLY_CALL_END, "", 0);
}

static const struct scan_sink calls = {on_text, on_begin, on_key, on_value, on_value_end, on_end};

/* ---- stages ---- */

static void take(struct reply *r, size_t n)
{
    buf_remove_front(&r->in, n);
    r->at = 0;
}

static void enter_reasoning(struct reply *r)
{
    r->stage = STAGE_REASONING;
    r->at = 0;
    scan_init(&r->scan, r->tools, r->n_tools, NULL, NULL);
}

static void enter_content(struct reply *r)
{
    r->stage = STAGE_CONTENT;
    buf_clear(&r->space);
    scan_init(&r->scan, r->tools, r->n_tools, &calls, r);
}

/* 2: text begins with tag; 1: it could, when more comes; 0: never. */
static int tag_match(const char *text, size_t n, const char *tag)
{
    size_t all = strlen(tag);
    if (memcmp(text, tag, n < all ? n : all) != 0)
        return 0;
    return n >= all ? 2 : 1;
}

static size_t count_newlines(const struct reply *r)
{
    size_t n = 0;
    while (n < r->in.len && r->in.data[n] == '\n')
        n++;
    return n;
}

/* White space, then <think> (at the start only) or a stray </think>. */
static void run_head(struct reply *r, int final)
{
    const char *text = buf_str(&r->in);
    r->at += leading_space(text + r->at, r->in.len - r->at);
    size_t n = r->in.len - r->at;
    int think = r->stage == STAGE_START ? tag_match(text + r->at, n, "<think>") : 0, stray = tag_match(text + r->at, n, "</think>");
    if (think == 2) {
        take(r, r->at + strlen("<think>"));
        enter_reasoning(r);
    } else if (stray == 2) {
        take(r, r->at + strlen("</think>"));
        r->stage = STAGE_NEWLINES;
    } else if (final || (!think && !stray)) {
        if (r->stage == STAGE_STRAY) /* they part the content from the reasoning: no stop string is looked for in them */
            take(r, count_newlines(r));
        enter_content(r);
    }
}

static void run_newlines(struct reply *r, int final)
{
    take(r, count_newlines(r));
    if (r->in.len > 0 || final)
        enter_content(r);
}

/* Where </think> begins, or where its unfinished start does (*whole is 0), or the end. */
static size_t find_end(const struct reply *r, int *whole)
{
    const char *text = buf_str(&r->in), *next;
    *whole = 0;
    for (size_t at = r->at; at < r->in.len; at++) {
        next = memchr(text + at, '<', r->in.len - at);
        if (!next)
            break;
        at = (size_t)(next - text);
        int match = tag_match(next, r->in.len - at, "</think>");
        *whole = match == 2;
        if (match)
            return at;
    }
    return r->in.len;
}

/* A call in reasoning counts only when no </think> follows, which the end alone shows: from its start on all is held. */
static int run_reasoning(struct reply *r, int final)
{
    int whole;
    size_t end = find_end(r, &whole);
    if (whole) {
        TRY(reasoning_text(r, r->in.data, end));
        take(r, end + strlen("</think>"));
        buf_clear(&r->space);
        r->stage = STAGE_STRAY;
        return 0;
    }
    r->at = end;
    TRY(scan_run(&r->scan, buf_str(&r->in), r->in.len));
    if (final) {
        int call = r->scan.state == SCAN_DONE;
        size_t n = call ? r->scan.hold : r->in.len;
        TRY(reasoning_text(r, buf_str(&r->in), n));
        take(r, n);
        enter_content(r); /* an empty one, or from the call on */
        return 0;
    }
    size_t n = r->n_tools && r->scan.hold < end ? r->scan.hold : end;
    TRY(reasoning_text(r, buf_str(&r->in), n));
    scan_drop(&r->scan, buf_str(&r->in), n);
    take(r, n);
    r->at = end - n;
    return 0;
}

static int run_content(struct reply *r, int final)
{
    TRY_ALL(scan_run(&r->scan, buf_str(&r->in), r->in.len));
    if (final) {
        TRY_ALL(scan_finish(&r->scan, buf_str(&r->in), r->in.len));
        TRY(stops_flush(r));
        return content_end(r);
    }
    TRY(content_settle(r));
    size_t n = r->scan.hold;
    scan_drop(&r->scan, buf_str(&r->in), n);
    buf_remove_front(&r->in, n);
    return 0;
}

static int run_raw(struct reply *r, int final)
{
    TRY_ALL(on_text(r, buf_str(&r->in), r->in.len));
    buf_clear(&r->in);
    return final ? stops_flush(r) : 0;
}

static int run(struct reply *r, int final)
{
    enum stage before;
    do {
        before = r->stage;
        switch (before) {
        case STAGE_START:
        case STAGE_STRAY:
            run_head(r, final);
            break;
        case STAGE_NEWLINES:
            run_newlines(r, final);
            break;
        case STAGE_REASONING:
            TRY_ALL(run_reasoning(r, final));
            break;
        case STAGE_CONTENT:
            TRY_ALL(run_content(r, final));
            break;
        case STAGE_RAW:
            TRY_ALL(run_raw(r, final));
        }
    } while (r->stage != before);
    return 0;
}

/* Moves whole characters of p[0..n) to `in`; returns how many bytes are done (an unfinished character's are not), or an error. */
static int add_characters(struct reply *r, const char *p, size_t n, size_t *done)
{
    size_t i = 0, start = 0;
    uint32_t c;
    while (i < n) {
        int length = utf8_decode(p + i, n - i, &c);
        if (length > 0) {
            i += (size_t)length;
            continue;
        }
        buf_add(&r->in, p + start, i - start);
        start = i;
        if (length == 0)
            break;
        buf_add_str(&r->in, UTF8_REPLACEMENT);
        i += (size_t)-length;
        start = i;
    }
    *done = i;
    return buf_add(&r->in, p + start, i - start);
}

static int add_bytes(struct reply *r, const char *bytes, size_t n)
{
    size_t done;
    if (r->partial.len == 0) {
        TRY(add_characters(r, bytes, n, &done));
        return buf_add(&r->partial, bytes + done, n - done);
    }
    TRY(buf_add(&r->partial, bytes, n));
    TRY(add_characters(r, r->partial.data, r->partial.len, &done));
    buf_remove_front(&r->partial, done);
    return 0;
}

/* Hands over what is ready, and keeps what ended the reply. */
static int conclude(struct reply *r, int rc)
{
    if (rc >= 0) {
        int flushed = flush(r);
        rc = flushed < 0 ? flushed : rc;
    }
    r->failed = rc == ERR_LIMIT ? ERR_NO_MEMORY : rc;
    return r->failed;
}

int reply_push(struct reply *r, const char *bytes, size_t n)
{
    if (r->failed)
        return r->failed;
    int rc = add_bytes(r, bytes, n);
    return conclude(r, rc < 0 ? rc : run(r, 0));
}

int reply_finish(struct reply *r, int model_stopped, const char **finish_reason)
{
    if (!r->failed) {
        int rc = r->partial.len ? buf_add_str(&r->in, UTF8_REPLACEMENT) : 0;
        buf_clear(&r->partial);
        conclude(r, rc < 0 ? rc : run(r, 1));
    }
    if (r->failed < 0)
        return r->failed;
    int stop = model_stopped || r->failed == REPLY_STOPPED;
    *finish_reason = !stop ? "length" : r->n_calls > 0 && !r->in_call ? "tool_calls" : "stop";
    return 0;
}

/* ---- life ---- */

/* A name that no text can call is left out. */
static int is_callable(const char *name, size_t n)
{
    if (memchr(name, '>', n) || memchr(name, '\n', n))
        return 0;
    return leading_space(name, n) == 0 && solid_end(name, n) == n;
}

static int copy_tools(struct reply *r, const json_t *tools)
{
    size_t n = json_array_size(tools);
    if (n == 0)
        return 0;
    r->tools = mem_alloc_array(MEM_TEXT, n, sizeof *r->tools);
    if (!r->tools)
        return ERR_NO_MEMORY;
    for (size_t i = 0; i < n; i++) {
        const json_t *function = json_object_get(json_array_get(tools, i), "function");
        const json_t *name = json_object_get(function, "name"), *properties = json_object_get(json_object_get(function, "parameters"), "properties");
        if (json_is_text(name) && is_callable(json_string_value(name), json_string_length(name)))
            r->tools[r->n_tools++] = (struct reply_tool){json_string_value(name), json_string_length(name), properties};
    }
    return 0;
}

int reply_create(const struct reply_options *options, struct reply **out_reply, struct err *err)
{
    struct reply *r = mem_alloc(MEM_TEXT, sizeof *r);
    if (!r)
        return err_set(err, ERR_NO_MEMORY, "out of memory for a reply");
    r->sink = options->sink;
    r->ctx = options->ctx;
    struct buf *const bufs[] = {&r->partial, &r->in, &r->space, &r->key, &r->value, &r->out};
    for (size_t i = 0; i < sizeof bufs / sizeof *bufs; i++)
        buf_init(bufs[i], MEM_TEXT, NO_LIMIT);
    if (options->raw)
        r->stage = STAGE_RAW;
    else if (options->in_reasoning)
        r->stage = STAGE_REASONING;
    if (stops_init(&r->stops, options->stop, options->n_stop) < 0 || (!options->raw && copy_tools(r, options->tools) < 0)) {
        reply_free(r);
        return err_set(err, ERR_NO_MEMORY, "out of memory for a reply");
    }
    if (r->stage == STAGE_REASONING)
        enter_reasoning(r);
    *out_reply = r;
    return 0;
}

void reply_free(struct reply *r)
{
    if (!r)
        return;
    struct buf *const bufs[] = {&r->partial, &r->in, &r->space, &r->key, &r->value, &r->out};
    for (size_t i = 0; i < sizeof bufs / sizeof *bufs; i++)
        buf_free(bufs[i]);
    stops_free(&r->stops);
    mem_free(r->tools);
    json_decref(r->seen);
    mem_free(r);
}

const char *reply_matched_stop(const struct reply *r)
{
    return r->stops.matched;
}

size_t reply_reasoning_bytes(const struct reply *r)
{
    return r->n_reasoning;
}
