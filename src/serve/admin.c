/* Health, models, the index. Everything is read from what is immutable or published. */
#include "serve/admin.h"

#include <string.h>

#include "base/clock.h"
#include "serve/route.h"
#include "serve/ui/page.h"

static json_t *health_json(const struct server *s, const char *status)
{
    return json_pack("{s:s,s:s,s:s,s:b,s:f}", "status", status, "version", APR_VERSION, "compute_mode", engine_device(s->engine)->kind == DEVICE_CUDA ? "gpu" : "cpu", "model_loaded", 1,
                     "uptime_sec", clock_ms_since(s->start_ns) / 1e3);
}

void admin_health(struct server *s, struct exchange *x)
{
    reply_json(s, x, s->draining ? 503 : 200, health_json(s, s->draining ? "degraded" : "ok"));
}

void admin_live(struct server *s, struct exchange *x)
{
    reply_json(s, x, 200, health_json(s, s->draining ? "degraded" : "ok"));
}

static json_t *model_json(const struct server *s)
{
    const struct model *m = s->model;
    json_int_t served = (json_int_t)engine_context(s->engine), declared = (json_int_t)m->config.n_ctx_declared;
    json_t *meta = json_pack("{s:I,s:I,s:I,s:I,s:I}", "n_ctx", served, "n_ctx_train", declared, "n_vocab", (json_int_t)m->config.n_vocab, "n_embd", (json_int_t)m->config.d_model, "size",
                             (json_int_t)m->weight_bytes);
    return json_pack("{s:s,s:s,s:I,s:s,s:I,s:I,s:I,s:o,s:[s]}", "id", s->model_id, "object", "model", "created", (json_int_t)s->created, "owned_by", "apr", "max_model_len", served,
                     "context_length", served, "loaded_context_length", served, "meta", meta, "capabilities", "completion");
}

/* "models" beside "data": one client looks there. */
void admin_models(struct server *s, struct exchange *x)
{
    json_t *model = model_json(s);
    json_t *entry = model ? json_pack("{s:s,s:s,s:s}", "name", s->model_id, "model", s->model_id, "slug", s->model_id) : NULL;
    if (!entry) {
        json_decref(model);
        model = NULL;
    }
    reply_json(s, x, 200, entry ? json_pack("{s:s,s:[o],s:[o]}", "object", "list", "data", model, "models", entry) : NULL);
}

void admin_model(struct server *s, struct exchange *x)
{
    const char *id = x->path + strlen("/v1/models/");
    if (strcmp(id, s->model_id) == 0)
        reply_json(s, x, 200, model_json(s));
    else
        reply_refusal(s, x, 404, "model_not_found", "there is no model \"%.200s\" here; this server has \"%s\"", id, s->model_id);
}

static json_t *index_json(const struct server *s)
{
    const struct route *r;
    json_t *list = json_array();
    for (size_t i = 0; (r = route_at(s, i)) != NULL; i++)
        if (json_array_append_new(list, json_pack("{s:s,s:s+,s:s}", "method", r->method, "path", r->path, r->flags & ROUTE_PREFIX ? "{id}" : "", "summary", r->summary)) < 0) {
            json_decref(list);
            return NULL;
        }
    return json_pack("{s:s,s:s,s:s,s:o}", "name", "apr", "version", APR_VERSION, "model", s->model_id, "routes", list);
}

/* The page for whoever asks for HTML; it loads nothing from anywhere else, and may not. */
void admin_index(struct server *s, struct exchange *x)
{
    const char *accept = exchange_header(x, "accept");
    if (!accept || !strstr(accept, "text/html")) {
        reply_json(s, x, 200, index_json(s));
        return;
    }
    reply_text(s, x, "text/html; charset=utf-8",
               "Content-Security-Policy: default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:; base-uri 'none'; "
               "form-action 'none'; frame-ancestors 'none'\r\nReferrer-Policy: no-referrer\r\nVary: Accept\r\n",
               ui_page, ui_page_bytes);
}
