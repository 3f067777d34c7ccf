"""``python -m benchmarks.turns TREE``: Iris of this checkout beside Iris of another one, in turns.

``TREE`` needs nothing but its files: ``git worktree add ../before main``.  Both run with this Python and its packages.

First come the Python bytecodes that one message takes (:mod:`benchmarks.counts`), which no other program changes. Then
each case is run by processes of each checkout, one right after the other, so that both meet the same load of the
machine; who is first changes with each pair.  A ratio is the median of those of the pairs, and above 1 where this
checkout is better.  What is below ``SLOWER`` after all pairs is measured three times as often.  It is called slower if
so many pairs are below 1 that of equal checkouts one in twenty would look so; else it is in doubt, as on a busy machine
most is.  There believe bytecodes first, then processor time, and a rate last.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import click

from benchmarks.load import LIMIT, Others
from benchmarks.trial import PROCESSOR, TrialError, run_trial
from iris.bench.cases import CASES, Case

HERE: Final = Path(__file__).resolve().parents[1]

SLOWER: Final = 0.97
"""Ratio from which on a figure counts as kept."""

MUCH_SLOWER: Final = 0.93
"""Ratio below which a change needs a reason."""

HOT: Final = (
    ("iris", "publish-100"),
    ("iris", "publish-64k"),
    ("iris", "fanout-4"),
    ("iris", "request-1"),
    ("iris", "request-64"),
    ("iris", "tunnel-64k"),
    ("iris.aio", "publish-100"),
    ("iris.aio", "fanout-4"),
    ("iris.aio", "request-1"),
    ("iris.aio", "request-64"),
)
"""What is measured if nothing is named: the paths that every message takes, in two minutes."""

COUNTED: Final = 3
"""How often bytecodes are counted at most: those of many events differ by a twentieth from run to run."""

CHANCE: Final = 0.05
"""Probability with which a checkout that is as good may be called slower."""

SYSTEMS: Final = ("iris", "iris.aio", "iris.aio asking", "iris.sync asking")

DOUBT: Final = "in doubt"

TAILS: Final = frozenset({"p99", "p99.9"})
"""Figures that are shown without a verdict: in half a second they are what a few messages met."""

Figures = Mapping[str, tuple[float, str]]
"""Figures by name: each with ``higher`` or ``lower``, which of them is better."""


@click.command()
@click.argument("tree", type=click.Path(path_type=Path, exists=True, file_okay=False, resolve_path=True))
@click.option("--pairs", type=click.IntRange(1), default=5, show_default=True)
@click.option("--seconds", type=click.FloatRange(0.05), default=0.3, show_default=True, help="Length of one trial.")
@click.option("--system", "systems", type=click.Choice(SYSTEMS), multiple=True, help="Only this one; may be repeated.")
@click.option("--case", "cases", metavar="NAME", multiple=True, help="Only this case; may be repeated.")
@click.option("--all", "everything", is_flag=True, help="Every case of every front: half an hour.")
def main(
    *, tree: Path, pairs: int, seconds: float, systems: tuple[str, ...], cases: tuple[str, ...], everything: bool
) -> None:
    """Compare this checkout with another one.  The exit status is 1 if anything is slower."""
    jobs = chosen(systems, cases, everything=everything)
    others = Others()
    slower, doubtful = compare("bytecodes of one message", [least_bytecodes(tree)])
    with tempfile.TemporaryDirectory(prefix="ib-") as name:
        for system, case in jobs:
            measured = measure_pairs(system, case, tree, Path(name), pairs, seconds)
            names = compare(f"{system}, {case.title}", measured)
            slower, doubtful = slower + names[0], doubtful + names[1]
    share = others.share()
    much = ", which is much: repeat what is in doubt when it is quiet" if share > LIMIT else ""
    print(f"\nOther programs took {share:.0%} of the processors{much}.")
    print(f"Slower than {tree}: {'; '.join(slower) or 'nothing'}.")
    if doubtful:
        print(f"In doubt: {'; '.join(doubtful)}.")
    if slower:
        raise SystemExit(1)


def chosen(systems: Sequence[str], cases: Sequence[str], *, everything: bool) -> list[tuple[str, Case]]:
    """Return the pairs of a system and a case that are measured.

    Raises:
        UsageError: no case has that name.
    """
    by_name = {case.name: case for case in CASES}
    if unknown := set(cases) - by_name.keys():
        raise click.UsageError(f"no case {', '.join(sorted(unknown))}; there are {', '.join(by_name)}")
    from benchmarks.systems import system_named

    if not (systems or cases or everything):
        return [(system, by_name[case]) for system, case in HOT]
    return [
        (system, by_name[case])
        for system in systems or SYSTEMS
        for case in cases or by_name
        if system_named(system).does(by_name[case])
    ]


def measure_pairs(
    system: str, case: Case, tree: Path, directory: Path, pairs: int, seconds: float
) -> list[tuple[Figures, Figures]]:
    """Return what this checkout and another one reach in turns; more often where this one may be slower."""
    measured: list[tuple[Figures, Figures]] = []
    for number in range(3 * pairs):
        if measured and number % pairs == 0 and not any(verdict(*figure) for figure in ratios(measured).items()):
            break
        order = (HERE, tree) if number % 2 == 0 else (tree, HERE)
        figures = {one: measure(one, system, case, seconds, directory) for one in order}
        measured.append((figures[HERE], figures[tree]))
        if not (figures[HERE] and figures[tree]):
            break
    return measured


def measure(tree: Path, system: str, case: Case, seconds: float, directory: Path) -> Figures:
    """Return what a checkout reaches in a case; nothing if it fails, or does not know it."""
    home = directory / ("this" if tree == HERE else "other")
    home.mkdir(exist_ok=True)
    try:
        outcome = run_trial(system, case, seconds=seconds, directory=home, tree=tree)
    except TrialError as error:
        print(f"{case.name} of {system} in {tree}: {error}", file=sys.stderr)
        return {}
    figures = {one.name: (outcome[one.name], one.better) for one in case.figures if outcome.get(one.name)}
    if processor := sum(outcome.get(name, 0.0) for name in PROCESSOR):
        figures["processor, us"] = (processor, "lower")
    return figures


def least_bytecodes(tree: Path) -> tuple[Figures, Figures]:
    """Return the bytecodes of one message in this checkout and in another one: counted again where this has more."""
    counted = [(count_bytecodes(HERE), count_bytecodes(tree))]
    while len(counted) < COUNTED and any(verdict(name, each) for name, each in ratios([_least(counted)]).items()):
        counted.append((count_bytecodes(HERE), count_bytecodes(tree)))
    return _least(counted)


def _least(counted: Sequence[tuple[Figures, Figures]]) -> tuple[Figures, Figures]:
    here, there = ({name: min(one[name] for one in side) for name in side[0]} for side in zip(*counted, strict=True))
    return here, there


def count_bytecodes(tree: Path) -> Figures:
    """Return the bytecodes that one message takes in a checkout; nothing if it cannot be counted there."""
    program = HERE / "benchmarks" / "counts.py"
    done = subprocess.run(
        [sys.executable, "-P", str(program), "--json"],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        print(f"bytecodes in {tree}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return {}
    counted: Mapping[str, tuple[float, float]] = json.loads(done.stdout)
    return {name: (bytecodes, "lower") for name, (bytecodes, _) in counted.items()}


def ratios(pairs: Sequence[tuple[Figures, Figures]]) -> dict[str, list[float]]:
    """Return, for each figure that both have, how much better this checkout was in each pair."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for here, there in pairs:
        for name in here.keys() & there.keys():
            (mine, better), (other, _) = here[name], there[name]
            found[name].append(mine / other if better == "higher" else other / mine)
    return {name: found[name] for name in pairs[0][0] if name in found} if pairs else {}


def verdict(name: str, each: Sequence[float]) -> str:
    """Return what is to be said of the ratios of a figure; nothing if it is kept."""
    middle = statistics.median(each)
    if name in TAILS or middle >= SLOWER:
        return ""
    if len(each) > 1 and chance(sum(one >= 1 for one in each), len(each)) > CHANCE:
        return DOUBT
    return "slower" if middle >= MUCH_SLOWER else "MUCH SLOWER"


def chance(better: int, pairs: int) -> float:
    """Return the probability that of two equal checkouts one is better in so few pairs, or in fewer (sign test)."""
    return sum(math.comb(pairs, count) for count in range(better + 1)) / (1 << pairs)


def compare(title: str, pairs: Sequence[tuple[Figures, Figures]]) -> tuple[list[str], list[str]]:
    """Print the figures of some pairs, and return those that are slower, and those of which it is in doubt."""
    print(title)
    slower: list[str] = []
    doubtful: list[str] = []
    for name, each in ratios(pairs).items():
        here, there = (
            statistics.median(one[name][0] for one in side if name in one) for side in zip(*pairs, strict=True)
        )
        spread = f"{min(each):.2f} to {max(each):.2f}" if len(each) > 1 else ""
        says = verdict(name, each)
        line = f"  {name:28} {here:>12,.5g} {there:>12,.5g} {statistics.median(each):6.2f}  {spread:12}  {says}"
        print(line.rstrip(), flush=True)
        if says:
            (doubtful if says == DOUBT else slower).append(f"{title}: {name} {statistics.median(each):.2f}")
    return slower, doubtful


if __name__ == "__main__":
    main()
