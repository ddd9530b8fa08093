#include "base/clock.h"

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

struct timespec clock_after(int ms)
{
    uint64_t at = clock_ns() + (uint64_t)ms * 1000000u;
    return (struct timespec){.tv_sec = (time_t)(at / 1000000000u), .tv_nsec = (long)(at % 1000000000u)};
}
