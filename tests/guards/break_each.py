"""Breaks the product line by line, and sees the test that guards each line go red.

Each `*.toml` here lists guards: a fault, what happens, what the operator sees, the line that sees to it, how the line
is broken, and the test that must then fail. `docs/guarantees.md` is made from the same files.

    python tests/guards/break_each.py [--jobs 2] [WORD ...]   break those whose text has all WORDs (default: all)
    python tests/guards/break_each.py --turn [N]              break one in TURNS of them (default: by the day)
    python tests/guards/break_each.py --write                 make the table in docs/guarantees.md anew

Works in copies under a temporary folder; the checkout is not touched. First each test must be green unbroken. Exit
codes: 0 each break was seen, 1 one was not, 2 a guard doesn't fit the code or its test fails unbroken.
"""

import argparse
import datetime as dt
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
TABLE = ROOT / "docs" / "guarantees.md"
BEGIN, END = "<!-- made by tests/guards/break_each.py --write -->", "<!-- end -->"
TURNS = 20
"""In so many days each guard has its turn."""

TEST_LIMIT_S = 240.0
TESTS_FAILED = 1  # pytest's exit code: it ran, and some test failed; not that nothing could be collected


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """One row of the table. `line` stands exactly once in `file`; `broken` takes its place."""

    topic: str
    fault: str
    happens: str
    sees: str
    test: str
    file: str
    line: str
    broken: str

    @property
    def tests(self) -> list[str]:
        """The tests' node ids."""
        return self.test.split()

    def find_problem(self) -> str:
        """Say why the guard doesn't fit the code; empty where it does."""
        path = ROOT / self.file
        if not path.is_file():
            return f"{self.file}: no such file"
        count = path.read_text(encoding="utf-8").count(self.line)
        if count != 1:
            return f"{self.file}: the line is there {count} times, not once: {self.line!r}"
        for test in self.tests:
            name, _, function = test.partition("::")
            function = function.split("[")[0].rsplit("::", 1)[-1]
            if not (ROOT / name).is_file() or f"def {function}(" not in (ROOT / name).read_text(encoding="utf-8"):
                return f"no test {test}"
        return ""


def load_guards() -> list[Guard]:
    """Return all guards, in the order of their files and in them."""
    found: list[Guard] = []
    for path in sorted(HERE.glob("*.toml")):
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        found += [Guard(topic=content["topic"], **entry) for entry in content["guard"]]
    return found


def render_table(guards: Sequence[Guard]) -> str:
    """Return the tables of docs/guarantees.md, one for each topic, with links to the proof."""
    lines: list[str] = []
    topic = ""
    for g in guards:
        if g.topic != topic:
            topic = g.topic
            lines += ["", f"## {topic}", "", "| fault | what happens | what you see | proof |", "|---|---|---|---|"]
        files = dict.fromkeys(t.partition("::")[0] for t in g.tests)
        proof = ", ".join([*(f"[test](../{f})" for f in files), f"[code](../{g.file})"])
        lines.append(f"| {_cell(g.fault)} | {_cell(g.happens)} | {_cell(g.sees)} | {proof} |")
    return "\n".join([BEGIN, *lines, "", END])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def fill_in(text: str, table: str) -> str:
    """Return the page with the table in its place."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{table}{rest.partition(END)[2]}"


def make_copy(folder: Path) -> Path:
    """Copy what git knows, and what it would take in, so that nothing is broken in the checkout itself."""
    copy = folder / "repository"
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0"):
        if name and (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    if (ROOT.parent / "shared").exists():
        (folder / "shared").symlink_to(ROOT.parent / "shared")
    return copy


def run_tests(copy: Path, tests: Sequence[str]) -> tuple[int, str]:
    """Run tests in a copy; return pytest's exit code and what it printed. One that hangs counts as failed."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header", *tests]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(
        command, cwd=copy, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=TEST_LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return TESTS_FAILED, f"no end in {TEST_LIMIT_S:g} s"
    return process.returncode, output


def break_one(guard: Guard, copy: Path) -> tuple[bool, str]:
    """Break a guard's line in a copy, run its test, mend the line; return whether it was seen, and in what words."""
    path = copy / guard.file
    whole = path.read_text(encoding="utf-8")
    path.write_text(whole.replace(guard.line, guard.broken), encoding="utf-8")
    started = time.monotonic()
    try:
        code, output = run_tests(copy, guard.tests)
    finally:
        path.write_text(whole, encoding="utf-8")
    seconds = time.monotonic() - started
    if code == TESTS_FAILED:
        return True, f"red, {seconds:.1f} s"
    why = "still green" if code == 0 else f"pytest ended with {code}, so nothing is proved"
    return False, f"{why}, {seconds:.1f} s\n{output[-2000:]}"


def break_all(guards: Sequence[Guard], jobs: int) -> int:
    """Break guard after guard, `jobs` at a time, each in a copy of its own; return the exit code."""
    with tempfile.TemporaryDirectory(prefix="guards_") as folder:
        copies = [make_copy(Path(folder) / str(n)) for n in range(jobs)]
        tests = list(dict.fromkeys(t for g in guards for t in g.tests))
        print(f"{len(guards)} guards; first their {len(tests)} tests unbroken", flush=True)
        code, output = run_tests_unlimited(copies[0], tests)
        if code != 0:
            print(output[-6000:])
            print("a test fails unbroken: its guard would prove nothing")
            return 2
        parts = [guards[n::jobs] for n in range(jobs)]
        with ThreadPoolExecutor(jobs) as pool:
            unseen = [g for found in pool.map(_run_part, parts, copies) for g in found]
    print(f"{len(guards) - len(unseen)} of {len(guards)} breaks were seen")
    return 1 if unseen else 0


def run_tests_unlimited(copy: Path, tests: Sequence[str]) -> tuple[int, str]:
    """Run many tests in a copy, for as long as they take."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header", *tests]
    done = subprocess.run(
        command, cwd=copy, env={**os.environ, "PYTHONPATH": str(copy)}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def _run_part(guards: Sequence[Guard], copy: Path) -> list[Guard]:
    unseen: list[Guard] = []
    for guard in guards:
        is_seen, words = break_one(guard, copy)
        print(f"{'seen  ' if is_seen else 'UNSEEN'} {guard.fault}: {words}", flush=True)
        if not is_seen:
            unseen.append(guard)
    return unseen


def main() -> int:
    """Do what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="WORD")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--turn", type=int, nargs="?", const=dt.date.today().toordinal(), help=f"break one in {TURNS} of them"
    )
    parser.add_argument("--write", action="store_true", help="make the table in docs/guarantees.md anew")
    options = parser.parse_args()
    guards = load_guards()
    problems = [f"{g.topic}: {g.fault}: {problem}" for g in guards if (problem := g.find_problem())]
    if problems:
        print("\n".join(problems))
        return 2
    if options.write:
        TABLE.write_text(fill_in(TABLE.read_text(encoding="utf-8"), render_table(guards)), encoding="utf-8")
        return 0
    chosen = [g for g in guards if all(w.lower() in str(g).lower() for w in options.words)]
    if options.turn is not None:
        chosen = chosen[options.turn % TURNS :: TURNS]
        print(f"turn {options.turn % TURNS} of {TURNS}")
    if not chosen:
        print("no guard fits")
        return 2
    return break_all(chosen, max(1, min(options.jobs, len(chosen))))


if __name__ == "__main__":
    sys.exit(main())
