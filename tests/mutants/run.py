#!/usr/bin/env python3
"""Breaks one rule of the contract at a time and looks whether its test notices.

list.toml holds the mutants: each changes one place of one source file and names the test that must fail by it. The program is built once, in a scratch folder; for a mutant the
changed file alone is compiled, linked before the libraries, and its test is run. The source tree is only read. Exit status 0: every mutant is red; 1: one survived or is of no use;
2: the list or the command line is wrong.
"""
import argparse
import concurrent.futures
import dataclasses
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LIST = os.path.join(SOURCE, "tests", "mutants", "list.toml")
FIELDS = {"id", "file", "find", "replace", "test", "case", "why"}
PATIENCE = 5  # how many times longer than the sound program a mutant may run, and the least that is waited besides
LEAST_WAIT_S = 10


class Wrong(Exception):
    """The list, or what it refers to, is not as it has to be."""


@dataclasses.dataclass(frozen=True)
class Mutant:
    id: str
    file: str
    find: str
    replace: str
    test: str  # as ctest calls it
    why: str
    case: str = ""  # within the test: a cmocka name, or Class.method; empty: all of it

    @property
    def where(self):
        return self.test + (f"/{self.case}" if self.case else "")

    def text(self):
        """The changed file."""
        with open(os.path.join(SOURCE, self.file), encoding="utf-8") as f:
            text = f.read()
        n = text.count(self.find)
        if n != 1:
            raise Wrong(f"{self.id}: {self.find!r} occurs {n} times in {self.file}, expected once")
        return text.replace(self.find, self.replace)


def read_mutant(entry):
    name = entry.get("id", "?")
    if not set(entry) <= FIELDS or not FIELDS - {"case"} <= set(entry) or not all(isinstance(v, str) for v in entry.values()):
        raise Wrong(f"{name}: expected the strings {', '.join(sorted(FIELDS))} (case may be left out)")
    m = Mutant(**entry)
    if not m.file.startswith("src/") or not m.file.endswith(".c"):
        raise Wrong(f"{name}: {m.file} is no src/….c")
    if "\n" in m.find + m.replace or not m.find or m.find == m.replace:
        raise Wrong(f"{name}: find and replace are two different pieces of one line")
    m.text()
    return m


def read_list(only):
    mutants, wrong = [], []
    with open(LIST, "rb") as f:
        entries = tomllib.load(f)["mutant"]
    for entry in entries:
        try:
            mutants.append(read_mutant(entry))
        except (Wrong, OSError) as e:
            wrong.append(str(e))
    if wrong:
        raise Wrong("\n".join(wrong))
    ids = [m.id for m in mutants]
    for name in ids:
        if ids.count(name) > 1:
            raise Wrong(f"{name}: two mutants of this name")
    for name in only:
        if name not in ids:
            raise Wrong(f"{name}: there is no mutant of this name; --list shows them")
    return [m for m in mutants if not only or m.id in only]


@dataclasses.dataclass(frozen=True)
class Outcome:
    failed: bool
    seconds: float
    said: str = ""
    timed_out: bool = False


def run(command, limit_s=None, **options):
    """Runs a command in a process group of its own, which does not outlive it."""
    start = time.monotonic()
    p = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True, **options)
    timed_out = False
    try:
        said, _ = p.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        timed_out = True
    finally:
        try:
            os.killpg(p.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    if timed_out:
        said, _ = p.communicate()
    return Outcome(timed_out or p.returncode != 0, time.monotonic() - start, said.decode(errors="replace"), timed_out)


def must(command, **options):
    done = run(command, **options)
    if done.failed:
        raise Wrong(f"{shlex.join(command)} failed:\n{done.said}")
    return done.said


class Build:
    """The sound program, and how its parts are made."""

    def __init__(self, folder, jobs):
        self.folder, self.jobs = folder, jobs
        launcher = ["-DCMAKE_C_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
        must(["cmake", "-G", "Ninja", "-S", SOURCE, "-B", folder, "-DCMAKE_BUILD_TYPE=None", "-DCMAKE_C_FLAGS=-O1", "-DAPR_TESTS=ON", *launcher])
        self.tests = self.read_tests()
        with open(os.path.join(folder, "compile_commands.json"), encoding="utf-8") as f:
            self.compiles = {os.path.relpath(c["file"], SOURCE): c for c in json.load(f)}
        self.links = {}

    def read_tests(self):
        return {t["name"]: t for t in json.loads(must(["ctest", "--test-dir", self.folder, "--show-only=json-v1"]))["tests"]}

    def check(self, mutants):
        for m in mutants:
            if m.test not in self.tests:
                raise Wrong(f"{m.id}: there is no test {m.test}")
            if m.file not in self.compiles:
                raise Wrong(f"{m.id}: {m.file} is not compiled")

    def make(self, mutants):
        targets = sorted({self.program(m.test) for m in mutants})
        must(["ninja", "-C", self.folder, "-j", str(self.jobs), *targets])
        for target in targets:
            self.links[target] = self.link_command(target)
        self.tests = self.read_tests()  # their commands are known once they are built

    def environment(self, test):
        properties = {p["name"]: p["value"] for p in self.tests[test].get("properties", [])}
        return dict(setting.split("=", 1) for setting in properties.get("ENVIRONMENT", []))

    def program(self, test):
        """What a test runs, as the build calls it: itself, or for a script the program that it tests."""
        path = self.environment(test).get("APR_BINARY")
        return os.path.relpath(path, self.folder) if path else os.path.join("tests", test)

    def link_command(self, target):
        steps, step = [], []
        for word in shlex.split(must(["ninja", "-C", self.folder, "-t", "commands", "-s", target])):
            if word == "&&":
                steps.append(step)
                step = []
            else:
                step.append(word)
        return next(s for s in [*steps, step] if "-o" in s and s[s.index("-o") + 1] == target)

    def compile(self, mutant, source, to):
        c = self.compiles[mutant.file]
        words = [source if w == c["file"] else w for w in shlex.split(c["command"])]
        words[words.index("-o") + 1] = to
        return run(words, cwd=c["directory"])

    def link(self, mutant, obj, to):
        """The changed object takes the place of the sound one; before the libraries it comes first, and theirs is left out."""
        c = self.compiles[mutant.file]
        words = list(self.links[self.program(mutant.test)])
        sound = shlex.split(c["command"])
        sound = sound[sound.index("-o") + 1]
        if sound in words:
            words[words.index(sound)] = obj
        else:
            words.insert(words.index("-o"), obj)
        words[words.index("-o") + 1] = to
        return run(words, cwd=self.folder)

    def run_test(self, mutant, program, limit_s, cwd):
        test = self.tests[mutant.test]
        settings = self.environment(mutant.test)
        command = list(test["command"])
        if "APR_BINARY" in settings:
            settings["APR_BINARY"] = program
            command += [mutant.case] if mutant.case else []
        else:
            command[0] = program
            settings["APR_TEST_CASE"] = mutant.case or "*"
        return run(command, limit_s, cwd=cwd, env={**os.environ, **settings})


def reason(said):
    """The line of a test's output that says what was wrong."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    for i, line in enumerate(lines):
        if line.startswith("[  ERROR   ] ---"):
            more = line.removeprefix("[  ERROR   ] ---").strip()
            return more or next((x for x in lines[i + 1 :] if not x.startswith("[")), line)
        if line.startswith(("AssertionError", "Traceback")) and line.startswith("A"):
            return line
    return lines[-1] if lines else "no output"


def sound_run(build, mutant, scratch):
    done = build.run_test(mutant, os.path.join(build.folder, build.program(mutant.test)), 600, scratch)
    if done.failed:
        raise Wrong(f"{mutant.where} fails on the program as it is:\n{done.said}")
    if "Running 0 test(s)" in done.said:
        raise Wrong(f"{mutant.id}: {mutant.test} has no case {mutant.case}")
    return done.seconds


def try_mutant(build, mutant, sound_s, scratch):
    """The line of the report, as a dictionary."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        source, obj, program = (os.path.join(folder, name) for name in (os.path.basename(mutant.file), "changed.o", "program"))
        with open(source, "w", encoding="utf-8") as f:
            f.write(mutant.text())
        report = {"id": mutant.id, "file": mutant.file, "test": mutant.where}
        done = build.compile(mutant, source, obj)
        if not done.failed:
            done = build.link(mutant, obj, program)
        if done.failed:
            return {**report, "outcome": "error", "said": done.said.replace(source, mutant.file), "seconds": time.monotonic() - start}
        done = build.run_test(mutant, program, sound_s * PATIENCE + LEAST_WAIT_S, folder)
        said = "ran for too long" if done.timed_out else reason(done.said) if done.failed else mutant.why
        return {**report, "outcome": "red" if done.failed else "survived", "said": said, "seconds": time.monotonic() - start}


def run_all(mutants, build, scratch, jobs, show):
    build.check(mutants)
    build.make(mutants)
    one_of_each = {m.where: m for m in mutants}
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        sound = dict(zip(one_of_each, pool.map(lambda m: sound_run(build, m, scratch), one_of_each.values())))
        reports = []
        for report in pool.map(lambda m: try_mutant(build, m, sound[m.where], scratch), mutants):
            reports.append(report)
            show(report)
    return reports


def parse_arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--only", metavar="ID", action="append", default=[], help="this mutant; may be given again")
    p.add_argument("--list", action="store_true", help="name the mutants and build nothing")
    p.add_argument("--json", action="store_true", help="one JSON document instead of lines")
    p.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), metavar="N", help="mutants at a time (default: the processors there are)")
    p.add_argument("--build", metavar="DIR", help="keep the sound build there, for the next time")
    p.add_argument("-v", "--verbose", action="store_true", help="say of each red one what its test said")
    return p.parse_args()


def print_list(mutants, as_json):
    if as_json:
        print(json.dumps({"mutants": [dataclasses.asdict(m) for m in mutants]}, indent=2))
        return
    for m in mutants:
        print(f"{m.id}: {m.why}\n    {m.file}, {m.where}")


def print_report(report, verbose):
    said = f"\n    {report['said'].strip()}" if verbose or report["outcome"] != "red" else ""
    print(f"{report['outcome']:<9} {report['id']:<40} {report['test']:<60} {report['seconds']:5.1f} s{said}", flush=True)


def main():
    a = parse_arguments()
    start = time.monotonic()
    mutants = read_list(a.only)
    if a.list:
        print_list(mutants, a.json)
        return 0
    with tempfile.TemporaryDirectory(prefix="apr-mutants-") as scratch:
        build = Build(os.path.abspath(a.build) if a.build else os.path.join(scratch, "sound"), a.jobs)
        reports = run_all(mutants, build, scratch, a.jobs, (lambda report: None) if a.json else (lambda report: print_report(report, a.verbose)))
    counts = {outcome: sum(r["outcome"] == outcome for r in reports) for outcome in ("red", "survived", "error")}
    if a.json:
        print(json.dumps({"mutants": reports, **counts, "seconds": time.monotonic() - start}, indent=2))
    else:
        broken = f", {counts['error']} do not build" if counts["error"] else ""
        print(f"{len(reports)} mutants, {counts['red']} red, {counts['survived']} survived{broken} ({time.monotonic() - start:.0f} s)")
    return 0 if counts["red"] == len(reports) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Wrong, tomllib.TOMLDecodeError) as e:
        print(f"mutants: {e}", file=sys.stderr)
        sys.exit(2)
