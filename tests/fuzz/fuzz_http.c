/* The head of a request: any bytes give one whose pointers are its own and whose framing is unambiguous, or a status with a sentence. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "serve/http_parse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int ok)
{
    if (!ok)
        abort();
}

static void check_head(const struct http_head *h, size_t size)
{
    const char *end = h->text + size + 1;
    check(*h->method >= 'A' && *h->method <= 'Z' && (*h->path == '/' || strcmp(h->path, "*") == 0));
    check(h->path > h->text && h->path < end && h->query != NULL && h->n_headers <= HTTP_MAX_HEADERS);
    check(!(h->chunked && h->n_body));
    for (size_t i = 0; i < h->n_headers; i++) {
        check(h->headers[i].name > h->text && h->headers[i].value < end && *h->headers[i].name);
        check(strcspn(h->headers[i].value, "\r\n") == strlen(h->headers[i].value));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct http_head head;
    const char *message = NULL;
    int status = http_parse_head((const char *)data, size, &head, &message);
    if (status)
        check(status >= 400 && status < 600 && message && *message);
    else
        check_head(&head, size);
    mem_free(head.text);
    char line[64] = "";
    memcpy(line, data, size < sizeof line - 1 ? size : sizeof line - 1);
    check(http_parse_chunk_size(line) >= -1);
    return 0;
}
