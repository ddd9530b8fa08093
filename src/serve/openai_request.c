/* Every integer is range-checked and every type is named; null means "not said" throughout. */
#include "serve/openai_request.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "text/chat.h"

/* The field's value, or NULL when it is absent or null. */
static const json_t *field(const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);
    return json_is_null(value) ? NULL : value;
}

static int read_bool(const json_t *root, const char *name, int *out, struct api_error *e)
{
    const json_t *value = field(root, name);
    if (!value)
        return 0;
    if (!json_is_boolean(value))
        return api_error_field(e, name, "expected true or false");
    *out = json_is_true(value);
    return 0;
}

static int read_int(const json_t *root, const char *name, int64_t low, int64_t high, int64_t *out, struct api_error *e)
{
    const json_t *value = field(root, name);
    if (!value)
        return 0;
    double real = json_is_real(value) ? json_real_value(value) : 0;
    int whole = json_is_integer(value) || (json_is_real(value) && real == floor(real) && fabs(real) < 9e15);
    int64_t n = json_is_integer(value) ? (int64_t)json_integer_value(value) : whole ? (int64_t)real : 0;
    if (!whole)
        return api_error_field(e, name, "expected a whole number");
    if (n < low || n > high)
        return api_error_field(e, name, "%lld is out of range, expected %lld to %lld", (long long)n, (long long)low, (long long)high);
    *out = n;
    return 0;
}

static int read_double(const json_t *root, const char *name, double low, double high, double *out, struct api_error *e)
{
    const json_t *value = field(root, name);
    if (!value)
        return 0;
    double n = json_number_value(value);
    if (!json_is_number(value))
        return api_error_field(e, name, "expected a number");
    if (!(n >= low && n <= high))
        return api_error_field(e, name, "%g is out of range, expected %g to %g", n, low, high);
    *out = n;
    return 0;
}

/* Two names of one thing: both may be given when they agree. */
static int read_repetition_penalty(const json_t *root, double *out, struct api_error *e)
{
    double a = *out, b = *out;
    TRY(read_double(root, "repetition_penalty", 0.01, 100, &a, e));
    TRY(read_double(root, "repeat_penalty", 0.01, 100, &b, e));
    if (field(root, "repetition_penalty") && field(root, "repeat_penalty") && a != b)
        return api_error_field(e, "repeat_penalty", "contradicts repetition_penalty");
    *out = field(root, "repeat_penalty") ? b : a;
    return 0;
}

static int parse_bias_id(const char *key, int32_t n_vocab, int32_t *out)
{
    int64_t id = 0;
    size_t n = strlen(key);
    if (n < 1 || n > 9)
        return -1;
    for (; *key; key++) {
        if (*key < '0' || *key > '9')
            return -1;
        id = id * 10 + (*key - '0');
    }
    *out = (int32_t)id;
    return id < n_vocab ? 0 : -1;
}

static int read_bias(struct openai_request *q, int32_t n_vocab, struct api_error *e)
{
    json_t *bias = (json_t *)field(q->root, "logit_bias");
    size_t n = 0;
    if (!bias)
        return 0;
    if (!json_is_object(bias) || json_object_size(bias) > MAX_BIASES)
        return api_error_field(e, "logit_bias", "expected an object of token id: bias with at most %d entries", MAX_BIASES);
    q->bias = mem_alloc_array(MEM_SERVE, json_object_size(bias) + 1, sizeof *q->bias);
    if (!q->bias) {
        err_set(&e->err, ERR_NO_MEMORY, "out of memory for logit_bias");
        return api_error_from_err(e);
    }
    for (void *it = json_object_iter(bias); it; it = json_object_iter_next(bias, it)) {
        const json_t *value = json_object_iter_value(it);
        double number = json_number_value(value);
        if (parse_bias_id(json_object_iter_key(it), n_vocab, &q->bias[n].id) < 0)
            return api_error_field(e, "logit_bias", "\"%.40s\" is no token id below %d", json_object_iter_key(it), n_vocab);
        if (!json_is_number(value) || !(number >= -100 && number <= 100))
            return api_error_field(e, "logit_bias", "the bias of token %d is not a number from -100 to 100", q->bias[n].id);
        q->bias[n++].bias = number;
    }
    q->sampling.bias = q->bias;
    q->sampling.n_bias = n;
    return 0;
}

static int read_sampling(struct openai_request *q, int32_t n_vocab, struct api_error *e)
{
    struct sample_params *p = &q->sampling;
    const json_t *root = q->root;
    int64_t top_k = p->top_k, last_n = p->repeat_last_n, seed = -1;
    TRY(read_double(root, "temperature", 0, 100, &p->temperature, e));
    TRY(read_double(root, "top_p", 0, 1, &p->top_p, e));
    TRY(read_double(root, "min_p", 0, 1, &p->min_p, e));
    TRY(read_double(root, "typical_p", 0, 1, &p->typical_p, e));
    TRY(read_double(root, "presence_penalty", -100, 100, &p->presence_penalty, e));
    TRY(read_double(root, "frequency_penalty", -100, 100, &p->frequency_penalty, e));
    TRY(read_repetition_penalty(root, &p->repetition_penalty, e));
    TRY(read_int(root, "top_k", -1, INT32_MAX, &top_k, e));
    TRY(read_int(root, "repeat_last_n", -1, INT32_MAX, &last_n, e));
    TRY(read_int(root, "seed", INT64_MIN, INT64_MAX, &seed, e));
    p->top_k = top_k < 0 ? 0 : (int)top_k;
    p->repeat_last_n = (int)last_n;
    if (field(root, "seed") && seed != -1) { /* -1 is "any" elsewhere too */
        p->seed = (uint64_t)seed;
        p->has_seed = 1;
    }
    return read_bias(q, n_vocab, e);
}

static int read_stop(struct openai_request *q, struct api_error *e)
{
    const json_t *stop = field(q->root, "stop");
    size_t n = json_is_array(stop) ? json_array_size(stop) : stop ? 1 : 0;
    if (n > MAX_STOP)
        return api_error_field(e, "stop", "%zu stop strings, at most %d are possible", n, MAX_STOP);
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_is_array(stop) ? json_array_get(stop, i) : stop;
        if (!json_is_text(one))
            return api_error_field(e, "stop", "expected a string or an array of strings");
        if (json_string_length(one) > MAX_STOP_BYTES || strlen(json_string_value(one)) != json_string_length(one))
            return api_error_field(e, "stop", "a stop string is at most %d bytes without NUL", MAX_STOP_BYTES);
        if (json_string_length(one) > 0)
            q->stop[q->n_stop++] = json_string_value(one);
    }
    return 0;
}

/* Both names; the smallest wins. -1 asks for no limit. */
static int read_max_tokens(struct openai_request *q, struct api_error *e)
{
    static const char *const names[] = {"max_tokens", "max_completion_tokens"};
    q->max_tokens = -1;
    for (int i = 0; i < 2; i++) {
        int64_t n = -1;
        TRY(read_int(q->root, names[i], -1, INT64_MAX, &n, e));
        if (n == 0)
            return api_error_field(e, names[i], "0 asks for no answer, expected 1 or more");
        if (n > 0 && (q->max_tokens < 0 || n < q->max_tokens))
            q->max_tokens = n;
    }
    return 0;
}

/* A known field that is not served may only say what happens anyway: absent, null, false, 0, "", [] or {}. */
static int refuse_unserved(const json_t *root, const char *const *names, struct api_error *e)
{
    for (; *names; names++) {
        const json_t *value = field(root, *names);
        int neutral = !value || json_is_false(value) || (json_is_number(value) && json_number_value(value) == 0) || (json_is_text(value) && json_string_length(value) == 0) ||
                      (json_is_array(value) && json_array_size(value) == 0) || (json_is_object(value) && json_object_size(value) == 0);
        if (neutral)
            continue;
        api_error_field(e, *names, "is not supported yet");
        e->code = "unsupported";
        return ERR_UNSUPPORTED;
    }
    return 0;
}

static int unsupported(struct api_error *e, const char *param, const char *what)
{
    api_error_field(e, param, "%s is not supported yet", what);
    e->code = "unsupported";
    return ERR_UNSUPPORTED;
}

static int read_stream(struct openai_request *q, struct api_error *e)
{
    const json_t *options = field(q->root, "stream_options");
    TRY(read_bool(q->root, "stream", &q->stream, e));
    if (!options)
        return 0;
    if (!json_is_object(options))
        return api_error_field(e, "stream_options", "expected an object");
    if (field(options, "include_usage") && !json_is_boolean(field(options, "include_usage")))
        return api_error_field(e, "stream_options.include_usage", "expected true or false");
    q->include_usage = json_is_true(field(options, "include_usage"));
    return 0;
}

static int read_response_format(const json_t *root, struct api_error *e)
{
    const json_t *format = field(root, "response_format"), *type = field(format, "type");
    if (!format)
        return 0;
    if (!json_is_object(format) || !json_is_text(type))
        return api_error_field(e, "response_format", "expected an object with a \"type\"");
    if (strcmp(json_string_value(type), "text") == 0)
        return 0;
    if (strcmp(json_string_value(type), "json_object") == 0 || strcmp(json_string_value(type), "json_schema") == 0)
        return unsupported(e, "response_format", json_string_value(type));
    return api_error_field(e, "response_format", "the type is not text, json_object or json_schema");
}

/* What chat and plain completions have in common. */
static int read_common(struct openai_request *q, int32_t n_vocab, struct api_error *e)
{
    static const char *const unserved[] = {"grammar", "json_schema", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs", "mirostat", "dry_multiplier",
                                           "xtc_probability", "dynatemp_range", "prompt_logprobs", "use_beam_search", "lora", NULL};
    const json_t *model = field(q->root, "model");
    int64_t n = 1;
    if (model && (!json_is_text(model) || json_string_length(model) > 1024))
        return api_error_field(e, "model", "expected a string of at most 1024 bytes");
    q->model = model ? json_string_value(model) : NULL;
    TRY(read_int(q->root, "n", 1, INT32_MAX, &n, e));
    if (n > 1)
        return unsupported(e, "n", "more than one answer a request");
    TRY(read_stream(q, e));
    TRY(read_max_tokens(q, e));
    TRY(read_sampling(q, n_vocab, e));
    TRY(read_stop(q, e));
    TRY(read_response_format(q->root, e));
    return refuse_unserved(q->root, unserved, e);
}

static int check_part(const json_t *part, const char *where, struct api_error *e)
{
    const json_t *type = field(part, "type");
    if (!json_is_object(part) || !json_is_text(type))
        return api_error_field(e, where, "a content part is an object with a \"type\"");
    const char *name = json_string_value(type);
    if (strcmp(name, "text") == 0 || strcmp(name, "refusal") == 0)
        return json_is_text(field(part, name)) ? 0 : api_error_field(e, where, "a part of type \"%s\" has a string \"%s\"", name, name);
    api_error_field(e, where, "content parts of type \"%.40s\" are not supported: this server reads text", name);
    e->code = "unsupported";
    return ERR_UNSUPPORTED;
}

static int check_content(const json_t *message, int may_be_absent, const char *where, struct api_error *e)
{
    const json_t *content = field(message, "content"), *part;
    size_t i;
    if (!content)
        return may_be_absent ? 0 : api_error_field(e, where, "a message has a \"content\", a string or an array of parts");
    if (json_is_text(content))
        return 0;
    if (!json_is_array(content))
        return api_error_field(e, where, "\"content\" is a string or an array of parts");
    json_array_foreach((json_t *)content, i, part)
        TRY(check_part(part, where, e));
    return 0;
}

static int check_calls(const json_t *calls, const char *where, struct api_error *e)
{
    const json_t *call;
    size_t i;
    if (!json_is_array(calls))
        return api_error_field(e, where, "\"tool_calls\" is an array");
    json_array_foreach((json_t *)calls, i, call) {
        const json_t *function = field(call, "function"), *arguments = field(function, "arguments");
        if (!json_is_object(function) || !json_is_text(field(function, "name")))
            return api_error_field(e, where, "a tool call has a \"function\" with a \"name\"");
        if (arguments && !json_is_text(arguments) && !json_is_object(arguments))
            return api_error_field(e, where, "a call's \"arguments\" are JSON text (or an object)");
    }
    return 0;
}

static int check_message(const json_t *message, size_t i, struct api_error *e)
{
    static const char *const texts[] = {"reasoning_content", "reasoning", "name", "tool_call_id"};
    char where[64];
    snprintf(where, sizeof where, "messages[%zu]", i);
    const json_t *role = field(message, "role"), *calls = field(message, "tool_calls");
    if (!json_is_object(message))
        return api_error_field(e, where, "a message is an object");
    if (!json_is_text(role))
        return api_error_field(e, where, "a message has a \"role\", a string");
    int is_assistant = strcmp(json_string_value(role), "assistant") == 0;
    for (size_t k = 0; k < sizeof texts / sizeof *texts; k++)
        if (field(message, texts[k]) && !json_is_text(field(message, texts[k])))
            return api_error_field(e, where, "\"%s\" is a string", texts[k]);
    if (calls)
        TRY(check_calls(calls, where, e));
    return check_content(message, is_assistant, where, e);
}

static int read_messages(struct openai_request *q, struct api_error *e)
{
    const json_t *messages = field(q->root, "messages"), *message;
    size_t i;
    if (!json_is_array(messages))
        return api_error_field(e, "messages", "expected an array of messages");
    if (json_array_size(messages) < 1 || json_array_size(messages) > MAX_MESSAGES)
        return api_error_field(e, "messages", "%zu messages, expected 1 to %d", json_array_size(messages), MAX_MESSAGES);
    json_array_foreach((json_t *)messages, i, message)
        TRY(check_message(message, i, e));
    if (chat_normalise_messages(messages, &q->messages, &e->err) < 0) {
        snprintf(e->param, sizeof e->param, "messages");
        return api_error_from_err(e);
    }
    return 0;
}

static int check_tool(const json_t *tool, size_t i, struct api_error *e)
{
    char where[64];
    snprintf(where, sizeof where, "tools[%zu]", i);
    const json_t *type = field(tool, "type"), *function = field(tool, "function"), *name = field(function, "name"), *parameters = field(function, "parameters");
    if (!json_is_object(tool) || (type && !json_is_text(type)))
        return api_error_field(e, where, "a tool is an object with a \"type\"");
    if (type && strcmp(json_string_value(type), "function") != 0)
        return unsupported(e, where, "a tool that is no function");
    if (!json_is_object(function) || !json_is_text(name))
        return api_error_field(e, where, "a tool has a \"function\" with a \"name\"");
    size_t n = json_string_length(name);
    if (n < 1 || n > 256 || strcspn(json_string_value(name), "<>\n\r\t ") != n)
        return api_error_field(e, where, "a tool's name is 1 to 256 bytes without spaces, '<' or '>'");
    if (parameters && !json_is_object(parameters))
        return api_error_field(e, where, "\"parameters\" is a JSON schema, an object");
    return 0;
}

static int read_tools(struct openai_request *q, struct api_error *e)
{
    const json_t *tools = field(q->root, "tools"), *choice = field(q->root, "tool_choice"), *tool;
    int parallel = 1;
    size_t i;
    if (tools && (!json_is_array(tools) || json_array_size(tools) > MAX_TOOLS))
        return api_error_field(e, "tools", "expected an array of at most %d tools", MAX_TOOLS);
    json_array_foreach((json_t *)tools, i, tool)
        TRY(check_tool(tool, i, e));
    TRY(read_bool(q->root, "parallel_tool_calls", &parallel, e));
    q->one_call = !parallel;
    q->tools = json_array_size(tools) > 0 ? tools : NULL;
    if (!choice)
        return 0;
    const char *word = json_is_text(choice) ? json_string_value(choice) : "";
    if (strcmp(word, "none") == 0)
        q->tools = NULL;
    else if (strcmp(word, "required") == 0)
        return unsupported(e, "tool_choice", "\"required\"");
    else if (json_is_object(choice))
        return unsupported(e, "tool_choice", "a named function");
    else if (strcmp(word, "auto") != 0)
        return api_error_field(e, "tool_choice", "expected \"auto\" or \"none\"");
    return 0;
}

/* One more voice about thinking; two that disagree are an error. */
static int hear(int *said, const char **by, int value, const char *name, struct api_error *e)
{
    if (*said >= 0 && *said != value)
        return api_error_field(e, name, "contradicts %s", *by);
    *said = value;
    *by = name;
    return 0;
}

static int read_effort(const json_t *value, int *out)
{
    static const char *const words[] = {"none", "off", "minimal", "low", "medium", "high", "xhigh", "max"};
    for (int i = 0; i < 8 && json_is_text(value); i++)
        if (strcmp(json_string_value(value), words[i]) == 0) {
            *out = i > 1;
            return 0;
        }
    return -1;
}

static int read_thinking(struct openai_request *q, struct api_error *e)
{
    const json_t *kwargs = field(q->root, "chat_template_kwargs"), *value = field(kwargs, "enable_thinking");
    const char *by = "";
    int on = 0;
    if (kwargs && !json_is_object(kwargs))
        return api_error_field(e, "chat_template_kwargs", "expected an object");
    if (value && !json_is_boolean(value))
        return api_error_field(e, "chat_template_kwargs.enable_thinking", "expected true or false");
    if (value)
        TRY(hear(&q->enable_thinking, &by, json_is_true(value), "chat_template_kwargs.enable_thinking", e));
    if ((value = field(q->root, "enable_thinking")) != NULL) {
        TRY(read_bool(q->root, "enable_thinking", &on, e));
        TRY(hear(&q->enable_thinking, &by, on, "enable_thinking", e));
    }
    if ((value = field(q->root, "think")) != NULL) {
        if (!json_is_boolean(value) && read_effort(value, &on) < 0)
            return api_error_field(e, "think", "expected true, false or a level");
        TRY(hear(&q->enable_thinking, &by, json_is_boolean(value) ? json_is_true(value) : on, "think", e));
    }
    if ((value = field(q->root, "reasoning_effort")) != NULL) {
        if (read_effort(value, &on) < 0)
            return api_error_field(e, "reasoning_effort", "expected none, minimal, low, medium, high, xhigh or max");
        TRY(hear(&q->enable_thinking, &by, on, "reasoning_effort", e));
    }
    q->template_vars = kwargs;
    return 0;
}

static int read_template_vars(const struct openai_request *q, struct api_error *e)
{
    static const char *const reserved[] = {"messages", "tools", "add_generation_prompt"};
    for (size_t i = 0; i < 3; i++)
        if (json_object_get(q->template_vars, reserved[i]))
            return api_error_field(e, "chat_template_kwargs", "\"%s\" cannot be set here", reserved[i]);
    return 0;
}

static int read_chat_logprobs(struct openai_request *q, struct api_error *e)
{
    int on = 0;
    int64_t n = 0;
    TRY(read_bool(q->root, "logprobs", &on, e));
    TRY(read_int(q->root, "top_logprobs", 0, MAX_LOGPROBS, &n, e));
    if (n > 0 && !on)
        return api_error_field(e, "top_logprobs", "needs logprobs: true");
    q->n_logprobs = on ? (int)n : -1;
    return 0;
}

static int parse_root(const char *body, size_t n, const struct sample_params *defaults, struct openai_request *q, struct api_error *e)
{
    *q = (struct openai_request){.enable_thinking = -1, .n_logprobs = -1, .sampling = *defaults};
    *e = (struct api_error){0};
    if (json_parse(body, n, &q->root, &e->err) < 0) {
        api_error_from_err(e);
        if (e->status == 400)
            e->code = "invalid_json";
        return e->err.code;
    }
    if (!json_is_object(q->root)) {
        err_set(&e->err, ERR_INVALID, "the body is not a JSON object");
        return api_error_from_err(e);
    }
    return 0;
}

int openai_parse_chat(const char *body, size_t n, const struct sample_params *defaults, int32_t n_vocab, struct openai_request *q, struct api_error *e)
{
    static const char *const unserved[] = {"functions", "function_call", "audio", "web_search_options", "continue_final_message", "thinking_budget_tokens", "reasoning_budget", NULL};
    TRY(parse_root(body, n, defaults, q, e));
    TRY(read_common(q, n_vocab, e));
    TRY(read_messages(q, e));
    TRY(read_tools(q, e));
    TRY(read_thinking(q, e));
    TRY(read_template_vars(q, e));
    TRY(read_chat_logprobs(q, e));
    return refuse_unserved(q->root, unserved, e);
}

static int read_prompt(struct openai_request *q, struct api_error *e)
{
    const json_t *prompt = field(q->root, "prompt"), *item;
    size_t i;
    if (json_is_array(prompt) && json_is_text(json_array_get(prompt, 0))) {
        if (json_array_size(prompt) > 1)
            return unsupported(e, "prompt", "more than one prompt a request");
        prompt = json_array_get(prompt, 0);
    }
    q->prompt = prompt;
    if (json_is_text(prompt))
        return json_string_length(prompt) ? 0 : api_error_field(e, "prompt", "is empty: there is nothing to continue");
    if (!json_is_array(prompt))
        return api_error_field(e, "prompt", "expected a string or an array of token ids");
    if (json_array_size(prompt) == 0)
        return api_error_field(e, "prompt", "is empty: there is nothing to continue");
    json_array_foreach((json_t *)prompt, i, item)
        if (!json_is_integer(item) || json_integer_value(item) < 0 || json_integer_value(item) > INT32_MAX)
            return api_error_field(e, "prompt", "element %zu is not a token id", i);
    return 0;
}

int openai_parse_completion(const char *body, size_t n, const struct sample_params *defaults, int32_t n_vocab, struct openai_request *q, struct api_error *e)
{
    static const char *const unserved[] = {"echo", "suffix", NULL};
    int64_t n_logprobs = -1, best_of = 1;
    TRY(parse_root(body, n, defaults, q, e));
    TRY(read_common(q, n_vocab, e));
    TRY(read_prompt(q, e));
    TRY(read_int(q->root, "logprobs", 0, MAX_LOGPROBS, &n_logprobs, e));
    TRY(read_int(q->root, "best_of", 1, INT32_MAX, &best_of, e));
    q->n_logprobs = (int)n_logprobs;
    if (best_of > 1)
        return unsupported(e, "best_of", "more than one answer a request");
    return refuse_unserved(q->root, unserved, e);
}

void openai_request_free(struct openai_request *q)
{
    json_decref(q->messages);
    json_decref(q->root);
    mem_free(q->bias);
    *q = (struct openai_request){0};
}

json_t *openai_template_vars(const struct openai_request *q, int thinking)
{
    json_t *vars = q->template_vars ? json_copy((json_t *)q->template_vars) : json_object();
    int on = q->enable_thinking >= 0 ? q->enable_thinking : thinking;
    int failed = json_object_size(vars) != json_object_size(q->template_vars); /* a copy in too little memory has fewer */
    failed |= json_object_set(vars, "messages", q->messages) < 0 || json_object_set_new(vars, "add_generation_prompt", json_true()) < 0;
    if (q->tools)
        failed |= json_object_set(vars, "tools", (json_t *)q->tools) < 0;
    if (on >= 0)
        failed |= json_object_set_new(vars, "enable_thinking", json_boolean(on)) < 0;
    if (!failed)
        return vars;
    json_decref(vars);
    return NULL;
}
