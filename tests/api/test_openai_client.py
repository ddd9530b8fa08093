"""The official Python client against the server, as its users write it. Needs the package `openai` in the Python that runs it (CMake's test_python); without it this fails."""
import unittest

try:
    import openai
except ImportError as e:
    raise SystemExit(f"this test needs the Python package openai ({e}): run ./setup, or set CMake's test_python to a Python that has it") from e

from apr_server import Server, demo_cases


def setUpModule():
    global server, client
    server = Server("--threads", "1", "-q", "--api-key", "k")
    client = openai.OpenAI(base_url=f"http://{server.host}:{server.port}/v1", api_key="k", max_retries=0)


def tearDownModule():
    client.close()
    assert server.stop()[0] == 0


NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}
QUESTION = [{"role": "user", "content": "Which port does apr listen on please?"}]


class Client(unittest.TestCase):
    def test_models(self):
        self.assertEqual([m.id for m in client.models.list()], ["apr-demo"])
        self.assertEqual(client.models.retrieve("apr-demo").owned_by, "apr")
        with self.assertRaises(openai.NotFoundError):
            client.models.retrieve("nope")

    def test_chat(self):
        a = client.chat.completions.create(model="apr-demo", messages=QUESTION, extra_body=NO_THINKING)
        self.assertEqual((a.choices[0].message.content, a.choices[0].finish_reason, a.object), ("The default port is 8080.", "stop", "chat.completion"))
        self.assertEqual(a.usage.total_tokens, a.usage.prompt_tokens + a.usage.completion_tokens)
        self.assertEqual((a.usage.prompt_tokens_details.cached_tokens >= 0, a.usage.completion_tokens_details.reasoning_tokens), (True, 0))

    def test_stream(self):
        stream = client.chat.completions.create(model="m", messages=QUESTION, stream=True, stream_options={"include_usage": True}, extra_body=NO_THINKING)
        chunks = list(stream)
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks if c.choices), "The default port is 8080.")
        self.assertEqual([c.choices[0].finish_reason for c in chunks if c.choices][-1], "stop")
        self.assertEqual((chunks[-1].choices, chunks[-1].usage.completion_tokens, {c.model for c in chunks}), ([], 10, {"m"}))

    def test_reasoning(self):
        a = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "What is 12 times 3?"}], reasoning_effort="low")
        self.assertTrue(a.choices[0].message.reasoning_content)
        self.assertGreater(a.usage.completion_tokens_details.reasoning_tokens, 0)
        a = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "What is 12 times 3?"}], reasoning_effort="none")
        self.assertFalse(getattr(a.choices[0].message, "reasoning_content", None))

    def test_tools(self):
        case = next(c for c in demo_cases() if c["tools"] and "<tool_call>" in c["text"] and len(c["messages"]) == 1)
        fields = {"model": "m", "messages": case["messages"], "tools": case["tools"], "extra_body": {"enable_thinking": case["enable_thinking"]}}
        whole = client.chat.completions.create(**fields).choices[0]
        self.assertEqual(whole.finish_reason, "tool_calls")
        call = whole.message.tool_calls[0]
        with client.chat.completions.stream(**fields) as stream:
            streamed = stream.get_final_completion().choices[0]
        self.assertEqual((streamed.message.tool_calls[0].function.name, streamed.message.tool_calls[0].function.arguments), (call.function.name, call.function.arguments))
        history = case["messages"] + [whole.message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "{\"result\": 7}"}]
        again = client.chat.completions.create(**{**fields, "messages": history})
        self.assertTrue(again.choices[0].message.content or again.choices[0].message.tool_calls)

    def test_logprobs_and_limits(self):
        a = client.chat.completions.create(model="m", messages=QUESTION, logprobs=True, top_logprobs=2, max_completion_tokens=4, extra_body=NO_THINKING)
        self.assertEqual((a.choices[0].finish_reason, len(a.choices[0].logprobs.content), len(a.choices[0].logprobs.content[0].top_logprobs)), ("length", 4, 2))
        a = client.chat.completions.create(model="m", messages=QUESTION, stop=["port"], extra_body=NO_THINKING)
        self.assertEqual(a.choices[0].message.content, "The default ")

    def test_completions(self):
        a = client.completions.create(model="m", prompt="The default port is", max_tokens=8, logprobs=1)
        b = client.completions.create(model="m", prompt="The default port is", max_tokens=8, stream=True)
        self.assertEqual("".join(c.choices[0].text for c in b), a.choices[0].text)
        self.assertEqual("".join(a.choices[0].logprobs.tokens), a.choices[0].text)

    def test_errors(self):
        with self.assertRaises(openai.BadRequestError) as refused:
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "word " * 6000}])
        self.assertEqual((refused.exception.code, refused.exception.body["n_ctx"]), ("context_length_exceeded", 4096))
        with self.assertRaises(openai.BadRequestError) as refused:
            client.chat.completions.create(model="m", messages=QUESTION, temperature=-1)
        self.assertEqual(refused.exception.param, "temperature")
        with self.assertRaises(openai.BadRequestError) as refused:
            client.chat.completions.create(model="m", messages=QUESTION, n=2, stream=True)
        self.assertEqual(refused.exception.param, "n")
        with self.assertRaises(openai.AuthenticationError):
            openai.OpenAI(base_url=client.base_url, api_key="wrong", max_retries=0).models.list()

    def test_leaving_a_stream(self):
        stream = client.chat.completions.create(model="m", messages=QUESTION, stream=True)
        next(iter(stream))
        stream.close()
        self.assertEqual(client.chat.completions.create(model="m", messages=QUESTION, extra_body=NO_THINKING).choices[0].finish_reason, "stop")


if __name__ == "__main__":
    unittest.main()
