/* Text to ids and back: any bytes, any untrusted spans, both modes; decoding gives the text again, cleaned and in NFC. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "text/vocab.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct vocab *vocab(void)
{
    static struct vocab *v;
    static struct gguf *g;
    struct err err;
    if (!v && (gguf_open(TEST_DATA "/models/r2-q8_0.gguf", 0, &g, &err) < 0 || vocab_load(g, &v, &err) < 0))
        abort();
    return v;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ids ids = {0}, again = {0};
    struct text_span spans[2];
    struct buf text;
    struct detok d;
    struct err err;
    if (size < 4)
        return 0;
    const char *bytes = (const char *)data + 4;
    size_t n = size - 4;
    spans[0].start = n ? data[0] % (n + 1) : 0;
    spans[0].end = spans[0].start + (n - spans[0].start ? data[1] % (n - spans[0].start + 1) : 0);
    spans[1].start = spans[0].end + (n - spans[0].end ? data[2] % (n - spans[0].end + 1) : 0);
    spans[1].end = n;
    if (vocab_encode(vocab(), bytes, n, data[3] & 1 ? ENCODE_SPECIAL : ENCODE_PLAIN, spans, data[3] >> 1 & 1 ? 2 : 0, &ids, &err) < 0)
        abort();
    buf_init(&text, MEM_OTHER, 1 << 26);
    detok_init(&d, vocab(), 1);
    for (size_t i = 0; i < ids.len; i++)
        if (detok_push(&d, ids.data[i], &text) < 0)
            abort();
    detok_finish(&d, &text);
    /* What came out is clean: the same tokens' text encodes to text that comes out the same. */
    if (vocab_encode(vocab(), buf_str(&text), text.len, ENCODE_PLAIN, NULL, 0, &again, &err) < 0)
        abort();
    struct buf second;
    buf_init(&second, MEM_OTHER, 1 << 26);
    detok_init(&d, vocab(), 1);
    for (size_t i = 0; i < again.len; i++)
        detok_push(&d, again.data[i], &second);
    detok_finish(&d, &second);
    if (second.len != text.len || memcmp(buf_str(&second), buf_str(&text), text.len) != 0)
        abort();
    buf_free(&text);
    buf_free(&second);
    ids_free(&ids);
    ids_free(&again);
    return 0;
}
