"""Control protocol between the airport and its processes: reports as lines of JSON one way, orders as words the other.

The protocol uses their standard input and output.  What the processes send to each other goes through Iris.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final, final

import trio

_INTERVAL: Final = 0.1
"""Seconds between two reports of progress: often enough for the eye."""


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """One line that a process of the demo has written."""

    kind: str
    """``progress``, ``news`` or ``result``."""
    value: Any


class ReportError(Exception):
    """A line is no report."""


def parse_report(line: bytes) -> Report:
    """Read a report.

    Raises:
        ReportError: the line is something else.
    """
    fields: Any
    try:
        fields = json.loads(line)
    except ValueError:
        fields = None
    match fields:
        case {"progress": int(done)}:
            return Report("progress", done)
        case {"news": str(news)}:
            return Report("news", news)
        case {"result": dict()}:
            return Report("result", fields["result"])
        case _:
            raise ReportError(f"not a report: {line[:200]!r}")


def report_news(news: str) -> None:
    """Report to the airport that something is so now."""
    _write({"news": news})


def report_result(**result: Any) -> None:
    """Report to the airport how a stage ended."""
    _write({"result": result})


@final
class Progress:
    """Reports the progress of a stage to the airport, ten times in a second at most."""

    def __init__(self) -> None:
        self.done = 0
        self._next = 0.0

    def advance(self, number: int = 1) -> None:
        """Count ``number`` more."""
        self.reach(self.done + number)

    def reach(self, done: int) -> None:
        """Say that ``done`` are done in all."""
        self.done = done
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _INTERVAL
            _write({"progress": done})


def _write(fields: dict[str, Any]) -> None:
    # The airport reads all the time, and a pipe has room for thousands of such lines: this does not block for long.
    sys.stdout.write(json.dumps(fields, separators=(",", ":")) + "\n")
    sys.stdout.flush()


async def receive_orders() -> AsyncIterator[str]:
    """Yield the airport's orders.  Ends when the airport is gone."""
    rest = b""
    async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as stream:
        async for piece in stream:
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                yield line.decode()


def wait_orders() -> Iterator[str]:
    """Yield the airport's orders, for a process without an event loop.  Ends when the airport is gone."""
    for line in sys.stdin:
        yield line.rstrip("\n")
