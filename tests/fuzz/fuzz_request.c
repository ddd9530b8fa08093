/* Request bodies of chat and plain completions: any bytes give a request whose fields are in range, or one error with a status and a sentence. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "serve/openai_request.h"

#define N_VOCAB 1000

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int ok)
{
    if (!ok)
        abort();
}

static void check_request(const struct openai_request *q)
{
    struct err err;
    check(sample_params_check(&q->sampling, N_VOCAB, &err) == 0);
    check(q->max_tokens == -1 || q->max_tokens > 0);
    check(q->n_logprobs >= -1 && q->n_logprobs <= MAX_LOGPROBS);
    check(q->n_stop <= MAX_STOP);
    check(q->enable_thinking >= -1 && q->enable_thinking <= 1);
    for (size_t i = 0; i < q->n_stop; i++)
        check(*q->stop[i] && strlen(q->stop[i]) <= MAX_STOP_BYTES);
}

static void check_error(int rc, const struct api_error *e)
{
    struct buf out;
    json_t *value = NULL;
    check(rc < 0 && (e->status == 400 || e->status == 503) && e->type && *e->err.message);
    buf_init(&out, MEM_SERVE, (size_t)1 << 20);
    api_error_write(e, &out);
    check(!out.failed && (value = json_loadb(out.data, out.len, 0, NULL)) != NULL);
    json_decref(value);
    buf_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sample_params defaults;
    struct openai_request q;
    struct api_error e;
    sample_params_default(&defaults);
    for (int chat = 0; chat < 2; chat++) {
        int rc = chat ? openai_parse_chat((const char *)data, size, &defaults, N_VOCAB, &q, &e) : openai_parse_completion((const char *)data, size, &defaults, N_VOCAB, &q, &e);
        if (rc < 0) {
            check_error(rc, &e);
        } else {
            check_request(&q);
            if (chat) {
                json_t *vars = openai_template_vars(&q, -1);
                check(json_is_array(json_object_get(vars, "messages")));
                json_decref(vars);
            }
        }
        openai_request_free(&q);
    }
    return 0;
}
