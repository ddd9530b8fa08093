/* Jinja2 as chat templates use it: compiled once, rendered over JSON values, sandboxed. Templates are untrusted: steps, depth, range and output are bounded.
 * A compiled template is immutable; any thread may render it. The oracle is Jinja2's ImmutableSandboxedEnvironment with trim_blocks and lstrip_blocks. */
#ifndef TEXT_JINJA_H
#define TEXT_JINJA_H

#include <jansson.h>
#include <time.h>

#include "base/buf.h"
#include "base/err.h"
#include "text/vocab.h"

struct jinja;

enum jinja_error { /* what kind of ERR_TEMPLATE it was, as the golden cases name them */
    JINJA_OK, JINJA_SYNTAX, JINJA_RAISED, JINJA_UNDEFINED, JINJA_RUNTIME, JINJA_SANDBOX
};

/* Untrusted output: the byte ranges of a rendering that came from the variables and not from the template's own text, in order, merged. */
struct jinja_output {
    struct buf text;
    struct text_span *untrusted;
    size_t n_untrusted;
};

int jinja_compile(const char *source, size_t n, struct jinja **out, enum jinja_error *kind, struct err *err) MUST_CHECK;
void jinja_free(struct jinja *t);

/* vars: a JSON object (borrowed). now: what strftime_now shows, as local broken-down time. ERR_TEMPLATE (kind says which; for JINJA_RAISED the message is the
 * template's own, word for word), ERR_LIMIT, ERR_NO_MEMORY. */
int jinja_render(const struct jinja *t, const json_t *vars, const struct tm *now, struct jinja_output *out, enum jinja_error *kind, struct err *err) MUST_CHECK;
void jinja_output_init(struct jinja_output *out);
void jinja_output_free(struct jinja_output *out);
const char *jinja_error_name(enum jinja_error kind); /* "syntax", "raised", "undefined", "runtime", "sandbox" */

#endif
