"""Every refusal: JSON in OpenAI's shape, the right status, the field by name, before anything is queued.
Faults: B61 B88 B101 B108 B109 B133, S1 S21 S22 S23 S25 S30."""
import json
import unittest

from apr_server import Server


def setUpModule():
    global server
    server = Server("--threads", "1", "-q")


def tearDownModule():
    assert server.stop()[0] == 0


USER = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}

BIG = 10 ** 30  # a number, however it is kept

# (field as it is named in the answer, what the body gets)
BAD_FIELDS = [
    ("model", {"model": 5}), ("model", {"model": "m" * 2000}), ("model", {"model": BIG}), ("stop", {"stop": [BIG]}), ("messages[0]", {"messages": [{"role": "user", "content": BIG}]}),
    ("messages[0]", {"messages": [{"role": BIG, "content": "x"}]}), ("tools[0]", {"tools": [{"type": "function", "function": {"name": BIG}}]}), ("max_tokens", {"max_tokens": BIG}),
    ("messages", {"messages": None}), ("messages", {"messages": "Hi"}), ("messages", {"messages": {}}), ("messages", {"messages": []}),
    ("messages[0]", {"messages": ["Hi"]}), ("messages[0]", {"messages": [{}]}), ("messages[0]", {"messages": [{"role": 1, "content": "x"}]}),
    ("messages[0]", {"messages": [{"role": "user"}]}), ("messages[0]", {"messages": [{"role": "user", "content": None}]}), ("messages[0]", {"messages": [{"role": "user", "content": 5}]}),
    ("messages[0]", {"messages": [{"role": "user", "content": [5]}]}), ("messages[0]", {"messages": [{"role": "user", "content": [{"type": "text"}]}]}),
    ("messages[0]", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]}),
    ("messages[1]", {"messages": USER + [{"role": "assistant", "content": "", "tool_calls": 5}]}), ("messages[1]", {"messages": USER + [{"role": "assistant", "tool_calls": [5]}]}),
    ("messages[1]", {"messages": USER + [{"role": "assistant", "tool_calls": [{"function": {"name": 5}}]}]}),
    ("messages[1]", {"messages": USER + [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 5}}]}]}),
    ("messages[1]", {"messages": USER + [{"role": "assistant", "content": "x", "reasoning_content": {}}]}),
    ("stream", {"stream": "yes"}), ("stream", {"stream": 1}), ("stream_options", {"stream_options": True}), ("stream_options.include_usage", {"stream_options": {"include_usage": 1}}),
    ("max_tokens", {"max_tokens": 0}), ("max_tokens", {"max_tokens": -2}), ("max_tokens", {"max_tokens": 1.5}), ("max_tokens", {"max_tokens": "5"}), ("max_tokens", {"max_tokens": True}),
    ("max_completion_tokens", {"max_completion_tokens": 0}), ("max_completion_tokens", {"max_completion_tokens": []}),
    ("temperature", {"temperature": "hot"}), ("temperature", {"temperature": -5}), ("temperature", {"temperature": True}), ("temperature", {"temperature": 1e308}),
    ("top_p", {"top_p": 1.1}), ("top_p", {"top_p": -0.1}), ("min_p", {"min_p": 2}), ("typical_p", {"typical_p": -1}), ("top_k", {"top_k": -2}), ("top_k", {"top_k": 2**40}), ("top_k", {"top_k": 1.5}),
    ("presence_penalty", {"presence_penalty": 1e9}), ("frequency_penalty", {"frequency_penalty": "x"}), ("repetition_penalty", {"repetition_penalty": 0}), ("repeat_penalty", {"repeat_penalty": -1}),
    ("repeat_penalty", {"repeat_penalty": 1.1, "repetition_penalty": 1.2}), ("repeat_last_n", {"repeat_last_n": -2}), ("seed", {"seed": "x"}), ("seed", {"seed": 1.5}),
    ("logit_bias", {"logit_bias": [1]}), ("logit_bias", {"logit_bias": {"x": 1}}), ("logit_bias", {"logit_bias": {"-1": 1}}), ("logit_bias", {"logit_bias": {"4096": 1}}),
    ("logit_bias", {"logit_bias": {"5": "x"}}), ("logit_bias", {"logit_bias": {"5": 101}}), ("logit_bias", {"logit_bias": {str(i): 0 for i in range(1025)}}),
    ("stop", {"stop": 5}), ("stop", {"stop": [5]}), ("stop", {"stop": ["a"] * 17}), ("stop", {"stop": "x" * 5000}), ("stop", {"stop": {"a": 1}}), ("stop", {"stop": "a\0b"}),
    ("n", {"n": 0}), ("n", {"n": 2}), ("n", {"n": -1}), ("n", {"n": "1"}),
    ("logprobs", {"logprobs": 1}), ("top_logprobs", {"top_logprobs": 3}), ("top_logprobs", {"logprobs": True, "top_logprobs": 21}), ("top_logprobs", {"logprobs": True, "top_logprobs": -1}),
    ("response_format", {"response_format": "json"}), ("response_format", {"response_format": {}}), ("response_format", {"response_format": {"type": "json_object"}}),
    ("response_format", {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}), ("response_format", {"response_format": {"type": "xml"}}),
    ("tools", {"tools": {}}), ("tools", {"tools": "f"}), ("tools", {"tools": [TOOL] * 1025}), ("tools[0]", {"tools": [5]}), ("tools[0]", {"tools": [{"type": "web_search"}]}),
    ("tools[0]", {"tools": [{"type": "function"}]}), ("tools[1]", {"tools": [TOOL, {"type": "function", "function": {"name": ""}}]}), ("tools[0]", {"tools": [{"type": "function", "function": {"name": "a>b"}}]}),
    ("tools[0]", {"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}),
    ("tool_choice", {"tools": [TOOL], "tool_choice": "required"}), ("tool_choice", {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}}),
    ("tool_choice", {"tool_choice": 5}), ("tool_choice", {"tool_choice": "sometimes"}), ("parallel_tool_calls", {"parallel_tool_calls": "no"}),
    ("chat_template_kwargs", {"chat_template_kwargs": []}), ("chat_template_kwargs", {"chat_template_kwargs": {"messages": []}}), ("chat_template_kwargs", {"chat_template_kwargs": {"add_generation_prompt": False}}),
    ("chat_template_kwargs.enable_thinking", {"chat_template_kwargs": {"enable_thinking": "no"}}), ("enable_thinking", {"enable_thinking": "no"}), ("think", {"think": 5}), ("think", {"think": "yes"}),
    ("reasoning_effort", {"reasoning_effort": "much"}), ("reasoning_effort", {"reasoning_effort": 5}),
    ("functions", {"functions": [{"name": "f"}]}), ("function_call", {"function_call": "auto"}), ("grammar", {"grammar": "root ::= x"}), ("mirostat", {"mirostat": 2}),
    ("prompt_logprobs", {"prompt_logprobs": -1}), ("audio", {"audio": {"voice": "x"}}), ("guided_json", {"guided_json": {"type": "object"}}), ("thinking_budget_tokens", {"thinking_budget_tokens": 100}),
]

BAD_COMPLETIONS = [
    ("prompt", {"prompt": BIG}), ("prompt", {"prompt": [BIG]}), ("prompt", {"prompt": [1, BIG]}), ("prompt", {}), ("prompt", {"prompt": ""}), ("prompt", {"prompt": []}), ("prompt", {"prompt": 5}), ("prompt", {"prompt": [1, "x"]}), ("prompt", {"prompt": [-1]}), ("prompt", {"prompt": [2**40]}),
    ("prompt", {"prompt": ["a", "b"]}), ("prompt", {"prompt": [""]}), ("echo", {"prompt": "x", "echo": True}), ("suffix", {"prompt": "x", "suffix": "y"}), ("best_of", {"prompt": "x", "best_of": 2}),
    ("logprobs", {"prompt": "x", "logprobs": 21}), ("logprobs", {"prompt": "x", "logprobs": True}), ("max_tokens", {"prompt": "x", "max_tokens": 0}),
]

BAD_BODIES = [
    (b"", 400), (b"{", 400), (b"{\"messages\":}", 400), (b"nonsense", 400), (b"[]", 400), (b"5", 400), (b"null", 400), (b"{} trailing", 400), (b"\xff\xfe", 400),
    (b'{"messages":[{"role":"user","content":"\xff"}]}', 400), (b'{"messages":[{"role":"user","content":"\\ud800"}]}', 400), (b'{"a":' + b"[" * 200000 + b"]" * 200000 + b"}", 400),
    (b'{"a":' * 5000, 400), (b'{"temperature":1e999,"messages":[]}', 400), (b'{"seed":99999999999999999999,"messages":[]}', 400), (b'{"messages":[{"role":"user","content":"\x00"}]}', 400),
]


class Errors(unittest.TestCase):
    def refused(self, answer, status, code=None, param=None):
        self.assertEqual(answer.status, status, answer.body)
        self.assertEqual(answer.headers["Content-Type"], "application/json")
        error = answer.json["error"]
        self.assertLessEqual({"message", "type", "param", "code"}, set(error))
        self.assertTrue(error["message"] and error["type"], error)
        if param:
            self.assertEqual(error["param"], param, error)
            self.assertIn(param, error["message"])
        if code:
            self.assertEqual(error["code"], code)
        return error

    def test_wrong_fields(self):
        """B141: also a message without content."""
        for param, fields in BAD_FIELDS:
            with self.subTest(str(fields)[:100]):
                self.refused(server.post("/v1/chat/completions", {"messages": USER, **fields}), 400, param=param)

    def test_wrong_completions(self):
        """B141: an empty prompt is refused. B37: so are logits of the prompt's own tokens."""
        for param, fields in BAD_COMPLETIONS:
            with self.subTest(str(fields)[:100]):
                self.refused(server.post("/v1/completions", fields), 400, param=param)
        self.refused(server.post("/v1/completions", {"prompt": [5000]}), 400)  # outside the vocabulary

    def test_neutral_values_of_what_is_not_served(self):
        """They ask for what happens anyway."""
        for fields in ({"n": 1}, {"response_format": {"type": "text"}}, {"functions": []}, {"mirostat": 0}, {"grammar": ""}, {"logit_bias": {}}, {"tools": []}, {"tools": [], "tool_choice": "auto"},
                       {"stop": []}, {"stop": None}, {"logprobs": False}, {"top_k": -1}, {"unknown": {"deep": [1]}}, {"temperature": None}, {"stream_options": {"include_usage": True}}):
            self.assertEqual(server.chat("Hi", max_tokens=2, **fields).status, 200, fields)

    def test_broken_bodies(self):
        for path in ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize", "/apply-template"):
            for body, status in BAD_BODIES:
                with self.subTest(path=path, body=body[:40]):
                    self.refused(server.post(path, body), status)

    def test_where_the_json_is_broken(self):
        error = self.refused(server.post("/v1/chat/completions", b'{"messages": [}'), 400, "invalid_json")
        self.assertIn("byte", error["message"])

    def test_what_the_template_refuses(self):
        """B108, B109: the template's own sentence, not a failure of ours."""
        for messages, words in (([{"role": "system", "content": "x"}], "No user query found in messages."), ([{"role": "assistant", "content": "x"}], "No user query found in messages."),
                                (USER + [{"role": "system", "content": "x"}], "System message must be at the beginning."), ([{"role": "wizard", "content": "x"}] + USER, "Unexpected message role.")):
            for stream in (False, True):
                error = self.refused(server.post("/v1/chat/completions", {"messages": messages, "stream": stream}), 400, "template_error")
                self.assertIn(words, error["message"])

    def test_prompt_longer_than_the_context(self):
        """B138: with both lengths; B137: only the prompt's own counts."""
        for stream in (False, True):
            a = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "word " * 6000}], "stream": stream})
            error = self.refused(a, 400, "context_length_exceeded")
            self.assertEqual(error["n_ctx"], 4096)
            self.assertGreater(error["n_prompt_tokens"], 6000)
            self.assertEqual(error["message"], f"the prompt is {error['n_prompt_tokens']} tokens and this server serves a context of 4096: it was refused whole rather than truncated (#3571)")
        self.refused(server.post("/v1/completions", {"prompt": [65] * 4096}), 400, "context_length_exceeded")
        a = server.post("/v1/completions", {"prompt": [65] * 4095}).json
        self.assertEqual((a["usage"]["completion_tokens"], a["choices"][0]["finish_reason"]), (1, "length"))

    def test_routes(self):
        error = self.refused(server.get("/v1/nothing"), 404, "route_not_found")
        self.assertIn("/v1/nothing", error["message"])
        index = server.get("/").json
        listed = {f"{r['method']} {r['path']}" for r in index["routes"]}
        self.assertEqual(set(server.get("/nope").json["routes"]), listed)
        self.assertLessEqual({"POST /v1/chat/completions", "POST /v1/completions", "GET /v1/models", "GET /health", "GET /metrics"}, listed)
        for path in ("/v1/chat/completions/", "/v1/chat", "//health", "/health/../metrics", "/%2e%2e/etc/passwd", "/v1/models/"):
            self.refused(server.get(path), 404)

    def test_bytes_that_are_no_text(self):
        """What a message quotes is valid UTF-8, whatever was sent."""
        self.assertIn("/v1/caf\ufffd\ufffd", self.refused(server.get("/v1/caf%E9%FF"), 404, "route_not_found")["message"])
        self.assertIn("caf\ufffd", self.refused(server.get("/v1/models/caf%E9"), 404, "model_not_found")["message"])

    def test_methods(self):
        for method, path in (("GET", "/v1/chat/completions"), ("POST", "/health"), ("DELETE", "/v1/models"), ("PUT", "/tokenize"), ("OPTIONS", "/v1/chat/completions"), ("PATCH", "/")):
            self.refused(server.request(method, path), 405, "method_not_allowed")

    def test_content_type(self):
        """S30: a web page can send text/plain without asking."""
        body = json.dumps({"messages": USER}).encode()
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "text/json", "application/jsonx", ""):
            self.refused(server.request("POST", "/v1/chat/completions", body, {"Content-Type": kind}), 415, "unsupported_media_type")
        for kind in ("application/json", "application/json; charset=utf-8", "Application/JSON"):
            self.assertEqual(server.request("POST", "/v1/chat/completions", json.dumps({"messages": USER, "max_tokens": 1}).encode(), {"Content-Type": kind}).status, 200)

    def test_model_by_id(self):
        self.assertEqual(server.get("/v1/models/apr-demo").json["id"], "apr-demo")
        self.assertIn("nope", self.refused(server.get("/v1/models/nope"), 404, "model_not_found")["message"])

    def test_refusals_leave_nothing_behind(self):
        before = server.metrics()
        for param, fields in BAD_FIELDS[:40]:
            server.post("/v1/chat/completions", {"messages": USER, **fields})
        after = server.metrics()
        for name in ('apr_memory_bytes{label="json"}', 'apr_memory_bytes{label="serve"}', 'apr_memory_bytes{label="text"}'):
            self.assertLessEqual(after[name], before[name] + 65536, name)
        self.assertEqual(after['apr_requests_total{outcome="finished"}'], before['apr_requests_total{outcome="finished"}'])
        self.assertEqual(server.chat("Hi", max_tokens=2).status, 200)


if __name__ == "__main__":
    unittest.main()
