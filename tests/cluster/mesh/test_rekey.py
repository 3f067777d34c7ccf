"""Sessions end with the certificates that they rest on, and follow when those are renewed."""

from __future__ import annotations

import dataclasses
import random
from contextlib import AsyncExitStack

import pytest
import trio
from trio.testing import MockClock

import iris
import iris.testing
from iris.kernel.errors import AuthenticationError
from iris.security.identity.certificate import issue_certificate, issue_delegation
from iris.security.identity.credential import seal_credential
from iris.security.identity.identity import NodeIdentity
from iris.security.identity.permissions import Rights
from iris.security.identity.signing import SigningKey
from tests.support.meshes import Fleet, MeshNode, open_meshes
from tests.support.realms import DAY, WALL


def with_certificates(
    fleet: Fleet, identity: NodeIdentity, *, until: float, cluster: str | None = None, certificate_until: float = DAY
) -> NodeIdentity:
    """Return a node with another certificate and delegation; ``until`` is seconds from the beginning of the test."""
    cluster_key = SigningKey(b"k" * 32)
    name = cluster or identity.cluster
    certificate = issue_certificate(
        fleet.realm.root,
        name=name,
        public_key=cluster_key.public,
        generation=1,
        not_before=WALL - DAY,
        not_after=WALL + certificate_until,
        rights=Rights(),
    )
    delegation = issue_delegation(
        cluster_key,
        cluster=name,
        node=identity.node_id,
        static_key=identity.static.public,
        signing_key=identity.signing.public,
        not_before=WALL - DAY,
        not_after=WALL + until,
    )
    return dataclasses.replace(identity, certificate=certificate, delegation=delegation)


async def know_new_certificates(fleet: Fleet, node: MeshNode, *others: MeshNode) -> None:
    """Wait until the others have seen what ``node`` has now."""
    with trio.fail_after(10):
        while any(other.peer(node).identity != node.mesh.identity.public() for other in others):  # noqa: ASYNC110
            await trio.sleep(0.1)


@pytest.mark.parametrize("what", ["delegation", "certificate"])
async def test_a_peer_is_given_up_when_its_certificates_end(autojump_clock: MockClock, what: str) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        until, certificate_until = (50.0, DAY) if what == "delegation" else (DAY, 50.0)
        later = with_certificates(fleet, b.mesh.identity, until=until, certificate_until=certificate_until)
        b.mesh.renew_identity(later)
        await know_new_certificates(fleet, b, a)
        await trio.sleep_until(49.5)
        assert b.id in a.mesh.peers
        assert "down" not in a.log.of(b.id)
        await trio.sleep_until(51.6)
        assert b.id not in a.mesh.peers
        assert "its certificates of cluster 'b' have ended" in a.log.reasons
        await trio.sleep(20)
        assert b.id not in a.mesh.peers, "and it does not come back"
        assert a.mesh.statistics().sessions == 0
        with pytest.raises(AuthenticationError):
            await b.mesh.connect([a.url])


@pytest.mark.parametrize("before", [40.0, 10.0, 2.5])
async def test_a_peer_that_renews_its_certificates_in_time_is_not_lost(
    autojump_clock: MockClock, before: float
) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        first = with_certificates(fleet, b.mesh.identity, until=100.0)
        b.mesh.renew_identity(first)
        await know_new_certificates(fleet, b, a)
        await trio.sleep_until(100 - before)
        b.mesh.renew_identity(with_certificates(fleet, first, until=DAY))
        assert b.mesh.identity.certificate == first.certificate, "only the delegation is another one"
        await trio.sleep_until(130)
        assert a.log.of(b.id) == b.log.of(a.id) == ["up"]
        assert a.peer(b).identity == b.mesh.identity.public()


async def test_certificates_are_asked_for_more_often_towards_their_end(
    autojump_clock: MockClock,
) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        b.mesh.renew_identity(with_certificates(fleet, b.mesh.identity, until=100.0))
        await know_new_certificates(fleet, b, a)
        seen: list[object] = []
        while trio.current_time() < 99.5:
            session = a.peer(b).session
            if session not in seen:
                seen.append(session)
            await trio.sleep(0.1)
        assert 4 <= len(seen) <= 10


async def test_with_another_certificate_all_sessions_are_replaced_within_seconds(autojump_clock: MockClock) -> None:
    names = [f"n{number}" for number in range(10)]
    async with open_meshes("a", *names) as fleet:
        a, others = fleet["a"], [fleet[name] for name in names]
        await trio.sleep(10)
        sessions = {node.id: node.peer(a).session for node in others}
        a.mesh.renew_identity(with_certificates(fleet, a.mesh.identity, until=DAY))
        await trio.sleep(3)
        for node in others:
            assert node.peer(a).identity.certificate == a.mesh.identity.certificate
            assert node.peer(a).session is not sessions[node.id]
            assert node.log.of(a.id) == ["up"], "and nobody has lost anything"
        again = {node.id: node.peer(a).session for node in others}
        await trio.sleep(20)
        assert again == {node.id: node.peer(a).session for node in others}, "once"


async def test_many_sessions_are_replaced_one_batch_after_the_other(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iris.cluster.mesh.rekey._AT_ONCE", 3)
    names = [f"n{number}" for number in range(8)]
    async with open_meshes("a", *names) as fleet:
        a = fleet["a"]
        await trio.sleep(10)
        first = {node: peer.session for node, peer in a.mesh.peers.items()}

        def replaced() -> int:
            return sum(peer.session is not first[node] for node, peer in a.mesh.peers.items())

        a.mesh.renew_identity(with_certificates(fleet, a.mesh.identity, until=DAY))
        await trio.sleep(1.1)
        assert 1 <= replaced() <= 3
        await trio.sleep(3)
        assert replaced() == 8


async def test_a_linked_node_keeps_its_cluster_and_its_keys(autojump_clock: MockClock) -> None:
    """A node with two credentials speaks for one cluster: rules that name clusters must not depend on the moment."""
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        b.mesh.renew_identity(with_certificates(fleet, b.mesh.identity, until=DAY, cluster="payroll"))
        await trio.sleep(5)
        assert a.peer(b).identity.cluster == "b"
        assert a.mesh.refusals["AuthenticationError"] + a.mesh.refusals["renewal: AuthenticationError"] > 0
        await trio.sleep(200)


async def test_a_sealed_node_is_cut_off_when_its_delegation_ends_and_not_before(autojump_clock: MockClock) -> None:
    async with iris.testing.open_network() as network, AsyncExitStack() as stack:
        now = network.wall_clock()
        portable = network.credential("store")
        sealed = seal_credential(portable, entropy=random.Random(1).randbytes, not_before=now, not_after=now + 90)
        network._credentials["store"] = sealed
        nodes = [await stack.enter_async_context(network.open_node("shop")) for _ in range(3)]
        store = await stack.enter_async_context(network.open_node("store"))
        service = iris.Service("store")

        @service.request
        async def answer(request: iris.Request) -> object:
            return request.payload

        await stack.enter_async_context(store.join("store", service))
        await nodes[0].wait_for("store")
        await trio.sleep(89 - (network.wall_clock() - now))
        assert await nodes[0].request("store", 1) == 1
        await trio.sleep(2.5)
        assert all(store.id not in node.statistics().links for node in nodes)
        with pytest.raises(iris.IrisError):
            await nodes[0].request("store", 1, timeout=0.5)
        await trio.sleep(30)
        assert all(node.members("store") == () for node in nodes)
        assert all(len(node.statistics().links) == 2 for node in nodes)
