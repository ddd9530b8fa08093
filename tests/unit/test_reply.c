/* Replies against the rules in code, whole and cut at every place (B60-B96, B124-B127, S32). */
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "support/test.h"
#include "text/reply.h"

struct heard {
    struct buf reasoning, content, calls; /* calls as "name\x01arguments\x02" (or \x03 when unfinished) */
    int open;
};

static int on_event(void *ctx, const struct reply_event *e)
{
    struct heard *h = ctx;
    switch (e->kind) {
    case REPLY_REASONING:
        return buf_add(&h->reasoning, e->text, e->n);
    case REPLY_TEXT:
        return buf_add(&h->content, e->text, e->n);
    case REPLY_CALL_BEGIN:
        h->open = 1;
        buf_add(&h->calls, e->text, e->n);
        return buf_add_char(&h->calls, 1);
    case REPLY_CALL_ARGS:
        assert_true(h->open);
        return buf_add(&h->calls, e->text, e->n);
    case REPLY_CALL_END:
        h->open = 0;
        return buf_add_char(&h->calls, 2);
    }
    return ERR_INTERNAL;
}

static void heard_init(struct heard *h)
{
    buf_init(&h->reasoning, MEM_OTHER, 1 << 26);
    buf_init(&h->content, MEM_OTHER, 1 << 26);
    buf_init(&h->calls, MEM_OTHER, 1 << 26);
    h->open = 0;
}

static void heard_free(struct heard *h)
{
    buf_free(&h->reasoning);
    buf_free(&h->content);
    buf_free(&h->calls);
}

/* Feeds text cut after each offset of cuts (ascending), ends it. */
static const char *feed(struct heard *h, const json_t *one, const size_t *cuts, size_t n_cuts)
{
    const json_t *text = json_object_get(one, "text"), *tools = json_object_get(one, "tools");
    struct reply_options o = {.tools = json_is_array(tools) ? tools : NULL, .in_reasoning = json_is_true(json_object_get(one, "in_reasoning")), .sink = on_event, .ctx = h};
    struct reply *r = NULL;
    struct err err = {0};
    const char *reason = NULL;
    size_t at = 0, n = json_string_length(text);
    test_ok(reply_create(&o, &r, &err), &err, "reply");
    for (size_t i = 0; i <= n_cuts; i++) {
        size_t to = i < n_cuts ? cuts[i] : n;
        assert_int_equal(reply_push(r, json_string_value(text) + at, to - at), 0);
        at = to;
    }
    assert_int_equal(reply_finish(r, strcmp(json_string_value(json_object_get(one, "finish")), "stop") == 0, &reason), 0);
    reply_free(r);
    return reason;
}

static void same(const char *name, const char *part, const struct buf *got, const char *want, size_t n, size_t cut)
{
    if (got->len != n || memcmp(buf_str(got), want, n) != 0)
        fail_msg("%s (cut at %zu): %s is \"%s\", expected \"%.*s\"", name, cut, part, buf_str(got), (int)n, want);
}

static void check(const json_t *one, const struct heard *h, const char *reason, size_t cut)
{
    const json_t *want = json_object_get(one, "want"), *calls = json_object_get(want, "tool_calls");
    const char *name = json_string_value(json_object_get(one, "name"));
    struct buf expected;
    buf_init(&expected, MEM_OTHER, 1 << 26);
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *call = json_array_get(calls, i), *arguments = json_object_get(call, "arguments"), *cut_short = json_object_get(call, "arguments_text");
        buf_addf(&expected, "%s\x01", json_string_value(json_object_get(call, "name")));
        if (cut_short)
            buf_add(&expected, json_string_value(cut_short), json_string_length(cut_short));
        else
            json_write_python(&expected, arguments, -1);
        if (!cut_short)
            buf_add_char(&expected, 2);
    }
    const json_t *reasoning = json_object_get(want, "reasoning_content"), *content = json_object_get(want, "content");
    same(name, "reasoning", &h->reasoning, json_string_value(reasoning), json_string_length(reasoning), cut);
    same(name, "content", &h->content, json_string_value(content), json_string_length(content), cut);
    same(name, "calls", &h->calls, buf_str(&expected), expected.len, cut);
    assert_string_equal(reason, json_string_value(json_object_get(want, "finish_reason")));
    buf_free(&expected);
}

static void run_once(const json_t *one, const size_t *cuts, size_t n_cuts, size_t label)
{
    struct heard h;
    heard_init(&h);
    const char *reason = feed(&h, one, cuts, n_cuts);
    check(one, &h, reason, label);
    heard_free(&h);
}

static void test_cases(void **unused)
{
    (void)unused;
    json_t *cases = test_json_lines("reply/cases.jsonl"), *one;
    uint64_t state = 11;
    size_t i;
    json_array_foreach(cases, i, one) {
        size_t n = json_string_length(json_object_get(one, "text")), cuts[4096];
        run_once(one, NULL, 0, 0);
        for (size_t cut = 0; cut <= n; cut++)
            run_once(one, &cut, 1, cut);
        assert_true(n < 4096);
        for (size_t k = 0; k < n; k++)
            cuts[k] = k;
        run_once(one, cuts, n, 99999);
        for (int round = 0; round < 10; round++) {
            size_t m = 0, at = 0;
            while ((at += 1 + test_random(&state, 9)) < n)
                cuts[m++] = at;
            run_once(one, cuts, m, 99998);
        }
    }
    assert_true(i >= 160);
    json_decref(cases);
}

static void test_stops(void **unused)
{
    (void)unused;
    json_t *cases = test_json_lines("reply/stop.jsonl"), *one;
    size_t i;
    json_array_foreach(cases, i, one) {
        const json_t *pieces = json_object_get(one, "pieces"), *stop = json_object_get(one, "stop"), *text = json_object_get(one, "text"), *matched = json_object_get(one, "matched");
        for (int bytewise = 0; bytewise < 2; bytewise++) {
            const char *strings[16], *reason;
            struct heard h;
            struct reply *r = NULL;
            struct err err = {0};
            heard_init(&h);
            for (size_t k = 0; k < json_array_size(stop); k++)
                strings[k] = json_string_value(json_array_get(stop, k));
            struct reply_options o = {.raw = 1, .stop = strings, .n_stop = json_array_size(stop), .sink = on_event, .ctx = &h};
            test_ok(reply_create(&o, &r, &err), &err, "reply");
            for (size_t k = 0; k < json_array_size(pieces); k++) {
                const json_t *piece = json_array_get(pieces, k);
                size_t n = json_string_length(piece), step = bytewise ? 1 : n;
                for (size_t at = 0; at < n; at += step)
                    assert_true(reply_push(r, json_string_value(piece) + at, step) >= 0);
            }
            assert_int_equal(reply_finish(r, 1, &reason), 0);
            same("stop", "text", &h.content, json_string_value(text), json_string_length(text), i);
            if (json_is_null(matched))
                assert_null(reply_matched_stop(r));
            else
                assert_string_equal(reply_matched_stop(r), json_string_value(matched));
            reply_free(r);
            heard_free(&h);
        }
    }
    assert_true(i >= 70);
    json_decref(cases);
}

static json_t *tools_of(const char *text)
{
    json_t *value = NULL;
    struct err err = {0};
    test_ok(json_parse(text, strlen(text), &value, &err), &err, "tools");
    return value;
}

static const char one_tool[] = "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"n\":{\"type\":\"number\"},\"s\":{\"type\":\"string\"}}}}}]";

static void test_big_integer(void **unused)
{
    (void)unused;
    static const char text[] = "<tool_call>\n<function=f>\n<parameter=n>\n12345678901234567890\n</parameter>\n</function>\n</tool_call>";
    json_t *tools = tools_of(one_tool);
    struct heard h;
    struct reply *r = NULL;
    struct err err = {0};
    const char *reason;
    heard_init(&h);
    test_ok(reply_create(&(struct reply_options){.tools = tools, .sink = on_event, .ctx = &h}, &r, &err), &err, "reply");
    assert_int_equal(reply_push(r, text, sizeof text - 1), 0);
    assert_int_equal(reply_finish(r, 1, &reason), 0);
    assert_string_equal(buf_str(&h.calls), "f\x01{\"n\": 12345678901234567890}\x02");
    reply_free(r);
    heard_free(&h);
    json_decref(tools);
}

/* What is certain has gone out after each of these prefixes, and nothing more. */
static void test_nothing_else_is_held(void **unused)
{
    (void)unused;
    static const struct {
        const char *push;
        int tools, in_reasoning;
        const char *reasoning, *content, *calls;
    } cases[] = {
        {"Hello", 1, 0, "", "Hello", ""},
        {"Hello ", 1, 0, "", "Hello", ""},
        {"Hello ", 0, 0, "", "Hello ", ""},
        {"a < b", 1, 0, "", "a < b", ""},
        {"a <tool", 1, 0, "", "a", ""},
        {"a <tooth", 1, 0, "", "a <tooth", ""},
        {"x\n<function=g", 1, 0, "", "x\n<function=g", ""},
        {"x\n<function=f", 1, 0, "", "x", ""},
        {"Hm, ", 1, 1, "Hm,", "", ""},
        {"Hm </think", 1, 1, "Hm", "", ""},
        {"Hm </thing", 1, 1, "Hm </thing", "", ""},
        {"<tool_call>\n<function=f>\n<parameter=s>\nab\nc", 1, 0, "", "", "f\x01{\"s\": \"ab\\nc"},
        {"<tool_call>\n<function=f>\n<parameter=s>\nab\n", 1, 0, "", "", "f\x01{\"s\": \"ab"},
        {"<tool_call>\n<function=f>\n<parameter=s>\nab</para", 1, 0, "", "", "f\x01{\"s\": \"ab"},
        {"<tool_call>\n<function=f>\n<parameter=n>\n12", 1, 0, "", "", "f\x01{"},
    };
    json_t *tools = tools_of(one_tool);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct heard h;
        struct reply *r = NULL;
        struct err err = {0};
        heard_init(&h);
        struct reply_options o = {.tools = cases[i].tools ? tools : NULL, .in_reasoning = cases[i].in_reasoning, .sink = on_event, .ctx = &h};
        test_ok(reply_create(&o, &r, &err), &err, "reply");
        assert_int_equal(reply_push(r, cases[i].push, strlen(cases[i].push)), 0);
        same(cases[i].push, "reasoning", &h.reasoning, cases[i].reasoning, strlen(cases[i].reasoning), i);
        same(cases[i].push, "content", &h.content, cases[i].content, strlen(cases[i].content), i);
        same(cases[i].push, "calls", &h.calls, cases[i].calls, strlen(cases[i].calls), i);
        reply_free(r);
        heard_free(&h);
    }
    json_decref(tools);
}

/* A megabyte of what looks like something, in small pieces. */
static void test_linear(void **unused)
{
    (void)unused;
    static const char *const units[] = {"<tool_call>\n", "<", "</parameter>", "\n", "<function=f>", "```\n", "</think>"};
    static const char *const starts[] = {"", "<tool_call><function=f><parameter=s>", "<tool_call><function=f><parameter=n>", "<tool_call><function=f>"};
    json_t *tools = tools_of(one_tool);
    for (size_t u = 0; u < sizeof units / sizeof *units; u++)
        for (size_t k = 0; k < 4; k++)
            for (int in_reasoning = 0; in_reasoning < 2; in_reasoning++) {
                struct heard h;
                struct reply *r = NULL;
                struct err err = {0};
                const char *reason;
                heard_init(&h);
                test_ok(reply_create(&(struct reply_options){.tools = tools, .in_reasoning = in_reasoning, .sink = on_event, .ctx = &h}, &r, &err), &err, "reply");
                uint64_t start = clock_ns();
                assert_int_equal(reply_push(r, starts[k], strlen(starts[k])), 0);
                for (size_t n = 0; n < 300000; n += strlen(units[u]))
                    assert_int_equal(reply_push(r, units[u], strlen(units[u])), 0);
                assert_int_equal(reply_finish(r, 1, &reason), 0);
                double ms = clock_ms_since(start);
                if (ms > 3000)
                    fail_msg("300 kB of \"%s\" after \"%s\" took %.0f ms", units[u], starts[k], ms);
                reply_free(r);
                heard_free(&h);
            }
    json_decref(tools);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases), cmocka_unit_test(test_stops), cmocka_unit_test(test_big_integer), cmocka_unit_test(test_nothing_else_is_held), cmocka_unit_test(test_linear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
