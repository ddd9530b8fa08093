/* Bodies of chat and completion requests: read and checked, never trusted. */
#include <stdint.h>
#include <string.h>

#include "serve/openai_request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sample_params defaults;
    sample_params_default(&defaults);
    for (int kind = 0; kind < 2; kind++) {
        struct openai_request q;
        struct api_error e;
        memset(&e, 0, sizeof e);
        int rc = kind ? openai_parse_completion((const char *)data, size, &defaults, 1024, &q, &e) : openai_parse_chat((const char *)data, size, &defaults, 1024, &q, &e);
        if (rc == 0 && !kind)
            json_decref(openai_template_vars(&q, -1));
        openai_request_free(&q);
    }
    return 0;
}
