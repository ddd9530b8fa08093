"""What agents do to a server, turn by turn: nothing that is held is read again, nothing of one request shows in another, memory stays what it was."""
import json
import re
import threading
import time
import unittest

from apr_server import SLOW, Server, demo_cases, events, gather

HEAD = 100  # tokens at most that are read again though they are the same: places to go back to are not closer together than is worth it

SNAPSHOT = 3 * (3 * 1024 + 4 * 128 * 128) * 4  # bytes, of the demo model
TOOLS = [{"type": "function", "function": {"name": name, "description": "Looks something up.", "parameters": {"type": "object", "properties": {"query": {"type": "string"}}}}} for name in ("find", "read", "list")]
SYSTEM = {"role": "system", "content": "You are careful. " * 4}


def setUpModule():
    global server
    server = Server("--threads", "1", "--parallel", "2", "-q")


def tearDownModule():
    assert server.stop()[0] == 0


def ask(messages, **fields):
    a = server.chat(messages, temperature=0, **fields)
    assert a.status == 200, a.body
    return a.json


def cached(a):
    return a["usage"]["prompt_tokens_details"]["cached_tokens"]


def tokens(messages, **fields):
    return server.post("/apply-template", {"messages": messages, **fields}).json["tokens"]


class Conversation:
    """Asks turn by turn, and looks that nothing is read again that the prompt before began with as well."""

    def __init__(self, test, **fields):
        self.test, self.fields, self.last = test, fields, None

    def ask(self, messages, **fields):
        now = tokens(messages, **self.fields)
        a = ask(messages, **self.fields, **fields)
        self.test.assertEqual(a["usage"]["prompt_tokens"], len(now))
        if self.last:
            common = next((i for i, (x, y) in enumerate(zip(self.last, now)) if x != y), min(len(self.last), len(now)))
            self.test.assertGreater(common, len(self.last) // 3)
            self.test.assertGreaterEqual(cached(a), common - HEAD)
        self.last = now
        return a


class Turns(unittest.TestCase):
    def play(self, n_turns, keep):
        """A conversation whose client sends back what keep(message) makes of each answer; every third turn has a tool's result in it. All of it is shorter than long prompts' snapshots are apart."""
        messages, talk = [SYSTEM, {"role": "user", "content": "Where does it say so?"}], Conversation(self, tools=TOOLS)
        for turn in range(n_turns):
            a = talk.ask(messages, max_tokens=40)
            messages.append(keep(a["choices"][0]["message"]))
            if turn % 3 == 1:
                messages[-1]["tool_calls"] = [{"id": "c", "type": "function", "function": {"name": "find", "arguments": "{\"query\": \"it\"}"}}]
                messages.append({"role": "tool", "tool_call_id": "c", "content": f"It is on page {turn}."})
            else:
                messages.append({"role": "user", "content": f"And what is on page {turn}?"})
        self.assertTrue(300 < len(talk.last) < 512, len(talk.last))

    def test_the_client_drops_the_reasoning(self):
        """B5, B24: the answer is rendered otherwise in the next prompt, with an empty thought in its place; only the answer is read again."""
        self.play(5, lambda m: {"role": "assistant", "content": m["content"]})

    def test_the_client_keeps_everything(self):
        """B1, B24."""
        self.play(5, lambda m: {k: v for k, v in m.items() if k != "tool_calls"})

    def test_a_side_request_every_turn(self):
        """B26: titles and summaries, asked in between, leave the long conversation where it is."""
        messages = [{"role": "system", "content": "A long book. " * 400}, {"role": "user", "content": "What is it about?"}]
        talk = Conversation(self)
        talk.ask(messages, max_tokens=10)
        for turn in range(5):
            ask([{"role": "user", "content": f"Give number {turn} a title of three words."}], max_tokens=5, enable_thinking=False)
            messages += [{"role": "assistant", "content": "It is about numbers."}, {"role": "user", "content": f"And chapter {turn}?"}]
            self.assertGreater(cached(talk.ask(messages, max_tokens=10)), 1600)

    def test_many_share_one_beginning(self):
        """B22: whoever comes with the same system block goes on from it, one after the other and all at once, however often it was used."""
        system = {"role": "system", "content": "These are the rules of the house. " * 150}
        first = ask([system, {"role": "user", "content": "Who are you?"}], max_tokens=4)
        shared = first["usage"]["prompt_tokens"] - 40
        self.assertGreater(shared, 900)
        for i in range(3):
            self.assertGreaterEqual(cached(ask([system, {"role": "user", "content": f"{i} things to know, please."}], max_tokens=4)), shared)
        bias = {str(t): -100 for t in server.post("/tokenize", {"content": "<|im_end|><|endoftext|><|fim_pad|><|repo_name|><|file_sep|>"}).json["tokens"]}
        busy = server.connect()  # an answer that is not read, in the place that holds the beginning
        busy.request("POST", "/v1/chat/completions", json.dumps({"messages": [system, {"role": "user", "content": "Tell me all of them."}], "stream": True, "logprobs": True, "top_logprobs": 20,
                                                                 "logit_bias": bias}), {"Content-Type": "application/json"})
        try:
            server.wait_metric("apr_requests_running", lambda v: v == 1, 30)
            for i in range(4):
                self.assertGreaterEqual(cached(ask([system, {"role": "user", "content": f"Tell me {i} of them."}], max_tokens=20)), shared)
            self.assertEqual(server.metrics()["apr_requests_running"], 1)
        finally:
            busy.close()
        got = []
        threads = [threading.Thread(target=lambda i=i: got.append(ask([system, {"role": "user", "content": f"Which are the {i} best?"}], max_tokens=20))) for i in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(len(got), 6)
        for a in got:
            self.assertGreaterEqual(cached(a), shared)

    def test_what_was_said_is_still_there(self):
        """B2: a second turn that is answered from what is held is answered as one that is read anew."""
        code = {"role": "user", "content": "The password is tulip. Keep it."}
        talk = Conversation(self, enable_thinking=False)
        first = talk.ask([code], max_tokens=20)
        messages = [code, first["choices"][0]["message"], {"role": "user", "content": "Which password did I tell you?"}]
        warm = talk.ask(messages, max_tokens=30, logprobs=True)
        self.assertGreater(cached(warm), 0)
        other = Server("--threads", "1", "-q")
        try:
            cold = other.chat(messages, temperature=0, max_tokens=30, enable_thinking=False, logprobs=True).json
        finally:
            other.stop()
        self.assertEqual(cached(cold), 0)
        self.assertEqual(warm["choices"], cold["choices"])


class Apart(unittest.TestCase):
    def test_nothing_of_one_request_shows_in_the_next(self):
        """B39: tools, stop strings, biases, thinking and sampling end with their request."""
        cases = demo_cases()
        calls = next(c for c in cases if c["tools"] and "<tool_call>" in c["text"])
        plain = next(c for c in cases if not c["tools"])

        def answer(case, **fields):
            choice = ask(case["messages"], enable_thinking=case["enable_thinking"], **({"tools": case["tools"]} if case["tools"] else {}), **fields)["choices"][0]
            for call in choice["message"].get("tool_calls", []):
                del call["id"]
            return choice
        wanted = [answer(calls), answer(plain)]
        self.assertIn("tool_calls", wanted[0]["message"])
        word = wanted[1]["message"]["content"][:3]
        for between in ({"stop": [word]}, {"logit_bias": {str(t): -100 for t in server.post("/tokenize", {"content": word}).json["tokens"]}}, {"max_tokens": 1},
                        {"presence_penalty": 100, "seed": 1}, {"logprobs": True, "top_logprobs": 5}, {"tools": TOOLS}):
            ask(plain["messages"], **{"enable_thinking": not plain["enable_thinking"], **between})
            self.assertEqual([answer(calls), answer(plain)], wanted, between)
            self.assertEqual([answer(plain), answer(calls)], wanted[::-1], between)

    def test_logprobs_of_two_at_once(self):
        """B35, B37: as many rows of logits as are asked for, each request's own."""
        body = {"temperature": 0, "max_tokens": 30, "logprobs": True, "top_logprobs": 20, "enable_thinking": False}
        prompts = ["Which port does apr listen on please?", "Tell me about rivers."]
        alone = [server.chat(p, **body).json["choices"][0] for p in prompts]
        for _ in range(5):
            got = [None, None]

            def run(i):
                got[i] = gather(events(server.chat(prompts[i], stream=True, **body)))
            threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            self.assertEqual(got, alone)


class Memory(unittest.TestCase):
    def resident(self):
        """Bytes that are no file's: what this process alone keeps."""
        with open(f"/proc/{server.process.pid}/status", encoding="utf-8") as f:
            return int(re.search(r"RssAnon:\s+(\d+) kB", f.read()).group(1)) << 10

    def labelled(self):
        """Bytes of decode state, and of everything else; the least of some looks: requests are freed a little after their answers."""
        looks = []
        for _ in range(30):
            m = server.metrics()
            state = m['apr_memory_bytes{label="state"}']
            looks.append((sum(v for k, v in m.items() if k.startswith("apr_memory_bytes")) - state, state))
            time.sleep(0.01)
        return min(looks)

    def some_requests(self, n, seed):
        for i in range(n):
            kind = (i + seed) % 5
            if kind == 0:
                ask([SYSTEM, {"role": "user", "content": f"Say {i} again. " * (1 + i % 40)}], max_tokens=4)
            elif kind == 1:
                events(server.chat(f"Count to {i}", stream=True, max_tokens=6, logprobs=True, top_logprobs=3))
            elif kind == 2:
                self.assertEqual(server.post("/v1/chat/completions", {"messages": [{"role": "user"}]}).status, 400)
            elif kind == 3:
                server.post("/tokenize", {"content": "word " * 500})
                server.post("/apply-template", {"messages": [{"role": "user", "content": "x" * i}]})
            else:
                server.post("/v1/completions", {"prompt": [(i * k) % 900 for k in range(1, 200)], "max_tokens": 3})

    def test_hundreds_of_requests_leave_nothing(self):
        """B176."""
        self.some_requests(60, 1)
        resident, (others, state) = self.resident(), self.labelled()
        self.some_requests(300 if SLOW == 1 else 60, 2)
        after = self.labelled()
        self.assertLess(after[0], others + (16 << 10))
        self.assertLessEqual(after[1], state + 16 * SNAPSHOT)  # two sets of snapshots that were not full
        if SLOW == 1:  # sanitizers keep what was freed
            self.assertLess(self.resident(), resident + (8 << 20))

    def test_all_of_it_is_shown(self):
        """B178: what the process keeps is what the metrics say, the snapshots among it."""
        s = Server("--threads", "1", "-q")
        try:
            def resident():
                with open(f"/proc/{s.process.pid}/status", encoding="utf-8") as f:
                    return int(re.search(r"RssAnon:\s+(\d+) kB", f.read()).group(1)) << 10
            s.chat("Hi", max_tokens=2)
            before, state, kept = s.metrics(), s.metrics()['apr_memory_bytes{label="state"}'], resident()
            messages = [{"role": "system", "content": "A long book. " * 300}]
            for i in range(6):
                messages += [{"role": "user", "content": f"Chapter {i}? " * 20}, {"role": "assistant", "content": "It is so. " * 20}]
            s.chat(messages + [{"role": "user", "content": "Why?"}], max_tokens=2)
            after = s.metrics()
            grown = sum(after[k] - before[k] for k in after if k.startswith("apr_memory_bytes"))
            self.assertGreater(after['apr_memory_bytes{label="state"}'] - state, 2 * SNAPSHOT)
            if SLOW == 1:
                self.assertLess(resident() - kept, grown + (24 << 20))  # rows that were counted before are touched now: at most a context of them
        finally:
            self.assertEqual(s.stop()[0], 0)


if __name__ == "__main__":
    unittest.main()
