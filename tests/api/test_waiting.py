"""What a client sees while it waits, and how long an answer may be."""
import json
import socket
import time
import unittest

from apr_server import SLOW, Server, model

ENDS = "<|im_end|><|endoftext|><|fim_pad|><|repo_name|><|file_sep|>"  # what would end an answer, and is banned here


def open_stream(server, path, body):
    s = socket.create_connection((server.host, server.port), timeout=60)
    data = json.dumps({**body, "stream": True}).encode()
    s.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    return s


class Waiting(unittest.TestCase):
    def setUp(self):
        self.server = Server("--threads", "1", "--parallel", "1", "-q", file=model("r2-q8_0.gguf"))
        self.bias = {str(t): -100 for t in self.server.post("/tokenize", {"content": ENDS}).json["tokens"]}

    def tearDown(self):
        self.assertEqual(self.server.stop()[0], 0)

    def body(self, n_prompt, seed=0, **fields):
        return {"prompt": [(i * 37 + seed) % 900 for i in range(n_prompt)], "max_tokens": 7000, "logit_bias": self.bias, **fields}

    def test_an_event_comes_before_the_prompt_is_read(self):
        """B144: a real one, no comment; and leaving then ends the reading."""
        s = open_stream(self.server, "/v1/chat/completions", {"messages": [{"role": "user", "content": " ".join(str(i * 37 % 900) for i in range(1800))}], "logit_bias": self.bias})
        got = b""
        while b"\n\n" not in got.partition(b"\r\n\r\n")[2]:
            piece = s.recv(4096)
            self.assertTrue(piece)
            got += piece
        before = self.server.metrics()
        self.assertIn(b'data: {"id":', got)
        self.assertIn(b'"role":"assistant"', got)
        self.assertEqual(before["apr_prompt_tokens_total"], 0)  # counted at the prompt's end
        self.assertEqual(before["apr_requests_running"], 1)
        s.close()
        self.server.wait_metric("apr_requests_running", lambda v: v == 0, 1 * SLOW)
        self.assertEqual(self.server.metrics()["apr_generated_tokens_total"], 0)

    def test_silence_while_nothing_advances(self):
        """B148: who waits in line is not told by signs of life that its answer is under way."""
        running = open_stream(self.server, "/v1/completions", self.body(50, logprobs=20))  # nobody reads it: it stands still, in its place
        self.addCleanup(running.close)
        self.server.wait_metric("apr_generated_tokens_total", lambda v: v > 0, 30)
        waiting = open_stream(self.server, "/v1/completions", self.body(60, seed=1))
        self.addCleanup(waiting.close)
        self.server.wait_metric("apr_requests_waiting", lambda v: v == 1, 30)
        got, start = b"", time.monotonic()
        waiting.settimeout(0.5)
        while time.monotonic() - start < 6.5:  # longer than comments are apart while a prompt is read
            try:
                got += waiting.recv(4096)
            except TimeoutError:
                pass
        self.assertEqual(self.server.metrics()["apr_requests_waiting"], 1)
        self.assertEqual(got.partition(b"\r\n\r\n")[2], b"")
        running.close()
        waiting.settimeout(60)
        while b"data: " not in got:
            got += waiting.recv(4096)


class Length(unittest.TestCase):
    def test_nothing_but_the_context_ends_an_answer(self):
        """B140: no limit that nobody asked for."""
        server = Server("--threads", "1", "-q", "-c", "900", file=model("r2-q8_0.gguf"))
        try:
            bias = {str(t): -100 for t in server.post("/tokenize", {"content": ENDS}).json["tokens"]}
            for path, ask in (("/v1/completions", {"prompt": [5, 6, 7]}), ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Go on."}]})):
                a = server.post(path, {**ask, "logit_bias": bias}).json
                self.assertEqual(a["choices"][0]["finish_reason"], "length")
                self.assertEqual(a["usage"]["total_tokens"], 900)
        finally:
            self.assertEqual(server.stop()[0], 0)


if __name__ == "__main__":
    unittest.main()
