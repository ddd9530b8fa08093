"""Damaged, odd and hostile model files through the program (B186-B191, S2-S12): each refused with one sentence that says what is wrong, or loaded."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

import apr

MAKER = os.path.join(apr.SOURCE, "tests", "tools", "make_badgguf.py")
DEMO = os.path.join(apr.SOURCE, "models", "apr-demo.gguf")
SANITIZED = "san" in os.path.basename(os.environ.get("APR_BUILD", ""))


class Refused(unittest.TestCase):
    def check_refusal(self, done, *words):
        text = done.stderr.decode(errors="replace")
        self.assertEqual(done.returncode, 1, text)
        self.assertEqual(text.count("\n"), 1, text)
        self.assertTrue(text.startswith("apr: "), text)
        for word in words:
            self.assertIn(word, text)


class Suite(Refused):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        subprocess.run([sys.executable, MAKER, cls.folder], check=True, stdout=subprocess.DEVNULL)
        with open(os.path.join(cls.folder, "manifest.json"), encoding="utf-8") as f:
            cls.manifest = json.load(f)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def each(self, must):
        entries = [e for e in self.manifest if e["must"] == must]
        self.assertEqual(len(entries), {"refuse": 157, "load": 20}[must])
        for e in entries:
            with self.subTest(e["file"]):
                yield e, os.path.join(self.folder, e["file"])

    def test_every_damaged_file_is_refused(self):
        for e, path in self.each("refuse"):
            for verb in ("inspect", "validate"):
                start = time.monotonic()
                done = apr.run(verb, path)
                seconds = time.monotonic() - start
                self.check_refusal(done, e["name"], path)
                self.assertLess(seconds, 10 if SANITIZED else 1)

    def test_every_odd_file_loads(self):
        for e, path in self.each("load"):
            for verb in ("inspect", "validate"):
                done = apr.run(verb, path)
                self.assertEqual(done.returncode, 0, done.stderr)

    def test_refusals_as_json(self):
        for name in ("cut-60", "arch-unknown", "missing-blk.1.ssm_a", "type-139"):
            done = apr.run("validate", os.path.join(self.folder, name + ".gguf"), "--json")
            error = json.loads(done.stdout)["error"]
            self.assertEqual((done.returncode, error["exit_code"]), (1, 1))
            self.assertIn(name, error["message"])

    def test_the_verbs_that_load_refuse_alike(self):
        for name, word in (("missing-blk.1.ssm_a", "blk.1.ssm_a"), ("arch-unknown", "llama9"), ("cut-1500", ""), ("type-i32", "I32")):
            path = os.path.join(self.folder, name + ".gguf")
            sentences = set()
            for verb in (["run", path, "hi"], ["chat", path], ["serve", "run", path, "--port", "0"], ["bench", path]):
                done = apr.run(*verb, "-q")
                self.check_refusal(done, word)
                sentences.add(done.stderr)
            self.assertEqual(len(sentences), 1, sentences)

    def test_a_file_without_a_template_completes_and_does_not_chat(self):
        path = os.path.join(self.folder, "no-template.gguf")
        done = apr.run("run", path, "ab", "-q", "--raw", "-n", "2", "--temperature", "0")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.check_refusal(apr.run("run", path, "ab", "-q"), "chat template", "--template-file")


class Places(Refused):
    """What a path may lead to."""

    def test_what_is_no_file(self):
        with tempfile.TemporaryDirectory() as d:
            fifo, loop, empty, folder = (os.path.join(d, n) for n in ("a.gguf", "b.gguf", "c.gguf", "d.gguf"))
            os.mkfifo(fifo)
            os.symlink(loop, loop)
            open(empty, "wb").close()
            os.mkdir(folder)
            missing = os.path.join(d, "e.gguf")
            for path, words in ((fifo, ["regular file"]), (loop, ["symbolic links"]), (empty, []), (folder, ["director"]), (missing, ["No such file"])):
                for verb in ("inspect", "validate"):
                    self.check_refusal(apr.run(verb, path, timeout=20), path, *words)

    def test_unreadable(self):
        with tempfile.TemporaryDirectory() as d:
            os.chmod(d, 0o755)
            path, binary = os.path.join(d, "a.gguf"), os.path.join(d, "apr")
            shutil.copy(DEMO, path)
            shutil.copy(apr.BINARY, binary)
            os.chmod(path, 0)
            nobody = {"user": 65534} if os.geteuid() == 0 else {}  # root reads everything
            done = subprocess.run([binary, "validate", path], capture_output=True, cwd=d, timeout=60, **nobody)
            self.check_refusal(done, path, "Permission denied")

    def test_a_name_nobody_knows(self):
        self.check_refusal(apr.run("inspect", "qwen"), "qwen", "demo", "apr-qwen.gguf")

    def test_truncated_download(self):
        """B190: says how many bytes are missing."""
        with tempfile.TemporaryDirectory() as d:
            path = os.path.join(d, "a.gguf")
            with open(DEMO, "rb") as f, open(path, "wb") as g:
                whole = f.read()
                g.write(whole[: len(whole) - 4096])
            self.check_refusal(apr.run("inspect", path), path, "missing")

    def test_symlink(self):
        with tempfile.TemporaryDirectory() as d:
            path = os.path.join(d, "a.gguf")
            os.symlink(DEMO, path)
            self.assertEqual(apr.run("inspect", path).returncode, 0)

    def test_any_part_of_a_split_file(self):
        """B188: any part, also through a link."""
        parts = [apr.data("models", "split", f"r2-q8_0-0000{i}-of-00003.gguf") for i in (1, 2, 3)]
        whole = json.loads(apr.output(self, "tensors", apr.data("models", "r2-q8_0.gguf"), "--json"))["tensors"]
        for part in parts:
            tensors = json.loads(apr.output(self, "tensors", part, "--json"))["tensors"]
            self.assertEqual(sorted(t["name"] for t in tensors), sorted(t["name"] for t in whole))
        with tempfile.TemporaryDirectory() as d:
            blob = os.path.join(d, "blobs")
            os.mkdir(blob)
            for i, part in enumerate(parts):
                shutil.copy(part, os.path.join(blob, f"sha{i}"))
                os.symlink(os.path.join(blob, f"sha{i}"), os.path.join(d, os.path.basename(part)))
            self.assertEqual(apr.run("validate", os.path.join(d, os.path.basename(parts[1]))).returncode, 0)
            os.unlink(os.path.join(d, os.path.basename(parts[2])))
            self.check_refusal(apr.run("validate", os.path.join(d, os.path.basename(parts[0]))), "00003-of-00003")

    def test_a_file_that_shrinks_while_it_is_open(self):
        with tempfile.TemporaryDirectory() as d:
            path = os.path.join(d, "a.gguf")
            shutil.copy(DEMO, path)
            p = subprocess.Popen([apr.BINARY, "debug", "generate", path, "-q"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            case = json.dumps({"prompt_ids": [331, 1932, 1446], "max_tokens": 4}).encode() + b"\n"
            p.stdin.write(case)
            p.stdin.flush()
            self.assertIn(b'"ids"', p.stdout.readline())
            os.truncate(path, 65536)
            p.stdin.write(case)
            _, err = p.communicate(timeout=60)
            self.assertEqual((p.returncode, err.decode()), (1, f"apr: {path} changed or became unreadable while in use\n"))


class Unsound(Refused):
    """Files whose structure is sound and whose numbers are not."""

    def patched(self, folder, tensor, what):
        path = os.path.join(folder, "a.gguf")
        shutil.copy(DEMO, path)
        t = next(t for t in json.loads(apr.output(self, "tensors", DEMO, "--json"))["tensors"] if t["name"] == tensor)
        with open(path, "r+b") as f:
            f.seek(t["offset"])
            f.write(what)
        return path

    def test_scales_that_are_no_numbers(self):
        with tempfile.TemporaryDirectory() as d:
            for tensor, what in (("blk.1.ffn_up.weight", b"\x00\x7c"), ("blk.1.ffn_up.weight", b"\x01\x7e"), ("output_norm.weight", b"\x00\x00\xc0\x7f"), ("blk.0.ssm_a", b"\x00\x00\x80\xff")):
                path = self.patched(d, tensor, what)
                done = apr.run("validate", path)
                self.check_refusal(done, path, tensor)
                document = json.loads(apr.run("validate", path, "--json").stdout)
                self.assertIn(tensor, document["error"]["message"])


if __name__ == "__main__":
    unittest.main()
