"""Whether the books add up, and what they cost.

::

    python -m benchmarks.books faults [--messages 1000000]
    python -m benchmarks.books rate --against TREE [--turns 8]

``rate`` measures this checkout and another one, which has no books, in turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

import trio

from benchmarks.books.faults import isolate, run_faults

ROOT = Path(__file__).resolve().parents[2]
COUNTS = {
    "requests": 4_000, "surveys": 1_000, "broadcasts": 10_000, "events of one topic": 300_000,
    "events of 100 topics by turns": 40_000, "tunnels": 20_000,
}  # fmt: skip


def measure(tree: Path) -> dict[str, tuple[float, float]]:
    """Return seconds and processor seconds of a message of each pattern, in a checkout."""
    command = [sys.executable, str(ROOT / "benchmarks/books/rates.py"), str(tree), json.dumps(COUNTS)]
    done = subprocess.run(command, capture_output=True, check=True, cwd="/", timeout=600)
    figures: dict[str, tuple[float, float]] = json.loads(done.stdout)
    return figures


def compare(other: Path, turns: int) -> None:
    """Print what a message costs here and there: the median and the least of all turns."""
    here: list[dict[str, tuple[float, float]]] = []
    there: list[dict[str, tuple[float, float]]] = []
    for turn in range(turns):
        for tree, figures in ((ROOT, here), (other, there)) if turn % 2 else ((other, there), (ROOT, here)):
            figures.append(measure(tree))
    print(f"{'us of processor for a message':32} {'with':>8} {'without':>8} {'more':>7} {'least':>7}")
    for name in COUNTS:
        own, others = ([one[name][1] * 1e6 for one in figures] for figures in (here, there))
        median = statistics.median(own) / statistics.median(others) - 1
        least = min(own) / min(others) - 1
        print(f"{name:32} {statistics.median(own):8.2f} {statistics.median(others):8.2f} {median:7.1%} {least:7.1%}")


def main() -> int:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.books")
    commands = parser.add_subparsers(dest="command", required=True)
    rate = commands.add_parser("rate")
    rate.add_argument("--against", type=Path, required=True)
    rate.add_argument("--turns", type=int, default=8)
    faults = commands.add_parser("faults")
    faults.add_argument("--messages", type=int, default=1_000_000)
    faults.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.command == "rate":
        compare(arguments.against.resolve(), arguments.turns)
        return 0
    isolate()
    return trio.run(run_faults, arguments.messages, arguments.seed)


if __name__ == "__main__":
    raise SystemExit(main())
