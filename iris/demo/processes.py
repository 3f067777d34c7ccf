"""Process supervision of the demo: starts processes, follows them, ends them all, and sums up their memory.

Each process leads a session of its own, so Ctrl-C reaches the airport only.  Whatever a process starts (Spark: a Java
machine and its Python workers) is found by its session and ends with it.

The memory of the demo is read from /proc: the sum over all its processes, at its peak.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol, TypeAlias, final

import trio

from iris.kernel.errors import IrisError
from iris.kernel.tasks import open_background

_PROC: Final = Path("/proc")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_INTERVAL: Final = 0.2
"""Seconds between two looks; one look takes a few milliseconds."""


@final
@dataclasses.dataclass(frozen=True, slots=True)
class ProcessEntry:
    """One process of this machine."""

    pid: int
    session: int
    resident: int
    """Memory in bytes.  Pages that processes share count for each of them."""
    is_dead: bool
    """True if it has ended, and only its parent has not noticed."""


Table: TypeAlias = list[ProcessEntry]


def parse_stat(text: str) -> ProcessEntry:
    """Read a ``/proc/PID/stat`` (proc_pid_stat(5)); the name in it may hold spaces and parentheses."""
    pid, _, rest = text.partition(" (")
    fields = rest[rest.rindex(")") + 2 :].split()
    return ProcessEntry(int(pid), int(fields[3]), int(fields[21]) * _PAGE, fields[0] in "ZX")


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


_GOODBYE: Final = 4.0
"""Seconds that processes may take to end when they are asked to; then they are killed."""

_GONE: Final = 5.0
_TAIL: Final = 4096


class ProcessFailed(IrisError):
    """A process of the demo ended when it should not, or did not do in time what it should.

    ``tail`` is the end of what it wrote on standard error.
    """

    def __init__(self, message: str, tail: str) -> None:
        super().__init__(message)
        self.tail = tail


@final
class Process:
    """One process of the demo.  Made by ``Processes.start``."""

    def __init__(self, name: str, process: trio.Process, log: Path) -> None:
        self.name: Final = name
        self.may_end = False
        """True once its end is no failure any more."""
        self._process = process
        self._log = log

    def __repr__(self) -> str:
        return f"<Process {self.name}: {self._process.pid}>"

    @property
    def session(self) -> int:
        """Process id, and so the id of the session of everything that it starts."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """True if it has not ended."""
        return self._process.poll() is None

    @property
    def status(self) -> int | None:
        """Exit status in the manner of ``subprocess``; None if it has not ended."""
        return self._process.returncode

    def failure(self, what: str) -> ProcessFailed:
        """Return the error that says what is wrong with this process."""
        text = self._log.read_bytes()[-_TAIL:].decode(errors="replace").strip()
        return ProcessFailed(f"{self.name} {what}", text)

    async def watch(self) -> None:
        """Wait for its end; raise ProcessFailed if it was not to end yet."""
        await self._process.wait()
        if not self.may_end:
            raise self.failure(f"ended with {describe_status(self.status)}")

    async def kill(self) -> None:
        """Kill it with SIGKILL, as a power cut would, and wait until it is dead."""
        self.may_end = True
        self._process.kill()
        await self._process.wait()

    def leave(self) -> None:
        """Ask it to end; nothing it does is a failure any more."""
        self.may_end = True
        if self.is_running:
            self._process.terminate()

    def force(self) -> None:
        """Kill it and its process group at once: all that can be found where there is no /proc."""
        if self.is_running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.session, signal.SIGKILL)

    async def wait(self) -> None:
        """Wait until it has ended."""
        await self._process.wait()


@final
class Processes:
    """All processes of one demo.  Made by ``open_processes``."""

    def __init__(self, nursery: trio.Nursery, directory: Path) -> None:
        self._nursery = nursery
        self._directory = directory
        self._every: list[Process] = []

    def __iter__(self) -> Iterator[Process]:
        return iter(self._every)

    async def start(self, name: str, arguments: Sequence[str]) -> Process:
        """Start ``python -m`` with these arguments; if it ends by itself, the block of ``open_processes`` fails.

        Args:
            name: for messages, such as "the publisher".
            arguments: a module and its arguments.
        """
        log = self._directory / f"{len(self._every):02}.log"
        with log.open("wb") as output:
            process = await trio.lowlevel.open_process(
                [sys.executable, "-m", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self._directory,
                start_new_session=True,
            )
            started = Process(name, process, log)
            self._every.append(started)
        self._nursery.start_soon(started.watch)
        return started

    async def stop(self) -> None:
        """End every process: kindly at first, after four seconds by force, and everything they started, too."""
        for process in self._every:
            process.leave()
        with trio.move_on_after(_GOODBYE):
            for process in self._every:
                await process.wait()
        for process in self._every:
            process.force()
        sessions = {process.session for process in self._every}
        with trio.move_on_after(_GONE):
            # The killed may have started others in the meantime: look until there are none.
            while True:
                left = _kill_sessions(sessions, read_table())
                if not left and not any(process.is_running for process in self._every):
                    break
                await trio.sleep(0.02)


def _kill_sessions(sessions: Iterable[int], table: Table) -> int:
    """Kill every process of these sessions and return how many there were."""
    wanted = set(sessions)
    left = [entry.pid for entry in table if entry.session in wanted and not entry.is_dead]
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return len(left)


def describe_status(status: int | None) -> str:
    """Say how a process ended."""
    if status is not None and status < 0:
        return signal.Signals(-status).name
    return f"exit status {status}"


@contextlib.asynccontextmanager
async def open_processes(directory: Path) -> AsyncGenerator[Processes]:
    """Open a block in which processes run; none of them is left when it ends, however it ends.

    Args:
        directory: the directory that they run in, and their logs are in.

    Raises:
        ProcessFailed: one has ended by itself.
    """
    async with open_background() as nursery:
        processes = Processes(nursery, directory)
        try:
            yield processes
        finally:
            with trio.CancelScope(shield=True):
                await processes.stop()
