"""Display of the demo: progress of its stages, then the report as tables for people or a JSON object for scripts.

Each stage is a progress bar on a terminal, and a line elsewhere.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Generator, Mapping, Sequence
from typing import Final, final

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from iris.demo.checks import Check, Outcome
from iris.demo.data import CarrierFigures

_OK = "[green]✓[/]"
_WRONG = "[red]✗[/]"

_WIDTH = 110
"""Columns where nobody looks: in a file, lines are not broken at the 80 that a terminal is taken to have."""


def open_console() -> Console:
    """Return standard output."""
    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH)


def as_fields(outcome: Outcome, checks: Sequence[Check], names: Mapping[str, str]) -> dict[str, object]:
    """Return the JSON object of ``iris demo --json``.

    Args:
        outcome: the findings of the run.
        checks: the result of ``check_outcome``.
        names: names of the carriers, by code.
    """
    return {
        "ok": all(check.ok for check in checks),
        "rows": outcome.rows,
        "carriers": {
            carrier: {
                "name": names.get(carrier, carrier),
                "spark": _fields(outcome.spark.get(carrier)),
                "pandas": _fields(outcome.pandas.get(carrier)),
            }
            for carrier in sorted(outcome.spark.keys() | outcome.pandas.keys())
        },
        "counters": {pattern: counters.as_fields() for pattern, counters in outcome.counters.items()},
        "checks": [dataclasses.asdict(check) for check in checks],
        "killed": outcome.killed,
        "seconds": {title: round(seconds, 3) for title, seconds in outcome.seconds.items()},
        "total_seconds": round(outcome.total_seconds, 3),
        "peak_memory_bytes": outcome.peak_memory or None,
    }


def _fields(figures: CarrierFigures | None) -> dict[str, object] | None:
    return None if figures is None else dataclasses.asdict(figures)


def print_report(
    console: Console, outcome: Outcome, checks: Sequence[Check], names: Mapping[str, str], commands: Sequence[str]
) -> None:
    """Print the tables, and commands to go on with; the other arguments are those of ``as_fields``."""
    console.print(_carriers(outcome, names))
    console.print(_counters(outcome))
    console.print(_checks(checks))
    memory = f", at most {outcome.peak_memory / 2**30:.2f} GiB in memory" if outcome.peak_memory else ""
    console.print(f"{outcome.rows:,} flights in {outcome.total_seconds:.1f} s{memory}.", highlight=False)
    console.print("\nGo on, each in a terminal of its own:", highlight=False)
    for command in commands:
        console.print(f"    {command}", highlight=False, markup=False, soft_wrap=True)


def _carriers(outcome: Outcome, names: Mapping[str, str]) -> Table:
    table = Table(title="Flights and mean arrival delay (min), by Spark from the stream and by pandas from the file")
    table.add_column("carrier")
    for heading in ("flights\nSpark", "flights\npandas", "delay\nSpark", "delay\npandas"):
        table.add_column(heading, justify="right")
    table.add_column("equal")
    for carrier in sorted(outcome.spark.keys() | outcome.pandas.keys()):
        spark, pandas = outcome.spark.get(carrier), outcome.pandas.get(carrier)
        table.add_row(
            names.get(carrier, carrier),
            *(f"{figures.flights:,}" if figures else "-" for figures in (spark, pandas)),
            *(_delay(figures.mean_delay if figures else None) for figures in (spark, pandas)),
            _OK if spark == pandas else _WRONG,
        )
    return table


def _delay(minutes: float | None) -> str:
    return "-" if minutes is None else f"{minutes:+.4f}"


def _counters(outcome: Outcome) -> Table:
    table = Table(title="Messages: sent = answered + handed over + expired + refused + lost")
    table.add_column("pattern")
    for heading in ("sent", "answered", "handed over", "expired", "refused", "lost"):
        table.add_column(heading, justify="right")
    table.add_column("adds up")
    for pattern, counters in outcome.counters.items():
        numbers = (
            counters.sent,
            counters.answered,
            counters.handed_over,
            counters.expired,
            counters.refused,
            sum(counters.lost.values()),
        )
        table.add_row(pattern, *(f"{number:,}" for number in numbers), _OK if counters.add_up else _WRONG)
    return table


def _checks(checks: Sequence[Check]) -> Table:
    table = Table(show_header=False, box=None)
    for check in checks:
        table.add_row(_OK if check.ok else _WRONG, check.name, check.found)
    return table


@final
class Stage:
    """One stage in progress.  Made by ``Stages.stage``."""

    def __init__(self, progress: Progress | None, bar: TaskID, title: str, total: int, unit: str) -> None:
        self.title: Final = title
        self.seconds: float | None = None
        """Duration in seconds; None while it lasts."""
        self._progress = progress
        self._bar = bar
        self._total = total
        self._unit = unit
        self._done = 0

    @property
    def summary(self) -> str:
        """Progress of the stage in words."""
        if not self._unit:
            return "done" if self._done == self._total else ""
        if self._unit == "MB":
            return f"{self._done / 1e6:,.1f} of {self._total / 1e6:,.1f} MB"
        if self._done == self._total:
            return f"{self._total:,} {self._unit}"
        return f"{self._done:,} of {self._total:,} {self._unit}"

    def as_fields(self) -> dict[str, object]:
        """Return it for the page."""
        share = self._done / max(self._total, 1)
        return {"title": self.title, "summary": self.summary, "share": share, "seconds": self.seconds}

    def reach(self, done: int) -> None:
        """Show that ``done`` are done in all."""
        self._done = min(done, self._total)
        if self._progress is not None:
            self._progress.update(self._bar, completed=self._done, summary=self.summary)

    def finish(self) -> None:
        """Show that all is done."""
        self.reach(self._total)


@final
class Stages:
    """Shows stages, and remembers how long each took.  Made by ``open_stages``."""

    def __init__(self, console: Console, progress: Progress | None) -> None:
        self.shown: Final[list[Stage]] = []
        """Stages that have begun, in their order."""
        self._console = console
        self._progress = progress

    @property
    def seconds(self) -> dict[str, float]:
        """Duration of each stage that is over, in seconds, by its title."""
        return {stage.title: stage.seconds for stage in self.shown if stage.seconds is not None}

    @contextlib.contextmanager
    def stage(self, title: str, *, total: int = 1, unit: str = "") -> Generator[Stage]:
        """Show a stage for as long as the block runs; several may run at the same time.

        Args:
            title: the title of the stage.
            total: amount of work; in bytes if ``unit`` is MB.
            unit: unit of the work; nothing if it cannot be counted.
        """
        bar = TaskID(0)
        if self._progress is not None:
            bar = self._progress.add_task(title, total=total, summary="")
        stage = Stage(self._progress, bar, title, total, unit)
        self.shown.append(stage)
        start = time.monotonic()
        yield stage
        stage.finish()
        stage.seconds = time.monotonic() - start
        if self._progress is not None:
            self._progress.stop_task(bar)
        else:
            self._console.print(f"{title}: {stage.summary} in {stage.seconds:.1f} s", highlight=False)


@contextlib.contextmanager
def open_stages(console: Console) -> Generator[Stages]:
    """Open the place where stages are shown."""
    if not console.is_terminal:
        yield Stages(console, None)
        return
    columns = (
        TextColumn("{task.description:<34}"),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[summary]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        yield Stages(console, progress)
