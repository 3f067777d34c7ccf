"""Rights that become less while a reader, a consumer or a worker is served: from then on it gets what it may have."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from msgspec import structs

import iris
from iris.cluster.mesh import Mesh
from iris.kernel.errors import IrisError, NotAllowed
from iris.security.identity.certificate import issue_certificate
from iris.security.identity.signing import SigningKey
from iris.spark_bridge.log import Cursor
from iris.spark_bridge.server.bridge import open_bridge
from iris.spark_bridge.server.member import BridgeMember
from iris.testing import Network, Rights, open_network

WIDE = Rights(publishes=("public.>", "secret.>"), subscribes=("public.>", "secret.>"))
NARROW = Rights(publishes=("public.>",), subscribes=("public.>",))


async def narrow(network: Network, cluster: str, mesh: Mesh, bridge: Mesh) -> None:
    """Give a node a certificate with fewer rights, and wait until the bridge has seen it."""
    held = network.credential(cluster)
    assert isinstance(held.keys, SigningKey)
    less = structs.replace(
        held,
        certificate=issue_certificate(
            network.root,
            name=cluster,
            public_key=held.keys.public,
            generation=1,
            not_before=network.wall_clock() - 300,
            not_after=network.wall_clock() + 86_400,
            rights=NARROW,
        ),
    )
    mesh.renew_identity(less.renew_identity(mesh.identity, network.wall_clock()))
    with trio.fail_after(30):
        while True:
            peer = bridge.peer(mesh.node)
            if peer is not None and not peer.may_receive("secret.a"):
                return
            await trio.sleep(0.05)


@asynccontextmanager
async def open_narrowing(
    directory: Path, cluster: str
) -> AsyncIterator[tuple[iris.Node, BridgeMember, iris.Node, Callable[[], Awaitable[None]]]]:
    """Open a bridge and a node of ``cluster`` with wide rights; what comes last makes them narrow."""
    async with open_network() as network:
        network.credential(cluster, WIDE)
        async with (
            network.open_parts("bridge") as (node, parts),
            open_bridge(node, topics=["secret.>", "public.>"], directory=directory) as member,
            network.open_parts(cluster) as (other, other_parts),
        ):
            await other.wait_for("bridge")
            yield node, member, other, partial(narrow, network, cluster, other_parts.mesh, parts.mesh)


@pytest.mark.long
async def test_a_consumer_whose_rights_become_less_gets_nothing_more_of_what_it_may_not_have(tmp_path: Path) -> None:
    async with open_narrowing(tmp_path, "reader") as (node, _, reader, narrow):
        found: list[Any] = []
        await node.publish_confirmed("secret.a", "before")
        with suppress(IrisError), trio.fail_after(60):
            async with reader.bridge().consume("secret.>", "public.>", group="g") as events:
                with trio.fail_after(20):
                    found += [event.payload for event in await anext(events)]
                await narrow()
                await node.publish_confirmed("secret.a", "after")
                await node.publish_confirmed("public.a", "after")
                with trio.move_on_after(5):
                    while True:
                        found += [event.payload for event in await anext(events)]
        assert found == ["before"]


@pytest.mark.long
async def test_a_worker_whose_rights_become_less_gets_no_more_jobs(tmp_path: Path) -> None:
    async with open_narrowing(tmp_path, "worker") as (node, _, worker, narrow):
        found: list[Any] = []
        await node.publish_confirmed("secret.jobs", "before")
        with suppress(IrisError), trio.fail_after(60):
            async with worker.bridge().queue("secret.jobs") as jobs:
                taken = jobs.receive()
                async with await anext(taken) as job:
                    found.append(job.payload)
                await narrow()
                await node.publish_confirmed("secret.jobs", "after")
                with trio.move_on_after(5):
                    async with await anext(taken) as job:
                        found.append(job.payload)
        assert found == ["before"]


@pytest.mark.long
async def test_a_worker_whose_rights_become_less_has_no_letters_put_where_it_may_not_publish(tmp_path: Path) -> None:
    async with open_narrowing(tmp_path, "worker") as (node, _, worker, narrow), node.subscribe("secret.>") as heard:
        await node.publish_confirmed("public.jobs", "x")
        with trio.move_on_after(20):
            async with worker.bridge().queue("public.jobs", dead="secret.dead", attempts=1) as jobs:
                job = await anext(jobs.receive())
                await narrow()
                async with job:
                    job.fail("no")
                await trio.sleep(2)
        assert heard.statistics().received == 0
        async with node.bridge().consume("secret.>", group="h") as events:
            with trio.move_on_after(2):
                assert await anext(events) is None, "the letter is in the log"


@pytest.mark.long
async def test_a_group_that_was_given_to_another_cluster_is_moved_by_its_former_owner_no_more(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        network.open_node("bridge") as node,
        open_bridge(node, topics=["public.>"], directory=tmp_path) as bridge,
        network.open_node("reader") as reader,
    ):
        before: list[Cursor] = []
        await node.publish_confirmed("public.a", 1)
        with pytest.raises(NotAllowed, match="cluster 'other'"), trio.fail_after(20):  # noqa: PT012
            async with reader.bridge().consume("public.>", group="g") as events:
                batch = await anext(events)
                before += bridge.store.cursors.all()
                await node.request("bridge", {"group": "g", "to": "other"}, operation="transfer")
                await batch.commit()
        (was,) = before
        assert bridge.store.cursors.all()[0].offsets == was.offsets


@pytest.mark.long
async def test_a_queue_that_was_given_to_another_cluster_has_no_jobs_for_its_former_owner(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        network.open_node("bridge") as node,
        open_bridge(node, topics=["public.>"], directory=tmp_path),
        network.open_node("former") as former,
        network.open_node("other") as other,
    ):
        with pytest.raises(NotAllowed, match="cluster 'other'"), trio.fail_after(20):  # noqa: PT012
            async with former.bridge().queue("public.jobs") as jobs:
                taken = jobs.receive()
                await node.publish_confirmed("public.jobs", 1)
                async with await anext(taken):
                    pass
                await node.request("bridge", {"group": "queue/public.jobs", "to": "other"}, operation="transfer")
                await node.publish_confirmed("public.jobs", 2)
                await anext(taken)
        with trio.fail_after(20):
            async with other.bridge().queue("public.jobs") as jobs, await anext(jobs.receive()) as job:
                assert job.payload == 2
