"""Words that have no place in the project: unfinished business, paths of one machine, hosts of registries."""
import os
import re
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tree

# Written in pieces, so that this file does not hold what it looks for.
UNFINISHED = re.compile("|".join([r"\bTO" r"DO\b", r"\bFIX" r"ME\b", r"\bXX" r"X\b", r"\bHA" r"CK\b", r"\bst" r"ub(s|bed)?\b", "not imple" "mented", "unimple" "mented"]))
ALONE = re.compile("|".join([r"(?<![\w.])/wo" r"rk/", r"(?<![\w.])/ho" r"me/\w", r"(?<![\w.])/ro" r"ot/", r"\.\./sha" r"red", r"pypi\.o" r"rg", r"debian\.o" r"rg/debian", r"files\.pythonho" r"sted"]))
TEXT = (".c", ".h", ".py", ".md", ".txt", ".cmake", ".json", ".yml", ".sh", ".html", ".js", "setup", ".ci/run")


def violations(root):
    out = []
    for path in tree.files(root, *TEXT):
        if path.startswith("tests/data/") or path == "models/make/tokenizer.json":
            continue
        for number, line in enumerate(tree.read(root, path).split("\n"), 1):
            m = (UNFINISHED.search(line) if path.startswith(("src/", "tests/")) else None) or ALONE.search(line)
            if m:
                out.append(f"{path}:{number}: {m.group(0)!r}")
    return out


class Words(unittest.TestCase):
    def test_tree(self):
        self.assertEqual(violations(tree.SOURCE), [])

    def test_plants_are_found(self):
        for word in ("TO" + "DO later", "FIX" + "ME", "a st" + "ub of it", "not imple" + "mented", "/wo" + "rk/x", "see ../sha" + "red/y", "https://pypi.o" + "rg/", '"/ho' + 'me/me/x"'):
            with tempfile.TemporaryDirectory() as d:
                tree.plant(d, **{"src/base/a.c": f"/* one\n * {word}\n */\n"})
                self.assertEqual([v.split(":")[:2] for v in violations(d)], [["src/base/a.c", "2"]], word)

    def test_innocent_words(self):
        with tempfile.TemporaryDirectory() as d:
            tree.plant(d, **{"src/base/a.c": "/* stubborn network/workers do as told */\n"})
            self.assertEqual(violations(d), [])


if __name__ == "__main__":
    unittest.main()
