"""Every golden file through the debug verbs of the program itself."""
import json
import math
import random
import struct
import unittest

import apr

VOCAB = apr.data("tokenizer", "qwen35-vocab.gguf")


class Tokeniser(unittest.TestCase):
    def test_every_text(self):
        inputs = apr.lines(apr.data("tokenizer", "cases.jsonl"))
        self.assertEqual(len(inputs), 1316)
        for case, got in zip(inputs, apr.cases(self, ["debug", "tokenize", VOCAB], [{"text": c["text"]} for c in inputs])):
            self.assertEqual(got, {"ids": case["ids"], "ids_no_special": case.get("ids_no_special", case["ids"])}, case["text"])

    def test_every_stream(self):
        inputs = apr.lines(apr.data("tokenizer", "stream.jsonl"))
        self.assertEqual(len(inputs), 160)
        for case, got in zip(inputs, apr.cases(self, ["debug", "detokenize", VOCAB], [{"ids": c["ids"]} for c in inputs])):
            self.assertEqual(got, {"chunks": case["chunks"]}, case["ids"])

    def test_ids_decode_to_the_text(self):
        inputs = [c for c in apr.lines(apr.data("tokenizer", "cases.jsonl")) if "decoded" not in c]
        for case, got in zip(inputs, apr.cases(self, ["debug", "detokenize", VOCAB], [{"ids": c["ids"]} for c in inputs])):
            self.assertEqual("".join(got["chunks"]), case["text"])

    def test_broken_cases_end_it(self):
        for line, words in ((b"{", "case 1"), (b"5", "not a JSON object"), (b'{"ids": [1]}', '"text" is missing'), (b'{"text": "a"}\n{"text": 1}', 'case 2: "text"')):
            done = apr.run("debug", "tokenize", VOCAB, stdin=line)
            self.assertEqual(done.returncode, 1, line)
            self.assertIn(words, done.stderr.decode())
        done = apr.run("debug", "detokenize", VOCAB, stdin=b'{"ids": [248320]}')
        self.assertEqual(done.returncode, 1)


class Templates(unittest.TestCase):
    def check(self, inputs, got):
        kinds = 0
        for case, answer in zip(inputs, got):
            where = json.dumps(case, ensure_ascii=False)[:300]
            if "out" in case:
                self.assertEqual(answer, {"out": case["out"]}, where)
            else:
                kinds += 1
                self.assertEqual(answer.get("error"), case["error"], where)
                if case["error"] == "raised":
                    self.assertEqual(answer["message"], case["message"], where)
                else:
                    self.assertTrue(answer["message"], where)
        return kinds

    def test_every_rendering(self):
        inputs = apr.lines(apr.data("templates", "cases.jsonl"))
        self.assertEqual(len(inputs), 1311)
        sources = {}
        for c in inputs:
            if c["template"] not in sources:
                with open(apr.data("templates", c["template"]), encoding="utf-8") as f:
                    sources[c["template"]] = f.read()
        got = apr.cases(self, ["debug", "template"], [{"src": sources[c["template"]], "vars": c["vars"]} for c in inputs])
        self.assertGreater(self.check(inputs, got), 50)

    def test_every_feature(self):
        inputs = apr.lines(apr.data("templates", "features.jsonl"))
        self.assertEqual(len(inputs), 123)
        got = apr.cases(self, ["debug", "template"], [{"src": c["src"], "vars": c["vars"]} for c in inputs])
        self.assertGreater(self.check(inputs, got), 5)


class Sampling(unittest.TestCase):
    def setUp(self):
        with open(apr.data("sampling", "cases.json"), encoding="utf-8") as f:
            self.text = f.read()
        self.inputs = json.loads(self.text)
        self.assertEqual(len(self.inputs), 160)

    def check(self, answers):
        self.assertEqual(len(answers), len(self.inputs))
        for case, got in zip(self.inputs, answers):
            if "error" in case:
                self.assertIn("not finite", got["error"])
                continue
            self.assertEqual(len(got["p"]), len(case["p"]))
            self.assertLess(max(abs(a - b) for a, b in zip(got["p"], case["p"])), 1e-6, {k: v for k, v in case.items() if k not in ("p", "logits")})
            self.assertAlmostEqual(math.fsum(got["p"]), 1, places=9)

    def test_the_file_as_it_is(self):
        out = apr.output(self, "debug", "sample", stdin=self.text.encode())
        self.check([json.loads(line) for line in out.decode().split("\n") if line])

    def test_line_by_line(self):
        self.check(apr.cases(self, ["debug", "sample"], [{k: v for k, v in c.items() if k not in ("p", "error")} for c in self.inputs]))


class Replies(unittest.TestCase):
    def test_every_reply_however_it_is_cut(self):
        inputs = apr.lines(apr.data("reply", "cases.jsonl"))
        self.assertEqual(len(inputs), 170)
        asked = [{k: c[k] for k in ("text", "tools", "in_reasoning", "finish")} for c in inputs]
        for cut in (0, 1, 2, 3, 7):
            for case, got in zip(inputs, apr.cases(self, ["debug", "reply"], [{**a, "cut": cut} for a in asked])):
                self.assertEqual(got, case["want"], (case["name"] if "name" in case else case["text"], cut))

    def test_every_stop(self):
        inputs = apr.lines(apr.data("reply", "stop.jsonl"))
        self.assertEqual(len(inputs), 72)
        for case, got in zip(inputs, apr.cases(self, ["debug", "reply"], [{"pieces": c["pieces"], "stop": c["stop"]} for c in inputs])):
            self.assertEqual(got, {"text": case["text"], "matched": case["matched"]}, case)


class Blocks(unittest.TestCase):
    def test_every_type(self):
        with open(apr.data("quant", "index.json"), encoding="utf-8") as f:
            index = json.load(f)
        self.assertGreater(len(index), 20)
        for name in index:
            with open(apr.data("quant", name + ".blocks.bin"), "rb") as f, open(apr.data("quant", name + ".values.f32"), "rb") as g:
                blocks, want = f.read(), g.read()
            got = apr.output(self, "debug", "dequant", name.lower(), stdin=blocks)
            a, b = (struct.unpack(f"<{len(x) // 4}f", x) for x in (got, want))
            self.assertEqual(len(a), len(b), name)
            for x, y in zip(a, b):
                self.assertTrue(x == y or math.isnan(x) and math.isnan(y), (name, x, y))

    def test_every_half(self):
        bits = struct.pack("<65536H", *range(65536))
        for name in ("F16", "BF16"):
            with open(apr.data("quant", name + ".values.f32"), "rb") as f:
                want = f.read()
            a, b = (struct.unpack("<65536f", x) for x in (apr.output(self, "debug", "dequant", name, stdin=bits), want))
            self.assertTrue(all(x == y or math.isnan(x) and math.isnan(y) for x, y in zip(a, b)), name)

    def test_a_block_cut_short(self):
        done = apr.run("debug", "dequant", "Q4_K", stdin=bytes(random.Random(1).randrange(256) for _ in range(200)))
        self.assertEqual((done.returncode, done.stderr), (1, b"apr: standard input ends inside a block of 144 bytes\n"))


if __name__ == "__main__":
    unittest.main()
