"""Memory that another realm, or one credential, holds here: bounded by owner, however many nodes come."""

from __future__ import annotations

import contextlib

import pytest
import trio
from trio.testing import MockClock

import iris
from iris.kernel.config import MIB, Config
from iris.kernel.errors import RemoteProtocolError
from iris.kernel.names import NodeId
from iris.kernel.wire import kinds
from iris.patterns.pubsub.interest import Terms
from iris.patterns.pubsub.interest.table import InterestTable
from iris.patterns.pubsub.sealed import receiver
from tests.support.federations import echo
from tests.support.two_realms import Realms, open_realms

REALM, OTHER = "0a" * 16, "0b" * 16


def node(number: int) -> NodeId:
    return NodeId(f"{number:032x}")


def patterns(begin: int, count: int) -> kinds.Interest:
    return kinds.Interest(
        1, False, tuple(Terms(f"topic.{n}", None, durable=False) for n in range(begin, begin + count)), ()
    )


def test_all_nodes_of_another_realm_subscribe_to_what_one_of_this_realm_may() -> None:
    table, refused = InterestTable(MIB), 0
    for number in range(30):
        for begin in range(0, 200, 20):
            try:
                table.receive_untrusted(node(number), patterns(begin, 20), realm_id=REALM)
            except RemoteProtocolError as error:
                refused += "the nodes of its realm have" in str(error)
    assert refused > 100
    assert sum(len(table.terms_of(node(number))) for number in range(30)) * 600 < MIB
    table.receive_untrusted(node(900), patterns(0, 100), realm_id=OTHER)
    table.receive_untrusted(node(901), patterns(0, 1_000))
    for number in range(30):
        table.forget(node(number))
    for _ in range(30):
        table.receive_untrusted(node(902), patterns(0, 100), realm_id=REALM)
        table.receive_untrusted(node(902), kinds.Interest(2, False, (), patterns(0, 100).added), realm_id=REALM)


async def callers(realms: Realms, count: int) -> list[iris.Node]:
    return [await realms.ours.node("eu", f"caller{number}") for number in range(count)]


async def test_sender_keys_of_one_realm_are_bounded_for_all_its_nodes(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver, "MAX_KEYS_OF_OWNER", 50)
    async with open_realms() as realms:
        realms.introduce()
        await realms.link()
        store = await realms.theirs.member("eu", echo("store"))
        nodes = await callers(realms, 3)
        for caller in nodes:
            await caller.wait_for("acme/store")
            assert await caller.request("acme/store", 1) == 1
            link = caller._mesh.peers[NodeId(store.id)].link
            for number in range(1, 41):
                link.post(kinds.SenderKey(number, 1, bytes(31) + bytes((number,))), 64)
            await caller._mesh.barrier(NodeId(store.id))
        heard = store._parts.pubsub.sealed_receiver
        assert heard is not None
        held = {name: len(known.keys) for name, known in heard._publishers.items()}
        assert sum(held.values()) == 50
        assert held[NodeId(nodes[2].id)] == 40, "the oldest go first"
        for caller in nodes:
            store._mesh.drop(NodeId(caller.id), "enough")
        await trio.lowlevel.checkpoint()
        assert not heard._kept


async def test_nodes_of_another_realm_are_linked_up_to_a_bound_and_others_go_on(autojump_clock: MockClock) -> None:
    async with open_realms() as realms:
        realms.introduce()
        await realms.link()
        store = await realms.theirs.member("eu", echo("store"), config=Config(clients_per_cluster_key=2))
        shop = await realms.theirs.node("eu", "shop")
        answered = 0
        for caller in await callers(realms, 4):
            await caller.wait_for("acme/store")
            try:
                answered += await caller.request("acme/store", 1, timeout=3)
            except iris.IrisError:
                continue
        assert answered == 2
        await shop.wait_for("store")
        assert await shop.request("store", 2) == 2
        assert sum(peer.other_realm for peer in store._mesh.peers.values()) == 2


async def test_handshakes_of_another_realm_have_a_rate_of_their_own_and_those_of_this_realm_go_on(
    autojump_clock: MockClock,
) -> None:
    async with open_realms() as realms:
        realms.introduce()
        await realms.link()
        await realms.theirs.gateway("us", to=["acme-eu-gateway"])
        config = Config(handshake_rate=0.01, handshake_burst=3)
        store = await realms.theirs.member("eu", echo("store"), config=config)
        shops = [await realms.theirs.node("us", f"shop{number}") for number in range(5)]
        answered = 0
        for caller in await callers(realms, 6):
            await caller.wait_for("acme/store")
            with contextlib.suppress(iris.IrisError):
                answered += await caller.request("acme/store", 1, timeout=2)
        assert 1 <= answered <= 3
        for shop in shops:
            await shop.wait_for("store")
            assert await shop.request("store", 2, timeout=2) == 2
        assert sum(peer.other_realm for peer in store._mesh.peers.values()) == answered
