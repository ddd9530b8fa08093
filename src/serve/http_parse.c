/* Strict where two readers could disagree (lengths, line ends, spaces before colons), since a proxy may stand before us. */
#include "serve/http_parse.h"

#include <string.h>
#include <strings.h>

#include "base/mem.h"

static int is_token_char(unsigned char c)
{
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c && strchr("!#$%&'*+-.^_`|~", c));
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

const char *http_head_find(const struct http_header *headers, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(headers[i].name, name) == 0)
            return headers[i].value;
    return NULL;
}

/* In place; -1 for a broken escape or a NUL. */
static int percent_decode(char *text)
{
    char *to = text;
    for (const char *from = text; *from; from++) {
        if (*from != '%') {
            *to++ = *from;
            continue;
        }
        int high = hex_value(from[1]), low = high < 0 ? -1 : hex_value(from[2]);
        if (low < 0 || high * 16 + low == 0)
            return -1;
        *to++ = (char)(high * 16 + low);
        from += 2;
    }
    *to = 0;
    return 0;
}

/* "http://host/path" is "/path"; the rest stays. */
static char *strip_origin(char *target)
{
    if (strncasecmp(target, "http://", 7) != 0)
        return target;
    char *slash = strchr(target + 7, '/');
    return slash ? slash : NULL;
}

static int parse_request_line(char *line, struct http_head *h, const char **message)
{
    char *space = strchr(line, ' '), *second = space ? strchr(space + 1, ' ') : NULL;
    *message = "the request line is not METHOD TARGET HTTP/1.1";
    if (!space || !second || space == line)
        return 400;
    *space = *second = 0;
    const char *version = second + 1;
    for (const char *p = line; *p; p++)
        if (*p < 'A' || *p > 'Z')
            return 400;
    for (const unsigned char *p = (unsigned char *)space + 1; *p; p++)
        if (*p <= 0x20 || *p == 0x7F)
            return 400;
    if (strncmp(version, "HTTP/", 5) != 0)
        return 400;
    if (strcmp(version, "HTTP/1.1") != 0 && strcmp(version, "HTTP/1.0") != 0) {
        *message = "this server speaks HTTP/1.1";
        return 505;
    }
    h->minor = version[7] - '0';
    h->method = line;
    char *target = strip_origin(space + 1);
    if (!target || (*target != '/' && strcmp(target, "*") != 0))
        return 400;
    char *question = strchr(target, '?');
    if (question)
        *question = 0;
    h->path = target;
    h->query = question ? question + 1 : "";
    *message = "the path holds a broken percent escape";
    return percent_decode(target) < 0 ? 400 : 0;
}

static int parse_header_line(char *line, struct http_head *h, const char **message)
{
    char *colon = strchr(line, ':');
    *message = "a header line is not NAME: VALUE";
    if (!colon || colon == line)
        return 400;
    for (char *p = line; p < colon; p++) {
        if (!is_token_char((unsigned char)*p))
            return 400;
        if (*p >= 'A' && *p <= 'Z')
            *p = (char)(*p + 32);
    }
    *colon = 0;
    char *value = colon + 1, *end = value + strlen(value);
    while (*value == ' ' || *value == '\t')
        value++;
    while (end > value && (end[-1] == ' ' || end[-1] == '\t'))
        *--end = 0;
    for (const unsigned char *p = (unsigned char *)value; *p; p++)
        if ((*p < 0x20 && *p != '\t') || *p == 0x7F)
            return 400;
    if (h->n_headers == HTTP_MAX_HEADERS) {
        *message = "too many header lines";
        return 431;
    }
    h->headers[h->n_headers++] = (struct http_header){line, value};
    return 0;
}

static int parse_length(const char *text, uint64_t *out)
{
    uint64_t value = 0;
    if (!*text || strlen(text) > 18)
        return -1;
    for (; *text; text++) {
        if (*text < '0' || *text > '9')
            return -1;
        value = value * 10 + (uint64_t)(*text - '0');
    }
    *out = value;
    return 0;
}

/* Whether a comma-separated list holds a word. */
static int list_has(const char *list, const char *word)
{
    size_t n = strlen(word);
    while (list && *list) {
        list += strspn(list, " \t,");
        size_t len = strcspn(list, " \t,;");
        if (len == n && strncasecmp(list, word, n) == 0)
            return 1;
        list += strcspn(list, ",");
    }
    return 0;
}

static int parse_framing(struct http_head *h, const char **message)
{
    int n_lengths = 0, n_encodings = 0, n_hosts = 0;
    for (size_t i = 0; i < h->n_headers; i++) {
        const struct http_header *line = &h->headers[i];
        n_hosts += strcmp(line->name, "host") == 0;
        if (strcmp(line->name, "content-length") == 0) {
            uint64_t length;
            *message = "Content-Length is not one number";
            if (parse_length(line->value, &length) < 0 || (n_lengths++ && length != h->n_body))
                return 400;
            h->n_body = length;
        } else if (strcmp(line->name, "transfer-encoding") == 0) {
            *message = "only the transfer encoding \"chunked\" is served";
            if (strcasecmp(line->value, "chunked") != 0 || n_encodings++)
                return 501;
            h->chunked = 1;
        }
    }
    *message = "Content-Length and Transfer-Encoding contradict each other";
    if (n_lengths && n_encodings)
        return 400;
    *message = "an HTTP/1.1 request has one Host header";
    if (n_hosts > 1 || (h->minor == 1 && n_hosts == 0))
        return 400;
    const char *connection = http_head_find(h->headers, h->n_headers, "connection"), *expect = http_head_find(h->headers, h->n_headers, "expect");
    h->keep_alive = h->minor == 1 ? !list_has(connection, "close") : list_has(connection, "keep-alive");
    *message = "only the expectation \"100-continue\" is served";
    if (expect && strcasecmp(expect, "100-continue") != 0)
        return 417;
    h->expects_continue = expect && h->minor == 1;
    return 0;
}

int http_parse_head(const char *text, size_t n, struct http_head *h, const char **message)
{
    *h = (struct http_head){.method = "", .path = "", .query = ""};
    h->text = mem_strndup(MEM_SERVE, text, n);
    *message = "out of memory";
    if (!h->text)
        return 503;
    *message = "the header holds a NUL";
    if (memchr(text, 0, n))
        return 400;
    char *line = h->text;
    for (int i = 0; *line; i++) {
        char *end = strchr(line, '\n');
        if (!end)
            break;
        *end = 0;
        if (end > line && end[-1] == '\r')
            end[-1] = 0;
        if (!*line)
            break;
        *message = "folded header lines are not served";
        int status = i == 0 ? parse_request_line(line, h, message) : *line == ' ' || *line == '\t' ? 400 : parse_header_line(line, h, message);
        if (status)
            return status;
        line = end + 1;
    }
    *message = "the request line is missing";
    return *h->method ? parse_framing(h, message) : 400;
}

int64_t http_parse_chunk_size(const char *line)
{
    int64_t value = 0;
    int digits = 0;
    for (; hex_value(*line) >= 0; line++, digits++) {
        if (value >= (int64_t)1 << 36)
            return -1;
        value = value * 16 + hex_value(*line);
    }
    line += strspn(line, " \t");
    return digits && (!*line || *line == ';') ? value : -1;
}
