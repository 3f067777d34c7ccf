"""Processor time of a door: who has used more than its share waits, and nobody else does."""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from collections.abc import Callable, Coroutine
from time import thread_time

import pytest

from iris.doors.processor import BURST, SHARE, Processor, metered


def under_asyncio(test: Callable[[], Coroutine[None, None, None]]) -> Callable[[], None]:
    @functools.wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


def _burn(seconds: float) -> None:
    until = thread_time() + seconds
    while thread_time() < until:
        pass


@under_asyncio
async def test_who_uses_little_never_waits() -> None:
    processor = Processor()
    for _ in range(3):
        processor.spend(BURST / 4)
        assert not processor.is_ahead()
        await processor.rest()


@under_asyncio
async def test_who_uses_more_waits_until_it_is_its_share() -> None:
    loop = asyncio.get_running_loop()
    processor, began = Processor(), loop.time()
    processor.spend(0.1)
    assert processor.is_ahead()
    await processor.rest()
    assert loop.time() - began >= (0.1 - BURST) / SHARE - 0.005


@under_asyncio
async def test_all_that_one_client_does_shares_one_share_and_others_are_not_held_up() -> None:
    """Twenty tasks of one client have together what one would have, one after the other."""
    loop = asyncio.get_running_loop()
    greedy, turns = Processor(), 0

    async def work() -> None:
        nonlocal turns
        while True:
            _burn(0.002)
            turns += 1
            await greedy.rest()

    tasks = [asyncio.ensure_future(greedy.metered(work())) for _ in range(20)]
    try:
        while turns < 20:  # the first turn of each comes at once
            await asyncio.sleep(0)
        turns, began = 0, loop.time()
        while loop.time() - began < 0.3:
            before = turns
            await asyncio.sleep(0)
            assert turns - before <= 2  # nobody else waits for twenty of them
        took = loop.time() - began
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    assert turns * 0.002 <= took * SHARE + 2 * BURST


@under_asyncio
async def test_a_turn_that_is_given_up_is_the_next_one_s() -> None:
    processor = Processor()
    processor.spend(BURST * 2)
    first, second = asyncio.ensure_future(processor.rest()), asyncio.ensure_future(processor.rest())
    await asyncio.sleep(0)
    first.cancel()
    await second
    assert first.cancelled()


@under_asyncio
async def test_what_is_measured_behaves_as_if_it_was_not() -> None:
    processor = Processor()

    async def work(error: Exception | None) -> int:
        try:
            await asyncio.sleep(0)
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            pass
        if error is not None:
            raise error
        return 7

    assert await processor.metered(work(None)) == 7
    with pytest.raises(ZeroDivisionError):
        await metered(lambda: processor, work(ZeroDivisionError()))
    metering = processor.metered(asyncio.Event().wait())
    assert inspect.iscoroutine(metering), "from Python 3.12 on a task is made of nothing else"
    task = asyncio.create_task(metering)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@under_asyncio
async def test_a_step_in_which_the_process_was_stopped_costs_its_client_little() -> None:
    loop, processor = asyncio.get_running_loop(), Processor()
    with processor.working():
        time.sleep(0.3)  # noqa: ASYNC251 -- as SIGSTOP would
    began = loop.time()
    await processor.rest()
    assert loop.time() - began < 0.2
