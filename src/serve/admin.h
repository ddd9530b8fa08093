/* What tells about the server itself. Nothing here waits for the model. */
#ifndef SERVE_ADMIN_H
#define SERVE_ADMIN_H

#include "serve/server.h"

void admin_index(struct server *s, struct exchange *x);
void admin_health(struct server *s, struct exchange *x);
void admin_live(struct server *s, struct exchange *x);
void admin_models(struct server *s, struct exchange *x);
void admin_model(struct server *s, struct exchange *x);

#endif
