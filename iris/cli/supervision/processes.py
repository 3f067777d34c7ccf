"""One worker as its supervisor sees it: a process, and what it says on its socket."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import trio

import iris
from iris.cli.supervision.worker import FAILED, LONGEST, SERVING, VARIABLE, Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The worker serves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The worker is about to end, as ``error`` says."""

    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The process has ended with ``status``; negative: killed by that signal."""

    status: int


News = Served | Failed | Ended


def command_of(arguments: Sequence[str]) -> list[str]:
    """Return the command line of a worker: this interpreter, with the arguments that ``iris`` got here.

    A module called ``iris`` in the current directory does not take the place of this package.
    """
    here = Path(iris.__file__).parent.parent == Path.cwd()
    return [sys.executable, *(() if here else ("-P",)), "-m", "iris", *arguments]


@final
class WorkerProcess:
    """A process that was started as a worker.  ``start_worker`` makes it."""

    def __init__(self, process: trio.Process, connection: socket.socket) -> None:
        self._process = process
        self._connection = connection
        self._received = b""
        self._open = True

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def terminate(self) -> None:
        """Send it SIGTERM."""
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send it SIGKILL."""
        self._process.send_signal(signal.SIGKILL)

    async def wait_news(self) -> News:
        """Wait for what it says next, and at last for its end.  Cancelling loses nothing."""
        while True:
            news = self._next()
            if news is not None:
                return news
            if self._process.returncode is not None:
                self._connection.close()
                return Ended(status=self._process.returncode)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._wait_said, nursery.cancel_scope)
                nursery.start_soon(self._wait_ended, nursery.cancel_scope)

    def _next(self) -> News | None:
        while b"\n" in self._received:
            line, _, self._received = self._received.partition(b"\n")
            if line == SERVING:
                return Served()
            if line.startswith(FAILED):
                return Failed(error=line.removeprefix(FAILED).decode(errors="replace"))
        return None

    async def _wait_said(self, scope: trio.CancelScope) -> None:
        if self._open:
            await trio.lowlevel.wait_readable(self._connection)
            self._receive()
            scope.cancel()

    async def _wait_ended(self, scope: trio.CancelScope) -> None:
        # Not the end of the file: a program that the worker has forked may hold its socket open.
        await self._process.wait()
        self._receive()
        scope.cancel()

    def _receive(self) -> None:
        try:
            data = self._connection.recv(2 * LONGEST)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._open = bool(data)
        self._received = (self._received + data)[-2 * LONGEST :]


async def start_worker(command: Sequence[str], place: Place, *, interactive: bool = False) -> WorkerProcess:
    """Start a worker: a new process, never a fork of this one.

    Args:
        command: its command line.
        place: its ports.
        interactive: True if it reads the standard input of this process, as debuggers do.

    Raises:
        OSError: it cannot be started.
    """
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            number = theirs.fileno()
            process = await trio.lowlevel.open_process(
                command,
                stdin=None if interactive else subprocess.DEVNULL,
                env={**os.environ, VARIABLE: f"{number}:{place}"},
                pass_fds=(number,),
            )
    except BaseException:
        ours.close()
        raise
    ours.setblocking(False)
    return WorkerProcess(process, ours)


START_FAILED: Final = 1
"""Exit status of a process that could not be started."""
