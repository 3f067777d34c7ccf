"""Answering while the client is there: what it costs, and what comes of a client that hangs up."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Message

from iris.doors.http.answering import HungUp, while_connected
from tests.support.async_tests import on_asyncio


class Wire:
    """Says that the client has hung up when it is told to."""

    def __init__(self) -> None:
        self.hung_up = asyncio.Event()

    async def receive(self) -> Message:
        await self.hung_up.wait()
        return {"type": "http.disconnect"}


@on_asyncio()
async def test_work_that_is_done_at_once_gives_the_loop_no_turn() -> None:
    """Each turn of the loop is as long as what all clients do in it.  An answer of a member took eight of them."""

    async def work() -> str:
        return "done"

    turns: list[None] = []
    asyncio.get_running_loop().call_soon(turns.append, None)
    assert await while_connected(Wire().receive, work()) == "done"
    assert turns == []
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("fails", [False, True])
def test_who_hangs_up_has_its_work_stopped_whatever_it_comes_to(fails: bool) -> None:
    async def run() -> None:
        wire = Wire()
        stopped = False

        async def work() -> None:
            nonlocal stopped
            wire.hung_up.set()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)  # it takes its time
                stopped = True
                if fails:
                    raise ZeroDivisionError

        with pytest.raises(HungUp):
            await while_connected(wire.receive, work())
        assert stopped
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        await asyncio.sleep(0)  # the task goes on

    asyncio.run(run())


@on_asyncio()
async def test_a_task_that_is_cancelled_as_its_client_hangs_up_is_cancelled() -> None:
    wire = Wire()
    task = asyncio.ensure_future(while_connected(wire.receive, asyncio.sleep(60)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    wire.hung_up.set()
    await asyncio.sleep(0)  # it is noticed in the next turn
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@on_asyncio()
async def test_what_fails_fails_and_nobody_watches_any_more() -> None:
    async def work() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await while_connected(Wire().receive, work())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
