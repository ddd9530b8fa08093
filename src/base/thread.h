/* The one place where threads are made. Any thread. */
#ifndef BASE_THREAD_H
#define BASE_THREAD_H

#include <pthread.h>

/* 0, or an errno: EAGAIN where the system has no place for one more thread. */
int thread_create(pthread_t *out, void *(*fn)(void *arg), void *arg);

#endif
