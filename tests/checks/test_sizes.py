"""Files stay below 800 lines, functions below 80, parameter lists below 9 (operations have the signatures of compute/op.h)."""
import os
import re
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tree

FILE_LINES, FUNCTION_LINES, PARAMETERS = 800, 80, 8


def functions(text):
    """(name, first line, lines, parameters) of each function: a signature that starts in column 0, a `{` alone in column 0, up to the `}` in column 0."""
    code = tree.code_only(text)
    lines = code.split("\n")
    start = None
    for number, line in enumerate(lines):
        if line.rstrip() == "{":
            start = number
        elif line.startswith("}") and start is not None:
            first = start - 1
            while first > 0 and lines[first - 1].strip() and not lines[first - 1].startswith(("}", "#")) and not lines[first - 1].rstrip().endswith(";"):
                first -= 1
            signature = " ".join(lines[first:start])
            m = re.search(r"(\w+)\s*\(", re.sub(r"__attribute__\s*\(\(.*?\)\)\)?|PRINTF_LIKE\([^)]*\)", "", signature))
            if m:
                yield m.group(1), first + 1, number - first + 1, parameters(signature[signature.index(m.group(1)) :])
            start = None


def parameters(signature):
    depth, count, any_text = 0, 0, False
    for ch in signature[signature.index("(") :]:
        if ch in "([":
            depth += 1
        elif ch in ")]":
            depth -= 1
            if depth == 0:
                break
        elif ch == "," and depth == 1:
            count += 1
        elif depth == 1 and not ch.isspace():
            any_text = True
    return count + 1 if any_text else 0


def violations(root):
    out = []
    for path in tree.files(root, ".c", ".h"):
        if not path.startswith("src/"):
            continue
        text = tree.read(root, path)
        n = text.count("\n")
        if n > FILE_LINES:
            out.append(f"{path}: {n} lines, at most {FILE_LINES}")
        for name, line, length, params in functions(text):
            if length > FUNCTION_LINES:
                out.append(f"{path}:{line}: {name} has {length} lines, at most {FUNCTION_LINES}")
            if params > PARAMETERS and not path.startswith("src/compute/"):
                out.append(f"{path}:{line}: {name} has {params} parameters, at most {PARAMETERS}")
    return out


class Sizes(unittest.TestCase):
    def test_tree(self):
        self.assertEqual(violations(tree.SOURCE), [])

    def test_functions_are_seen(self):
        n = sum(len(list(functions(tree.read(tree.SOURCE, p)))) for p in tree.files(tree.SOURCE, ".c") if p.startswith("src/"))
        self.assertGreater(n, 300)

    def test_finder(self):
        text = '#include <x.h>\n\nstatic int\nf(int a, void (*g)(int, int),\n  char b[3])\n{\n    if (a) {\n        return "}\\n{";\n    }\n}\n\nstruct s {\n    int a;\n};\n\nvoid g(void)\n{\n}\n'
        self.assertEqual([(n, a, b) for n, a, b, _ in functions(text)], [("f", 3, 8), ("g", 16, 3)])
        self.assertEqual([p for *_, p in functions(text)], [3, 1])

    def test_plants_are_found(self):
        plants = ["int x;\n" * (FILE_LINES + 1), "void f(void)\n{\n" + "    g();\n" * FUNCTION_LINES + "}\n", "int f(" + ", ".join(f"int a{i}" for i in range(PARAMETERS + 1)) + ")\n{\n}\n"]
        for text in plants:
            with tempfile.TemporaryDirectory() as d:
                tree.plant(d, **{"src/base/a.c": text})
                self.assertEqual(len(violations(d)), 1, text[:60])


if __name__ == "__main__":
    unittest.main()
