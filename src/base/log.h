/* Words for people go to stderr, one line each, from any thread; data goes to stdout by whoever owns it. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include "base/err.h"

enum log_level { LOG_QUIET = -1, LOG_NORMAL = 0, LOG_VERBOSE = 1 };

void log_set_level(enum log_level level);
enum log_level log_level(void);

void log_warn(const char *format, ...) PRINTF_LIKE(1, 2);    /* always, "warning: ..." */
void log_info(const char *format, ...) PRINTF_LIKE(1, 2);    /* unless -q */
void log_verbose(const char *format, ...) PRINTF_LIKE(1, 2); /* with -v */

#endif
