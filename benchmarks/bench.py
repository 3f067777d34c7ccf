"""The benchmark program: chooses systems and cases, interleaves the rounds, shows progress, writes the reports."""

from __future__ import annotations

import contextlib
import datetime
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from benchmarks.broker import Broker
from benchmarks.load import LIMIT, Others, others_now
from benchmarks.plots import draw_plots
from benchmarks.report import OURS, Absence, Report, Run
from benchmarks.system import System
from benchmarks.systems import all_systems
from benchmarks.table import added_up, ranked, write_table
from benchmarks.trial import TrialError, run_trial
from iris.bench.cases import CASES, Case, spread

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "explanation" / "benchmarks.md"
_BUSY = f"with more than {LIMIT:.0%} nothing goes into the page; wait, or say --busy, and the page says it as well"


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
@click.option("--busy", is_flag=True, help="Measure although other programs use the processors; the page says so.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the report as JSON to this file.")
@click.option(
    "--document",
    type=click.Path(path_type=Path),
    help="Write the cases to this file, in place of what it says of them; a full run writes docs/.",
)
def main(
    *,
    quick: bool,
    rounds: int | None,
    seconds: float | None,
    systems: tuple[str, ...],
    cases: tuple[str, ...],
    busy: bool,
    json_path: Path | None,
    document: Path | None,
) -> None:
    """Measure Iris beside its peers."""
    chosen, chosen_cases = _chosen(all_systems(), systems, quick, "system"), _chosen(CASES, cases, quick, "case")
    if not busy and (others := others_now()) > LIMIT:
        raise click.ClickException(f"other programs take {others:.0%} of the processors: {_BUSY}")
    report = Report(
        run=Run(
            date=datetime.datetime.now(datetime.UTC).date().isoformat(),
            seconds=seconds or (0.5 if quick else 1.0),
            rounds=rounds or (3 if quick else 5),
            quick=quick,
            busy=busy,
            load=os.getloadavg()[0],
        ),
        cases=chosen_cases,
        systems=[system for system in chosen if not system.absence()],
        absent=[
            absence
            for system in chosen
            if (reason := system.absence())
            for absence in _left_out(system, chosen_cases, reason)
        ],
    )
    _measure(report)
    _show(report)
    if json_path:
        report.save(json_path)
    disturbed = [case.name for case in report.cases if not busy and report.others_during(case.name)[0] > LIMIT]
    report.cases = [case for case in report.cases if case.name not in disturbed]
    if document or not (quick or systems or cases):
        page = document or DOCUMENT
        write_table(report, page, draw_plots(report, page.parent / "figures"))
    if disturbed:
        raise click.ClickException(f"other programs used the processors during {', '.join(disturbed)}: {_BUSY}")
    if any(absence.system == OURS for absence in report.absent):
        raise SystemExit(1)


def _chosen(every: Sequence[_Choice], names: Sequence[str], quick: bool, what: str) -> list[_Choice]:
    """Return those that are named, or all that a run of this length measures."""
    if unknown := set(names) - {one.name for one in every}:
        raise click.UsageError(f"no {what} {', '.join(sorted(unknown))}; there are {', '.join(o.name for o in every)}")
    return [one for one in every if (one.name in names if names else one.quick or not quick)]


def _left_out(system: System, cases: Sequence[Case], reason: str) -> list[Absence]:
    """Return that a system is left out of all cases that it could do."""
    return [Absence(system=system.name, case=case.name, reason=reason) for case in cases if system.does(case)]


def _measure(report: Report) -> None:
    """Run every trial.  The rounds are outermost, so that a machine that slows down slows every system down."""
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
            for _ in range(report.run.rounds)
            for case in report.cases
            for system in report.systems
            if system.does(case) and system.name in brokers
        ]
        bar = progress.add_task("", total=len(trials))
        others = Others([broker.pid for broker in brokers.values() if broker is not None])
        for case, system in trials:
            progress.update(bar, description=f"{case.title}: {system.name}", refresh=True)
            try:
                outcome = run_trial(
                    system.name,
                    case,
                    seconds=report.run.seconds,
                    broker=brokers[system.name],
                    directory=Path(name) / system.name,
                )
                report.add(case, system, outcome)
            except TrialError as error:
                console.print(f"{case.name}: {system.name}: {error}", style="red", highlight=False)
                report.absent.append(Absence(system=system.name, case=case.name, reason=f"a round failed: {error}"))
            report.others.setdefault(case.name, []).append(others.share())
            progress.advance(bar)
    for system in report.systems:
        report.absent.extend(
            Absence(system=system.name, case=case.name, reason=system.without[case.name])
            for case in report.cases
            if case.name in system.without
        )


def _start_brokers(report: Report, directory: Path, stack: contextlib.ExitStack) -> Mapping[str, Broker | None]:
    """Start the broker of every system that needs one; return them by the name of the system."""
    brokers: dict[str, Broker | None] = {}
    for system in report.systems:
        (directory / system.name).mkdir()
        try:
            brokers[system.name] = (
                stack.enter_context(system.broker(directory / system.name)) if system.broker else None
            )
        except RuntimeError as error:
            report.absent.extend(_left_out(system, report.cases, str(error)))
    return brokers


def _show(report: Report) -> None:
    """Print the table."""
    console = Console()
    table = Table("case", "system", "median (min - max)", "unit", "iris / it", "processor, us", box=None)
    ratios = {(peer.case, peer.system): f"{ratio:.2f}" for _, peer, ratio in report.ratios()}
    for case in report.cases:
        for figure in case.figures:
            rows = [row for system in report.systems if (row := report.row(case, figure, system.name)) is not None]
            for row in ranked(rows, figure):
                cells = (row.case, row.system, spread(row), row.unit, ratios.get((row.case, row.system), ""))
                processor = added_up(report.processor(case, row.system)) if figure is case.figures[0] else ""
                table.add_row(*cells, processor, style="bold" if row.system == OURS else "")
    console.print(table)
    for case, system, lost in report.losses():
        console.print(f"lost messages: {system.name} {case.name}: {lost:,}", highlight=False)
    mean, most = report.others_during(*report.others)
    console.print(f"other programs took {mean:.0%} of the processors, {most:.0%} in the worst trial", highlight=False)
    for absence in report.absent:
        console.print(f"not measured: {absence.system} {absence.case or ''}: {absence.reason}", highlight=False)
