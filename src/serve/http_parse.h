/* A request's head from its bytes. Pure. */
#ifndef SERVE_HTTP_PARSE_H
#define SERVE_HTTP_PARSE_H

#include "serve/http.h"

struct http_head {
    char *text;               /* a copy of the bytes that everything below points into; mem_free */
    const char *method, *path, *query;
    int minor;                /* HTTP/1.minor */
    struct http_header headers[HTTP_MAX_HEADERS];
    size_t n_headers;
    int chunked;              /* the body comes in chunks */
    uint64_t n_body;          /* content-length, 0 when there is none */
    int keep_alive;
    int expects_continue;
};

/* text[0, n) ends with the empty line. 0, or the HTTP status of the refusal with a sentence in *message. out->text is to be freed in either case. */
int http_parse_head(const char *text, size_t n, struct http_head *out, const char **message);
/* Of a chunk: hexadecimal digits, then anything after ';' ignored. -1 when it is none or above 2^40. */
int64_t http_parse_chunk_size(const char *line);
const char *http_head_find(const struct http_header *headers, size_t n, const char *name);

#endif
