"""Conversations on disk: a restart goes on where the last server stopped, and whatever happens to the files, the answers are the same."""
import os
import random
import resource
import signal
import subprocess
import tempfile
import time
import unittest

from apr_server import BINARY, DEMO, Server

SYSTEM = {"role": "system", "content": "Answer in a few words. " + "The harbour is old and the ships are few. " * 12}
QUESTIONS = ["What is the capital of France?", "And what is the capital of Italy?", "What is the capital of Japan?", "What did I ask first?"]


class Talk:
    """A conversation that goes on turn by turn, at temperature 0."""

    def __init__(self, system=SYSTEM):
        self.messages = [system]
        self.turns = 0

    def ask(self, server, question=None):
        """(answer, prompt tokens, cached tokens)"""
        self.messages.append({"role": "user", "content": question or QUESTIONS[self.turns % len(QUESTIONS)]})
        answer = server.chat(self.messages, temperature=0, max_tokens=24, enable_thinking=False)
        if answer.status != 200:
            raise AssertionError(answer.body)
        message, usage = answer.json["choices"][0]["message"], answer.json["usage"]
        self.messages.append({"role": "assistant", "content": message["content"]})
        self.turns += 1
        return message["content"], usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def expected(n, system=SYSTEM):
    """What n turns answer on a server that keeps nothing on disk."""
    server, talk = Server("--threads", "1", "-q"), Talk(system)
    out = [talk.ask(server) for _ in range(n)]
    server.stop()
    return out


class Sessions(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.wanted = expected(4)

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.dir = os.path.join(self.folder.name, "sessions")

    def tearDown(self):
        self.folder.cleanup()

    def server(self, *flags):
        return Server("--threads", "1", "--session-dir", self.dir, *flags)

    def files(self):
        return [os.path.join(self.dir, f) for f in os.listdir(self.dir) if f.endswith(".seg")]

    def play(self, talk, server, n, least_cached=None):
        for _ in range(n):
            turn = talk.turns
            answer, prompt, cached = talk.ask(server)
            self.assertEqual((answer, prompt), self.wanted[turn][:2])
            if least_cached is not None:
                self.assertGreaterEqual(cached, least_cached)
                least_cached = None
        return cached

    def test_a_restart(self):
        """B28: the first turn after it reads no more than it would have without."""
        talk, server = Talk(), self.server()
        self.play(talk, server, 2)
        self.assertEqual(server.stop()[0], 0)
        self.assertEqual(os.stat(self.dir).st_mode & 0o777, 0o700)
        server = self.server()
        cached = self.play(talk, server, 1)
        self.assertEqual(cached, self.wanted[2][2])  # as much as without the restart
        self.assertEqual(server.metrics()["apr_sessions_loaded_total"], 1)
        self.play(talk, server, 1)
        status, said = server.stop()
        self.assertEqual(status, 0)
        self.assertIn(f"from position {cached})", said)
        self.assertIn("sessions: " + self.dir, said)

    def test_back_after_a_restart(self):
        """B28, B29: the last question asked otherwise goes on from the turn before it, the same prompt once more is answered the same."""
        talk, server = Talk(), self.server("-q")
        self.play(talk, server, 3)
        server.stop()
        again, other = talk.messages[:-1], talk.messages[:-2] + [{"role": "user", "content": "And of Spain?"}]

        def ask(s, messages):
            a = s.chat(messages, temperature=0, max_tokens=24, enable_thinking=False).json
            return a["choices"][0]["message"]["content"], a["usage"]["prompt_tokens_details"]["cached_tokens"]
        cold = Server("--threads", "1", "-q")
        wanted = ask(cold, other)[0]
        cold.stop()
        server = self.server("-q")
        answer, cached = ask(server, other)
        self.assertEqual(answer, wanted)
        self.assertGreater(cached, self.wanted[1][2])
        server.stop()
        server = self.server("-q")
        answer, cached = ask(server, again)
        self.assertEqual(answer, self.wanted[2][0])
        self.assertGreater(cached, self.wanted[1][2])
        server.stop()

    def test_one_slot_and_two_talks(self):
        server = self.server("--parallel", "1", "-q")
        a, b = Talk(), Talk({"role": "system", "content": "You are brief. " + "Snow fell on the hills all night long. " * 12})
        for _ in range(3):
            self.play(a, server, 1)
            b.ask(server)
        self.assertGreaterEqual(server.metrics()["apr_sessions_loaded_total"], 2)  # each comes back from the disk in turn
        server.stop()
        server = self.server("-q")
        self.play(a, server, 1, least_cached=self.wanted[2][2])
        self.assertGreater(b.ask(server)[2], 100)
        server.stop()

    def test_files_that_are_not_what_they_were(self):
        """B31: links, too, are no more than a line on the log."""
        def flip(path):
            with open(path, "r+b") as f:
                f.seek(os.path.getsize(path) * 2 // 3)
                byte = f.read(1)
                f.seek(-1, os.SEEK_CUR)
                f.write(bytes([byte[0] ^ 1]))

        def shorten(path):
            os.truncate(path, os.path.getsize(path) - 100)

        def link(path):
            os.rename(path, path + ".elsewhere")
            os.symlink(path + ".elsewhere", path)

        def empty(path):
            os.truncate(path, 0)

        for harm in (flip, shorten, link, empty, os.unlink):
            with self.subTest(harm.__name__), tempfile.TemporaryDirectory() as folder:
                self.dir = os.path.join(folder, "s")
                talk, server = Talk(), self.server("-q")
                self.play(talk, server, 2)
                server.stop()
                self.assertTrue(self.files())
                for path in self.files():
                    harm(path)
                server = self.server()
                self.assertEqual(self.play(talk, server, 1), 0)
                self.play(talk, server, 1)
                status, said = server.stop()
                self.assertEqual(status, 0)
                self.assertIn("sessions: ", said)

    def test_another_model_and_another_arithmetic(self):
        """B32"""
        talk, server = Talk(), self.server("-q")
        self.play(talk, server, 2)
        server.stop()
        server = self.server("-q", "--exact")
        self.assertEqual(talk.ask(server)[2], 0)
        server.stop()

    def test_the_budget(self):
        """B29: the folder stays within it."""
        server = self.server("-q", "--session-budget", "3M", "--parallel", "2")
        for i in range(8):
            talk = Talk({"role": "system", "content": f"Talk number {i}. " + "The baker sold bread to a sailor. " * 14})
            talk.ask(server)
            talk.ask(server)
            self.assertLessEqual(server.metrics()["apr_session_bytes"], 3 << 20)
        server.wait_metric("apr_session_segments_evicted_total", lambda v: v > 0, 30)
        server.stop()
        self.assertLessEqual(sum(os.path.getsize(f) for f in self.files()), 3 << 20)
        server = self.server("-q")
        self.assertGreater(talk.ask(server)[2], 60)  # the last one is there
        server.stop()

    def test_refusals(self):
        server = self.server("-q")
        second = subprocess.run([BINARY, "serve", "run", DEMO, "--port", "0", "-q", "--session-dir", self.dir], capture_output=True, timeout=60)
        self.assertEqual(second.returncode, 1)
        self.assertIn(self.dir.encode(), second.stderr)
        server.stop()
        path = os.path.join(self.folder.name, "file")
        open(path, "w").close()
        for words, status in ((["--session-dir", path], 1), (["--session-dir", os.path.join(path, "below")], 1), (["--session-dir", ""], 2), (["--session-budget", "1G"], 2)):
            done = subprocess.run([BINARY, "serve", "run", DEMO, "--port", "0", "-q", *words], capture_output=True, timeout=60)
            self.assertEqual(done.returncode, status, done.stderr)
            self.assertIn(b"session", done.stderr)

    def test_a_disk_that_takes_nothing(self):
        """Files may not grow beyond a few pages: nothing is saved, everything is answered."""
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (100 << 10, 100 << 10))
        talk, real = Talk(), subprocess.Popen
        try:
            subprocess.Popen = lambda *a, **k: real(*a, preexec_fn=limit, **k)
            server = self.server()
        finally:
            subprocess.Popen = real
        self.play(talk, server, 3)
        server.wait_metric("apr_session_segments_failed_total", lambda v: v > 0, 30)
        status, said = server.stop()
        self.assertEqual(status, 0)
        self.assertIn("sessions: ", said)
        server = self.server("-q")
        self.play(talk, server, 1)
        server.stop()

    def test_killed_at_any_moment(self):
        """Whatever was on its way is lost; what was saved before is there; every answer is right."""
        chance = random.Random(5)
        talk, saved = Talk(), 0
        for i in range(100):
            server = self.server("-q")
            if talk.turns == 4:
                talk = Talk()
            turn = talk.turns
            answer, prompt, cached = talk.ask(server)
            self.assertEqual((answer, prompt), self.wanted[turn][:2], f"kill {i}")
            saved += cached > 0
            time.sleep(chance.choice((0, 0, chance.random() * 0.01, chance.random() * 0.05)))
            self.assertEqual(server.stop(signal.SIGKILL)[0], -signal.SIGKILL)
        self.assertGreater(saved, 50)


if __name__ == "__main__":
    unittest.main()
