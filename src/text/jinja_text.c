/* Filters and methods over strings. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/json.h"
#include "base/utf8.h"
#include "text/jinja_eval.h"
#include "text/jinja_limits.h"
#include "text/space.h"

static int is_cased(uint32_t c)
{
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LL || k == UTF8PROC_CATEGORY_LT;
}

static void add_point(struct sbuf *b, uint32_t c, int untrusted)
{
    char bytes[4];
    int n = utf8_encode(c, bytes);
    sbuf_add(b, bytes, (size_t)n, untrusted);
}

/* The two mappings to more than one code point that people meet. */
static void add_cased(struct sbuf *b, uint32_t c, int upper, int untrusted)
{
    if (upper && c == 0xDF) {
        sbuf_add(b, "SS", 2, untrusted);
    } else if (!upper && c == 0x130) {
        sbuf_add(b, "i\xCC\x87", 3, untrusted);
    } else {
        add_point(b, (uint32_t)(upper ? utf8proc_toupper((utf8proc_int32_t)c) : utf8proc_tolower((utf8proc_int32_t)c)), untrusted);
    }
}

struct str change_case(struct interp *in, struct str s, int (*upper_at)(size_t point, uint32_t before))
{
    struct sbuf *b = text_begin(in);
    int untrusted = str_tainted(s);
    uint32_t before = 0;
    size_t point = 0;
    for (size_t i = 0; i < s.len; point++) {
        uint32_t c = 0xFFFD;
        int n = utf8_decode(s.data + i, s.len - i, &c);
        int upper = upper_at(point, before);
        if (upper < 0)
            add_point(b, c, untrusted);
        else
            add_cased(b, c, upper, untrusted);
        before = c;
        i += n > 0 ? (size_t)n : 1;
    }
    interp_step(in, (int64_t)(s.len / 16));
    return text_end(in);
}

static int always_upper(size_t point, uint32_t before)
{
    (void)point;
    (void)before;
    return 1;
}

static int always_lower(size_t point, uint32_t before)
{
    (void)point;
    (void)before;
    return 0;
}

static int first_upper(size_t point, uint32_t before)
{
    (void)before;
    return point == 0;
}

/* str.title: upper behind what is no letter. */
static int title_method(size_t point, uint32_t before)
{
    return point == 0 || !is_cased(before);
}

/* The title filter: upper behind white space, hyphens and opening brackets. */
static int title_filter(size_t point, uint32_t before)
{
    return point == 0 || is_python_space(before) || before == '-' || before == '(' || before == '{' || before == '[' || before == '<';
}

struct str to_upper(struct interp *in, struct str s)
{
    return change_case(in, s, always_upper);
}

struct str to_lower(struct interp *in, struct str s)
{
    return change_case(in, s, always_lower);
}

/* Whether the code point at data[0..n) is one of set. */
static int in_set(struct str set, const char *data, size_t n)
{
    for (size_t i = 0; i + n <= set.len;) {
        uint32_t c;
        int length = utf8_decode(set.data + i, set.len - i, &c);
        if (length == (int)n && memcmp(set.data + i, data, n) == 0)
            return 1;
        i += length > 0 ? (size_t)length : 1;
    }
    return 0;
}

static struct value strip(struct interp *in, struct str s, struct value chars, int left, int right)
{
    size_t start = 0, end = s.len;
    if (chars.type == V_NONE) {
        strip_space(s.data, &start, &end, left, right);
        return value_str(str_sub(&in->arena, s, start, end));
    }
    struct str set = need_str(in, chars, "strip");
    while (left && start < end) {
        uint32_t c;
        int n = utf8_decode(s.data + start, end - start, &c);
        if (n <= 0 || !in_set(set, s.data + start, (size_t)n))
            break;
        start += (size_t)n;
    }
    while (right && end > start) {
        size_t at = end - 1;
        while (at > start && ((unsigned char)s.data[at] & 0xC0) == 0x80)
            at--;
        if (!in_set(set, s.data + at, end - at))
            break;
        end = at;
    }
    return value_str(str_sub(&in->arena, s, start, end));
}

static struct str replace(struct interp *in, struct str s, struct str from, struct str to, int64_t count)
{
    struct sbuf *b = text_begin(in);
    size_t at = 0;
    while (count != 0 && at <= s.len) {
        if (from.len == 0) { /* between all characters, as Python */
            sbuf_add_str(b, to, 0, to.len);
            size_t next = at + 1;
            while (next < s.len && ((unsigned char)s.data[next] & 0xC0) == 0x80)
                next++;
            if (at >= s.len)
                break;
            sbuf_add_str(b, s, at, next);
            at = next;
        } else {
            const char *hit = s.len - at >= from.len ? memmem(s.data + at, s.len - at, from.data, from.len) : NULL;
            if (!hit)
                break;
            sbuf_add_str(b, s, at, (size_t)(hit - s.data));
            sbuf_add_str(b, to, 0, to.len);
            at = (size_t)(hit - s.data) + from.len;
        }
        interp_step(in, 1);
        count--;
    }
    if (at < s.len)
        sbuf_add_str(b, s, at, s.len);
    return text_end(in);
}

static struct value filter_trim(struct interp *in, struct value v, const struct args *a)
{
    return strip(in, to_str(in, v), arg(a, 0, "chars", value_none()), 1, 1);
}

static struct value filter_upper(struct interp *in, struct value v, const struct args *a)
{
    (void)a;
    return value_str(to_upper(in, to_str(in, v)));
}

static struct value filter_lower(struct interp *in, struct value v, const struct args *a)
{
    (void)a;
    return value_str(to_lower(in, to_str(in, v)));
}

static struct value filter_title(struct interp *in, struct value v, const struct args *a)
{
    (void)a;
    return value_str(change_case(in, to_str(in, v), title_filter));
}

static struct value filter_capitalize(struct interp *in, struct value v, const struct args *a)
{
    (void)a;
    return value_str(change_case(in, to_str(in, v), first_upper));
}

static struct value filter_string(struct interp *in, struct value v, const struct args *a)
{
    (void)a;
    return value_str(to_str(in, v));
}

static struct value filter_replace(struct interp *in, struct value v, const struct args *a)
{
    struct value count = arg(a, 2, "count", value_none());
    return value_str(replace(in, to_str(in, v), to_str(in, arg(a, 0, "old", value_none())), to_str(in, arg(a, 1, "new", value_none())),
                             count.type == V_NONE ? -1 : need_int(in, count, "replace")));
}

/* A number at the start of text in a base; 0 when the whole text is none. */
static int parse_int(struct str s, int base, int64_t *out)
{
    char text[80];
    size_t start = 0, end = s.len, n = 0;
    strip_space(s.data, &start, &end, 1, 1);
    for (size_t i = start; i < end && n + 1 < sizeof text; i++)
        if (s.data[i] != '_')
            text[n++] = s.data[i];
    text[n] = 0;
    char *rest;
    if (n == 0 || n + 1 >= sizeof text)
        return 0;
    const char *from = text;
    if (base == 2 && n > 2 && text[0] == '0' && (text[1] | 32) == 'b')
        from += 2;
    if (base == 8 && n > 2 && text[0] == '0' && (text[1] | 32) == 'o')
        from += 2;
    *out = strtoll(from, &rest, base);
    return rest != from && *rest == 0;
}

static int parse_float(struct str s, double *out)
{
    char text[400], *rest;
    size_t start = 0, end = s.len;
    strip_space(s.data, &start, &end, 1, 1);
    if (end == start || end - start >= sizeof text)
        return 0;
    memcpy(text, s.data + start, end - start);
    text[end - start] = 0;
    if (strpbrk(text, "xXpP"))
        return 0;
    *out = strtod(text, &rest);
    return *rest == 0;
}

static struct value filter_int(struct interp *in, struct value v, const struct args *a)
{
    struct value otherwise = arg(a, 0, "default", value_int(0));
    int64_t base = need_int(in, arg(a, 1, "base", value_int(10)), "int"), i;
    double f;
    if (v.type == V_INT || v.type == V_BOOL)
        return value_int(v.i);
    if (v.type == V_STRING && base >= 2 && base <= 36 && parse_int(v.s, (int)base, &i))
        return value_int(i);
    if (v.type == V_FLOAT || (v.type == V_STRING && parse_float(v.s, &f))) {
        f = v.type == V_FLOAT ? v.f : f;
        if (isfinite(f) && fabs(f) < 9e18)
            return value_int((int64_t)f);
    }
    return otherwise;
}

static struct value filter_float(struct interp *in, struct value v, const struct args *a)
{
    double f;
    (void)in;
    if (value_is_number(v))
        return value_float(value_as_float(v));
    if (v.type == V_STRING && parse_float(v.s, &f))
        return value_float(f);
    return arg(a, 0, "default", value_float(0));
}

static struct value filter_indent(struct interp *in, struct value v, const struct args *a)
{
    struct value width = arg(a, 0, "width", value_int(4));
    int first = value_truth(arg(a, 1, "first", value_bool(0))), blank = value_truth(arg(a, 2, "blank", value_bool(0)));
    struct str s = to_str(in, v);
    char spaces[256];
    memset(spaces, ' ', sizeof spaces);
    struct str pad = width.type == V_STRING ? width.s : str_of(spaces, 0);
    if (width.type != V_STRING) {
        int64_t n = need_int(in, width, "indent");
        pad.len = n < 0 ? 0 : n > 255 ? 255 : (size_t)n;
    }
    struct sbuf *b = text_begin(in);
    for (size_t at = 0, line = 0;; line++) {
        const char *newline = at < s.len ? memchr(s.data + at, '\n', s.len - at) : NULL;
        size_t end = newline ? (size_t)(newline - s.data) : s.len;
        if ((line > 0 || first) && (blank || end > at || (line == 0 && first)))
            sbuf_add_str(b, pad, 0, pad.len);
        sbuf_add_str(b, s, at, end);
        if (!newline)
            break;
        sbuf_add_text(b, "\n");
        at = end + 1;
        interp_step(in, 1);
    }
    return value_str(text_end(in));
}

static struct value filter_wordcount(struct interp *in, struct value v, const struct args *a)
{
    struct str s = to_str(in, v);
    int64_t words = 0;
    int inside = 0;
    (void)a;
    for (size_t i = 0; i < s.len;) {
        uint32_t c = ' ';
        int n = utf8_decode(s.data + i, s.len - i, &c);
        utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
        int word = c == '_' || (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO) || (k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO);
        words += word && !inside;
        inside = word;
        i += n > 0 ? (size_t)n : 1;
    }
    return value_int(words);
}

static struct value filter_escape(struct interp *in, struct value v, const struct args *a)
{
    static const char special[] = "&<>\"'";
    static const char *const names[] = {"&amp;", "&lt;", "&gt;", "&#34;", "&#39;"};
    struct str s = to_str(in, v);
    struct sbuf *b = text_begin(in);
    (void)a;
    for (size_t i = 0; i < s.len; i++) {
        const char *hit = s.data[i] ? strchr(special, s.data[i]) : NULL;
        if (hit)
            sbuf_add_text(b, names[hit - special]);
        else
            sbuf_add_str(b, s, i, i + 1);
    }
    return value_str(text_end(in));
}

static struct value filter_urlencode(struct interp *in, struct value v, const struct args *a)
{
    struct str s = to_str(in, v);
    struct sbuf *b = text_begin(in);
    (void)a;
    for (size_t i = 0; i < s.len; i++) {
        unsigned char c = (unsigned char)s.data[i];
        if ((c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') || strchr("_.-~/", c ? c : ' '))
            sbuf_add_str(b, s, i, i + 1);
        else
            buf_addf(&b->text, "%%%02X", c);
    }
    return value_str(text_end(in));
}

static struct value filter_truncate(struct interp *in, struct value v, const struct args *a)
{
    struct str s = to_str(in, v), end = to_str(in, arg(a, 2, "end", value_str(str_of("...", 3))));
    int64_t length = need_int(in, arg(a, 0, "length", value_int(255)), "truncate"), leeway = need_int(in, arg(a, 3, "leeway", value_int(5)), "truncate");
    int kill = value_truth(arg(a, 1, "killwords", value_bool(0)));
    int64_t n = (int64_t)utf8_length(s), room = length - (int64_t)utf8_length(end);
    if (n <= length + leeway)
        return value_str(s);
    if (room < 0)
        interp_fail(in, JINJA_RUNTIME, "truncate expects a length of at least %zu", utf8_length(end));
    size_t cut = utf8_offset(s, (size_t)room);
    for (size_t i = cut; !kill && i-- > 0;)
        if (s.data[i] == ' ') {
            cut = i;
            break;
        }
    struct sbuf *b = text_begin(in);
    sbuf_add_str(b, s, 0, cut);
    sbuf_add_str(b, end, 0, end.len);
    return value_str(text_end(in));
}

static struct value filter_format(struct interp *in, struct value v, const struct args *a)
{
    struct value tuple = value_list(&in->arena, V_TUPLE, a->n);
    for (size_t i = 0; i < a->n; i++)
        list_add(&in->arena, tuple.list, a->positional[i]);
    if (!a->n && a->n_named) {
        tuple = value_dict(&in->arena, V_DICT);
        for (size_t i = 0; i < a->n_named; i++)
            dict_set(&in->arena, tuple.dict, value_str(a->names[i]), a->named[i]);
    }
    return format_percent(in, to_str(in, v), tuple);
}

static struct value pad(struct interp *in, struct str s, int64_t width, struct str fill, int left_share)
{
    int64_t n = width - (int64_t)utf8_length(s);
    if (n <= 0)
        return value_str(s);
    if (n > JINJA_MAX_OUTPUT || fill.len == 0)
        interp_fail(in, JINJA_RUNTIME, "a field is too wide");
    int64_t left = left_share == 2 ? n : left_share == 0 ? 0 : n / 2;
    struct sbuf *b = text_begin(in);
    interp_step(in, n / 16);
    for (int64_t i = 0; i < n; i++) {
        if (i == left)
            sbuf_add_str(b, s, 0, s.len);
        sbuf_add_str(b, fill, 0, fill.len);
    }
    if (left == n)
        sbuf_add_str(b, s, 0, s.len);
    return value_str(text_end(in));
}

static struct value filter_center(struct interp *in, struct value v, const struct args *a)
{
    return pad(in, to_str(in, v), need_int(in, arg(a, 0, "width", value_int(80)), "center"), str_of(" ", 1), 1);
}

const struct filter_entry text_filters[] = {
    {"trim", filter_trim}, {"upper", filter_upper}, {"lower", filter_lower}, {"title", filter_title}, {"capitalize", filter_capitalize}, {"string", filter_string},
    {"safe", filter_string}, {"replace", filter_replace}, {"int", filter_int}, {"float", filter_float}, {"indent", filter_indent}, {"wordcount", filter_wordcount},
    {"escape", filter_escape}, {"e", filter_escape}, {"forceescape", filter_escape}, {"urlencode", filter_urlencode}, {"truncate", filter_truncate},
    {"format", filter_format}, {"center", filter_center}, {NULL, NULL},
};

/* --- methods --- */

static struct value method_strip(struct interp *in, struct value self, const struct args *a)
{
    return strip(in, self.s, arg(a, 0, NULL, value_none()), 1, 1);
}

static struct value method_lstrip(struct interp *in, struct value self, const struct args *a)
{
    return strip(in, self.s, arg(a, 0, NULL, value_none()), 1, 0);
}

static struct value method_rstrip(struct interp *in, struct value self, const struct args *a)
{
    return strip(in, self.s, arg(a, 0, NULL, value_none()), 0, 1);
}

static void split_space(struct interp *in, struct str s, int64_t max, int from_right, struct list *out)
{
    size_t start = 0, end = s.len;
    strip_space(s.data, &start, &end, 1, 1);
    if (from_right && max >= 0) { /* few enough parts: split all, join what is too many */
        struct list *all = value_list(&in->arena, V_LIST, 0).list;
        split_space(in, s, -1, 0, all);
        size_t keep = (size_t)max < all->n ? (size_t)max : all->n;
        if (all->n > keep) {
            struct str last = all->items[all->n - keep - 1].s;
            list_add(&in->arena, out, value_str(str_sub(&in->arena, s, start, (size_t)(last.data - s.data) + last.len)));
        }
        for (size_t i = all->n - keep; i < all->n; i++)
            list_add(&in->arena, out, all->items[i]);
        return;
    }
    for (int64_t n = 0; start < end; n++) {
        size_t stop = start, length;
        while (stop < end && !space_length(s.data + stop, end - stop))
            stop++;
        if (max >= 0 && n >= max)
            stop = end;
        list_add(&in->arena, out, value_str(str_sub(&in->arena, s, start, stop)));
        for (start = stop; start < end && (length = space_length(s.data + start, end - start));)
            start += length;
        interp_step(in, 1);
    }
}

static void split_at(struct interp *in, struct str s, struct str by, int64_t max, struct list *out)
{
    size_t at = 0;
    for (int64_t n = 0; max < 0 || n < max; n++) {
        const char *hit = s.len - at >= by.len ? memmem(s.data + at, s.len - at, by.data, by.len) : NULL;
        if (!hit)
            break;
        list_add(&in->arena, out, value_str(str_sub(&in->arena, s, at, (size_t)(hit - s.data))));
        at = (size_t)(hit - s.data) + by.len;
        interp_step(in, 1);
    }
    list_add(&in->arena, out, value_str(str_sub(&in->arena, s, at, s.len)));
}

/* The last `max` separators only. */
static void split_at_right(struct interp *in, struct str s, struct str by, int64_t max, struct list *out)
{
    struct list *all = value_list(&in->arena, V_LIST, 0).list;
    split_at(in, s, by, -1, all);
    size_t keep = max < 0 || (size_t)max + 1 >= all->n ? all->n : (size_t)max;
    if (keep < all->n) {
        struct str last = all->items[all->n - keep - 1].s;
        list_add(&in->arena, out, value_str(str_sub(&in->arena, s, 0, (size_t)(last.data - s.data) + last.len)));
    }
    for (size_t i = all->n - keep; i < all->n; i++)
        list_add(&in->arena, out, all->items[i]);
}

static struct value split(struct interp *in, struct str s, const struct args *a, int from_right)
{
    struct value by = arg(a, 0, "sep", value_none()), out = value_list(&in->arena, V_LIST, 0);
    int64_t max = need_int(in, arg(a, 1, "maxsplit", value_int(-1)), "split");
    if (by.type == V_NONE) {
        split_space(in, s, max, from_right, out.list);
        return out;
    }
    struct str separator = need_str(in, by, "split");
    if (separator.len == 0)
        interp_fail(in, JINJA_RUNTIME, "empty separator");
    if (from_right)
        split_at_right(in, s, separator, max, out.list);
    else
        split_at(in, s, separator, max, out.list);
    return out;
}

static struct value method_split(struct interp *in, struct value self, const struct args *a)
{
    return split(in, self.s, a, 0);
}

static struct value method_rsplit(struct interp *in, struct value self, const struct args *a)
{
    return split(in, self.s, a, 1);
}

static struct value method_splitlines(struct interp *in, struct value self, const struct args *a)
{
    struct value out = value_list(&in->arena, V_LIST, 0);
    int keep = value_truth(arg(a, 0, "keepends", value_bool(0)));
    for (size_t at = 0; at < self.s.len;) {
        size_t end = at;
        while (end < self.s.len && self.s.data[end] != '\n' && self.s.data[end] != '\r')
            end++;
        size_t next = end + (end < self.s.len);
        next += next < self.s.len && self.s.data[end] == '\r' && self.s.data[next] == '\n';
        list_add(&in->arena, out.list, value_str(str_sub(&in->arena, self.s, at, keep ? next : end)));
        at = next;
    }
    return out;
}

/* startswith and endswith, with one text or a tuple of them. */
static int has_end(struct interp *in, struct str s, struct value what, int at_end)
{
    if (what.type == V_TUPLE) {
        for (size_t i = 0; i < what.list->n; i++)
            if (has_end(in, s, what.list->items[i], at_end))
                return 1;
        return 0;
    }
    struct str part = need_str(in, what, at_end ? "endswith" : "startswith");
    return part.len <= s.len && memcmp(at_end ? s.data + s.len - part.len : s.data, part.data, part.len) == 0;
}

static struct value method_startswith(struct interp *in, struct value self, const struct args *a)
{
    return value_bool(has_end(in, self.s, arg(a, 0, NULL, value_none()), 0));
}

static struct value method_endswith(struct interp *in, struct value self, const struct args *a)
{
    return value_bool(has_end(in, self.s, arg(a, 0, NULL, value_none()), 1));
}

static struct value method_title(struct interp *in, struct value self, const struct args *a)
{
    (void)a;
    return value_str(change_case(in, self.s, title_method));
}

static struct value method_replace(struct interp *in, struct value self, const struct args *a)
{
    return value_str(replace(in, self.s, need_str(in, arg(a, 0, NULL, value_none()), "replace"), need_str(in, arg(a, 1, NULL, value_none()), "replace"),
                             need_int(in, arg(a, 2, "count", value_int(-1)), "replace")));
}

static int64_t find_from(struct str s, struct str what, int from_right)
{
    const char *hit = NULL;
    if (!from_right) {
        hit = what.len == 0 ? s.data : memmem(s.data, s.len, what.data, what.len);
    } else {
        for (size_t i = s.len >= what.len ? s.len - what.len + 1 : 0; i-- > 0 && !hit;)
            hit = memcmp(s.data + i, what.data, what.len) == 0 ? s.data + i : NULL;
    }
    return hit ? (int64_t)utf8_length(str_of(s.data, (size_t)(hit - s.data))) : -1;
}

static struct value method_find(struct interp *in, struct value self, const struct args *a)
{
    return value_int(find_from(self.s, need_str(in, arg(a, 0, NULL, value_none()), "find"), 0));
}

static struct value method_rfind(struct interp *in, struct value self, const struct args *a)
{
    return value_int(find_from(self.s, need_str(in, arg(a, 0, NULL, value_none()), "rfind"), 1));
}

static struct value method_index(struct interp *in, struct value self, const struct args *a)
{
    int64_t i = find_from(self.s, need_str(in, arg(a, 0, NULL, value_none()), "index"), 0);
    if (i < 0)
        interp_fail(in, JINJA_RUNTIME, "substring not found");
    return value_int(i);
}

static struct value method_count(struct interp *in, struct value self, const struct args *a)
{
    struct str what = need_str(in, arg(a, 0, NULL, value_none()), "count");
    int64_t n = 0;
    if (what.len == 0)
        return value_int((int64_t)utf8_length(self.s) + 1);
    for (const char *at = self.s.data, *end = at + self.s.len, *hit; (hit = memmem(at, (size_t)(end - at), what.data, what.len)); at = hit + what.len)
        n++;
    return value_int(n);
}

static struct value method_join(struct interp *in, struct value self, const struct args *a)
{
    struct list *items = iterate(in, arg(a, 0, NULL, value_none()));
    struct sbuf *b = text_begin(in);
    for (size_t i = 0; i < items->n; i++) {
        struct str s = need_str(in, items->items[i], "join");
        if (i)
            sbuf_add_str(b, self.s, 0, self.s.len);
        sbuf_add_str(b, s, 0, s.len);
        interp_step(in, 1);
    }
    return value_str(text_end(in));
}

/* Whether all characters are of a kind, and there is one. */
static struct value all_are(struct str s, int (*is)(uint32_t c))
{
    for (size_t i = 0; i < s.len;) {
        uint32_t c = 0xFFFD;
        int n = utf8_decode(s.data + i, s.len - i, &c);
        if (!is(c))
            return value_bool(0);
        i += n > 0 ? (size_t)n : 1;
    }
    return value_bool(s.len > 0);
}

static int is_letter(uint32_t c)
{
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

static int is_decimal(uint32_t c)
{
    return utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_ND;
}

static int is_alphanumeric(uint32_t c)
{
    return is_letter(c) || is_decimal(c);
}

static struct value method_isdigit(struct interp *in, struct value self, const struct args *a)
{
    (void)in;
    (void)a;
    return all_are(self.s, is_decimal);
}

static struct value method_isalpha(struct interp *in, struct value self, const struct args *a)
{
    (void)in;
    (void)a;
    return all_are(self.s, is_letter);
}

static struct value method_isalnum(struct interp *in, struct value self, const struct args *a)
{
    (void)in;
    (void)a;
    return all_are(self.s, is_alphanumeric);
}

static struct value method_isspace(struct interp *in, struct value self, const struct args *a)
{
    (void)in;
    (void)a;
    return all_are(self.s, is_python_space);
}

static struct value is_case(struct str s, utf8proc_category_t wanted)
{
    int some = 0;
    for (size_t i = 0; i < s.len;) {
        uint32_t c = 0xFFFD;
        int n = utf8_decode(s.data + i, s.len - i, &c);
        if (is_cased(c) && utf8proc_category((utf8proc_int32_t)c) != wanted)
            return value_bool(0);
        some |= is_cased(c);
        i += n > 0 ? (size_t)n : 1;
    }
    return value_bool(some);
}

static struct value method_isupper(struct interp *in, struct value self, const struct args *a)
{
    (void)in;
    (void)a;
    return is_case(self.s, UTF8PROC_CATEGORY_LU);
}

static struct value method_islower(struct interp *in, struct value self, const struct args *a)
{
    (void)in;
    (void)a;
    return is_case(self.s, UTF8PROC_CATEGORY_LL);
}

static struct value method_format(struct interp *in, struct value self, const struct args *a)
{
    return format_braces(in, self.s, a);
}

static struct value method_pad(struct interp *in, struct value self, const struct args *a, int left_share)
{
    return pad(in, self.s, need_int(in, arg(a, 0, NULL, value_none()), "width"), to_str(in, arg(a, 1, NULL, value_str(str_of(" ", 1)))), left_share);
}

static struct value method_ljust(struct interp *in, struct value self, const struct args *a)
{
    return method_pad(in, self, a, 0);
}

static struct value method_rjust(struct interp *in, struct value self, const struct args *a)
{
    return method_pad(in, self, a, 2);
}

static struct value method_center(struct interp *in, struct value self, const struct args *a)
{
    return method_pad(in, self, a, 1);
}

static struct value method_zfill(struct interp *in, struct value self, const struct args *a)
{
    return pad(in, self.s, need_int(in, arg(a, 0, NULL, value_none()), "zfill"), str_of("0", 1), 2);
}

static struct value remove_end(struct interp *in, struct value self, const struct args *a, int at_end)
{
    struct value part = arg(a, 0, NULL, value_none());
    if (!has_end(in, self.s, part, at_end))
        return self;
    return value_str(at_end ? str_sub(&in->arena, self.s, 0, self.s.len - part.s.len) : str_sub(&in->arena, self.s, part.s.len, self.s.len));
}

static struct value method_removeprefix(struct interp *in, struct value self, const struct args *a)
{
    return remove_end(in, self, a, 0);
}

static struct value method_removesuffix(struct interp *in, struct value self, const struct args *a)
{
    return remove_end(in, self, a, 1);
}

const struct filter_entry string_methods[] = {
    {"strip", method_strip}, {"lstrip", method_lstrip}, {"rstrip", method_rstrip}, {"split", method_split}, {"rsplit", method_rsplit}, {"splitlines", method_splitlines},
    {"startswith", method_startswith}, {"endswith", method_endswith}, {"upper", filter_upper}, {"lower", filter_lower}, {"casefold", filter_lower},
    {"title", method_title}, {"capitalize", filter_capitalize}, {"replace", method_replace}, {"find", method_find}, {"rfind", method_rfind}, {"index", method_index},
    {"count", method_count}, {"join", method_join}, {"isdigit", method_isdigit}, {"isdecimal", method_isdigit}, {"isnumeric", method_isdigit},
    {"isalpha", method_isalpha}, {"isalnum", method_isalnum}, {"isspace", method_isspace}, {"isupper", method_isupper}, {"islower", method_islower},
    {"format", method_format}, {"ljust", method_ljust}, {"rjust", method_rjust}, {"center", method_center}, {"zfill", method_zfill},
    {"removeprefix", method_removeprefix}, {"removesuffix", method_removesuffix}, {NULL, NULL},
};
