#include "base/clock.h"

#include <time.h>

uint64_t clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

double clock_ms_since(uint64_t start_ns)
{
    return (double)(clock_ns() - start_ns) / 1e6;
}
