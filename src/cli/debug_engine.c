/* debug sample and debug generate. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "cli/debug.h"

static double number(const json_t *value)
{
    const char *word = json_string_value(value);
    if (!word)
        return json_number_value(value);
    return strcmp(word, "nan") == 0 ? (double)NAN : strcmp(word, "-inf") == 0 ? -(double)INFINITY : (double)INFINITY;
}

static double number_or(const json_t *in, const char *name, double otherwise)
{
    const json_t *value = json_object_get(in, name);
    return value ? number(value) : otherwise;
}

struct sample_input {
    float *logits;
    double *p;
    int32_t n_vocab;
    struct ids prompt, generated;
    struct logit_bias *bias;
    struct sample_params params;
};

static void free_sample_input(struct sample_input *s)
{
    mem_free(s->logits);
    mem_free(s->p);
    mem_free(s->bias);
    ids_free(&s->prompt);
    ids_free(&s->generated);
}

static int read_bias(struct cli *c, const json_t *object, struct sample_input *s)
{
    const char *key;
    json_t *value;
    s->bias = mem_alloc_array(MEM_OTHER, json_object_size(object) + 1, sizeof *s->bias);
    if (!s->bias)
        return err_set(&c->err, ERR_NO_MEMORY, "out of memory for the case");
    json_object_foreach((json_t *)object, key, value)
    {
        long id = 0;
        for (const char *k = key; *k >= '0' && *k <= '9' && id < INT32_MAX / 10; k++)
            id = id * 10 + (*k - '0');
        s->bias[s->params.n_bias++] = (struct logit_bias){(int32_t)id, json_number_value(value)};
    }
    s->params.bias = s->bias;
    return 0;
}

static int read_sample_input(struct cli *c, const json_t *in, struct sample_input *s)
{
    const json_t *logits = json_object_get(in, "logits"), *prompt = json_object_get(in, "prompt"), *generated = json_object_get(in, "generated");
    struct sample_params *p = &s->params;
    size_t n = json_array_size(logits);
    if (n == 0 || n > INT32_MAX)
        return err_set(&c->err, ERR_FORMAT, "\"logits\" is missing or empty");
    s->n_vocab = (int32_t)n;
    s->logits = mem_alloc_array(MEM_OTHER, n, sizeof *s->logits);
    s->p = mem_alloc_array(MEM_OTHER, n, sizeof *s->p);
    if (!s->logits || !s->p)
        return err_set(&c->err, ERR_NO_MEMORY, "out of memory for the case");
    for (size_t i = 0; i < n; i++)
        s->logits[i] = (float)number(json_array_get(logits, i));
    if (prompt)
        TRY(cli_ids_from_json(c, prompt, "\"prompt\"", &s->prompt));
    if (generated)
        TRY(cli_ids_from_json(c, generated, "\"generated\"", &s->generated));
    sample_params_default(p);
    p->temperature = number_or(in, "temperature", p->temperature);
    p->top_k = (int)number_or(in, "top_k", p->top_k);
    p->top_p = number_or(in, "top_p", p->top_p);
    p->min_p = number_or(in, "min_p", p->min_p);
    p->typical_p = number_or(in, "typical_p", p->typical_p);
    p->repetition_penalty = number_or(in, "repetition_penalty", p->repetition_penalty);
    p->presence_penalty = number_or(in, "presence_penalty", p->presence_penalty);
    p->frequency_penalty = number_or(in, "frequency_penalty", p->frequency_penalty);
    p->repeat_last_n = (int)number_or(in, "repeat_last_n", p->repeat_last_n);
    p->has_seed = 1;
    return read_bias(c, json_object_get(in, "logit_bias"), s);
}

static int probabilities(struct cli *c, struct sample_input *s, struct buf *out)
{
    struct sampler *sampler = NULL;
    struct err err = {0};
    TRY(sample_params_check(&s->params, s->n_vocab, &c->err));
    TRY(sampler_create(&s->params, s->n_vocab, s->prompt.data, s->prompt.len, &sampler, &c->err));
    for (size_t i = 0; i < s->generated.len; i++)
        sampler_accept(sampler, s->generated.data[i]);
    int rc = sampler_probabilities(sampler, s->logits, s->p, &err);
    sampler_free(sampler);
    if (rc < 0) {
        return debug_answer(c, json_pack("{s:o}", "error", cli_json_text(err.message, strlen(err.message))), out);
    }
    json_t *p = json_array();
    for (int32_t i = 0; i < s->n_vocab; i++)
        json_array_append_new(p, json_real(s->p[i]));
    return debug_answer(c, json_pack("{s:o}", "p", p), out);
}

static int sample_case(struct cli *c, void *ctx, const json_t *in, struct buf *out)
{
    struct sample_input s = {0};
    (void)ctx;
    int rc = read_sample_input(c, in, &s);
    if (rc == 0)
        rc = probabilities(c, &s, out);
    free_sample_input(&s);
    return rc;
}

int verb_debug_sample(struct cli *c)
{
    return debug_each(c, sample_case, NULL);
}

static int collect_ids(struct cli *c, struct request *r, json_t *ids, const char **finish)
{
    static struct token_event event;
    for (;;) {
        request_wait(r, 1000);
        while (request_next(r, &event) == 1) {
            if (event.kind == EVENT_ERROR)
                return err_set(&c->err, event.error.code, "%s", event.error.message);
            if (event.kind == EVENT_TOKEN)
                json_array_append_new(ids, json_integer(event.id));
            if (event.kind == EVENT_END) {
                *finish = event.finish == FINISH_STOP ? "stop" : event.finish == FINISH_LENGTH ? "length" : "cancelled";
                return 0;
            }
        }
    }
}

static int generate_case(struct cli *c, void *ctx, const json_t *in, struct buf *out)
{
    struct ids prompt = {0};
    struct request *r = NULL;
    const json_t *max_tokens = json_object_get(in, "max_tokens");
    const char *finish = NULL;
    json_t *ids = json_array();
    int rc = cli_ids_from_json(c, json_object_get(in, "prompt_ids"), "\"prompt_ids\"", &prompt);
    struct request_params p = {.prompt = prompt.data, .n_prompt = prompt.len, .max_tokens = json_is_integer(max_tokens) ? json_integer_value(max_tokens) : -1, .n_logprobs = -1};
    sample_params_default(&p.sampling);
    p.sampling.temperature = 0;
    if (rc == 0)
        rc = engine_submit(ctx, &p, &r, &c->err);
    if (rc == 0) {
        rc = collect_ids(c, r, ids, &finish);
        request_release(r);
    }
    ids_free(&prompt);
    if (rc == 0)
        return debug_answer(c, json_pack("{s:o, s:s}", "ids", ids, "finish", finish), out);
    json_decref(ids);
    return rc;
}

int verb_debug_generate(struct cli *c)
{
    struct cli_device device;
    struct engine_options options;
    struct model *m = NULL;
    struct engine *e = NULL;
    TRY(cli_resolve_device(c, &device));
    TRY(cli_load_model(c, 0, &m));
    cli_engine_options(c, &options);
    options.n_parallel = 1;
    int rc = engine_start(m, &options, &e, &c->err);
    if (rc == 0) {
        rc = debug_each(c, generate_case, e);
        engine_stop(e);
    }
    model_free(m);
    return rc;
}
