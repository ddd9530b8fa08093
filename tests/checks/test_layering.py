"""A file includes its own folder and lower ranks only; backends are seen by compute/ alone; serve/ sees the engine through three headers."""
import os
import re
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tree

# What each room may include besides itself.
ALLOWED = {"base": [], "gguf": ["base"], "text": ["base", "gguf"], "compute": ["base", "gguf"]}
ALLOWED["model"] = ["base", "gguf", "text", "compute"]
ALLOWED["engine"] = ALLOWED["model"] + ["model"]
ALLOWED["serve"] = ALLOWED["engine"] + ["engine"]
ALLOWED["cli"] = ALLOWED["serve"] + ["serve"]
SERVE_SEES = {"engine/engine.h", "engine/answer.h", "engine/sample.h"}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)


def violations(root):
    out = []
    for path in tree.files(root, ".c", ".h"):
        if not path.startswith("src/"):
            continue
        room, text = path.split("/")[1], tree.read(root, path)
        for m in INCLUDE.finditer(text):
            target, line = m.group(1), text[: m.start(1)].count("\n") + 1
            other = target.split("/")[0]
            where = f'{path}:{line}: #include "{target}"'
            if room not in ALLOWED:
                out.append(f"{where}: the room src/{room} has no rank")
            elif "/" not in target:
                out.append(f"{where}: name the room as well")
            elif not os.path.isfile(os.path.join(root, "src", target)):
                out.append(f"{where}: there is no such header in src/")
            elif other != room and other not in ALLOWED[room]:
                out.append(f"{where}: {room} may include only {', '.join([room] + ALLOWED[room])}")
            elif re.match(r"compute/(cpu|cuda)/", target) and room != "compute":
                out.append(f"{where}: backends are compute's own")
            elif room == "serve" and other == "engine" and target not in SERVE_SEES:
                out.append(f"{where}: serve sees the engine through {', '.join(sorted(SERVE_SEES))}")
    return out


class Layering(unittest.TestCase):
    def test_tree(self):
        self.assertGreater(len(tree.files(tree.SOURCE, ".c")), 20)
        self.assertEqual(violations(tree.SOURCE), [])

    def test_plants_are_found(self):
        plants = {
            "src/base/a.c": '#include "gguf/gguf.h"\n',
            "src/text/a.c": '#include "compute/op.h"\n',
            "src/compute/a.c": '#include "text/vocab.h"\n',
            "src/model/a.c": '#include "compute/cpu/cpu.h"\n',
            "src/serve/a.c": '#include "engine/session.h"\n',
            "src/engine/a.c": '#include "engine.h"\n',
            "src/cli/a.c": '#include "cli/none.h"\n',
            "src/attic/a.c": '#include "base/err.h"\n',
        }
        headers = ["base/err.h", "gguf/gguf.h", "compute/op.h", "text/vocab.h", "compute/cpu/cpu.h", "engine/session.h", "engine/engine.h"]
        for path, text in plants.items():
            with tempfile.TemporaryDirectory() as d:
                tree.plant(d, **{f"src/{h}": "" for h in headers})
                self.assertEqual(violations(d), [])
                tree.plant(d, **{path: text})
                self.assertEqual([v.split(":")[0] for v in violations(d)], [path])

    def test_what_is_allowed(self):
        with tempfile.TemporaryDirectory() as d:
            tree.plant(d, **{"src/base/err.h": "", "src/engine/engine.h": "", "src/compute/cpu/cpu.h": "", "src/compute/device.c": '#include "compute/cpu/cpu.h"\n',
                             "src/serve/a.c": '#include "engine/engine.h"\n#include "base/err.h"\n#include <stdio.h>\n'})
            self.assertEqual(violations(d), [])


if __name__ == "__main__":
    unittest.main()
