#include "cli/common.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/log.h"
#include "base/utf8.h"

#define PATH_BYTES 4096

/* The folders where models may lie: beside the program, beside its prefix, where it was installed, where it was built. */
static int model_folders(char (*folders)[PATH_BYTES], const char **list)
{
    int n = 0;
    char self[PATH_BYTES];
    ssize_t len = readlink("/proc/self/exe", self, sizeof self - 1);
    if (len > 0) {
        self[len] = 0;
        char *slash = strrchr(self, '/');
        if (slash)
            *slash = 0;
        snprintf(folders[n++], PATH_BYTES, "%.3900s/models", self);
        snprintf(folders[n++], PATH_BYTES, "%.3900s/../share/apr/models", self);
    }
    snprintf(folders[n++], PATH_BYTES, "%s", APR_INSTALL_PREFIX "/share/apr/models");
    snprintf(folders[n++], PATH_BYTES, "%s", APR_SOURCE_DIR "/models");
    snprintf(folders[n++], PATH_BYTES, "models");
    for (int i = 0; i < n; i++)
        list[i] = folders[i];
    list[n] = NULL;
    return n;
}

int cli_model_path(struct cli *c, char *path, size_t n)
{
    static char folders[5][PATH_BYTES];
    const char *list[6];
    model_folders(folders, list);
    return model_resolve(c->args[0], list, path, n, &c->err);
}

int cli_load_model(struct cli *c, unsigned flags, struct model **out)
{
    char path[PATH_BYTES];
    TRY(cli_model_path(c, path, sizeof path));
    return model_load(path, flags, out, &c->err);
}

int cli_read_input(struct cli *c, const char *path, struct buf *out)
{
    char piece[65536];
    size_t n;
    int is_stdin = strcmp(path, "-") == 0;
    buf_init(out, MEM_OTHER, INPUT_MAX);
    FILE *file = is_stdin ? stdin : fopen(path, "rb");
    if (!file)
        return err_set(&c->err, errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, "%s: %s", path, strerror(errno));
    while (!feof(file) && (n = fread(piece, 1, sizeof piece, file)) > 0) /* a terminal that has ended is not asked again */
        buf_add(out, piece, n);
    int failed = ferror(file) ? errno : 0;
    if (!is_stdin)
        fclose(file);
    if (failed)
        return err_set(&c->err, ERR_IO, "%s: %s", is_stdin ? "standard input" : path, strerror(failed));
    if (out->failed)
        return err_set(&c->err, out->failed, "%s: larger than %zu MiB, or out of memory", path, INPUT_MAX >> 20);
    return 0;
}

int cli_read_json(struct cli *c, const char *path, json_t **out)
{
    struct buf text;
    int rc = cli_read_input(c, path, &text);
    if (rc == 0) {
        rc = json_parse(buf_str(&text), text.len, out, &c->err);
        if (rc < 0)
            err_prefix(&c->err, "%s", path);
    }
    buf_free(&text);
    return rc;
}

int cli_read_line(struct cli *c, FILE *in, struct buf *line)
{
    int ch = 0, any = 0;
    buf_clear(line);
    while ((ch = getc_unlocked(in)) != EOF) {
        any = 1;
        if (ch == '\n')
            break;
        if (buf_add_char(line, (char)ch) < 0)
            return err_set(&c->err, line->failed, "a line of standard input is longer than %zu MiB", LINE_MAX_BYTES >> 20);
    }
    if (line->len > 0 && line->data[line->len - 1] == '\r')
        line->data[--line->len] = 0;
    return any;
}

int cli_print_json(struct cli *c, json_t *value, int indent)
{
    struct buf out;
    if (!value)
        return err_set(&c->err, ERR_NO_MEMORY, "out of memory for the answer");
    buf_init(&out, MEM_OTHER, INPUT_MAX);
    json_write_python(&out, value, indent);
    buf_add_char(&out, '\n');
    json_decref(value);
    int rc = out.failed;
    if (rc == 0)
        fwrite(out.data, 1, out.len, stdout);
    buf_free(&out);
    return rc < 0 ? err_set(&c->err, rc, "the answer is too large to print as JSON") : 0;
}

json_t *cli_json_ids(const int32_t *ids, size_t n)
{
    json_t *array = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(array, json_integer(ids[i]));
    return array;
}

json_t *cli_json_text(const char *text, size_t n)
{
    if (utf8_valid(text, n))
        return json_stringn(text, n);
    struct buf out;
    buf_init(&out, MEM_OTHER, INPUT_MAX);
    for (size_t i = 0; i < n;) {
        uint32_t code_point;
        int len = utf8_decode(text + i, n - i, &code_point);
        if (len > 0)
            buf_add(&out, text + i, (size_t)len);
        else
            buf_add_str(&out, UTF8_REPLACEMENT);
        i += len > 0 ? (size_t)len : len < 0 ? (size_t)-len : n - i;
    }
    json_t *value = json_stringn(buf_str(&out), out.len);
    buf_free(&out);
    return value;
}

void cli_write_safe(FILE *out, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        unsigned char ch = (unsigned char)text[i];
        int is_c1 = ch == 0xC2 && i + 1 < n && (unsigned char)text[i + 1] < 0xA0;
        putc((ch < 0x20 && ch != '\n' && ch != '\t') || ch == 0x7F || is_c1 ? '?' : ch, out);
        i += (size_t)is_c1;
    }
}

int cli_ids_from_json(struct cli *c, const json_t *array, const char *what, struct ids *out)
{
    size_t i;
    json_t *item;
    if (!json_is_array(array))
        return err_set(&c->err, ERR_FORMAT, "%s is not an array of token ids", what);
    json_array_foreach(array, i, item)
    {
        json_int_t id = json_integer_value(item);
        if (!json_is_integer(item) || id < 0 || id > INT32_MAX)
            return err_set(&c->err, ERR_FORMAT, "%s[%zu] is not a token id", what, i);
        if (ids_push(out, (int32_t)id) < 0)
            return err_set(&c->err, ERR_NO_MEMORY, "out of memory for %s", what);
    }
    return 0;
}

void cli_quiet_engine(void)
{
    if (log_level() == LOG_NORMAL)
        log_set_level(LOG_QUIET);
}

void cli_engine_options(const struct cli *c, struct engine_options *out)
{
    *out = (struct engine_options){0};
    cli_device_options(c, &out->device);
    out->context_length = c->o[O_CONTEXT_LENGTH].set ? c->o[O_CONTEXT_LENGTH].i : 0;
    out->memory_limit = c->o[O_MEMORY_LIMIT].set ? (uint64_t)c->o[O_MEMORY_LIMIT].i : 0;
    out->cache_type = c->o[O_CACHE_TYPE].set ? (int)c->o[O_CACHE_TYPE].i - 1 : PLAN_CACHE_AUTO; /* the words are auto and then the types in their order */
    out->session_dir = c->o[O_SESSION_DIR].set ? c->o[O_SESSION_DIR].s : NULL;
    out->session_budget = c->o[O_SESSION_BUDGET].set ? (uint64_t)c->o[O_SESSION_BUDGET].i : 0;
    out->n_parallel = c->o[O_PARALLEL].set ? (int)c->o[O_PARALLEL].i : 0;
}

/* "123=-1.5" */
static int parse_bias(struct cli *c, const char *text, struct logit_bias *out)
{
    char *end;
    errno = 0;
    long id = strtol(text, &end, 10);
    int ok = end != text && *end == '=' && !errno && id >= 0 && id <= INT32_MAX;
    char *number = end + (ok ? 1 : 0);
    double bias = ok ? strtod(number, &end) : 0;
    if (!ok || end == number || *end || !(bias >= -100 && bias <= 100))
        return cli_usage(c, "--logit-bias: \"%.100s\" is not ID=BIAS with a bias from -100 to 100", text);
    *out = (struct logit_bias){(int32_t)id, bias};
    return 0;
}

int cli_logit_bias(struct cli *c, struct logit_bias *bias)
{
    for (int i = 0; i < c->o[O_LOGIT_BIAS].n_list; i++)
        TRY(parse_bias(c, c->o[O_LOGIT_BIAS].list[i], &bias[i]));
    return 0;
}

int cli_sampling(struct cli *c, const struct model *m, const struct logit_bias *bias, struct sample_params *p)
{
    const struct opt_value *o = c->o;
    sample_params_default(p);
    TRY(sample_params_from_gguf(m->file, p, &c->err));
    const struct {
        enum option option;
        double *to;
    } floats[] = {{O_TEMPERATURE, &p->temperature}, {O_TOP_P, &p->top_p}, {O_MIN_P, &p->min_p}, {O_TYPICAL_P, &p->typical_p}, {O_REPETITION_PENALTY, &p->repetition_penalty},
                  {O_PRESENCE_PENALTY, &p->presence_penalty}, {O_FREQUENCY_PENALTY, &p->frequency_penalty}};
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++)
        if (o[floats[i].option].set)
            *floats[i].to = o[floats[i].option].f;
    if (o[O_TOP_K].set)
        p->top_k = (int)o[O_TOP_K].i;
    if (o[O_REPEAT_LAST_N].set)
        p->repeat_last_n = (int)o[O_REPEAT_LAST_N].i;
    p->has_seed = o[O_SEED].set;
    p->seed = (uint64_t)o[O_SEED].i;
    p->bias = bias;
    p->n_bias = (size_t)o[O_LOGIT_BIAS].n_list;
    return sample_params_check(p, vocab_n_tokens(m->vocab), &c->err);
}
