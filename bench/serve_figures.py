#!/usr/bin/env python3
"""What a server holds, re-reads and keeps waiting: memory before and after a long turn, time to the first token of later turns, the gaps between tokens of running
streams while a long prompt is read. Starts `apr serve run` on a model and talks to it over HTTP; with --url it talks to any OpenAI-compatible server that already runs.

    bench/serve_figures.py build/release/apr MODEL.gguf [--threads 2] [--turn 4000] [--json]
"""
import argparse
import http.client
import json
import re
import subprocess
import sys
import threading
import time
from urllib.parse import urlparse

MIB = 1 << 20
WORDS = "the river runs past old stone houses while people carry bread and talk about rain wind maps ships and letters".split()


def text(n, seed):
    """About n tokens, the same for the same seed."""
    out, x = [], seed
    for _ in range(n):
        x = (x * 1103515245 + 12345) % (1 << 31)
        out.append(WORDS[(x >> 16) % len(WORDS)])
    return " ".join(out)


class Client:
    def __init__(self, url):
        where = urlparse(url)
        self.host, self.port = where.hostname, where.port

    def chat(self, messages, max_tokens, **fields):
        """(text, seconds to the first token, gaps between tokens in ms, usage)"""
        c = http.client.HTTPConnection(self.host, self.port, timeout=3600)
        body = {"messages": messages, "max_tokens": max_tokens, "temperature": 0, "stream": True, "stream_options": {"include_usage": True},
                "chat_template_kwargs": {"enable_thinking": False}, **fields}
        start = time.monotonic()
        c.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = c.getresponse()
        if answer.status != 200:
            raise SystemExit(f"HTTP {answer.status}: {answer.read().decode()[:300]}")
        said, times, usage = [], [], {}
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                piece = choice["delta"].get("content") or choice["delta"].get("reasoning_content")
                if piece:
                    said.append(piece)
                    times.append(time.monotonic())
        c.close()
        gaps = [(b - a) * 1e3 for a, b in zip(times, times[1:])]
        return "".join(said), (times[0] if times else time.monotonic()) - start, gaps, usage


def user(content):
    return {"role": "user", "content": content}


def said(content):
    return {"role": "assistant", "content": content}


def resident(pid):
    """Bytes that are the process' own: not of mapped files."""
    with open(f"/proc/{pid}/status") as f:
        return int(re.search(r"RssAnon:\s+(\d+) kB", f.read()).group(1)) * 1024


def median(values):
    values = sorted(values)
    return values[len(values) // 2] if values else float("nan")


def cached(usage):
    return (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)


def turns(client, n_tokens, report, after_first):
    """A conversation of n_tokens, and what its variants read again."""
    system, long = {"role": "system", "content": text(200, 7)}, text(n_tokens, 1)
    base = [system, user(long)]
    first, ttft, gaps, usage = client.chat(base, 32)
    report["first_turn_tokens"], report["first_turn_ttft_s"] = usage.get("prompt_tokens"), ttft
    report["gap_ms"] = median(gaps)
    after_first()
    variants = {
        "next turn": base + [said(first), user("And what then?")],
        "same again": base + [said(first), user("And what then?")],
        "regenerated": base,
        "title request": [user("A title for this talk, please: rain and ships.")],
        "next turn after it": base + [said(first), user("And what then?")],
        "last message edited": base + [said(first), user("And why was that so?")],
        "edited in the middle": [system, user(long[: len(long) // 2] + " not so" + long[len(long) // 2:])],
        "back to the unedited": base + [said(first), user("And what then?")],
        "other talk, same system": [system, user(text(300, 3))],
    }
    table = {}
    for name, messages in variants.items():
        _, seconds, _, usage = client.chat(messages, 8)
        table[name] = {"prompt": usage["prompt_tokens"], "read": usage["prompt_tokens"] - cached(usage), "ttft_s": round(seconds, 4)}
    report["turns"] = table
    report["next_turn_ttft_share"] = table["next turn"]["ttft_s"] / ttft


def beside(client, n_tokens, n_streams, report):
    """Streams that run, and a long prompt that comes."""
    alone, both, answers = [], [], {}
    prompts = [[user(f"Story {i}: " + text(20, 50 + i))] for i in range(n_streams)]
    for p in prompts[:1]:
        _, _, gaps, _ = client.chat(p, 48)
        alone = gaps
    running = []

    def stream(i):
        answers[i] = client.chat(prompts[i], 220)

    for i in range(n_streams):
        running.append(threading.Thread(target=stream, args=(i,)))
        running[-1].start()
    time.sleep(1.5)
    start = time.monotonic()
    _, ttft, _, _ = client.chat([user(text(n_tokens, 99))], 4)
    reading = time.monotonic() - start
    for t in running:
        t.join()
    for _, _, gaps, _ in answers.values():
        both += gaps
    report["beside"] = {"streams": n_streams, "gap_ms_one_alone": median(alone), "gap_ms_median": median(both), "gap_ms_p95": sorted(both)[int(0.95 * len(both))], "gap_ms_worst": max(both),
                        "long_prompt_ttft_s": ttft, "long_prompt_s": reading}


def start(args):
    command = [args.apr, "serve", "run", args.model, "--port", "0", "-q"] + (["--threads", str(args.threads)] if args.threads else []) + args.flag
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        if line.startswith("listening on "):
            return process, line.split()[-1]
    raise SystemExit("the server did not start")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("apr", nargs="?")
    p.add_argument("model", nargs="?")
    p.add_argument("--url", help="a server that runs already")
    p.add_argument("--threads", type=int)
    p.add_argument("--turn", type=int, default=4000, help="tokens of the long prompts, about")
    p.add_argument("--streams", type=int, default=1, help="that run while a long prompt is read")
    p.add_argument("--flag", action="append", default=[], help="one more argument for the server")
    p.add_argument("--json", action="store_true")
    args = p.parse_args()
    process, url = (None, args.url) if args.url else start(args)
    report, client = {}, Client(url)
    try:
        if process:
            report["own_mib_before_first_turn"] = resident(process.pid) / MIB
        turns(client, args.turn, report, lambda: process and report.update(own_mib_after_first_turn=resident(process.pid) / MIB))
        if process:
            report["own_mib_after_all"] = resident(process.pid) / MIB
        beside(client, args.turn, args.streams, report)
    finally:
        if process:
            process.terminate()
            process.wait()
    if args.json:
        print(json.dumps(report, indent=2))
        return
    for key, value in report.items():
        if key == "turns":
            for name, row in value.items():
                print(f"{name:26} {row['prompt']:6} tokens, read {row['read']:6}, first token after {row['ttft_s']:.3f} s")
        elif isinstance(value, dict):
            print(key + ": " + ", ".join(f"{k} {v:.1f}" for k, v in value.items()))
        else:
            print(f"{key}: {value:.3f}" if isinstance(value, float) else f"{key}: {value}")


if __name__ == "__main__":
    sys.exit(main())
