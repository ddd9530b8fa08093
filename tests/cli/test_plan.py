"""apr serve plan from headers alone: the published sizes, to the byte; what does not fit is refused with the arithmetic."""
import json
import os
import re
import tempfile
import unittest

import apr
import headers

MIB = 1 << 20
# tensors, parameters in billions, KV bytes a position at f32, f16, q8_0, state bytes of a sequence
FIGURES = {
    "0.8B": (320, 0.752, 24576, 12288, 6528, 20201472),
    "2B": (320, 1.882, 24576, 12288, 6528, 20201472),
    "4B": (426, 4.206, 65536, 32768, 17408, 52690944),
    "9B": (427, 8.954, 65536, 32768, 17408, 52690944),
    "27B": (851, 26.896, 131072, 65536, 34816, 156893184),
    "35B-A3B": (733, 34.661, 40960, 20480, 10880, 65863680),
    "122B-A10B": (879, 122.112, 49152, 24576, 13056, 156303360),
    "397B-A17B": (1098, 396.346, 61440, 30720, 16320, 195379200),
}
# Past what any machine here has: plans that need more are refused for that.
SMALL = ("0.8B", "2B", "4B")


class Plans(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.files = {size: os.path.join(cls.folder.name, size + ".gguf") for size in FIGURES}
        cls.made = {size: headers.write(path, size) for size, path in cls.files.items()}

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def plan(self, size, *flags):
        return json.loads(apr.output(self, "serve", "plan", self.files[size], "--json", *flags))

    def refusal(self, size, *flags):
        done = apr.run("serve", "plan", self.files[size], *flags)
        self.assertEqual((done.returncode, done.stdout), (1, b""), done.stderr)
        return done.stderr.decode()

    def figures(self, size, cache):
        """The plan's numbers, or those of its refusal where this machine is too small for it."""
        done = apr.run("serve", "plan", self.files[size], "--json", "-c", "4096", "--parallel", "1", "--cache-type", cache)
        answer = json.loads(done.stdout)
        if done.returncode == 0:
            return answer["weight_bytes"] // MIB, answer["kv_bytes_per_position"], answer["state_bytes_per_slot"] // MIB
        found = re.search(r"weights (\d+) MiB .* x (\d+) B at " + cache + r"\) \+ state (\d+) MiB", answer["error"]["message"])
        self.assertTrue(found, answer)
        return tuple(int(x) for x in found.groups())

    def test_the_headers_are_the_models(self):
        for size, (n, billions, *_) in FIGURES.items():
            self.assertEqual((self.made[size][0], round(self.made[size][1] / 1e9, 3)), (n, billions), size)

    def test_every_size(self):
        for size, (_, _, f32, f16, q8_0, state) in FIGURES.items():
            for cache, per_position in (("f32", f32), ("f16", f16), ("q8_0", q8_0)):
                weights, kv, per_state = self.figures(size, cache)
                self.assertLessEqual(abs(weights - self.made[size][2] / MIB), 1, size)
                self.assertEqual(kv, per_position, (size, cache))
                self.assertLessEqual(abs(per_state - state / MIB), 1, size)

    def test_to_the_byte(self):
        for size in SMALL:
            _, _, f32, _, _, state = FIGURES[size]
            plan = self.plan(size, "-c", "4096", "--parallel", "2", "--cache-type", "f32")
            self.assertEqual((plan["weight_bytes"], plan["kv_bytes_per_position"], plan["state_bytes_per_slot"], plan["declared_context_length"]),
                             (self.made[size][2], f32, state, headers.CONTEXT))
            parts = plan["weight_bytes"] + 4096 * f32 + 2 * state + plan["workspace_bytes"] + plan["overhead_bytes"]
            self.assertEqual(plan["total_bytes"], parts)
            fits = self.plan(size, "-c", "4096", "--parallel", "2", "--cache-type", "f32", "--memory-limit", str(parts))
            self.assertEqual((fits["total_bytes"], fits["snapshots_per_slot"]), (parts, 0))
            less = self.plan(size, "-c", "4096", "--parallel", "2", "--cache-type", "f32", "--memory-limit", str(parts - 1))
            self.assertLess(less["workspace_rows"], fits["workspace_rows"])

    def test_the_largest_context_that_fits(self):
        open_plan = self.plan("0.8B", "--memory-limit", "1500M")
        self.assertTrue(4096 < open_plan["context_length"] < headers.CONTEXT, open_plan)
        self.assertEqual(open_plan["cache_type"], "f16")
        self.assertLessEqual(open_plan["total_bytes"], 1500 * MIB)
        wide = self.plan("0.8B", "--memory-limit", "1500M", "--cache-type", "q8_0")
        self.assertGreater(wide["context_length"], open_plan["context_length"])

    def test_refusals(self):
        said = self.refusal("0.8B", "-c", "200000", "--memory-limit", "1500M", "--cache-type", "f32")
        found = re.fullmatch(r"apr: capacity: (\w+): weights (\d+) MiB \+ KV (\d+) MiB \(200000 positions x 24576 B at f32\) \+ state (\d+) MiB \+ workspace (\d+) MiB \+ overhead (\d+) MiB "
                             r"= (\d+) MiB, against 1500 MiB free of \d+ MiB \(--memory-limit\)\. The largest context that fits is (\d+): --context-length \8\n", said)
        self.assertTrue(found, said)
        parts, total = [int(x) for x in found.groups()[1:6]], int(found.group(7))
        self.assertLessEqual(abs(sum(parts) - total), 3)
        self.plan("0.8B", "-c", found.group(8), "--memory-limit", "1500M", "--cache-type", "f32")
        self.assertIn("capacity: ", self.refusal("397B-A17B", "--memory-limit", "8GiB"))
        self.assertIn("No context fits", self.refusal("397B-A17B", "--memory-limit", "8GiB"))
        self.assertEqual(self.refusal("0.8B", "-c", "262145"), "apr: --context-length 262145 is above the model's declared context of 262144\n")

    def test_lines(self):
        text = apr.output(self, "serve", "plan", self.files["0.8B"], "--memory-limit", "4G").decode()
        names = [line.split()[1] for line in text.splitlines() if line.startswith("plan: ")]
        self.assertEqual(names, ["weights", "KV", "state", "workspace", "overhead", "total", "snapshots", "more", "context"])


if __name__ == "__main__":
    unittest.main()
