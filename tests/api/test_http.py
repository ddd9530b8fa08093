"""HTTP itself: framing, limits, time-outs, who may ask. Faults: B149, S13 S21 S22 S28 S30."""
import http.client
import json
import os
import resource
import socket
import threading
import time
import unittest

from apr_server import SLOW, Server

HOST = b"Host: localhost\r\n"
CHAT = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}).encode()


def setUpModule():
    global server
    server = Server("--threads", "1", "-q")


def tearDownModule():
    assert server.stop()[0] == 0


def read_answer(s):
    r = http.client.HTTPResponse(s)
    r.begin()
    return r.status, r.headers, r.read()


def talk(data):
    """Sends bytes, reads one answer and whether the connection ends then."""
    with server.raw(10 * SLOW) as s:
        s.sendall(data)
        status, headers, body = read_answer(s)
        s.settimeout(0.3 * SLOW)
        try:
            closed = s.recv(1) == b""
        except TimeoutError:
            closed = False
        except ConnectionResetError:
            closed = True
        return status, headers, body, closed


def post_head(extra=b"", path=b"/v1/chat/completions"):
    return b"POST " + path + b" HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n" + extra + b"\r\n"


class Framing(unittest.TestCase):
    def test_broken_requests(self):
        for data, status in (
            (b"nonsense\r\n\r\n", 400), (b"GET /health\r\n\r\n", 400), (b"GET  /health HTTP/1.1\r\n" + HOST + b"\r\n", 400), (b"get /health HTTP/1.1\r\n" + HOST + b"\r\n", 400),
            (b"GET health HTTP/1.1\r\n" + HOST + b"\r\n", 400), (b"GET /health HTTP/2.0\r\n" + HOST + b"\r\n", 505), (b"GET /health HTTP/1.1\r\n\r\n", 400),
            (b"GET /health HTTP/1.1\r\n" + HOST + HOST + b"\r\n", 400), (b"GET /health HTTP/1.1\r\n" + HOST + b"Bad Header: x\r\n\r\n", 400), (b"GET /health HTTP/1.1\r\n" + HOST + b"nocolon\r\n\r\n", 400),
            (b"GET /health HTTP/1.1\r\n" + HOST + b"X: a\r\n folded\r\n\r\n", 400), (b"GET /health HTTP/1.1\r\n" + HOST + b"X: a\0b\r\n\r\n", 400), (b"GET /%zz HTTP/1.1\r\n" + HOST + b"\r\n", 400),
            (b"GET /a%00b HTTP/1.1\r\n" + HOST + b"\r\n", 400), (b"GET /health HTTP/1.1\r\n" + HOST + b"X: a\rb\r\n\r\n", 400),
            (post_head(b"Content-Length: x\r\n"), 400), (post_head(b"Content-Length: -1\r\n"), 400), (post_head(b"Content-Length: 5\r\nContent-Length: 6\r\n"), 400),
            (post_head(b"Content-Length: 99999999999999999999\r\n"), 400), (post_head(b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"), 400), (post_head(b"Transfer-Encoding: gzip\r\n"), 501),
            (post_head(b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"), 501), (post_head(b"Expect: a-miracle\r\nContent-Length: 2\r\n"), 417),
            (post_head(b"Transfer-Encoding: chunked\r\n") + b"zz\r\n", 400), (post_head(b"Transfer-Encoding: chunked\r\n") + b"3\r\nabcdef\r\n", 400),
            (post_head(b"Transfer-Encoding: chunked\r\n") + b"1" * 2000, 400), (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 TLS\r\n\r\n", 400),
        ):
            with self.subTest(data[:60]):
                got, headers, body, closed = talk(data)
                self.assertEqual(got, status, body)
                self.assertEqual(headers["Content-Type"], "application/json")
                self.assertTrue(json.loads(body)["error"]["message"])
                self.assertTrue(closed)

    def test_good_requests(self):
        chunks = b"".join(b"%x;ext=1\r\n%s\r\n" % (len(CHAT[i : i + 7]), CHAT[i : i + 7]) for i in range(0, len(CHAT), 7)) + b"0\r\nTrailer: x\r\n\r\n"
        for data in (
            b"\r\n\r\nGET /health HTTP/1.1\r\n" + HOST + b"\r\n", b"GET /health HTTP/1.1\n" + HOST.replace(b"\r", b"") + b"\n", b"GET http://localhost/health?x=1 HTTP/1.1\r\n" + HOST + b"\r\n",
            b"GET /he%61lth HTTP/1.1\r\n" + HOST + b"\r\n", post_head(b"Transfer-Encoding: chunked\r\n") + chunks, post_head(b"Content-Length: %d\r\n" % len(CHAT)) + CHAT,
        ):
            status, _, body, closed = talk(data)
            self.assertEqual((status, closed), (200, False), body)
        self.assertEqual(talk(b"GET /health HTTP/1.0\r\n\r\n")[3], True)
        self.assertEqual(talk(b"GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")[3], False)
        self.assertEqual(talk(b"GET /health HTTP/1.1\r\nConnection: close\r\n" + HOST + b"\r\n")[3], True)

    def test_byte_by_byte(self):
        with server.raw() as s:
            for byte in post_head(b"Content-Length: %d\r\n" % len(CHAT)) + CHAT:
                s.sendall(bytes([byte]))
            self.assertEqual(read_answer(s)[0], 200)

    def test_head(self):
        """The head of the GET, and not a byte of a body before the next answer."""
        with server.raw() as s:
            s.sendall(b"HEAD /health HTTP/1.1\r\n" + HOST + b"\r\nGET /health HTTP/1.1\r\n" + HOST + b"\r\n")
            f = s.makefile("rb")
            for _ in range(2):
                self.assertEqual(f.readline(), b"HTTP/1.1 200 OK\r\n")
                headers = http.client.parse_headers(f)
                self.assertGreater(int(headers["Content-Length"]), 10)

    def test_many_on_one_connection(self):
        """Pipelined: answered in order, whoever is slow."""
        with server.raw() as s:
            get = b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n"
            s.sendall((post_head(b"Content-Length: %d\r\n" % len(CHAT)) + CHAT + get) * 20 + b"GET /nope HTTP/1.1\r\n" + HOST + b"\r\n")
            f = s.makefile("rb")
            kinds = []
            for _ in range(41):
                line, length = f.readline(), 0
                while (header := f.readline()) not in (b"\r\n", b""):
                    if header.lower().startswith(b"content-length:"):
                        length = int(header.split(b":")[1])
                body = json.loads(f.read(length))
                kinds.append((line.split()[1], "chat" if "choices" in body else "health" if "status" in body else "other"))
            self.assertEqual(kinds, [(b"200", "chat"), (b"200", "health")] * 20 + [(b"404", "other")])

    def test_thousands_of_pipelined_requests(self):
        with server.raw() as s:
            data = (b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n") * 5000
            sender = threading.Thread(target=s.sendall, args=(data,))
            sender.start()
            f, n = s.makefile("rb"), 0
            while n < 5000:
                line = f.readline()
                self.assertTrue(line)
                n += b"HTTP/1.1 200" in line  # a body ends without a line break
            sender.join()

    def test_expect_continue(self):
        with server.raw() as s:
            s.sendall(post_head(b"Expect: 100-continue\r\nContent-Length: %d\r\n" % len(CHAT)))
            self.assertEqual(s.recv(100), b"HTTP/1.1 100 Continue\r\n\r\n")
            s.sendall(CHAT)
            self.assertEqual(read_answer(s)[0], 200)
        with server.raw(10 * SLOW) as s:  # refused before a byte of it was sent
            s.sendall(post_head(b"Expect: 100-continue\r\nContent-Length: 99999999\r\n"))
            self.assertEqual(read_answer(s)[0], 413)


class Limits(unittest.TestCase):
    def test_big_bodies(self):
        """S22: refused before it is read, in bounded memory, and the client gets to see it."""
        with open(f"/proc/{server.process.pid}/status", encoding="utf-8") as f:
            before = next(int(line.split()[1]) for line in f if line.startswith("VmHWM"))
        for size in ((8 << 20) + 1, 64 << 20):
            start = time.monotonic()
            a = server.post("/v1/chat/completions", b" " * size)
            self.assertEqual((a.status, a.json["error"]["code"]), (413, "body_too_large"))
            self.assertLess(time.monotonic() - start, 2 * SLOW)
        with server.raw() as s:  # chunked: nobody knows how long it will be
            s.sendall(post_head(b"Transfer-Encoding: chunked\r\n"))
            piece = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
            try:
                for _ in range(64):
                    s.sendall(piece)
            except OSError:
                pass
            self.assertEqual(read_answer(s)[0], 413)
        with open(f"/proc/{server.process.pid}/status", encoding="utf-8") as f:
            after = next(int(line.split()[1]) for line in f if line.startswith("VmHWM"))
        self.assertLess(after - before, (64 << 10) * (8 if SLOW > 1 else 1))  # the address sanitizer keeps 256 MiB of freed memory back

    def test_the_largest_body(self):
        """Read and tokenised beside the IO thread: a status request does not wait."""
        body = json.dumps({"messages": [{"role": "user", "content": "word " * 1600000}]}).encode()
        self.assertLess(len(body), 8 << 20)
        done = []
        thread = threading.Thread(target=lambda: done.append(server.post("/v1/chat/completions", body)))
        thread.start()
        slowest = 0
        while thread.is_alive():
            start = time.monotonic()
            self.assertEqual(server.get("/health").status, 200)
            slowest = max(slowest, time.monotonic() - start)
        thread.join()
        self.assertEqual((done[0].status, done[0].json["error"]["code"]), (400, "context_length_exceeded"))
        self.assertLess(slowest, 0.25 * SLOW)

    def test_long_headers(self):
        for data in (b"GET /health HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 200000 + b"\r\n\r\n", b"GET /" + b"a" * 70000, b"GET /health HTTP/1.1\r\n" + HOST + b"X: y\r\n" * 200 + b"\r\n"):
            status, headers, body, closed = talk(data)
            self.assertEqual((status, headers["Content-Type"], closed), (431, "application/json", True))

    def test_slow_headers(self):
        """Forty clients that send a byte a second: nobody else waits, and they do not stay."""
        slow = [server.raw() for _ in range(40)]
        try:
            alive, start = list(slow), time.monotonic()
            while alive and time.monotonic() - start < 25:
                for s in list(alive):
                    try:
                        s.sendall(b"G" if time.monotonic() - start < 1 else b"E")
                        s.settimeout(0)
                        if s.recv(1) == b"":
                            alive.remove(s)
                    except BlockingIOError:
                        pass
                    except OSError:
                        alive.remove(s)
                asked = time.monotonic()
                self.assertEqual(server.get("/health").status, 200)
                self.assertLess(time.monotonic() - asked, 0.25 * SLOW)
                time.sleep(1)
            self.assertEqual(alive, [])
            self.assertTrue(10 < time.monotonic() - start < 20)
        finally:
            for s in slow:
                s.close()

    def test_idle_connections(self):
        idle = [server.raw() for _ in range(200)]
        try:
            start = time.monotonic()
            self.assertEqual(server.get("/health").status, 200)
            self.assertLess(time.monotonic() - start, 0.25 * SLOW)
            self.assertGreaterEqual(server.metrics()["apr_http_connections"], 200)
            self.assertLess(len(os.listdir(f"/proc/{server.process.pid}/task")), 16)
        finally:
            for s in idle:
                s.close()

    def test_more_connections_than_there_are_places(self):
        """Those beyond wait at the door; when others leave they are served."""
        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
        many = []
        try:
            many = [server.raw() for _ in range(1020)]
            with server.raw() as late:
                late.sendall(b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n")
                late.settimeout(0.3)
                self.assertRaises(TimeoutError, late.recv, 1)
                for s in many:
                    s.close()
                late.settimeout(20)
                self.assertEqual(read_answer(late)[0], 200)
        finally:
            for s in many:
                s.close()

    def test_random_bytes(self):
        import random
        r = random.Random(5)
        for _ in range(60):
            with server.raw() as s:
                try:
                    s.sendall(bytes(r.randrange(256) for _ in range(r.randrange(1, 3000))) + b"\r\n\r\n")
                    s.shutdown(socket.SHUT_WR)
                    while s.recv(65536):
                        pass
                except OSError:
                    pass
        self.assertEqual(server.get("/health").status, 200)


class Callers(unittest.TestCase):
    def test_host_without_a_key(self):
        """A page whose name was made to point at 127.0.0.1 is not answered."""
        for host, status in (("localhost", 200), ("localhost:8080", 200), ("LOCALHOST", 200), ("127.0.0.1:1", 200), ("127.8.9.1", 200), ("[::1]:80", 200), ("[::1]", 200), ("evil.example", 403),
                             ("127.0.0.1.evil.example", 403), ("localhost.evil.example", 403), ("10.0.0.1", 403), ("[::2]", 403), ("", 403), ("127.0.0.1@evil.example", 403), ("127.0.0.evil", 403), ("127.", 403)):
            with self.subTest(host):
                a = server.get("/health", Host=host)
                self.assertEqual(a.status, status, a.body)
                self.assertEqual(server.request("POST", "/v1/chat/completions", CHAT, {"Host": host}).status, status)

    def test_key(self):
        s = Server("--api-key", "s3cret", "-q")
        try:
            for headers, status in (({}, 401), ({"Authorization": "Bearer s3cret"}, 200), ({"authorization": "bearer s3cret"}, 200), ({"X-Api-Key": "s3cret"}, 200), ({"Authorization": "Bearer s3cre"}, 401),
                                    ({"Authorization": "Bearer s3crets"}, 401), ({"Authorization": "s3cret"}, 401), ({"Authorization": "Bearer "}, 401), ({"X-Api-Key": ""}, 401), ({"X-Api-Key": "S3CRET"}, 401)):
                for method, path in (("GET", "/v1/models"), ("POST", "/v1/chat/completions"), ("GET", "/metrics")):
                    a = s.request(method, path, CHAT if method == "POST" else None, headers)
                    self.assertEqual(a.status, status, (headers, path))
                    if status == 401:
                        self.assertEqual((a.json["error"]["code"], a.headers["WWW-Authenticate"]), ("invalid_api_key", "Bearer"))
                        self.assertNotIn(b"s3cret", a.body)
            self.assertEqual(s.get("/health", Host="a.example").status, 200)  # the key stands in for the Host
            self.assertEqual(s.get("/nothing").status, 401)
            self.assertEqual(s.get("/", Accept="text/html").status, 200)
            a = s.request("POST", "/v1/chat/completions", b" " * (20 << 20))  # nobody's body is read
            self.assertEqual(a.status, 401)
        finally:
            self.assertEqual(s.stop()[0], 0)

    def test_cors(self):
        """S28: off unless asked for."""
        self.assertNotIn("Access-Control-Allow-Origin", server.get("/health", Origin="https://a.example").headers)
        s = Server("--cors", "https://a.example", "--no-metrics", "-q")
        try:
            a = s.request("OPTIONS", "/v1/chat/completions", headers={"Origin": "https://a.example", "Access-Control-Request-Method": "POST"})
            self.assertEqual((a.status, a.headers["Access-Control-Allow-Origin"]), (204, "https://a.example"))
            self.assertIn("POST", a.headers["Access-Control-Allow-Methods"])
            self.assertEqual(s.get("/health").headers["Access-Control-Allow-Origin"], "https://a.example")
            self.assertEqual(s.get("/nope").headers["Access-Control-Allow-Origin"], "https://a.example")
            self.assertNotIn("Access-Control-Allow-Credentials", a.headers)
            self.assertEqual(s.get("/metrics").status, 404)
            self.assertNotIn("GET /metrics", s.get("/metrics").json["routes"])
        finally:
            self.assertEqual(s.stop()[0], 0)


class Documents(unittest.TestCase):
    def test_health(self):
        """B171: the device that computes."""
        for path in ("/health", "/health/live", "/health/ready"):
            a = server.get(path)
            self.assertEqual(a.status, 200)
            self.assertLessEqual({"status": "ok", "compute_mode": "cpu", "model_loaded": True}.items(), a.json.items())
            self.assertLessEqual({"version", "uptime_sec"}, set(a.json))

    def test_models(self):
        """B136: every client finds the context where it looks."""
        a = server.get("/v1/models").json
        m = a["data"][0]
        self.assertEqual((a["object"], len(a["data"]), m["id"], m["object"], m["owned_by"]), ("list", 1, "apr-demo", "model", "apr"))
        self.assertEqual({m["max_model_len"], m["context_length"], m["loaded_context_length"], m["meta"]["n_ctx"], m["meta"]["n_ctx_train"]}, {4096})
        self.assertEqual(a["models"][0]["slug"], "apr-demo")

    def test_metrics(self):
        before = server.metrics()
        u = server.chat("What is 12 times 3?").json["usage"]
        after = server.metrics()
        grown = {k: after[k] - before[k] for k in before}
        self.assertEqual(grown['apr_requests_total{outcome="finished"}'], 1)
        self.assertEqual(grown["apr_generated_tokens_total"], u["completion_tokens"])
        self.assertEqual(grown["apr_prompt_tokens_total"] + grown["apr_cached_tokens_total"], u["prompt_tokens"])
        self.assertGreater(grown["apr_decode_seconds_total"], 0)
        self.assertGreater(after['apr_memory_bytes{label="state"}'], 0)
        self.assertEqual((after["apr_requests_running"], after["apr_requests_waiting"]), (0, 0))
        text = server.get("/metrics")
        self.assertTrue(text.headers["Content-Type"].startswith("text/plain; version=0.0.4"))
        names = [line.split()[2] for line in text.body.decode().splitlines() if line.startswith("# TYPE")]
        self.assertEqual(len(names), len(set(names)))

    def test_page(self):
        a = server.get("/", Accept="text/html,application/xhtml+xml")
        self.assertEqual((a.status, a.headers["Content-Type"]), (200, "text/html; charset=utf-8"))
        self.assertIn("default-src 'none'", a.headers["Content-Security-Policy"])
        page = a.body.decode()
        with open(os.path.join(os.environ["APR_SOURCE"], "src", "serve", "ui", "page.html"), encoding="utf-8") as f:
            self.assertEqual(page, f.read())
        for foreign in ("http://", "https://", "innerHTML", "<link rel=\"stylesheet\"", "src="):
            self.assertNotIn(foreign, page)

    def test_tokenize_and_back(self):
        for text in ("", "Hello world", "naïve 你好 🙂", "<|im_end|>", "a\0b"):
            a = server.post("/tokenize", {"content": text}).json
            self.assertEqual(a["count"], len(a["tokens"]))
            self.assertEqual(server.post("/detokenize", {"tokens": a["tokens"]}).json["content"], text)
            self.assertEqual(server.post("/tokenize", {"prompt": text}).json["tokens"], a["tokens"])
        self.assertEqual(server.post("/tokenize", {"content": "<|im_end|>"}).json["count"], 1)
        self.assertGreater(server.post("/tokenize", {"content": "<|im_end|>", "parse_special": False}).json["count"], 1)
        for path, body in (("/tokenize", {}), ("/tokenize", {"content": 5}), ("/detokenize", {}), ("/detokenize", {"tokens": [4096]}), ("/detokenize", {"tokens": [-1]}), ("/detokenize", {"tokens": ["a"]})):
            self.assertEqual(server.post(path, body).status, 400)

    def test_apply_template(self):
        a = server.post("/apply-template", {"messages": [{"role": "user", "content": "Hi"}], "enable_thinking": False}).json
        self.assertEqual(a["prompt"], "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n")
        self.assertEqual(server.post("/detokenize", {"tokens": a["tokens"]}).json["content"], a["prompt"])


if __name__ == "__main__":
    unittest.main()
