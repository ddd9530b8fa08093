/* Command-line options from one table: parsing, --help, the manual page and the report of what was set all read the same rows, so that none can drift from the others.
 * Set and unset are told apart. The only room that reads the environment (NO_COLOR, TERM). One caller, at start. */
#ifndef BASE_OPT_H
#define BASE_OPT_H

#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "base/buf.h"
#include "base/err.h"

enum opt_type {
    OPT_FLAG,    /* no argument */
    OPT_INT,     /* whole number in [min, max], or one of `words` */
    OPT_FLOAT,   /* finite number in [min, max] */
    OPT_SIZE,    /* bytes: 512M, 8GiB (powers of 1024), 10MB (powers of 1000) */
    OPT_STRING,
    OPT_LIST,    /* a string; may be given several times */
    OPT_CHOICE   /* one of `words` */
};

#define OPT_MAX 96        /* rows of a table */
#define OPT_LIST_MAX 16   /* values of one OPT_LIST */

struct opt_spec {
    const char *name;          /* without dashes; several rows may share a name when their verbs differ */
    char short_name;           /* 0 = none */
    enum opt_type type;
    double min, max;
    const char *words;         /* "cpu|cuda" */
    const char *default_text;  /* what holds when unset, for people; NULL = nothing to say */
    uint64_t verbs;            /* bit set of the verbs that take it */
    const char *metavar;       /* "N" */
    const char *help;
};

struct opt_value {
    int set;
    int64_t i;                 /* OPT_INT, OPT_SIZE; the index of the word for OPT_CHOICE */
    double f;                  /* OPT_FLOAT */
    const char *s;             /* the argument as typed; OPT_INT: NULL unless it is one of the words */
    const char *typed;         /* as typed, whatever the type */
    const char *list[OPT_LIST_MAX];
    int n_list;
};

/* Parses argv[1..argc) by the rows of `specs` whose verbs meet `verbs`. values [n_specs] are indexed as specs. What is no option is moved to the end of argv:
 * *first_arg is the index of the first one. ERR_INVALID with the sentence for people: unknown ones name the nearest. */
int opt_parse(const struct opt_spec *specs, int n_specs, uint64_t verbs, int argc, char **argv, struct opt_value *values, int *first_arg, struct err *err) MUST_CHECK;

/* One line an option, wrapped for 100 columns. */
int opt_write_help(const struct opt_spec *specs, int n_specs, uint64_t verbs, struct buf *out);
/* The same as roff for a manual page: the rows whose verbs meet `verbs`. */
int opt_write_man(const struct opt_spec *specs, int n_specs, uint64_t verbs, struct buf *out);
/* Text with roff's own characters made harmless. */
int opt_write_roff(struct buf *out, const char *text);

/* {"port": 8080, "alias": null, ...}: every option of the verbs with what was set, null where nothing was. Options whose name starts with "api-key" show true. */
json_t *opt_json(const struct opt_spec *specs, int n_specs, uint64_t verbs, const struct opt_value *values);

/* The candidate that `word` was probably meant to be, or NULL when none is near. candidates ends with NULL. */
const char *opt_nearest(const char *word, const char *const *candidates);

/* One value of the types that take an argument, by the row's rules; for files and tests. */
int opt_parse_value(const struct opt_spec *spec, const char *text, struct opt_value *out, struct err *err) MUST_CHECK;

/* Whether escape sequences may go to this descriptor: a terminal, NO_COLOR unset or empty, TERM not "dumb". */
int opt_colour(int fd);

#endif
