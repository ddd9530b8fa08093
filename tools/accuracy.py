"""The table of docs/model.md section 8: apr's logits against the golden ones in float64. Standard library only.

    python3 tools/accuracy.py [build/release/apr]
"""
import glob
import json
import math
import os
import struct
import subprocess
import sys

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MODELS = os.path.join(HERE, "tests", "data", "models")


def rows(blob, n):
    width = len(blob) // 4 // n
    flat = struct.unpack(f"<{n * width}f", blob)
    return [flat[i * width : (i + 1) * width] for i in range(n)]


def log_softmax(row):
    top = max(row)
    norm = top + math.log(math.fsum(math.exp(x - top) for x in row))
    return [x - norm for x in row]


def divergence(reference, got):
    """Mean KL(reference || got) in nats."""
    total = 0.0
    for a, b in zip(reference, got):
        la, lb = log_softmax(a), log_softmax(b)
        total += math.fsum(math.exp(x) * (x - y) for x, y in zip(la, lb))
    return max(0.0, total / len(reference))


def worst(reference, got):
    return max(abs(x - y) for a, b in zip(reference, got) for x, y in zip(a, b))


def main():
    binary = sys.argv[1] if len(sys.argv) > 1 else os.path.join(HERE, "build", "release", "apr")
    print("| model | `--exact`: worst logit | default: mean KL | worst logit | equal argmax | llama.cpp: mean KL |\n|---|---|---|---|---|---|")
    for path in sorted(glob.glob(os.path.join(MODELS, "*.p70.all.f32"))):
        name = os.path.basename(path)[: -len(".p70.all.f32")]
        base = os.path.join(MODELS, name)
        n = os.path.getsize(base + ".p70.ids.i32") // 4

        def logits(*flags):
            command = [binary, "logits", base + ".gguf", "-q", "--rows", "all", "--tokens", base + ".p70.ids.i32", "-o", "-", *flags]
            return rows(subprocess.run(command, capture_output=True, check=True).stdout, n)

        with open(path, "rb") as f:
            reference = rows(f.read(), n)
        with open(base + ".json", encoding="utf-8") as f:
            peer = json.load(f).get("peer", {}).get("kl_mean")
        exact, default = logits("--exact"), logits()
        equal = sum(a.index(max(a)) == b.index(max(b)) for a, b in zip(reference, default)) / n
        print(f"| {name} | {worst(reference, exact):.1e} | {divergence(reference, default):.1e} | {worst(reference, default):.2g} | {100 * equal:.0f} % | {f'{peer:.1e}' if peer else '-'} |", flush=True)


if __name__ == "__main__":
    main()
