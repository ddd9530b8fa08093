#include "base/log.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static atomic_int level = LOG_NORMAL;

void log_set_level(enum log_level new_level)
{
    atomic_store(&level, new_level);
}

enum log_level log_level(void)
{
    return (enum log_level)atomic_load(&level);
}

/* One write a line, so that threads do not mix. */
static void PRINTF_LIKE(2, 0) write_line(const char *prefix, const char *format, va_list args)
{
    char text[2048];
    size_t n = (size_t)snprintf(text, sizeof text, "%s", prefix);
    int more = vsnprintf(text + n, sizeof text - n - 1, format, args);
    if (more > 0)
        n += (size_t)more < sizeof text - n - 1 ? (size_t)more : sizeof text - n - 2;
    text[n++] = '\n';
    fwrite(text, 1, n, stderr);
    fflush(stderr);
}

#define LOG_AT(minimum, prefix)                \
    do {                                       \
        if (atomic_load(&level) < (minimum))   \
            return;                            \
        va_list args;                          \
        va_start(args, format);                \
        write_line(prefix, format, args);      \
        va_end(args);                          \
    } while (0)

void log_warn(const char *format, ...)
{
    LOG_AT(LOG_QUIET, "warning: ");
}

void log_info(const char *format, ...)
{
    LOG_AT(LOG_NORMAL, "");
}

void log_verbose(const char *format, ...)
{
    LOG_AT(LOG_VERBOSE, "");
}
