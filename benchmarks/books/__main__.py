"""Check that the accounting adds up, and measure its cost.

::

    python -m benchmarks.books faults [--messages 1000000] [--seconds 1200]
    python -m benchmarks.books rate --against TREE [--turns 8]

    python -m benchmarks.books instructions --against TREE

``rate`` measures this checkout and another one, which has no books, in turns.  ``instructions`` counts instead: it
needs valgrind, and no quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

import trio

from benchmarks.books.faults import isolate, run_faults

ROOT = Path(__file__).resolve().parents[2]
COUNTS = {
    "requests": 4_000, "surveys": 500, "broadcasts": 4_000, "events of one topic": 300_000,
    "events of 100 topics by turns": 20_000, "tunnels": 20_000,
}  # fmt: skip
"""Messages of a slice: some 0.2 s."""
SLICES = 8


class Checkout:
    """A process that measures a checkout."""

    def __init__(self, tree: Path) -> None:
        command = [sys.executable, str(ROOT / "benchmarks/books/rates.py"), str(tree)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/")

    def measure(self, name: str, count: int) -> float:
        """Return the processor seconds of a message."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps((name, count)), file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())

    def end(self) -> None:
        """End the process."""
        self._process.communicate()


def compare(other: Path, turns: int) -> None:
    """Print what a message costs here and there: medians of all turns, each of them two new processes."""
    figures: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in COUNTS}
    for _ in range(turns):
        checkouts = Checkout(ROOT), Checkout(other)
        for name, count in COUNTS.items():
            slices: tuple[list[float], list[float]] = [], []
            for each in checkouts:
                each.measure(name, count // 4)
            for turn in range(SLICES):
                for which in (0, 1) if turn % 2 else (1, 0):
                    slices[which].append(checkouts[which].measure(name, count))
            for which in (0, 1):
                figures[name][which].append(statistics.median(slices[which]) * 1e6)
        for each in checkouts:
            each.end()
    print(f"{'us of processor for a message':32} {'with':>8} {'without':>8} {'more':>7} {'quartiles':>15}")
    for name, (here, there) in figures.items():
        more = [one / another - 1 for one, another in zip(here, there, strict=True)]
        low, _, high = statistics.quantiles(more, n=4) if turns > 1 else more * 3
        print(
            f"{name:32} {statistics.median(here):8.2f} {statistics.median(there):8.2f} {statistics.median(more):7.1%} "
            f"{low:7.1%} {high:7.1%}"
        )


def count_instructions(tree: Path, pattern: str, count: int) -> int:
    """Return how many instructions it takes to start, and to send so many messages of a pattern."""
    command = [
        *("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null", sys.executable),
        *(str(ROOT / "benchmarks/books/rates.py"), str(tree), pattern, str(count)),
    ]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, capture_output=True, check=True, cwd="/", env=environment, text=True)
    found = re.search(r"I *refs: *([0-9,]+)", done.stderr)
    assert found is not None, done.stderr
    return int(found[1].replace(",", ""))


def compare_instructions(other: Path) -> None:
    """Print how many instructions a message takes here and there."""
    print(f"{'instructions of a message':32} {'with':>9} {'without':>9} {'more':>7}")
    for name, count in COUNTS.items():
        few, many = count // 8, count * 5 // 8
        here, there = (
            (count_instructions(tree, name, many) - count_instructions(tree, name, few)) / (many - few)
            for tree in (ROOT, other)
        )
        print(f"{name:32} {here:9,.0f} {there:9,.0f} {here / there - 1:7.1%}", flush=True)


def main() -> int:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.books")
    commands = parser.add_subparsers(dest="command", required=True)
    rate = commands.add_parser("rate")
    rate.add_argument("--against", type=Path, required=True)
    rate.add_argument("--turns", type=int, default=8)
    instructions = commands.add_parser("instructions")
    instructions.add_argument("--against", type=Path, required=True)
    faults = commands.add_parser("faults")
    faults.add_argument("--messages", type=int, default=1_000_000)
    faults.add_argument("--seconds", type=float, default=1200.0)
    faults.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.command == "rate":
        compare(arguments.against.resolve(), arguments.turns)
        return 0
    if arguments.command == "instructions":
        compare_instructions(arguments.against.resolve())
        return 0
    isolate()
    return trio.run(run_faults, arguments.messages, arguments.seconds, arguments.seed)


if __name__ == "__main__":
    raise SystemExit(main())
