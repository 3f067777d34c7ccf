"""One sleeping task and the code that wakes it."""

from __future__ import annotations

import pytest
import trio
from trio.testing import assert_checkpoints, wait_all_tasks_blocked

from iris.kernel.tasks.wakeup import Wakeup


async def test_a_waiting_task_is_woken(autojump_clock: trio.testing.MockClock) -> None:
    wakeup = Wakeup()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wakeup.wait)
        await wait_all_tasks_blocked()
        wakeup.wake()


async def test_a_wake_up_with_nobody_waiting_is_remembered_once(autojump_clock: trio.testing.MockClock) -> None:
    wakeup = Wakeup()
    wakeup.wake()
    wakeup.wake()
    with assert_checkpoints():
        await wakeup.wait()
    with trio.move_on_after(1) as scope:
        await wakeup.wait()
    assert scope.cancelled_caught


async def test_a_wait_that_is_cancelled_leaves_a_remembered_wake_up() -> None:
    wakeup = Wakeup()
    wakeup.wake()
    with trio.CancelScope() as scope:
        scope.cancel()
        await wakeup.wait()
    assert scope.cancelled_caught
    with trio.fail_after(60):
        await wakeup.wait()


async def test_a_wake_up_that_came_first_is_not_cancelled_any_more() -> None:
    wakeup = Wakeup()
    woken = False

    async def sleeper(scope: trio.CancelScope) -> None:
        nonlocal woken
        with scope:
            await wakeup.wait()
            woken = True

    scope = trio.CancelScope()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sleeper, scope)
        await wait_all_tasks_blocked()
        wakeup.wake()
        scope.cancel()
    assert woken


async def test_a_cancelled_wait_frees_the_place() -> None:
    wakeup = Wakeup()
    with trio.move_on_after(0):
        await wakeup.wait()
    wakeup.wake()
    await wakeup.wait()


async def test_only_one_task_may_wait() -> None:
    wakeup = Wakeup()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wakeup.wait)
        await wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await wakeup.wait()
        wakeup.wake()


async def test_what_is_no_task_is_told_of_each_wake_up_until_it_ends_that() -> None:
    wakeup, told = Wakeup(), list[int]()
    wakeup.wake()  # what it has looked at before it watches
    end = wakeup.watch(lambda: told.append(1))
    assert end is not None
    assert told == []
    assert wakeup.watch(lambda: told.append(2)) is None
    with pytest.raises(trio.BusyResourceError):
        await wakeup.wait()
    wakeup.wake()
    wakeup.wake()
    assert told == [1, 1]
    end()
    wakeup.wake()
    assert told == [1, 1]
    with trio.fail_after(60):
        await wakeup.wait()


async def test_nothing_else_is_told_while_a_task_waits() -> None:
    wakeup = Wakeup()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wakeup.wait)
        await wait_all_tasks_blocked()
        assert wakeup.watch(nursery.cancel_scope.cancel) is None
        wakeup.wake()
