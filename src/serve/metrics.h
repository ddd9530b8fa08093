/* GET /metrics, Prometheus' text form. Counters from published copies, memory by label. */
#ifndef SERVE_METRICS_H
#define SERVE_METRICS_H

#include "serve/server.h"

void metrics_get(struct server *s, struct exchange *x);

#endif
