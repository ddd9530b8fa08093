/* Monotonic time. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>

uint64_t clock_ns(void);
double clock_ms_since(uint64_t start_ns);

#endif
