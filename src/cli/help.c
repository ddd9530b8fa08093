/* Pages for people, made of the two tables: the program's, a verb's, and the manual page. */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"

#define PAGE_WIDTH 100

static int is_debug(const struct verb *v)
{
    return strncmp(v->name, "debug ", 6) == 0;
}

void help_program(struct buf *out)
{
    buf_add_str(out, "usage: apr VERB [ARGUMENTS] [OPTIONS]\n\nRuns Qwen3.5-family models from GGUF files.\n\n");
    for (const struct verb *v = cli_verbs; v->name; v++)
        if (!is_debug(v))
            buf_addf(out, "  %-12s %s\n", v->name, v->summary);
    buf_add_str(out, "\n`apr help VERB` or `apr VERB --help` shows a verb's options. MODEL is a path or a name; `demo` ships with the program.\n"
                     "Exit status: 0 done, 1 failed, 2 wrong usage, 14 a device asked for by name is not to be had.\n");
}

/* A paragraph, broken at spaces. */
static void write_paragraph(struct buf *out, const char *text)
{
    size_t column = 0;
    while (*text) {
        size_t word = strcspn(text, " ");
        if (column > 0 && column + 1 + word > PAGE_WIDTH) {
            buf_add_char(out, '\n');
            column = 0;
        } else if (column > 0) {
            buf_add_char(out, ' ');
            column++;
        }
        buf_add(out, text, word);
        column += word;
        text += word;
        text += strspn(text, " ");
    }
    buf_add_char(out, '\n');
}

void help_verb(const struct verb *v, struct buf *out)
{
    buf_addf(out, "usage: apr %s%s%s [OPTIONS]\n\n%c%s.\n", v->name, *v->args ? " " : "", v->args, v->summary[0] & ~0x20, v->summary + 1);
    if (*v->description)
        write_paragraph(out, v->description);
    buf_add_str(out, "\noptions:\n");
    opt_write_help(cli_options, N_OPTIONS, v->bit, out);
}

void help_man(struct buf *out)
{
    buf_add_str(out, ".TH APR 1 \"\" \"apr " APR_VERSION "\" \"User Commands\"\n.SH NAME\napr \\- run Qwen3.5 models from GGUF files\n"
                     ".SH SYNOPSIS\n.B apr\n.I VERB\n[\\fIARGUMENTS\\fR] [\\fIOPTIONS\\fR]\n.SH DESCRIPTION\n"
                     "One program that serves, chats, measures and inspects. Data goes to standard output, words for people to standard error. "
                     "A text that looks like an option can follow a lone \\fB\\-\\-\\fR. Text that is not valid UTF\\-8 is read with U+FFFD in place of each broken part.\n.SH VERBS\n");
    for (const struct verb *v = cli_verbs; v->name; v++) {
        buf_add_str(out, ".SS apr ");
        opt_write_roff(out, v->name);
        buf_add_char(out, ' ');
        opt_write_roff(out, v->args);
        buf_addf(out, "\n%c", v->summary[0] & ~0x20);
        opt_write_roff(out, v->summary + 1);
        buf_add_str(out, ".\n");
        opt_write_roff(out, v->description);
        buf_add_char(out, '\n');
        opt_write_man(cli_options, N_OPTIONS, v->bit, out);
    }
    buf_add_str(out, ".SH EXIT STATUS\n.TP\n.B 0\ndone\n.TP\n.B 1\nfailed\n.TP\n.B 2\nwrong usage\n.TP\n.B 14\na device asked for by name is not to be had\n"
                     ".SH ENVIRONMENT\n.TP\n.B NO_COLOR\nwhen set and not empty, no colours on terminals\n");
}

static const struct verb *find_verb(const char *name)
{
    for (const struct verb *v = cli_verbs; v->name; v++)
        if (strcmp(v->name, name) == 0)
            return v;
    return NULL;
}

int verb_help(struct cli *c)
{
    struct buf page;
    buf_init(&page, MEM_OTHER, 1 << 20);
    if (c->o[O_MAN].set) {
        help_man(&page);
    } else if (c->n_args == 0) {
        help_program(&page);
    } else {
        char name[100];
        snprintf(name, sizeof name, "%s%s%s", c->args[0], c->n_args > 1 ? " " : "", c->n_args > 1 ? c->args[1] : "");
        const struct verb *v = find_verb(name);
        size_t n = strlen(name);
        if (v)
            help_verb(v, &page);
        for (v = v ? NULL : cli_verbs; v && v->name; v++) /* "serve": all of its verbs */
            if (strncmp(v->name, name, n) == 0 && v->name[n] == ' ')
                help_verb(v, &page);
        if (page.len == 0) {
            buf_free(&page);
            return cli_usage(c, "there is no verb \"%s\"; `apr help` lists them", name);
        }
    }
    fwrite(page.data, 1, page.len, stdout);
    buf_free(&page);
    return 0;
}
