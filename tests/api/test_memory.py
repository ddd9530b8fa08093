"""When memory runs out: headroom goes first, then a refusal by name, and the next small request is served. Nothing ever moves to another device.
Faults: B1 B2 B3."""
import re
import subprocess
import unittest

from apr_server import BINARY, Server

NOTICE = r"\[qwen35\] decode state: 4096 positions would not allocate, sized to the turn \((\d+)\) instead \(#4443\)"
QUESTION = {"role": "user", "content": "What is the capital of France?"}


class Ceiling(unittest.TestCase):
    def ask(self, server, messages, max_tokens):
        return server.chat(messages, temperature=0, max_tokens=max_tokens, enable_thinking=False)

    def test_below_the_headroom(self):
        plain = Server("--threads", "1", "-q")
        wanted = self.ask(plain, [QUESTION], 40).json["choices"][0]["message"]
        plain.stop()
        server = Server("--threads", "1", "--debug", "alloc-ceiling=6M")
        first = self.ask(server, [QUESTION], 40)
        self.assertEqual(first.status, 200, first.body)
        self.assertEqual(first.json["choices"][0]["message"], wanted)
        second = self.ask(server, [QUESTION, wanted, {"role": "user", "content": "And what is the capital of Italy?"}], 40)
        self.assertEqual(second.status, 200, second.body)
        health, metrics = server.get("/health").json, server.metrics()
        self.assertEqual((health["status"], health["compute_mode"], second.json["used_gpu"]), ("ok", "cpu", False))
        self.assertEqual(metrics["apr_state_anomalies_total"], 0)
        status, said = server.stop()
        self.assertEqual(status, 0)
        sizes = [int(x) for x in re.findall(NOTICE, said)]
        self.assertTrue(sizes and sizes[0] == first.json["usage"]["prompt_tokens"] + 40, said)
        starts = [int(x) for x in re.findall(r"cpu batched prefill: \d+ tokens in \d+ ms \([\d.]+ tok/s, from position (\d+)\)", said)]
        self.assertEqual(starts[0], 0)
        self.assertGreater(starts[1], 0)
        self.assertEqual(starts[1], second.json["usage"]["prompt_tokens_details"]["cached_tokens"])
        self.assertNotIn("falling back", said)

    def test_below_the_turn(self):
        server = Server("--threads", "1", "--debug", "alloc-ceiling=6M")
        for _ in range(3):
            refused = self.ask(server, [QUESTION], 3900)
            self.assertEqual(refused.status, 503, refused.body)
            self.assertRegex(refused.json["error"]["message"], r"capacity: a decode state for \d+ positions would not allocate: \d+ positions x 2048 B = \d+\.\d MiB \+ state \d+\.\d MiB, "
                             r"\d+\.\d MiB of it held now\. Shorten the prompt or max_tokens, or give the server more memory")
            self.assertIn("Retry-After", refused.headers)
            served = self.ask(server, [QUESTION], 20)
            self.assertEqual(served.status, 200, served.body)
            self.assertIn("Paris", served.json["choices"][0]["message"]["content"])
        self.assertEqual(server.metrics()['apr_requests_total{outcome="failed"}'], 3)
        status, said = server.stop()
        self.assertEqual((status, said.count("falling back")), (0, 0))

    def test_hardly_anything(self):
        """Less than a connection, than a request, than a state: closed or refused, never a crash, and the program ends as it should."""
        for size in ("0", "64K", "300K", "600K", "1M", "2M"):
            server = Server("--threads", "1", "-q", "--debug", "alloc-ceiling=" + size)
            for _ in range(2):
                try:
                    answer = self.ask(server, [QUESTION], 20)
                    self.assertIn(answer.status, (200, 500, 503), answer.body)
                except OSError:
                    pass
            self.assertEqual(server.stop(), (0, ""), size)

    def test_what_is_no_fault(self):
        for words in ("x=1", "alloc-ceiling", "alloc-ceiling=many", "alloc-fail-nth=0"):
            done = subprocess.run([BINARY, "serve", "run", "demo", "--port", "0", "--debug", words], capture_output=True, timeout=60)
            self.assertEqual((done.returncode, done.stdout), (2, b""))
            self.assertIn(b"--debug", done.stderr)


if __name__ == "__main__":
    unittest.main()
