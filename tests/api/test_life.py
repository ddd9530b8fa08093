"""Requests that end early, beside each other, or with the server. Faults: B149, and the contract's drain."""
import json
import os
import signal
import socket
import threading
import time
import unittest

from apr_server import SLOW, Server, events, gather, model

LONG_IDS = [(i * 37) % 900 for i in range(8000)]  # of a model with random weights: it never ends by itself for long
ENDS = "<|im_end|><|endoftext|><|fim_pad|><|repo_name|><|file_sep|>"  # what would end an answer, and is banned here


def open_stream(server, path, body, buffer=None):
    """A socket whose request is sent; nothing was read yet."""
    s = socket.socket()
    if buffer:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    s.settimeout(60)
    s.connect((server.host, server.port))
    data = json.dumps(body).encode()
    s.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    return s


class Random(unittest.TestCase):
    """On a model that is slow enough to be left in the middle."""

    def setUp(self):
        self.server = Server("--threads", "1", "--parallel", "1", "-q", *self.flags(), file=model("r2-q8_0.gguf"))
        bias = self.server.post("/tokenize", {"content": ENDS}).json["tokens"]
        self.bias = {str(t): -100 for t in bias}

    def flags(self):
        return ()

    def tearDown(self):
        self.assertEqual(self.server.stop()[0], 0)

    def body(self, n_prompt=50, **fields):
        return {"prompt": LONG_IDS[:n_prompt], "max_tokens": 7000, "stream": True, "logit_bias": self.bias, **fields}

    def idle_again(self):
        return self.server.wait_metric("apr_requests_running", lambda v: v == 0, 1 * SLOW)


class Leaving(Random):
    def test_in_the_middle_of_the_answer(self):
        """B142: the slot is free within a second."""
        for stream in (True, False):
            s = open_stream(self.server, "/v1/completions", self.body(stream=stream))
            self.server.wait_metric("apr_requests_running", lambda v: v == 1, 30)
            self.server.wait_metric("apr_generated_tokens_total", lambda v: v > 3, 30)
            s.close()
            self.assertLess(self.idle_again(), 1 * SLOW)
        self.assertEqual(self.server.metrics()['apr_requests_total{outcome="cancelled"}'], 2)

    def test_while_the_prompt_is_read(self):
        """B142: noticed between the chunks of the prompt, streamed or not."""
        for n, stream in enumerate((True, False)):
            s = open_stream(self.server, "/v1/completions", {**self.body(8000, stream=stream), "prompt": LONG_IDS[n:] + [n]})
            self.server.wait_metric("apr_requests_running", lambda v: v == 1, 30)
            s.close()
            self.assertLess(self.idle_again(), 1 * SLOW)
            m = self.server.metrics()
            self.assertEqual((m['apr_requests_total{outcome="cancelled"}'], m['apr_requests_total{outcome="finished"}'], m["apr_generated_tokens_total"]), (n + 1, 0, 0))

    def test_while_it_waits(self):
        running = open_stream(self.server, "/v1/completions", self.body())
        self.server.wait_metric("apr_generated_tokens_total", lambda v: v > 0, 30)
        waiting = [open_stream(self.server, "/v1/completions", self.body()) for _ in range(3)]
        self.server.wait_metric("apr_requests_waiting", lambda v: v == 3, 30)
        for s in waiting:
            s.close()
        self.server.wait_metric("apr_requests_waiting", lambda v: v == 0, 1 * SLOW)
        self.assertEqual(self.server.metrics()["apr_requests_running"], 1)
        running.close()

    def test_many_come_and_go(self):
        """B40, B143, B176: nothing of them stays, neither memory nor the wish to stop."""
        before = self.server.metrics()
        for i in range(60):
            s = open_stream(self.server, "/v1/completions", self.body(20 + i))
            if i % 3:
                s.recv(10)
            s.close()
        self.server.wait_metric("apr_requests_running", lambda v: v == 0, 5 * SLOW)
        self.server.wait_metric("apr_http_connections", lambda v: v <= 1, 5 * SLOW)
        for label in ("serve", "json", "text"):
            name = f'apr_memory_bytes{{label="{label}"}}'
            self.server.wait_metric(name, lambda v, most=before[name] + 65536: v <= most, 5 * SLOW)
        self.assertEqual(self.server.post("/v1/completions", {"prompt": [1, 2], "max_tokens": 1}).status, 200)


class Queue(Random):
    def test_full(self):
        streams = [open_stream(self.server, "/v1/completions", self.body()) for _ in range(65)]
        try:
            self.server.wait_metric("apr_requests_waiting", lambda v: v == 64, 30)
            a = self.server.post("/v1/completions", self.body(stream=False))
            self.assertEqual((a.status, a.json["error"]["code"]), (429, "busy"))
            self.assertGreater(int(a.headers["Retry-After"]), 0)
            self.assertEqual(self.server.get("/health").status, 200)
        finally:
            for s in streams:
                s.close()
        self.server.wait_metric("apr_requests_waiting", lambda v: v == 0, 5 * SLOW)

    def test_introspection_never_waits(self):
        s = open_stream(self.server, "/v1/completions", self.body(8000))
        self.server.wait_metric("apr_requests_running", lambda v: v == 1, 30)
        for _ in range(10):
            for path in ("/health", "/v1/models", "/metrics", "/"):
                start = time.monotonic()
                self.assertEqual(self.server.get(path).status, 200)
                self.assertLess(time.monotonic() - start, 0.25 * SLOW)
        s.close()


class Together(Random):
    def flags(self):
        return ("--parallel", "2")

    def test_two_at_once_are_as_alone(self):
        """B35"""
        alone = [self.server.post("/v1/completions", {**self.body(100 + 50 * i), "max_tokens": 80, "temperature": t, "seed": 5, "stream": False}).json for i, t in ((0, 0), (1, 1.0))]
        got = [None, None]

        def ask(i, t):
            a = self.server.post("/v1/completions", {**self.body(100 + 50 * i), "max_tokens": 80, "temperature": t, "seed": 5, "stream": bool(i)})
            got[i] = "".join(c["choices"][0]["text"] for c in (events(a) if i else [a.json]))
        threads = [threading.Thread(target=ask, args=(i, t)) for i, t in ((0, 0), (1, 1.0))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(got, [a["choices"][0]["text"] for a in alone])

    def test_a_slow_reader_is_paused_and_then_dropped(self):
        """Who does not read stops its own answer only, holds little memory, and is let go after half a minute."""
        slow = open_stream(self.server, "/v1/completions", self.body(logprobs=20), buffer=4096)
        self.addCleanup(slow.close)
        before = 0
        while True:  # until its answer stands still
            time.sleep(0.5)
            now = self.server.metrics()
            if now["apr_generated_tokens_total"] == before > 300:
                break
            before = now["apr_generated_tokens_total"]
            self.assertEqual(now["apr_requests_running"], 1)
        self.assertLess(now['apr_memory_bytes{label="serve"}'], 8 << 20)
        a = self.server.post("/v1/completions", {**self.body(30), "max_tokens": 20, "stream": False})
        self.assertEqual((a.status, a.json["usage"]["completion_tokens"]), (200, 20))
        waited = self.server.wait_metric("apr_requests_running", lambda v: v == 0, 40 * SLOW)
        self.assertGreater(waited, 10)
        self.assertEqual(self.server.metrics()['apr_requests_total{outcome="cancelled"}'], 1)

    def test_a_reader_that_pauses_gets_everything(self):
        body = {**self.body(40, logprobs=20), "max_tokens": 1500 // SLOW, "temperature": 0}
        whole = self.server.post("/v1/completions", {**body, "stream": False}).json
        s = open_stream(self.server, "/v1/completions", body, buffer=4096)
        time.sleep(3)
        data = b""
        while not data.endswith(b"0\r\n\r\n"):
            piece = s.recv(1 << 20)
            self.assertTrue(piece)
            data += piece
        s.close()
        head, _, rest = data.partition(b"\r\n\r\n")
        text = b""
        while rest:  # the chunks
            size, _, rest = rest.partition(b"\r\n")
            text += rest[: int(size, 16)]
            rest = rest[int(size, 16) + 2 :]
        lines = [json.loads(b[6:]) for b in text.decode().split("\n\n") if b.startswith("data: {")]
        self.assertEqual("".join(c["choices"][0]["text"] for c in lines), whole["choices"][0]["text"])


class Ending(unittest.TestCase):
    def start(self, *flags):
        s = Server("--threads", "1", "--parallel", "1", *flags, file=model("r2-q8_0.gguf"))
        bias = s.post("/tokenize", {"content": ENDS}).json["tokens"]
        return s, {"prompt": LONG_IDS[:50], "stream": True, "logit_bias": {str(t): -100 for t in bias}}

    def test_drain(self):
        """What runs is finished, what is new is refused, and then it is gone."""
        s, body = self.start()
        got = []
        thread = threading.Thread(target=lambda: got.append(s.post("/v1/completions", {**body, "max_tokens": 3000 // SLOW})))
        thread.start()
        s.wait_metric("apr_generated_tokens_total", lambda v: v > 0, 30)
        s.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        a = s.post("/v1/completions", {"prompt": "x"})
        self.assertEqual((a.status, a.json["error"]["code"]), (503, "shutting_down"))
        self.assertGreater(int(a.headers["Retry-After"]), 0)
        health = s.get("/health")
        self.assertEqual((health.status, health.json["status"]), (503, "degraded"))
        self.assertEqual(s.get("/health/ready").status, 503)
        self.assertEqual(s.get("/health/live").status, 200)
        thread.join()
        chunks = events(got[0])
        self.assertEqual(chunks[-1]["choices"][0]["finish_reason"], "length")
        s.process.wait(5 * SLOW)
        self.assertEqual(s.stop()[0], 0)

    def test_drain_timeout(self):
        """At its end the rest is cut, with a last event that says so."""
        s, body = self.start("--drain-timeout", "1")
        got = []
        threads = [threading.Thread(target=lambda stream=stream: got.append(s.post("/v1/completions", {**body, "max_tokens": 8000, "logprobs": 20, "stream": stream}))) for stream in (True, False)]
        for t in threads:
            t.start()
        s.wait_metric("apr_requests_waiting", lambda v: v == 1, 30)
        start = time.monotonic()
        code, _ = s.stop()
        self.assertEqual(code, 0)
        self.assertLess(time.monotonic() - start, 4 * SLOW)
        for t in threads:
            t.join()
        stream = next(a for a in got if a.headers["Content-Type"].startswith("text/event-stream"))
        whole = next(a for a in got if a is not stream)
        last = stream.body.decode().strip().split("\n\n")[-1]
        self.assertIn("shutting down", json.loads(last.removeprefix("data: "))["error"]["message"])
        self.assertEqual((whole.status, "shutting down" in whole.json["error"]["message"]), (503, True))

    def test_idle_server_ends_at_once(self):
        for how in (signal.SIGTERM, signal.SIGINT):
            s, _ = self.start()
            idle = s.raw()
            start = time.monotonic()
            self.assertEqual(s.stop(how)[0], 0)
            self.assertLess(time.monotonic() - start, 1 * SLOW)
            idle.close()

    def test_who_wrote_before_the_signal_gets_an_answer(self):
        # stopped while the requests arrive, so that the signal is seen first
        s = Server("--no-metrics")
        s.process.send_signal(signal.SIGSTOP)
        clients = [s.connect() for _ in range(8)]
        for c in clients:
            c.request("POST", "/tokenize", b'{"content": "hello"}', {"Content-Type": "application/json"})
        s.process.send_signal(signal.SIGTERM)
        s.process.send_signal(signal.SIGCONT)
        self.assertEqual({c.getresponse().status for c in clients} - {200, 503}, set())
        self.assertEqual(s.stop()[0], 0)

    def test_second_signal(self):
        s, body = self.start("--drain-timeout", "60")
        stream = open_stream(s, "/v1/completions", {**body, "max_tokens": 8000, "logprobs": 20})
        s.wait_metric("apr_generated_tokens_total", lambda v: v > 0, 30)
        s.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        start = time.monotonic()
        self.assertEqual(s.stop()[0], 0)
        self.assertLess(time.monotonic() - start, 4 * SLOW)
        stream.close()


if __name__ == "__main__":
    unittest.main()
