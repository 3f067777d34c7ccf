"""The benchmark program: chooses systems and cases, interleaves the rounds, shows progress, writes the reports."""

from __future__ import annotations

import contextlib
import datetime
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from benchmarks.plots import draw_plots
from benchmarks.report import OURS, Absence, Report
from benchmarks.systems import all_systems
from benchmarks.table import ranked, write_table
from benchmarks.trial import TrialError, run_trial
from iris.bench.cases import CASES, spread

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "explanation" / "benchmarks.md"


class _Named(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def quick(self) -> bool: ...


_Choice = TypeVar("_Choice", bound=_Named)


@click.command()
@click.option("--quick", is_flag=True, help="The main cases and peers only, within a minute.")
@click.option("--rounds", type=click.IntRange(1), help="Rounds: 5, with --quick 3.")
@click.option("--seconds", type=click.FloatRange(0.05), help="Length of one trial: 1.0, with --quick 0.5.")
@click.option("--system", "systems", multiple=True, metavar="NAME", help="Only this system; may be repeated.")
@click.option("--case", "cases", multiple=True, metavar="NAME", help="Only this case; may be repeated.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the report as JSON to this file.")
@click.option(
    "--document", type=click.Path(path_type=Path), help="Write the table to this file; a full run writes docs/."
)
def main(
    *,
    quick: bool,
    rounds: int | None,
    seconds: float | None,
    systems: tuple[str, ...],
    cases: tuple[str, ...],
    json_path: Path | None,
    document: Path | None,
) -> None:
    """Measure Iris beside its peers."""
    chosen = _chosen(all_systems(), systems, quick, "system")
    report = Report(
        run={
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "seconds": seconds or (0.5 if quick else 1.0),
            "rounds": rounds or (3 if quick else 5),
            "quick": quick,
        },
        cases=_chosen(CASES, cases, quick, "case"),
        systems=[system for system in chosen if not system.absence()],
        absent=[Absence(system=s.name, case=None, reason=s.absence()) for s in chosen if s.absence()],
    )
    _measure(report)
    _show(report)
    if json_path:
        report.save(json_path)
    if document or not (quick or systems or cases):
        page = document or DOCUMENT
        write_table(report, page, draw_plots(report, page.parent / "figures"))
    if any(absence.system == OURS for absence in report.absent):
        raise SystemExit(1)


def _chosen(every: Sequence[_Choice], names: Sequence[str], quick: bool, what: str) -> list[_Choice]:
    """Return those that are named, or all that a run of this length measures."""
    if unknown := set(names) - {one.name for one in every}:
        raise click.UsageError(f"no {what} {', '.join(sorted(unknown))}; there are {', '.join(o.name for o in every)}")
    return [one for one in every if (one.name in names if names else one.quick or not quick)]


def _measure(report: Report) -> None:
    """Run every trial.  The rounds are outermost, so that a machine that slows down slows every system down."""
    rounds, seconds = int(str(report.run["rounds"])), float(str(report.run["seconds"]))
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with (
        tempfile.TemporaryDirectory(prefix="ib-") as name,  # short: paths of ipc sockets end at 107 bytes
        contextlib.ExitStack() as stack,
        # Drawn between trials only: to draw takes milliseconds, ten times a second, of cores that are being measured.
        Progress(*columns, console=console, auto_refresh=False) as progress,
    ):
        brokers = _start_brokers(report, Path(name), stack)
        trials = [
            (case, system)
            for _ in range(rounds)
            for case in report.cases
            for system in report.systems
            if system.does(case) and system.name in brokers
        ]
        bar = progress.add_task("", total=len(trials))
        for case, system in trials:
            progress.update(bar, description=f"{case.title}: {system.name}", refresh=True)
            try:
                outcome = run_trial(
                    system, case, seconds=seconds, broker=brokers[system.name], directory=Path(name) / system.name
                )
                report.add(case, system, outcome)
            except TrialError as error:
                console.print(f"{case.name}: {system.name}: {error}", style="red", highlight=False)
                report.absent.append(Absence(system=system.name, case=case.name, reason=f"a round failed: {error}"))
            progress.advance(bar)
    for system in report.systems:
        report.absent.extend(
            Absence(system=system.name, case=case.name, reason=system.without[case.name])
            for case in report.cases
            if case.name in system.without
        )


def _start_brokers(report: Report, directory: Path, stack: contextlib.ExitStack) -> Mapping[str, str]:
    """Start the broker of every system that needs one; return their addresses by the name of the system."""
    addresses: dict[str, str] = {}
    for system in report.systems:
        (directory / system.name).mkdir()
        try:
            addresses[system.name] = (
                stack.enter_context(system.broker(directory / system.name)) if system.broker else ""
            )
        except RuntimeError as error:
            report.absent.append(Absence(system=system.name, case=None, reason=str(error)))
    return addresses


def _show(report: Report) -> None:
    """Print the table."""
    console = Console()
    table = Table("case", "system", "median (min - max)", "unit", "iris / it", box=None)
    ratios = {(peer.case, peer.system): f"{ratio:.2f}" for _, peer, ratio in report.ratios()}
    for case in report.cases:
        for figure in case.figures:
            rows = [row for system in report.systems if (row := report.row(case, figure, system.name)) is not None]
            for row in ranked(rows, figure):
                ratio = ratios.get((row.case, row.system), "")
                table.add_row(
                    row.case, row.system, spread(row), row.unit, ratio, style="bold" if row.system == OURS else ""
                )
    console.print(table)
    for case, system, lost in report.losses():
        console.print(f"lost messages: {system.name} {case.name}: {lost:,}", highlight=False)
    for absence in report.absent:
        console.print(f"not measured: {absence.system} {absence.case or ''}: {absence.reason}", highlight=False)
