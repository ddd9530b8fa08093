/* Reading JSON into jansson's values. jansson's own reader does not survive memory that runs out: it goes on without the byte it had no room for, into another text or beyond its
 * buffer. Invariant: what a string needs is decoded to the end of `scratch`, which goes back to its mark afterwards. */
#include "base/json.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/mem.h"
#include "base/utf8.h"

#define MAX_DEPTH 200
#define PREFIX_BYTES 24
#define NUMBER_BYTES 512 /* longer ones are copied to the heap */

/* Random once in a process, so that no text from outside can pass for a number. */
static char big_prefix[PREFIX_BYTES + 1];
static pthread_once_t big_once = PTHREAD_ONCE_INIT;

static void big_make_prefix(void)
{
    unsigned char random[PREFIX_BYTES];
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        memset(random, 7, sizeof random);
    for (int i = 0; i < PREFIX_BYTES; i++)
        big_prefix[i] = (char)('a' + random[i] % 26);
}

const char *json_big_integer(const json_t *value, size_t *n)
{
    pthread_once(&big_once, big_make_prefix);
    if (!json_is_string(value) || json_string_length(value) <= PREFIX_BYTES || memcmp(json_string_value(value), big_prefix, PREFIX_BYTES) != 0)
        return NULL;
    *n = json_string_length(value) - PREFIX_BYTES;
    return json_string_value(value) + PREFIX_BYTES;
}

int json_is_text(const json_t *value)
{
    size_t n;
    return json_is_string(value) && !json_big_integer(value, &n);
}

struct reader {
    const char *text;
    size_t n, at;
    int depth;
    int rc;              /* 0 until something failed */
    struct buf scratch;
    struct err *err;
};

/* All of these return NULL or -1 for the caller to pass on. */
static json_t *fail(struct reader *r, size_t at, const char *what)
{
    int line = 1;
    size_t start = 0;
    for (size_t i = 0; i < at && i < r->n; i++)
        if (r->text[i] == '\n') {
            line++;
            start = i + 1;
        }
    if (r->rc == 0)
        r->rc = err_set(r->err, ERR_FORMAT, "not valid JSON at line %d, column %zu (byte %zu): %s", line, at - start + 1, at, what);
    return NULL;
}

static json_t *fail_memory(struct reader *r)
{
    if (r->rc == 0)
        r->rc = err_set(r->err, ERR_NO_MEMORY, "out of memory for %zu bytes of JSON", r->n);
    return NULL;
}

/* The next byte after white space; -1 at the end. */
static int peek(struct reader *r)
{
    while (r->at < r->n && (r->text[r->at] == ' ' || r->text[r->at] == '\t' || r->text[r->at] == '\n' || r->text[r->at] == '\r'))
        r->at++;
    return r->at < r->n ? (unsigned char)r->text[r->at] : -1;
}

/* ---- strings ---- */

/* The four digits at `at`, or -1. */
static int read_hex4(const struct reader *r, size_t at)
{
    int value = 0;
    if (r->n - at < 4)
        return -1;
    for (size_t i = at; i < at + 4; i++) {
        int c = (unsigned char)r->text[i], digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
        if (digit < 0)
            return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* The escape whose letter is at r->at; moves behind it. */
static int read_escape(struct reader *r)
{
    static const char letters[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    size_t start = r->at - 1;
    const char *letter = r->at < r->n && r->text[r->at] ? strchr(letters, r->text[r->at]) : NULL;
    char out[4];
    if (letter) {
        r->at++;
        return buf_add_char(&r->scratch, meanings[letter - letters]);
    }
    int unit = r->at < r->n && r->text[r->at] == 'u' ? read_hex4(r, r->at + 1) : -1;
    uint32_t point = (uint32_t)unit;
    if (unit < 0) {
        fail(r, start, "an escape that is none");
        return -1;
    }
    r->at += 5;
    if (unit >= 0xD800 && unit < 0xDC00) {
        int low = r->n - r->at >= 6 && r->text[r->at] == '\\' && r->text[r->at + 1] == 'u' ? read_hex4(r, r->at + 2) : -1;
        if (low >= 0xDC00 && low < 0xE000) {
            point = 0x10000 + (((uint32_t)unit - 0xD800) << 10) + ((uint32_t)low - 0xDC00);
            r->at += 6;
        }
    }
    int n = utf8_encode(point, out);
    if (n == 0) {
        fail(r, start, "half of a surrogate pair");
        return -1;
    }
    return buf_add(&r->scratch, out, (size_t)n);
}

/* The string that begins at r->at: its bytes lie in the text, or from `mark` on in scratch when *in_scratch. */
static int read_string(struct reader *r, size_t *start, size_t *n, int *in_scratch)
{
    size_t first = ++r->at, mark = r->scratch.len;
    *in_scratch = 0;
    for (;;) {
        size_t from = r->at;
        while (r->at < r->n && r->text[r->at] != '"' && r->text[r->at] != '\\' && (unsigned char)r->text[r->at] >= 0x20)
            r->at++;
        if (r->at == r->n || (unsigned char)r->text[r->at] < 0x20) {
            fail(r, r->at, r->at == r->n ? "the text ends inside a string" : "a control character in a string");
            return -1;
        }
        if (!utf8_valid(r->text + from, r->at - from)) {
            fail(r, from, "a string that is not UTF-8");
            return -1;
        }
        int ends = r->text[r->at++] == '"';
        if (ends && !*in_scratch) {
            *start = first;
            *n = r->at - 1 - first;
            return 0;
        }
        *in_scratch = 1;
        if (buf_add(&r->scratch, r->text + from, r->at - 1 - from) < 0 || (!ends && read_escape(r) < 0)) {
            fail_memory(r); /* unless the escape said what */
            return -1;
        }
        if (ends) {
            *start = mark;
            *n = r->scratch.len - mark;
            return 0;
        }
    }
}

static json_t *parse_string(struct reader *r)
{
    size_t start, n, mark = r->scratch.len;
    int in_scratch;
    if (read_string(r, &start, &n, &in_scratch) < 0)
        return NULL;
    json_t *value = json_stringn_nocheck(in_scratch ? r->scratch.data + start : r->text + start, n);
    r->scratch.len = mark;
    return value ? value : fail_memory(r);
}

/* ---- numbers ---- */

static size_t skip_digits(const struct reader *r, size_t at)
{
    while (at < r->n && r->text[at] >= '0' && r->text[at] <= '9')
        at++;
    return at;
}

static json_t *make_real(struct reader *r, size_t start, size_t n)
{
    char small[NUMBER_BYTES], *copy = small;
    if (n >= sizeof small && !(copy = mem_strndup(MEM_JSON, r->text + start, n)))
        return fail_memory(r);
    if (copy == small) {
        memcpy(small, r->text + start, n);
        small[n] = 0;
    }
    double number = strtod(copy, NULL);
    if (copy != small)
        mem_free(copy);
    if (!isfinite(number))
        return fail(r, start, "a number that is too large");
    json_t *value = json_real(number);
    return value ? value : fail_memory(r);
}

/* Beyond 64 bits the digits are kept as they are. */
static json_t *make_integer(struct reader *r, size_t start, size_t n)
{
    int negative = r->text[start] == '-', fits = 1;
    uint64_t number = 0, most = (uint64_t)INT64_MAX + (uint64_t)negative;
    for (size_t i = start + (size_t)negative; fits && i < start + n; i++) {
        uint64_t digit = (uint64_t)(r->text[i] - '0');
        fits = !size_mul(number, 10, &number) && !size_add(number, digit, &number) && number <= most;
    }
    json_t *value;
    if (fits) {
        value = json_integer(negative ? (json_int_t)(0 - number) : (json_int_t)number);
    } else {
        size_t mark = r->scratch.len;
        if (buf_add(&r->scratch, big_prefix, PREFIX_BYTES) < 0 || buf_add(&r->scratch, r->text + start, n) < 0)
            return fail_memory(r);
        value = json_stringn_nocheck(r->scratch.data + mark, r->scratch.len - mark);
        r->scratch.len = mark;
    }
    return value ? value : fail_memory(r);
}

static json_t *parse_number(struct reader *r)
{
    size_t start = r->at, first = start + (r->text[start] == '-'), at = skip_digits(r, first);
    int whole = 1;
    if (at == first || (r->text[first] == '0' && at > first + 1))
        return fail(r, start, "a number that is none");
    if (at < r->n && r->text[at] == '.') {
        size_t end = skip_digits(r, at + 1);
        if (end == at + 1)
            return fail(r, start, "a number that is none");
        at = end;
        whole = 0;
    }
    if (at < r->n && (r->text[at] | 32) == 'e') {
        size_t digits = at + 1 + (at + 1 < r->n && (r->text[at + 1] == '+' || r->text[at + 1] == '-')), end = skip_digits(r, digits);
        if (end == digits)
            return fail(r, start, "a number that is none");
        at = end;
        whole = 0;
    }
    r->at = at;
    return whole ? make_integer(r, start, at - start) : make_real(r, start, at - start);
}

/* ---- values ---- */

static json_t *parse_value(struct reader *r);

/* Elements up to the closing bracket, into `list`, which this owns. */
static json_t *parse_array(struct reader *r)
{
    json_t *list = json_array();
    r->at++;
    if (!list)
        return fail_memory(r);
    for (int c = peek(r); c != ']';) {
        json_t *value = parse_value(r);
        if (!value || json_array_append_new(list, value) < 0) {
            json_decref(list);
            return fail_memory(r);
        }
        c = peek(r);
        if (c == ',') {
            r->at++;
        } else if (c != ']') {
            json_decref(list);
            return fail(r, r->at, "',' or ']' expected");
        }
    }
    r->at++;
    return list;
}

/* One "key": value. */
static int parse_member(struct reader *r, json_t *object)
{
    size_t start, n, mark = r->scratch.len;
    int in_scratch;
    if (peek(r) != '"') {
        fail(r, r->at, "a key in quotes expected");
        return -1;
    }
    size_t key_at = r->at;
    if (read_string(r, &start, &n, &in_scratch) < 0)
        return -1;
    if (peek(r) != ':') {
        fail(r, r->at, "':' expected");
        return -1;
    }
    r->at++;
    json_t *value = parse_value(r);
    if (!value)
        return -1;
    const char *key = in_scratch ? r->scratch.data + start : r->text + start; /* only now: scratch may have moved */
    if (memchr(key, 0, n)) {
        json_decref(value);
        fail(r, key_at, "a key with a NUL in it");
        return -1;
    }
    int rc = json_object_setn_new_nocheck(object, key, n, value);
    r->scratch.len = mark;
    if (rc < 0)
        fail_memory(r);
    return rc;
}

static json_t *parse_object(struct reader *r)
{
    json_t *object = json_object();
    r->at++;
    if (!object)
        return fail_memory(r);
    for (int c = peek(r); c != '}';) {
        if (parse_member(r, object) < 0) {
            json_decref(object);
            return NULL;
        }
        c = peek(r);
        if (c == ',') {
            r->at++;
        } else if (c != '}') {
            json_decref(object);
            return fail(r, r->at, "',' or '}' expected");
        }
    }
    r->at++;
    return object;
}

static json_t *parse_word(struct reader *r)
{
    static const char *const words[] = {"true", "false", "null"};
    for (int i = 0; i < 3; i++) {
        size_t n = strlen(words[i]);
        if (r->n - r->at < n || memcmp(r->text + r->at, words[i], n) != 0)
            continue;
        r->at += n;
        return i == 0 ? json_true() : i == 1 ? json_false() : json_null();
    }
    return fail(r, r->at, "a value expected");
}

static json_t *parse_value(struct reader *r)
{
    int c = peek(r);
    if (c == '"')
        return parse_string(r);
    if (c == '-' || (c >= '0' && c <= '9'))
        return parse_number(r);
    if (c != '[' && c != '{')
        return c < 0 ? fail(r, r->at, "a value expected, but the text ends") : parse_word(r);
    if (r->depth == MAX_DEPTH) {
        if (r->rc == 0)
            r->rc = err_set(r->err, ERR_LIMIT, "JSON nests deeper than %d at byte %zu", MAX_DEPTH, r->at);
        return NULL;
    }
    r->depth++;
    json_t *value = c == '[' ? parse_array(r) : parse_object(r);
    r->depth--;
    return value;
}

int json_parse(const char *text, size_t n, json_t **out, struct err *err)
{
    struct reader r = {.text = text, .n = n, .err = err};
    if (n == 0)
        return err_set(err, ERR_FORMAT, "JSON expected, got nothing");
    pthread_once(&big_once, big_make_prefix);
    buf_init(&r.scratch, MEM_JSON, 2 * n + PREFIX_BYTES + 64);
    json_t *value = parse_value(&r);
    if (value && peek(&r) >= 0) {
        json_decref(value);
        value = fail(&r, r.at, "the text goes on behind the value");
    }
    buf_free(&r.scratch);
    if (!value)
        return r.rc;
    *out = value;
    return 0;
}
