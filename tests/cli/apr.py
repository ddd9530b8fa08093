"""Running the program under test."""
import json
import os
import subprocess

BINARY = os.environ["APR_BINARY"]
SOURCE = os.environ["APR_SOURCE"]
DATA = os.path.join(SOURCE, "tests", "data")


def data(*parts):
    return os.path.join(DATA, *parts)


def run(*args, stdin=b"", timeout=300, env=None):
    """A CompletedProcess; stdin and the outputs are bytes."""
    clean = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR",)}
    return subprocess.run([BINARY, *args], input=stdin, capture_output=True, timeout=timeout, env={**clean, **(env or {})})


def output(test, *args, stdin=b""):
    """Standard output of a run that must succeed."""
    done = run(*args, stdin=stdin)
    test.assertEqual(done.returncode, 0, done.stderr.decode(errors="replace"))
    return done.stdout


def lines(path):
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f if line.strip()]


def cases(test, verb, inputs):
    """The answers of a debug verb to JSON lines."""
    text = "".join(json.dumps(x) + "\n" for x in inputs).encode()
    answers = [json.loads(line) for line in output(test, *verb, stdin=text).decode("utf-8").split("\n") if line]
    test.assertEqual(len(answers), len(inputs))
    return answers
