/* Requests in line, first come first served, with a bound. The engine's lock guards it. */
#ifndef ENGINE_QUEUE_H
#define ENGINE_QUEUE_H

#include "engine/request.h"

struct queue {
    struct request *first, *last;
    int n, max;
};

/* ERR_BUSY when it is full. Takes no reference. */
int queue_push(struct queue *q, struct request *r) MUST_CHECK;
/* The first goes out; NULL when there is none. */
struct request *queue_pop(struct queue *q);
/* Back to where it came from: the head. */
void queue_unpop(struct queue *q, struct request *r);
/* Takes out those whose client left or whose time is over, in order, linked by `next`. */
struct request *queue_sweep(struct queue *q);

#endif
