/* apr serve run: from flags to a listening server, with the lines that scripts wait for. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/utf8.h"
#include "cli/prompt.h"
#include "serve/serve.h"

#define ALIAS_MAX 255

struct server {
    struct cli *c;
    struct cli_device device;
    struct model *model;
    struct chat_template *template_file; /* --template-file's; else NULL */
    struct engine *engine;
    struct sample_params sampling;
    struct logit_bias bias[OPT_LIST_MAX];
    struct buf key;
    FILE *lines; /* where the start-up lines go: standard output, which --json keeps for its one document */
};

/* The key's file holds it in its first line. */
static int read_key(struct server *s)
{
    struct cli *c = s->c;
    const struct opt_value *o = c->o;
    if (o[O_API_KEY].set && o[O_API_KEY_FILE].set)
        return cli_usage(c, "--api-key and --api-key-file are given; one of them is too many");
    if (o[O_API_KEY].set && !*o[O_API_KEY].s)
        return cli_usage(c, "--api-key: the key is empty");
    if (!o[O_API_KEY_FILE].set)
        return 0;
    TRY(cli_read_input(c, o[O_API_KEY_FILE].s, &s->key));
    size_t n = strcspn(buf_str(&s->key), "\r\n");
    if (n == 0)
        return err_set(&c->err, ERR_INVALID, "%s: the first line holds no key", o[O_API_KEY_FILE].s);
    s->key.data[n] = 0;
    return 0;
}

static int check_usage(struct cli *c)
{
    const struct opt_value *o = c->o;
    if (o[O_THINK].set && o[O_NO_THINK].set)
        return cli_usage(c, "--think and --no-think contradict each other");
    if (o[O_HOST].set && !*o[O_HOST].s)
        return cli_usage(c, "--host: the address is empty");
    if (o[O_ALIAS].set && !*o[O_ALIAS].s)
        return cli_usage(c, "--alias: the name is empty");
    if (o[O_ALIAS].set && (strlen(o[O_ALIAS].s) > ALIAS_MAX || !utf8_valid(o[O_ALIAS].s, strlen(o[O_ALIAS].s))))
        return cli_usage(c, "--alias: the name is no UTF-8 text of at most %d bytes", ALIAS_MAX);
    if (o[O_SESSION_DIR].set && !*o[O_SESSION_DIR].s)
        return cli_usage(c, "--session-dir: the name is empty");
    if (o[O_SESSION_BUDGET].set && !o[O_SESSION_DIR].set)
        return cli_usage(c, "--session-budget is for a --session-dir, and there is none");
    return cli_check_faults(c);
}

static void print_plan(const struct plan *plan)
{
    struct buf text;
    buf_init(&text, MEM_OTHER, 1 << 16);
    plan_write(plan, &text);
    if (text.len > 0 && text.data[text.len - 1] == '\n')
        text.data[--text.len] = 0;
    log_info("%s", buf_str(&text));
    buf_free(&text);
}

/* Everything up to the socket; each line comes as soon as it is true. */
static int start(struct server *s)
{
    struct cli *c = s->c;
    struct engine_options options;
    TRY(cli_resolve_device(c, &s->device));
    TRY(read_key(s));
    TRY(cli_load_model(c, 0, &s->model));
    const struct model *m = s->model;
    cli_print_device_line(s->lines, &s->device, m);
    fprintf(s->lines, "GGUF loaded: %zu tensors, %zu metadata entries\n", gguf_n_tensors(m->file), gguf_n_kv(m->file));
    fflush(s->lines);
    if (c->o[O_TEMPLATE_FILE].set)
        TRY(prompt_load_template(c, m->file, m->vocab, &s->template_file));
    TRY(cli_sampling(c, m, s->bias, &s->sampling));
    cli_engine_options(c, &options);
    TRY(engine_start(m, &options, &s->engine, &c->err));
    cli_print_backend(engine_device(s->engine));
    print_plan(engine_plan(s->engine));
    fprintf(s->lines, "Model ready: Qwen3.5 hybrid, %d layers resident on the CPU, declared context %lld tokens, serving %lld\n", m->config.n_layer,
            (long long)m->config.n_ctx_declared, (long long)engine_context(s->engine));
    fflush(s->lines);
    return 0;
}

static void on_listening(void *ctx, const char *url)
{
    const struct server *s = ctx;
    fprintf(s->lines, "listening on %s\n", url);
    fflush(s->lines);
    if (s->c->o[O_JSON].set)
        printf("{\"url\": \"%s\", \"context\": %lld}\n", url, (long long)engine_context(s->engine));
    fflush(stdout);
    cli_set_faults(s->c);
}

static int is_loopback(const char *host)
{
    return strncmp(host, "127.", 4) == 0 || strcmp(host, "localhost") == 0 || strcmp(host, "::1") == 0;
}

static int serve(struct server *s)
{
    struct serve_options options;
    const struct opt_value *o = s->c->o;
    serve_options_default(&options);
    if (o[O_HOST].set)
        options.host = o[O_HOST].s;
    options.port = o[O_PORT].set ? (int)o[O_PORT].i : 8080;
    options.api_key = o[O_API_KEY].set ? o[O_API_KEY].s : s->key.len > 0 ? s->key.data : NULL;
    if (!options.api_key && o[O_HOST].set && !is_loopback(o[O_HOST].s)) /* the Host header is the client's own word */
        log_warn("--host %s without --api-key-file: whoever reaches this address and calls it localhost is served", o[O_HOST].s);
    if (o[O_CORS].set)
        options.cors_origin = o[O_CORS].s;
    if (o[O_DRAIN_TIMEOUT].set)
        options.drain_timeout_s = (int)o[O_DRAIN_TIMEOUT].i;
    options.no_metrics = o[O_NO_METRICS].set;
    if (o[O_ALIAS].set)
        options.alias = o[O_ALIAS].s;
    options.enable_thinking = o[O_THINK].set ? 1 : o[O_NO_THINK].set ? 0 : -1;
    options.chat = s->template_file;
    options.sampling = &s->sampling;
    return serve_run(s->engine, &options, on_listening, s, &s->c->err);
}

int verb_serve_run(struct cli *c)
{
    struct server s = {.c = c, .lines = c->o[O_JSON].set ? stderr : stdout};
    if (c->o[O_LIST_DEVICES].set)
        return cli_list_devices(c);
    TRY(check_usage(c));
    buf_init(&s.key, MEM_OTHER, 1);
    int rc = start(&s);
    if (rc == 0)
        rc = serve(&s);
    if (s.engine)
        engine_stop(s.engine);
    chat_template_free(s.template_file);
    model_free(s.model);
    buf_free(&s.key);
    return rc;
}
