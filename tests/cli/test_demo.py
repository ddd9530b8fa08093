"""The model that ships against its own answers, computed elsewhere in float32: prompts by the template, ids by greedy generation. (B119, B169)"""
import json
import os
import unittest

import apr

FRAGILE = 0.3  # the smallest distance of the two likeliest tokens below which another arithmetic may choose otherwise


def expected():
    return apr.lines(os.path.join(apr.DATA, "demo-expected.jsonl"))


class Demo(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cases = expected()

    def generate(self, cases, *flags):
        asked = [{"prompt_ids": c["prompt_ids"], "max_tokens": len(c["ids"]) + 8} for c in cases]
        return apr.cases(self, ["debug", "generate", "demo", "-q", *flags], asked)

    def test_the_list(self):
        self.assertEqual((len(self.cases), sum(c["correct"] for c in self.cases)), (116, 99))

    def test_prompts(self):
        """Messages, tools and switches give the prompt's ids."""
        for c in self.cases:
            messages, variables = c["messages"], {}
            if not c["enable_thinking"]:  # the list was made without the reasoning of the turns before
                messages = [{**m, "reasoning_content": ""} if m["role"] == "assistant" else m for m in messages]
                variables["enable_thinking"] = False
            variables["messages"] = messages
            if c["tools"]:
                variables["tools"] = c["tools"]
            got = json.loads(apr.output(self, "template", "demo", "--messages", "-", "--json", stdin=json.dumps(variables).encode()))
            self.assertEqual(got["ids"], c["prompt_ids"], c["id"])
            self.assertEqual(got["in_reasoning"], c["enable_thinking"], c["id"])

    def test_exact_arithmetic_gives_every_token(self):
        correct = [c for c in self.cases if c["correct"]]
        for c, got in zip(correct, self.generate(correct, "--exact")):
            self.assertEqual(got, {"ids": c["ids"], "finish": "stop"}, c["id"])

    def test_default_arithmetic(self):
        """At least 98 of 100 answers that are not fragile come out token for token."""
        firm = [c for c in self.cases if c["min_margin"] >= FRAGILE]
        self.assertGreaterEqual(len(firm), 90)
        equal = sum(got["ids"] == c["ids"] for c, got in zip(firm, self.generate(firm)))
        self.assertGreaterEqual(equal, 0.98 * len(firm))

    def test_one_prompt_after_another_is_as_if_alone(self):
        """B1: what the session holds from before never changes an answer."""
        cases = sorted((c for c in self.cases if c["min_margin"] >= FRAGILE), key=lambda c: c["prompt_ids"])[:30]
        self.assertEqual(self.generate(cases), self.generate(cases[::-1])[::-1])


if __name__ == "__main__":
    unittest.main()
