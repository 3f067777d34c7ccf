"""Two members of a large realm that cannot reach each other, while everybody else reaches both."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock

import iris
from iris.testing import Network, open_network
from tests.node.test_large_realms import open_realm

NODES = 12
"""More than keep a link to everybody."""

STALL = 0.5
"""Seconds from which on a caller has waited for a link."""

LONGEST = 30.0
"""Seconds between attempts to link to a member, at most; an attempt takes up to five more."""


def number_of(nodes: list[iris.Node], one: int) -> int:
    """Return the number of a node that another one is not linked to."""
    links = nodes[one].statistics().links
    return next(number for number in range(one + 1, NODES) if nodes[number].id not in links)


def cut(network: Network, one: int, other: int) -> None:
    network.memory.partition([f"host-{one + 1}"], [f"host-{other + 1}"])


async def stalls_of(call: Callable[[], Awaitable[object]], seconds: int, changing: iris.Node) -> int:
    """Make a call each second, while a node joins clusters and leaves them; return how many calls had to wait."""
    stalls = 0
    for _ in range(seconds):
        began = trio.current_time()
        await call()
        stalls += trio.current_time() - began > STALL
        async with changing.join("coming", iris.Service("coming")):
            await trio.sleep(0.5)
        await trio.sleep(0.5)
    return stalls


@pytest.mark.parametrize("how", ["key", "prefer"])
async def test_one_request_waits_for_a_member_that_cannot_be_reached_and_all_others_go_to_the_next(
    autojump_clock: MockClock, how: str
) -> None:
    async with open_network() as network, open_realm(network, NODES, NODES) as nodes:
        one, third = nodes[5], nodes[0]
        other = number_of(nodes, 5)
        cut(network, 5, other)
        keys = [f"key-{number}" for number in range(100)]
        answers = {key: await third.request("numbers", key=key) for key in keys} if how == "key" else {}
        key = next((key for key, number in answers.items() if number == other), None)
        options = None if how == "key" else iris.RequestOptions(prefer=nodes[other].id)
        replies: list[object] = []

        async def ask() -> None:
            replies.append(await one.request("numbers", key=key, options=options, timeout=20.0))

        assert await stalls_of(ask, 45, nodes[0]) <= 1
        assert other not in replies
        assert len(set(replies)) == 1 or how == "prefer", "a key goes to the next member of its order"
        assert await third.request("numbers", key=key, options=options) == other
        assert len(one.members("numbers")) == NODES

        network.memory.heal()
        await trio.sleep(LONGEST + 5.0)
        assert await one.request("numbers", key=key, options=options) == other


@pytest.mark.parametrize("what", ["broadcast", "publish", "tunnel"])
async def test_nothing_else_waits_for_such_a_member_again_and_again(autojump_clock: MockClock, what: str) -> None:
    service = iris.Service("news")

    @service.broadcast
    async def hear(broadcast: iris.Request) -> None:
        pass

    @service.tunnel
    async def echo(tunnel: iris.Tunnel) -> None:
        await tunnel.send(await tunnel.receive())

    async with open_network() as network, open_realm(network, NODES, NODES) as nodes:
        one, other = nodes[5], nodes[number_of(nodes, 5)]
        cut(network, 5, nodes.index(other))

        async def call() -> None:
            if what == "broadcast":
                await one.broadcast("news", b"")
            elif what == "publish":
                await one.publish("weather", b"")
            else:
                async with one.open_tunnel("news", prefer=other.id) as tunnel:
                    await tunnel.send(1)
                    assert await tunnel.receive() == 1

        async with other.join("news", service), nodes[3].join("news", service), other.subscribe("weather"):
            await one.wait_for("news")
            assert await stalls_of(call, 30, nodes[0]) <= 2


async def test_a_member_is_asked_as_soon_as_a_link_stands_whoever_has_made_it(autojump_clock: MockClock) -> None:
    async with open_network() as network, open_realm(network, NODES, NODES) as nodes:
        other = number_of(nodes, 5)
        options = iris.RequestOptions(prefer=nodes[other].id)
        network.memory.partition(["host-6"], [f"host-{other + 1}"], one_way=True)
        assert await nodes[5].request("numbers", options=options, timeout=20.0) != other
        await trio.sleep(60.0)
        network.memory.heal()
        assert await nodes[other].request("numbers", options=iris.RequestOptions(prefer=nodes[5].id)) == 5
        assert await nodes[5].request("numbers", options=options) == other
        await trio.sleep(60.0)  # nobody has used the link, and it has ended
        assert nodes[other].id not in nodes[5].statistics().links
        began = trio.current_time()
        assert await nodes[5].request("numbers", options=options) == other
        assert trio.current_time() - began < STALL
