"""The cost of a neighbour's change, or of its small frame, does not depend on what else there is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
import trio
from msgspec import structs
from trio.testing import MockClock

from iris.cluster.directory.messages import CLUSTER, Export, split_exports
from iris.cluster.routes.gateway import BUSY, NO_ROUTE, READY
from iris.kernel.names import NodeId
from iris.kernel.wire import kinds
from iris.patterns.pubsub.interest import Terms
from iris.patterns.pubsub.interest.durable_names import DurableRecord
from iris.patterns.pubsub.publish.acks import Unconfirmed
from iris.testing import open_network
from tests.support.federations import echo, open_federation
from tests.support.transports import ignore
from tests.support.work import steps_run

FEW, MANY = 20, 1_000


def interest(added: Iterable[Terms], removed: Iterable[Terms] = ()) -> kinds.Interest:
    return kinds.Interest(1, False, tuple(added), tuple(removed))


def plain(pattern: str, **options: Any) -> Terms:
    return Terms(pattern, None, durable=False, **options)


def cost(call: Callable[[], object]) -> int:
    call()
    return steps_run(call)


async def test_a_subscription_changes_at_a_cost_that_no_durable_names_of_its_node_raise(
    autojump_clock: MockClock,
) -> None:
    """A node signs many names that it does not hold, has many patterns, and changes one of these."""
    costs: list[int] = []
    async with (
        open_network() as network,
        network.open_parts("shop") as (_, shop_parts),
        network.open_node("ear") as ear,
    ):
        await shop_parts.mesh.barrier(NodeId(ear.id))
        pubsub, peer = shop_parts.patterns.pubsub, shop_parts.mesh.peers[NodeId(ear.id)]
        receive_interest = shop_parts.mesh.receivers.own[kinds.Interest]
        names = pubsub.durable.names
        for count in (FEW, MANY):
            for number in range(count):
                record = DurableRecord(
                    name=f"n{number}", version=1, site="", patterns=(f"none.{number}",),
                    group=None, share=(), identity=peer.identity, signed=b"x",
                )  # fmt: skip
                names.put(record)
            receive_interest(peer, interest(plain(f"t.{number}") for number in range(count)))

            def change() -> None:
                receive_interest(peer, interest([plain("more")]))
                receive_interest(peer, interest((), [plain("more")]))

            costs.append(cost(change))
    assert costs[1] < costs[0] + 2 * FEW


@pytest.mark.parametrize("durable", [False, True])
async def test_a_subscription_changes_at_a_cost_that_no_events_raise_that_wait_for_somebody_else(
    autojump_clock: MockClock, durable: bool
) -> None:
    costs: list[int] = []
    async with (
        open_network() as network,
        network.open_parts("shop") as (_, shop_parts),
        network.open_node("ear") as ear,
    ):
        await shop_parts.mesh.barrier(NodeId(ear.id))
        pubsub, peer = shop_parts.patterns.pubsub, shop_parts.mesh.peers[NodeId(ear.id)]
        receive_interest = shop_parts.mesh.receivers.own[kinds.Interest]
        away = DurableRecord(
            name="away", version=1, site="", patterns=("orders.>",),
            group=None, share=(), identity=peer.identity, signed=b"x",
        )  # fmt: skip
        pubsub.durable.names.put(away)
        for count in (FEW, MANY):
            for _ in range(count):
                pubsub.confirming.post(Unconfirmed("orders.new", (b"x",), None, None, 1))

            def change() -> None:
                receive_interest(peer, interest([Terms("more", None, durable=durable)]))
                receive_interest(peer, interest((), [Terms("more", None, durable=durable)]))

            costs.append(cost(change))
    assert costs[1] < costs[0] + 2 * FEW


@pytest.mark.parametrize("reason", [BUSY, READY, NO_ROUTE])
async def test_what_a_gateway_says_of_a_way_costs_the_same_however_many_there_are(
    autojump_clock: MockClock, reason: int
) -> None:
    costs: list[int] = []
    async with open_federation() as federation:
        shop = await federation.two_sites(echo("store"))
        assert await shop.request("store", 1) == 1
        sites = federation.parts[shop.id].sites
        assert sites is not None
        for count in (FEW, MANY):
            ways = [await sites._routes.dial(f"site://eu/{number:032x}", ignore) for number in range(1, count)]
            costs.append(cost(partial(sites.refused, "eu", NodeId(f"{0xFFFF:032x}"), reason)))
            for way in ways:
                way.close()
        assert await shop.request("store", 2) == 2
    assert costs[0] == costs[1]


async def test_a_member_that_comes_and_goes_costs_the_same_however_many_clusters_there_are(
    autojump_clock: MockClock,
) -> None:
    costs: list[list[int]] = []
    async with (
        open_network() as network,
        network.open_parts("shop") as (shop, shop_parts),
        network.open_node("store") as store,
        store.join("store", echo("store")),
    ):
        await shop.wait_for("store")
        membership = shop_parts.membership
        record = shop_parts.view.record(NodeId(store.id))
        assert record is not None
        for count in (FEW, MANY):
            for number in range(count):
                membership._enter(NodeId(f"{number + 1:032x}"), [f"c{number}"], "", 0)

            def change(name: str) -> None:
                entries = tuple(structs.replace(entry, name=name) for entry in record.clusters)
                membership._records[record.node] = structs.replace(record, clusters=entries)
                membership._place(record.node)

            def flap() -> None:
                change("other")
                change("store")

            costs.append([cost(flap), cost(partial(membership._remove, record.node))])
            change("store")
    assert costs[0] == costs[1]


async def test_a_handshake_costs_the_same_however_many_sessions_there_are(autojump_clock: MockClock) -> None:
    costs: list[int] = []
    async with (
        open_network() as network,
        network.open_parts("shop") as (_, shop_parts),
        network.open_node("store") as store,
    ):
        await shop_parts.mesh.barrier(NodeId(store.id))
        mesh = shop_parts.mesh
        peer = mesh.peers[NodeId(store.id)]
        sessions_of = mesh._sessions_of
        (entry,) = sessions_of.of(peer)
        for count in (1, 10):
            async with contextlib.AsyncExitStack() as stack:
                for number in range(count):
                    other = await stack.enter_async_context(network.open_node(f"n{count}-{number}"))
                    await mesh.barrier(NodeId(other.id))
                assert mesh.statistics().sessions > count
                costs.append(cost(lambda: (entry.begin(sessions_of.of(peer)), entry.use(sessions_of.of(peer)))))
        await trio.sleep(5)
        assert mesh.statistics().sessions == sum(map(mesh.sessions_of, mesh.peers.values()))
        assert all(map(mesh.sessions_of, mesh.peers.values()))
    assert costs[0] == costs[1]


async def test_an_export_that_changes_costs_a_node_the_same_however_many_nodes_of_that_site_are_linked(
    autojump_clock: MockClock,
) -> None:
    costs: list[int] = []
    async with open_federation() as federation:
        shop = await federation.two_sites(echo("store"))
        assert await shop.request("store", 1) == 1
        sites, mesh = federation.parts[shop.id].sites, federation.parts[shop.id].mesh
        assert sites is not None
        directory = sites.directory
        (origin,) = directory.gateways("eu")
        (neighbour,) = directory.neighbours
        known = directory._neighbours[neighbour].exports[origin]
        store = mesh.peers[NodeId(federation.nodes["eu-store"].id)]
        for count in (FEW, MANY):
            others = [NodeId(f"{number:032x}") for number in range(1, count)]
            for other in others:
                mesh._peers._peers[other] = store
                sites._clusters[other] = {"other"}
            change, spent = (Export(CLUSTER, "more", NodeId(f"{0xFFFF:032x}")),), 0
            for number, more in enumerate((True, False, True)):
                base = known.version
                for part in split_exports(origin, base, base + 1, change if more else (), () if more else change):
                    directory.receive_exports_untrusted(neighbour, part.message(), 1e6 + number)
                spent = steps_run(sites._follow)
            costs.append(spent)
            for other in others:
                del mesh._peers._peers[other], sites._clusters[other]
            for part in split_exports(origin, known.version, known.version + 1, (), change):
                directory.receive_exports_untrusted(neighbour, part.message(), 2e6)
            sites._follow()
        assert await shop.request("store", 2) == 2
    assert costs[0] == costs[1]
