"""A realm of more nodes than keep a link to everybody: whoever is asked, told or heard is linked when it is needed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

import iris
from iris.node.operators import order_drain
from iris.node.realm import RealmSurvey
from iris.testing import Network, open_network

NODES = 24
FEW = 13
"""Nodes of a realm that is just large enough."""


def service_of(number: int) -> iris.Service:
    service = iris.Service("numbers")

    @service.request
    async def answer(request: iris.Request) -> int:
        return number

    return service


@asynccontextmanager
async def open_realm(network: Network, count: int = NODES, members: int = NODES) -> AsyncIterator[list[iris.Node]]:
    """Open nodes that know the first one; the last ``members`` of them serve a cluster."""
    async with AsyncExitStack() as stack:
        nodes: list[iris.Node] = []
        for number in range(count):
            seeds = ["host-1"] if nodes else []
            node = await stack.enter_async_context(network.open_node("numbers", seeds=seeds))
            nodes.append(node)
            if number >= count - members:
                await stack.enter_async_context(node.join("numbers", service_of(number)))
        for node in nodes:
            await node.wait_for("numbers", members=members, timeout=10.0)
        yield nodes


def links_of(node: iris.Node) -> int:
    return len(node.statistics().links)


async def test_everybody_sees_everybody_over_few_links(autojump_clock: MockClock) -> None:
    async with open_network() as network, open_realm(network) as nodes:
        assert {len(node.members("numbers")) for node in nodes} == {NODES}
        linked = sorted(map(links_of, nodes))
        assert linked[0] >= 8
        assert linked[NODES // 2] < NODES - 4


async def test_a_small_realm_links_everybody(autojump_clock: MockClock) -> None:
    async with open_network() as network, open_realm(network, 9, 9) as nodes:
        assert [links_of(node) for node in nodes] == [8] * 9


async def test_a_cluster_that_was_never_met_is_linked_by_the_first_request(autojump_clock: MockClock) -> None:
    async with open_network() as network, open_realm(network, members=1) as nodes:
        for node in nodes[1:-1]:
            assert await node.request("numbers", b"", timeout=1.0) == NODES - 1


async def test_a_key_leads_every_caller_to_the_same_member(autojump_clock: MockClock) -> None:
    async with open_network() as network, open_realm(network) as nodes:
        for key in ("one", "two"):
            answers = {await node.request("numbers", b"", key=key, timeout=1.0) for node in nodes}
            assert len(answers) == 1


async def test_the_preferred_member_is_linked(autojump_clock: MockClock) -> None:
    async with open_network() as network, open_realm(network) as nodes:
        for number, wanted in enumerate(nodes):
            options = iris.RequestOptions(prefer=wanted.id)
            assert await nodes[5].request("numbers", b"", timeout=1.0, options=options) == number


async def test_an_operator_hears_every_node_and_keeps_the_links_as_long_as_it_asks(autojump_clock: MockClock) -> None:
    async with open_network() as network, open_realm(network, FEW, 5) as nodes:
        survey = RealmSurvey(nodes[0])
        for _ in range(4):
            view = await survey.collect()
            assert (len(view.nodes), view.silent) == (FEW - 1, ())
            await trio.sleep(20)


async def test_an_operator_has_any_member_take_no_new_work(autojump_clock: MockClock) -> None:
    async with open_network() as network, open_realm(network, FEW, FEW) as nodes:
        *others, operator = nodes
        for node in others:
            await order_drain(operator, node.id, "numbers", draining=True)
        assert {one.status for one in operator.members("numbers") if one.node != operator.id} == {"draining"}


async def test_a_survey_hears_every_member(autojump_clock: MockClock) -> None:
    async with open_network() as network, open_realm(network) as nodes:
        async with nodes[7].survey("numbers", b"", timeout=2.0) as answers:
            heard = {answer.payload async for answer in answers}
        assert heard == set(range(NODES))
        assert not answers.missing


async def test_a_broadcast_reaches_every_member(autojump_clock: MockClock) -> None:
    heard: list[int] = []
    all_have_heard = trio.Event()

    def listener(number: int) -> iris.Service:
        service = iris.Service("news")

        @service.broadcast
        async def hear(broadcast: iris.Request) -> None:
            heard.append(number)
            if len(heard) == NODES:
                all_have_heard.set()

        return service

    async with open_network() as network, open_realm(network) as nodes, AsyncExitStack() as stack:
        for number, node in enumerate(nodes):
            await stack.enter_async_context(node.join("news", listener(number)))
        await nodes[3].wait_for("news", members=NODES, timeout=10.0)
        await nodes[3].broadcast("news", b"")
        with trio.fail_after(10.0):
            await all_have_heard.wait()
        assert sorted(heard) == list(range(NODES))


@pytest.mark.parametrize("first", ["subscriber", "publisher"])
async def test_a_first_event_reaches_all_who_subscribed_before(autojump_clock: MockClock, first: str) -> None:
    async with open_network() as network, open_realm(network) as nodes, AsyncExitStack() as stack:
        if first == "publisher":
            await nodes[9].publish("weather", b"nobody hears this")
        subscriptions = [await stack.enter_async_context(node.subscribe("weather")) for node in nodes[::3]]
        for number in range(3):
            await nodes[9].publish("weather", number)
        for subscription in subscriptions:
            with trio.fail_after(5.0):
                assert [(await anext(subscription)).payload for _ in range(3)] == [0, 1, 2]
            assert not subscription.statistics().missed


async def test_a_newcomer_hears_who_publishes_and_is_heard(autojump_clock: MockClock) -> None:
    async with open_network() as network, open_realm(network) as nodes:
        await nodes[2].publish("weather", b"")
        async with (
            network.open_node("numbers", seeds=["host-1"]) as newcomer,
            newcomer.subscribe("weather") as here,
            nodes[20].subscribe("news") as there,
        ):
            await nodes[2].publish("weather", b"rain")
            await newcomer.publish("news", b"new")
            with trio.fail_after(5.0):
                assert (await anext(here)).payload == b"rain"
                assert (await anext(there)).payload == b"new"


async def test_partners_that_die_are_replaced(autojump_clock: MockClock) -> None:
    async with open_network() as network, open_realm(network) as nodes:
        async with AsyncExitStack() as stack:
            for _ in range(10):
                await stack.enter_async_context(network.open_node("numbers", seeds=["host-1"]))
            await trio.sleep(2.0)
        await trio.sleep(5.0)
        assert min(map(links_of, nodes)) >= 8
        assert {len(node.members("numbers")) for node in nodes} == {NODES}


async def test_links_that_nobody_uses_end_and_are_made_again(autojump_clock: MockClock) -> None:
    async with open_network() as network, open_realm(network) as nodes:
        seed = nodes[0]
        async with nodes[7].survey("numbers", b"", timeout=2.0) as answers:
            assert len([answer async for answer in answers]) == NODES
        assert links_of(nodes[7]) == NODES - 1
        assert links_of(seed) == NODES - 1
        await trio.sleep(90.0)
        assert links_of(nodes[7]) < NODES - 4
        assert links_of(seed) < NODES - 4
        assert sum(node.statistics().handshakes for node in nodes) < NODES * NODES
        for _ in range(10):
            await trio.sleep(20.0)
            assert links_of(nodes[7]) < NODES - 4
            assert min(map(links_of, nodes)) >= 8
        async with nodes[7].survey("numbers", b"", timeout=2.0) as answers:
            assert len([answer async for answer in answers]) == NODES


async def test_links_that_are_used_or_held_stay(autojump_clock: MockClock) -> None:
    service = iris.Service("slow")

    @service.request
    async def answer(request: iris.Request) -> str:
        await trio.sleep(200.0)
        return "done"

    @service.tunnel
    async def echo(tunnel: iris.Tunnel) -> None:
        async for message in tunnel:
            await tunnel.send(message)

    async with open_network() as network, open_realm(network) as nodes, nodes[20].join("slow", service):
        for node in nodes[3], nodes[5]:
            await node.wait_for("slow", members=1, timeout=5.0)
        async with nodes[3].open_tunnel("slow") as tunnel, trio.open_nursery() as nursery:

            async def ask() -> None:
                assert await nodes[5].request("slow", b"", timeout=300.0) == "done"

            nursery.start_soon(ask)
            await trio.sleep(190.0)
            await tunnel.send("still here")
            assert await tunnel.receive() == "still here"


async def test_no_request_fails_while_links_end(autojump_clock: MockClock) -> None:
    """Each caller asks now and then, in the very moments in which links are found idle, too."""
    async with open_network() as network, open_realm(network, members=6) as nodes, trio.open_nursery() as nursery:

        async def ask(node: iris.Node, pause: float) -> None:
            for _ in range(12):
                await node.request("numbers", b"", timeout=2.0)
                await trio.sleep(pause)

        for number, node in enumerate(nodes):
            nursery.start_soon(ask, node, 29.9 + 0.05 * number)


async def test_each_half_of_a_parted_realm_knows_soon_that_the_other_is_gone(autojump_clock: MockClock) -> None:
    """Also those whom nobody of this half has for a partner."""
    async with open_network(seed=1) as network, open_realm(network, 16, 16) as nodes:
        hosts = [f"host-{number}" for number in range(1, 17)]
        network.memory.partition(hosts[:8], hosts[8:])
        await trio.sleep(20.0)
        assert {len(node.members("numbers")) for node in nodes} == {8}
        network.memory.heal()
        await trio.sleep(5.0)
        assert {len(node.members("numbers")) for node in nodes} == {16}


async def test_nothing_is_kept_of_names_that_nobody_serves(autojump_clock: MockClock) -> None:
    async with open_network() as network, open_realm(network, 3, 3) as nodes:
        for number in range(50):
            with pytest.raises(iris.NoSuchCluster):
                await nodes[0].request(f"nobody{number}", b"", timeout=0.1)
        assert repr(nodes[0]._reach) == "<MemberReach: 0 clusters>"
        await nodes[0].request("numbers", b"", timeout=1.0)
        assert repr(nodes[0]._reach) == "<MemberReach: 1 clusters>"


def never_met(nodes: list[iris.Node], member: iris.Node) -> list[iris.Node]:
    return [node for node in nodes if node is not member and member.id not in node.statistics().links]


async def test_who_never_met_the_only_member_waits_for_the_one_that_takes_its_place(autojump_clock: MockClock) -> None:
    async with open_network() as network, open_realm(network, FEW, 0) as nodes:
        async with network.open_node("numbers", seeds=["host-1"]) as first, first.join("numbers", service_of(1)):
            await nodes[0].wait_for("numbers")
            await trio.sleep(2.0)
            callers = never_met(nodes, first)
        assert callers
        await trio.sleep(0.5)
        replies: list[object] = []
        all_have_replies = trio.Event()

        async def ask(node: iris.Node) -> None:
            options = iris.RequestOptions(idempotent=True)
            replies.append(await node.request("numbers", b"", timeout=8.0, options=options))
            if len(replies) == len(callers):
                all_have_replies.set()

        async with trio.open_nursery() as nursery:
            for node in callers:
                nursery.start_soon(ask, node)
            await trio.sleep(1.0)
            async with network.open_node("numbers", seeds=["host-1"]) as second, second.join("numbers", service_of(2)):
                with trio.fail_after(3.0):
                    await all_have_replies.wait()
        assert replies == [2] * len(callers)


@pytest.mark.parametrize("what", ["request", "tunnel"])
async def test_what_members_refuse_goes_to_others_that_are_not_linked_yet(autojump_clock: MockClock, what: str) -> None:
    def service_with_tunnel(number: int) -> iris.Service:
        service = service_of(number)

        @service.tunnel
        async def say(tunnel: iris.Tunnel) -> None:
            await tunnel.send(number)

        return service

    async def ask(node: iris.Node) -> object:
        if what == "request":
            return await node.request("numbers", b"", timeout=5.0)
        async with node.open_tunnel("numbers", timeout=5.0) as tunnel:
            return await tunnel.receive()

    async with open_network() as network, open_realm(network, members=0) as nodes, AsyncExitStack() as stack:
        for number, node in enumerate(nodes[:4]):
            await stack.enter_async_context(node.join("numbers", service_with_tunnel(number)))
        await trio.sleep(3.0)
        for node in nodes[:3]:  # these refuse, and have told nobody yet
            node._parts.patterns.serving.memberships["numbers"].draining = True
        client = await stack.enter_async_context(network.open_node("numbers", client=True, seeds=["host-8"]))
        for node in (*nodes[4:], client):
            assert await ask(node) == 3


async def test_a_broadcast_that_waits_at_a_member_is_not_in_doubt_while_nobody_uses_the_link(
    autojump_clock: MockClock,
) -> None:
    service = iris.Service("slow")

    @service.broadcast
    async def hear(message: iris.Message) -> None:
        await trio.sleep(60.0)

    async with open_network() as network, open_realm(network, FEW, 0) as nodes, AsyncExitStack() as stack:
        for node in nodes[:3]:
            await stack.enter_async_context(node.join("slow", service))
        await trio.sleep(3.0)
        for _ in range(2):
            await nodes[9].broadcast("slow", b"")
        for _ in range(4):
            await trio.sleep(40.0)
            books = await nodes[9].books("slow", settle=0.5)
            assert not any(row.in_doubt for row in books.rows)
        assert (await nodes[9].books("slow")).received == 6


async def test_a_tree_reaches_those_that_do_not_know_yet_that_they_are_linked(autojump_clock: MockClock) -> None:
    """The last frame of a handshake may take longer than two others, over the node that hands a broadcast on."""
    config = iris.Config(relay_above=2, relay_fan_out=2)
    heard: list[object] = []

    def listener(number: int) -> iris.Service:
        service = service_of(number)

        @service.broadcast
        async def hear(message: iris.Message) -> None:
            heard.append(message.payload)

        return service

    async with open_network(seed=1, latency=(0.0005, 0.02)) as network, AsyncExitStack() as stack:
        nodes: list[iris.Node] = []
        for _ in range(16):
            seeds = ["host-1"] if nodes else []
            nodes.append(await stack.enter_async_context(network.open_node("numbers", seeds=seeds, config=config)))
        for number, node in enumerate(nodes[:12]):
            await stack.enter_async_context(node.join("numbers", listener(number)))
        await trio.sleep(5.0)
        for number, node in enumerate(nodes[12:]):
            await node.broadcast("numbers", number)
            await trio.sleep(1.0)
            assert heard == [number] * 12
            heard.clear()
