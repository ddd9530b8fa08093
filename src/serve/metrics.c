/* Names are an interface: counters end in _total, units are in the name. */
#include "serve/metrics.h"

#include "base/clock.h"

static void metric(struct buf *out, const char *name, const char *kind, const char *help, double value)
{
    buf_addf(out, "# HELP apr_%s %s\n# TYPE apr_%s %s\napr_%s %.17g\n", name, help, name, kind, name, value);
}

static void write_requests(struct buf *out, const struct engine_stats *e)
{
    buf_addf(out, "# HELP apr_requests_total Requests to the engine by how they ended.\n# TYPE apr_requests_total counter\n");
    buf_addf(out, "apr_requests_total{outcome=\"finished\"} %llu\n", (unsigned long long)e->n_finished);
    buf_addf(out, "apr_requests_total{outcome=\"cancelled\"} %llu\n", (unsigned long long)e->n_cancelled);
    buf_addf(out, "apr_requests_total{outcome=\"failed\"} %llu\n", (unsigned long long)e->n_failed);
    buf_addf(out, "apr_requests_total{outcome=\"refused\"} %llu\n", (unsigned long long)e->n_refused);
    metric(out, "requests_running", "gauge", "Requests that are being answered.", e->n_running);
    metric(out, "requests_waiting", "gauge", "Requests in the queue.", e->n_waiting);
}

static void write_engine(struct buf *out, const struct server *s)
{
    struct engine_stats e;
    const struct plan *plan = engine_plan(s->engine);
    engine_stats_read(s->engine, &e);
    write_requests(out, &e);
    metric(out, "prompt_tokens_total", "counter", "Prompt tokens that were read.", (double)e.prompt_tokens);
    metric(out, "cached_tokens_total", "counter", "Prompt tokens that were held already.", (double)e.cached_tokens);
    metric(out, "generated_tokens_total", "counter", "Tokens that were generated.", (double)e.generated_tokens);
    metric(out, "prefill_seconds_total", "counter", "Time spent reading prompts.", e.prefill_seconds);
    metric(out, "decode_seconds_total", "counter", "Time spent generating.", e.decode_seconds);
    metric(out, "decode_steps_total", "counter", "Decode steps of the engine.", (double)e.steps);
    metric(out, "state_anomalies_total", "counter", "Times a sequence was found inconsistent and read anew.", (double)e.anomalies);
    metric(out, "context_tokens", "gauge", "The served context.", (double)engine_context(s->engine));
    metric(out, "slots", "gauge", "Sequences that can be answered at once.", plan->n_slots);
    metric(out, "weight_bytes", "gauge", "Weights that a forward pass reads, mapped from the file.", (double)plan->weight_bytes);
    metric(out, "planned_bytes", "gauge", "Memory that the plan counts in all.", (double)plan->total_bytes);
    metric(out, "used_gpu", "gauge", "1 when the model runs on a GPU.", engine_device(s->engine)->kind == DEVICE_CUDA);
}

static void write_sessions(struct buf *out, const struct server *s)
{
    struct store_stats d;
    if (!engine_store_stats(s->engine, &d))
        return;
    metric(out, "session_bytes", "gauge", "Of the folder for conversations.", (double)d.bytes);
    metric(out, "session_budget_bytes", "gauge", "What it may hold.", (double)d.budget_bytes);
    metric(out, "session_segments", "gauge", "Segments of conversations there.", (double)d.n_segments);
    metric(out, "session_segments_saved_total", "counter", "Segments that were written.", (double)d.n_written);
    metric(out, "session_segments_failed_total", "counter", "Segments that could not be written.", (double)d.n_failed);
    metric(out, "session_segments_ignored_total", "counter", "Files that were not what they should be.", (double)d.n_ignored);
    metric(out, "session_segments_evicted_total", "counter", "Segments that gave way to others.", (double)d.n_evicted);
    metric(out, "sessions_loaded_total", "counter", "Conversations that were taken up from the disk.", (double)d.n_loaded);
}

void metrics_get(struct server *s, struct exchange *x)
{
    struct buf out;
    buf_init(&out, MEM_SERVE, (size_t)1 << 20);
    buf_addf(&out, "# HELP apr_build_info Version.\n# TYPE apr_build_info gauge\napr_build_info{version=\"" APR_VERSION "\"} 1\n");
    metric(&out, "uptime_seconds", "gauge", "Since the server started.", clock_ms_since(s->start_ns) / 1e3);
    write_engine(&out, s);
    write_sessions(&out, s);
    buf_addf(&out, "# HELP apr_http_replies_total Answers by class of status.\n# TYPE apr_http_replies_total counter\n");
    for (int i = 2; i < 6; i++)
        buf_addf(&out, "apr_http_replies_total{class=\"%dxx\"} %llu\n", i, (unsigned long long)s->n_replies[i]);
    metric(&out, "http_connections", "gauge", "Open connections.", http_n_connections(s->http));
    buf_addf(&out, "# HELP apr_memory_bytes Allocated now, by purpose.\n# TYPE apr_memory_bytes gauge\n");
    for (int i = 0; i < MEM_N_LABELS; i++)
        buf_addf(&out, "apr_memory_bytes{label=\"%s\"} %zu\n", mem_label_name((enum mem_label)i), mem_bytes((enum mem_label)i));
    if (out.failed)
        reply_refusal(s, x, 503, "no_memory", "out of memory for the metrics");
    else
        reply_text(s, x, "text/plain; version=0.0.4; charset=utf-8", NULL, out.data, out.len);
    buf_free(&out);
}
