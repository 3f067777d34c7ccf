"""Supervisor of ``iris run --workers N``: signals and processes around a ``Workforce``.

SIGHUP replaces the workers, SIGTERM and SIGINT have them leave.  A SIGHUP that came because the terminal is gone has
them leave, too.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Sequence
from typing import Final, assert_never, final

import trio

from iris.cli.printable import write_note
from iris.cli.readiness import Readiness
from iris.cli.starting import has_terminal
from iris.cli.supervision.processes import START_FAILED, Ended, Failed, News, Served, WorkerProcess, start_worker
from iris.cli.supervision.workforce import Announce, Effect, Finish, Kill, Say, Start, Terminate, Worker, Workforce

_SIGNALS: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)

Event = int | tuple[Worker, News]
"""The number of a signal, or what became of a worker."""


@final
class Supervisor:
    """Runs the workers of one command line.

    Args:
        command: the command line.
        workforce: decides what is to be done.
        readiness: told when all workers serve.
    """

    def __init__(self, command: Sequence[str], workforce: Workforce, readiness: Readiness) -> None:
        self._readiness = readiness
        self._command = command
        self._workforce = workforce
        self._processes: dict[Worker, WorkerProcess] = {}
        self._terminal = has_terminal() and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN

    async def run(self) -> int:
        """Run until the workers have left, and return the exit status."""
        send, receive = trio.open_memory_channel[Event](0)
        async with trio.open_nursery() as nursery:
            await nursery.start(_receive_signals, send)
            effects = self._workforce.begin(trio.current_time())
            while True:
                status = await self._perform(effects, send, nursery)
                if status is not None:
                    nursery.cancel_scope.cancel()
                    return status
                effects = list[Effect]()
                with trio.move_on_at(self._workforce.deadline):
                    effects += self._handle(await receive.receive())
                effects += self._workforce.expire(trio.current_time())
        raise AssertionError("the nursery ends by a return")

    def _handle(self, event: Event) -> list[Effect]:
        now = trio.current_time()
        match event:
            case signal.SIGHUP if self._workforce.stopping or not self._terminal or has_terminal():
                return self._workforce.replace(now)
            case int():
                return self._workforce.stop(event, now)
            case worker, Served():
                return self._workforce.serving(worker, now)
            case worker, Failed(error=error):
                self._workforce.failed(worker, error)
                return []
            case worker, Ended(status=status):
                del self._processes[worker]
                return self._workforce.ended(worker, status, now)

    async def _perform(
        self, effects: Sequence[Effect], send: trio.MemorySendChannel[Event], nursery: trio.Nursery
    ) -> int | None:
        """Perform effects; return the exit status if one of them is the end."""
        for effect in effects:
            match effect:
                case Start(worker=worker):
                    try:
                        process = await start_worker(self._command, worker.place)
                    except OSError as error:
                        self._workforce.failed(worker, f"cannot start a process: {error.strerror or error}")
                        ended = self._workforce.ended(worker, START_FAILED, trio.current_time())
                        status = await self._perform(ended, send, nursery)
                        if status is not None:
                            return status
                    else:
                        self._processes[worker] = process
                        self._workforce.started(worker, process.pid)
                        nursery.start_soon(_watch, worker, process, send)
                case Terminate(worker=worker):
                    self._processes[worker].terminate()
                case Kill(worker=worker):
                    self._processes[worker].kill()
                case Say(text=text, wrong=wrong):
                    write_note(text, logging.WARNING if wrong else logging.INFO)
                case Announce():
                    self._readiness.announce()
                case Finish(status=status):
                    return status
                case _:
                    assert_never(effect)
        return None


async def _receive_signals(
    send: trio.MemorySendChannel[Event], task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    with trio.open_signal_receiver(*_SIGNALS) as signals:
        task_status.started()
        async for number in signals:
            await send.send(number)


async def _watch(worker: Worker, process: WorkerProcess, send: trio.MemorySendChannel[Event]) -> None:
    while True:
        news = await process.wait_news()
        await send.send((worker, news))
        if isinstance(news, Ended):
            return
