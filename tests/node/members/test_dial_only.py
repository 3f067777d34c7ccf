"""Nodes that can only dial out: every pattern in both directions, deaths, returns, and two of them with each other."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import cast

import pytest
import trio
from trio.testing import MockClock

import iris
import iris.testing
from iris.cluster.routes.relayed import RelayedConnection
from iris.cluster.swim import Swim
from iris.kernel.config import Config
from iris.kernel.transport.memory import MemoryOutgoing
from iris.testing import inspect
from tests.support.federations import echo
from tests.support.stages import Stage, open_stage


def direct(node: iris.Node, other: iris.Node) -> bool:
    """Return whether frames to another node go over a connection and through nobody else."""
    peer = inspect(node).peers[other.id]
    return not any(address.startswith("via://") for address in peer.addresses[:1])


@contextlib.asynccontextmanager
async def open_pair(seed: int = 0, config: Config | None = None) -> AsyncIterator[tuple[Stage, iris.Node, iris.Node]]:
    """An ordinary node, and one that can only dial out: each a member of a cluster with its name."""
    async with open_stage(seed=seed) as stage:
        office = await stage.member(echo("office"), "office", config=config)
        home = await stage.member(echo("home"), "home", config=config, dial_only=True)
        await office.wait_for("home")
        await home.wait_for("office")
        yield stage, office, home


async def test_it_listens_nowhere_and_says_so(autojump_clock: MockClock) -> None:
    async with open_pair() as (stage, office, home):
        assert home.addresses == ()
        assert stage.network.memory.find("mem://home") is None
        (member,) = office.members("home")
        assert member.node == home.id
        record = stage.parts[office.id].membership.record_of(home.id)
        assert record is not None
        assert record.addresses == (f"via://{home.id}",)


async def test_broadcasts_and_surveys_reach_it(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        heard: list[str] = []

        def listening(host: str) -> iris.Service:
            service = iris.Service("store")

            @service.broadcast
            async def note(message: iris.Message) -> None:
                heard.append(f"{host}: {message.payload}")

            @service.request
            async def reply(_: iris.Request) -> object:
                return host

            return service

        await stage.member(listening("one"), "one")
        await stage.member(listening("two"), "two", dial_only=True)
        shop = await stage.node("shop")
        await shop.wait_for("store", members=2)
        await shop.broadcast("store", "close")
        async with shop.survey("store", None) as answers:
            assert {answer.payload async for answer in answers} == {"one", "two"}
        assert sorted(heard) == ["one: close", "two: close"]


@pytest.mark.parametrize("killed", ["office", "home"])
async def test_a_killed_end_is_noticed_at_once(killed: str, autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        nodes = {
            "office": await stage.member(echo("office"), "office"),
            "home": await stage.member(echo("home"), "home", dial_only=True),
            "third": await stage.node("third"),
        }
        survivor = nodes["home" if killed == "office" else "office"]
        await survivor.wait_for(killed)
        stage.crash(killed)
        await trio.sleep(0.01)
        assert stage.parts[survivor.id].membership.is_suspected(nodes[killed].id)
        with pytest.raises((iris.NoSuchCluster, iris.MemberLost)):
            await survivor.request(killed)
        with trio.fail_after(1.0):
            while survivor.members(killed):
                await stage.parts[survivor.id].membership.wait_news()


async def test_after_a_partition_it_comes_back_by_itself(autojump_clock: MockClock) -> None:
    async with open_pair() as (stage, office, home):
        stage.network.memory.partition(["home"], ["office"])
        with trio.fail_after(30):
            while office.members("home"):
                await stage.parts[office.id].membership.wait_news()
            while home.members("office"):
                await stage.parts[home.id].membership.wait_news()
        await trio.sleep(600)
        stage.network.memory.heal()
        with trio.fail_after(10):
            await office.wait_for("home")
            await home.wait_for("office")
            for node, other in ((office, home), (home, office)):
                while stage.parts[node.id].membership.is_suspected(other.id):
                    await stage.parts[node.id].membership.wait_news()
        assert await office.request("home", 1) == 1
        assert await home.request("office", 2) == 2
        assert direct(office, home)


@pytest.mark.parametrize("broken", ["out", "back"])
async def test_one_broken_direction_ends_both_and_both_are_dialled_again(
    broken: str, autojump_clock: MockClock
) -> None:
    async with open_pair() as (stage, office, home):
        node, other = (home, office) if broken == "out" else (office, home)
        network = stage.parts[node.id].mesh.peers[other.id].link.outgoing
        assert network is not None
        cast("MemoryOutgoing", getattr(network, "_outgoing", network)).break_soon()
        await trio.sleep(1)
        assert await office.request("home", 1) == 1
        assert await home.request("office", 2) == 2
        assert direct(office, home)


async def test_sessions_are_renewed_over_the_same_connections(autojump_clock: MockClock) -> None:
    async with open_pair() as (stage, office, home):
        near, far = stage.parts[office.id].mesh, stage.parts[home.id].mesh
        ways = near.outgoing_to(home.id), far.outgoing_to(office.id)
        sessions = near.peers[home.id].session, far.peers[office.id].session
        await trio.sleep(400)
        assert (near.outgoing_to(home.id), far.outgoing_to(office.id)) == ways
        assert near.peers[home.id].session not in sessions
        assert await office.request("home", 1) == 1
        assert await home.request("office", 2) == 2


@pytest.mark.parametrize("seed", range(3))
async def test_two_of_them_speak_through_a_node_that_both_are_linked_to(seed: int, autojump_clock: MockClock) -> None:
    async with open_stage(seed=seed) as stage:
        office = await stage.node("office")
        one = await stage.member(echo("one"), "one", dial_only=True)
        two = await stage.member(echo("two"), "two", dial_only=True)
        await one.wait_for("two")
        await two.wait_for("one")
        assert not direct(one, two)
        assert direct(one, office)
        for node, cluster in ((one, "two"), (two, "one")):
            assert await node.request(cluster, b"hello") == b"hello"
            assert await node.request(cluster, bytes(2**20)) == bytes(2**20)
        async with one.subscribe("news") as events, two.open_tunnel("one") as tunnel:
            await two.publish("news", "first")
            assert (await anext(events)).payload == "first"
            await tunnel.send(b"there")
            assert await tunnel.receive() == b"there"


async def test_when_the_helper_is_gone_another_one_takes_over(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        helpers = {host: await stage.node(host) for host in ("left", "right")}
        one = await stage.member(echo("one"), "one", dial_only=True)
        two = await stage.member(echo("two"), "two", dial_only=True)
        await one.wait_for("two")
        await two.wait_for("one")
        way = stage.parts[one.id].mesh.outgoing_to(two.id)
        assert isinstance(way, RelayedConnection)
        used = way.helper
        stage.crash(next(host for host, node in helpers.items() if node.id == used))
        with trio.fail_after(3):
            assert await one.request("two", 1, timeout=3, options=iris.RequestOptions(idempotent=True)) == 1
            assert await two.request("one", 2, timeout=3, options=iris.RequestOptions(idempotent=True)) == 2
        await trio.sleep(30)
        assert [member.node for member in one.members("two")] == [two.id]


async def test_nobody_is_suspected_while_nothing_happens(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        nodes = [await stage.node(f"n{number}", dial_only=number % 2 == 1) for number in range(4)]
        await trio.sleep(120)
        for node in nodes:
            machine = stage.parts[node.id].view
            assert isinstance(machine, Swim)
            swim = machine.statistics()
            assert (swim.alive, swim.suspect, swim.deaths, swim.refutations) == (3, 0, 0, 0)


async def test_farewells_through_others_are_heard_at_once(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        await stage.node("office")
        one = await stage.node("one", dial_only=True)
        async with stage.network.open_node("two", host="two", dial_only=True) as two:
            assert not direct(one, two)
            left = trio.current_time()
        assert trio.current_time() - left < 0.1
        assert two.id not in inspect(one).peers


async def test_without_a_node_between_them_two_are_told_why(
    autojump_clock: MockClock,
) -> None:
    async with (
        iris.testing.open_network() as network,
        network.open_parts("one", dial_only=True) as (_, one_parts),
        network.open_node("two", dial_only=True) as two,
    ):
        with pytest.raises(iris.NotSent, match="only dials out, as this one does, and no node is known that both are"):
            await one_parts.mesh.connect([f"via://{two.id}"], expected=two.id)


async def test_only_a_node_with_a_credential_may_be_one() -> None:
    with pytest.raises(iris.ConfigError, match="dial_only needs a credential"):
        async with iris.open_node(dial_only=True):
            pass


async def test_it_may_not_listen() -> None:
    async with iris.testing.open_network() as network:
        credential = network.credential("home")
    with pytest.raises(iris.ConfigError, match=r"cannot listen at tcp://127\.0\.0\.1:1: give listen or dial_only"):
        async with iris.open_node(credential=credential, dial_only=True, listen=["tcp://127.0.0.1:1"]):
            pass
