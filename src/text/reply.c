/* The reply parser. The whole text is kept; `at` is how far it has been decided, and every step either decides more or waits for bytes that could change the decision. What a
 * candidate has already matched is remembered, so that text in small pieces costs no more than in one. */
#include "text/reply.h"

#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "text/argument.h"
#include "text/space.h"
#include "text/stop.h"

#define MAX_REPLY ((size_t)256 << 20)

enum state { START, REASONING, AFTER_REASONING, CONTENT, CALL_BETWEEN, CALL_VALUE_START, CALL_VALUE, CALL_AFTER_FUNCTION, ENDED };
enum match { NO, YES, MAYBE };

/* A place where a call may begin, and how far it was followed. */
struct candidate {
    int active;
    size_t start, at;      /* `at`: the openers and white space before it are matched */
    size_t function;       /* where <function= begins; SIZE_MAX = not reached */
    size_t after_name;     /* behind its >; 0 = not reached */
    const json_t *tool;
};

struct reply {
    const json_t *tools;
    reply_sink *sink;
    void *ctx;
    struct stop_filter stop;
    struct buf text;       /* everything */
    struct buf out;        /* scratch for one event */
    size_t limit;          /* decided on up to here at most: whole code points only */
    int final, raw;
    enum state state;
    size_t at;
    size_t probe;          /* white space from `at` up to here was passed while waiting for what follows it */
    size_t rest_start;     /* where content begins: a line begins there */
    size_t held_from;      /* text before it has gone out or was dropped */
    size_t solid;          /* behind the last character that is no white space, at least held_from */
    int segment_solid;     /* this stretch between calls has such a character */
    size_t reasoning_bytes, content_bytes;
    size_t fence_scan, fence_line;  /* lines before fence_line are counted */
    int fences;
    struct candidate candidate;
    size_t reasoning_call; /* in reasoning: a call that began here holds the rest back; SIZE_MAX = none */
    int n_calls, last_complete;
    const json_t *call_tool;
    struct buf keys;       /* keys of the call so far, each with its length before it */
    int n_keys;
    size_t value_start, value_tail; /* of the current value; value_tail: progress of a possible end */
    size_t tail_start;     /* where that possible end begins; SIZE_MAX = none */
    const json_t *schema;
    size_t key_start, key_end;
    int key_known, key_streams;
};

static int event(struct reply *r, enum reply_kind kind, const char *text, size_t n)
{
    struct reply_event e = {.kind = kind, .call = r->n_calls - 1, .text = text, .n = n};
    return r->sink(r->ctx, &e);
}

static int is_space_at(const struct reply *r, size_t at, size_t *length)
{
    *length = at < r->limit ? space_length(r->text.data + at, r->limit - at) : 0;
    return *length > 0;
}

static enum match literal(const struct reply *r, size_t at, const char *word)
{
    size_t n = strlen(word), have = r->limit > at ? r->limit - at : 0, compare = have < n ? have : n;
    if (memcmp(r->text.data + at, word, compare) != 0)
        return NO;
    return have >= n ? YES : r->final ? NO : MAYBE;
}

/* The same where the end of the text settles nothing: a value that is cut off keeps back what may have been its end. */
static enum match literal_or_cut(const struct reply *r, size_t at, const char *word)
{
    enum match m = literal(r, at, word);
    size_t have = r->limit > at ? r->limit - at : 0;
    return m == NO && have < strlen(word) && memcmp(r->text.data + at, word, have) == 0 ? MAYBE : m;
}

static size_t skip_space(const struct reply *r, size_t at)
{
    for (size_t length; is_space_at(r, at, &length);)
        at += length;
    return at;
}

/* skip_space from r->at that goes on where it stopped when more bytes come. */
static size_t probe_space(struct reply *r)
{
    return r->probe = skip_space(r, r->probe > r->at ? r->probe : r->at);
}

/* --- text and reasoning out --- */

static int emit_content(struct reply *r, size_t from, size_t to)
{
    while (r->content_bytes == 0 && !r->raw && from < to && r->text.data[from] == '\n')
        from++;
    if (from >= to)
        return 0;
    r->content_bytes += to - from;
    buf_clear(&r->out);
    int stopped = stop_push(&r->stop, r->text.data + from, to - from, &r->out);
    TRY(stopped);
    if (r->out.len)
        TRY(event(r, REPLY_TEXT, r->out.data, r->out.len));
    if (stopped)
        r->state = ENDED;
    return stopped ? REPLY_STOPPED : 0;
}

/* Notes the character at `at` and goes past it: it is text for good. */
static void pass_character(struct reply *r)
{
    size_t length;
    if (is_space_at(r, r->at, &length)) {
        r->at += length;
        return;
    }
    uint32_t c;
    int step = utf8_decode(r->text.data + r->at, r->limit - r->at, &c);
    r->at += step > 0 ? (size_t)step : 1;
    r->solid = r->at;
    r->segment_solid = 1;
}

static int flush_content(struct reply *r)
{
    size_t to = r->tools ? r->solid : r->at; /* white space before a call does not count, so it waits when calls are possible */
    if (to <= r->held_from)
        return 0;
    size_t from = r->held_from;
    r->held_from = to;
    return emit_content(r, from, to);
}

static int flush_reasoning(struct reply *r, size_t to)
{
    size_t from = r->held_from, end = r->solid < to ? r->solid : to;
    if (from >= end)
        return 0;
    if (r->reasoning_bytes == 0)
        strip_space(r->text.data, &from, &end, 1, 0);
    r->held_from = end;
    if (from >= end)
        return 0;
    r->reasoning_bytes += end - from;
    return event(r, REPLY_REASONING, r->text.data + from, end - from);
}

/* --- where calls begin --- */

static int is_fence(const char *line, size_t n)
{
    size_t start = 0, end = n;
    strip_space(line, &start, &end, 1, 0);
    return end - start >= 3 && memcmp(line + start, "```", 3) == 0;
}

/* Whether `at` lies in a ``` fence: an odd number of the lines before its own open with one. */
static int is_fenced(struct reply *r, size_t at)
{
    while (r->fence_scan < at) {
        const char *newline = memchr(r->text.data + r->fence_scan, '\n', at - r->fence_scan);
        if (!newline) {
            r->fence_scan = at;
            break;
        }
        size_t end = (size_t)(newline - r->text.data);
        r->fences += is_fence(r->text.data + r->fence_line, end - r->fence_line);
        r->fence_scan = r->fence_line = end + 1;
    }
    return r->fences % 2;
}

static void restart_fences(struct reply *r, size_t at)
{
    r->fence_scan = r->fence_line = at;
    r->fences = 0;
}

static const json_t *find_tool(const struct reply *r, const char *name, size_t n)
{
    for (size_t i = json_array_size(r->tools); i-- > 0;) {
        const json_t *function = json_object_get(json_array_get(r->tools, i), "function"), *own = json_object_get(function, "name");
        if (json_is_string(own) && json_string_length(own) == n && memcmp(json_string_value(own), name, n) == 0)
            return function;
    }
    return NULL;
}

/* Whether some tool's name begins so. */
static int may_be_tool(const struct reply *r, const char *name, size_t n)
{
    for (size_t i = 0; i < json_array_size(r->tools); i++) {
        const json_t *own = json_object_get(json_object_get(json_array_get(r->tools, i), "function"), "name");
        if (json_is_string(own) && json_string_length(own) >= n && memcmp(json_string_value(own), name, n) == 0)
            return 1;
    }
    return 0;
}

/* <function=NAME> at c->function with a declared name. */
static enum match match_name(struct reply *r, struct candidate *c)
{
    size_t from = c->function + strlen("<function="), end = from;
    while (end < r->limit && r->text.data[end] != '>' && r->text.data[end] != '\n')
        end++;
    size_t start = from, stop = end;
    int closed = end < r->limit && r->text.data[end] == '>';
    strip_space(r->text.data, &start, &stop, 1, 1);
    if (!closed) {
        if (end < r->limit || r->final || !may_be_tool(r, r->text.data + start, stop - start))
            return NO;
        return MAYBE;
    }
    c->tool = end > from ? find_tool(r, r->text.data + start, stop - start) : NULL;
    if (!c->tool)
        return NO;
    c->after_name = c->at = end + 1;
    return YES;
}

static enum match match_key_tag(const struct reply *r, size_t at, size_t *end);

/* A call begins for good when a parameter or an end follows the name. */
static enum match match_commit(struct reply *r, struct candidate *c)
{
    static const char *const ends[] = {"</function>", "</tool_call>"};
    size_t unused;
    c->at = skip_space(r, c->at);
    if (c->at >= r->limit)
        return r->final ? NO : MAYBE;
    enum match best = match_key_tag(r, c->at, &unused);
    for (int i = 0; i < 2 && best != YES; i++) {
        enum match m = literal(r, c->at, ends[i]);
        best = m == NO ? best : m;
    }
    return best;
}

/* Openers, white space, the function tag; or the function tag alone at the start of a line. */
static enum match match_candidate(struct reply *r, struct candidate *c)
{
    while (c->function == SIZE_MAX) {
        if (c->at > c->start)
            c->at = skip_space(r, c->at);
        enum match m = literal(r, c->at, "<tool_call>");
        if (m == YES) {
            c->at += strlen("<tool_call>");
            continue;
        }
        enum match f = literal(r, c->at, "<function=");
        int line_start = c->start == r->rest_start || r->text.data[c->start - 1] == '\n';
        if (f == YES && (c->at > c->start || line_start)) {
            c->function = c->at;
            break;
        }
        return m == MAYBE || (f == MAYBE && (c->at > c->start || line_start)) ? MAYBE : NO;
    }
    if (!c->after_name) {
        enum match m = match_name(r, c);
        if (m != YES)
            return m;
    }
    return match_commit(r, c);
}

/* Looks at a < in content or reasoning. YES: a call begins at r->at. NO: r->at has passed what can be no beginning. */
static enum match try_call(struct reply *r)
{
    struct candidate *c = &r->candidate;
    if (!c->active || c->start != r->at)
        *c = (struct candidate){.active = 1, .start = r->at, .at = r->at, .function = SIZE_MAX};
    enum match m = match_candidate(r, c);
    if (m == YES && is_fenced(r, c->start))
        m = NO;
    if (m == NO) { /* later openers of the same chain end alike, so the whole chain is passed */
        size_t to = c->function != SIZE_MAX ? c->function : c->at;
        c->active = 0;
        do
            pass_character(r);
        while (r->at < to && r->at < r->limit);
    }
    return m;
}

/* --- inside calls --- */

/* <parameter=KEY>: *end is behind the >. */
static enum match match_key_tag(const struct reply *r, size_t at, size_t *end)
{
    enum match m = literal(r, at, "<parameter=");
    if (m != YES)
        return m;
    size_t from = at + strlen("<parameter="), i = from;
    while (i < r->limit && r->text.data[i] != '>' && r->text.data[i] != '\n')
        i++;
    if (i >= r->limit)
        return r->final ? NO : MAYBE;
    *end = i + 1;
    return r->text.data[i] == '>' && i > from ? YES : NO;
}

static int has_key(const struct reply *r, const char *key, size_t n)
{
    for (size_t i = 0; i < r->keys.len;) {
        size_t length;
        memcpy(&length, r->keys.data + i, sizeof length);
        if (length == n && memcmp(r->keys.data + i + sizeof length, key, n) == 0)
            return 1;
        i += sizeof length + length;
    }
    return 0;
}

static int begin_call(struct reply *r)
{
    struct candidate c = r->candidate;
    r->candidate.active = 0;
    r->held_from = r->solid = r->at = c.after_name;
    r->n_calls++;
    r->last_complete = 0;
    r->call_tool = c.tool;
    r->n_keys = 0;
    buf_clear(&r->keys);
    r->state = CALL_BETWEEN;
    const json_t *name = json_object_get(c.tool, "name");
    TRY(event(r, REPLY_CALL_BEGIN, json_string_value(name), json_string_length(name)));
    return event(r, REPLY_CALL_ARGS, "{", 1);
}

static int end_call(struct reply *r, size_t at, enum state next)
{
    r->at = r->held_from = r->solid = at;
    r->segment_solid = 0;
    r->last_complete = 1;
    r->state = next;
    TRY(event(r, REPLY_CALL_ARGS, "}", 1));
    return event(r, REPLY_CALL_END, "", 0);
}

static int write_key(struct reply *r)
{
    buf_clear(&r->out);
    if (r->n_keys++)
        buf_add_str(&r->out, ", ");
    json_write_string(&r->out, r->text.data + r->key_start, r->key_end - r->key_start, 0);
    return buf_add_str(&r->out, ": ");
}

static int remember_key(struct reply *r)
{
    size_t n = r->key_end - r->key_start;
    buf_add(&r->keys, &n, sizeof n);
    return buf_add(&r->keys, r->text.data + r->key_start, n);
}

static int begin_value(struct reply *r, size_t tag, size_t end)
{
    r->key_start = tag + strlen("<parameter=");
    r->key_end = end - 1;
    strip_space(r->text.data, &r->key_start, &r->key_end, 1, 1);
    r->key_known = has_key(r, r->text.data + r->key_start, r->key_end - r->key_start);
    r->schema = argument_schema(r->call_tool, r->text.data + r->key_start, r->key_end - r->key_start);
    r->key_streams = argument_streams(r->schema);
    r->at = end;
    r->state = CALL_VALUE_START;
    if (r->key_known || !r->key_streams)
        return 0;
    TRY(write_key(r));
    TRY(buf_add_char(&r->out, '"'));
    return event(r, REPLY_CALL_ARGS, r->out.data, r->out.len);
}

/* Between parameters: the next tag; everything else is passed over. Returns 1 when more bytes are needed. */
static int step_between(struct reply *r)
{
    for (; r->at < r->limit; r->at++) {
        size_t end;
        if (r->text.data[r->at] != '<')
            continue;
        enum match key = match_key_tag(r, r->at, &end), function = literal(r, r->at, "</function>"), call = literal(r, r->at, "</tool_call>");
        if (key == YES)
            return begin_value(r, r->at, end);
        if (function == YES)
            return end_call(r, r->at + strlen("</function>"), CALL_AFTER_FUNCTION);
        if (call == YES)
            return end_call(r, r->at + strlen("</tool_call>"), CONTENT);
        if (key == MAYBE || function == MAYBE || call == MAYBE)
            return 1;
    }
    return 1;
}

static int step_value_start(struct reply *r)
{
    if (r->at >= r->limit)
        return 1;
    if (r->text.data[r->at] == '\r' && r->at + 1 >= r->limit && !r->final)
        return 1;
    if (r->text.data[r->at] == '\r' && r->at + 1 < r->limit && r->text.data[r->at + 1] == '\n')
        r->at += 2;
    else if (r->text.data[r->at] == '\n')
        r->at++;
    r->value_start = r->held_from = r->at;
    r->tail_start = SIZE_MAX;
    r->state = CALL_VALUE;
    return 0;
}

/* The end of a value at r->at: at most one newline, </parameter>, or a run of them, and then a tag that can only follow a value. *end: behind the run. */
static enum match match_value_end(struct reply *r, size_t *end)
{
    static const char *const followers[] = {"<parameter=", "</function>", "</tool_call>"};
    size_t at = r->at;
    if (r->tail_start != r->at) {
        if (r->text.data[at] == '\r') {
            enum match m = literal_or_cut(r, at, "\r\n");
            if (m != YES)
                return m;
            at++;
        }
        at += r->text.data[at] == '\n';
        enum match m = literal_or_cut(r, at, "</parameter>");
        if (m != YES)
            return m;
        r->tail_start = r->at;
        r->value_tail = at + strlen("</parameter>");
    }
    for (;;) {
        size_t next = skip_space(r, r->value_tail);
        enum match more = literal_or_cut(r, next, "</parameter>");
        if (more == YES) {
            r->value_tail = next + strlen("</parameter>");
            continue;
        }
        *end = r->value_tail;
        for (int i = 0; i < 3; i++) {
            enum match m = literal_or_cut(r, next, followers[i]);
            if (m == YES)
                return YES;
            more = m == MAYBE ? MAYBE : more;
        }
        return more;
    }
}

static int emit_value(struct reply *r, size_t to)
{
    if (r->key_known || !r->key_streams || to <= r->held_from)
        return 0;
    buf_clear(&r->out);
    TRY(json_write_string(&r->out, r->text.data + r->held_from, to - r->held_from, 0));
    r->held_from = to;
    return event(r, REPLY_CALL_ARGS, r->out.data + 1, r->out.len - 2); /* without the quotes */
}

static int end_value(struct reply *r, size_t end)
{
    size_t value_end = r->at;
    TRY(emit_value(r, value_end));
    if (!r->key_known) {
        if (r->key_streams) {
            TRY(event(r, REPLY_CALL_ARGS, "\"", 1));
        } else {
            TRY(write_key(r));
            TRY(argument_convert(r->text.data + r->value_start, value_end - r->value_start, r->schema, &r->out));
            TRY(event(r, REPLY_CALL_ARGS, r->out.data, r->out.len));
        }
        TRY(remember_key(r));
    }
    r->at = end;
    r->state = CALL_BETWEEN;
    return 0;
}

static int step_value(struct reply *r)
{
    for (; r->at < r->limit; r->at++) {
        char c = r->text.data[r->at];
        size_t end;
        if (c != '<' && c != '\n' && c != '\r')
            continue;
        enum match m = match_value_end(r, &end);
        if (m == YES)
            return end_value(r, end);
        if (m == MAYBE) {
            TRY(emit_value(r, r->at));
            return 1;
        }
        if (r->tail_start == r->at) /* a run of ends that leads nowhere is value, and so is every end in it */
            r->at = r->value_tail - 1;
    }
    TRY(emit_value(r, r->at));
    return 1;
}

/* </function> may be followed by </tool_call>, which belongs to the call. */
static int step_after_function(struct reply *r)
{
    size_t at = probe_space(r);
    enum match m = literal(r, at, "</tool_call>");
    if (m == MAYBE)
        return 1;
    if (m == YES)
        r->at = r->held_from = r->solid = at + strlen("</tool_call>");
    r->state = CONTENT;
    return 0;
}

/* --- the beginning, reasoning, content --- */

static void enter_content(struct reply *r, size_t at)
{
    r->at = r->rest_start = r->held_from = r->solid = at;
    r->segment_solid = 0;
    r->candidate.active = 0;
    restart_fences(r, at);
    r->state = CONTENT;
}

static void enter_reasoning(struct reply *r, size_t at)
{
    enter_content(r, at);
    r->reasoning_call = SIZE_MAX;
    r->state = REASONING;
}

static int step_start(struct reply *r)
{
    size_t at = probe_space(r);
    enum match open = literal(r, at, "<think>"), close = literal(r, at, "</think>");
    if (open == MAYBE || close == MAYBE)
        return 1;
    if (open == YES)
        enter_reasoning(r, at + strlen("<think>"));
    else
        enter_content(r, close == YES ? at + strlen("</think>") : r->at);
    return 0;
}

/* A second end of reasoning right after the first is swallowed (B96). */
static int step_after_reasoning(struct reply *r)
{
    size_t at = probe_space(r);
    enum match close = literal(r, at, "</think>");
    if (close == MAYBE)
        return 1;
    enter_content(r, close == YES ? at + strlen("</think>") : r->at);
    return 0;
}

/* The reasoning was never closed. A complete call in it closes it (B62); an unfinished one is reasoning like the rest. */
static int end_open_reasoning(struct reply *r);

static int step_reasoning(struct reply *r)
{
    while (r->at < r->limit) {
        if (r->text.data[r->at] != '<') {
            pass_character(r);
            continue;
        }
        enum match close = literal(r, r->at, "</think>");
        if (close == YES) {
            TRY(flush_reasoning(r, r->at));
            r->at += strlen("</think>");
            r->state = AFTER_REASONING;
            return 0;
        }
        if (close == MAYBE)
            break;
        if (r->reasoning_call != SIZE_MAX || !r->tools) {
            pass_character(r);
            continue;
        }
        enum match call = try_call(r);
        if (call == MAYBE)
            break;
        if (call == YES) {
            TRY(flush_reasoning(r, r->at));
            r->reasoning_call = r->at;
            pass_character(r);
        }
    }
    if (r->final)
        return end_open_reasoning(r);
    if (r->reasoning_call == SIZE_MAX)
        TRY(flush_reasoning(r, r->at));
    return 1;
}

static int step_content(struct reply *r)
{
    while (r->at < r->limit) {
        if (!r->tools || r->text.data[r->at] != '<') {
            pass_character(r);
            continue;
        }
        enum match call = try_call(r);
        if (call == MAYBE)
            break;
        if (call == YES) {
            TRY(flush_content(r));
            return r->state == ENDED ? 1 : begin_call(r);
        }
    }
    int rc = flush_content(r);
    return rc != 0 ? rc : 1;
}

/* Runs until more bytes are needed (1), the text has ended, or an error. */
static int run(struct reply *r)
{
    int rc = 0;
    while (rc == 0 && r->state != ENDED) {
        switch (r->state) {
        case START:
            rc = step_start(r);
            break;
        case REASONING:
            rc = step_reasoning(r);
            break;
        case AFTER_REASONING:
            rc = step_after_reasoning(r);
            break;
        case CONTENT:
            rc = step_content(r);
            break;
        case CALL_BETWEEN:
            rc = step_between(r);
            break;
        case CALL_VALUE_START:
            rc = step_value_start(r);
            break;
        case CALL_VALUE:
            rc = step_value(r);
            break;
        case CALL_AFTER_FUNCTION:
            rc = step_after_function(r);
            break;
        case ENDED:
            break;
        }
    }
    return rc < 0 ? rc : 0;
}

static int ignore_event(void *ctx, const struct reply_event *e)
{
    int *complete = ctx;
    *complete |= e->kind == REPLY_CALL_END;
    return 0;
}

/* Whether the call at reasoning_call reaches its end: a second parser is asked, so that one set of rules decides. */
static int call_is_complete(struct reply *r)
{
    int complete = 0;
    struct reply *probe = NULL;
    const char *reason;
    struct err ignored;
    struct reply_options o = {.tools = r->tools, .sink = ignore_event, .ctx = &complete};
    TRY(reply_create(&o, &probe, &ignored));
    enter_content(probe, 0);
    int rc = reply_push(probe, r->text.data + r->reasoning_call, r->text.len - r->reasoning_call);
    if (rc >= 0)
        rc = reply_finish(probe, 1, &reason);
    reply_free(probe);
    return rc < 0 ? rc : complete;
}

static int end_open_reasoning(struct reply *r)
{
    int complete = 0;
    if (r->reasoning_call != SIZE_MAX) {
        complete = call_is_complete(r);
        TRY(complete);
    }
    if (!complete)
        TRY(flush_reasoning(r, r->text.len));
    if (complete) { /* the reasoning before the call has gone out when the call began */
        enter_content(r, r->reasoning_call);
        return 0;
    }
    r->held_from = r->at = r->text.len;
    r->state = ENDED;
    return 0;
}

int reply_create(const struct reply_options *o, struct reply **out, struct err *err)
{
    struct reply *r = mem_alloc(MEM_TEXT, sizeof *r);
    if (!r)
        return err_set(err, ERR_NO_MEMORY, "out of memory for a reply");
    r->tools = json_array_size(o->tools) ? o->tools : NULL;
    r->sink = o->sink;
    r->ctx = o->ctx;
    r->raw = o->raw;
    buf_init(&r->text, MEM_TEXT, MAX_REPLY);
    buf_init(&r->out, MEM_TEXT, 2 * MAX_REPLY);
    buf_init(&r->keys, MEM_TEXT, MAX_REPLY);
    r->reasoning_call = SIZE_MAX;
    r->state = o->raw ? CONTENT : o->in_reasoning ? REASONING : START;
    if (buf_reserve(&r->text, 256) < 0 || stop_init(&r->stop, o->stop, o->n_stop) < 0) {
        reply_free(r);
        return err_set(err, ERR_NO_MEMORY, "out of memory for a reply");
    }
    *out = r;
    return 0;
}

void reply_free(struct reply *r)
{
    if (!r)
        return;
    stop_free(&r->stop);
    buf_free(&r->text);
    buf_free(&r->out);
    buf_free(&r->keys);
    mem_free(r);
}

/* Bytes of an unfinished UTF-8 sequence at the end. */
static size_t unfinished(const struct buf *text)
{
    for (size_t back = 1; back <= 3 && back <= text->len; back++) {
        uint32_t c;
        unsigned char b = (unsigned char)text->data[text->len - back];
        if ((b & 0xC0) == 0x80)
            continue;
        return b >= 0xC0 && utf8_decode(text->data + text->len - back, back, &c) == 0 ? back : 0;
    }
    return 0;
}

int reply_push(struct reply *r, const char *bytes, size_t n)
{
    if (r->stop.hit)
        return REPLY_STOPPED;
    TRY(buf_add(&r->text, bytes, n));
    r->limit = r->text.len - unfinished(&r->text);
    TRY(run(r));
    return r->stop.hit ? REPLY_STOPPED : 0;
}

/* White space that waited for a call, when none came; what a stop string held back. */
static int finish_content(struct reply *r)
{
    if (r->state == CONTENT && (r->n_calls == 0 || r->segment_solid)) {
        size_t from = r->held_from;
        r->held_from = r->text.len;
        TRY(emit_content(r, from, r->text.len));
    }
    if (r->stop.hit)
        return 0;
    buf_clear(&r->out);
    TRY(stop_finish(&r->stop, &r->out));
    return r->out.len ? event(r, REPLY_TEXT, r->out.data, r->out.len) : 0;
}

int reply_finish(struct reply *r, int model_stopped, const char **finish_reason)
{
    if (!r->stop.hit) {
        r->final = 1;
        r->limit = r->text.len;
        TRY(run(r));
        TRY(finish_content(r));
    }
    int called = r->n_calls > 0 && r->last_complete && model_stopped && !r->stop.hit;
    *finish_reason = called ? "tool_calls" : model_stopped || r->stop.hit ? "stop" : "length";
    return 0;
}

const char *reply_matched_stop(const struct reply *r)
{
    return r->stop.hit;
}

size_t reply_reasoning_bytes(const struct reply *r)
{
    return r->reasoning_bytes;
}
