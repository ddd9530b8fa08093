/* A model on a device, for tests by ids. */
#ifndef SUPPORT_MODEL_H
#define SUPPORT_MODEL_H

#include "engine/session.h"
#include "model/model.h"

struct rig {
    struct model *m;
    struct device *dev;
    struct runner *r;
};

/* model: name under TEST_DATA/models. Fails the test when anything does. */
void rig_open(struct rig *rig, const char *model, const char *rung, enum arithmetic arithmetic, int threads, int64_t rows, int64_t logit_rows);
void rig_open_path(struct rig *rig, const char *path, const char *rung, enum arithmetic arithmetic, int threads, int64_t rows, int64_t logit_rows);
/* One generated token for each of n sessions in one batch, with room made for it. */
int rig_step(struct session *const *sessions, const int32_t *tokens, int n, struct err *err) MUST_CHECK;
void rig_close(struct rig *rig);

/* Ids of a golden prompt ("p7", "p70", "p600"); free with mem_free. */
int32_t *rig_prompt(const char *model, const char *prompt, size_t *n);
float *rig_floats(const char *format, const char *model, const char *prompt, size_t *n);

#endif
