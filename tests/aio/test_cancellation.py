"""Every public operation, its task cancelled at each step of trio in turn: it can be repeated and leaves nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import trio

from iris.aio.guest import Guest
from iris.kernel.config import Config
from tests.support.aio import open_guest_cast, use_virtual_clock
from tests.support.operations import OPERATIONS, CancelAt, Cast, broadcast, connections, join, open_node, state, waiters
from tests.support.stages import IN_FLIGHT, check_accounts

Operation = Callable[[Cast], Awaitable[None]]

ENOUGH = 3
"""Runs one after the other that were over before the step came: how many steps one takes also depends on others."""

AT_ONCE = (broadcast,)
"""Operations that are over without a wait: there is no step at which they could be cancelled."""

LONG = (join, open_node, state)
"""Operations of very many steps: the quick test takes a part of them."""


def busy_tasks(guest: Guest) -> int:
    """Trio's tasks but for those that wait for a call."""
    assert guest._calls is not None
    return trio.lowlevel.current_statistics().tasks_living - len(guest._calls._idle)


async def cancel_at_each_step(operation: Operation, stride: int) -> None:
    async with open_guest_cast() as (stage, cast):
        if operation is open_node:  # messages of a node that was opened in part arrive after its end
            stage.harmless = ("unknown session", "of a peer that is gone")
        for _ in range(2):  # what is made once and kept is there before tasks are counted
            await operation(cast)
        await cast.sleep(1)
        tasks, open_before = busy_tasks(cast.guest), connections(stage.network)
        waiting = [waiters(node) for node in cast.nodes]
        cancelled = over = 0
        step = 1
        while over < ENOUGH:
            task = asyncio.ensure_future(operation(cast))
            instrument = CancelAt(task.cancel, step)
            trio.lowlevel.add_instrument(instrument)
            try:
                await asyncio.wait([task])
            finally:
                trio.lowlevel.remove_instrument(instrument)
            if task.cancelled():
                cancelled += 1
            else:
                task.result()
            over = 0 if instrument.came else over + 1
            await cast.sleep(IN_FLIGHT)
            assert cast.running == 0, step
            for node in cast.nodes:
                check_accounts(node, *stage.harmless)
                assert node.statistics().tunnels.open == 0, step
            assert not cast.nodes[0].statistics().subscriptions, step
            assert not cast.nodes[0].statistics().services, step
            assert [waiters(node) for node in cast.nodes] == waiting, step
            step += stride
        await asyncio.wait_for(operation(cast), 30)
        await cast.sleep(Config().handshake_timeout + 1)  # that is how long others wait for one cut off
        assert busy_tasks(cast.guest) <= tasks
        assert connections(stage.network) == open_before
        assert (cancelled > 0) is (operation not in AT_ONCE)
        assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
def test_an_operation_cancelled_at_any_step_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, operation: Operation
) -> None:
    use_virtual_clock(monkeypatch)
    asyncio.run(cancel_at_each_step(operation, 23 if operation in LONG else 1))


@pytest.mark.long
@pytest.mark.parametrize("operation", LONG, ids=lambda operation: operation.__name__)
def test_a_long_operation_cancelled_at_every_step_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, operation: Operation
) -> None:
    use_virtual_clock(monkeypatch)
    asyncio.run(cancel_at_each_step(operation, 1))
