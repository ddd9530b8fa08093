/* The one table of routes: it mounts, and it is what the index and the 404 list. */
#ifndef SERVE_ROUTE_H
#define SERVE_ROUTE_H

#include "serve/server.h"

enum route_flags {
    ROUTE_PUBLIC = 1,   /* no key is asked for */
    ROUTE_PREFIX = 2,   /* the path continues; the rest is the handler's */
    ROUTE_WORK = 4,     /* refused while the server shuts down */
    ROUTE_METRICS = 8   /* not mounted with --no-metrics */
};

struct route {
    const char *method, *path;
    unsigned flags;
    void (*handle)(struct server *s, struct exchange *x);
    const char *summary;
};

/* Route i of those that this server mounts, or NULL after the last. */
const struct route *route_at(const struct server *s, size_t i);

/* After the head: 0 when the request may go on to its body and handler; else it was answered (404, 405, 401, 403, 415, 503, 204 to OPTIONS). */
int route_check(struct server *s, struct exchange *x);
void route_dispatch(struct server *s, struct exchange *x);

/* "localhost", "127.x.y.z" or "[::1]", with or without a port. */
int host_is_loopback(const char *host);
/* Equal, in a time that depends on the lengths only. */
int key_equal(const char *a, const char *b);

#endif
