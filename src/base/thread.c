#include "base/thread.h"

#include <errno.h>

#include "base/mem.h"

int thread_create(pthread_t *out, void *(*fn)(void *arg), void *arg)
{
    return mem_call_fails(MEM_CALL_THREAD) ? EAGAIN : pthread_create(out, NULL, fn, arg);
}
