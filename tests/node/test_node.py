"""Complete nodes on a network in memory, under virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import trio
from trio.testing import MockClock

import iris
import iris.testing
from iris.testing import Network, Rights


@pytest.fixture
async def network(autojump_clock: MockClock) -> AsyncIterator[Network]:
    async with iris.testing.open_network(seed=7) as network:
        yield network


def echo_service(name: str = "echo") -> iris.Service:
    service = iris.Service(name)

    @service.request
    async def echo(request: iris.Request) -> object:
        return [request.payload, request.sender.cluster]

    @service.request("sleep")
    async def sleep(request: iris.Request) -> object:
        await trio.sleep(request.payload)
        return "slept"

    return service


async def start_members(stack: AsyncExitStack, network: Network, count: int, name: str = "echo") -> list[iris.Node]:
    nodes: list[iris.Node] = []
    for index in range(count):
        node = await stack.enter_async_context(network.open_node(name, host=f"{name}-{index}"))
        await stack.enter_async_context(node.join(name, echo_service(name)))
        nodes.append(node)
    return nodes


async def test_a_name_that_nobody_serves_is_an_error_at_once(network: Network, autojump_clock: MockClock) -> None:
    async with network.open_node("shop") as node:
        began = trio.current_time()
        for call in (node.request("nobody"), node.broadcast("nobody", b"")):
            with pytest.raises(iris.NoSuchCluster, match="nobody"):
                await call
        with pytest.raises(iris.NoSuchCluster, match="nobody"):
            async with node.survey("nobody", b""):
                pass
        assert trio.current_time() - began < 0.01


async def test_a_member_that_crashes_fails_no_idempotent_request(network: Network, autojump_clock: MockClock) -> None:
    async with AsyncExitStack() as stack:
        await start_members(stack, network, 3)
        caller = await stack.enter_async_context(network.open_node("shop"))
        await caller.wait_for("echo", members=3)
        done = 0

        async def ask() -> None:
            nonlocal done
            for _ in range(20):
                assert (
                    await caller.request("echo", 0.05, operation="sleep", options=iris.RequestOptions(idempotent=True))
                    == "slept"
                )
                done += 1

        async with trio.open_nursery() as nursery:
            for _ in range(16):
                nursery.start_soon(ask)
            await trio.sleep(0.5)
            network.memory.crash("echo-1")
        assert done == 320
        statistics = caller.statistics().requests
        assert (statistics.sent, statistics.answered) == (320, 320)


async def test_a_crash_is_seen_as_suspected_then_lost_within_a_second(
    network: Network, autojump_clock: MockClock
) -> None:
    async with AsyncExitStack() as stack:
        members = await start_members(stack, network, 3)
        watcher = await stack.enter_async_context(network.open_node("shop"))
        await watcher.wait_for("echo", members=3)
        async with watcher.watch("echo") as changes:
            assert [(await anext(changes)).kind for _ in range(3)] == ["joined"] * 3
            began = trio.current_time()
            network.memory.crash("echo-0")
            seen = [await anext(changes), await anext(changes)]
            assert [change.kind for change in seen] == ["suspected", "lost"]
            assert {change.member.node for change in seen} == {members[0].id}
            assert trio.current_time() - began < 1.0


async def test_a_member_that_leaves_finishes_its_work_and_callers_see_no_error(
    network: Network, autojump_clock: MockClock
) -> None:
    async with AsyncExitStack() as stack:
        await start_members(stack, network, 1)
        leaving = await stack.enter_async_context(network.open_node("echo", host="leaving"))
        caller = await stack.enter_async_context(network.open_node("shop"))
        replies: list[object] = []

        async def ask() -> None:
            replies.extend([await caller.request("echo", 0.02, operation="sleep") for _ in range(30)])

        async with trio.open_nursery() as nursery, leaving.join("echo", echo_service()):
            await caller.wait_for("echo", members=2)
            for _ in range(8):
                nursery.start_soon(ask)
            await trio.sleep(0.2)
        assert replies == ["slept"] * 240


async def test_a_node_needs_a_credential_to_serve_a_name_that_is_not_its_own(autojump_clock: MockClock) -> None:
    async with iris.testing.open_network(rights=Rights()) as network, network.open_node("shop") as node:
        with pytest.raises(iris.ConfigError, match="no right to serve 'orders'"):
            async with node.join("orders", iris.Service("orders")):
                pass
        async with (
            node.join("orders", echo_service("orders"), credential=network.credential("orders")),
            network.open_node("other") as other,
        ):
            await other.wait_for("orders")
            assert await other.request("orders", 1) == [1, "other"]


async def test_joining_twice_is_refused(network: Network, autojump_clock: MockClock) -> None:
    async with AsyncExitStack() as stack:
        (member,) = await start_members(stack, network, 1)
        with pytest.raises(iris.ConfigError, match="member of the cluster 'echo' already"):
            async with member.join("echo", echo_service()):
                pass
        assert await member.request("echo", 1) == [1, "echo"]


async def test_sessions_are_renewed_and_nothing_notices(network: Network, autojump_clock: MockClock) -> None:
    async with AsyncExitStack() as stack:
        await start_members(stack, network, 1)
        caller = await stack.enter_async_context(network.open_node("shop"))
        await caller.wait_for("echo")
        for minute in range(10):
            assert await caller.request("echo", minute) == [minute, "shop"]
            await trio.sleep(60)
        assert not caller.statistics().refusals
        assert caller.statistics().requests.answered == 10
