"""Two or more OpenAI-compatible servers side by side: standard library only.

    python3 tools/bench_peer.py apr=http://127.0.0.1:8080 peer=http://127.0.0.1:9090 [--prompt-words 400] [--max-tokens 64] [--repeat 5] [--streams 1,2,4]

Each round asks every server in turn, in reversed order every other round, so that a machine whose speed wanders treats all alike. Every prompt is new, so
that nothing is reused, but for the second turn, which extends the first. Prints medians (least-most) and the ratio to the last server named: above 1 the first is better.
"""
import argparse
import json
import random
import statistics
import sys
import threading
import time
import urllib.request

WORDS = "river stone light paper garden window market letter silver morning bridge winter forest number table music orange summer travel answer".split()


class Answer:
    """One streamed chat completion: when its pieces came."""

    def __init__(self, url, messages, max_tokens):
        body = {"messages": messages, "max_tokens": max_tokens, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True,
                "chat_template_kwargs": {"enable_thinking": False}}
        request = urllib.request.Request(url.rstrip("/") + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        self.text, self.times, self.tokens, self.cached = "", [], None, None
        self.start = time.monotonic()
        with urllib.request.urlopen(request, timeout=1800) as reply:
            for line in reply:
                if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
                    self.take(json.loads(line[6:]))
        self.end = time.monotonic()
        if not self.times:
            sys.exit(f"{url}: no text came")

    def take(self, event):
        if "error" in event:
            sys.exit(f"the server answered: {event['error']}")
        usage = event.get("usage") or {}
        self.tokens = usage.get("completion_tokens", self.tokens)
        self.cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", self.cached)
        for choice in event.get("choices") or []:
            delta = choice.get("delta") or {}
            piece = (delta.get("content") or "") + (delta.get("reasoning_content") or "")
            if piece:
                self.text += piece
                self.times.append(time.monotonic())

    def first_ms(self):
        return (self.times[0] - self.start) * 1000

    def count(self):
        return self.tokens or len(self.times)

    def rate(self):
        seconds = self.times[-1] - self.times[0]
        return (self.count() - 1) / seconds if seconds > 0 else 0.0


def prompt(rng, n_words):
    return "Go on with this list: " + " ".join(rng.choice(WORDS) for _ in range(n_words))


def alone(url, rng, a, out):
    question = [{"role": "user", "content": prompt(rng, a.prompt_words)}]
    first = Answer(url, question, a.max_tokens)
    out.setdefault("first token, ms (less is better)", []).append(first.first_ms())
    out.setdefault("generation, tok/s", []).append(first.rate())
    more = question + [{"role": "assistant", "content": first.text}, {"role": "user", "content": "And then?"}]
    out.setdefault("second turn, first token, ms (less is better)", []).append(Answer(url, more, 8).first_ms())


def together(url, rng, a, n, out):
    prompts, answers = [prompt(rng, a.prompt_words) for _ in range(n)], []
    start = time.monotonic()
    threads = [threading.Thread(target=lambda p=p: answers.append(Answer(url, [{"role": "user", "content": p}], a.max_tokens))) for p in prompts]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if len(answers) == n:
        out.setdefault(f"{n} at once, tok/s in all", []).append(sum(x.count() for x in answers) / (max(x.end for x in answers) - start))
        out.setdefault(f"{n} at once, earliest first token, ms (less is better)", []).append(min(x.first_ms() for x in answers))


def show(values):
    return f"{statistics.median(values):.1f} ({min(values):.1f}-{max(values):.1f})"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("servers", nargs="+", help="NAME=URL")
    p.add_argument("--prompt-words", type=int, default=400)
    p.add_argument("--max-tokens", type=int, default=64)
    p.add_argument("--repeat", type=int, default=5)
    p.add_argument("--streams", default="1,2,4", help="how many requests at once, as a list")
    a = p.parse_args()
    servers = [s.partition("=")[::2] for s in a.servers]
    results = {name: {} for name, _ in servers}
    for round_number in range(a.repeat):
        for name, url in servers if round_number % 2 == 0 else servers[::-1]:
            rng = random.Random(f"{round_number}")
            for n in map(int, a.streams.split(",")):
                if n == 1:
                    alone(url, rng, a, results[name])
                else:
                    together(url, rng, a, n, results[name])
        print(f"round {round_number + 1} of {a.repeat}", file=sys.stderr)
    last = servers[-1][0]
    for key in results[last]:
        line = [f"{name} {show(results[name][key])}" for name, _ in servers if key in results[name]]
        base = statistics.median(results[last][key])
        mine = statistics.median(results[servers[0][0]].get(key, [0]))
        ratio = (base / mine if "less is better" in key else mine / base) if mine and base else 0
        print(f"{key}: " + ", ".join(line) + (f", ratio {ratio:.2f}" if len(servers) > 1 else ""))


if __name__ == "__main__":
    main()
