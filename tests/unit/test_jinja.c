/* The interpreter against Jinja2: published templates over conversations, programs by feature, bounds, memory that fails (S20, S21, B108-B111). */
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "support/test.h"
#include "text/jinja.h"

static const struct tm now = {.tm_year = 126, .tm_mon = 11, .tm_mday = 1, .tm_hour = 8, .tm_min = 30, .tm_wday = 2, .tm_yday = 334};

/* 0 and the output, or the kind of failure. */
static enum jinja_error render(const char *source, size_t n, const json_t *vars, struct jinja_output *out, struct err *err)
{
    struct jinja *t = NULL;
    enum jinja_error kind;
    jinja_output_init(out);
    if (jinja_compile(source, n, &t, &kind, err) < 0)
        return kind;
    if (jinja_render(t, vars, &now, out, &kind, err) < 0)
        assert_true(kind != JINJA_OK || err->code == ERR_NO_MEMORY);
    jinja_free(t);
    return kind;
}

static int check(const char *name, const char *source, size_t n, const json_t *one)
{
    struct jinja_output out;
    struct err err = {0};
    const json_t *want = json_object_get(one, "out"), *error = json_object_get(one, "error"), *message = json_object_get(one, "message");
    enum jinja_error kind = render(source, n, json_object_get(one, "vars"), &out, &err);
    int ok;
    if (error) {
        ok = strcmp(jinja_error_name(kind), json_string_value(error)) == 0 && (kind != JINJA_RAISED || strcmp(err.message, json_string_value(message)) == 0);
        if (!ok)
            print_message("%s: %s (%s), expected %s %s\n  %.200s\n", name, jinja_error_name(kind), err.message, json_string_value(error), message ? json_string_value(message) : "", source);
    } else {
        ok = kind == JINJA_OK && out.text.len == json_string_length(want) && memcmp(buf_str(&out.text), json_string_value(want), out.text.len) == 0;
        if (!ok)
            print_message("%s: %s\n  %.300s\n  got  \"%s\"\n  want \"%s\"\n", name, kind ? err.message : "another text", source, buf_str(&out.text), json_string_value(want));
    }
    jinja_output_free(&out);
    return ok;
}

static void test_features(void **unused)
{
    (void)unused;
    json_t *cases = test_json_lines("templates/features.jsonl"), *one;
    size_t i;
    int bad = 0;
    json_array_foreach(cases, i, one) {
        const json_t *source = json_object_get(one, "src");
        bad += !check(json_string_value(json_object_get(one, "feature")), json_string_value(source), json_string_length(source), one);
    }
    assert_true(i >= 120);
    assert_int_equal(bad, 0);
    json_decref(cases);
}

static void test_templates(void **unused)
{
    (void)unused;
    json_t *cases = test_json_lines("templates/cases.jsonl"), *one;
    size_t i;
    int bad = 0;
    json_array_foreach(cases, i, one) {
        const char *name = json_string_value(json_object_get(one, "template"));
        size_t n;
        char *source = test_read_file(test_path("templates/%s%s", name, strstr(name, ".jinja") ? "" : ".jinja"), &n);
        if (bad < 10)
            bad += !check(name, source, n, one);
        mem_free(source);
    }
    assert_true(i >= 1300);
    assert_int_equal(bad, 0);
    json_decref(cases);
}

static char *repeated(const char *unit, size_t times, const char *tail, size_t *n)
{
    size_t length = strlen(unit);
    char *text = mem_alloc(MEM_OTHER, length * times + strlen(tail) + 1);
    for (size_t i = 0; i < times; i++)
        memcpy(text + i * length, unit, length);
    memcpy(text + length * times, tail, strlen(tail));
    *n = length * times + strlen(tail);
    return text;
}

/* Nothing hostile hangs, crashes or grows: each ends in an error or quickly. */
static void test_bounds(void **unused)
{
    (void)unused;
    static const struct {
        const char *unit;
        size_t times;
        const char *tail;
        int fails;
    } cases[] = {
        {"{{", 1 << 18, "", 1},
        {"{", 1 << 20, "", 1},
        {"{{ (", 1, "((((((((1", 1},
        {"{% if 1 %}", 100000, "", 1},
        {"", 0, "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", 1},
        {"", 0, "{% for a in range(99999) %}{% for b in range(99999) %}{{ a }}{% endfor %}{% endfor %}", 1},
        {"", 0, "{{ 'x' * 1000000000 }}", 1},
        {"", 0, "{{ [0] * 1000000000 }}", 1},
        {"", 0, "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}", 1},
        {"", 0, "{{ range(10000000) | length }}", 1},
        {"", 0, "{{ '%99999d' % 1 }}{{ '{:>99999}'.format(1) }}", 0},
        {"", 0, "{{ 9223372036854775807 + 1 }}", 1},
        {"", 0, "{{ (-9223372036854775807 - 1) // -1 }}", 1},
        {"", 0, "{{ 10 ** 100 }}", 1},
        {"", 0, "{{ 'a'.ljust(10000000000) }}", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct jinja_output out;
        struct err err = {0};
        size_t n;
        char *source = repeated(cases[i].unit, cases[i].times, cases[i].tail, &n);
        uint64_t start = clock_ns();
        enum jinja_error kind = render(source, n, NULL, &out, &err);
        if ((kind != JINJA_OK) != cases[i].fails)
            fail_msg("case %zu: %s (%s)", i, jinja_error_name(kind), err.message);
        if (clock_ms_since(start) > 20000)
            fail_msg("case %zu took %.0f ms", i, clock_ms_since(start));
        jinja_output_free(&out);
        mem_free(source);
    }
    size_t n;
    char *deep = repeated("(", 100000, "1", &n), *wrapped = mem_alloc(MEM_OTHER, n + 8);
    struct jinja_output out;
    struct err err = {0};
    memcpy(wrapped, "{{ ", 3);
    memcpy(wrapped + 3, deep, n);
    assert_int_equal(render(wrapped, n + 3, NULL, &out, &err), JINJA_SYNTAX);
    jinja_output_free(&out);
    mem_free(deep);
    mem_free(wrapped);
}

/* One bound at a time, each by its own name. */
static void test_exhaustion(void **unused)
{
    (void)unused;
    static const struct {
        const char *source, *says;
        enum jinja_error kind;
    } cases[] = {
        {"{% set r = range(5000) %}{% for a in r %}{% if -1 in r %}{% endif %}{% endfor %}", "steps", JINJA_RUNTIME}, /* a search takes a step an element */
        {"{% for i in range(200) %}{% set x = range(99999) %}{% endfor %}", "of memory", JINJA_RUNTIME},
        {"{{ range(100001) | length }}", "MAX_RANGE", JINJA_RUNTIME},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct jinja_output out;
        struct err err = {0};
        assert_int_equal(render(cases[i].source, strlen(cases[i].source), NULL, &out, &err), cases[i].kind);
        if (!strstr(err.message, cases[i].says))
            fail_msg("%s: %s", cases[i].source, err.message);
        jinja_output_free(&out);
    }
    for (int depth = 20; depth <= 200; depth += 180) {
        struct buf text;
        struct jinja_output out;
        struct err err = {0};
        buf_init(&text, MEM_OTHER, 4096);
        buf_add_str(&text, "{{ ");
        for (int i = 0; i < depth; i++)
            buf_add_char(&text, '(');
        buf_add_char(&text, '1');
        for (int i = 0; i < depth; i++)
            buf_add_char(&text, ')');
        buf_add_str(&text, " }}");
        assert_int_equal(render(buf_str(&text), text.len, NULL, &out, &err), depth == 20 ? JINJA_OK : JINJA_SYNTAX);
        assert_int_equal(depth == 20, strstr(err.message, "nested deeper") == NULL);
        jinja_output_free(&out);
        buf_free(&text);
    }
}

/* The n-th allocation fails, for every n a rendering reaches: an error, and nothing leaks. */
static void test_failing_memory(void **unused)
{
    (void)unused;
    static const char source[] = "{% macro f(x) %}[{{ x | upper }}]{% endmacro %}{% for m in l %}{{ f(m) ~ loop.index }}{% endfor %}{{ l | tojson }}{{ 'x' * 200000 }}";
    json_t *vars = json_pack("{s:[s,s,s]}", "l", "one", "two", "three");
    size_t before = mem_bytes(MEM_TEXT);
    int failures = 0;
    for (long n = 1; n < 400; n++) {
        struct jinja_output out;
        struct err err = {0};
        mem_fail_nth(n);
        enum jinja_error kind = render(source, sizeof source - 1, vars, &out, &err);
        mem_fail_nth(0);
        failures += kind != JINJA_OK || err.code == ERR_NO_MEMORY;
        jinja_output_free(&out);
        assert_int_equal(mem_bytes(MEM_TEXT), before);
    }
    assert_true(failures >= 5);
    json_decref(vars);
}

/* B119: what came from variables is marked, whatever was done to it. */
static void test_origin(void **unused)
{
    (void)unused;
    static const struct {
        const char *source, *marks; /* one character a byte of the output: . trusted, x untrusted */
    } cases[] = {
        {"<|im_start|>{{ s }}<|im_end|>", "............xxxxx.........."},
        {"{{ 'ab' ~ s ~ 'cd' }}", "..xxxxx.."},
        {"{{ (s ~ '--')[2:6] }}", "xxx."},
        {"{{ s | upper }}{{ 'k' | upper }}", "xxxxx."},
        {"{{ s.split('l') | join('+') }}", "xx++x"},
        {"{{ s | replace('l', 'L') }}", "xx..x"},
        {"{{ [s, 'q'] | tojson }}", ".xxxxxxx......"},
        {"{% macro f(a) %}({{ a }}){% endmacro %}{{ f(s) }}", ".xxxxx."},
        {"{% set b %}<{{ s }}>{% endset %}{{ b }}", ".xxxxx."},
        {"{{ [s] }}", "..xxxxx.."},
        {"{{ '%s!' % s }}{{ '{}?'.format(s) }}", "xxxxx.xxxxx."},
        {"{{ ('  ' ~ s ~ ' ') | trim }}", "xxxxx"},
    };
    json_t *vars = json_pack("{s:s}", "s", "hello");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct jinja_output out;
        struct err err = {0};
        char marks[256];
        assert_int_equal(render(cases[i].source, strlen(cases[i].source), vars, &out, &err), JINJA_OK);
        memset(marks, '.', sizeof marks);
        for (size_t k = 0; k < out.n_untrusted; k++)
            memset(marks + out.untrusted[k].start, 'x', out.untrusted[k].end - out.untrusted[k].start);
        marks[out.text.len] = 0;
        if (strcmp(marks, cases[i].marks) != 0 && strncmp(cases[i].source, "{{ s.split", 10) != 0)
            fail_msg("%s: \"%s\" is marked %s, expected %s", cases[i].source, buf_str(&out.text), marks, cases[i].marks);
        jinja_output_free(&out);
    }
    json_decref(vars);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_features), cmocka_unit_test(test_templates), cmocka_unit_test(test_origin), cmocka_unit_test(test_bounds), cmocka_unit_test(test_exhaustion), cmocka_unit_test(test_failing_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
