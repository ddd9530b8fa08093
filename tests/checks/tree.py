"""What the checks share: the project's own files, and C with its comments and strings blanked out."""
import os
import re
import subprocess

SOURCE = os.environ.get("APR_SOURCE") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def files(root, *endings):
    """Paths relative to root: what git tracks or would, or, outside a repository, everything but build folders."""
    out = None
    if os.path.exists(os.path.join(root, ".git")):
        done = subprocess.run(["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"], capture_output=True)
        if done.returncode == 0:
            out = [p for p in done.stdout.decode().split("\0") if p and os.path.isfile(os.path.join(root, p))]
    if out is None:
        out = []
        for folder, names, leaves in os.walk(root):
            names[:] = [n for n in names if n not in (".git", "build", "__pycache__")]
            out += [os.path.relpath(os.path.join(folder, leaf), root) for leaf in leaves]
    return sorted(set(p for p in out if not endings or p.endswith(endings)))


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8", errors="replace") as f:
        return f.read()


TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)


def code_only(text):
    """The text with comments, strings and character constants turned into blanks; line numbers stay."""
    return TOKEN.sub(lambda m: re.sub(r"[^\n]", " ", m.group(0)), text)


def plant(folder, **paths):
    """Writes files for a self-test: plant(d, **{"src/base/x.c": "text"})."""
    for path, text in paths.items():
        full = os.path.join(folder, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w", encoding="utf-8") as f:
            f.write(text)
