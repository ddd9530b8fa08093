/* The option table at work. Invariant: what a row says is all there is to know of an option; no code here names one. */
#include "base/opt.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NAME_MAX_LENGTH 40
#define HELP_COLUMN 32
#define HELP_WIDTH 100

static int takes_argument(const struct opt_spec *s)
{
    return s->type != OPT_FLAG;
}

/* The index of word in "a|b|c", or -1. */
static int word_index(const char *words, const char *word)
{
    size_t n = strlen(word);
    for (int i = 0; words; i++) {
        const char *end = strchr(words, '|');
        size_t len = end ? (size_t)(end - words) : strlen(words);
        if (len == n && memcmp(words, word, n) == 0)
            return i;
        words = end ? end + 1 : NULL;
    }
    return -1;
}

/* "a|b|c" as: "a", "b" or "c" */
static void words_for_people(const char *words, char *out, size_t n)
{
    size_t used = 0;
    *out = 0;
    while (words && used < n) {
        const char *end = strchr(words, '|');
        int len = end ? (int)(end - words) : (int)strlen(words);
        const char *before = used == 0 ? "" : end ? ", " : " or ";
        int more = snprintf(out + used, n - used, "%s\"%.*s\"", before, len, words);
        used += more > 0 ? (size_t)more : 0;
        words = end ? end + 1 : NULL;
    }
}

static int refuse(const struct opt_spec *s, const char *text, const char *what, struct err *err)
{
    char words[200] = "";
    if (s->words && s->type != OPT_CHOICE) {
        char list[160];
        words_for_people(s->words, list, sizeof list);
        snprintf(words, sizeof words, ", %s", list);
    }
    return err_set(err, ERR_INVALID, "--%s: \"%.100s\" is not %s%s", s->name, text, what, words);
}

static int parse_int(const struct opt_spec *s, const char *text, struct opt_value *v, struct err *err)
{
    if (s->words && word_index(s->words, text) >= 0) {
        v->s = text;
        return 0;
    }
    char what[120];
    snprintf(what, sizeof what, "a whole number from %.0f to %.0f", s->min, s->max);
    const char *digits = text[0] == '-' || text[0] == '+' ? text + 1 : text;
    if (!isdigit((unsigned char)*digits))
        return refuse(s, text, what, err);
    char *end;
    errno = 0;
    long long i = strtoll(text, &end, 10);
    if (errno || *end || (double)i < s->min || (double)i > s->max)
        return refuse(s, text, what, err);
    v->i = i;
    return 0;
}

static int parse_float(const struct opt_spec *s, const char *text, struct opt_value *v, struct err *err)
{
    char what[120];
    snprintf(what, sizeof what, "a number from %g to %g", s->min, s->max);
    char *end;
    errno = 0;
    double f = strtod(text, &end);
    if (!*text || isspace((unsigned char)*text) || *end || errno == ERANGE || !isfinite(f) || f < s->min || f > s->max)
        return refuse(s, text, what, err);
    v->f = f;
    return 0;
}

/* The factor of a size's unit, or 0: "", B = 1; K, KiB = 1024; KB = 1000; and so on. */
static double unit_factor(const char *unit)
{
    static const char letters[] = "KMGT";
    if (!*unit || strcmp(unit, "B") == 0)
        return 1;
    const char *letter = strchr(letters, toupper((unsigned char)unit[0]));
    if (!letter)
        return 0;
    double base = strcmp(unit + 1, "B") == 0 ? 1000 : 1024;
    if (base == 1024 && unit[1] && strcmp(unit + 1, "iB") != 0)
        return 0;
    return pow(base, (double)(letter - letters) + 1);
}

static int parse_size(const struct opt_spec *s, const char *text, struct opt_value *v, struct err *err)
{
    static const char what[] = "a size such as 512M, 8GiB or 1.5G";
    char *end;
    errno = 0;
    double f = isdigit((unsigned char)*text) && !(text[0] == '0' && (text[1] == 'x' || text[1] == 'X')) ? strtod(text, &end) : -1;
    if (f < 0 || errno || !isfinite(f))
        return refuse(s, text, what, err);
    double bytes = f * unit_factor(end);
    if (!(unit_factor(end) > 0) || bytes < s->min || bytes > 9e18 || (s->max > 0 && bytes > s->max))
        return refuse(s, text, what, err);
    v->i = (int64_t)bytes;
    return 0;
}

static int parse_choice(const struct opt_spec *s, const char *text, struct opt_value *v, struct err *err)
{
    int i = word_index(s->words, text);
    if (i < 0) {
        char what[200];
        words_for_people(s->words, what, sizeof what);
        return refuse(s, text, what, err);
    }
    v->i = i;
    v->s = text;
    return 0;
}

int opt_parse_value(const struct opt_spec *spec, const char *text, struct opt_value *out, struct err *err)
{
    struct opt_value v = *out;
    v.typed = text;
    switch (spec->type) {
    case OPT_FLAG:
        break;
    case OPT_INT:
        TRY(parse_int(spec, text, &v, err));
        break;
    case OPT_FLOAT:
        TRY(parse_float(spec, text, &v, err));
        break;
    case OPT_SIZE:
        TRY(parse_size(spec, text, &v, err));
        break;
    case OPT_STRING:
        v.s = text;
        break;
    case OPT_LIST:
        if (v.n_list == OPT_LIST_MAX)
            return err_set(err, ERR_INVALID, "--%s may be given at most %d times", spec->name, OPT_LIST_MAX);
        v.list[v.n_list++] = text;
        break;
    case OPT_CHOICE:
        TRY(parse_choice(spec, text, &v, err));
        break;
    }
    v.set = 1;
    *out = v;
    return 0;
}

static int min3(int a, int b, int c)
{
    int m = a < b ? a : b;
    return m < c ? m : c;
}

/* Edits from a to b: insert, delete, replace. Both shorter than NAME_MAX_LENGTH. */
static int edit_distance(const char *a, const char *b)
{
    int row[NAME_MAX_LENGTH + 1];
    int n = (int)strlen(b);
    for (int j = 0; j <= n; j++)
        row[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int above = row[j];
            row[j] = min3(above + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1]));
            diagonal = above;
        }
    }
    return row[n];
}

const char *opt_nearest(const char *word, const char *const *candidates)
{
    size_t n = strlen(word);
    const char *best = NULL;
    int best_distance = INT_MAX;
    if (n == 0 || n > NAME_MAX_LENGTH)
        return NULL;
    for (; *candidates; candidates++) {
        if (strlen(*candidates) > NAME_MAX_LENGTH)
            continue;
        int d = edit_distance(word, *candidates);
        if (strncmp(*candidates, word, n) == 0 && n >= 3)
            d = 1; /* the beginning of a name */
        if (d < best_distance) {
            best_distance = d;
            best = *candidates;
        }
    }
    int allowed = n <= 3 ? 1 : n <= 6 ? 2 : 3;
    return best_distance <= allowed ? best : NULL;
}

static int unknown_option(const struct opt_spec *specs, int n_specs, uint64_t verbs, const char *typed, struct err *err)
{
    const char *names[OPT_MAX + 1];
    char name[NAME_MAX_LENGTH + 1];
    int n = 0;
    for (int i = 0; i < n_specs; i++)
        if (specs[i].verbs & verbs)
            names[n++] = specs[i].name;
    names[n] = NULL;
    const char *start = typed + strspn(typed, "-");
    size_t len = strcspn(start, "=");
    snprintf(name, sizeof name, "%.*s", len > NAME_MAX_LENGTH ? 0 : (int)len, start);
    const char *near = typed[1] == '-' ? opt_nearest(name, names) : NULL;
    if (near)
        return err_set(err, ERR_INVALID, "unknown option %.100s; did you mean --%s?", typed, near);
    return err_set(err, ERR_INVALID, "unknown option %.100s", typed);
}

struct tables {
    struct option longs[OPT_MAX + 1];
    char shorts[2 * OPT_MAX + 3];
    int row_of_short[256];
};

/* What getopt_long wants, from the rows of the verbs. Returned values: row + 1000 for long options, the letter for short ones. */
static void make_tables(const struct opt_spec *specs, int n_specs, uint64_t verbs, struct tables *t)
{
    int n = 0;
    char *s = t->shorts;
    memset(t, 0, sizeof *t);
    *s++ = ':';
    for (int i = 0; i < n_specs && n < OPT_MAX; i++) {
        if (!(specs[i].verbs & verbs))
            continue;
        t->longs[n++] = (struct option){specs[i].name, takes_argument(&specs[i]) ? required_argument : no_argument, NULL, 1000 + i};
        if (!specs[i].short_name)
            continue;
        *s++ = specs[i].short_name;
        if (takes_argument(&specs[i]))
            *s++ = ':';
        t->row_of_short[(unsigned char)specs[i].short_name] = 1000 + i;
    }
}

/* getopt_long also takes the beginning of a name; scripts that do so break when an option is added, so only whole names count. */
static int is_abbreviated(const char *typed, const char *name)
{
    size_t n = strcspn(typed + 2, "=");
    return n != strlen(name) || strncmp(typed + 2, name, n) != 0;
}

static int parse_failure(int code, const char *typed, const struct opt_spec *specs, int n_specs, uint64_t verbs, struct err *err)
{
    if (code == ':')
        return err_set(err, ERR_INVALID, "option %.100s needs a value", typed);
    if (optopt >= 1000 && optopt < 1000 + n_specs)
        return err_set(err, ERR_INVALID, "--%s takes no value", specs[optopt - 1000].name);
    char letter[3] = {'-', (char)optopt, 0};
    return unknown_option(specs, n_specs, verbs, typed[0] == '-' && typed[1] == '-' ? typed : optopt ? letter : typed, err);
}

int opt_parse(const struct opt_spec *specs, int n_specs, uint64_t verbs, int argc, char **argv, struct opt_value *values, int *first_arg, struct err *err)
{
    struct tables t;
    make_tables(specs, n_specs, verbs, &t);
    memset(values, 0, sizeof *values * (size_t)n_specs);
    opterr = 0;
    optind = 0; /* a fresh scan */
    for (;;) {
        int before = optind > 0 ? optind : 1;
        int code = getopt_long(argc, argv, t.shorts, t.longs, NULL);
        if (code == -1)
            break;
        /* The word just read: argv[optind - 1], or the one before its separate argument. */
        const char *typed = argv[optind - 1];
        if (code == '?' || code == ':')
            return parse_failure(code, typed[0] == '-' ? typed : argv[before], specs, n_specs, verbs, err);
        int row = code >= 1000 ? code - 1000 : t.row_of_short[code & 255] - 1000;
        if (code >= 1000 && takes_argument(&specs[row]) && optarg == typed && optind >= 2)
            typed = argv[optind - 2];
        if (code >= 1000 && is_abbreviated(typed, specs[row].name))
            return unknown_option(specs, n_specs, verbs, typed, err);
        TRY(opt_parse_value(&specs[row], takes_argument(&specs[row]) ? optarg : "", &values[row], err));
    }
    *first_arg = optind;
    return 0;
}

/* Appends text wrapped at HELP_WIDTH, continued at HELP_COLUMN; `column` is where it starts. */
static void write_wrapped(struct buf *out, const char *text, int column)
{
    while (*text) {
        size_t word = strcspn(text, " ");
        if (column > HELP_COLUMN && column + 1 + (int)word > HELP_WIDTH) {
            buf_addf(out, "\n%*s", HELP_COLUMN, "");
            column = HELP_COLUMN;
        } else if (column > HELP_COLUMN) {
            buf_add_char(out, ' ');
            column++;
        }
        buf_add(out, text, word);
        column += (int)word;
        text += word;
        text += strspn(text, " ");
    }
}

static const char *metavar(const struct opt_spec *s)
{
    return s->metavar ? s->metavar : s->words ? s->words : "VALUE";
}

int opt_write_help(const struct opt_spec *specs, int n_specs, uint64_t verbs, struct buf *out)
{
    for (int i = 0; i < n_specs; i++) {
        const struct opt_spec *s = &specs[i];
        if (!(s->verbs & verbs))
            continue;
        char head[120], shorts[8] = "    ", text[600];
        if (s->short_name)
            snprintf(shorts, sizeof shorts, "-%c, ", s->short_name);
        int n = snprintf(head, sizeof head, "  %s--%s%s%s", shorts, s->name, takes_argument(s) ? " " : "", takes_argument(s) ? metavar(s) : "");
        buf_add_str(out, head);
        if (n >= HELP_COLUMN)
            buf_addf(out, "\n%*s", HELP_COLUMN, "");
        else
            buf_addf(out, "%*s", HELP_COLUMN - n, "");
        snprintf(text, sizeof text, s->default_text ? "%s (default: %s)" : "%s", s->help, s->default_text);
        write_wrapped(out, text, HELP_COLUMN);
        buf_add_char(out, '\n');
    }
    return out->failed;
}

int opt_write_roff(struct buf *out, const char *text)
{
    for (int at_start = 1; *text; text++) {
        if (at_start && (*text == '.' || *text == '\''))
            buf_add_str(out, "\\&");
        at_start = *text == '\n';
        if (*text == '\\')
            buf_add_str(out, "\\e");
        else if (*text == '-')
            buf_add_str(out, "\\-");
        else
            buf_add_char(out, *text);
    }
    return out->failed;
}

int opt_write_man(const struct opt_spec *specs, int n_specs, uint64_t verbs, struct buf *out)
{
    for (int i = 0; i < n_specs; i++) {
        const struct opt_spec *s = &specs[i];
        if (!(s->verbs & verbs))
            continue;
        buf_add_str(out, ".TP\n");
        if (s->short_name)
            buf_addf(out, "\\fB\\-%c\\fR, ", s->short_name);
        buf_add_str(out, "\\fB\\-\\-");
        opt_write_roff(out, s->name);
        buf_add_str(out, "\\fR");
        if (takes_argument(s))
            buf_addf(out, " \\fI%s\\fR", metavar(s));
        buf_add_char(out, '\n');
        opt_write_roff(out, s->help);
        if (s->default_text) {
            buf_add_str(out, " (default: ");
            opt_write_roff(out, s->default_text);
            buf_add_char(out, ')');
        }
        buf_add_char(out, '\n');
    }
    return out->failed;
}

static json_t *value_json(const struct opt_spec *s, const struct opt_value *v)
{
    if (!v->set)
        return json_null();
    if (s->type == OPT_FLAG || strncmp(s->name, "api-key", 7) == 0)
        return json_true();
    if (s->type == OPT_FLOAT)
        return json_real(v->f);
    if (s->type == OPT_SIZE || (s->type == OPT_INT && !v->s))
        return json_integer(v->i);
    if (s->type != OPT_LIST)
        return json_string(v->s);
    json_t *list = json_array();
    for (int i = 0; i < v->n_list; i++)
        json_array_append_new(list, json_string(v->list[i]));
    return list;
}

json_t *opt_json(const struct opt_spec *specs, int n_specs, uint64_t verbs, const struct opt_value *values)
{
    json_t *out = json_object();
    for (int i = 0; out && i < n_specs; i++)
        if (specs[i].verbs & verbs)
            json_object_set_new(out, specs[i].name, value_json(&specs[i], &values[i]));
    return out;
}

int opt_colour(int fd)
{
    const char *no_colour = getenv("NO_COLOR");
    const char *terminal = getenv("TERM");
    if (no_colour && *no_colour)
        return 0;
    return isatty(fd) && !(terminal && strcmp(terminal, "dumb") == 0);
}
