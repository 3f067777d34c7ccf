"""The stages of the demo as a person sees them: a progress bar for each, or a line where nobody looks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator
from typing import Final, final

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)


@final
class Stage:
    """One stage under way.  Made by ``Stages.stage``."""

    def __init__(self, progress: Progress | None, bar: TaskID, total: int, unit: str) -> None:
        self._progress = progress
        self._bar = bar
        self._total = total
        self._unit = unit
        self._done = 0

    @property
    def summary(self) -> str:
        """How far it is, in words."""
        if not self._unit:
            return "done" if self._done == self._total else ""
        if self._unit == "MB":
            return f"{self._done / 1e6:,.1f} of {self._total / 1e6:,.1f} MB"
        if self._done == self._total:
            return f"{self._total:,} {self._unit}"
        return f"{self._done:,} of {self._total:,} {self._unit}"

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
        self.seconds: Final[dict[str, float]] = {}
        """By the title of the stage."""
        self._console = console
        self._progress = progress

    @contextlib.contextmanager
    def stage(self, title: str, *, total: int = 1, unit: str = "") -> Generator[Stage]:
        """Show a stage for as long as the block runs; several may run at the same time.

        Args:
            title: what is done.
            total: how much there is to do; in bytes if ``unit`` is MB.
            unit: of what; nothing if it cannot be counted.
        """
        bar = TaskID(0)
        if self._progress is not None:
            bar = self._progress.add_task(title, total=total, summary="")
        stage = Stage(self._progress, bar, total, unit)
        start = time.monotonic()
        yield stage
        stage.finish()
        self.seconds[title] = time.monotonic() - start
        if self._progress is not None:
            self._progress.stop_task(bar)
        else:
            self._console.print(f"{title}: {stage.summary} in {self.seconds[title]:.1f} s", highlight=False)


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
