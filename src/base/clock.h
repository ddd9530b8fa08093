/* Monotonic time. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

uint64_t clock_ns(void);
double clock_ms_since(uint64_t start_ns);
/* The moment `ms` from now, for waits on CLOCK_MONOTONIC. */
struct timespec clock_after(int ms);

#endif
