"""Help, usage errors, exit statuses, JSON errors, the device table."""
import json
import os
import re
import subprocess
import tempfile
import unittest

import apr

VERBS = ["serve run", "serve plan", "run", "chat", "bench", "inspect", "tensors", "validate", "tokenize", "detokenize", "template", "devices", "gpu", "logits", "perplexity", "help"]
DEBUG = ["debug tokenize", "debug detokenize", "debug template", "debug sample", "debug reply", "debug dequant", "debug generate"]


class Help(unittest.TestCase):
    def test_every_verb_has_a_page(self):
        listing = apr.output(self, "help").decode()
        for verb in VERBS + DEBUG:
            page = apr.output(self, *verb.split(), "--help").decode()
            self.assertTrue(page.startswith(f"usage: apr {verb} "), page[:60])
            self.assertIn("--help", page)
            self.assertEqual(apr.output(self, "help", *verb.split()).decode(), page)
            if verb in VERBS:
                self.assertRegex(listing, rf"(?m)^  {verb} ")
            for line in page.split("\n"):
                self.assertLessEqual(len(line), 101, line)

    def test_a_word_of_several_verbs_has_their_pages(self):
        for word, verbs in (("serve", [v for v in VERBS if v.startswith("serve ")]), ("debug", DEBUG)):
            pages = "".join(apr.output(self, *v.split(), "--help").decode() for v in verbs)
            for args in (["help", word], [word, "--help"], [word, "-h"]):
                self.assertEqual(apr.output(self, *args).decode(), pages)
        self.assertEqual(apr.run("nothing", "--help").returncode, 2)

    def test_pages_name_options_and_defaults(self):
        page = re.sub(r"\s+", " ", apr.output(self, "serve", "run", "--help").decode())
        for words in ("-p, --port N port to listen on; 0 picks a free one and prints it (default: 8080)", "--gpu-layers N|auto|all", "--backend cpu|cuda", "--drain-timeout S", "--no-metrics", "--alias NAME",
                      "--api-key-file FILE", "--cors ORIGIN", "--memory-limit SIZE", "--parallel N", "--context-length N", "--list-devices", "--exact", "--cpu-rung NAME"):
            self.assertIn(words, page)

    def test_the_same_flags_everywhere(self):
        for verb in ("serve run", "run", "chat", "bench", "logits", "perplexity", "debug generate"):
            page = apr.output(self, *verb.split(), "--help").decode()
            for flag in ("--exact", "--cpu-rung", "--threads", "--context-length", "--backend", "--gpu-layers", "--gpu", "--no-gpu", "--memory-limit"):
                self.assertRegex(page, rf"(?m)^ +(-\w, )?{flag}\b", f"{verb} {flag}")
        for verb in ("run", "chat"):
            page = apr.output(self, verb, "--help").decode()
            for flag in ("--temperature", "--top-k", "--top-p", "--min-p", "--typical-p", "--repetition-penalty", "--presence-penalty", "--frequency-penalty", "--repeat-last-n", "--seed", "--logit-bias", "--stop"):
                self.assertRegex(page, rf"(?m)^ +(-\w, )?{flag}\b", f"{verb} {flag}")

    def test_manual_page(self):
        page = apr.output(self, "help", "--man").decode()
        self.assertEqual(page, apr.output(self, "--man").decode())
        self.assertTrue(page.startswith(".TH APR 1 "))
        for verb in VERBS:
            self.assertIn(f".SS apr {verb} ", page)
        self.assertIn(r"\fB\-\-context\-length\fR \fIN\fR", page)
        self.assertNotRegex(page, r"(?m)^'")

    def test_version(self):
        for word in ("--version", "-V"):
            self.assertRegex(apr.output(self, word).decode(), r"^apr \d+\.\d+\.\d+\n$")

    def test_nothing_typed(self):
        done = apr.run()
        self.assertEqual((done.returncode, done.stdout), (2, b""))
        self.assertTrue(done.stderr.startswith(b"usage: apr VERB"))


class Usage(unittest.TestCase):
    CASES = [
        (["serve", "run", "demo", "--port", "abc"], '--port: "abc" is not a whole number from 0 to 65535'),
        (["serve", "run", "demo", "--port", "65536"], '--port: "65536" is not a whole number from 0 to 65535'),
        (["serve", "run", "demo", "--port=-1"], '--port: "-1" is not a whole number from 0 to 65535'),
        (["serve", "run", "demo", "--port", ""], '--port: "" is not a whole number from 0 to 65535'),
        (["serve", "run", "demo", "-p", "1e3"], '--port: "1e3" is not a whole number from 0 to 65535'),
        (["serve", "run", "demo", "--port"], "option --port needs a value"),
        (["serve", "run", "demo", "-p"], "option -p needs a value"),
        (["run", "demo", "-c", "0"], '--context-length: "0" is not a whole number from 1 to 2147483647'),
        (["run", "demo", "-c", "many"], '--context-length: "many" is not a whole number from 1 to 2147483647'),
        (["run", "demo", "--temperature", "hot"], '--temperature: "hot" is not a number from 0 to 100'),
        (["run", "demo", "--temperature", "nan"], '--temperature: "nan" is not a number from 0 to 100'),
        (["run", "demo", "--top-p", "1.5"], '--top-p: "1.5" is not a number from 0 to 1'),
        (["run", "demo", "--memory-limit", "5X"], '--memory-limit: "5X" is not a size such as 512M, 8GiB or 1.5G'),
        (["run", "demo", "--memory-limit", "-5M"], '--memory-limit: "-5M" is not a size such as 512M, 8GiB or 1.5G'),
        (["run", "demo", "--memory-limit", "0"], '--memory-limit: "0" is not a size such as 512M, 8GiB or 1.5G'),
        (["run", "demo", "--backend", "rocm"], '--backend: "rocm" is not "cpu" or "cuda"'),
        (["run", "demo", "--gpu-layers", "most"], '--gpu-layers: "most" is not a whole number from 0 to 512, "auto" or "all"'),
        (["run", "demo", "--gpu=1"], "--gpu takes no value"),
        (["run", "demo", "hi", "--logit-bias", "5"], '--logit-bias: "5" is not ID=BIAS with a bias from -100 to 100'),
        (["run", "--tmperature", "1", "demo"], "unknown option --tmperature; did you mean --temperature?"),
        (["run", "--temp", "1", "demo"], "unknown option --temp; did you mean --temperature?"),
        (["run", "demo", "--qqqqqqqq"], "unknown option --qqqqqqqq"),
        (["run", "demo", "-x"], "unknown option -x"),
        (["inspect", "demo", "--port", "1"], "unknown option --port"),
        (["inpect", "demo"], 'unknown verb "inpect"; did you mean "inspect"?'),
        (["frobnicate"], 'unknown verb "frobnicate"; `apr help` lists them'),
        (["serve"], '"serve" needs one of: run, plan'),
        (["serve", "rn", "demo"], 'unknown verb "serve rn"; did you mean "serve run"?'),
        (["serve", "demo"], '"serve" needs one of: run, plan'),
        (["--verbose", "inspect"], "unknown option --verbose; the verb comes first: `apr help` lists them"),
        (["inspect"], "inspect: MODEL is missing; usage: apr inspect MODEL [OPTIONS]"),
        (["inspect", "a", "b"], 'inspect: "b" is one argument too many; usage: apr inspect MODEL [OPTIONS]'),
        (["help", "nothing"], 'there is no verb "nothing"; `apr help` lists them'),
        (["tensors", "demo", "--filter", "("], '--filter: "(" is not a regular expression: Unmatched ( or \\('),
        (["tokenize", "demo", "x", "--file", "y"], "tokenize: a text and --file are given; one of them is too many"),
        (["detokenize", "demo", "4096"], 'detokenize: "4096" is not a token id from 0 to 4095'),
        (["detokenize", "demo", "1x"], 'detokenize: "1x" is not a token id from 0 to 4095'),
        (["template", "demo"], "template: --messages FILE is missing"),
        (["logits", "demo"], "logits: --tokens FILE is missing"),
        (["logits", "demo", "--tokens", "x"], "logits: --output FILE is missing"),
        (["logits", "demo", "--tokens", "x", "--rows", "some"], '--rows: "some" is not "last" or "all"'),
        (["perplexity", "demo"], "perplexity: --file FILE is missing"),
        (["run", "demo", "x", "--messages", "f"], "run: a prompt and --messages are given; one of them is too many"),
        (["run", "demo", "x", "--raw", "--think"], "run: --raw knows no template: --system, --think, --no-think and --template-file do not go with it"),
        (["run", "demo", "x", "--think", "--no-think"], "--think and --no-think contradict each other"),
        (["debug", "dequant", "Q99"], 'debug dequant: "Q99" is not a block type of weights'),
    ]

    def test_wrong_words(self):
        for args, sentence in self.CASES:
            done = apr.run(*args)
            self.assertEqual((done.returncode, done.stdout, done.stderr.decode()), (2, b"", f"apr: {sentence}\n"), args)

    def test_wrong_words_as_json(self):
        for args, sentence in self.CASES:
            if args[0] == "help" or args[-1] in ("--port", "-p"):  # help does not report; a flag would take the word for its value
                continue
            done = apr.run(*args, "--json")
            self.assertEqual(done.returncode, 2, args)
            self.assertEqual(json.loads(done.stdout), {"error": {"kind": "usage", "message": sentence, "exit_code": 2}}, args)

    def test_options_may_follow_arguments(self):
        a = apr.output(self, "tokenize", "demo", "--json", "hello")
        b = apr.output(self, "tokenize", "--json", "demo", "hello")
        self.assertEqual(a, b)

    def test_dashes_end_the_options(self):
        ids = json.loads(apr.output(self, "tokenize", "--json", "demo", "--", "--json"))["ids"]
        self.assertEqual(apr.output(self, "detokenize", "demo", *map(str, ids)), b"--json\n")

    def test_failures_as_json(self):
        done = apr.run("inspect", "/nonexistent/x.gguf", "--json")
        error = json.loads(done.stdout)["error"]
        self.assertEqual((done.returncode, error["kind"], error["exit_code"]), (1, "not_found", 1))
        self.assertIn("/nonexistent/x.gguf", error["message"])
        self.assertEqual(done.stderr.decode(), f"apr: {error['message']}\n")

    def test_failures_as_json_are_json_whatever_was_typed(self):
        for args in ((b"inspect", b"/nonexistent/\xff\xc3"), (b"no\xffverb",), (b"inspect", b"a" + "é".encode() * 1500), (b"inspect", b"/nonexistent/\x1b[31m")):
            done = apr.run(*args, b"--json")
            json.loads(done.stdout.decode("utf-8"))
            self.assertIn(done.returncode, (1, 2))

    def test_no_control_characters_of_others_on_a_terminal(self):
        done = apr.run("inspect", "/nonexistent/\x1b[31m\x9b")
        self.assertEqual(done.returncode, 1)
        self.assertNotIn(b"\x1b", done.stderr)
        self.assertIn(b"/nonexistent/?[31m", done.stderr)

    def test_a_full_disk_is_a_failure(self):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([apr.BINARY, "inspect", "demo"], stdout=full, stderr=subprocess.PIPE)
        self.assertEqual((done.returncode, done.stderr), (1, b"apr: standard output cannot be written\n"))


class Devices(unittest.TestCase):
    """The device-resolution table of a build without CUDA."""

    def test_a_gpu_asked_for_by_name_is_refused_before_the_model_is_read(self):
        """B171: never a CPU under the name of a GPU."""
        for flags, named in ((["--backend", "cuda"], "--backend cuda"), (["--gpu"], "--gpu"), (["--gpu-layers", "all"], "--gpu-layers all"), (["--gpu-layers", "4"], "--gpu-layers 4"),
                             (["--gpu-layers=2"], "--gpu-layers 2")):
            for verb in (["run", "/nonexistent.gguf", "hi"], ["chat", "/nonexistent.gguf"], ["serve", "run", "/nonexistent.gguf", "--port", "0"], ["bench", "/nonexistent.gguf"]):
                done = apr.run(*verb, *flags)
                self.assertEqual((done.returncode, done.stdout), (14, b""), verb)
                self.assertEqual(done.stderr.decode(), f"apr: {named} asks for a GPU, and this build of apr has no CUDA backend; use --no-gpu to run on the CPU\n")

    def test_refusal_as_json(self):
        done = apr.run("run", "demo", "hi", "--gpu", "--json")
        self.assertEqual(json.loads(done.stdout)["error"]["kind"], "device")
        self.assertEqual((done.returncode, json.loads(done.stdout)["error"]["exit_code"]), (14, 14))

    def test_a_cpu_rung_that_is_not_to_be_had(self):
        done = apr.run("run", "demo", "hi", "--cpu-rung", "mmx")
        self.assertEqual((done.returncode, done.stdout), (14, b""))
        self.assertIn(b"mmx", done.stderr)
        self.assertIn(b"scalar", done.stderr)

    def test_lists(self):
        self.assertRegex(apr.output(self, "devices").decode(), r"^cpu: .*scalar; \d+ threads; \d+ MiB free of \d+ MiB \(.+\)\n$")
        device = json.loads(apr.output(self, "devices", "--json"))["devices"][0]
        self.assertEqual(device["backend"], "cpu")
        self.assertIn("scalar", device["rungs"])
        self.assertGreater(device["memory_total_bytes"], device["threads"])
        self.assertEqual(apr.output(self, "gpu"), b"no GPU: this build of apr has no CUDA backend\n")
        self.assertEqual(json.loads(apr.output(self, "gpu", "--json"))["devices"], [])
        self.assertEqual(apr.output(self, "serve", "run", "demo", "--list-devices")[:5], b"cpu: ")


class Names(unittest.TestCase):
    def test_the_demo_is_found_beside_the_program(self):
        with tempfile.TemporaryDirectory() as d:
            binary = os.path.join(d, "bin", "apr")
            os.makedirs(os.path.join(d, "bin"))
            os.makedirs(os.path.join(d, "share", "apr", "models"))
            with open(apr.BINARY, "rb") as f, open(binary, "wb") as g:
                g.write(f.read())
            os.chmod(binary, 0o755)
            with open(os.path.join(apr.SOURCE, "models", "apr-demo.gguf"), "rb") as f, open(os.path.join(d, "share", "apr", "models", "apr-other.gguf"), "wb") as g:
                g.write(f.read())
            done = subprocess.run([binary, "tensors", "other"], capture_output=True, cwd=d)
            self.assertEqual(done.returncode, 0, done.stderr)
            done = subprocess.run([binary, "tensors", "another"], capture_output=True, cwd=d)
            self.assertEqual(done.returncode, 1)
            self.assertIn(b"apr-another.gguf", done.stderr)
            self.assertIn(b"share/apr/models", done.stderr)


if __name__ == "__main__":
    unittest.main()
