"""Tasks that serve a block and end with it."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from iris.kernel.tasks.background import open_background


async def test_its_tasks_end_with_the_block() -> None:
    cancelled = False

    async def task() -> None:
        nonlocal cancelled
        try:
            await trio.sleep_forever()
        finally:
            cancelled = True

    async with open_background() as nursery:
        nursery.start_soon(task)
        await wait_all_tasks_blocked()
    assert cancelled


async def test_what_the_block_raises_comes_out_as_it_is() -> None:
    error = ValueError("mine")

    async def block() -> None:
        async with open_background() as nursery:
            nursery.start_soon(trio.sleep_forever)
            raise error

    with pytest.raises(ValueError, match="mine") as caught:
        await block()
    assert caught.value is error
    assert caught.value.__context__ is None


async def test_a_group_that_the_block_raises_stays_a_group() -> None:
    one = ValueError("one")
    with pytest.raises(ExceptionGroup, match="mine") as caught:
        async with open_background():
            raise ExceptionGroup("mine", [one])
    assert caught.value.exceptions == (one,)


async def test_a_task_that_fails_ends_the_block_with_its_error() -> None:
    async def task() -> None:
        raise KeyError("task")

    async def block() -> None:
        async with open_background() as nursery:
            nursery.start_soon(task)
            await trio.sleep_forever()

    with pytest.raises(KeyError, match="task"):
        await block()


async def test_several_errors_come_as_a_group() -> None:
    async def task() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise KeyError("task")

    async def block() -> None:
        async with open_background() as nursery:
            nursery.start_soon(task)
            await wait_all_tasks_blocked()
            raise ValueError("block")

    with pytest.raises(ExceptionGroup) as caught:
        await block()
    assert {type(error) for error in caught.value.exceptions} == {KeyError, ValueError}


async def test_errors_of_nested_blocks_come_out_as_they_are() -> None:
    with pytest.raises(ValueError, match="deep"):
        async with open_background(), open_background(), open_background():
            raise ValueError("deep")


async def test_cancelling_around_it_is_caught_by_the_scope_around_it() -> None:
    with trio.move_on_after(0) as scope:
        async with open_background() as nursery:
            nursery.start_soon(trio.sleep_forever)
            await trio.sleep_forever()
    assert scope.cancelled_caught


async def test_leaving_it_by_return_or_break_is_quiet() -> None:
    for _ in range(2):
        async with open_background() as nursery:
            nursery.start_soon(trio.sleep_forever)
            break


async def test_a_cancelled_scope_inside_the_block_is_not_its_end() -> None:
    async with open_background():
        with trio.move_on_after(0):
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
