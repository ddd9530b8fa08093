"""Every fault that docs/reliability.md has to answer for is in one of its tables, and each case that a row names exists and carries the row's id."""
import os
import re
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tree

PAGE = "docs/reliability.md"
RANGES = "1-5 7-12 14 16-17 19 21-22 24 26-29 31-33 35 37 39-44 46-52 54-59 134-138 140-145 148 170-184"
IDS = [f"B{n}" for part in RANGES.split() for n in range(int(part.split("-")[0]), int(part.split("-")[-1]) + 1)]
ROW = re.compile(r"^\| (B\d+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.M)
NAMED = re.compile(r"`([^`]+)` (\w+(?:, \w+)*)")


def case_text(text, name, is_python):
    """A case with the comment in front of it, or None."""
    if is_python:
        m = re.search(rf"^( *)def {name}\(.*?(?=^\1\S|^ {{0,4}}(?:def|class) |\Z)", text, re.M | re.S)
    else:
        m = re.search(rf"(?:^/\*(?:(?!\*/).)*\*/\n|^(?://.*\n)+)?^(?:static )?\w[\w *]*\b{name}\([^;{{]*\)\n\{{.*?^\}}", text, re.M | re.S)
    return m and m.group(0)


def check_named(root, fault, path, names):
    if not os.path.isfile(os.path.join(root, path)):
        return [f"{fault}: there is no {path}"]
    out, text = [], tree.read(root, path)
    for name in names:
        case = case_text(text, name, path.endswith(".py"))
        if case is None:
            out.append(f"{fault}: {path} has no {name}")
        elif not re.search(rf"\b{fault}\b", case):
            out.append(f"{fault}: {name} of {path} does not carry the id")
    return out


def violations(root):
    out, seen = [], {}
    for fault, what, answer, test in ROW.findall(tree.read(root, PAGE)):
        seen[fault] = seen.get(fault, 0) + 1
        named = NAMED.findall(test)
        if test.startswith("none: ") and len(test) > 12 and not named:
            continue
        if not named or NAMED.sub("", test).strip("; "):
            out.append(f"{fault}: neither `file` case, case; ... nor \"none: reason\": {test}")
        for path, names in named:
            out += check_named(root, fault, path, [n for n in re.split(r"[, ]+", names) if n])
    out += [f"{fault}: no row" for fault in IDS if fault not in seen]
    out += [f"{fault}: {n} rows" for fault, n in seen.items() if n > 1]
    out += [f"{fault}: no fault that this page has to answer for" for fault in seen if fault not in IDS]
    return out


class Faults(unittest.TestCase):
    def test_tree(self):
        self.assertEqual(len(IDS), 73)
        self.assertEqual(violations(tree.SOURCE), [])

    def plant(self, change=lambda page: page, **files):
        """Violations of a small tree whose page is sound but for `change`."""
        rows = {fault: f"| {fault} | what | answer | none: other product |" for fault in IDS}
        rows["B2"] = "| B2 | what | answer | `tests/a.c` test_two; `tests/b.py` test_two, test_three |"
        with tempfile.TemporaryDirectory() as d:
            tree.plant(d, **{PAGE: change("\n".join(rows.values()) + "\n"),
                             "tests/a.c": "static void test_one(void **unused)\n{\n}\n\n/* B2: it holds.\n * B1 */\nstatic void test_two(void **unused)\n{\n    f();\n}\n",
                             "tests/b.py": 'class A:\n    def test_two(self):\n        """B2"""\n        f()\n\n    def test_three(self):\n        f()  # B2\n\n    def test_four(self):\n        pass\n', **files})
            return violations(d)

    def test_sound(self):
        self.assertEqual(self.plant(), [])

    def test_plants_are_found(self):
        c = "static void test_two(void **unused)\n{\n}\n"
        for expected, plant in (
            ("B7: no row", dict(change=lambda p: p.replace("| B7 |", "| B6 |"))),
            ("B3: 2 rows", dict(change=lambda p: p.replace("| B4 |", "| B3 |"))),
            ("B999: no fault", dict(change=lambda p: p + "| B999 | a | b | none: other product |\n")),
            ("B5: neither", dict(change=lambda p: p.replace("| B5 | what | answer | none: other product |", "| B5 | what | answer | some day |"))),
            ("B5: neither", dict(change=lambda p: p.replace("| B5 | what | answer | none: other product |", "| B5 | what | answer | none:  |"))),
            ("B2: neither", dict(change=lambda p: p.replace("`tests/a.c` test_two;", "`tests/a.c` test_two and more;"))),
            ("B2: there is no tests/z.c", dict(change=lambda p: p.replace("tests/a.c", "tests/z.c"))),
            ("B2: tests/a.c has no test_six", dict(change=lambda p: p.replace("`tests/a.c` test_two", "`tests/a.c` test_six"))),
            ("B2: test_one of tests/a.c does not carry", dict(change=lambda p: p.replace("`tests/a.c` test_two", "`tests/a.c` test_one"))),
            ("B2: test_four of tests/b.py does not carry", dict(change=lambda p: p.replace("test_two, test_three", "test_two, test_four"))),
            ("B2: test_two of tests/a.c does not carry", {"tests/a.c": "/* B2 */\nint x;\n\n" + c + "\n/* B2 */\n"}),
            ("B2: test_two of tests/a.c does not carry", {"tests/a.c": "/* B22, B12 */\n" + c}),
            ("B2: test_two of tests/b.py does not carry", {"tests/b.py": '"""B2"""\nclass A:\n    def test_two(self):\n        f()\n\n    def test_three(self):\n        f()  # B2\n'}),
        ):
            with self.subTest(expected):
                found = self.plant(**plant)
                self.assertTrue(found and any(v.startswith(expected) for v in found), found)


if __name__ == "__main__":
    unittest.main()
