"""A node whose date jumps: it may be out for as long as the date is wrong, and no longer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

import iris.testing
from iris import Node, Service
from iris.security.identity.credential import Credential

_DAY = 86_400.0


class Date:
    """The date as one node sees it."""

    def __init__(self, network: iris.testing.Network) -> None:
        self._right = network.wall_clock
        self.ahead = 0.0

    def __call__(self, host: str) -> float:
        return self._right(host) + self.ahead


@asynccontextmanager
async def open_node_at(
    date: Date, network: iris.testing.Network, name: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Node]:
    async with AsyncExitStack() as stack:
        with monkeypatch.context() as patched:
            patched.setattr(network, "wall_clock", date)
            node = await stack.enter_async_context(network.open_node(name))
        yield node


@pytest.mark.parametrize(("ahead", "seconds"), [(3 * _DAY, 5), (3 * _DAY, 70), (-3 * _DAY, 70), (3600.0, 5)])
async def test_a_node_whose_date_jumps_is_back_when_it_is_right_again(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, ahead: float, seconds: int
) -> None:
    async with iris.testing.open_network(seed=3) as network:
        date = Date(network)
        async with (
            network.open_node("orders") as one,
            network.open_node("orders") as other,
            open_node_at(date, network, "orders", monkeypatch) as jumping,
            one.join("orders", Service("orders")),
            other.join("orders", Service("orders")),
            jumping.join("orders", Service("orders")),
        ):
            nodes = (one, other, jumping)
            await one.wait_for("orders", 3)
            date.ahead = ahead
            for _ in range(seconds):
                await trio.sleep(1)
                assert {one.id, other.id} <= {member.node for member in one.members("orders")}, "nobody else is touched"
                await one.wait_for("orders", 2, timeout=0.01)
            date.ahead = 0.0
            for node in nodes:
                await node.wait_for("orders", 3, timeout=90)


async def test_a_node_that_starts_with_a_date_to_come_is_found_when_the_date_is_right(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with iris.testing.open_network(seed=4) as network, network.open_node("orders") as one:
        date = Date(network)
        date.ahead = 7200.0  # a machine whose clock has the time of another zone, until it has asked for it
        async with (
            one.join("orders", Service("orders")),
            open_node_at(date, network, "orders", monkeypatch) as early,
            early.join("orders", Service("orders")),
        ):
            await trio.sleep(10)
            assert len(one.members("orders")) == 1, "its certificates are of a time to come"
            date.ahead = 0.0
            await one.wait_for("orders", 2, timeout=90)
            await early.wait_for("orders", 2, timeout=90)


async def test_a_proof_of_a_further_cluster_that_was_made_in_a_time_to_come_is_made_again(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rights = iris.testing.Rights()
    async with iris.testing.open_network(seed=5, rights=rights) as network, network.open_node("shop") as one:
        date = Date(network)
        date.ahead = 7200.0
        further: Credential = network.credential("orders")
        async with (
            open_node_at(date, network, "shop", monkeypatch) as early,
            early.join("orders", Service("orders"), credential=further),
        ):
            await trio.sleep(10)
            date.ahead = 0.0
            await one.wait_for("orders", timeout=90)
