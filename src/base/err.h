/* Errors. A fallible function returns 0 (or a count) or a negative ERR_*; the sentence for people is written once, where the error arises,
 * into the caller's struct err, and names the thing and the way out. Out-parameters are set on success only. */
#ifndef BASE_ERR_H
#define BASE_ERR_H

#include <stdarg.h>

enum err_code {
    ERR_OK = 0,
    ERR_INVALID = -1,        /* an argument or a request is wrong */
    ERR_FORMAT = -2,         /* a file or a text does not follow its format */
    ERR_NOT_FOUND = -3,      /* a file, model, key or route is not there */
    ERR_IO = -4,             /* the system refused a read, write or map */
    ERR_NO_MEMORY = -5,      /* an allocation failed */
    ERR_CAPACITY = -6,       /* the plan does not fit what is free */
    ERR_UNSUPPORTED = -7,    /* known, and not served: architecture, tensor type, field */
    ERR_CANCELLED = -8,      /* somebody asked to stop */
    ERR_LIMIT = -9,          /* a bound of the limits table was met */
    ERR_TEMPLATE = -10,      /* a chat template failed or raised */
    ERR_NUMERIC = -11,       /* logits are not finite */
    ERR_CONTEXT_LENGTH = -12,/* the prompt does not fit the served context */
    ERR_BUSY = -13,          /* the queue is full, or the server is draining */
    ERR_DEVICE = -14,        /* a device asked for by name is not to be had */
    ERR_INTERNAL = -15       /* a rule of our own was broken */
};

struct err {
    int code;
    char message[1024];
};

#define MUST_CHECK __attribute__((warn_unused_result))
#define PRINTF_LIKE(position, first) __attribute__((format(printf, position, first)))

/* Sets *err (which may be NULL) and returns code. A message too long is cut, never overflows. */
int err_set(struct err *err, int code, const char *format, ...) PRINTF_LIKE(3, 4);

/* Puts "prefix: " before the message that is already there; returns err->code. */
int err_prefix(struct err *err, const char *format, ...) PRINTF_LIKE(2, 3);

/* "invalid", "format", ...: the stable word for a code, as --json and the APIs show it. */
const char *err_kind(int code);

#define TRY(expression)              \
    do {                             \
        int try_rc_ = (expression);  \
        if (try_rc_ < 0)             \
            return try_rc_;          \
    } while (0)

#endif
