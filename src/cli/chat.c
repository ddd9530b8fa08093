/* apr chat: a conversation. Invariant: every turn hands the whole list of messages to the template anew; that the session keeps what was read is the engine's business, and the
 * ids of a turn never depend on it. */
#include <stdio.h>
#include <string.h>

#include "cli/editor.h"
#include "cli/prompt.h"
#include "cli/talk.h"

struct conversation {
    struct talk talk;
    struct editor *editor;
    json_t *messages;
    int turn;
};

static int set_system(struct conversation *v, const char *text, size_t n)
{
    json_t *first = json_array_get(v->messages, 0);
    const char *role = json_string_value(json_object_get(first, "role"));
    if (role && strcmp(role, "system") == 0)
        json_array_remove(v->messages, 0);
    if (n > 0)
        json_array_insert_new(v->messages, 0, json_pack("{s:s, s:o}", "role", "system", "content", cli_json_text(text, n)));
    return 0;
}

static void clear(struct conversation *v)
{
    json_t *first = json_incref(json_array_get(v->messages, 0));
    const char *role = json_string_value(json_object_get(first, "role"));
    json_array_clear(v->messages);
    if (role && strcmp(role, "system") == 0)
        json_array_append(v->messages, first);
    json_decref(first);
}

/* The answer as the next turn's template will see it. */
static void keep_answer(struct conversation *v, const struct talk_answer *a)
{
    json_t *message = json_pack("{s:s, s:o}", "role", "assistant", "content", cli_json_text(buf_str(&a->text), a->text.len));
    if (a->reasoning.len > 0)
        json_object_set_new(message, "reasoning_content", cli_json_text(buf_str(&a->reasoning), a->reasoning.len));
    json_array_append_new(v->messages, message);
}

static int answer_turn(struct conversation *v, struct talk_answer *a)
{
    struct cli *c = v->talk.c;
    json_t *vars = NULL;
    TRY(prompt_vars(c, v->messages, &vars));
    int rc = talk_chat(&v->talk, vars, a);
    json_decref(vars);
    TRY(rc);
    v->turn++;
    talk_print_rates(a);
    if (!c->o[O_JSON].set)
        return 0;
    rc = talk_print_json(c, a, v->turn);
    fflush(stdout);
    return rc;
}

/* A turn that fails takes its question back: on a terminal the conversation goes on, in a script it ends. */
static int say(struct conversation *v, const char *text, size_t n)
{
    struct cli *c = v->talk.c;
    struct talk_answer a;
    talk_answer_init(&a);
    json_array_append_new(v->messages, json_pack("{s:s, s:o}", "role", "user", "content", cli_json_text(text, n)));
    int rc = answer_turn(v, &a), stopped = talk_interrupted();
    if (rc < 0)
        json_array_remove(v->messages, json_array_size(v->messages) - 1);
    else
        keep_answer(v, &a);
    if (rc == 0 && stopped)
        talk_note(&v->talk, "(stopped)");
    talk_answer_free(&a);
    if (rc < 0 && editor_is_terminal(v->editor)) {
        fprintf(stderr, "apr: %s\n", c->err.message);
        return 0;
    }
    return rc;
}

static void help(const struct talk *t)
{
    talk_note(t, "/system TEXT  set the system message (nothing: none)\n/clear        forget the conversation\n/help         this list\n/quit         end (also Ctrl-D)\n"
             "Ctrl-C stops an answer. A line that starts with // is sent with one slash.");
}

/* 1: the conversation ends. */
static int command(struct conversation *v, const char *text, size_t n)
{
    size_t word = strcspn(text, " \t");
    const char *rest = text + word + strspn(text + word, " \t");
    size_t n_rest = n - (size_t)(rest - text);
    if (word == 5 && memcmp(text, "/quit", 5) == 0)
        return 1;
    if (word == 5 && memcmp(text, "/help", 5) == 0) {
        help(&v->talk);
    } else if (word == 6 && memcmp(text, "/clear", 6) == 0) {
        clear(v);
        talk_note(&v->talk, "(forgotten)");
    } else if (word == 7 && memcmp(text, "/system", 7) == 0) {
        set_system(v, rest, n_rest);
        talk_note(&v->talk, n_rest ? "(system message set)" : "(system message removed)");
    } else {
        talk_note(&v->talk, "unknown command %.*s; /help lists them", (int)(word > 60 ? 60 : word), text);
    }
    return 0;
}

static int converse(struct conversation *v)
{
    for (;;) {
        const struct buf *line;
        int rc = editor_read(v->editor, v->talk.c, &line);
        if (rc < 0 || rc == EDITOR_END)
            return rc < 0 ? rc : 0;
        if (rc == EDITOR_INTERRUPTED || strspn(buf_str(line), " \t") == line->len)
            continue;
        const char *text = buf_str(line);
        int escaped = line->len > 1 && text[0] == '/' && text[1] == '/';
        if (text[0] == '/' && !escaped) {
            if (command(v, text, line->len))
                return 0;
            continue;
        }
        TRY(say(v, text + escaped, line->len - (size_t)escaped));
    }
}

int verb_chat(struct cli *c)
{
    struct conversation v = {.messages = json_array()};
    if (c->o[O_LIST_DEVICES].set)
        return cli_list_devices(c);
    if (c->o[O_SYSTEM].set)
        set_system(&v, c->o[O_SYSTEM].s, strlen(c->o[O_SYSTEM].s));
    int rc = talk_open(c, &v.talk);
    if (rc == 0)
        rc = editor_open(c, &v.editor);
    if (rc == 0) {
        talk_catch_interrupts();
        if (editor_is_terminal(v.editor))
            talk_note(&v.talk, "context %lld tokens; /help lists the commands", (long long)engine_context(v.talk.engine));
        rc = converse(&v);
        editor_close(v.editor);
    }
    talk_close(&v.talk);
    json_decref(v.messages);
    return rc;
}
