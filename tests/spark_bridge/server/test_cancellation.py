"""Every public operation that needs a bridge, cancelled at each step: it can be repeated and leaves nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
import trio

from tests.support.bridge_operations import OPERATIONS, BridgeCast, open_bridge_cast, wait_given_back
from tests.support.operations import cancelled_at_each_step, waiters


def is_more(now: tuple[int, ...], before: tuple[int, ...]) -> bool:
    return any(one > other for one, other in zip(now, before, strict=True))


STRIDE = 5
"""Of how many steps one is tried; make test-long tries each."""


@pytest.mark.parametrize("stride", [STRIDE, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
async def test_an_operation_cancelled_at_any_step_leaves_nothing_behind(
    tmp_path: Path, operation: Callable[[BridgeCast], Awaitable[None]], stride: int
) -> None:
    async with open_bridge_cast(tmp_path) as cast:

        def left() -> tuple[int, ...]:
            """Count what waits at each node, its tunnels and what its handlers are at, and all tasks at work."""
            held: list[int] = []
            idle = 0
            for node in (cast.shop, cast.bridge):
                services = node.statistics().services.values()
                at_work = sum(service.running + service.queued for service in services)
                held += waiters(node), node.statistics().tunnels.open, at_work
                idle += sum(len(pool._idle) for pool in node._serving.memberships.values())
            return *held, trio.lowlevel.current_statistics().tasks_living - idle

        for _ in range(2):  # what is made once and kept, such as workers, is there before tasks are counted
            await operation(cast)
            await wait_given_back(cast)
        await trio.sleep(0.5)
        before = left()
        async for step in cancelled_at_each_step(partial(operation, cast), stride):
            with trio.move_on_after(10):
                while is_more(left(), before):  # noqa: ASYNC110 -- the last task's end has no event
                    await trio.sleep(0.001)
            assert not is_more(left(), before), (step, left(), before)
            # Leases last longer than the test, and a group has one consumer: what was left behind would be in the way.
            with trio.fail_after(10):
                await wait_given_back(cast)
                await operation(cast)
