"""Event loops that differ from asyncio's own: timers that do not report their time, tasks that begin at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from types import coroutine
from typing import Any

import pytest
import sniffio

import iris
import iris.aio
from tests.support.async_tests import on_asyncio

pytestmark = pytest.mark.usefixtures("own_home")


@coroutine
def _rest(work: Coroutine[Any, Any, Any], came: Any) -> Generator[Any, Any, Any]:
    while True:
        sent = yield came
        try:
            came = work.send(sent)
        except StopIteration as ended:
            return ended.value


async def _over(value: Any) -> Any:
    return value


def _begin_at_once(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
    """As ``asyncio.eager_task_factory`` of Python 3.12: the first step runs in the one who makes the task."""
    try:
        came = work.send(None)
    except StopIteration as ended:
        return asyncio.Task(_over(ended.value), loop=loop)
    rest: Any = _rest(work, came)
    return asyncio.Task(rest, loop=loop)


async def ask_a_handler() -> None:
    service = iris.Service("shop")

    @service.request
    async def library(request: iris.Request) -> str:
        return sniffio.current_async_library()

    async with (
        iris.aio.open_node("member") as member,
        member.join("shop", service),
        iris.aio.open_node("client") as client,
    ):
        await client.wait_for("shop")
        assert await client.request("shop") == "asyncio"
        await asyncio.sleep(0.2)
        assert await client.request("shop") == "asyncio"


@on_asyncio()
async def test_a_handler_whose_task_begins_at_once_runs_in_asyncio() -> None:
    asyncio.get_running_loop().set_task_factory(begin_at_once)
    await ask_a_handler()


begin_at_once: Any = getattr(asyncio, "eager_task_factory", _begin_at_once)


class TimerThatTellsNothing:
    _source_traceback = None

    def __init__(self, timer: asyncio.TimerHandle) -> None:
        self._timer = timer

    def cancel(self) -> None:
        self._timer.cancel()


def test_a_loop_whose_timers_do_not_tell_when_they_ring_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[dict[str, Any]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: failed.append(context))
        call_at: Callable[..., asyncio.TimerHandle] = loop.call_at

        def call_at_nothing(*args: Any, **options: Any) -> TimerThatTellsNothing:
            return TimerThatTellsNothing(call_at(*args, **options))

        monkeypatch.setattr(loop, "call_at", call_at_nothing)
        await ask_a_handler()

    asyncio.run(main())
    assert failed == []
