/* The reply parser against the goldens, however the bytes are cut (B61, B62, B64-B70, B72, B79, B126), what is held back and what is not, stop strings
 * (B124-B127), hostile lengths (S32), schemas of any form (B76). */
#include <string.h>
#include <time.h>

#include "base/json.h"
#include "base/mem.h"
#include "support/reply.h"
#include "support/test.h"

static const char *text_of(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

/* The wanted calls in the log's form. */
static void expect_calls(struct buf *out, const json_t *calls)
{
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *call = json_array_get(calls, i), *arguments = json_object_get(call, "arguments");
        buf_addf(out, "%s\x1F", text_of(call, "name"));
        if (arguments)
            json_write_python(out, arguments, -1);
        else
            buf_add_str(out, text_of(call, "arguments_text"));
        buf_addf(out, "\x1F%s\n", arguments ? "complete" : "cut");
    }
}

static void check_whole(const json_t *one, const struct reply_log *log)
{
    const json_t *want = json_object_get(one, "want");
    struct buf calls;
    buf_init(&calls, MEM_OTHER, 1 << 26);
    expect_calls(&calls, json_object_get(want, "tool_calls"));
    const char *name = text_of(one, "name");
    const struct {
        const char *what, *got, *want;
    } parts[] = {
        {"reasoning", buf_str(&log->reasoning), text_of(want, "reasoning_content")},
        {"content", buf_str(&log->content), text_of(want, "content")},
        {"calls", buf_str(&log->calls), buf_str(&calls)},
        {"finish_reason", log->finish_reason, text_of(want, "finish_reason")},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strcmp(parts[i].got, parts[i].want) != 0)
            fail_msg("%s: %s is \"%s\", expected \"%s\"\ntext: %s", name, parts[i].what, parts[i].got, parts[i].want, text_of(one, "text"));
    buf_free(&calls);
}

static void run_cut(const json_t *one, const size_t *cuts, size_t n_cuts, struct reply_log *log)
{
    const json_t *text = json_object_get(one, "text");
    struct reply_options options = {.tools = json_object_get(one, "tools"), .in_reasoning = json_is_true(json_object_get(one, "in_reasoning"))};
    reply_log_init(log);
    assert_int_equal(reply_log_run(log, options, json_string_value(text), json_string_length(text), cuts, n_cuts, strcmp(text_of(one, "finish"), "stop") == 0), 0);
}

static void check_cut(const json_t *one, const struct reply_log *whole, const size_t *cuts, size_t n_cuts)
{
    struct reply_log log;
    run_cut(one, cuts, n_cuts, &log);
    const char *difference = reply_log_difference(whole, &log);
    if (difference)
        fail_msg("%s, %zu cuts, the first before byte %zu: another %s\ntext: %s\nwhole: %s|%s|%s|%s\ncut: %s|%s|%s|%s", text_of(one, "name"), n_cuts, cuts[0], difference, text_of(one, "text"),
            buf_str(&whole->reasoning), buf_str(&whole->content), buf_str(&whole->calls), whole->finish_reason, buf_str(&log.reasoning), buf_str(&log.content), buf_str(&log.calls), log.finish_reason);
    reply_log_free(&log);
}

/* B48: a reply in any pieces, several tokens at once or half of one, is the reply. */
static void test_goldens(void **unused)
{
    (void)unused;
    json_t *cases = test_json_lines("reply/cases.jsonl");
    uint64_t seed = 1;
    size_t cuts[4096];
    assert_true(json_array_size(cases) >= 100);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *one = json_array_get(cases, i);
        size_t n = json_string_length(json_object_get(one, "text"));
        struct reply_log whole;
        assert_true(n < 4096);
        run_cut(one, NULL, 0, &whole);
        check_whole(one, &whole);
        for (size_t at = 0; at <= n; at++)
            check_cut(one, &whole, &at, 1);
        for (size_t at = 0; at < n; at++)
            cuts[at] = at;
        check_cut(one, &whole, cuts, n);
        for (int round = 0; round < 10; round++) {
            size_t n_cuts = 0;
            for (size_t at = test_random(&seed, 9); at < n; at += test_random(&seed, 20))
                if (n_cuts < 4096)
                    cuts[n_cuts++] = at;
            check_cut(one, &whole, cuts, n_cuts);
        }
        reply_log_free(&whole);
    }
    print_message("%zu replies\n", json_array_size(cases));
    json_decref(cases);
}

/* ---- what comes out when ---- */

static const char weather[] = "[{\"type\": \"function\", \"function\": {\"name\": \"now\"}}, {\"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"parameters\": "
                              "{\"type\": \"object\", \"properties\": {\"city\": {\"type\": \"string\"}, \"days\": {\"type\": \"integer\"}}}}}]";

/* One push a step: after it, exactly `reasoning`, `content` and `calls` (in the log's form) are out. */
struct held_step {
    const char *push;
    const char *reasoning, *content, *calls;
};

#define SEP "\x1F"
#define CALL_HEAD "<tool_call>\n<function=get_weather>\n"

static const struct held_case {
    const char *name;
    int tools, in_reasoning;
    struct held_step steps[12];
} held_cases[] = {
    {"plain text flows at once", 0, 0, {{"H", "", "H", ""}, {"i \n", "", "Hi \n", ""}, {" x<", "", "Hi \n x<", ""}, {"/think>", "", "Hi \n x</think>", ""}}},
    {"the start is held while a think tag may come", 0, 0, {{"\n ", "", "", ""}, {"<", "", "", ""}, {"t", "", "", ""}, {"o", "", " <to", ""}}},
    {"a stray end is swallowed with its newlines", 0, 0, {{"</thin", "", "", ""}, {"k>\n", "", "", ""}, {"\nHi", "", "Hi", ""}}},
    {"white space waits for a call", 1, 0, {{"a", "", "a", ""}, {" \n", "", "a", ""}, {"b ", "", "a \nb", ""}, {"<", "", "a \nb", ""}, {"x", "", "a \nb <x", ""}}},
    {"a smaller-than sign alone", 1, 0, {{"a <", "", "a", ""}, {" b", "", "a < b", ""}, {"<b>", "", "a < b<b>", ""}}},
    {"a function tag in a line is text", 1, 0, {{"use <f", "", "use <f", ""}, {"unction=now>", "", "use <function=now>", ""}}},
    {"a function tag at a line's start may be a call", 1, 0, {{"use\n<f", "", "use", ""}, {"unction=no", "", "use", ""}, {"t", "", "use\n<function=not", ""}}},
    {"an undeclared name is text at once", 1, 0, {{"<tool_call>\n<function=", "", "", ""}, {"get_x", "", "<tool_call>\n<function=get_x", ""}, {">\n</function>", "", "<tool_call>\n<function=get_x>\n</function>", ""}}},
    {"the start of a name is no name", 1, 0, {{"<tool_call>\n<function=no", "", "", ""}, {">\n</function>", "", "<tool_call>\n<function=no>\n</function>", ""}}},
    {"a call begins with its first tag", 1, 0, {{"Hm\n\n<tool_call>\n<function=get_weather>", "", "Hm", ""}, {"\n<parameter=ci", "", "Hm", ""}, {"ty>", "", "Hm", "get_weather" SEP "{\"city\": \""}}},
    {"or with no tag", 1, 0, {{"Hm\n\n<tool_call>\n<function=get_weather>\n<parameter", "", "Hm", ""}, {"s", "", "Hm\n\n<tool_call>\n<function=get_weather>\n<parameters", ""}}},
    {"strings stream, newlines and tags wait", 1, 0,
        {{CALL_HEAD "<parameter=city>\r", "", "", "get_weather" SEP "{\"city\": \""},
            {"\nA", "", "", "get_weather" SEP "{\"city\": \"A"},
            {"\n", "", "", "get_weather" SEP "{\"city\": \"A"},
            {"\"\xC3", "", "", "get_weather" SEP "{\"city\": \"A\\n\\\""},
            {"\xA9\r", "", "", "get_weather" SEP "{\"city\": \"A\\n\\\"\xC3\xA9"},
            {"\n</param", "", "", "get_weather" SEP "{\"city\": \"A\\n\\\"\xC3\xA9"},
            {"x", "", "", "get_weather" SEP "{\"city\": \"A\\n\\\"\xC3\xA9\\r\\n</paramx"},
            {"\n</parameter>\n", "", "", "get_weather" SEP "{\"city\": \"A\\n\\\"\xC3\xA9\\r\\n</paramx"},
            {"</function", "", "", "get_weather" SEP "{\"city\": \"A\\n\\\"\xC3\xA9\\r\\n</paramx"},
            {">", "", "", "get_weather" SEP "{\"city\": \"A\\n\\\"\xC3\xA9\\r\\n</paramx\"}" SEP "complete\n"}}},
    {"other values come whole", 1, 0,
        {{CALL_HEAD "<parameter=days>", "", "", "get_weather" SEP "{"}, {"3\n</parameter>\n", "", "", "get_weather" SEP "{"}, {"</tool_call>", "", "", "get_weather" SEP "{\"days\": 3}" SEP "complete\n"}}},
    {"after a call", 1, 0,
        {{"<function=now></function>", "", "", "now" SEP "{}" SEP "complete\n"}, {"\n</tool", "", "", "now" SEP "{}" SEP "complete\n"}, {"_call>\n\n", "", "", "now" SEP "{}" SEP "complete\n"},
            {"So", "", "So", "now" SEP "{}" SEP "complete\n"}, {" it", "", "So it", "now" SEP "{}" SEP "complete\n"}}},
    {"nothing is held in a fence", 1, 0, {{"```\n", "", "```\n", ""}, {"a <tool_call>\n<function=now>", "", "```\na <tool_call>\n<function=now>", ""}, {"\n``", "", "```\na <tool_call>\n<function=now>\n``", ""},
        {"`", "", "```\na <tool_call>\n<function=now>\n```", ""}, {"\n", "", "```\na <tool_call>\n<function=now>\n```", ""}, {"<", "", "```\na <tool_call>\n<function=now>\n```", ""}}},
    {"reasoning is trimmed", 0, 1, {{" \n", "", "", ""}, {"why ", "why", "", ""}, {"not", "why not", "", ""}, {"\n<", "why not", "", ""}, {"/x", "why not\n</x", "", ""}, {"\n</think>\n", "why not\n</x", "", ""},
        {" \nH", "why not\n</x", " \nH", ""}}},
    {"reasoning without tools holds no call", 0, 1, {{"<tool_call>\n<function=now>\n</function>", "<tool_call>\n<function=now>\n</function>", "", ""}}},
    {"a call in reasoning waits for the end", 1, 1, {{"a\n<tool_call>\n<function=now>\n</function>\n</tool_call>", "a", "", ""}, {"\nb", "a", "", ""}, {"</think>", "a\n<tool_call>\n<function=now>\n</function>\n</tool_call>\nb", "", ""}}},
    {"no call in reasoning, no wait", 1, 1, {{"a\n<tool_call>\n<function=n", "a", "", ""}, {"ope>", "a\n<tool_call>\n<function=nope>", "", ""}}},
};

static void check_step(const struct held_case *one, size_t step, const struct reply_log *log)
{
    const struct held_step *s = &one->steps[step];
    const char *got[] = {buf_str(&log->reasoning), buf_str(&log->content), buf_str(&log->calls)}, *want[] = {s->reasoning, s->content, s->calls};
    for (int i = 0; i < 3; i++)
        if (strcmp(got[i], want[i]) != 0)
            fail_msg("%s, step %zu (\"%s\"): %s is \"%s\", expected \"%s\"", one->name, step, s->push, i == 0 ? "reasoning" : i == 1 ? "content" : "calls", got[i], want[i]);
}

static void test_held(void **unused)
{
    (void)unused;
    json_t *tools = json_loads(weather, 0, NULL);
    for (size_t i = 0; i < sizeof held_cases / sizeof *held_cases; i++) {
        const struct held_case *one = &held_cases[i];
        struct reply_log log;
        struct err err = {0};
        struct reply *r;
        reply_log_init(&log);
        struct reply_options options = {.tools = one->tools ? tools : NULL, .in_reasoning = one->in_reasoning, .sink = reply_log_sink, .ctx = &log};
        test_ok(reply_create(&options, &r, &err), &err, one->name);
        for (size_t step = 0; step < 12 && one->steps[step].push; step++) {
            assert_int_equal(reply_push(r, one->steps[step].push, strlen(one->steps[step].push)), 0);
            check_step(one, step, &log);
        }
        reply_free(r);
        reply_log_free(&log);
    }
    json_decref(tools);
}

/* The length of what a and b begin with in common. */
static size_t common(const struct buf *a, const struct buf *b)
{
    size_t n = 0;
    while (n < a->len && n < b->len && a->data[n] == b->data[n])
        n++;
    return n;
}

/* Finishes prefix + more, and cuts *low down to what that has in common with it. */
static void meet(const json_t *one, const char *prefix, size_t n, const char *more, const char *tail, struct reply_log *low, int first)
{
    struct buf text;
    struct reply_log log;
    buf_init(&text, MEM_OTHER, 1 << 20);
    buf_add(&text, prefix, n);
    buf_add_str(&text, more);
    buf_add_str(&text, tail);
    reply_log_init(&log);
    struct reply_options options = {.tools = json_object_get(one, "tools"), .in_reasoning = json_is_true(json_object_get(one, "in_reasoning"))};
    assert_int_equal(reply_log_run(&log, options, buf_str(&text), text.len, NULL, 0, 1), 0);
    if (log.in_call)
        log.calls.len -= strlen("\x1F" "cut\n");
    if (first) {
        *low = log;
    } else {
        low->reasoning.len = common(&low->reasoning, &log.reasoning);
        low->content.len = common(&low->content, &log.content);
        low->calls.len = common(&low->calls, &log.calls);
        reply_log_free(&log);
    }
    buf_free(&text);
}

/* Every continuation of prefix that begins by finishing a tag which prefix may have begun. */
static void meet_all(const json_t *one, const char *prefix, size_t n, struct reply_log *low)
{
    static const char *const tags[] = {"<tool_call>", "<function=now>", "<function= now >", "<function=get_weather>", "<function=odd>", "<function=write_file>", "<function=bare>", "<parameter=a>", "</parameter>", "</function>", "</tool_call>", "<think>", "</think>", "\n</parameter>", "\r\n</parameter>", "```"};
    static const char *const tails[] = {"", "x", "</function>", "\n<function=now>\n</function>", "<parameter=x>1</parameter></function>", "\n<tool_call><function=now></function>", "</think>y", "</parameter></function>"};
    meet(one, prefix, n, "", "", low, 1);
    for (size_t k = 0; k < sizeof tails / sizeof *tails; k++)
        meet(one, prefix, n, tails[k], "", low, 0);
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++)
        for (size_t m = strlen(tags[i]); m > 0; m--) {
            if (m > n || memcmp(prefix + n - m, tags[i], m) != 0)
                continue;
            for (size_t k = 0; k < sizeof tails / sizeof *tails; k++)
                meet(one, prefix, n, tags[i] + m, tails[k], low, 0);
        }
}

/* Nothing is held that is certain: after every prefix, what is out is all that its continuations have in common. */
static void test_nothing_else_is_held(void **unused)
{
    (void)unused;
    json_t *cases = test_json_lines("reply/cases.jsonl");
    for (size_t i = 0; i < json_array_size(cases); i += 2) {
        const json_t *one = json_array_get(cases, i);
        const char *text = text_of(one, "text");
        struct reply_log log;
        struct err err = {0};
        struct reply *r;
        reply_log_init(&log);
        struct reply_options options = {.tools = json_object_get(one, "tools"), .in_reasoning = json_is_true(json_object_get(one, "in_reasoning")), .sink = reply_log_sink, .ctx = &log};
        test_ok(reply_create(&options, &r, &err), &err, "create");
        for (size_t n = 1; text[n - 1]; n++) {
            struct reply_log low;
            assert_int_equal(reply_push(r, text + n - 1, 1), 0);
            if ((text[n] & 0xC0) == 0x80)
                continue;
            meet_all(one, text, n, &low);
            if (log.reasoning.len != low.reasoning.len || log.content.len != low.content.len || log.calls.len != low.calls.len)
                fail_msg("%s: after \"%.*s\" %zu bytes of reasoning, %zu of content, %zu of calls are out; certain are %zu, %zu, %zu", text_of(one, "name"), (int)n, text, log.reasoning.len, log.content.len,
                    log.calls.len, low.reasoning.len, low.content.len, low.calls.len);
            reply_log_free(&low);
        }
        reply_free(r);
        reply_log_free(&log);
    }
    json_decref(cases);
}

/* ---- values ---- */

/* Runs one call of tool "t" with parameter "v" of this schema; the arguments' text must be `want`. */
static void check_value(const char *schema, const char *value, const char *want)
{
    struct buf tools, text;
    struct reply_log log;
    struct err err = {0};
    json_t *parsed = NULL;
    buf_init(&tools, MEM_OTHER, 1 << 26);
    buf_init(&text, MEM_OTHER, 1 << 26);
    buf_addf(&tools, "[{\"function\": {\"name\": \"t\", \"parameters\": {\"properties\": {\"v\": %s}}}}]", schema);
    test_ok(json_parse(buf_str(&tools), tools.len, &parsed, &err), &err, schema);
    buf_addf(&text, "<function=t><parameter=v>%s</parameter></function>", value);
    reply_log_init(&log);
    assert_int_equal(reply_log_run(&log, (struct reply_options){.tools = parsed}, buf_str(&text), text.len, NULL, 0, 1), 0);
    buf_clear(&text);
    buf_addf(&text, "t\x1F{\"v\": %s}\x1F" "complete\n", want);
    if (strcmp(buf_str(&text), buf_str(&log.calls)) != 0)
        fail_msg("%.200s as %s: %.300s, expected %.300s", value, schema, buf_str(&log.calls), buf_str(&text));
    reply_log_free(&log);
    buf_free(&tools);
    buf_free(&text);
    json_decref(parsed);
}

/* B73, B74, B76, B77: one ladder, guided by the schema. */
static void test_values(void **unused)
{
    (void)unused;
    static const char *const table[][3] = {
        {"{\"type\": \"integer\"}", "-0", "0"},
        {"{\"type\": \"integer\"}", "-0.0", "0"},
        {"{\"type\": \"integer\"}", "1e3", "1000"},
        {"{\"type\": \"integer\"}", "123456789012345678901234567890", "123456789012345678901234567890"},
        {"{\"type\": \"integer\"}", "1e22", "10000000000000000000000"},
        {"{\"type\": \"integer\"}", "1.5e30", "1499999999999999889089448902656"},
        {"{\"type\": \"integer\"}", "01", "\"01\""},
        {"{\"type\": \"integer\"}", "1.", "\"1.\""},
        {"{\"type\": \"integer\"}", "+1", "\"+1\""},
        {"{\"type\": \"integer\"}", "0x10", "\"0x10\""},
        {"{\"type\": \"integer\"}", "true", "\"true\""},
        {"{\"type\": \"number\"}", "-0.0", "-0.0"},
        {"{\"type\": \"number\"}", "1E5", "100000.0"},
        {"{\"type\": \"number\"}", "1e16", "1e+16"},
        {"{\"type\": \"number\"}", "0.00001", "1e-05"},
        {"{\"type\": \"number\"}", "1e999", "\"1e999\""},
        {"{\"type\": \"number\"}", "NaN", "\"NaN\""},
        {"{\"type\": \"number\"}", "-Infinity", "\"-Infinity\""},
        {"{\"type\": \"number\"}", "18446744073709551616", "18446744073709551616"},
        {"{\"type\": [\"string\", \"null\"]}", " null ", "null"},
        {"{\"type\": [\"integer\", \"number\"]}", "2.5", "2.5"},
        {"{\"type\": [\"integer\", \"number\"]}", "2.0", "2"},
        {"{\"type\": \"boolean\"}", "\xC2\xA0True\xE3\x80\x80", "true"},
        {"{\"type\": \"array\"}", "[1,2.0,-0,\"\\u00e9\\ud83d\\ude00\\n\\/\", NaN, 1e999,{},[]]", "[1, 2.0, 0, \"\xC3\xA9\xF0\x9F\x98\x80\\n/\", null, null, {}, []]"},
        {"{\"type\": \"array\"}", "[1,]", "\"[1,]\""},
        {"{\"type\": \"array\"}", "['a']", "\"['a']\""},
        {"{\"type\": \"array\"}", "[\"\\ud800\"]", "[\"\xEF\xBF\xBD\"]"},
        {"{\"type\": \"array\"}", "[\"\\u0000\\u001f\"]", "[\"\\u0000\\u001f\"]"},
        {"{\"type\": \"array\"}", "[\"a\tb\"]", "\"[\\\"a\\tb\\\"]\""},
        {"{\"type\": \"object\"}", "{\"b\":1,\"a\":{\"x\":[ ]},\"b\":{\"c\":12345678901234567890}}", "{\"b\": {\"c\": 12345678901234567890}, \"a\": {\"x\": []}}"},
        {"{\"type\": \"object\"}", "{\"\\u0061\":1,\"a\":2,\"\\u0000\":3}", "{\"a\": 2, \"\\u0000\": 3}"},
        {"{\"type\": \"object\"}", "{\"a\":1}x", "\"{\\\"a\\\":1}x\""},
        {"{\"type\": \"object\"}", "__import__('os')", "\"__import__('os')\""},
        {"{\"anyOf\": [{\"type\": \"object\"}, {\"oneOf\": [{\"type\": \"null\"}]}]}", "None", "null"},
        {"{\"enum\": [1, 2]}", "2", "2"},
        {"{\"enum\": [123456789012345678901234567890]}", "2", "2"},
        {"{\"enum\": [\"1\"]}", "1", "\"1\""},
        {"{\"enum\": [[1]]}", "[1]", "\"[1]\""},
        {"{\"type\": \"strange\"}", "1", "\"1\""},
        {"{\"type\": 7}", "1", "\"1\""},
        {"{\"type\": [7, null, {}]}", "1", "\"1\""},
        {"{\"anyOf\": {\"type\": \"integer\"}}", "1", "\"1\""},
        {"[]", "1", "\"1\""},
        {"null", "1", "\"1\""},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        check_value(table[i][0], table[i][1], table[i][2]);
    char digits[4400], quoted[4410];
    memset(digits, '7', sizeof digits);
    digits[4300] = 0;
    check_value("{\"type\": \"integer\"}", digits, digits);
    digits[4300] = '7';
    digits[4301] = 0;
    snprintf(quoted, sizeof quoted, "\"%s\"", digits);
    check_value("{\"type\": \"integer\"}", digits, quoted);
}

/* Tools of any form are no reason to fail. */
static void test_odd_tools(void **unused)
{
    (void)unused;
    static const char *const odd[] = {"[]", "{}", "null", "[null, 1, {}, {\"function\": 1}, {\"function\": {}}, {\"function\": {\"name\": 5}}]", "[{\"function\": {\"name\": \"now\", \"parameters\": []}}]",
        "[{\"function\": {\"name\": \"now\", \"parameters\": {\"properties\": [1]}}}]", "[{\"function\": {\"name\": \"\"}}, {\"function\": {\"name\": \" now\"}}, {\"function\": {\"name\": \"n>w\"}}]"};
    static const char text[] = "<tool_call>\n<function=now>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>";
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        struct reply_log log;
        json_t *tools = json_loads(odd[i], JSON_DECODE_ANY, NULL);
        reply_log_init(&log);
        assert_int_equal(reply_log_run(&log, (struct reply_options){.tools = tools}, text, strlen(text), NULL, 0, 1), 0);
        int called = i == 4 || i == 5;
        assert_string_equal(buf_str(&log.calls), called ? "now\x1F{\"a\": \"1\"}\x1F" "complete\n" : "");
        assert_string_equal(buf_str(&log.content), called ? "" : text);
        reply_log_free(&log);
        json_decref(tools);
    }
}

/* ---- stop strings ---- */

static void stop_run(const json_t *pieces, const json_t *stop, int raw, int by_bytes, struct reply_log *log)
{
    const char *strings[16];
    size_t cuts[512], n_cuts = 0;
    struct buf text;
    buf_init(&text, MEM_OTHER, 1 << 20);
    for (size_t i = 0; i < json_array_size(stop); i++)
        strings[i] = json_string_value(json_array_get(stop, i));
    for (size_t i = 0; i < json_array_size(pieces); i++) {
        buf_add_str(&text, json_string_value(json_array_get(pieces, i)));
        if (!by_bytes)
            cuts[n_cuts++] = text.len;
    }
    for (size_t i = 0; by_bytes && i < text.len; i++)
        cuts[n_cuts++] = i;
    reply_log_init(log);
    struct reply_options options = {.raw = raw, .stop = strings, .n_stop = json_array_size(stop)};
    assert_int_equal(reply_log_run(log, options, buf_str(&text), text.len, cuts, n_cuts, 1), 0);
    assert_string_equal(log->finish_reason, "stop");
    buf_free(&text);
}

static void test_stop_goldens(void **unused)
{
    (void)unused;
    json_t *cases = test_json_lines("reply/stop.jsonl");
    assert_true(json_array_size(cases) >= 50);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *one = json_array_get(cases, i), *matched = json_object_get(one, "matched");
        for (int form = 0; form < 4; form++) {
            struct reply_log log;
            int raw = form & 1;
            const char *want = text_of(one, "text");
            stop_run(json_object_get(one, "pieces"), json_object_get(one, "stop"), raw, form >> 1, &log);
            if (!raw) /* content loses its leading newlines */
                want += strspn(want, "\n");
            assert_string_equal(buf_str(&log.content), want);
            assert_string_equal(log.matched, json_is_string(matched) ? json_string_value(matched) : "");
            reply_log_free(&log);
        }
    }
    json_decref(cases);
}

static void check_stop(const char *text, int in_reasoning, const char *stop, const char *reasoning, const char *content, const char *calls, const char *finish)
{
    json_t *tools = json_loads(weather, 0, NULL);
    size_t n = strlen(text);
    for (size_t cut = 0; cut <= n; cut++) {
        struct reply_log log;
        reply_log_init(&log);
        struct reply_options options = {.tools = tools, .in_reasoning = in_reasoning, .stop = &stop, .n_stop = 1};
        assert_int_equal(reply_log_run(&log, options, text, n, &cut, 1, 0), 0);
        assert_string_equal(buf_str(&log.reasoning), reasoning);
        assert_string_equal(buf_str(&log.content), content);
        assert_string_equal(buf_str(&log.calls), calls);
        assert_string_equal(log.finish_reason, finish);
        reply_log_free(&log);
    }
    json_decref(tools);
}

/* Stop strings see content: not reasoning, not what parts it from the content, not calls, and none reaches over a call. */
static void test_stop_scope(void **unused)
{
    (void)unused;
    check_stop("a END b\n</think>\n\nHi END there", 1, "END", "a END b", "Hi ", "", "stop");
    check_stop("a\n</think>\n\nHi\n\nx", 1, "\n\n", "a", "Hi", "", "stop");
    check_stop("Hi\n<tool_call>\n<function=now>\n</function>\n</tool_call>\nEND", 0, "END", "", "Hi", "now\x1F{}\x1F" "complete\n", "tool_calls");
    check_stop("EN<tool_call>\n<function=now>\n</function>\n</tool_call>D", 0, "END", "", "END", "now\x1F{}\x1F" "complete\n", "length");
    check_stop("x<tool_call>\n<function=get_weather>\n<parameter=city>\nEND\n</parameter>\n</function>", 0, "END", "", "x", "get_weather\x1F{\"city\": \"END\"}\x1F" "complete\n", "length");
    check_stop("a END<tool_call>\n<function=now>\n</function>", 0, "END", "", "a ", "", "stop");
    check_stop("a EN", 0, "END", "", "a EN", "", "length"); /* B126 */
}

/* An answer that ends in the middle of a call did not end with one. */
static void test_cut_call(void **unused)
{
    (void)unused;
    static const char text[] = "x\n" CALL_HEAD "<parameter=city>\nLo";
    json_t *tools = json_loads(weather, 0, NULL);
    for (int stopped = 0; stopped < 2; stopped++) {
        struct reply_log log;
        reply_log_init(&log);
        assert_int_equal(reply_log_run(&log, (struct reply_options){.tools = tools}, text, strlen(text), NULL, 0, stopped), 0);
        assert_string_equal(log.finish_reason, stopped ? "stop" : "length");
        reply_log_free(&log);
    }
    json_decref(tools);
}

/* ---- limits ---- */

/* Of this process: a busy machine does not count. */
static uint64_t processor_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* A quarter of a megabyte of each of these must not be scanned again and again: in one piece, and cut. */
static void test_linear(void **unused)
{
    (void)unused;
    static const char *const units[] = {"<tool_call>\n", "<", " ", "\n", "<tool_call>\n<function=now>\n", "<function=now>\n<parameter=", "</parameter>\n", "\n<function=", "```\n", "<think>", "</think>", "<parameter=k>\nv</parameter>", "\xE3\x80\x80"};
    static const char *const heads[] = {"", "a\n", CALL_HEAD, CALL_HEAD "<parameter=city>", CALL_HEAD "<parameter=days>[", "<function="};
    json_t *tools = json_loads(weather, 0, NULL);
    uint64_t start = processor_ns(), worst = 0;
    for (size_t i = 0; i < sizeof units / sizeof *units * (sizeof heads / sizeof *heads); i++) {
        struct buf text;
        const char *unit = units[i % (sizeof units / sizeof *units)], *head = heads[i / (sizeof units / sizeof *units)];
        buf_init(&text, MEM_OTHER, 1 << 26);
        buf_add_str(&text, head);
        while (text.len < 1 << 18)
            buf_add_str(&text, unit);
        for (int form = 0; form < 4; form++) {
            struct reply_log log;
            size_t n_cuts = form & 1 ? text.len / 7 : 0, *cuts = mem_alloc_array(MEM_OTHER, n_cuts + 1, sizeof *cuts);
            for (size_t k = 0; k < n_cuts; k++)
                cuts[k] = k * 7;
            uint64_t before = processor_ns();
            reply_log_init(&log);
            assert_int_equal(reply_log_run(&log, (struct reply_options){.tools = tools, .in_reasoning = form >> 1}, buf_str(&text), text.len, cuts, n_cuts, 1), 0);
            uint64_t spent = processor_ns() - before;
            worst = spent > worst ? spent : worst;
            if (spent > 2000000000u)
                fail_msg("a quarter of a megabyte of \"%s\" after \"%s\" (form %d) took %.0f ms", unit, head, form, (double)spent / 1e6);
            reply_log_free(&log);
            mem_free(cuts);
        }
        buf_free(&text);
    }
    json_decref(tools);
    print_message("worst quarter of a megabyte %.1f ms, all %.0f ms\n", (double)worst / 1e6, (double)(processor_ns() - start) / 1e6);
}

static void test_deep_values(void **unused)
{
    (void)unused;
    struct buf deep, want;
    buf_init(&deep, MEM_OTHER, 1 << 26);
    buf_init(&want, MEM_OTHER, 1 << 26);
    for (int i = 0; i < 100000; i++)
        buf_add_str(&deep, "[");
    json_write_string(&want, deep.data, deep.len, 0);
    check_value("{\"type\": \"array\"}", buf_str(&deep), buf_str(&want));
    buf_free(&deep);
    buf_free(&want);
}

/* B41: several calls of a tool with forty-eight optional parameters, in any order, in linear time, however cut. */
static void test_many_parameters(void **unused)
{
    (void)unused;
    enum { N = 48, CALLS = 6 };
    struct buf tools, text, want;
    struct err err = {0};
    json_t *parsed = NULL;
    buf_init(&tools, MEM_OTHER, 1 << 20);
    buf_init(&text, MEM_OTHER, 1 << 20);
    buf_init(&want, MEM_OTHER, 1 << 20);
    buf_add_str(&tools, "[{\"type\": \"function\", \"function\": {\"name\": \"set\", \"parameters\": {\"type\": \"object\", \"properties\": {");
    for (int i = 0; i < N; i++)
        buf_addf(&tools, "%s\"option_%d\": {\"type\": \"%s\"}", i ? ", " : "", i, i % 2 ? "integer" : "string");
    buf_add_str(&tools, "}}}}]");
    test_ok(json_parse(buf_str(&tools), tools.len, &parsed, &err), &err, "tools");
    for (int call = 0; call < CALLS; call++) {
        buf_add_str(&text, "<tool_call>\n<function=set>\n");
        buf_add_str(&want, "set\x1F{");
        for (int k = 0; k < N - call; k++) {
            int i = (k * 7 + call * 5) % N;
            buf_addf(&text, "<parameter=option_%d>\n%d\n</parameter>\n", i, k);
            buf_addf(&want, i % 2 ? "%s\"option_%d\": %d" : "%s\"option_%d\": \"%d\"", k ? ", " : "", i, k);
        }
        buf_add_str(&text, "</function>\n</tool_call>\n");
        buf_add_str(&want, "}\x1F" "complete\n");
    }
    uint64_t start = processor_ns();
    for (size_t step = 1; step < 100; step += 7) {
        struct reply_log log;
        size_t n_cuts = 0, *cuts = mem_alloc_array(MEM_OTHER, text.len / step + 1, sizeof *cuts);
        for (size_t at = step; at < text.len; at += step)
            cuts[n_cuts++] = at;
        reply_log_init(&log);
        assert_int_equal(reply_log_run(&log, (struct reply_options){.tools = parsed}, buf_str(&text), text.len, cuts, n_cuts, 1), 0);
        assert_string_equal(buf_str(&log.calls), buf_str(&want));
        assert_int_equal(log.n_calls, CALLS);
        assert_string_equal(log.finish_reason, "tool_calls");
        reply_log_free(&log);
        mem_free(cuts);
    }
    assert_true(processor_ns() - start < 5000000000u);
    buf_free(&tools);
    buf_free(&text);
    buf_free(&want);
    json_decref(parsed);
}

static void test_memory(void **unused)
{
    (void)unused;
    static const char text[] = "why\n</think>\n\nSo <x>\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nA\n</parameter>\n<parameter=days>\n[1, {\"a\": 2, \"a\": 3}]\n</parameter>\n</function>\n</tool_call>\nEND";
    static const char *const stop = "END";
    struct err err = {0};
    json_t *tools = json_loads(weather, 0, NULL);
    size_t before = mem_bytes(MEM_TEXT);
    int refused = 0;
    for (long nth = 1; nth < 200; nth++) { /* whichever allocation fails: the code says so, and nothing leaks */
        struct reply *r;
        struct reply_log log;
        const char *reason;
        reply_log_init(&log);
        buf_reserve(&log.reasoning, 1000);
        buf_reserve(&log.content, 1000);
        buf_reserve(&log.calls, 1000);
        buf_reserve(&log.order, 1000);
        struct reply_options options = {.tools = tools, .in_reasoning = 1, .stop = &stop, .n_stop = 1, .sink = reply_log_sink, .ctx = &log};
        mem_fail_nth(nth);
        int rc = reply_create(&options, &r, &err);
        if (rc == 0) {
            for (size_t i = 0; rc == 0 && i < sizeof text - 1; i++)
                rc = reply_push(r, text + i, 1);
            if (rc < 0)
                assert_int_equal(reply_push(r, "x", 1), rc);
            if (rc >= 0)
                rc = reply_finish(r, 1, &reason);
            reply_free(r);
        }
        mem_fail_nth(0);
        assert_true(rc == 0 || rc == ERR_NO_MEMORY);
        refused += rc < 0;
        reply_log_free(&log);
        assert_int_equal(mem_bytes(MEM_TEXT), before);
    }
    assert_true(refused > 5);
    json_decref(tools);
}

static void test_sink_ends_push(void **unused)
{
    (void)unused;
    for (int events = 1; events < 4; events++) {
        struct reply_log log;
        reply_log_init(&log);
        log.fail_after = events;
        size_t cuts[] = {1, 2, 3, 4, 5};
        assert_int_equal(reply_log_run(&log, (struct reply_options){0}, "abcdef", 6, cuts, 5, 1), ERR_CANCELLED);
        assert_int_equal(log.content.len, events);
        reply_log_free(&log);
    }
}

/* Bytes that are no UTF-8 never reach the client. */
static void test_broken_bytes(void **unused)
{
    (void)unused;
    static const char text[] = "a\xFF\xE2\x82z\xF0\x9F\x98\x80\xC3";
    for (size_t cut = 0; cut < sizeof text; cut++) {
        struct reply_log log;
        reply_log_init(&log);
        assert_int_equal(reply_log_run(&log, (struct reply_options){0}, text, sizeof text - 1, &cut, 1, 1), 0);
        assert_string_equal(buf_str(&log.content), "a\xEF\xBF\xBD\xEF\xBF\xBDz\xF0\x9F\x98\x80\xEF\xBF\xBD");
        reply_log_free(&log);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens),       cmocka_unit_test(test_held), cmocka_unit_test(test_nothing_else_is_held),       cmocka_unit_test(test_values),     cmocka_unit_test(test_odd_tools), cmocka_unit_test(test_stop_goldens),
        cmocka_unit_test(test_stop_scope),    cmocka_unit_test(test_cut_call),    cmocka_unit_test(test_linear),      cmocka_unit_test(test_deep_values), cmocka_unit_test(test_many_parameters), cmocka_unit_test(test_memory),    cmocka_unit_test(test_sink_ends_push),
        cmocka_unit_test(test_broken_bytes),
    };
    json_use_mem();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
