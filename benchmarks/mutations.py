"""Which changed lines of the core the tests of their area notice: ``python -m benchmarks.mutations``.

Lines are drawn by ``--seed`` from the bodies of functions, and one thing is changed in each: a comparison, a number, a
condition, an operator, a call that is left out, a value that is not returned.  Copies of what is committed are changed,
never this tree.  All tests run once first, to know which of them come to which line.  Those of the line's area run with
the change, the quickest first; the first that fails or hangs kills the mutant.  A line that none of them comes to is
alive.  Exit status 1: fewer than ``--goal`` percent are killed.

Mutmut and cosmic-ray do not fit: neither draws lines, nor gives each file tests of its own.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, cast
from xml.etree import ElementTree

import coverage
import pytest

_ROOT: Final = Path(__file__).resolve().parents[1]
_AREAS: Final = {
    "iris/kernel": ("tests/kernel", "tests/cluster/mesh"),
    "iris/kernel/transport/memory.py": ("tests/kernel/transport", "tests/testing"),
    "iris/security": ("tests/security", "tests/cluster/mesh"),
    "iris/cluster": ("tests/cluster", "tests/node/members"),
    "iris/cluster/directory": ("tests/cluster", "tests/federation"),
    "iris/cluster/sites": ("tests/cluster", "tests/federation"),
    "iris/patterns": ("tests/patterns",),
    "iris/patterns/multicast": ("tests/patterns/multicast", "tests/node/requests"),
    "iris/patterns/pubsub": ("tests/patterns/pubsub", "tests/node/streams"),
    "iris/patterns/pubsub/queues": ("tests/spark_bridge/queues", "tests/spark_bridge/consumers"),
    "iris/patterns/request": ("tests/patterns/request", "tests/node/requests"),
    "iris/patterns/service": ("tests/patterns/service", "tests/node/requests"),
    "iris/patterns/tunnel": ("tests/patterns/tunnel", "tests/node/streams"),
}
"""The tests of the core, by the longest start of a file's name."""

_SWAPPED: Final[dict[type[ast.AST], Any]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
_GROWN: Final = 4 * 1024 * 1024
"""KiB of data that tests may have: a loop that never ends may also eat the machine's memory."""

_HANGS: Final = 60.0
"""Seconds that tests may take with a mutant, beside ten times what they take without."""


class Reached(NamedTuple):
    """Coverage and times of the tests without a change."""

    tests: Mapping[tuple[str, int], Collection[str]]
    """Tests that reach each line."""
    seconds: Mapping[str, float]
    """Time of each test, in seconds."""


class Mutant(NamedTuple):
    """One change: the bytes from one place of a file to another become others."""

    file: str
    line: int
    start: int
    end: int
    new: str

    def applied(self, text: bytes) -> bytes:
        return text[: self.start] + self.new.encode() + text[self.end :]


def mutants(file: str, text: str) -> Iterator[Mutant]:
    """Yield each change that is tried in a file.  Assertions, types, texts and definitions stay."""
    starts = [0]
    for line in text.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for function in ast.walk(ast.parse(text)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in _inside(function.body):
                for part, new in _changes(node, begins=function.name == "__init__"):
                    start = starts[part.lineno - 1] + part.col_offset
                    end = starts[cast("int", part.end_lineno) - 1] + cast("int", part.end_col_offset)
                    yield Mutant(file, part.lineno, start, end, new)


def _inside(nodes: Iterable[ast.AST]) -> Iterator[ast.expr | ast.stmt]:
    for node in nodes:
        if isinstance(node, ast.expr | ast.stmt):
            yield node
        if isinstance(node, ast.AnnAssign):
            yield from _inside([node.value] if node.value else [])
        elif not isinstance(node, ast.Assert | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.JoinedStr):
            yield from _inside(ast.iter_child_nodes(node))


def _changes(node: ast.expr | ast.stmt, *, begins: bool) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Yield what can stand in the place of a node or of a part of it.  What ``__init__`` sets is set."""
    match node:
        case ast.Compare(left, [op], right):
            yield node, f"({ast.unparse(ast.Compare(left, [_SWAPPED[type(op)]()], right))})"
        case ast.BinOp(left, op, right) if type(op) in _SWAPPED:
            yield node, f"({ast.unparse(ast.BinOp(left, _SWAPPED[type(op)](), right))})"
        case ast.BoolOp(op, values):
            yield node, f"({ast.unparse(ast.BoolOp(_SWAPPED[type(op)](), values))})"
        case ast.UnaryOp(ast.Not(), operand):
            yield node, f"({ast.unparse(operand)})"
        case ast.If(test) | ast.While(test) | ast.IfExp(test) if isinstance(test, ast.Name | ast.Attribute | ast.Call):
            yield test, f"(not {ast.unparse(test)})"
        case ast.Constant(bool(value)):
            yield node, str(not value)
        case ast.Constant(int(value) | float(value)):
            yield node, f"({value + 1!r})"
        case ast.Return(ast.expr() as result) if not isinstance(result, ast.Constant):
            yield node, "return None"
        case ast.Assign([ast.Attribute() | ast.Subscript()]) if not begins:
            yield node, "pass"
        case ast.Expr(ast.Call() | ast.Await()) | ast.AugAssign() | ast.Delete() | ast.Raise():
            yield node, "pass"
        case ast.Break():
            yield node, "continue"
        case ast.Continue():
            yield node, "break"
        case _:
            pass


def drawn(root: Path, count: int, rng: random.Random) -> list[Mutant]:
    """Return one change in each of so many lines of the core."""
    lines: dict[tuple[str, int], list[Mutant]] = {}
    files = {path for start in _AREAS for path in (root / start).rglob("*.py")}
    for path in sorted(files):
        for mutant in mutants(str(path.relative_to(root)), path.read_text()):
            lines.setdefault(mutant[:2], []).append(mutant)
    return [rng.choice(lines[line]) for line in rng.sample(sorted(lines), count)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Have coverage note the test that reaches a line; this module is a pytest plugin."""
    noting = coverage.Coverage.current()
    if noting is not None:
        noting.switch_context(item.nodeid)
    return (yield)


def reached(root: Path) -> Reached:
    """Run the tests of all areas once, without a change.

    Raises:
        SystemExit: one fails.
    """
    noted, report = root / "reached.sqlite", root / "reached.xml"
    places = sorted({area for tests in _AREAS.values() for area in tests})
    command = [*("coverage", "run", "--rcfile=/dev/null", f"--data-file={noted}", "--source=iris", "-m", "pytest")]
    command += ["-p", "benchmarks.mutations", f"--junitxml={report}", "-o", "junit_family=xunit1", *places]
    done = _python(root, *command)
    if done.returncode:
        sys.exit(f"without a change:\n{done.stdout[-3000:]}{done.stderr[-1000:]}")
    seconds: dict[str, float] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        seconds[case.attrib["name"]] = max(float(case.attrib["time"]), seconds.get(case.attrib["name"], 0))
    data = coverage.CoverageData(str(noted))
    data.read()
    tests: dict[tuple[str, int], Collection[str]] = {}
    for file in data.measured_files():
        for line, contexts in data.contexts_by_lineno(file).items():
            tests[str(Path(file).relative_to(root)), line] = [context for context in contexts if context]
    return Reached(tests, seconds)


def killed_by(root: Path, mutant: Mutant, known: Reached) -> str | None:
    """Return the test that notices a change in a copy of this tree, which is whole again at the end."""
    area = _AREAS[max((start for start in _AREAS if f"{mutant.file}/".startswith(f"{start}/")), key=len)]

    def seconds(test: str) -> float:
        return known.seconds.get(test.rsplit("::", 1)[-1], 1.0)

    # A part of a statement counts for the line where the interpreter says that it began.
    lines = ((mutant.file, line) for line in range(mutant.line, mutant.line - 10, -1))
    coming = next((known.tests[line] for line in lines if line in known.tests), ())
    tests = sorted((test for test in coming if test.startswith(area)), key=seconds)
    if not tests:
        return None
    path, listed = root / mutant.file, root / "tests.txt"
    whole = path.read_bytes()
    path.write_bytes(mutant.applied(whole))
    listed.write_text("".join(f"{test}\n" for test in tests))
    try:
        done = _python(
            root,
            "pytest",
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            f"@{listed}",
            timeout=_HANGS + 10 * sum(map(seconds, tests)),
        )
    except subprocess.TimeoutExpired:
        return "they hang"
    finally:
        path.write_bytes(whole)
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return None if done.returncode == 0 else found[1] if found else f"they end with {done.returncode}"


def _python(root: Path, *command: str, timeout: float | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", f'ulimit -d {_GROWN}; exec "$@"', "sh", sys.executable, "-m", *command],
        check=False,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": ""},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout,
    )


def copy(into: Path) -> Path:
    """Copy what is committed."""
    into.mkdir()
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=_ROOT, check=True, capture_output=True)
    subprocess.run(["tar", "-x"], cwd=into, input=archive.stdout, check=True)
    return into


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="changed lines")
    parser.add_argument("--seed", type=int, default=1, help="decides which, and how each is changed")
    parser.add_argument("--skip", type=int, default=0, help="leave the first ones out")
    parser.add_argument("--goal", type=float, default=85, help="percent of them that must be killed")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        roots = [copy(Path(place, str(number))) for number in range(arguments.jobs)]
        known = reached(roots[0])
        waiting = drawn(roots[0], arguments.count, random.Random(arguments.seed))[arguments.skip :]
        total, alive = len(waiting), list[Mutant]()

        def work(root: Path) -> None:
            with contextlib.suppress(IndexError):
                while mutant := waiting.pop(0):
                    test = killed_by(root, mutant, known)
                    print(described(root, mutant), f"    {test or 'ALIVE'}", sep="\n", flush=True)
                    if test is None:
                        alive.append(mutant)

        threads = [threading.Thread(target=work, args=(root,)) for root in roots]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    killed = total - len(alive)
    print(f"{killed} of {total} changed lines killed, {killed / total:.0%}, seed {arguments.seed}")
    sys.exit(100 * killed < arguments.goal * total)


def described(root: Path, mutant: Mutant) -> str:
    """Return where a change is, and the line before and after it."""
    old = (root / mutant.file).read_bytes()
    first, last = old.rfind(b"\n", 0, mutant.start) + 1, old.find(b"\n", mutant.end)
    new = mutant.applied(old)[first : last - len(old)]
    return f"{mutant.file}:{mutant.line}\n  - {old[first:last].decode().strip()}\n  + {new.decode().strip()}"


if __name__ == "__main__":
    main()
