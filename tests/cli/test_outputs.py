"""What the verbs over a file print, to the byte. `python3 test_outputs.py --write` writes expected/ anew: read the difference before it is committed."""
import json
import math
import os
import struct
import sys
import tempfile
import unittest

import apr

EXPECTED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "expected")
CASES = {
    "inspect-r2-q4_k_m": ["inspect", "tests/data/models/r2-q4_k_m.gguf"],
    "inspect-moe": ["inspect", "tests/data/models/moe-q4_k_m.gguf"],
    "inspect-mtp-json": ["inspect", "tests/data/models/mtp-q4_k_m.gguf", "--json"],
    "inspect-split-json": ["inspect", "tests/data/models/split/r2-q8_0-00002-of-00003.gguf", "--json"],
    "tensors-r1": ["tensors", "tests/data/models/r1-q4_k_m.gguf"],
    "tensors-r1-filter-json": ["tensors", "tests/data/models/r1-q4_k_m.gguf", "--filter", r"^blk\.(0|3)\.attn_(q|qkv)\.", "--json"],
    "tensors-none-json": ["tensors", "tests/data/models/r1-q4_k_m.gguf", "--filter", "nothing", "--json"],
    "tokenize": ["tokenize", "tests/data/tokenizer/qwen35-vocab.gguf", "The quick brown fox.<|im_end|><think>\n12345"],
    "tokenize-no-special": ["tokenize", "tests/data/tokenizer/qwen35-vocab.gguf", "The quick brown fox.<|im_end|><think>\n12345", "--no-special"],
    "tokenize-verbose": ["tokenize", "tests/data/tokenizer/qwen35-vocab.gguf", "caf\u00e9 \U0001f680\n", "-v"],
    "tokenize-json": ["tokenize", "tests/data/tokenizer/qwen35-vocab.gguf", "Hi there", "--json"],
    "detokenize": ["detokenize", "tests/data/tokenizer/qwen35-vocab.gguf", "248045", "39", "77", "248046"],
    "detokenize-json": ["detokenize", "tests/data/tokenizer/qwen35-vocab.gguf", "101127", "9008", "239", "--json"],
    "template": ["template", "demo", "--messages", "tests/cli/messages.json", "--no-think"],
    "template-tokens": ["template", "demo", "--messages", "tests/cli/messages.json", "--tokens", "--think"],
    "template-file": ["template", "demo", "--messages", "tests/cli/messages.json", "--template-file", "tests/data/templates/qwen2.5.jinja"],
}


def normal(text):
    """Paths of this machine out."""
    return text.replace(os.path.realpath(apr.SOURCE), "SOURCE").replace(apr.SOURCE, "SOURCE")


def output(test, name):
    here = os.getcwd()
    os.chdir(apr.SOURCE)
    try:
        return normal(apr.output(test, *CASES[name]).decode("utf-8"))
    finally:
        os.chdir(here)


class Outputs(unittest.TestCase):
    maxDiff = None

    def test_to_the_byte(self):
        for name in CASES:
            with self.subTest(name), open(os.path.join(EXPECTED, name), encoding="utf-8") as f:
                self.assertEqual(output(self, name), f.read())

    def test_json_is_json(self):
        for name in CASES:
            if name.endswith("-json"):
                json.loads(output(self, name))

    def test_expected_files_are_used(self):
        self.assertEqual(sorted(os.listdir(EXPECTED)), sorted(CASES))


class Inputs(unittest.TestCase):
    MODEL = apr.data("tokenizer", "qwen35-vocab.gguf")

    def test_text_from_a_file_and_from_standard_input(self):
        text = "line one\nline two \u65e5\u672c\n"
        want = apr.output(self, "tokenize", self.MODEL, text)
        self.assertEqual(apr.output(self, "tokenize", self.MODEL, stdin=text.encode()), want)
        self.assertEqual(apr.output(self, "tokenize", self.MODEL, "--file", "-", stdin=text.encode()), want)
        with tempfile.NamedTemporaryFile() as f:
            f.write(text.encode())
            f.flush()
            self.assertEqual(apr.output(self, "tokenize", self.MODEL, "--file", f.name), want)

    def test_bytes_that_are_no_text(self):
        ids = apr.output(self, "tokenize", self.MODEL, stdin=b"a\xff\x00b\xe6\x97").decode().split()
        self.assertEqual(apr.output(self, "detokenize", self.MODEL, *ids), "a\ufffd\0b\ufffd\n".encode())

    def test_nothing(self):
        self.assertEqual(apr.output(self, "tokenize", self.MODEL, ""), b"\n")

    def test_messages_that_are_none(self):
        for document, words in ((b"[", "JSON"), (b'{"a": 1}', "messages"), (b"[]", "No messages provided."), (b'[{"role": "nobody", "content": "x"}]', ""), (b'[{"role": "user", "content": 5}]', "")):
            done = apr.run("template", "demo", "--messages", "-", stdin=document)
            self.assertEqual(done.returncode, 1, document)
            self.assertIn(words, done.stderr.decode())

    def test_validate(self):
        text = apr.output(self, "validate", "demo").decode()
        self.assertRegex(text, r"^structure: 55 tensors .*\nwords: 4096 tokens, 3807 merges, .* chat template renders .*\nnumbers: 5526680 values of 55 tensors are finite .*\nverdict: \S+apr-demo.gguf is sound\n$")
        document = json.loads(apr.output(self, "validate", "demo", "--json"))
        self.assertEqual((document["verdict"], document["elements"], document["chat_template"]), ("sound", 5526680, True))

    def test_plan(self):
        """The worked figures of the contract: what does not fit is refused with the arithmetic and the way out."""
        text = apr.output(self, "serve", "plan", "demo", "--memory-limit", "1GiB").decode()
        self.assertIn("(4096 positions x 2048 B, f32; taken as used)", text)
        plan = json.loads(apr.output(self, "serve", "plan", "demo", "--memory-limit", "1G", "-c", "1000", "--parallel", "3", "--json"))
        self.assertEqual((plan["weight_bytes"], plan["kv_bytes_per_position"], plan["context_length"], plan["declared_context_length"], plan["slots"], plan["state_bytes_per_slot"]),
                         (5935712, 2048, 1000, 4096, 3, 3 * (3 * 1024 + 4 * 128 * 128) * 4))
        parts = plan["weight_bytes"] + 1000 * 2048 + 3 * plan["state_bytes_per_slot"] + plan["workspace_bytes"] + plan["overhead_bytes"]
        self.assertEqual((plan["total_bytes"], plan["snapshots_per_slot"]), (parts, 8))
        done = apr.run("serve", "plan", "demo", "--memory-limit", "10M")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr.decode(), r"^apr: capacity: \w+: weights \d+ MiB \+ KV \d+ MiB \(\d+ positions x \d+ B at f16\) \+ state \d+ MiB \+ workspace \d+ MiB \+ overhead \d+ MiB = \d+ MiB, against 10 MiB free of \d+ MiB \(--memory-limit\)\. \S.*\n$")
        tight = json.loads(apr.output(self, "serve", "plan", "demo", "--memory-limit", str(parts - plan["workspace_bytes"] // 2), "-c", "1000", "--parallel", "3", "--cache-type", "f32", "--json"))
        self.assertLess(tight["workspace_bytes"], plan["workspace_bytes"])
        done = apr.run("serve", "plan", "demo", "-c", "4097")
        self.assertEqual((done.returncode, done.stderr.decode()), (1, "apr: --context-length 4097 is above the model's declared context of 4096\n"))


class Logits(unittest.TestCase):
    def floats(self, blob):
        return struct.unpack(f"<{len(blob) // 4}f", blob)

    def worst(self, a, b):
        self.assertEqual(len(a), len(b))
        return max(abs(x - y) for x, y in zip(self.floats(a), self.floats(b)))

    def test_exact_logits(self):
        for name in ("r1-q4_k_m", "r2-f32", "r3-q4_k_m", "mtp-q4_k_m"):
            model = apr.data("models", name + ".gguf")
            for prompt in ("p7", "p70", "p600"):
                got = apr.output(self, "logits", model, "--exact", "-q", "--tokens", apr.data("models", f"{name}.{prompt}.ids.i32"), "-o", "-")
                with open(apr.data("models", f"{name}.{prompt}.last.f32"), "rb") as f:
                    self.assertLess(self.worst(got, f.read()), 1e-3, (name, prompt))

    def test_all_rows(self):
        model, ids = apr.data("models", "r2-q8_0.gguf"), apr.data("models", "r2-q8_0.p70.ids.i32")
        with tempfile.TemporaryDirectory() as d:
            path = os.path.join(d, "out.f32")
            self.assertEqual(apr.output(self, "logits", model, "--exact", "-q", "--rows", "all", "--tokens", ids, "-o", path), b"")
            with open(path, "rb") as f, open(apr.data("models", "r2-q8_0.p70.all.f32"), "rb") as g:
                self.assertLess(self.worst(f.read(), g.read()), 1e-3)

    def test_threads_and_rungs_agree(self):
        args = ["logits", apr.data("models", "r2-q4_k_m.gguf"), "-q", "--tokens", apr.data("models", "r2-q4_k_m.p70.ids.i32"), "-o", "-", "--rows", "all"]
        one, two = apr.output(self, *args, "-t", "1"), apr.output(self, *args, "-t", "2")
        self.assertEqual(one, two)
        self.assertLess(self.worst(apr.output(self, *args, "--exact", "--cpu-rung", "scalar"), apr.output(self, *args, "--exact")), 1e-3)

    def test_what_cannot_be_scored(self):
        model = apr.data("models", "r2-f32.gguf")
        for blob, words in ((b"", "no list"), (b"abcde", "no list"), (struct.pack("<i", 1024), "1024"), (struct.pack("<i", -1), "-1"), (struct.pack("<i", 1) * 8193, "8192")):
            done = apr.run("logits", model, "-q", "--tokens", "-", "-o", "-", stdin=blob)
            self.assertEqual((done.returncode, done.stdout), (1, b""), blob[:8])
            self.assertIn(words, done.stderr.decode())

    def likelihood(self, ids, piece):
        """Mean negative log-likelihood by the logits themselves, in pieces."""
        total = n = 0
        for at in range(0, len(ids), piece):
            part = ids[at : at + piece]
            if len(part) < 2:
                continue
            blob = apr.output(self, "logits", "demo", "--exact", "-q", "--rows", "all", "--tokens", "-", "-o", "-", stdin=struct.pack(f"<{len(part) - 1}i", *part[:-1]))
            rows = self.floats(blob)
            for i, target in enumerate(part[1:]):
                row = rows[i * 4096 : (i + 1) * 4096]
                top = max(row)
                total += top + math.log(math.fsum(math.exp(x - top) for x in row)) - row[target]
                n += 1
        return total / n, n

    def test_perplexity(self):
        text = "The capital of France is Paris. The capital of Italy is Rome. " * 3
        ids = json.loads(apr.output(self, "tokenize", "demo", "--no-special", "--json", text))["ids"]
        for flags, piece in (([], 2048), (["-c", "16"], 16), (["-c", "2"], 2)):
            got = json.loads(apr.output(self, "perplexity", "demo", "--file", "-", "--exact", "-q", "--json", *flags, stdin=text.encode()))
            nll, n = self.likelihood(ids, piece)
            self.assertEqual((got["tokens"], got["scored"]), (len(ids), n))
            self.assertAlmostEqual(got["nll"], nll, delta=1e-5)
            self.assertAlmostEqual(got["perplexity"], math.exp(nll), delta=1e-3)
        done = apr.run("perplexity", "demo", "--file", "-", "-q", stdin=b"")
        self.assertEqual((done.returncode, done.stderr), (1, b"apr: the text has 0 tokens; at least two are needed to predict one\n"))


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        os.makedirs(EXPECTED, exist_ok=True)
        for case in CASES:
            with open(os.path.join(EXPECTED, case), "w", encoding="utf-8") as out:
                out.write(output(unittest.TestCase(), case))
    else:
        unittest.main()
