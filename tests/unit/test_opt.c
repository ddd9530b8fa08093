/* The option table: every type's values, what is refused and how, which verb takes what, the report of what was set. */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/opt.h"
#include "support/test.h"

enum { PORT, SIZE, RATE, NAME, MANY, KIND, LAYERS, LOUD, SAME_FLAG, SAME_TEXT, KEY, N };
enum { ONE = 1, TWO = 2 };

static const struct opt_spec specs[N] = {
    [PORT] = {"port", 'p', OPT_INT, 0, 65535, NULL, "8080", ONE, "N", "where"},
    [SIZE] = {"size", 0, OPT_SIZE, 1, 0, NULL, NULL, ONE, "SIZE", "how much"},
    [RATE] = {"rate", 'r', OPT_FLOAT, -1, 1, NULL, "0.5", ONE, "F", "how fast"},
    [NAME] = {"name", 0, OPT_STRING, 0, 0, NULL, NULL, ONE | TWO, "NAME", "who"},
    [MANY] = {"many", 'm', OPT_LIST, 0, 0, NULL, NULL, ONE, "X", "again and again"},
    [KIND] = {"kind", 0, OPT_CHOICE, 0, 0, "red|green|blue", NULL, ONE, NULL, "which"},
    [LAYERS] = {"layers", 0, OPT_INT, 0, 9, "auto|all", NULL, ONE, "N|auto|all", "how many"},
    [LOUD] = {"loud", 'l', OPT_FLAG, 0, 0, NULL, NULL, ONE | TWO, NULL, "more"},
    [SAME_FLAG] = {"same", 0, OPT_FLAG, 0, 0, NULL, NULL, ONE, NULL, "a flag here"},
    [SAME_TEXT] = {"same", 0, OPT_STRING, 0, 0, NULL, NULL, TWO, "TEXT", "a text there"},
    [KEY] = {"api-key", 0, OPT_STRING, 0, 0, NULL, NULL, TWO, "KEY", "a secret"},
};

/* Parses "a b c" split at spaces; the words live in a static buffer. */
static int parse(uint64_t verbs, const char *line, struct opt_value *values, char ***args, int *n_args, struct err *err)
{
    static char text[4096];
    static char *argv[64];
    int argc = 1, first = 0;
    argv[0] = "apr";
    snprintf(text, sizeof text, "%s", line);
    for (char *p = text; *p;) {
        argv[argc++] = p;
        p += strcspn(p, " ");
        if (*p)
            *p++ = 0;
    }
    argv[argc] = NULL;
    int rc = opt_parse(specs, N, verbs, argc, argv, values, &first, err);
    if (args) {
        *args = argv + first;
        *n_args = argc - first;
    }
    return rc;
}

static void sizes(void **state)
{
    static const struct {
        const char *text;
        int64_t bytes; /* -1: refused */
    } cases[] = {
        {"1", 1}, {"512M", 512LL << 20}, {"8GiB", 8LL << 30}, {"1.5G", 3LL << 29}, {"10MB", 10000000}, {"4k", 4096}, {"4KiB", 4096}, {"4kB", 4000}, {"2T", 2LL << 40}, {"7B", 7},
        {"0", -1}, {"", -1}, {"M", -1}, {"-1M", -1}, {"1X", -1}, {"1Mi", -1}, {"1MiBs", -1}, {" 1M", -1}, {"0x10", -1}, {"inf", -1}, {"nan", -1}, {"1e30", -1}, {"99999999T", -1}, {"1 M", -1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct opt_value v = {0};
        struct err err = {0};
        int rc = opt_parse_value(&specs[SIZE], cases[i].text, &v, &err);
        assert_int_equal(rc, cases[i].bytes < 0 ? ERR_INVALID : 0);
        assert_int_equal(v.set, rc == 0);
        if (rc == 0)
            assert_int_equal(v.i, cases[i].bytes);
        else
            assert_non_null(strstr(err.message, "is not a size such as 512M, 8GiB or 1.5G"));
    }
}

static void values_and_arguments(void **state)
{
    struct opt_value v[N];
    struct err err = {0};
    char **args;
    int n;
    (void)state;
    test_ok(parse(ONE, "first -p 80 --rate=-0.25 second --many a -m b --kind green --layers all -l --name= -- --third", v, &args, &n, &err), &err, "parse");
    assert_int_equal(n, 3);
    assert_string_equal(args[0], "first");
    assert_string_equal(args[2], "--third");
    assert_int_equal(v[PORT].i, 80);
    assert_true(v[RATE].f == -0.25);
    assert_int_equal(v[MANY].n_list, 2);
    assert_string_equal(v[MANY].list[1], "b");
    assert_int_equal(v[KIND].i, 1);
    assert_string_equal(v[LAYERS].s, "all");
    assert_true(v[LOUD].set && v[NAME].set && !v[SIZE].set && !v[SAME_FLAG].set);
    assert_string_equal(v[NAME].s, "");
    test_ok(parse(ONE, "--layers 3 -p80", v, NULL, NULL, &err), &err, "parse");
    assert_true(v[LAYERS].s == NULL && v[LAYERS].i == 3 && v[PORT].i == 80);
    assert_int_equal(v[MANY].n_list, 0); /* nothing is left of the time before */
}

static void the_same_name_in_two_verbs(void **state)
{
    struct opt_value v[N];
    struct err err = {0};
    (void)state;
    test_ok(parse(ONE, "--same x", v, NULL, NULL, &err), &err, "flag");
    assert_true(v[SAME_FLAG].set && !v[SAME_TEXT].set);
    test_ok(parse(TWO, "--same x", v, NULL, NULL, &err), &err, "text");
    assert_string_equal(v[SAME_TEXT].s, "x");
    assert_false(v[SAME_FLAG].set);
}

static void refusals(void **state)
{
    static const struct {
        uint64_t verbs;
        const char *line, *sentence;
    } cases[] = {
        {ONE, "--port 65536", "--port: \"65536\" is not a whole number from 0 to 65535"},
        {ONE, "--port 99999999999999999999", "--port: \"99999999999999999999\" is not a whole number from 0 to 65535"},
        {ONE, "-p 1.0", "--port: \"1.0\" is not a whole number from 0 to 65535"},
        {ONE, "--rate 1.01", "--rate: \"1.01\" is not a number from -1 to 1"},
        {ONE, "--rate inf", "--rate: \"inf\" is not a number from -1 to 1"},
        {ONE, "--kind gree", "--kind: \"gree\" is not \"red\", \"green\" or \"blue\""},
        {ONE, "--layers 10", "--layers: \"10\" is not a whole number from 0 to 9, \"auto\" or \"all\""},
        {ONE, "--layers al", "--layers: \"al\" is not a whole number from 0 to 9, \"auto\" or \"all\""},
        {ONE, "--prt 1", "unknown option --prt; did you mean --port?"},
        {ONE, "--por 1", "unknown option --por; did you mean --port?"},
        {ONE, "--por=1", "unknown option --por=1; did you mean --port?"},
        {ONE, "--zzzzzzzz", "unknown option --zzzzzzzz"},
        {ONE, "-z", "unknown option -z"},
        {ONE, "-lz", "unknown option -z"},
        {TWO, "--port 1", "unknown option --port"},
        {ONE, "--loud=1", "--loud takes no value"},
        {ONE, "x --port", "option --port needs a value"},
        {ONE, "-p", "option -p needs a value"},
        {ONE, "-m 1 -m 2 -m 3 -m 4 -m 5 -m 6 -m 7 -m 8 -m 9 -m 10 -m 11 -m 12 -m 13 -m 14 -m 15 -m 16 -m 17", "--many may be given at most 16 times"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct opt_value v[N];
        struct err err = {0};
        assert_int_equal(parse(cases[i].verbs, cases[i].line, v, NULL, NULL, &err), ERR_INVALID);
        assert_string_equal(err.message, cases[i].sentence);
    }
}

static void nearest(void **state)
{
    static const char *const words[] = {"inspect", "serve", "run", "tokenize", "detokenize", NULL};
    (void)state;
    assert_string_equal(opt_nearest("inpect", words), "inspect");
    assert_string_equal(opt_nearest("sevre", words), "serve");
    assert_string_equal(opt_nearest("rn", words), "run");
    assert_string_equal(opt_nearest("token", words), "tokenize");
    assert_null(opt_nearest("xyz", words));
    assert_null(opt_nearest("", words));
    assert_null(opt_nearest("a-word-that-is-far-longer-than-any-name-of-an-option-could-be", words));
}

static void report(void **state)
{
    struct opt_value v[N];
    struct err err = {0};
    struct buf out;
    (void)state;
    buf_init(&out, MEM_OTHER, 10000);
    test_ok(parse(ONE, "-p 80 --size 1K --many a --many b --layers auto -l", v, NULL, NULL, &err), &err, "parse");
    json_t *json = opt_json(specs, N, ONE, v);
    json_write_python(&out, json, -1);
    assert_string_equal(buf_str(&out), "{\"port\": 80, \"size\": 1024, \"rate\": null, \"name\": null, \"many\": [\"a\", \"b\"], \"kind\": null, \"layers\": \"auto\", \"loud\": true, \"same\": null}");
    json_decref(json);
    buf_clear(&out);
    test_ok(parse(TWO, "--api-key secret", v, NULL, NULL, &err), &err, "parse");
    json = opt_json(specs, N, TWO, v);
    json_write_python(&out, json, -1);
    assert_null(strstr(buf_str(&out), "secret"));
    json_decref(json);
    buf_free(&out);
}

static void pages(void **state)
{
    struct buf out;
    (void)state;
    buf_init(&out, MEM_OTHER, 10000);
    assert_int_equal(opt_write_help(specs, N, TWO, &out), 0);
    assert_string_equal(buf_str(&out), "      --name NAME               who\n  -l, --loud                    more\n      --same TEXT               a text there\n      --api-key KEY             a secret\n");
    buf_clear(&out);
    assert_int_equal(opt_write_man(specs, 1, ONE, &out), 0);
    assert_string_equal(buf_str(&out), ".TP\n\\fB\\-p\\fR, \\fB\\-\\-port\\fR \\fIN\\fR\nwhere (default: 8080)\n");
    buf_clear(&out);
    opt_write_roff(&out, ".a-b\\c\n'd");
    assert_string_equal(buf_str(&out), "\\&.a\\-b\\ec\n\\&'d");
    buf_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes), cmocka_unit_test(values_and_arguments), cmocka_unit_test(the_same_name_in_two_verbs), cmocka_unit_test(refusals),
        cmocka_unit_test(nearest), cmocka_unit_test(report), cmocka_unit_test(pages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
