#include "engine/queue.h"

int queue_push(struct queue *q, struct request *r)
{
    if (q->n >= q->max)
        return ERR_BUSY;
    r->next = NULL;
    if (q->last)
        q->last->next = r;
    else
        q->first = r;
    q->last = r;
    q->n++;
    return 0;
}

struct request *queue_pop(struct queue *q)
{
    struct request *r = q->first;
    if (!r)
        return NULL;
    q->first = r->next;
    if (!q->first)
        q->last = NULL;
    q->n--;
    r->next = NULL;
    return r;
}

void queue_unpop(struct queue *q, struct request *r)
{
    r->next = q->first;
    q->first = r;
    if (!q->last)
        q->last = r;
    q->n++;
}

struct request *queue_sweep(struct queue *q)
{
    struct request *gone = NULL, **end = &gone, **at = &q->first;
    q->last = NULL;
    while (*at) {
        struct request *r = *at;
        if (!request_is_over(r)) {
            q->last = r;
            at = &r->next;
            continue;
        }
        *at = r->next;
        r->next = NULL;
        *end = r;
        end = &r->next;
        q->n--;
    }
    return gone;
}
