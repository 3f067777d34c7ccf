"""``iris run --reload``: one worker, which leaves and is started anew when a source file has changed.

It is for development: between the old and the new worker nobody serves, and a worker that has ended stays away until
the next change.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Sequence
from typing import Final

import trio

from iris.cli.printable import write_note
from iris.cli.readiness import Readiness
from iris.cli.supervision.processes import Ended, Failed, start_worker
from iris.cli.supervision.source_files import SourceFiles
from iris.cli.supervision.worker import Place
from iris.cli.supervision.workforce import describe_end

PAUSE: Final = 0.25
"""Seconds between two looks at the files."""

_SHARE: Final = 0.05
"""Share of a processor that looking may take: with very many files the pauses are longer."""

_NAMED: Final = 3
"""Changed files that are named; of more there is the number."""


async def reload(command: Sequence[str], files: SourceFiles, patience: float, readiness: Readiness) -> int:
    """Run a worker until SIGINT or SIGTERM, a new one after each change, and return the exit status.

    Args:
        command: the command line of the worker.
        files: what is looked at.
        patience: seconds after which a worker that is to leave is killed.
        readiness: told when the first one serves.
    """
    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()
        await nursery.start(_cancel_by_signal, scope)
        with scope:
            while True:
                await _run_once(command, files, patience, readiness)
        nursery.cancel_scope.cancel()
    return 0


async def _cancel_by_signal(
    scope: trio.CancelScope, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for number in signals:
            if scope.cancel_called:
                os._exit(128 + number)  # the worker ends, too, when it sees that this process is gone
            scope.cancel()


async def _run_once(command: Sequence[str], files: SourceFiles, patience: float, readiness: Readiness) -> None:
    """Run a worker until a file changes.  Cancelling has it leave, and waits for that."""
    process = await start_worker(command, Place(0, 0, follows=False), interactive=True)
    leaving, ended = trio.Event(), trio.Event()

    async def watch() -> None:
        with trio.CancelScope(shield=True):
            while not isinstance(news := await process.wait_news(), Ended):
                if isinstance(news, Failed):
                    write_note(news.error, logging.ERROR)
                else:
                    readiness.announce()
            if not leaving.is_set():
                write_note(f"worker {process.pid} {describe_end(news.status)}; waiting for a change", logging.WARNING)
            ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        try:
            changed = await _wait_changed(files)
            what = ", ".join(changed) if len(changed) <= _NAMED else f"{len(changed)} files"
            write_note(f"{what} changed: starting again")
        finally:
            leaving.set()
            process.terminate()
            with trio.move_on_after(patience, shield=True):
                await ended.wait()
            if not ended.is_set():
                process.kill()


def _timed(files: SourceFiles) -> tuple[list[str], float]:
    """Return what has changed, and the seconds of processor time that it took to look."""
    began = time.thread_time()
    return files.changed(), time.thread_time() - began


async def _wait_changed(files: SourceFiles) -> list[str]:
    """Return what has changed, when nothing changes any more: tools write many files one after the other."""
    changed: set[str] = set()
    while True:
        now, took = await trio.to_thread.run_sync(_timed, files)
        changed.update(now)
        if changed and not now:
            return sorted(changed)
        await trio.sleep(max(PAUSE, took / _SHARE))
