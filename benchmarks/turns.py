"""``python -m benchmarks.turns TREE``: Iris of this checkout beside Iris of another one, in turns.

Each case is run by a process of each checkout, one right after the other, so that both meet the same load of the
machine; who is first changes with each turn.  The ratio is the median of those of the turns, and above 1 where this
checkout is better.  ``TREE`` is a checkout in which ``make bench`` has made its ``.venv``.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from benchmarks.report import OURS
from iris.bench.cases import CASES

HERE = Path(__file__).resolve().parents[1]


@click.command()
@click.argument("tree", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--turns", type=click.IntRange(1), default=7, show_default=True)
@click.option("--seconds", type=click.FloatRange(0.05), default=0.5, show_default=True, help="Length of one trial.")
@click.option("--case", "cases", multiple=True, metavar="NAME", help="Only this case; may be repeated.")
def main(*, tree: Path, turns: int, seconds: float, cases: tuple[str, ...]) -> None:
    """Compare this checkout with another one."""
    console = Console(stderr=True)
    found: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    better: dict[str, str] = {}
    for turn in range(turns):
        for case in cases or tuple(case.name for case in CASES):
            order = (HERE, tree.resolve()) if turn % 2 == 0 else (tree.resolve(), HERE)
            measured = {one: measure(one, case, seconds) for one in order}
            here, there = measured[HERE], measured[tree.resolve()]
            for name in sorted(here.keys() & there.keys()):
                better[name] = here[name][1]
                found[name].append((here[name][0], there[name][0]))
            if here.keys() ^ there.keys():
                console.print(f"{case}: not measured by both", style="red")
        console.print(f"turn {turn + 1} of {turns}", highlight=False)
    show(found, better)


def measure(tree: Path, case: str, seconds: float) -> Mapping[str, tuple[float, str]]:
    """Return what a checkout reaches in a case: by figure, how much, and whether higher or lower is better."""
    with tempfile.TemporaryDirectory(prefix="ib-") as name:
        report = Path(name) / "report.json"
        options = ["--system", OURS, "--case", case, "--rounds", "1", "--seconds", str(seconds), "--json", str(report)]
        python = tree / ".venv" / "bin" / "python"
        subprocess.run([python, "-m", "benchmarks", *options], cwd=tree, check=False, capture_output=True)
        rows: list[dict[str, Any]] = json.loads(report.read_text())["results"] if report.exists() else []
    return {row["case"]: (row["median"], row["better"]) for row in rows if row["median"]}


def ratios(pairs: Sequence[tuple[float, float]], better: str) -> list[float]:
    """Return for each turn how much better this checkout was."""
    return [here / there if better == "higher" else there / here for here, there in pairs]


def show(found: Mapping[str, Sequence[tuple[float, float]]], better: Mapping[str, str]) -> None:
    """Print the table."""
    table = Table("figure", "this", "other", "ratio", "least", "greatest", box=None)
    for name, pairs in found.items():
        each = ratios(pairs, better[name])
        middle = [statistics.median(one) for one in zip(*pairs, strict=True)]
        row = [f"{value:,.3g}" if value < 1000 else f"{value:,.0f}" for value in middle]
        table.add_row(name, *row, *(f"{value:.2f}" for value in (statistics.median(each), min(each), max(each))))
    Console().print(table)


if __name__ == "__main__":
    main()
