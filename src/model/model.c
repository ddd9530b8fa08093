/* Loading a model: the file, its config, its tensors, its words. */
#include "model/model.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "model/weights.h"

static int load_words(struct model *m, struct err *err)
{
    TRY(vocab_load(m->file, &m->vocab, err));
    if (vocab_n_tokens(m->vocab) != m->config.n_vocab)
        return err_set(err, ERR_FORMAT, "%s: tokenizer.ggml.tokens has %d tokens, token_embd.weight %lld rows", gguf_path(m->file), vocab_n_tokens(m->vocab), (long long)m->config.n_vocab);
    int rc = chat_template_load(m->file, m->vocab, NULL, 0, &m->chat, err);
    return rc == ERR_NOT_FOUND ? 0 : rc; /* completions work without one */
}

static int load(struct model *m, const char *path, unsigned flags, struct err *err)
{
    int header_only = (flags & MODEL_HEADER_ONLY) != 0;
    TRY(gguf_open(path, header_only ? GGUF_HEADER_ONLY : 0, &m->file, err));
    TRY(model_config_read(m->file, &m->config, err));
    TRY(model_weights_load(m, header_only, err));
    return flags & MODEL_NO_TOKENISER ? 0 : load_words(m, err);
}

int model_load(const char *path, unsigned flags, struct model **out, struct err *err)
{
    struct model *m = mem_alloc(MEM_MODEL, sizeof *m);
    if (!m)
        return err_set(err, ERR_NO_MEMORY, "%s: out of memory", path);
    int rc = load(m, path, flags, err);
    if (rc < 0)
        model_free(m);
    else
        *out = m;
    return rc;
}

void model_free(struct model *m)
{
    if (!m)
        return;
    chat_template_free(m->chat);
    vocab_free(m->vocab);
    mem_free(m->layers);
    mem_free(m->owned);
    gguf_close(m->file);
    mem_free(m);
}

int model_name(const struct model *m, char *out, size_t n)
{
    struct gguf_string s = {0};
    struct err ignored;
    size_t k = 0;
    if (gguf_get_string(m->file, "general.name", &s, &ignored) != 1 || s.len == 0) {
        const char *path = gguf_path(m->file), *slash = strrchr(path, '/');
        s.data = slash ? slash + 1 : path;
        s.len = strlen(s.data);
    }
    for (size_t i = 0; i < s.len && k + 1 < n; i++)
        out[k++] = s.data[i] > 0x20 && s.data[i] < 0x7F ? s.data[i] : '-'; /* fit for a model id */
    out[k] = 0;
    return (int)k;
}

static int is_file(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && !S_ISDIR(st.st_mode);
}

static int is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

int model_resolve(const char *name, const char *const *folders, char *out_path, size_t out_bytes, struct err *err)
{
    char looked[700] = "";
    size_t used = 0;
    if (strchr(name, '/') || strstr(name, ".gguf") || is_file(name)) { /* a folder that happens to be called like a model is not meant */
        if ((size_t)snprintf(out_path, out_bytes, "%s", name) >= out_bytes)
            return err_set(err, ERR_INVALID, "the path of the model is longer than %zu bytes", out_bytes - 1);
        return 0;
    }
    for (int i = 0; folders[i]; i++) {
        static const char *const forms[] = {"%s/apr-%s.gguf", "%s/%s.gguf"};
        for (int j = 0; j < 2; j++)
            if ((size_t)snprintf(out_path, out_bytes, forms[j], folders[i], name) < out_bytes && is_file(out_path))
                return 0;
        if (used < sizeof looked)
            used += (size_t)snprintf(looked + used, sizeof looked - used, "%s%s", i ? ", " : "", folders[i]);
    }
    return err_set(err, ERR_NOT_FOUND, is_folder(name) ? "%s: is a folder, and there is no model of this name (apr-%s.gguf or %s.gguf) in %s; name a .gguf file, or \"demo\"" :
                   "%s: no such file, and no model of this name (apr-%s.gguf or %s.gguf) in %s; name a .gguf file, or \"demo\"", name, name, name, looked);
}
