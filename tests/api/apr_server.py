"""A server under test, and HTTP to it by the standard library alone."""
import http.client
import json
import os
import signal
import socket
import subprocess
import tempfile
import time

BINARY = os.environ["APR_BINARY"]
SOURCE = os.environ["APR_SOURCE"]
DEMO = os.path.join(SOURCE, "models", "apr-demo.gguf")
SLOW = 20 if "san" in os.path.basename(os.environ.get("APR_BUILD", "")) else 1  # how much slower than a release build


def model(name):
    return os.path.join(SOURCE, "tests", "data", "models", name)


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)


class Server:
    def __init__(self, *args, file=DEMO):
        self.errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen([BINARY, "serve", "run", file, "--port", "0", *args], stdout=subprocess.PIPE, stderr=self.errors)
        for line in self.process.stdout:
            if line.startswith(b"listening on http://"):
                self.host, port = line.decode().strip().removeprefix("listening on http://").rsplit(":", 1)
                self.port = int(port)
                return
        self.errors.seek(0)
        raise AssertionError("the server did not start: " + self.errors.read().decode(errors="replace"))

    def stop(self, how=signal.SIGTERM, timeout=60):
        """Ends it; returns (exit status, standard error)."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        self.process.stdout.close()
        self.errors.seek(0)
        text = self.errors.read().decode(errors="replace")
        self.errors.close()
        return self.process.returncode, text

    def connect(self, timeout=120):
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout)

    def raw(self, timeout=60):
        return socket.create_connection((self.host, self.port), timeout=timeout)

    def request(self, method, path, body=None, headers=None, timeout=300):
        """One request on a connection of its own. A dict or list goes as JSON."""
        headers = dict(headers or {})
        if isinstance(body, (dict, list)):
            body = json.dumps(body).encode()
        if body is not None:
            headers.setdefault("Content-Type", "application/json")
        c = self.connect(timeout)
        try:
            c.request(method, path, body, headers)
            r = c.getresponse()
            return Answer(r.status, r.headers, r.read())
        finally:
            c.close()

    def get(self, path, **headers):
        return self.request("GET", path, headers={k.replace("_", "-"): v for k, v in headers.items()})

    def post(self, path, body, **headers):
        return self.request("POST", path, body, headers={k.replace("_", "-"): v for k, v in headers.items()})

    def chat(self, text_or_messages, **fields):
        messages = [{"role": "user", "content": text_or_messages}] if isinstance(text_or_messages, str) else text_or_messages
        return self.post("/v1/chat/completions", {"messages": messages, **fields})

    def metrics(self):
        out = {}
        for line in self.get("/metrics").body.decode().splitlines():
            if not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                out[name] = float(value)
        return out

    def wait_metric(self, name, wanted, limit_s):
        """Seconds until a metric has a value; fails after limit_s."""
        start = time.monotonic()
        while True:
            value = self.metrics()[name]
            if wanted(value):
                return time.monotonic() - start
            if time.monotonic() - start > limit_s:
                raise AssertionError(f"{name} is {value} after {limit_s} s")
            time.sleep(0.01)


def events(answer):
    """The documents of a stream's data lines, which end with [DONE]."""
    blocks = [b for b in answer.body.decode("utf-8").split("\n\n") if b and not b.startswith(":")]
    for block in blocks:
        assert block.startswith("data: ") and "\n" not in block, block
    assert blocks and blocks[-1] == "data: [DONE]", blocks[-3:]
    return [json.loads(b[6:]) for b in blocks[:-1]]


def gather(chunks):
    """What a chat stream adds up to, in the form of a whole answer's choice."""
    message, finish, calls, tops = {"role": None, "content": ""}, None, [], []
    for chunk in chunks:
        for choice in chunk["choices"]:
            delta = choice["delta"]
            if "role" in delta:
                assert message["role"] is None
                message["role"] = delta["role"]
            message["content"] += delta.get("content") or ""
            if "reasoning_content" in delta:
                message["reasoning_content"] = message.get("reasoning_content", "") + delta["reasoning_content"]
            for call in delta.get("tool_calls", []):
                if call["index"] == len(calls):
                    assert call["function"]["arguments"] == "" and call["type"] == "function" and call["id"] and call["function"]["name"]
                    calls.append({"id": call["id"], "type": "function", "function": {"name": call["function"]["name"], "arguments": ""}})
                else:
                    assert set(call) == {"index", "function"} and set(call["function"]) == {"arguments"}, call
                    calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
            if choice["logprobs"]:
                tops += choice["logprobs"]["content"]
            if choice["finish_reason"]:
                assert finish is None
                finish = choice["finish_reason"]
    if calls:
        message["tool_calls"] = calls
        message["content"] = message["content"] or None
    return {"index": 0, "message": message, "logprobs": {"content": tops} if tops else None, "finish_reason": finish}


def demo_cases():
    """Prompts that the demo model is known to answer, with their tools. Where thinking is off their prompts were made without the reasoning of earlier turns."""
    with open(os.path.join(SOURCE, "tests", "data", "demo-expected.jsonl"), encoding="utf-8") as f:
        cases = [case for case in map(json.loads, f) if case["correct"]]
    for case in cases:
        case["messages"] = [{k: v for k, v in m.items() if case["enable_thinking"] or k != "reasoning_content"} for m in case["messages"]]
    return cases
