/* Steps that several verbs share: finding and loading the model, reading input, the device the flags ask for, printing JSON. */
#ifndef CLI_COMMON_H
#define CLI_COMMON_H

#include <stdio.h>

#include "cli/cli.h"

#define INPUT_MAX ((size_t)1 << 30)   /* bytes of a file or of standard input that is read whole */
#define LINE_MAX_BYTES ((size_t)256 << 20)

/* The file that c->args[0] stands for. */
int cli_model_path(struct cli *c, char *path, size_t n) MUST_CHECK;
int cli_load_model(struct cli *c, unsigned flags, struct model **out) MUST_CHECK;

/* A file, or standard input for "-". The buffer is initialised here; free it also after a failure. */
int cli_read_input(struct cli *c, const char *path, struct buf *out) MUST_CHECK;
/* The same as one JSON document. */
int cli_read_json(struct cli *c, const char *path, json_t **out) MUST_CHECK;
/* One line of a stream without its newline: 1, or 0 at the end. */
int cli_read_line(struct cli *c, FILE *in, struct buf *line) MUST_CHECK;

/* Prints as Python would, with a newline; takes the reference. indent as json_write_python. */
int cli_print_json(struct cli *c, json_t *value, int indent) MUST_CHECK;
json_t *cli_json_ids(const int32_t *ids, size_t n);
/* Strings of a file may hold anything: broken UTF-8 becomes U+FFFD, NUL stays. */
json_t *cli_json_text(const char *text, size_t n);
/* Text for a terminal or a line: control characters become '?'. */
void cli_write_safe(FILE *out, const char *text, size_t n);

/* Ids of a JSON array; ERR_FORMAT names `what`. */
int cli_ids_from_json(struct cli *c, const json_t *array, const char *what, struct ids *out) MUST_CHECK;

/* What the device flags ask for, decided before any model is read. ERR_DEVICE names the flag typed, the reason and the way out. */
struct cli_device {
    char requested[24]; /* "unset", "auto", "all", "0", "12" */
};
int cli_resolve_device(struct cli *c, struct cli_device *out) MUST_CHECK;
void cli_device_options(const struct cli *c, struct device_options *out);
/* "gpu-layers: requested=... resolved=0 total=... (backend=cpu)" */
void cli_print_device_line(FILE *out, const struct cli_device *d, const struct model *m);
/* "Backend: CPU (avx2, 2 threads)" */
void cli_print_backend(const struct device *dev);

/* The engine's own lines are for servers: where a person reads answers they come with -v only. */
void cli_quiet_engine(void);

/* --debug: whether it is one, before anything is loaded; and what it asks for, once the model is ready. */
int cli_check_faults(struct cli *c) MUST_CHECK;
void cli_set_faults(struct cli *c);

/* Device, context and memory flags as the engine takes them. */
void cli_engine_options(const struct cli *c, struct engine_options *out);

/* --logit-bias into the caller's array of OPT_LIST_MAX. */
int cli_logit_bias(struct cli *c, struct logit_bias *bias) MUST_CHECK;
/* Sampling: neutral, then the file's general.sampling.*, then the flags. bias is borrowed by *out. */
int cli_sampling(struct cli *c, const struct model *m, const struct logit_bias *bias, struct sample_params *out) MUST_CHECK;

/* The devices as people read them, and as JSON. */
int cli_list_devices(struct cli *c) MUST_CHECK;

#endif
