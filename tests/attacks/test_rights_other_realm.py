"""Another realm at a bridge of ours: it has what one of our clusters has, however many clusters its owner makes up."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import iris
from iris.kernel.config import Config
from iris.kernel.errors import IrisError
from iris.kernel.names import NodeId
from iris.patterns.messages import Sender
from iris.spark_bridge.client.client import BridgeClient
from iris.spark_bridge.events.gaps import MAX_OF_CLUSTER, Gap, GapBook
from iris.spark_bridge.server import leases
from iris.spark_bridge.server.bridge import open_bridge
from iris.spark_bridge.server.member import BridgeMember
from iris.testing import open_network
from tests.support.arrivals import fake_event
from tests.support.two_realms import Realms, open_realms


@asynccontextmanager
async def open_bridge_of_theirs(
    directory: Path, *callers: str, **options: Any
) -> AsyncIterator[tuple[Realms, BridgeMember, dict[str, iris.Node]]]:
    """A bridge of the realm that calls ours ``partner``, and nodes of several clusters of ours."""
    async with open_realms() as realms:
        realms.introduce(topics=("jobs.>",), import_topics=("jobs.>",))
        await realms.link()
        node = await realms.theirs.node("eu", "bridge", **options)
        bridge = await realms.theirs.enter(open_bridge(node, topics=["jobs.>"], directory=directory))
        nodes: dict[str, iris.Node] = {}
        for name in callers:
            nodes[name] = await realms.ours.node("eu", name)
            await nodes[name].wait_for("acme/bridge", timeout=30)
        yield realms, bridge, nodes


async def count(calls: Any) -> int:
    """Return how many of some calls are answered; the others are one too many."""
    granted = 0
    for call in calls:
        try:
            await call
            granted += 1
        except iris.RemoteError as error:
            if error.code not in ("too_many_leases", "QuotaExceeded"):
                raise
    return granted


@pytest.mark.long
async def test_clusters_of_one_realm_have_together_the_groups_that_one_cluster_has(tmp_path: Path) -> None:
    config = Config(bridge_groups=16, bridge_groups_per_owner=4)
    names = [f"many-{number}" for number in range(4)]
    async with open_bridge_of_theirs(tmp_path, *names, config=config) as (realms, bridge, nodes):
        granted = await count(
            node.request("acme/bridge", {"group": f"{name}-{number}", "start": {}}, operation="pin")
            for name, node in nodes.items()
            for number in range(4)
        )
        assert granted == 4
        assert len(bridge.store.owners.of_kind("group")) == 4
        desk = await realms.theirs.node("eu", "desk")
        assert (
            await count(
                desk.request("bridge", {"group": f"desk-{number}", "start": {}}, operation="pin") for number in range(4)
            )
            == 4
        )


@pytest.mark.long
async def test_clusters_of_one_realm_have_together_the_leases_that_one_cluster_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "_MOST_OF_CLUSTER", 4)
    names = [f"many-{number}" for number in range(3)]

    def lease(name: str, number: int) -> dict[str, Any]:
        cluster = f"partner/{name}"
        return {"name": f"l-{number}", "cluster": cluster, "holder": secrets.token_bytes(16), "ttl": 600.0, "wait": 0.0}

    async with open_bridge_of_theirs(tmp_path, *names) as (_, _, nodes):
        granted = await count(
            node.request("acme/bridge", lease(name, number), operation="lease")
            for name, node in nodes.items()
            for number in range(4)
        )
        assert granted == 4


@pytest.mark.long
async def test_another_realm_calls_no_operation_of_those_who_own_the_bridge(tmp_path: Path) -> None:
    """A cluster of theirs that has the bridge's name is another one."""
    async with open_bridge_of_theirs(tmp_path, "bridge") as (_, bridge, nodes):
        calls: tuple[tuple[str, dict[str, Any]], ...] = (
            ("drop", {"group": "g"}),
            ("transfer", {"group": "g", "to": "partner/bridge"}),
            ("trim", {"shard": next(iter(bridge.states)), "before": 0}),
            ("lease", {"cluster": "bridge", "name": "x", "holder": bytes(16), "ttl": 1.0, "wait": 0.0}),
            ("commit", {"query": "q", "batch": 1, "parts": []}),
        )
        for operation, payload in calls:
            with pytest.raises(IrisError) as refused:
                await nodes["bridge"].request("acme/bridge", payload, operation=operation)
            assert getattr(refused.value, "code", "NotAllowed") in ("NotAllowed", "not_allowed"), (operation, refused)


async def test_what_a_publisher_of_another_realm_skips_is_told_to_readers(tmp_path: Path) -> None:
    sender = Sender("acme/shop", NodeId("cd" * 16))
    async with (
        open_network() as network,
        network.open_node("bridge") as node,
        open_bridge(node, topics=["a.b"], directory=tmp_path) as bridge,
        network.open_node("reader") as reader,
    ):
        for sequence, first in ((0, 1), (0, 5)):
            run = fake_event(b"x", sequence=sequence, publisher="cd" * 16, sender=sender, first=first)
            await bridge.append([run])
        await node.publish_confirmed("a.b", b"y")
        (gap,) = bridge.store.reader.gaps()
        assert (gap.cluster, gap.count) == ("acme/shop", 3)
        client = BridgeClient(reader, "bridge", patience=5)
        (shard,) = bridge.states.values()
        told = [found async for found in client.gaps("bridge", shard.id, 0, shard.next)]
        assert told == [gap]


def test_gaps_of_one_realm_are_bounded_however_many_clusters_it_names() -> None:
    book = GapBook()
    for number in range(MAX_OF_CLUSTER + 100):
        gap = Gap(
            shard=0,
            offset=number,
            upto=number,
            topic="a.b",
            cluster=f"acme/c-{number}",
            publisher="ab" * 16,
            count=1,
            timestamp=number,
        )
        book.note(gap)
    assert len(book) == MAX_OF_CLUSTER
