"""A node whose opening is cancelled, at each step in turn, while the others have much to send it."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest
import trio
from trio.testing import MockClock

import iris.testing
from iris.testing import inspect


class CancelAt(trio.abc.Instrument):
    """Cancels a scope after so many steps of any task."""

    def __init__(self, scope: trio.CancelScope, steps: int) -> None:
        self._scope = scope
        self._left = steps

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self._left -= 1
        if self._left == 0:
            self._scope.cancel()


@pytest.mark.parametrize("first", [1, pytest.param(4, marks=pytest.mark.long)])
async def test_opening_can_be_cancelled_at_any_moment(autojump_clock: MockClock, first: int) -> None:
    async with iris.testing.open_network() as network, AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(network.open_node("shop")) for _ in range(4)]
        for steps in range(first, 120, 6):
            with trio.CancelScope() as scope:
                trio.lowlevel.add_instrument(instrument := CancelAt(scope, steps))
                try:
                    async with network.open_node("late", host="late"):
                        await trio.sleep(3)
                finally:
                    trio.lowlevel.remove_instrument(instrument)
            await trio.sleep(0.2)
        await trio.sleep(60)
        assert all(len(inspect(node).peers) == 3 for node in nodes), "and it leaves nothing behind in others"


async def test_what_arrives_when_a_node_is_gone_is_handed_to_nobody(autojump_clock: MockClock) -> None:
    """The mesh outlives what is built on it by a moment, in which others go on talking to it."""
    async with iris.testing.open_network() as network, network.open_node("shop") as shop:
        async with network.open_parts("late") as (_, late_parts):
            mesh, membership = late_parts.mesh, late_parts.membership
            await trio.sleep(1)
        assert mesh.closing
        assert not mesh.receivers.own
        membership._linking.begin(shop.id)
        assert membership.linking == 0
        await trio.sleep(1)
        assert mesh.refusals["message of a kind that is not taken"] == 0
