"""apr serve run: the lines scripts wait for, its start-up refusals, its end."""
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request

import apr


class Server:
    def __init__(self, *args):
        self.process = subprocess.Popen([apr.BINARY, "serve", "run", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.lines = []

    def listen(self):
        """Reads standard output up to the line that says where it listens; returns the address, or "" where it never came."""
        for line in self.process.stdout:
            self.lines.append(line.decode().rstrip("\n"))
            if self.lines[-1].startswith("listening on "):
                return self.lines[-1][len("listening on ") :]
        return ""

    def end(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out.decode(), err.decode()


def get(url, **headers):
    with urllib.request.urlopen(urllib.request.Request(url, headers={k.replace("_", "-"): v for k, v in headers.items()}), timeout=30) as r:
        return json.loads(r.read())


class Start(unittest.TestCase):
    def test_the_lines(self):
        s = Server("demo", "--port", "0", "--threads", "1")
        url = s.listen()
        self.assertRegex(url, r"^http://127\.0\.0\.1:[1-9]\d*$")
        self.assertEqual(s.lines[:3], ["gpu-layers: requested=unset resolved=0 total=4 (backend=cpu)", "GGUF loaded: 55 tensors, 43 metadata entries",
                                       "Model ready: Qwen3.5 hybrid, 4 layers resident on the CPU, declared context 4096 tokens, serving 4096"])
        self.assertEqual(len(s.lines), 4)
        self.assertEqual(get(url + "/health")["status"], "ok")
        code, out, err = s.end()
        self.assertEqual((code, out), (0, ""))
        self.assertRegex(err, r"(?m)^Backend: CPU \((avx2|scalar), 1 threads\)$")
        self.assertIn("running on the CPU: this build of apr has no CUDA backend\n", err)
        self.assertRegex(err, r"(?m)^plan: KV +[\d.]+ MiB at most \(4096 positions x 2048 B, f32; taken as used\)$")

    def test_what_was_asked_of_the_device(self):
        for flags, requested in ((["--no-gpu"], "0"), (["--gpu-layers", "0"], "0"), (["--backend", "cpu"], "0"), (["--gpu-layers", "auto"], "auto"), (["--gpu", "--no-gpu"], "0")):
            s = Server("demo", "--port", "0", *flags)
            s.listen()
            self.assertEqual(s.lines[0], f"gpu-layers: requested={requested} resolved=0 total=4 (backend=cpu)")
            code, _, err = s.end()
            self.assertEqual(code, 0)
            self.assertEqual("contradicts" in err, flags == ["--gpu", "--no-gpu"])

    def test_served_context_and_alias(self):
        """B135: as asked for, above a usual default as well as below, said at the start and on request."""
        s = Server(apr.data("models", "r2-q8_0.gguf"), "--port", "0", "-c", "8192", "-q")
        url = s.listen()
        self.assertTrue(s.lines[2].endswith("serving 8192"), s.lines)
        self.assertEqual(get(url + "/v1/models")["data"][0]["max_model_len"], 8192)
        self.assertEqual(s.end()[0], 0)
        s = Server("demo", "--port", "0", "-c", "1000", "--alias", "my-model", "-q")
        url = s.listen()
        self.assertTrue(s.lines[2].endswith("declared context 4096 tokens, serving 1000"), s.lines)
        listed = get(url + "/v1/models")["data"][0]
        self.assertEqual((listed["id"], listed["max_model_len"], listed["meta"]["n_ctx"], listed["meta"]["n_ctx_train"]), ("my-model", 1000, 1000, 4096))
        self.assertEqual(s.end(signal.SIGINT)[::2], (0, ""))

    def test_aliases_that_are_none(self):
        for alias in (b"a\xffb", "\u00e9".encode() * 128, b""):
            done = apr.run(b"serve", b"run", b"demo", b"--port", b"0", b"--alias", alias, b"-q", timeout=60)
            self.assertEqual((done.returncode, done.stdout), (2, b""))
            self.assertIn(b"--alias", done.stderr)

    def test_a_context_that_is_not_to_be_had(self):
        done = apr.run("serve", "run", "demo", "--port", "0", "-c", "5000", "-q")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr.decode(), r"^apr: .*5000.*4096")
        self.assertNotIn(b"listening", done.stdout)

    def test_no_flag_switches_the_planning_off(self):
        """B172: whatever else is said, what does not fit is refused with the arithmetic."""
        for flags in (["--gpu-layers", "0"], ["--no-gpu"], ["--backend", "cpu"], ["--parallel", "3"], ["-c", "100"], ["--threads", "1"], ["--gpu-layers", "auto"]):
            done = apr.run("serve", "run", "demo", "--port", "0", "-q", "--memory-limit", "10M", *flags)
            self.assertEqual(done.returncode, 1, flags)
            self.assertRegex(done.stderr.decode(), r"(?m)^apr: capacity: \w+: weights \d+ MiB .* against 10 MiB free", flags)

    def test_a_port_that_is_taken(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            done = apr.run("serve", "run", "demo", "--port", str(port), "-q", timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"127.0.0.1:{port}", done.stderr.decode().replace(" port ", ":"))
        self.assertEqual(done.stderr.count(b"\n"), 1)

    def test_json_is_one_document(self):
        s = Server("demo", "--port", "0", "--json")
        line = json.loads(s.process.stdout.readline())
        self.assertEqual(get(line["url"] + "/health")["status"], "ok")
        self.assertEqual(line["context"], 4096)
        code, out, err = s.end()
        self.assertEqual((code, out), (0, ""))
        self.assertIn("gpu-layers: requested=unset resolved=0 total=4 (backend=cpu)\n", err)
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            done = apr.run("serve", "run", "demo", "--port", str(taken.getsockname()[1]), "--json", timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(json.loads(done.stdout)["error"]["exit_code"], 1)

    @unittest.skipUnless(os.path.isdir("/proc/self/fd"), "needs /proc")
    def test_words_never_reach_a_socket(self):
        # what is closed at the start must not come to be an event queue or a client, which lines for people would then be written into
        script = 'exec "$0" serve run demo --port 0 -v <&- >&- 2>&-'
        process = subprocess.Popen(["sh", "-c", script, apr.BINARY])
        try:
            fds = {}
            for _ in range(300):
                try:
                    fds = {n: os.readlink(f"/proc/{process.pid}/fd/{n}") for n in os.listdir(f"/proc/{process.pid}/fd")}
                except OSError:
                    pass
                if any(to.startswith("socket:") for to in fds.values()):
                    break
                time.sleep(0.1)
            self.assertTrue(any(to.startswith("socket:") for to in fds.values()), fds)
            self.assertEqual([fds[n] for n in "012"], ["/dev/null"] * 3)
        finally:
            process.terminate()
            process.wait(60)

    def test_two_servers_pick_two_ports(self):
        a, b = Server("demo", "--port", "0", "-q"), Server("demo", "--port", "0", "-q")
        self.assertNotEqual(a.listen(), b.listen())
        self.assertEqual((a.end()[0], b.end()[0]), (0, 0))

    def test_an_address_for_others_without_a_key_is_warned_of(self):
        for flags, words in ((["--host", "0.0.0.0"], True), (["--host", "127.0.0.1"], False), (["--host", "0.0.0.0", "--api-key", "k"], False)):
            server = Server("demo", "--port", "0", "-q", *flags)
            self.assertTrue(server.listen())
            status, _, err = server.end()
            self.assertEqual((status, "without --api-key-file: whoever reaches" in err), (0, words), err)

    def test_key_file(self):
        with tempfile.TemporaryDirectory() as d:
            path = os.path.join(d, "key")
            with open(path, "w", encoding="utf-8") as f:
                f.write("s3cret\nsecond line\n")
            s = Server("demo", "--port", "0", "-q", "--api-key-file", path)
            url = s.listen()
            self.assertEqual(get(url + "/v1/models", Authorization="Bearer s3cret")["object"], "list")
            with self.assertRaises(urllib.error.HTTPError) as refused:
                get(url + "/v1/models", Authorization="Bearer s3cret\nsecond line".split("\n")[1])
            self.assertEqual(refused.exception.code, 401)
            self.assertEqual(s.end()[0], 0)
            open(path, "w").close()
            done = apr.run("serve", "run", "demo", "--port", "0", "--api-key-file", path, "-q")
            self.assertEqual((done.returncode, done.stderr.decode()), (1, f"apr: {path}: the first line holds no key\n"))
        done = apr.run("serve", "run", "demo", "--api-key", "a", "--api-key-file", "b", "-q")
        self.assertEqual((done.returncode, done.stderr), (2, b"apr: --api-key and --api-key-file are given; one of them is too many\n"))

    def test_memory_is_taken_as_it_is_used(self):
        """The largest context is served, and yet little memory is resident before the first request."""
        s = Server(apr.data("models", "r1-q4_k_m.gguf"), "--port", "0", "-q")
        s.listen()
        time.sleep(0.2)
        with open(f"/proc/{s.process.pid}/status", encoding="utf-8") as f:
            resident = int(re.search(r"VmRSS:\s+(\d+) kB", f.read()).group(1))
        self.assertEqual(s.end()[0], 0)
        if "san" not in os.path.basename(os.environ.get("APR_BUILD", "")):
            self.assertLess(resident, 150 * 1024)


if __name__ == "__main__":
    unittest.main()
