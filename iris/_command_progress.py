"""Progress bars, on standard error and only where a person looks at it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator


@contextlib.contextmanager
def counting(
    what: str, *, total: int | None = None, unit_bytes: bool = False, beside_output: bool = False
) -> Generator[Callable[[int], None]]:
    """Show how many of ``what`` are done, in a block whose value adds to the number.

    Silent where nobody looks, and where the bar would be drawn over what people type or, ``beside_output``, read.
    """
    if not sys.stderr.isatty() or sys.stdin.isatty() or (beside_output and sys.stdout.isatty()):
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TransferSpeedColumn,
    )

    figures = (DownloadColumn(), TransferSpeedColumn()) if unit_bytes else (MofNCompleteColumn(),)
    columns = (TextColumn("{task.description}"), BarColumn(), *figures, TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task(what, total=total)
        yield lambda number: progress.advance(bar, number)
