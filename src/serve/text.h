/* Text in, text out, without the engine: tokenise, detokenise, apply the template. On the worker, since inputs may be megabytes. */
#ifndef SERVE_TEXT_H
#define SERVE_TEXT_H

#include "serve/server.h"

void text_tokenize(struct server *s, struct exchange *x);
void text_detokenize(struct server *s, struct exchange *x);
void text_apply_template(struct server *s, struct exchange *x);

#endif
