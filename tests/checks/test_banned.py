"""Calls that stand nowhere, or in one room only."""
import os
import re
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tree

NOWHERE = ("sprintf vsprintf strcpy strcat strncpy strncat strtok atoi atol atoll atof gets alloca system popen mktemp tmpnam").split()
# call -> where it may stand: how the path begins
ONLY = {name: "src/base/mem.c" for name in "malloc calloc realloc reallocarray free aligned_alloc posix_memalign strdup strndup asprintf vasprintf".split()}
ONLY.update({name: "src/cli/" for name in "exit _exit abort printf fprintf vprintf vfprintf puts putchar perror assert".split()})
ONLY.update({name: "src/text/jinja" for name in "setjmp longjmp".split()})
ONLY.update({name: "src/base/opt.c" for name in "getenv secure_getenv".split()})
ONLY.update({name: "src/base/mem.c" for name in "mprotect madvise".split()})
ONLY["pthread_create"] = "src/base/thread.c"
CALL = re.compile(r"(?<![\w.>])(" + "|".join(sorted(NOWHERE + list(ONLY), key=len, reverse=True)) + r")\s*\(")


def violations(root):
    out = []
    for path in tree.files(root, ".c", ".h"):
        if not path.startswith("src/"):
            continue
        code = tree.code_only(tree.read(root, path))
        for m in CALL.finditer(code):
            name = m.group(1)
            allowed = ONLY.get(name)
            if allowed and path.startswith(allowed):
                continue
            line = code[: m.start(1)].count("\n") + 1
            out.append(f"{path}:{line}: {name}() " + (f"may stand in {allowed} only" if allowed else "may stand nowhere"))
    return out


class Banned(unittest.TestCase):
    def test_tree(self):
        self.assertEqual(violations(tree.SOURCE), [])

    def test_plants_are_found(self):
        for name in NOWHERE + list(ONLY):
            with tempfile.TemporaryDirectory() as d:
                tree.plant(d, **{"src/base/a.c": f"int f(void)\n{{\n    return {name}(x);\n}}\n"})
                self.assertEqual(len(violations(d)), 1, name)

    def test_what_is_no_call(self):
        with tempfile.TemporaryDirectory() as d:
            tree.plant(d, **{"src/base/a.c": '/* free(x) */ // exit(1)\nconst char *s = "system(1)";\nint n = snprintf(0, 0, ""); mem_free(p); a->free(p);\n'})
            self.assertEqual(violations(d), [])


if __name__ == "__main__":
    unittest.main()
