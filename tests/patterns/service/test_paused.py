"""Kill switch: a value of a document has the members of a service refuse everything, at once and counted."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import MockClock

import iris
from iris.kernel.errors import ConfigError, RemoteError
from iris.testing import Network, open_network


@pytest.fixture
async def network(autojump_clock: MockClock) -> AsyncIterator[Network]:
    async with open_network(seed=3) as network:
        yield network


def checkout(heard: list[object]) -> iris.Service:
    service = iris.Service("checkout", paused_by="flags.checkout")

    @service.request
    def pay(request: iris.Request) -> object:
        return request.payload

    @service.broadcast
    def hear(message: iris.Message) -> None:
        heard.append(message.payload)

    @service.tunnel
    async def stream(tunnel: iris.Tunnel) -> None:
        await tunnel.send("open")

    return service


async def test_a_service_refuses_everything_while_its_flag_is_set(autojump_clock: MockClock, network: Network) -> None:
    heard: list[object] = []
    async with (
        network.open_node("checkout") as member,
        network.open_node("shop") as shop,
        network.open_node("operator") as operator,
        operator.state("flags") as flags,
        member.state("flags"),
        member.join("checkout", checkout(heard)) as joined,
    ):
        await shop.wait_for("checkout")
        assert await shop.request("checkout", 1) == 1
        flags["checkout"] = True
        await flags.settled(2)
        began = trio.current_time()
        for idempotent in (False, True):
            with pytest.raises(RemoteError, match=r"paused: cluster 'checkout' is paused: flags\.checkout is set"):
                await shop.request("checkout", 2, options=iris.RequestOptions(idempotent=idempotent))
        with pytest.raises(RemoteError, match="paused"):
            async with shop.open_tunnel("checkout"):
                pass
        await shop.broadcast("checkout", "unheard")
        async with shop.survey("checkout", 3) as answers:
            assert [answer async for answer in answers] == []
        assert trio.current_time() - began < 0.1, "at once"
        counted = joined.statistics()
        assert (counted.paused, counted.refused, counted.served) == (5, 3, 1)
        assert counted.received == counted.served + counted.refused
        flags["checkout"] = False
        await flags.settled(2)
        assert await shop.request("checkout", 4) == 4
        await shop.broadcast("checkout", "heard")
        async with shop.open_tunnel("checkout") as tunnel:
            assert await tunnel.receive() == "open"
        assert heard == ["heard"]


async def hold_flags(
    node: iris.Node, over: trio.Event, closed: trio.Event, *, task_status: trio.TaskStatus[iris.SharedState]
) -> None:
    async with node.state("flags") as flags:
        task_status.started(flags)
        await over.wait()
    closed.set()


async def test_a_flag_keeps_its_last_value_when_the_document_is_closed(
    autojump_clock: MockClock, network: Network
) -> None:
    over, closed = trio.Event(), trio.Event()
    async with network.open_node("checkout") as member, trio.open_nursery() as nursery:
        flags = await nursery.start(hold_flags, member, over, closed)
        async with member.join("checkout", checkout([])):
            flags["checkout"] = "for the audit"
            over.set()
            await closed.wait()
            with pytest.raises(RemoteError, match="paused"):
                await member.request("checkout", 1)


async def test_the_document_has_to_be_open(autojump_clock: MockClock, network: Network) -> None:
    async with network.open_node("checkout") as member:
        with pytest.raises(ConfigError, match=r"open node\.state\('flags'\) and join within its block"):
            async with member.join("checkout", checkout([])):
                pass
    for wrong in ("checkout", "a b.c", ""):
        with pytest.raises(ConfigError):
            iris.Service("checkout", paused_by=wrong)


def test_a_service_for_asyncio_and_threads_is_paused_as_well() -> None:
    service = checkout([])
    adapted = service._adapted(request=lambda it: it, broadcast=lambda it: it, tunnel=lambda it: it)
    assert adapted.paused_by == "flags.checkout"
