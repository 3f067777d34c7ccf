"""Tunnels between whole nodes: handshakes, sessions, membership and all, on a network in memory."""

from __future__ import annotations

import hashlib
import random
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

import iris
import iris.testing
from iris.kernel.config import Config
from iris.kernel.wire import kinds
from iris.node.open import OpenNode
from iris.patterns.tunnel.endpoint import TunnelEndpoint
from iris.testing import Network

# Every test names ``autojump_clock`` itself: pytest-trio looks for the clock among the arguments of the test alone.


@pytest.fixture
async def network() -> AsyncIterator[Network]:
    async with iris.testing.open_network(seed=11) as network:
        yield network


class Store:
    """A service with tunnels, and what became of them."""

    def __init__(self) -> None:
        self.service = iris.Service("store")
        self.endings: list[str] = []
        self.digests: list[str] = []
        self.service.tunnel(self.echo)
        self.service.tunnel("put")(self.put)
        self.service.tunnel("ignore")(self.ignore)
        self.service.request(self.answer)

    async def answer(self, request: iris.Request) -> object:
        return request.payload

    async def echo(self, tunnel: iris.Tunnel) -> None:
        try:
            await tunnel.send([tunnel.sender.cluster, tunnel.cluster, tunnel.operation, dict(tunnel.headers)])
            async for payload in tunnel:
                await tunnel.send(payload)
        except BaseException as error:
            self.endings.append(type(error).__name__)
            raise
        self.endings.append("end of file")

    async def put(self, tunnel: iris.Tunnel) -> None:
        digest = hashlib.sha256()
        async for payload in tunnel:
            digest.update(payload)
        self.digests.append(digest.hexdigest())
        await tunnel.send(digest.hexdigest())

    async def ignore(self, tunnel: iris.Tunnel) -> None:
        await trio.sleep_forever()


@pytest.fixture
async def opened(network: Network) -> AsyncIterator[tuple[OpenNode, iris.Node, Store]]:
    """A shop with its parts, a node of the store, and the store."""
    store = Store()
    async with (
        network.open_node("store", host="store") as member,
        member.join("store", store.service),
        network.open_parts("shop", host="shop") as shop,
    ):
        await shop.node.wait_for("store")
        yield shop, member, store


@pytest.fixture
def nodes(opened: tuple[OpenNode, iris.Node, Store]) -> Nodes:
    """A shop, a node of the store, and the store."""
    shop, member, store = opened
    return shop.node, member, store


async def only_open(opening: AbstractAsyncContextManager[iris.Tunnel]) -> None:
    async with opening:
        pass


Nodes = tuple[iris.Node, iris.Node, Store]


async def test_a_tunnel_leads_to_a_handler_that_knows_who_opened_it(autojump_clock: MockClock, nodes: Nodes) -> None:
    shop, member, store = nodes
    async with shop.open_tunnel("store", headers={"trace": "7"}) as tunnel:
        assert await tunnel.receive() == ["shop", "store", None, {"trace": "7"}], "what the handler is told"
        assert (tunnel.sender.cluster, tunnel.sender.node) == ("store", member.id)
        for payload in (b"bytes", {"a": [1, None]}, bytes(1_000_000)):
            await tunnel.send(payload)
            assert await tunnel.receive() == payload
        await tunnel.send_eof()
        assert [payload async for payload in tunnel] == []
    await trio.sleep(0.1)
    assert store.endings == ["end of file"]
    for node in (shop, member):
        statistics = node.statistics().tunnels
        assert statistics.open == 0
        assert statistics.messages.sent == statistics.messages.answered
    assert member.statistics().services["store"].tunnels_served == 1


async def test_a_node_opens_a_tunnel_to_itself(autojump_clock: MockClock, nodes: Nodes) -> None:
    _, member, store = nodes
    async with member.open_tunnel("store") as tunnel:
        assert await tunnel.receive() == ["store", "store", None, {}]
        await tunnel.send(bytes(500_000))
        assert await tunnel.receive() == bytes(500_000)
    await trio.testing.wait_all_tasks_blocked()
    assert store.endings == ["end of file"]
    assert member.statistics().tunnels.open == 0


async def test_who_is_cancelled_just_when_a_message_comes_has_the_next_one_wait(
    autojump_clock: MockClock, network: Network
) -> None:
    async def read(scope: trio.CancelScope) -> None:
        with scope:
            found.append(await tunnel.receive())

    found: list[object] = []
    async with (
        network.open_node("store") as node,
        node.join("store", Store().service),
        node.open_tunnel("store") as tunnel,
        trio.open_nursery() as nursery,
    ):
        await tunnel.receive()
        for number in range(80):
            scope = trio.CancelScope()
            nursery.start_soon(read, scope)
            await trio.testing.wait_all_tasks_blocked()
            await tunnel.send(number)
            for _ in range(number % 40):  # one of these is just when it comes
                await trio.lowlevel.checkpoint()
            scope.cancel()
            await trio.testing.wait_all_tasks_blocked()
            if len(found) == number:
                found.append(await tunnel.receive())
    assert found == [*range(80)]


async def test_names_and_operations_that_nobody_serves_are_errors_at_once(
    autojump_clock: MockClock, nodes: Nodes
) -> None:
    shop, _, _ = nodes
    started = trio.current_time()
    with pytest.raises(iris.NoSuchCluster):
        await only_open(shop.open_tunnel("nowhere"))
    with pytest.raises(iris.RemoteError, match="does not serve tunnels for 'else'") as caught:
        await only_open(shop.open_tunnel("store", operation="else"))
    assert caught.value.code == "no_such_operation"
    assert trio.current_time() - started < 0.1


async def test_a_member_at_its_limit_of_tunnels_is_overloaded(autojump_clock: MockClock, network: Network) -> None:
    async with (
        network.open_node("store", config=Config(tunnels_per_node=1)) as member,
        member.join("store", Store().service),
        network.open_node("shop") as shop,
    ):
        await shop.wait_for("store")
        async with shop.open_tunnel("store"):
            with pytest.raises(iris.Overloaded, match="1 tunnels are open") as caught:
                await only_open(shop.open_tunnel("store"))
            assert caught.value.retry_after == 1
        await trio.sleep(0.1)
        await only_open(shop.open_tunnel("store"))


async def test_headers_that_are_none_are_refused(
    autojump_clock: MockClock, opened: tuple[OpenNode, iris.Node, Store]
) -> None:
    shop, member, _ = opened
    end = shop.parts.patterns.tunnels._table.open(member.id, "store", None, ("a", "b", "c"))
    await trio.sleep(0.1)
    assert end.machine.refusal is not None
    assert end.machine.refusal.code == "malformed"


async def test_a_member_that_is_lost_while_it_is_asked_is_an_error(
    autojump_clock: MockClock, network: Network, nodes: Nodes
) -> None:
    shop, _, _ = nodes
    network.memory.partition(["shop"], ["store"])
    with pytest.raises(iris.TunnelBroken, match="was lost while a tunnel to it was being opened"):
        await only_open(shop.open_tunnel("store", timeout=1000))
    with pytest.raises(iris.NoSuchCluster):
        await only_open(shop.open_tunnel("store"))


@pytest.mark.parametrize("operation", ["at-once", "later", "group", "after-a-message"])
async def test_a_handler_that_fails_is_no_member_that_was_lost(
    autojump_clock: MockClock, network: Network, operation: str
) -> None:
    service = iris.Service("store")

    @service.tunnel("at-once")
    async def fail(_: iris.Tunnel) -> None:
        raise KeyError("a secret")

    @service.tunnel("later")
    async def fail_later(tunnel: iris.Tunnel) -> None:
        await trio.sleep(1)
        await fail(tunnel)

    @service.tunnel("group")
    async def fail_in_a_group(tunnel: iris.Tunnel) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail, tunnel)

    @service.tunnel("after-a-message")
    async def fail_after_a_message(tunnel: iris.Tunnel) -> None:
        await tunnel.send(await tunnel.receive())
        await fail(tunnel)

    async def use(shop: iris.Node) -> None:
        async with shop.open_tunnel("store", operation=operation) as tunnel:
            await tunnel.send(1)
            async for _ in tunnel:
                pass

    async with (
        network.open_node("store") as member,
        member.join("store", service),
        network.open_parts("shop") as (shop, shop_parts),
    ):
        await shop.wait_for("store")
        for _ in range(5):
            with pytest.raises(iris.TunnelBroken, match=r"^the tunnel to .* broke: the handler failed: KeyError") as it:
                await use(shop)
            assert "secret" not in str(it.value)
        balancer = shop_parts.membership.picker("store")
        assert balancer is not None
        assert balancer.pick() == member.id, "it is asked as before"
        assert member.statistics().services["store"].tunnels_failed == 5


async def test_a_handler_whose_tasks_are_cancelled_has_no_errors(autojump_clock: MockClock, network: Network) -> None:
    service = iris.Service("store")

    @service.tunnel
    async def wait(tunnel: iris.Tunnel) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            nursery.start_soon(tunnel.receive)

    async with network.open_node("shop") as shop, AsyncExitStack() as stack:
        member = await stack.enter_async_context(network.open_node("store"))
        await stack.enter_async_context(member.join("store", service))
        await shop.wait_for("store")
        async with shop.open_tunnel("store") as tunnel:
            await stack.aclose()
            with pytest.raises(iris.TunnelBroken, match=r"broke: the handler was cancelled$"):
                await tunnel.receive()
            tunnel.abort()


async def test_a_tunnel_that_the_handler_has_ended_is_opened_all_the_same(
    autojump_clock: MockClock, opened: tuple[OpenNode, iris.Node, Store]
) -> None:
    (shop, parts), _, _ = opened
    table = parts.patterns.tunnels._table
    plain = table.open

    def open_and_hear_the_end(*args: Any) -> TunnelEndpoint:
        end = plain(*args)
        number = -end.machine._identifier
        end.machine.receive(kinds.TunnelAccept(number, 2**20, 2**20), trio.current_time())
        end.machine.receive(kinds.TunnelClose(number, 1, 0, "the handler failed: KeyError"), 0.0)
        end.settle()
        return end

    table.open = open_and_hear_the_end  # type: ignore[assignment,method-assign]
    for _ in range(3):
        with pytest.raises(iris.TunnelBroken, match=r"broke: the handler failed: KeyError$"):
            await only_open(shop.open_tunnel("store"))


async def test_cancelling_the_opening_leaves_nothing(autojump_clock: MockClock, network: Network, nodes: Nodes) -> None:
    shop, member, _ = nodes
    network.memory.partition(["shop"], ["store"])
    with trio.move_on_after(0.2) as scope:
        async with shop.open_tunnel("store"):
            pass
    assert scope.cancelled_caught
    assert shop.statistics().tunnels.open == 0
    with pytest.raises(iris.RequestTimeout, match=r"took the tunnel within 0.3 s"):
        await only_open(shop.open_tunnel("store", timeout=0.3))
    assert shop.statistics().tunnels.open == 0
    network.memory.heal()
    await trio.sleep(2)
    assert member.statistics().tunnels.open == 0


async def flap(network: Network) -> None:
    """Cut the network again and again, never for long enough that a node is given up."""
    while True:
        await trio.sleep(0.004)
        network.memory.partition(["shop"], ["store"])
        await trio.sleep(0.003)
        network.memory.heal()


@pytest.mark.parametrize("fault", ["none", "loss", "flaps"])
async def test_a_transfer_survives_the_network(
    autojump_clock: MockClock, network: Network, nodes: Nodes, fault: str
) -> None:
    shop, _, store = nodes
    chance = random.Random(5)
    digest = hashlib.sha256()
    async with trio.open_nursery() as nursery:
        if fault == "loss":
            network.memory.loss = 0.03
        elif fault == "flaps":
            nursery.start_soon(flap, network)
        async with shop.open_tunnel("store", operation="put") as tunnel:
            for _ in range(200):
                payload = chance.randbytes(chance.randrange(200_000))
                digest.update(payload)
                await tunnel.send(payload)
            await tunnel.send_eof()
            assert await tunnel.receive() == digest.hexdigest()
            statistics = tunnel.statistics()
        nursery.cancel_scope.cancel()
    assert store.digests == [digest.hexdigest()]
    assert (statistics.chunks_resent > 0) == (fault != "none")


async def reset_connections(network: Network, chance: random.Random, seconds: float) -> None:
    """Break all connections again and again, mostly before a handshake over the new ones can end."""
    with trio.move_on_after(seconds):
        while True:
            await trio.sleep(chance.uniform(0.005, 0.06))
            network.memory.reset()


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 6))])
async def test_a_tunnel_resumes_after_connections_were_reset_for_as_long_as_the_config_says_that_nodes_wait(
    autojump_clock: MockClock, seed: int
) -> None:
    """Any number of attempts to connect may fail meanwhile: neither end gives the other up before membership does."""
    config = Config(suspicion_multiplier=20.0, refused_grace=20.0)  # longer than all resets together
    chance = random.Random(seed)
    store = Store()
    async with (
        iris.testing.open_network(seed=seed, latency=(0.01, 0.02)) as network,
        network.open_node("store", config=config) as member,
        member.join("store", store.service),
        network.open_node("shop", config=config) as shop,
    ):
        await shop.wait_for("store")
        digest = hashlib.sha256()
        async with shop.open_tunnel("store", operation="put") as tunnel, trio.open_nursery() as nursery:
            for number in range(60):
                if number % 20 == 10:
                    nursery.start_soon(reset_connections, network, chance, 6.0)
                payload = chance.randbytes(100_000)
                digest.update(payload)
                await tunnel.send(payload)
            await tunnel.send_eof()
            assert await tunnel.receive() == digest.hexdigest()
        assert sum(node.statistics().refusals["handshake that came to nothing"] for node in (shop, member)) > 30


async def serve_until(member: iris.Node, service: iris.Service, leave: trio.Event) -> None:
    async with member.join("store", service):
        await leave.wait()


async def test_a_member_that_leaves_lets_its_tunnels_finish(autojump_clock: MockClock, network: Network) -> None:
    leave = trio.Event()
    async with (
        network.open_node("store") as member,
        network.open_node("shop") as shop,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(serve_until, member, Store().service, leave)
        await shop.wait_for("store")
        async with shop.open_tunnel("store", operation="put") as tunnel:
            await tunnel.send(b"one")
            leave.set()
            await trio.sleep(1)
            with pytest.raises((iris.NotSent, iris.NoSuchCluster)):
                await only_open(shop.open_tunnel("store", operation="put"))
            with pytest.raises(iris.RequestTimeout, match="0 of 1 members after 1 s; 1 more cannot be asked"):
                await shop.wait_for("store", timeout=1)
            await tunnel.send(b"two")
            await tunnel.send_eof()
            assert await tunnel.receive() == hashlib.sha256(b"onetwo").hexdigest()


async def test_a_member_that_leaves_does_not_wait_for_ever(autojump_clock: MockClock, network: Network) -> None:
    leave = trio.Event()
    async with (
        network.open_node("store") as member,
        network.open_node("shop") as shop,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(serve_until, member, Store().service, leave)
        await shop.wait_for("store")

        async def use() -> None:
            async with shop.open_tunnel("store", operation="ignore") as tunnel:
                leave.set()
                await tunnel.receive()

        started = trio.current_time()
        with pytest.raises(iris.TunnelBroken):
            await use()
        assert 5 <= trio.current_time() - started < 6


async def test_another_member_is_asked_when_one_is_leaving(autojump_clock: MockClock, network: Network) -> None:
    async with AsyncExitStack() as stack:
        nodes: list[OpenNode] = []
        for number in range(3):
            node = await stack.enter_async_context(network.open_parts("store", host=f"store-{number}"))
            await stack.enter_async_context(node.node.join("store", Store().service))
            nodes.append(node)
        shop = await stack.enter_async_context(network.open_node("shop"))
        await shop.wait_for("store", members=3)
        leaving = nodes[0]
        leaving.parts.patterns.serving.memberships["store"].draining = True
        for _ in range(20):
            async with shop.open_tunnel("store") as tunnel:
                assert tunnel.sender.node != leaving.node.id


async def test_key_and_prefer_choose_the_member_of_a_tunnel(network: Network, autojump_clock: MockClock) -> None:
    def named(name: str) -> iris.Service:
        service = iris.Service("store")

        @service.tunnel
        async def answer(tunnel: iris.Tunnel) -> None:
            await tunnel.send(name)

        @service.request
        async def ask(_: iris.Request) -> str:
            return name

        return service

    async with AsyncExitStack() as stack:
        members: dict[str, iris.Node] = {}
        for name in ("one", "two", "three"):
            members[name] = await stack.enter_async_context(network.open_node(name, host=name))
            await stack.enter_async_context(members[name].join("store", named(name)))
        shop = await stack.enter_async_context(network.open_node("shop", host="shop"))
        await shop.wait_for("store", members=3)

        async def chosen(**options: Any) -> Any:
            async with shop.open_tunnel("store", **options) as tunnel:
                return await tunnel.receive()

        by_key = {key: await shop.request("store", key=key) for key in map(str, range(12))}
        assert set(by_key.values()) == set(members)
        assert {key: await chosen(key=key) for key in by_key} == by_key
        for name, member in members.items():
            (listed,) = (one for one in shop.members("store") if one.node == member.id)
            assert {await chosen(prefer=one) for one in (member.id, listed) for _ in range(4)} == {name}
        with pytest.raises(iris.ConfigError, match="prefer and prefer_site exclude each other"):
            shop.open_tunnel("store", prefer=members["one"].id, prefer_site="north")
        with pytest.raises(iris.ConfigError, match="prefer is 'one': use a member"):
            shop.open_tunnel("store", prefer="one")  # type: ignore[arg-type]
        with pytest.raises(iris.ConfigError, match="key"):
            shop.open_tunnel("store", key="k" * 5000)
        gone = members.pop("one").id
        network.memory.partition(["one"], ["two", "three", "shop"])
        await trio.sleep(60)
        assert await chosen(prefer=gone) in members
        network.memory.heal()
