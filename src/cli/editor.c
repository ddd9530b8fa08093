#include "cli/editor.h"

#include <errno.h>
#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "cli/talk.h"

#define HISTORY_LINES 500

struct editor {
    EditLine *el;        /* NULL: a pipe */
    History *history;
    struct buf line;
};

static const char *prompt(EditLine *el)
{
    (void)el;
    return "> ";
}

/* Waits for a byte; -1 when an interrupt comes first, however shortly before. */
static int wait_for_input(void)
{
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    sigset_t interrupt, before;
    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT);
    pthread_sigmask(SIG_BLOCK, &interrupt, &before);
    int ready = talk_interrupt_waits() ? -1 : ppoll(&input, 1, NULL, &before);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return ready;
}

/* One character from the terminal. libedit's own reader takes the first interrupt for a hiccup and reads on. */
static int read_character(EditLine *el, wchar_t *out)
{
    char bytes[4];
    (void)el;
    for (size_t n = 0; n < sizeof bytes;) {
        ssize_t got = wait_for_input() < 0 ? -1 : read(STDIN_FILENO, bytes + n, 1);
        if (got <= 0)
            return (int)got;
        uint32_t code_point;
        int len = utf8_decode(bytes, ++n, &code_point);
        if (len == 0)
            continue;
        *out = len > 0 ? (wchar_t)code_point : 0xFFFD;
        return 1;
    }
    return 1;
}

static int open_terminal(struct editor *e)
{
    HistEvent event;
    if (strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
        setlocale(LC_CTYPE, "C.UTF-8");
    e->el = el_init("apr", stdin, stdout, stderr);
    e->history = history_init();
    if (!e->el || !e->history)
        return ERR_NO_MEMORY;
    history(e->history, &event, H_SETSIZE, HISTORY_LINES);
    history(e->history, &event, H_SETUNIQUE, 1);
    el_set(e->el, EL_PROMPT, prompt);
    el_set(e->el, EL_EDITOR, "emacs");
    el_set(e->el, EL_HIST, history, e->history);
    el_set(e->el, EL_GETCFN, read_character);
    el_set(e->el, EL_BIND, "^R", "em-inc-search-prev", NULL);
    return 0;
}

int editor_open(struct cli *c, struct editor **out)
{
    struct editor *e = mem_alloc(MEM_OTHER, sizeof *e);
    if (!e)
        return err_set(&c->err, ERR_NO_MEMORY, "out of memory");
    buf_init(&e->line, MEM_TEXT, LINE_MAX_BYTES);
    if (isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) && open_terminal(e) < 0) {
        editor_close(e);
        return err_set(&c->err, ERR_NO_MEMORY, "the line editor could not be started");
    }
    *out = e;
    return 0;
}

void editor_close(struct editor *e)
{
    if (e->el)
        el_end(e->el);
    if (e->history)
        history_end(e->history);
    buf_free(&e->line);
    mem_free(e);
}

int editor_is_terminal(const struct editor *e)
{
    return e->el != NULL;
}

int editor_read(struct editor *e, struct cli *c, const struct buf **line)
{
    int n = 0;
    HistEvent event;
    *line = &e->line;
    if (!e->el) {
        int rc = cli_read_line(c, stdin, &e->line);
        return rc == 1 ? EDITOR_LINE : rc < 0 ? rc : EDITOR_END;
    }
    el_set(e->el, EL_PREP_TERM, 1); /* before the prompt shows: Ctrl-D typed between it and raw mode would be lost */
    const char *typed = el_gets(e->el, &n);
    if (talk_interrupted()) {
        el_reset(e->el);
        fputs("^C\n", stdout);
        return EDITOR_INTERRUPTED;
    }
    if (!typed || n <= 0) {
        fputc('\n', stdout);
        return EDITOR_END;
    }
    buf_clear(&e->line);
    buf_add(&e->line, typed, (size_t)n - (typed[n - 1] == '\n'));
    if (e->line.len > 0)
        history(e->history, &event, H_ENTER, buf_str(&e->line));
    return EDITOR_LINE;
}
