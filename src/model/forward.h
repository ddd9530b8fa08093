/* forward(batch): the order of layers, nothing else. A batch is ragged: spans of consecutive tokens of different sequences, prompt chunks and single decode rows side by side. */
#ifndef MODEL_FORWARD_H
#define MODEL_FORWARD_H

#include "compute/device.h"
#include "model/model.h"

/* What forward sees of one sequence: filled and owned by engine/state. */
struct seq {
    int64_t length;               /* positions held; forward adds its rows */
    int64_t capacity;             /* KV rows committed: length + rows <= capacity is the caller's duty */
    struct op_kv *kv;             /* [n_full], in layer order */
    struct op_delta_state *delta; /* [n_linear], in layer order */
};

struct batch_span {
    struct seq *seq;              /* each sequence at most once a batch */
    const int32_t *ids;
    int64_t n;                    /* >= 1 */
    int64_t n_logits;             /* logits of the last n_logits rows: 0, 1 or up to n */
};

/* Workspace of one device for batches of up to max_rows rows and max_logit_rows rows of logits. Address space only, until runner_reserve_rows commits rows. Owned by the engine
 * thread. */
struct runner;

int runner_create(const struct model *m, struct device *dev, int64_t max_rows, int64_t max_logit_rows, struct runner **out, struct err *err) MUST_CHECK;
void runner_free(struct runner *r);
size_t runner_workspace_bytes(const struct model_config *c, int64_t max_rows, int64_t max_logit_rows);
const struct model *runner_model(const struct runner *r);
struct device *runner_device(const struct runner *r);
int64_t runner_max_rows(const struct runner *r);
int64_t runner_max_logit_rows(const struct runner *r);
/* Rows that a batch may have now. */
int64_t runner_rows(const struct runner *r);
/* Room for batches of `rows` rows (at most max_rows). ERR_CAPACITY, naming rows and bytes, leaves what there was. */
int runner_reserve_rows(struct runner *r, int64_t rows, struct err *err) MUST_CHECK;
/* Gives the rows above `rows` back; returns the bytes. */
uint64_t runner_trim_rows(struct runner *r, int64_t rows);

/* Runs the batch: every span's state moves on by n. Logits come out span by span, row by row: *logits points into the workspace, [sum n_logits][n_vocab], host readable, valid
 * until the next forward. ERR_INVALID before anything is touched: no rows, too many, an id outside the vocabulary, capacity. */
int model_forward(struct runner *r, const struct batch_span *spans, int n_spans, const float **logits, struct err *err) MUST_CHECK;

/* Tests: sees every intermediate by the names of the golden traces ("attn_norm", "q_rope", ...), data [n_rows][n_cols]. */
typedef void forward_trace(void *ctx, int layer, const char *name, const float *data, int64_t n_rows, int64_t n_cols);
void runner_set_trace(struct runner *r, forward_trace *trace, void *ctx);

#endif
