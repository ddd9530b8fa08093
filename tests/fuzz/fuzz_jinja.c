/* A template and its variables: the input up to a NUL is the template, the rest JSON. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "text/jinja.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    size_t n = nul ? (size_t)(nul - data) : size;
    json_t *vars = NULL;
    struct jinja *t = NULL;
    struct jinja_output out;
    enum jinja_error kind;
    struct err err;
    static const struct tm now = {.tm_year = 126, .tm_mday = 1};
    if (nul && json_parse((const char *)nul + 1, size - n - 1, &vars, &err) < 0)
        vars = NULL;
    jinja_output_init(&out);
    if (jinja_compile((const char *)data, n, &t, &kind, &err) == 0) {
        if (jinja_render(t, vars, &now, &out, &kind, &err) == 0)
            for (size_t i = 0; i < out.n_untrusted; i++) /* spans are sorted, disjoint and inside */
                if (out.untrusted[i].start >= out.untrusted[i].end || out.untrusted[i].end > out.text.len || (i && out.untrusted[i].start < out.untrusted[i - 1].end))
                    abort();
        jinja_free(t);
    }
    jinja_output_free(&out);
    json_decref(vars);
    return 0;
}
