/* debug reply: what a model wrote, as reasoning, content and calls. */
#include <string.h>

#include "base/json.h"
#include "cli/debug.h"
#include "text/reply.h"

/* What the events add up to. */
struct collected {
    struct buf reasoning, content, name, arguments;
    struct buf calls;   /* JSON objects with ", " between; arguments as they came, so that no number is changed */
    int in_call;
};

static int add_call(struct collected *r, int complete)
{
    r->in_call = 0;
    buf_add_str(&r->calls, r->calls.len ? ", {\"name\": " : "{\"name\": ");
    json_write_string(&r->calls, buf_str(&r->name), r->name.len, 0);
    buf_add_str(&r->calls, complete ? ", \"arguments\": " : ", \"arguments_text\": ");
    if (complete)
        buf_add(&r->calls, buf_str(&r->arguments), r->arguments.len);
    else
        json_write_string(&r->calls, buf_str(&r->arguments), r->arguments.len, 0);
    return buf_add_char(&r->calls, '}');
}

static int collect(void *ctx, const struct reply_event *e)
{
    struct collected *r = ctx;
    switch (e->kind) {
    case REPLY_REASONING:
        return buf_add(&r->reasoning, e->text, e->n);
    case REPLY_TEXT:
        return buf_add(&r->content, e->text, e->n);
    case REPLY_CALL_BEGIN:
        r->in_call = 1;
        buf_clear(&r->name);
        buf_clear(&r->arguments);
        return buf_add(&r->name, e->text, e->n);
    case REPLY_CALL_ARGS:
        return buf_add(&r->arguments, e->text, e->n);
    case REPLY_CALL_END:
        return add_call(r, 1);
    }
    return 0;
}

static void collected_init(struct collected *r)
{
    struct buf *all[] = {&r->reasoning, &r->content, &r->name, &r->arguments, &r->calls};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        buf_init(all[i], MEM_TEXT, INPUT_MAX);
    r->in_call = 0;
}

static void collected_free(struct collected *r)
{
    buf_free(&r->reasoning);
    buf_free(&r->content);
    buf_free(&r->name);
    buf_free(&r->arguments);
    buf_free(&r->calls);
}

/* Pushes a text in pieces of `cut` bytes. */
static int push_cut(struct reply *r, const char *text, size_t n, size_t cut)
{
    for (size_t at = 0; at < n; at += cut) {
        int rc = reply_push(r, text + at, n - at < cut ? n - at : cut);
        if (rc != 0)
            return rc;
    }
    return 0;
}

static int push_pieces(struct reply *r, const json_t *pieces)
{
    size_t i;
    json_t *piece;
    json_array_foreach(pieces, i, piece)
    {
        int rc = reply_push(r, json_string_value(piece), json_string_length(piece));
        if (rc != 0)
            return rc;
    }
    return 0;
}

static void write_reply(const struct collected *got, const char *finish, struct buf *out)
{
    buf_add_str(out, "{\"reasoning_content\": ");
    json_write_string(out, buf_str(&got->reasoning), got->reasoning.len, 0);
    buf_add_str(out, ", \"content\": ");
    json_write_string(out, buf_str(&got->content), got->content.len, 0);
    buf_addf(out, ", \"tool_calls\": [%s], \"finish_reason\": \"%s\"}", buf_str(&got->calls), finish);
}

static void write_stop(const struct collected *got, const char *matched, struct buf *out)
{
    buf_add_str(out, "{\"text\": ");
    json_write_string(out, buf_str(&got->content), got->content.len, 0);
    buf_add_str(out, ", \"matched\": ");
    if (matched)
        json_write_string(out, matched, strlen(matched), 0);
    else
        buf_add_str(out, "null");
    buf_add_char(out, '}');
}

static int parse(struct cli *c, const json_t *in, struct collected *got, struct buf *out)
{
    const json_t *text = json_object_get(in, "text"), *pieces = json_object_get(in, "pieces"), *stops = json_object_get(in, "stop"), *tools = json_object_get(in, "tools");
    const char *stop[OPT_LIST_MAX], *finish = "", *how = json_string_value(json_object_get(in, "finish"));
    size_t n_stop = json_array_size(stops), cut = (size_t)json_integer_value(json_object_get(in, "cut"));
    struct reply *r = NULL;
    for (size_t i = 0; i < n_stop; i++) {
        if (i == OPT_LIST_MAX || !json_is_text(json_array_get(stops, i)))
            return err_set(&c->err, ERR_FORMAT, "\"stop\" is not a list of at most %d strings", OPT_LIST_MAX);
        stop[i] = json_string_value(json_array_get(stops, i));
    }
    struct reply_options options = {.tools = json_is_array(tools) ? tools : NULL, .in_reasoning = json_is_true(json_object_get(in, "in_reasoning")), .raw = pieces != NULL, .stop = stop,
                                    .n_stop = n_stop, .sink = collect, .ctx = got};
    TRY(reply_create(&options, &r, &c->err));
    int rc = pieces ? push_pieces(r, pieces) : push_cut(r, json_string_value(text), json_string_length(text), cut ? cut : SIZE_MAX / 2);
    if (rc >= 0)
        rc = reply_finish(r, !how || strcmp(how, "length") != 0, &finish);
    if (rc >= 0 && got->in_call)
        rc = add_call(got, 0);
    if (rc >= 0 && pieces)
        write_stop(got, reply_matched_stop(r), out);
    else if (rc >= 0)
        write_reply(got, finish, out);
    reply_free(r);
    return rc < 0 ? err_set(&c->err, rc, "the reply could not be read: out of memory") : 0;
}

static int reply_case(struct cli *c, void *ctx, const json_t *in, struct buf *out)
{
    struct collected got;
    (void)ctx;
    if (!json_is_text(json_object_get(in, "text")) && !json_is_array(json_object_get(in, "pieces")))
        return err_set(&c->err, ERR_FORMAT, "neither \"text\" nor \"pieces\" is there");
    collected_init(&got);
    int rc = parse(c, in, &got, out);
    collected_free(&got);
    return rc;
}

int verb_debug_reply(struct cli *c)
{
    return debug_each(c, reply_case, NULL);
}
