/* The one table of options: parsing, --help, the manual page and the server's report of its configuration read it. */
#include "cli/cli.h"
#include "engine/capacity.h"

#define GENERATING (VERB_RUN | VERB_CHAT)
#define COMPUTING (VERB_RUN | VERB_CHAT | VERB_SERVE | VERB_BENCH | VERB_LOGITS | VERB_PERPLEXITY | VERB_GENERATE)
#define SAMPLING (VERB_RUN | VERB_CHAT | VERB_SERVE)
#define REPORTING (VERB_ALL & ~VERB_HELP)

#define MAX_CONTEXT 2147483647.0

const struct opt_spec cli_options[N_OPTIONS] = {
    [O_HELP] = {"help", 'h', OPT_FLAG, 0, 0, NULL, NULL, VERB_ALL, NULL, "show this page"},
    [O_VERSION] = {"version", 'V', OPT_FLAG, 0, 0, NULL, NULL, VERB_HELP, NULL, "print the version"},
    [O_JSON] = {"json", 0, OPT_FLAG, 0, 0, NULL, NULL, REPORTING, NULL, "one JSON document on standard output; a failure is one too"},
    [O_VERBOSE] = {"verbose", 'v', OPT_FLAG, 0, 0, NULL, NULL, VERB_ALL, NULL, "more words on standard error: tokens, rates, memory"},
    [O_QUIET] = {"quiet", 'q', OPT_FLAG, 0, 0, NULL, NULL, VERB_ALL, NULL, "only warnings and errors on standard error"},
    [O_MAN] = {"man", 0, OPT_FLAG, 0, 0, NULL, NULL, VERB_HELP, NULL, "print the manual page as roff"},

    [O_HOST] = {"host", 0, OPT_STRING, 0, 0, NULL, "127.0.0.1", VERB_SERVE, "ADDRESS", "address to listen on"},
    [O_PORT] = {"port", 'p', OPT_INT, 0, 65535, NULL, "8080", VERB_SERVE, "N", "port to listen on; 0 picks a free one and prints it"},
    [O_PARALLEL] = {"parallel", 0, OPT_INT, 1, CAPACITY_MAX_SLOTS, NULL, "auto: 4, or fewer where their states do not fit", VERB_SERVE | VERB_PLAN, "N", "sequences decoded together"},
    [O_API_KEY] = {"api-key", 0, OPT_STRING, 0, 0, NULL, "none", VERB_SERVE, "KEY",
                   "key that clients must send; without one only loopback Host headers are served. Other users of the machine see it in the process list: prefer --api-key-file"},
    [O_API_KEY_FILE] = {"api-key-file", 0, OPT_STRING, 0, 0, NULL, "none", VERB_SERVE, "FILE", "file whose first line is the key"},
    [O_CORS] = {"cors", 0, OPT_STRING, 0, 0, NULL, "off", VERB_SERVE, "ORIGIN", "web origin whose pages may call this server"},
    [O_DRAIN_TIMEOUT] = {"drain-timeout", 0, OPT_INT, 0, 86400, NULL, "30", VERB_SERVE, "S", "seconds that running requests get after SIGTERM or SIGINT"},
    [O_NO_METRICS] = {"no-metrics", 0, OPT_FLAG, 0, 0, NULL, NULL, VERB_SERVE, NULL, "do not mount /metrics"},
    [O_ALIAS] = {"alias", 0, OPT_STRING, 0, 0, NULL, "the file's general.name", VERB_SERVE, "NAME", "model id in /v1/models"},
    [O_SESSION_DIR] = {"session-dir", 0, OPT_STRING, 0, 0, NULL, "none", VERB_SERVE, "DIR", "folder where conversations are kept, so that they survive a restart; others must not be able to write there"},
    [O_SESSION_BUDGET] = {"session-budget", 0, OPT_SIZE, 1 << 20, 0, NULL, "8GiB", VERB_SERVE, "SIZE", "bytes that --session-dir may hold: what was not used for longest goes first"},
    [O_LIST_DEVICES] = {"list-devices", 0, OPT_FLAG, 0, 0, NULL, NULL, VERB_SERVE | VERB_RUN | VERB_CHAT | VERB_BENCH, NULL, "print the devices and exit"},

    [O_CONTEXT_LENGTH] = {"context-length", 'c', OPT_INT, 1, MAX_CONTEXT, NULL, "the largest that fits, up to the model's own", COMPUTING | VERB_PLAN, "N",
                          "served context in tokens"},
    [O_MEMORY_LIMIT] = {"memory-limit", 0, OPT_SIZE, 1, 0, NULL, "what is free", COMPUTING | VERB_PLAN, "SIZE", "bytes that model work may take in all, as 512M or 8GiB"},
    [O_CACHE_TYPE] = {"cache-type", 0, OPT_CHOICE, 0, 0, "auto|f32|f16|q8_0", "auto: f32 where it fits, else f16", COMPUTING | VERB_PLAN, NULL,
                      "how cached keys and values are kept; q8_0 is the smallest and the least exact"},
    [O_DEBUG] = {"debug", 0, OPT_LIST, 0, 0, NULL, "none", VERB_RUN | VERB_CHAT | VERB_SERVE, "FAULT=N",
                 "make memory run out once the model is ready: alloc-ceiling=SIZE more in all, alloc-fail-above=SIZE at once, alloc-fail-nth=N"},
    [O_THREADS] = {"threads", 't', OPT_INT, 1, 1024, NULL, "physical cores this process may use", COMPUTING | VERB_PLAN, "N", "compute threads"},
    [O_CPU_RUNG] = {"cpu-rung", 0, OPT_STRING, 0, 0, NULL, "the best this machine runs", COMPUTING, "NAME", "instruction set of the kernels: see `apr devices`"},
    [O_EXACT] = {"exact", 0, OPT_FLAG, 0, 0, NULL, NULL, COMPUTING, NULL, "f32 activations everywhere: slower, the reference arithmetic"},
    [O_BACKEND] = {"backend", 0, OPT_CHOICE, 0, 0, "cpu|cuda", "the best there is", COMPUTING, NULL, "device, asked for by name"},
    [O_GPU_LAYERS] = {"gpu-layers", 0, OPT_INT, 0, 512, "auto|all", "unset", COMPUTING, "N|auto|all", "layers on the GPU, all or nothing: 0 is the CPU"},
    [O_GPU] = {"gpu", 0, OPT_FLAG, 0, 0, NULL, NULL, COMPUTING, NULL, "the same as --gpu-layers all"},
    [O_NO_GPU] = {"no-gpu", 0, OPT_FLAG, 0, 0, NULL, NULL, COMPUTING, NULL, "use the CPU, whatever else is asked"},

    [O_TEMPERATURE] = {"temperature", 0, OPT_FLOAT, 0, 100, NULL, "the file's, else 1", SAMPLING, "F", "0 is greedy: always the likeliest token"},
    [O_TOP_K] = {"top-k", 0, OPT_INT, 0, 1000000, NULL, "the file's, else 0", SAMPLING, "N", "keep the N likeliest tokens; 0 is off"},
    [O_TOP_P] = {"top-p", 0, OPT_FLOAT, 0, 1, NULL, "the file's, else 1", SAMPLING, "F", "keep the likeliest tokens that reach this probability together"},
    [O_MIN_P] = {"min-p", 0, OPT_FLOAT, 0, 1, NULL, "the file's, else 0", SAMPLING, "F", "drop tokens below this share of the likeliest one"},
    [O_TYPICAL_P] = {"typical-p", 0, OPT_FLOAT, 0, 1, NULL, "1", SAMPLING, "F", "locally typical sampling; 1 is off"},
    [O_REPETITION_PENALTY] = {"repetition-penalty", 0, OPT_FLOAT, 0.01, 100, NULL, "the file's, else 1", SAMPLING, "F", "divides the logits of tokens seen in the window; 1 is off"},
    [O_PRESENCE_PENALTY] = {"presence-penalty", 0, OPT_FLOAT, -100, 100, NULL, "the file's, else 0", SAMPLING, "F", "taken once from tokens already generated"},
    [O_FREQUENCY_PENALTY] = {"frequency-penalty", 0, OPT_FLOAT, -100, 100, NULL, "the file's, else 0", SAMPLING, "F", "taken from tokens for each time they were generated"},
    [O_REPEAT_LAST_N] = {"repeat-last-n", 0, OPT_INT, -1, MAX_CONTEXT, NULL, "-1", SAMPLING, "N", "window of the repetition penalty in tokens; -1 is everything"},
    [O_SEED] = {"seed", 's', OPT_INT, 0, 9007199254740992.0, NULL, "drawn", SAMPLING, "N", "same seed, same text"},
    [O_LOGIT_BIAS] = {"logit-bias", 0, OPT_LIST, 0, 0, NULL, "none", GENERATING, "ID=BIAS", "added to a token's logit; -100 bans it"},

    [O_MAX_TOKENS] = {"max-tokens", 'n', OPT_INT, 1, MAX_CONTEXT, NULL, "what the context leaves", GENERATING, "N", "tokens of an answer at most"},
    [O_STOP] = {"stop", 0, OPT_LIST, 0, 0, NULL, "none", GENERATING, "TEXT", "end the answer before this text"},
    [O_SYSTEM] = {"system", 0, OPT_STRING, 0, 0, NULL, "none", GENERATING, "TEXT", "system message"},
    [O_RAW] = {"raw", 0, OPT_FLAG, 0, 0, NULL, NULL, VERB_RUN, NULL, "continue the text as it is, without the chat template"},
    [O_THINK] = {"think", 0, OPT_FLAG, 0, 0, NULL, "the template's own way", GENERATING | VERB_TEMPLATE | VERB_SERVE, NULL, "let the model reason first (enable_thinking true)"},
    [O_NO_THINK] = {"no-think", 0, OPT_FLAG, 0, 0, NULL, NULL, GENERATING | VERB_TEMPLATE | VERB_SERVE, NULL, "answer at once (enable_thinking false)"},
    [O_SHOW_THINKING] = {"show-thinking", 0, OPT_FLAG, 0, 0, NULL, "only on a terminal", GENERATING, NULL, "write the reasoning to standard error"},
    [O_MESSAGES] = {"messages", 0, OPT_STRING, 0, 0, NULL, NULL, VERB_TEMPLATE | VERB_RUN, "FILE",
                    "JSON: an array of messages, or an object with messages, tools and what else the template reads; - is standard input"},
    [O_TEMPLATE_FILE] = {"template-file", 0, OPT_STRING, 0, 0, NULL, "the file's own template", VERB_TEMPLATE | GENERATING | VERB_SERVE, "FILE", "Jinja template to use"},

    [O_FILTER] = {"filter", 0, OPT_STRING, 0, 0, NULL, "all", VERB_TENSORS, "RE", "only names that match this POSIX extended regular expression"},
    [O_FILE] = {"file", 'f', OPT_STRING, 0, 0, NULL, NULL, VERB_TOKENIZE | VERB_PERPLEXITY, "FILE", "text to read; - is standard input"},
    [O_NO_SPECIAL] = {"no-special", 0, OPT_FLAG, 0, 0, NULL, NULL, VERB_TOKENIZE, NULL, "control tokens in the text are plain text"},
    [O_SHOW_TOKENS] = {"tokens", 0, OPT_FLAG, 0, 0, NULL, NULL, VERB_TEMPLATE, NULL, "print ids instead of text"},
    [O_TOKENS_FILE] = {"tokens", 0, OPT_STRING, 0, 0, NULL, NULL, VERB_LOGITS, "FILE", "token ids as little-endian 32-bit integers; - is standard input"},
    [O_ROWS] = {"rows", 0, OPT_CHOICE, 0, 0, "last|all", "last", VERB_LOGITS, NULL, "positions whose logits are written"},
    [O_OUTPUT] = {"output", 'o', OPT_STRING, 0, 0, NULL, NULL, VERB_LOGITS, "FILE", "where to write, as little-endian f32; - is standard output"},
    [O_PROMPT_TOKENS] = {"prompt-tokens", 0, OPT_INT, 1, MAX_CONTEXT, NULL, "512", VERB_BENCH, "N", "length of the prompt"},
    [O_GEN_TOKENS] = {"gen-tokens", 0, OPT_INT, 1, MAX_CONTEXT, NULL, "64", VERB_BENCH, "N", "tokens to generate"},
    [O_REPEAT] = {"repeat", 0, OPT_INT, 1, 1000, NULL, "3", VERB_BENCH, "N", "runs; the median counts"},
};

#define MODEL_TEXT "MODEL is a path, any part of a split file, or a name: `demo` is the model that ships with the program. "

const struct verb cli_verbs[] = {
    {"serve run", VERB_SERVE, "MODEL", 1, 1, "load MODEL and answer HTTP until SIGTERM",
     "Serves the OpenAI API and a chat page. " MODEL_TEXT "The line `listening on http://...` on standard output says that it is ready.", verb_serve_run},
    {"serve plan", VERB_PLAN, "MODEL", 1, 1, "memory arithmetic of serving MODEL, from its header alone",
     "Loads no weights: prints what each part takes and the largest context that fits. " MODEL_TEXT, verb_serve_plan},
    {"run", VERB_RUN, "MODEL [PROMPT]", 1, 2, "one answer on standard output",
     "Without PROMPT the prompt is read from standard input. The chat template is applied unless --raw is given. Reasoning goes to standard error, dimmed, where that is a terminal. " MODEL_TEXT,
     verb_run},
    {"chat", VERB_CHAT, "MODEL", 1, 1, "an interactive conversation",
     "Each line is a turn; /help lists what else can be typed. Ctrl-C stops the answer, not the program. With standard input from a pipe each line is a turn too, and the end of input ends the "
     "conversation. " MODEL_TEXT,
     verb_chat},
    {"bench", VERB_BENCH, "MODEL", 1, 1, "prompt and generation speed",
     "Reads prompts of random tokens and generates behind them; prints the median rates. " MODEL_TEXT, verb_bench},
    {"inspect", VERB_INSPECT, "MODEL", 1, 1, "what is in the file", "Metadata, sizes and block types. " MODEL_TEXT, verb_inspect},
    {"tensors", VERB_TENSORS, "MODEL", 1, 1, "the file's tensors", "One line a tensor: name, type, shape, bytes. " MODEL_TEXT, verb_tensors},
    {"validate", VERB_VALIDATE, "MODEL", 1, 1, "whether the file is sound",
     "Checks structure, shapes, every block's scales, and that vocabulary, merges and chat template fit together. Exit status 0 only when all is well. " MODEL_TEXT, verb_validate},
    {"tokenize", VERB_TOKENIZE, "MODEL [TEXT]", 1, 2, "ids of a text", "Without TEXT and --file the text is read from standard input. " MODEL_TEXT, verb_tokenize},
    {"detokenize", VERB_DETOKENIZE, "MODEL ID...", 2, -1, "text of ids", "Control tokens are shown. " MODEL_TEXT, verb_detokenize},
    {"template", VERB_TEMPLATE, "MODEL", 1, 1, "messages as the model sees them", "Renders the chat template over --messages. " MODEL_TEXT, verb_template},
    {"devices", VERB_DEVICES, "", 0, 0, "the devices this build can use, and what is free on them", "", verb_devices},
    {"gpu", VERB_DEVICES, "", 0, 0, "the GPUs this build can use", "", verb_gpu},
    {"logits", VERB_LOGITS, "MODEL", 1, 1, "raw logits of given tokens", "For comparing with other programs. " MODEL_TEXT, verb_logits},
    {"perplexity", VERB_PERPLEXITY, "MODEL", 1, 1, "how well MODEL predicts a text",
     "Mean negative log-likelihood in nats a token over --file, in pieces of the context; the first token of a piece is not scored. " MODEL_TEXT, verb_perplexity},
    {"debug tokenize", VERB_DEBUG, "MODEL", 1, 1, "lines {text} to {ids, ids_no_special}", "One JSON object a line on standard input and output.", verb_debug_tokenize},
    {"debug detokenize", VERB_DEBUG, "MODEL", 1, 1, "lines {ids} to {chunks}", "One JSON object a line: what comes out after each id, and what is left at the end.", verb_debug_detokenize},
    {"debug template", VERB_DEBUG, "", 0, 0, "lines {src, vars} to {out} or {error, message}", "One JSON object a line: any template over any variables; the clock stands at 2026-12-01 08:30.", verb_debug_template},
    {"debug sample", VERB_DEBUG, "", 0, 0, "cases {logits, ...} to {p} or {error}", "One JSON object a line, or one array of them.", verb_debug_sample},
    {"debug reply", VERB_DEBUG, "", 0, 0, "lines {text, tools, in_reasoning, finish} or {pieces, stop} to what they mean", "One JSON object a line.", verb_debug_reply},
    {"debug dequant", VERB_DEBUG, "TYPE", 1, 1, "blocks on standard input to f32 on standard output", "TYPE is a block type's name, as Q4_K.", verb_debug_dequant},
    {"debug generate", VERB_GENERATE, "MODEL", 1, 1, "lines {prompt_ids, max_tokens} to {ids, finish}", "Greedy generation, one JSON object a line.", verb_debug_generate},
    {"help", VERB_HELP, "[VERB]", 0, 2, "this page, a verb's page, or the manual page (--man)", "", verb_help},
    {NULL, 0, NULL, 0, 0, NULL, NULL, NULL},
};
