"""How much memory the demo takes, seen in /proc: the sum over all its processes, at its highest."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Protocol, TypeAlias, final

import trio

_PROC: Final = Path("/proc")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_INTERVAL: Final = 0.2
"""Seconds between two looks; one look takes a few milliseconds."""


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """One process of this machine."""

    pid: int
    session: int
    resident: int
    """Bytes in memory.  Pages that processes share count for each of them."""
    is_dead: bool
    """Whether it has ended, and only its parent has not noticed."""


Table: TypeAlias = list[Entry]


def parse_stat(text: str) -> Entry:
    """Read a ``/proc/PID/stat`` (proc_pid_stat(5)); the name in it may hold spaces and parentheses."""
    pid, _, rest = text.partition(" (")
    fields = rest[rest.rindex(")") + 2 :].split()
    return Entry(int(pid), int(fields[3]), int(fields[21]) * _PAGE, fields[0] in "ZX")


def read_table() -> Table:
    """Return every process of this machine; none where there is no /proc."""
    table: Table = []
    if not _PROC.is_dir():
        return table
    for directory in _PROC.iterdir():
        if directory.name.isdecimal():
            try:
                table.append(parse_stat((directory / "stat").read_text()))
            except OSError:
                continue  # it has just ended
    return table


class Leader(Protocol):
    """A process that leads a session."""

    @property
    def session(self) -> int: ...


@final
class PeakMemory:
    """Watches the memory of this process and of sessions of others."""

    def __init__(self) -> None:
        self.peak = 0
        """The highest sum seen, in bytes; 0 where there is no /proc."""

    def look(self, table: Table, sessions: Iterable[int]) -> None:
        """Take the sum over these sessions and this process into account."""
        wanted, own = set(sessions), os.getpid()
        self.peak = max(
            self.peak, sum(entry.resident for entry in table if entry.session in wanted or entry.pid == own)
        )

    async def watch(self, processes: Iterable[Leader]) -> None:
        """Look five times in a second until cancelled."""
        while True:
            self.look(read_table(), (process.session for process in processes))
            await trio.sleep(_INTERVAL)
