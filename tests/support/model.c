#include "support/model.h"

#include <stdio.h>

#include "base/mem.h"
#include "support/test.h"

void rig_open(struct rig *rig, const char *model, const char *rung, enum arithmetic arithmetic, int threads, int64_t rows, int64_t logit_rows)
{
    rig_open_path(rig, test_path("models/%s.gguf", model), rung, arithmetic, threads, rows, logit_rows);
}

void rig_open_path(struct rig *rig, const char *path, const char *rung, enum arithmetic arithmetic, int threads, int64_t rows, int64_t logit_rows)
{
    struct err err = {0};
    test_ok(model_load(path, MODEL_NO_TOKENISER, &rig->m, &err), &err, path);
    struct device_options options = {.kind = DEVICE_CPU, .arithmetic = arithmetic, .n_threads = threads, .cpu_rung = rung, .max_rows = rows, .max_n_in = config_widest_input(&rig->m->config)};
    test_ok(device_open(&options, &rig->dev, &err), &err, "device");
    test_ok(runner_create(rig->m, rig->dev, rows, logit_rows, &rig->r, &err), &err, "runner");
    test_ok(runner_reserve_rows(rig->r, rows, &err), &err, "rows");
}

int rig_step(struct session *const *sessions, const int32_t *tokens, int n, struct err *err)
{
    struct session_part parts[64] = {0};
    for (int i = 0; i < n; i++) {
        TRY(state_reserve(session_state(sessions[i]), state_length(session_state(sessions[i])) + 1, err));
        parts[i] = (struct session_part){.session = sessions[i], .token = tokens[i]};
    }
    return session_run(parts, n, NULL, err);
}

void rig_close(struct rig *rig)
{
    runner_free(rig->r);
    device_close(rig->dev);
    model_free(rig->m);
}

int32_t *rig_prompt(const char *model, const char *prompt, size_t *n)
{
    char *data = test_read_file(test_path("models/%s.%s.ids.i32", model, prompt), n);
    *n /= 4;
    return (int32_t *)data;
}

float *rig_floats(const char *format, const char *model, const char *prompt, size_t *n)
{
    char name[256];
    snprintf(name, sizeof name, format, model, prompt);
    char *data = test_read_file(test_path("models/%s", name), n);
    *n /= 4;
    return (float *)data;
}
