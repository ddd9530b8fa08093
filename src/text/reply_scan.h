/* Finds the tool calls in a piece of text that grows. A call begins for good at its first complete tag after the name; until then its bytes are held.
 * Nothing is scanned from the start again: each byte is looked at a bounded number of times. */
#ifndef TEXT_REPLY_SCAN_H
#define TEXT_REPLY_SCAN_H

#include <jansson.h>
#include <stddef.h>

struct reply_tool {
    const char *name;        /* not NUL-terminated by right; n bytes */
    size_t n;
    const json_t *properties; /* or NULL */
};

/* Each returns 0 or what ends the scan. */
struct scan_sink {
    int (*text)(void *ctx, const char *text, size_t n); /* is no part of a call */
    int (*begin)(void *ctx, const struct reply_tool *tool);
    int (*key)(void *ctx, const char *key, size_t n);
    int (*value)(void *ctx, const char *text, size_t n); /* more of the value of the last key */
    int (*value_end)(void *ctx);
    int (*end)(void *ctx);
};

/* Which lines are ``` fences: `odd` counts the complete ones before the current line. */
struct scan_lines {
    int odd;
    int ticks;    /* of the current line's start: 0..3, -1 when it starts with something else */
    int at_start; /* nothing of the current line is there */
};

enum scan_state {
    SCAN_TEXT,
    SCAN_OPENER,         /* in <tool_call> or <function= */
    SCAN_OPENER_SPACE,   /* after <tool_call> */
    SCAN_NAME,
    SCAN_COMMIT_SPACE,   /* after <function=NAME> */
    SCAN_COMMIT_TAG,
    SCAN_COMMIT_KEY,
    SCAN_BETWEEN,        /* in a call, outside of values */
    SCAN_BETWEEN_TAG,
    SCAN_KEY,
    SCAN_VALUE_FIRST,    /* a newline may be skipped */
    SCAN_VALUE_FIRST_CR,
    SCAN_VALUE,
    SCAN_VALUE_CR,       /* from here on bytes of the value are held */
    SCAN_VALUE_LF,
    SCAN_VALUE_TAG,
    SCAN_VALUE_ENDED,    /* after </parameter> */
    SCAN_VALUE_ENDED_TAG,
    SCAN_AFTER,          /* after </function>: </tool_call> may follow */
    SCAN_AFTER_TAG,
    SCAN_DONE            /* one complete call was found, and no more was asked for */
};

struct scan {
    const struct reply_tool *tools;
    size_t n_tools;
    const struct scan_sink *sink; /* NULL: only looks for the first complete call, and holds it */
    void *ctx;
    enum scan_state state;
    int chained;                  /* the opener follows another one */
    size_t at;                    /* next byte to look at */
    size_t hold;                  /* what stands before is decided */
    size_t tag;                   /* where the tag in work begins */
    size_t name, first, last;     /* where the name begins, and its trimmed range */
    const struct reply_tool *tool;
    struct scan_lines lines;
    size_t counted;               /* bytes that are in lines */
};

void scan_init(struct scan *s, const struct reply_tool *tools, size_t n_tools, const struct scan_sink *sink, void *ctx);

/* Looks at everything of data[0..n), which is the text from the last scan_drop on; whole characters only, valid UTF-8. */
int scan_run(struct scan *s, const char *data, size_t n);

/* The text ends: what was held and is no call goes out as text. */
int scan_finish(struct scan *s, const char *data, size_t n);

/* Forgets the first n bytes, n <= hold. The caller removes them from data. */
void scan_drop(struct scan *s, const char *data, size_t n);

/* Whether a call could begin right after what was scanned, with nothing but white space before it. */
int scan_call_may_follow(struct scan *s, const char *data);

#endif
