/* apr: finds the verb, reads its options, runs it, and turns what came of it into words and an exit status. The only file that ends the process. */
#include <fcntl.h>
#include <locale.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/log.h"
#include "cli/common.h"
#include "gguf/gguf.h"

int cli_usage(struct cli *c, const char *format, ...)
{
    char text[sizeof c->err.message];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    c->usage = 1;
    return err_set(&c->err, ERR_INVALID, "%s", text);
}

static size_t append(char *text, size_t used, size_t size, const char *more)
{
    size_t n = strlen(more);
    if (used + n > size)
        n = size - used;
    memcpy(text + used, more, n);
    return used + n;
}

/* A mapped model file shrank or its disk failed: one line and out. Nothing here but write(2) and our own memory. */
static void on_bus_error(int signal_number, siginfo_t *info, void *context)
{
    (void)signal_number;
    (void)context;
    char line[4300];
    const char *path = gguf_path_of_address(info->si_addr);
    size_t n = append(line, 0, sizeof line, "apr: ");
    n = append(line, n, sizeof line - 64, path ? path : "a mapped file");
    n = append(line, n, sizeof line, " changed or became unreadable while in use\n");
    ssize_t written = write(STDERR_FILENO, line, n);
    _exit(written == (ssize_t)n ? EXIT_FAILED : EXIT_FAILED + 2);
}

static void catch_bus_errors(void)
{
    struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, NULL);
}

/* A standard stream that was closed would lend its number to the next file, socket or queue, and what is written for people would go there. Its place is taken the wrong way
 * round, so that using the stream stays the error that it was. */
static void hold_standard_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0)
            return;
}

static int exit_status(const struct cli *c)
{
    if (c->usage)
        return EXIT_USAGE;
    return c->err.code == ERR_DEVICE ? EXIT_DEVICE : EXIT_FAILED;
}

/* The error as words, and as a JSON document where one is expected. The message may quote what a file or a caller put there: bytes of any kind. Returns the exit status. */
static int report(const struct cli *c, int json)
{
    int status = exit_status(c);
    size_t n = strlen(c->err.message);
    struct buf out;
    fputs("apr: ", stderr);
    cli_write_safe(stderr, c->err.message, n);
    putc('\n', stderr);
    if (!json)
        return status;
    json_t *message = cli_json_text(c->err.message, n);
    buf_init(&out, MEM_OTHER, 1 << 16);
    buf_addf(&out, "{\"error\": {\"kind\": \"%s\", \"message\": ", c->usage ? "usage" : err_kind(c->err.code));
    json_write_string(&out, message ? json_string_value(message) : "", message ? json_string_length(message) : 0, 0);
    json_decref(message);
    buf_addf(&out, ", \"exit_code\": %d}}\n", status);
    fwrite(buf_str(&out), 1, out.len, stdout);
    buf_free(&out);
    return status;
}

static int says(const char *word, const char *long_name, const char *short_name)
{
    return strcmp(word, long_name) == 0 || strcmp(word, short_name) == 0;
}

/* The verb that argv[1] (and argv[2], for two-word ones) names, and how many words it took. */
static const struct verb *find_verb(int argc, char **argv, int *n_words)
{
    for (const struct verb *v = cli_verbs; v->name; v++) {
        const char *space = strchr(v->name, ' ');
        size_t n = space ? (size_t)(space - v->name) : strlen(v->name);
        if (strlen(argv[1]) != n || strncmp(v->name, argv[1], n) != 0)
            continue;
        if (space && (argc < 3 || strcmp(space + 1, argv[2]) != 0))
            continue;
        *n_words = space ? 2 : 1;
        return v;
    }
    return NULL;
}

/* The second words of a two-word verb as "run or plan", into text. Returns how many there are. */
static int second_words(const char *first, char *text, size_t size)
{
    size_t n = strlen(first), used = 0;
    int count = 0;
    *text = 0;
    for (const struct verb *v = cli_verbs; v->name; v++)
        if (strncmp(v->name, first, n) == 0 && v->name[n] == ' ' && used < size) {
            used += (size_t)snprintf(text + used, size - used, "%s%s", count ? ", " : "", v->name + n + 1);
            count++;
        }
    return count;
}

static int unknown_verb(struct cli *c, int argc, char **argv)
{
    const char *names[64];
    char words[400];
    int n = 0;
    if (argv[1][0] == '-')
        return cli_usage(c, "unknown option %.100s; the verb comes first: `apr help` lists them", argv[1]);
    if (second_words(argv[1], words, sizeof words)) {
        for (const struct verb *v = cli_verbs; argc > 2 && v->name; v++)
            if (strncmp(v->name, argv[1], strlen(argv[1])) == 0 && strchr(v->name, ' '))
                names[n++] = strchr(v->name, ' ') + 1;
        names[n] = NULL;
        const char *near = argc > 2 ? opt_nearest(argv[2], names) : NULL;
        if (near)
            return cli_usage(c, "unknown verb \"%s %.100s\"; did you mean \"%s %s\"?", argv[1], argv[2], argv[1], near);
        return cli_usage(c, "\"%s\" needs one of: %s", argv[1], words);
    }
    for (const struct verb *v = cli_verbs; v->name; v++)
        names[n++] = v->name;
    names[n++] = "serve";
    names[n] = NULL;
    const char *near = opt_nearest(argv[1], names);
    if (near)
        return cli_usage(c, "unknown verb \"%.100s\"; did you mean \"%s\"?", argv[1], near);
    return cli_usage(c, "unknown verb \"%.100s\"; `apr help` lists them", argv[1]);
}

/* One option, or a word that is an option's, in the place of a verb. */
static int global_option(const char *word)
{
    struct buf page;
    buf_init(&page, MEM_OTHER, 1 << 20);
    if (says(word, "--version", "-V"))
        buf_add_str(&page, "apr " APR_VERSION "\n");
    else if (says(word, "--help", "-h"))
        help_program(&page);
    else if (says(word, "--man", "--man"))
        help_man(&page);
    int known = page.len > 0;
    fwrite(buf_str(&page), 1, page.len, stdout);
    buf_free(&page);
    return known;
}

static int check_args(struct cli *c)
{
    const struct verb *v = c->verb;
    if (c->n_args < v->min_args)
        return cli_usage(c, "%s: %s is missing; usage: apr %s %s [OPTIONS]", v->name, c->n_args == 0 && v->max_args != 1 ? "an argument" : v->args, v->name, v->args);
    if (v->max_args >= 0 && c->n_args > v->max_args)
        return cli_usage(c, "%s: \"%.100s\" is one argument too many; usage: apr %s %s [OPTIONS]", v->name, c->args[v->max_args], v->name, v->args);
    return 0;
}

static int run_verb(struct cli *c, int argc, char **argv)
{
    int n_words = 0, first = 0;
    char words[400];
    c->verb = find_verb(argc, argv, &n_words);
    if (!c->verb && argc == 3 && says(argv[2], "--help", "-h") && second_words(argv[1], words, sizeof words)) { /* apr serve --help */
        c->args = argv + 1;
        c->n_args = 1;
        return verb_help(c);
    }
    if (!c->verb)
        return unknown_verb(c, argc, argv);
    int rc = opt_parse(cli_options, N_OPTIONS, c->verb->bit, argc - n_words, argv + n_words, c->o, &first, &c->err);
    if (rc < 0) {
        c->usage = 1;
        return rc;
    }
    c->args = argv + n_words + first;
    c->n_args = argc - n_words - first;
    if (c->o[O_HELP].set) {
        struct buf page;
        buf_init(&page, MEM_OTHER, 1 << 20);
        help_verb(c->verb, &page);
        fwrite(buf_str(&page), 1, page.len, stdout);
        buf_free(&page);
        return 0;
    }
    if (c->o[O_VERSION].set) {
        puts("apr " APR_VERSION);
        return 0;
    }
    log_set_level(c->o[O_QUIET].set ? LOG_QUIET : c->o[O_VERBOSE].set ? LOG_VERBOSE : LOG_NORMAL);
    TRY(check_args(c));
    return c->verb->run(c);
}

static int wants_json(int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--json") == 0)
            return 1;
    return 0;
}

int main(int argc, char **argv)
{
    static struct cli c;
    hold_standard_streams();
    json_use_mem();
    catch_bus_errors();
    setlocale(LC_CTYPE, "");
    if (argc < 2) {
        struct buf page;
        buf_init(&page, MEM_OTHER, 1 << 20);
        help_program(&page);
        fwrite(buf_str(&page), 1, page.len, stderr);
        buf_free(&page);
        return EXIT_USAGE;
    }
    if (global_option(argv[1]))
        return fflush(stdout) ? EXIT_FAILED : 0;
    int rc = run_verb(&c, argc, argv);
    int status = rc < 0 ? report(&c, wants_json(argc, argv)) : 0;
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "apr: standard output cannot be written\n");
        return EXIT_FAILED;
    }
    return status;
}
