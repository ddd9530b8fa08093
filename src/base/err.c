/* The one place that formats error sentences. */
#include "base/err.h"

#include <stdio.h>
#include <string.h>

int err_set(struct err *err, int code, const char *format, ...)
{
    if (!err)
        return code;
    va_list args;
    va_start(args, format);
    vsnprintf(err->message, sizeof err->message, format, args);
    va_end(args);
    err->code = code;
    return code;
}

int err_prefix(struct err *err, const char *format, ...)
{
    if (!err)
        return ERR_INTERNAL;
    char text[sizeof err->message];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (n < 0)
        return err->code;
    size_t used = (size_t)n < sizeof text ? (size_t)n : sizeof text - 1;
    snprintf(text + used, sizeof text - used, ": %s", err->message);
    memcpy(err->message, text, sizeof text);
    return err->code;
}

const char *err_kind(int code)
{
    static const char *const kinds[] = {
        "ok",       "invalid",   "format",    "not_found", "io",      "no_memory",      "capacity", "unsupported",
        "cancelled", "limit",    "template",  "numeric",   "context_length", "busy",    "device",   "internal",
    };
    int index = -code;
    return index >= 0 && index < (int)(sizeof kinds / sizeof *kinds) ? kinds[index] : "unknown";
}
