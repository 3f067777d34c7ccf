"""Verbs that run in asyncio: until SIGINT or SIGTERM, by uvloop where it is installed.

Loaded by those alone: asyncio and what Iris has for it take 60 ms.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final

import iris
import iris.aio
from iris.cli.serving import Membership, Serving

_log: Final = logging.getLogger("iris")

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

Interrupted = Callable[[], Awaitable[None]]
"""Waits for the first SIGINT or SIGTERM.  Before it is called, the signal cancels the work, which is not up yet."""


def run_in_asyncio(work: Callable[[Interrupted], Awaitable[None]], *, supervised: bool = False) -> int:
    """Run ``work``, which serves others until it is interrupted, and return its exit status.

    The event loop is uvloop's if that is installed, else asyncio's own; the log says which (INFO).  A second signal
    ends the process at once, unless it is ``supervised``: then its supervisor kills it if need be.
    """
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    try:
        import uvloop
    except ImportError:
        _log.info("event loop: asyncio's own; uvloop is not installed", extra={"cause": "event loop"})
    else:
        factory = uvloop.new_event_loop
        _log.info("event loop: uvloop", extra={"cause": "event loop"})
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(until_interrupted(work, supervised=supervised))
    finally:  # a loop of uvloop that is closed keeps its handlers, which then do nothing
        for number, handler in before.items():
            signal.signal(number, handler)


async def until_interrupted(work: Callable[[Interrupted], Awaitable[None]], *, supervised: bool = False) -> int:
    """Do work until SIGINT or SIGTERM, and return the exit status; see ``run_in_asyncio`` for a second one."""
    loop = asyncio.get_running_loop()
    come, waiting = asyncio.Event(), asyncio.Event()
    task = asyncio.current_task()
    assert task is not None

    def interrupt(number: int) -> None:
        if come.is_set():
            if supervised:
                return
            os._exit(128 + number)
        come.set()
        if not waiting.is_set():
            task.cancel()

    async def interrupted() -> None:
        waiting.set()
        await come.wait()

    for number in _SIGNALS:
        loop.add_signal_handler(number, interrupt, number)
    try:
        await work(interrupted)
    except asyncio.CancelledError:
        if not come.is_set():
            raise
    return 0


async def _serve(serving: Serving, node: iris.aio.Node, interrupted: Interrupted) -> None:
    """Serve until ``interrupted`` returns, and drain; services that are written with trio run in trio."""
    leave, failed = asyncio.Event(), list[Exception]()
    given_up = False
    task = asyncio.current_task()
    assert task is not None

    async def be_member(
        service: str, joining: AbstractAsyncContextManager[Membership], joined: asyncio.Future[Membership]
    ) -> None:
        try:
            async with joining as membership:
                if not joined.done():  # else it was cancelled, and so was this, whose lifespan does not mind
                    joined.set_result(membership)
                    await leave.wait()
        except Exception as error:
            if given_up:
                raise
            failed.append(error)
        except asyncio.CancelledError:
            if given_up:
                raise
            failed.append(RuntimeError(f"the task of service {service!r} was cancelled, and not by Iris"))
        else:
            return
        if len(failed) == 1 and not leave.is_set():
            task.cancel()

    async with asyncio.TaskGroup() as tasks:
        try:
            for cluster, service in serving.services:
                joining: AbstractAsyncContextManager[Membership] = (
                    node.join(cluster, service)
                    if service._is_of_asyncio
                    else node._enter(partial(iris.Node.join, cluster=cluster, service=service))
                )
                joined: asyncio.Future[Membership] = asyncio.get_running_loop().create_future()
                tasks.create_task(be_member(service.name, joining, joined))
                serving.memberships.append(await joined)
            serving.joined(node)
            await interrupted()
            serving.leaving()
        except asyncio.CancelledError:
            if not failed:
                given_up = True
                raise
            task.uncancel()
        except Exception as error:  # noqa: BLE001 -- raised below, when those that have joined have drained
            failed.append(error)
        leave.set()
    serving.raise_failed(failed)


def serve_in_asyncio(
    serving: Serving, opening: Callable[[], AbstractAsyncContextManager[iris.Node]], *, supervised: bool
) -> int:
    """Serve until SIGINT or SIGTERM at the node that ``opening`` opens, and return the exit status."""

    async def work(interrupted: Interrupted) -> None:
        async with iris.aio.Node._opened_by(opening) as node:
            await _serve(serving, node, interrupted)

    return run_in_asyncio(work, supervised=supervised)
