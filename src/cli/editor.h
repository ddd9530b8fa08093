/* Lines from a person or from a pipe. On a terminal with editing and history (libedit). */
#ifndef CLI_EDITOR_H
#define CLI_EDITOR_H

#include "cli/common.h"

struct editor;

int editor_open(struct cli *c, struct editor **out) MUST_CHECK;
void editor_close(struct editor *e);

enum editor_result { EDITOR_END, EDITOR_LINE, EDITOR_INTERRUPTED };

/* Takes the next line, without its newline, into *line (valid until the next call). Interrupted: Ctrl-C was typed at the prompt. */
int editor_read(struct editor *e, struct cli *c, const struct buf **line) MUST_CHECK;
int editor_is_terminal(const struct editor *e);

#endif
