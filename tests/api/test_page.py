"""The chat page: what it asks is what the server answers, and what a model writes stays text. tests/api/page.js runs its script where there is a node."""
import html.parser
import json
import os
import re
import shutil
import subprocess
import unittest

from apr_server import SOURCE, Server, events


def setUpModule():
    global server
    server = Server("--threads", "1", "-q", "--temperature", "0")


def tearDownModule():
    assert server.stop()[0] == 0


class Page(html.parser.HTMLParser):
    """Ids, attributes, the script, and whether all that is opened is closed."""

    VOID = {"meta", "link", "input", "br"}

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.attributes, self.script = [], [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)
        self.attributes += attrs
        self.ids += [v for k, v in attrs if k == "id"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.script += data


class ChatPage(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.text = server.get("/", Accept="text/html").body.decode()
        cls.page = Page(cls.text)

    def ask(self, messages, **fields):
        """As the page asks. Returns the reply as the page keeps it."""
        a = server.chat(messages, stream=True, stream_options={"include_usage": True}, **fields)
        self.assertEqual(a.status, 200, a.body)
        reply, finishes, timings = {"role": "assistant", "content": ""}, [], []
        for e in events(a):
            for choice in e["choices"][:1]:
                for name in ("content", "reasoning_content"):
                    if choice["delta"].get(name):
                        reply[name] = reply.get(name, "") + choice["delta"][name]
                finishes.append(choice["finish_reason"])
            if "timings" in e:
                timings.append((e["timings"]["predicted_n"], round(e["timings"]["predicted_per_second"], 1)))
        self.assertEqual((finishes[-1], len(timings)), ("stop", 1))
        return reply

    def test_markup(self):
        self.assertEqual(self.page.open, [])
        self.assertEqual(len(self.page.ids), len(set(self.page.ids)))
        used = set(re.findall(r"\$\('(\w+)'\)", self.page.script))
        self.assertEqual(used - set(self.page.ids), set())
        self.assertGreater(len(used), 5)

    def test_nothing_becomes_markup_and_nothing_comes_from_elsewhere(self):
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "DOMParser", "eval(", "Function(", "localStorage"):
            self.assertNotIn(word, self.page.script)
        for name, value in self.page.attributes:
            self.assertFalse(name.startswith("on") or name in ("src", "action"), name)
            self.assertTrue(name != "href" or value == "data:,", value)
        self.assertNotIn("url(", self.text)

    def test_what_it_asks_is_there(self):
        listed = {r["path"] for r in server.get("/").json["routes"]}
        asked = set(re.findall(r"fetch\('([^']+)'", self.page.script))
        self.assertEqual(asked, {"/v1/models", "/v1/chat/completions"})
        self.assertEqual(asked - listed, set())
        m = server.get("/v1/models").json["data"][0]
        self.assertEqual((m["id"], m["context_length"]), ("apr-demo", 4096))

    def test_turns(self):
        messages = [{"role": "user", "content": "What is the capital of France?"}]
        messages.append(self.ask(messages, enable_thinking=True))
        self.assertEqual((messages[1]["content"], bool(messages[1]["reasoning_content"])), ("The capital of France is Paris.", True))
        messages.append({"role": "user", "content": "What is the capital of Italy?"})
        self.assertEqual(self.ask(messages, enable_thinking=False), {"role": "assistant", "content": "The capital of Italy is Rome."})
        self.assertTrue(self.ask(messages)["content"])

    def test_refusals_say_why(self):
        a = server.chat("word " * 5000, stream=True)
        self.assertEqual(a.status, 400)
        self.assertIn("4096", a.json["error"]["message"])

    @unittest.skipUnless(shutil.which("node"), "there is no node")
    def test_script(self):
        """New chat in the middle of an answer, stopping, broken streams, refusals: the conversation that is sent is the one that is shown."""
        done = subprocess.run(["node", os.path.join(SOURCE, "tests", "api", "page.js"), f"http://{server.host}:{server.port}"], input=json.dumps({"script": self.page.script, "ids": self.page.ids}).encode(),
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120, check=False)
        self.assertEqual((done.returncode, done.stdout.decode()), (0, "ok\n"))


if __name__ == "__main__":
    unittest.main()
