"""Exports of a neighbour, and their changes, cost frames and calls of others nothing."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import pytest
from msgspec import structs
from trio.testing import MockClock

from iris.cluster.directory.messages import CLUSTER, TOPIC, Export, Hop, split_exports
from iris.cluster.sites import Sites
from iris.kernel import wire
from iris.kernel.names import NodeId
from iris.kernel.wire import kinds
from iris.patterns.pubsub.interest import Terms
from tests.support.federations import echo, open_federation
from tests.support.site_worlds import export_just
from tests.support.two_realms import open_realms
from tests.support.work import lines_run

FEW, MANY = 50, 2_000
REMEMBERED = 64
"""Changes that are remembered, and looked through for each: so many lines, however much is exported."""
FIRST = bytes((wire.HANDSHAKE_INIT,)) + bytes(31)
STRANGER = bytes(15) + b"\7"


def entries_of(kind: int, count: int) -> list[Export]:
    """Return what one node exports, and as many other nodes one thing each."""
    names = [f"name{number}" for number in range(count)]
    return [Export(kind, name, NodeId(f"{100 + number % 2 * number:032x}")) for number, name in enumerate(names)]


def export(sites: Sites, neighbour: NodeId, origin: Hop, entries: Iterable[Export], version: int) -> None:
    """Have a neighbour of a node export these in place of what it did before."""
    for part in split_exports(origin, 0, version, list(entries), ()):
        sites.directory.receive_exports_untrusted(neighbour, part.message(), 1e6)
    sites.follow()


@pytest.mark.parametrize("kind", [CLUSTER, TOPIC])
@pytest.mark.parametrize("abroad", [False, True])
async def test_a_frame_costs_the_same_however_much_is_exported(
    autojump_clock: MockClock, kind: int, abroad: bool
) -> None:
    costs: list[list[int]] = []
    async with open_realms() as realms:
        realms.introduce(topics=(">",))
        if abroad:
            await realms.link()
        else:
            await realms.ours.mesh("us", "eu")
        node, gateway = realms.ours.nodes["eu-gateway"], realms.ours.gateways["eu-gateway"]
        await gateway.wait_for_site("acme/eu" if abroad else "us")
        store = await realms.ours.member("eu", echo("store"))
        between = realms.between[gateway]
        (neighbour,) = between.peers.values()
        (origin,) = realms.ours.gateway_parts[gateway].directory.origins()
        their_site, our_site = (origin.site, f"{node.realm}/eu") if abroad else (origin.site, "eu")
        for version, count in enumerate((FEW, MANY), 1_000):
            export(realms.ours.sites(node), neighbour.node, origin, entries_of(kind, count), version)
            export_just(realms.ours.gateway_parts[gateway].advertising, entries_of(kind, count))
            frames = [
                partial(
                    between.deliver,
                    neighbour,
                    kinds.Carry(9, our_site, target, their_site, STRANGER, FIRST),
                )
                for target in (bytes.fromhex(store.id), STRANGER, bytes(15) + b"d")
            ]
            frames.append(
                partial(
                    between.deliver,
                    neighbour,
                    kinds.Copy(9, their_site, STRANGER, ((our_site, STRANGER),), FIRST),
                )
            )
            for frame in frames:
                frame()
            costs.append([lines_run(frame) for frame in frames])
    assert costs[0] == costs[1]


async def test_an_export_that_changes_costs_a_local_call_nothing_and_the_node_the_change(
    autojump_clock: MockClock,
) -> None:
    costs: list[list[int]] = []
    async with open_federation() as federation:
        await federation.mesh("us", "eu")
        await federation.wait_for_sites("us", "eu")
        node, gateway = federation.nodes["eu-gateway"], federation.gateways["eu-gateway"]
        await federation.member("eu", echo("store"))
        await node.wait_for("store")
        sites = federation.sites(node)
        (neighbour,) = federation.between[gateway].peers.values()
        (origin,) = federation.gateway_parts[gateway].directory.origins()
        for version, count in ((1_000, FEW), (2_000, MANY)):
            export(sites, neighbour.node, origin, entries_of(CLUSTER, count), version)
            gateway.advertise()

            def change(base: int) -> None:
                more = Export(CLUSTER, f"more{base}", NodeId(f"{5:032x}"))
                for part in split_exports(origin, base, base + 1, [more], ()):
                    sites.directory.receive_exports_untrusted(neighbour.node, part.message(), 1e6)
                sites._follow()
                gateway.advertise()

            change(version)
            assert await node.request("store", 1) == 1
            changed = lines_run(partial(change, version + 1))
            local = [partial(sites.matters, "store"), partial(sites.lists, "store")]
            costs.append([changed, *map(lines_run, local)])
    assert costs[0][1:] == costs[1][1:]
    assert costs[1][0] < costs[0][0] + FEW


async def test_a_subscription_that_changes_costs_the_gateway_of_its_site_the_change(autojump_clock: MockClock) -> None:
    costs: list[list[int]] = []
    async with open_federation() as federation:
        await federation.mesh("us", "eu")
        await federation.wait_for_sites("us", "eu")
        gateway, shop = federation.gateways["eu-gateway"], await federation.shop("eu")
        near = federation.inside[gateway].mesh
        peer = near.peers[shop.id]

        def subscribe(added: Iterable[str], removed: Iterable[str] = ()) -> None:
            more, less = (tuple(Terms(one, None, durable=False) for one in some) for some in (added, removed))
            near.deliver(peer, kinds.Interest(1, False, more, less))
            gateway.advertise()

        for count, more_nodes in ((FEW, 0), (MANY, 5)):
            for number in range(more_nodes):
                await federation.node("eu", f"idle{number}")
            names = [f"orders.{number}" for number in range(count)]
            for begin in range(0, count, 200):
                subscribe(names[begin : begin + 200])
            subscribe(["more.0"])
            assert len(federation.gateway_parts[gateway].advertising.exported.topics) == count + 1
            changes = [partial(subscribe, ["more.1"], ["more.0"]), partial(subscribe, ["more.0"], ["more.1"])]
            costs.append(list(map(lines_run, changes)))
            subscribe((), ["more.0"])
    assert max(costs[1]) < max(costs[0]) + 2 * REMEMBERED


async def test_a_member_that_serves_something_else_costs_the_gateway_of_its_site_the_change(
    autojump_clock: MockClock,
) -> None:
    costs: list[int] = []
    async with open_federation() as federation:
        await federation.mesh("us", "eu")
        await federation.wait_for_sites("us", "eu")
        gateway = federation.gateways["eu-gateway"]
        store = await federation.member("eu", echo("store"))
        membership = federation.inside[gateway].membership
        await membership.wait_for("store", 1)
        record = membership.record_of(NodeId(store.id))
        assert record is not None
        for count in (FEW, MANY):
            others = [structs.replace(record, node=NodeId(f"{number:032x}")) for number in range(1, count)]
            for other in others:
                membership._records[other.node] = other
                gateway.place(other.node)
            gateway.advertise()
            assert len(federation.gateway_parts[gateway].advertising.exported.clusters["store"]) == count

            def change(proof: bytes) -> None:
                entries = tuple(structs.replace(entry, proof=proof) for entry in record.clusters)
                membership._records[record.node] = structs.replace(record, clusters=entries)
                gateway.place(record.node)
                gateway.advertise()

            change(b"1")
            costs.append(lines_run(partial(change, b"2")))
    assert costs[1] < costs[0] + 2 * REMEMBERED
