/* A file's bytes as a model: opened, walked, its config, tensors and words read. */
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"
#include "model/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void walk(const struct gguf *g)
{
    struct gguf_string s;
    volatile int64_t sum = 0;
    for (size_t i = 0; i < gguf_n_kv(g); i++) {
        const struct gguf_kv *kv = gguf_kv_at(g, i);
        uint64_t cursor = 0;
        if (kv->type == GGUF_ARRAY)
            while (gguf_array_next_string(kv, &cursor, &s))
                sum += (int64_t)s.len;
    }
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        sum += ((const uint8_t *)t->data)[0] + ((const uint8_t *)t->data)[t->n_bytes - 1];
    }
    (void)sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64];
    struct gguf *g = NULL;
    struct model *m = NULL;
    struct err err;
    log_set_level(LOG_QUIET);
    int fd = memfd_create("fuzz", 0);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        return 0;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (gguf_open(path, 0, &g, &err) == 0) {
        walk(g);
        gguf_close(g);
        if (model_load(path, 0, &m, &err) == 0)
            model_free(m);
    }
    close(fd);
    return 0;
}
