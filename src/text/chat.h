/* From messages to tokens: the file's template, rendered and encoded so that content never becomes control tokens (B119). */
#ifndef TEXT_CHAT_H
#define TEXT_CHAT_H

#include "text/jinja.h"
#include "text/vocab.h"

struct chat_template;

/* source NULL: the file's tokenizer.chat_template; ERR_NOT_FOUND when it has none. */
int chat_template_load(const struct gguf *g, const struct vocab *v, const char *source, size_t n, struct chat_template **out, struct err *err) MUST_CHECK;
void chat_template_free(struct chat_template *t);

struct chat_prompt {
    struct jinja_output rendered;
    struct ids ids;
    int in_reasoning;  /* the rendering ends inside an open <think> */
};

/* Messages in OpenAI's form are made fit for the template (a copy is changed, never the input): `developer` is system, `arguments` strings are parsed
 * (a broken one stays one text), content null is "", `reasoning` is reasoning_content. Unknown roles are left for the template to refuse. */
int chat_normalise_messages(const json_t *messages, json_t **out, struct err *err) MUST_CHECK;

/* vars: {messages, tools, add_generation_prompt, enable_thinking, …} as the template sees it. */
int chat_render(const struct chat_template *t, const json_t *vars, struct chat_prompt *out, struct err *err) MUST_CHECK;
/* Rendering without ids. */
int chat_render_text(const struct chat_template *t, const json_t *vars, struct jinja_output *out, enum jinja_error *kind, struct err *err) MUST_CHECK;
void chat_prompt_free(struct chat_prompt *p);

#endif
