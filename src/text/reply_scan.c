/* One step function a state; each takes bytes or changes the state. Invariant: data[hold..at) is undecided, and in SCAN_TEXT nothing is. */
#include "text/reply_scan.h"

#include <string.h>

#include "text/space.h"

#define TRY_ALL(expression)      \
    do {                         \
        int all_rc_ = (expression); \
        if (all_rc_ != 0)        \
            return all_rc_;      \
    } while (0)

static const char open_call[] = "<tool_call>", close_call[] = "</tool_call>", open_function[] = "<function=", close_function[] = "</function>";
static const char open_parameter[] = "<parameter=", close_parameter[] = "</parameter>";

void scan_init(struct scan *s, const struct reply_tool *tools, size_t n_tools, const struct scan_sink *sink, void *ctx)
{
    *s = (struct scan){.tools = tools, .n_tools = n_tools, .sink = sink, .ctx = ctx};
    s->lines.at_start = 1;
}

/* Counts data[counted..to) into the lines. */
static void count_lines(struct scan *s, const char *data, size_t to)
{
    struct scan_lines *l = &s->lines;
    while (s->counted < to) {
        const char *p = data + s->counted;
        size_t step = 1;
        if (*p == '\n') {
            l->odd ^= l->ticks == 3;
            *l = (struct scan_lines){.odd = l->odd, .at_start = 1};
        } else {
            if (l->ticks == 3 || l->ticks < 0) { /* nothing but the line's end matters */
                const char *end = memchr(p, '\n', to - s->counted);
                step = end ? (size_t)(end - p) : to - s->counted;
            } else if (*p == '`') {
                l->ticks++;
            } else {
                size_t space = l->ticks == 0 ? space_length(p, to - s->counted) : 0;
                l->ticks = space ? 0 : -1;
                step = space ? space : 1;
            }
            l->at_start = 0;
        }
        s->counted += step;
    }
}

int scan_call_may_follow(struct scan *s, const char *data)
{
    if (s->n_tools == 0)
        return 0;
    count_lines(s, data, s->hold);
    return s->state != SCAN_TEXT || !s->lines.odd || s->lines.ticks == 3;
}

void scan_drop(struct scan *s, const char *data, size_t n)
{
    size_t *const places[] = {&s->at, &s->hold, &s->tag, &s->name, &s->first, &s->last, &s->counted};
    count_lines(s, data, n);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        *places[i] = *places[i] > n ? *places[i] - n : 0;
}

/* Whether data[tag..at] (at is taken too) is the start of `text`: 2 when it is all of it. */
static int matches(const struct scan *s, const char *data, const char *text)
{
    size_t n = s->at + 1 - s->tag, all = strlen(text);
    if (n > all || memcmp(data + s->tag, text, n) != 0)
        return 0;
    return n == all ? 2 : 1;
}

static int text_out(struct scan *s, const char *data, size_t to)
{
    size_t from = s->hold;
    s->hold = to;
    return s->sink && to > from ? s->sink->text(s->ctx, data + from, to - from) : 0;
}

static int value_out(struct scan *s, const char *data, size_t to)
{
    size_t from = s->hold;
    if (!s->sink)
        return 0;
    s->hold = to;
    return to > from ? s->sink->value(s->ctx, data + from, to - from) : 0;
}

static void enter_tag(struct scan *s, enum scan_state state)
{
    s->tag = s->at++;
    s->state = state;
}

/* What is held is no call. `from` is where a call could begin next: every opener before it leads to the same dead end. */
static int no_call(struct scan *s, const char *data, size_t from)
{
    s->at = from > s->hold ? from : s->hold + 1;
    s->state = SCAN_TEXT;
    return text_out(s, data, s->at);
}

static int step_text(struct scan *s, const char *data, size_t n)
{
    const char *next = s->n_tools ? memchr(data + s->at, '<', n - s->at) : NULL;
    s->at = next ? (size_t)(next - data) : n;
    TRY_ALL(text_out(s, data, s->at));
    if (!next)
        return 0;
    count_lines(s, data, s->at);
    if (s->lines.odd) { /* in a fence */
        s->at++;
        return text_out(s, data, s->at);
    }
    s->chained = s->lines.at_start;
    enter_tag(s, SCAN_OPENER);
    return 0;
}

/* chained: <function= may stand here, at a line's start or after <tool_call>. */
static int step_opener(struct scan *s, const char *data)
{
    int call = matches(s, data, open_call), function = s->chained ? matches(s, data, open_function) : 0;
    if (!call && !function)
        return no_call(s, data, s->tag);
    s->at++;
    if (call == 2) {
        s->state = SCAN_OPENER_SPACE;
    } else if (function == 2) {
        s->name = s->first = s->last = s->at;
        s->state = SCAN_NAME;
    }
    return 0;
}

static int step_opener_space(struct scan *s, const char *data, size_t n)
{
    size_t space = space_length(data + s->at, n - s->at);
    if (space) {
        s->at += space;
    } else if (data[s->at] == '<') {
        s->chained = 1;
        enter_tag(s, SCAN_OPENER);
    } else {
        return no_call(s, data, s->at);
    }
    return 0;
}

static const struct reply_tool *find_tool(const struct scan *s, const char *name, size_t n)
{
    for (size_t i = s->n_tools; i-- > 0;) /* of two of one name the last counts */
        if (s->tools[i].n == n && memcmp(s->tools[i].name, name, n) == 0)
            return &s->tools[i];
    return NULL;
}

static int begins_tool(const struct scan *s, const char *name, size_t n)
{
    for (size_t i = 0; i < s->n_tools; i++)
        if (s->tools[i].n >= n && memcmp(s->tools[i].name, name, n) == 0)
            return 1;
    return 0;
}

/* A name that no declared one can become ends the call at once. */
static int step_name(struct scan *s, const char *data, size_t n)
{
    const char *name = data + s->first;
    if (data[s->at] == '>') {
        s->tool = s->at > s->name ? find_tool(s, name, s->last - s->first) : NULL;
        if (!s->tool)
            return no_call(s, data, s->tag);
        s->at++;
        s->state = SCAN_COMMIT_SPACE;
        return 0;
    }
    if (data[s->at] == '\n')
        return no_call(s, data, s->tag);
    size_t space = space_length(data + s->at, n - s->at);
    if (space && s->first == s->last) {
        s->at += space;
        s->first = s->last = s->at;
        return 0;
    }
    size_t end = s->at + (space ? space : 1);
    if (!begins_tool(s, name, end - s->first) && !(space && find_tool(s, name, s->last - s->first)))
        return no_call(s, data, s->tag);
    s->at = end;
    if (!space)
        s->last = end;
    return 0;
}

static int step_commit_space(struct scan *s, const char *data, size_t n)
{
    size_t space = space_length(data + s->at, n - s->at);
    if (space)
        s->at += space;
    else if (data[s->at] == '<')
        enter_tag(s, SCAN_COMMIT_TAG);
    else
        return no_call(s, data, s->at);
    return 0;
}

/* From here on it is a call, whatever follows. Its first tag is read again, by the state for all tags. */
static int commit(struct scan *s)
{
    s->state = SCAN_BETWEEN;
    s->at = s->tag;
    if (!s->sink)
        return 0;
    s->hold = s->tag;
    return s->sink->begin(s->ctx, s->tool);
}

static int step_commit_tag(struct scan *s, const char *data)
{
    int parameter = matches(s, data, open_parameter), function = matches(s, data, close_function), call = matches(s, data, close_call);
    if (function == 2 || call == 2)
        return commit(s);
    if (!parameter && !function && !call)
        return no_call(s, data, s->tag);
    s->at++;
    if (parameter == 2) {
        s->name = s->at;
        s->state = SCAN_COMMIT_KEY;
    }
    return 0;
}

static int step_commit_key(struct scan *s, const char *data)
{
    char c = data[s->at];
    if (c == '\n' || (c == '>' && s->at == s->name))
        return no_call(s, data, s->tag);
    if (c == '>')
        return commit(s);
    s->at++;
    return 0;
}

/* What stands outside of tags is skipped. */
static void skip_to(struct scan *s, size_t to)
{
    if (s->sink)
        s->hold = to;
}

static int step_between(struct scan *s, const char *data, size_t n)
{
    const char *next = memchr(data + s->at, '<', n - s->at);
    s->at = next ? (size_t)(next - data) : n;
    skip_to(s, s->at);
    if (next)
        enter_tag(s, SCAN_BETWEEN_TAG);
    return 0;
}

static int call_end(struct scan *s, enum scan_state next)
{
    s->at++;
    skip_to(s, s->at);
    s->state = s->sink ? next : SCAN_DONE;
    return s->sink ? s->sink->end(s->ctx) : 0;
}

static int step_between_tag(struct scan *s, const char *data)
{
    int parameter = matches(s, data, open_parameter), function = matches(s, data, close_function), call = matches(s, data, close_call);
    if (function == 2)
        return call_end(s, SCAN_AFTER);
    if (call == 2)
        return call_end(s, SCAN_TEXT);
    if (!parameter && !function && !call) {
        s->state = SCAN_BETWEEN;
        return 0;
    }
    s->at++;
    if (parameter == 2) {
        s->name = s->at;
        s->state = SCAN_KEY;
    }
    return 0;
}

static int key_out(struct scan *s, const char *data)
{
    size_t first = s->name, last = s->at;
    strip_space(data, &first, &last, 1, 1);
    return s->sink->key(s->ctx, data + first, last - first);
}

static int step_key(struct scan *s, const char *data)
{
    char c = data[s->at];
    if (c == '\n' || (c == '>' && s->at == s->name)) {
        s->state = SCAN_BETWEEN;
        return 0;
    }
    if (c == '>') {
        s->state = SCAN_VALUE_FIRST;
        if (s->sink)
            TRY_ALL(key_out(s, data));
        skip_to(s, s->at + 1);
    }
    s->at++;
    return 0;
}

static int step_value_first(struct scan *s, const char *data)
{
    char c = data[s->at];
    int after_cr = s->state == SCAN_VALUE_FIRST_CR;
    if (c == '\n') {
        s->at++;
        skip_to(s, s->at);
        s->state = SCAN_VALUE;
    } else if (c == '\r' && !after_cr) {
        s->at++;
        s->state = SCAN_VALUE_FIRST_CR;
    } else {
        s->state = after_cr ? SCAN_VALUE_CR : SCAN_VALUE;
    }
    return 0;
}

static int step_value(struct scan *s, const char *data, size_t n)
{
    size_t at = s->at;
    while (at < n && data[at] != '<' && data[at] != '\n' && data[at] != '\r')
        at++;
    s->at = at;
    TRY_ALL(value_out(s, data, at));
    if (at == n)
        return 0;
    if (data[at] == '<') {
        enter_tag(s, SCAN_VALUE_TAG);
    } else {
        s->state = data[at] == '\r' ? SCAN_VALUE_CR : SCAN_VALUE_LF;
        s->at++;
    }
    return 0;
}

/* What is held turned out to be part of the value. */
static int value_goes_on(struct scan *s, const char *data)
{
    s->state = SCAN_VALUE;
    return value_out(s, data, s->at);
}

static int step_value_newline(struct scan *s, const char *data)
{
    if (s->state == SCAN_VALUE_CR && data[s->at] == '\n') {
        s->at++;
        s->state = SCAN_VALUE_LF;
        return 0;
    }
    if (s->state == SCAN_VALUE_LF && data[s->at] == '<') {
        enter_tag(s, SCAN_VALUE_TAG);
        return 0;
    }
    return value_goes_on(s, data);
}

static int step_value_tag(struct scan *s, const char *data)
{
    int match = matches(s, data, close_parameter);
    if (!match)
        return value_goes_on(s, data);
    s->at++;
    if (match == 2)
        s->state = SCAN_VALUE_ENDED;
    return 0;
}

static int step_value_ended(struct scan *s, const char *data, size_t n)
{
    size_t space = space_length(data + s->at, n - s->at);
    if (space)
        s->at += space;
    else if (data[s->at] == '<')
        enter_tag(s, SCAN_VALUE_ENDED_TAG);
    else
        return value_goes_on(s, data);
    return 0;
}

static int step_value_ended_tag(struct scan *s, const char *data)
{
    int again = matches(s, data, close_parameter), parameter = matches(s, data, open_parameter);
    int function = matches(s, data, close_function), call = matches(s, data, close_call);
    if (!again && !parameter && !function && !call)
        return value_goes_on(s, data);
    if (parameter == 2 || function == 2 || call == 2) { /* that tag is read again */
        s->at = s->tag;
        skip_to(s, s->at);
        s->state = SCAN_BETWEEN;
        return s->sink ? s->sink->value_end(s->ctx) : 0;
    }
    s->at++;
    if (again == 2)
        s->state = SCAN_VALUE_ENDED;
    return 0;
}

static int step_after(struct scan *s, const char *data, size_t n)
{
    if (s->state == SCAN_AFTER) {
        size_t space = space_length(data + s->at, n - s->at);
        if (space) {
            s->at += space;
            return 0;
        }
        if (data[s->at] == '<') {
            enter_tag(s, SCAN_AFTER_TAG);
            return 0;
        }
    } else {
        int match = matches(s, data, close_call);
        if (match) {
            s->at++;
            if (match == 2) {
                s->hold = s->at;
                s->state = SCAN_TEXT;
            }
            return 0;
        }
    }
    s->at = s->hold; /* the call ended before this white space */
    s->state = SCAN_TEXT;
    return 0;
}

static int step(struct scan *s, const char *data, size_t n)
{
    switch (s->state) {
    case SCAN_TEXT:
        return step_text(s, data, n);
    case SCAN_OPENER:
        return step_opener(s, data);
    case SCAN_OPENER_SPACE:
        return step_opener_space(s, data, n);
    case SCAN_NAME:
        return step_name(s, data, n);
    case SCAN_COMMIT_SPACE:
        return step_commit_space(s, data, n);
    case SCAN_COMMIT_TAG:
        return step_commit_tag(s, data);
    case SCAN_COMMIT_KEY:
        return step_commit_key(s, data);
    case SCAN_BETWEEN:
        return step_between(s, data, n);
    case SCAN_BETWEEN_TAG:
        return step_between_tag(s, data);
    case SCAN_KEY:
        return step_key(s, data);
    case SCAN_VALUE_FIRST:
    case SCAN_VALUE_FIRST_CR:
        return step_value_first(s, data);
    case SCAN_VALUE:
        return step_value(s, data, n);
    case SCAN_VALUE_CR:
    case SCAN_VALUE_LF:
        return step_value_newline(s, data);
    case SCAN_VALUE_TAG:
        return step_value_tag(s, data);
    case SCAN_VALUE_ENDED:
        return step_value_ended(s, data, n);
    case SCAN_VALUE_ENDED_TAG:
        return step_value_ended_tag(s, data);
    case SCAN_AFTER:
    case SCAN_AFTER_TAG:
        return step_after(s, data, n);
    case SCAN_DONE:
        s->at = n;
    }
    return 0;
}

int scan_run(struct scan *s, const char *data, size_t n)
{
    while (s->at < n)
        TRY_ALL(step(s, data, n));
    return 0;
}

int scan_finish(struct scan *s, const char *data, size_t n)
{
    int outside = s->state <= SCAN_COMMIT_KEY || s->state == SCAN_AFTER || s->state == SCAN_AFTER_TAG;
    s->at = n;
    return outside ? text_out(s, data, n) : 0;
}
