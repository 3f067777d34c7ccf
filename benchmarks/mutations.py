"""Which changed lines of the core the tests of their area notice: ``python -m benchmarks.mutations``.

Lines are drawn by ``--seed`` from the bodies of functions, and one thing is changed in each: a comparison, a number, a
condition, an operator, a call that is left out, a value that is not returned.  Copies of what is committed are changed,
never this tree.  The tests beside the changed file run first, then those of its area; the
first that fails or hangs kills the mutant.  Exit status 1: fewer than ``--goal`` percent are killed.

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
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

_ROOT: Final = Path(__file__).resolve().parents[1]
_AREAS: Final = {
    "iris/kernel": ("tests/kernel", "tests/cluster/mesh"),
    "iris/security": ("tests/security", "tests/cluster/mesh"),
    "iris/cluster": ("tests/cluster", "tests/node/members"),
    "iris/patterns": ("tests/patterns",),
    "iris/patterns/multicast": ("tests/patterns/multicast", "tests/node/requests"),
    "iris/patterns/pubsub": ("tests/patterns/pubsub", "tests/node/streams"),
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
_HANGS: Final = 300.0
"""Seconds that one set of tests may take with a mutant: more than ten times what the slowest takes."""


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


def areas(file: str) -> list[str]:
    """Return the tests that a file's mutants meet, those beside it first."""
    parts = Path(file).parts
    beside = Path("tests", *parts[1:-1])
    nearest = (str(beside / f"test_{parts[-1]}"), str(beside))
    area = _AREAS[max((start for start in _AREAS if file.startswith(f"{start}/")), key=len)]
    return [place for place in (*nearest, *area) if (_ROOT / place).exists()]


def killed_by(root: Path, mutant: Mutant) -> str | None:
    """Return the test that notices a change in a copy of this tree, which is whole again at the end."""
    path = root / mutant.file
    whole = path.read_bytes()
    path.write_bytes(mutant.applied(whole))
    try:
        places = areas(mutant.file)
        return next(filter(None, (failure(root, area, places[:at]) for at, area in enumerate(places))), None)
    finally:
        path.write_bytes(whole)


def failure(root: Path, area: str, passed: Sequence[str] = ()) -> str | None:
    """Return the first test of an area that fails, without those that have passed; none where all pass."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", area]
    command += [f"--ignore={place}" for place in passed]
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": ""}
    try:
        done = subprocess.run(
            command,
            check=False,
            cwd=root,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_HANGS,
        )
    except subprocess.TimeoutExpired:
        return f"{area} hangs"
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return None if done.returncode in (0, 5) else found[1] if found else f"{area} ends with {done.returncode}"


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
        for area in sorted({area for areas_of in _AREAS.values() for area in areas_of}):
            if problem := failure(roots[0], area):
                sys.exit(f"without a change {problem} fails")
        waiting = drawn(roots[0], arguments.count, random.Random(arguments.seed))[arguments.skip :]
        total, alive = len(waiting), list[Mutant]()

        def work(root: Path) -> None:
            with contextlib.suppress(IndexError):
                while mutant := waiting.pop(0):
                    test = killed_by(root, mutant)
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
