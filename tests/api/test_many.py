"""Eight clients at once: each gets the answer that it gets alone, with a sequence for each and with half as many. Faults: B35 B143."""
import threading
import unittest

from apr_server import Server, demo_cases, events, gather


def ask(server, case, **fields):
    answer = server.chat(case["messages"], temperature=0, enable_thinking=case["enable_thinking"], stream=True, **({"tools": case["tools"]} if case["tools"] else {}), **fields)
    if answer.status != 200:
        raise AssertionError(answer.body)
    choice = gather(events(answer))
    for call in choice["message"].get("tool_calls", []):
        call.pop("id")
    return choice


class Many(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cases = demo_cases()
        cls.cases = [c for c in cases if c["tools"]][:3] + [c for c in cases if not c["tools"]][:5]
        server = Server("--threads", "1", "--parallel", "1", "-q")
        cls.wanted = [ask(server, c) for c in cls.cases]
        server.stop()

    def together(self, server, order):
        got = {}

        def one(i):
            got[i] = ask(server, self.cases[i])

        threads = [threading.Thread(target=one, args=(i,)) for i in order]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        for i in order:
            self.assertEqual(got[i], self.wanted[i], self.cases[i]["id"])

    def test_eight_streams(self):
        for parallel in ("8", "4"):
            server = Server("--threads", "2", "--parallel", parallel, "-q")
            for turn in range(3):
                self.together(server, [(i * 3 + turn) % 8 for i in range(8)])
            self.assertEqual(server.metrics()["apr_state_anomalies_total"], 0)
            server.stop()


if __name__ == "__main__":
    unittest.main()
