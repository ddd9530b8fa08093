/* A generation: an exchange whose answer comes out of the engine. It lives from the request to its answer's end, or until its client left and nothing of it runs any more. */
#ifndef SERVE_GENERATION_H
#define SERVE_GENERATION_H

#include "serve/openai_reply.h"

void openai_chat(struct server *s, struct exchange *x);
void openai_completion(struct server *s, struct exchange *x);

/* Takes what the engine has for those that it announced. */
void generations_pump(struct server *s);
/* The drain time-out: every one is cancelled and ends with an error. */
void generations_cancel(struct server *s);

#endif
