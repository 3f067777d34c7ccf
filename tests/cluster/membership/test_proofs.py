"""Nodes that may serve each cluster now, followed while proofs end."""

from __future__ import annotations

import trio
from msgspec import structs
from trio.testing import MockClock

from iris.cluster.membership.proofs import Proofs, ProofVerifier, proof_of
from iris.cluster.swim.records import ClusterEntry, NodeRecord
from iris.kernel.names import NodeId
from iris.kernel.tasks.background import open_background
from iris.security.identity.certificate import issue_certificate, issue_delegation
from iris.security.identity.identity import NodeIdentity
from iris.security.identity.permissions import Rights
from iris.security.identity.signing import SigningKey
from tests.support.realms import DAY, WALL, TestRealm


class Watched:
    """One record, looked at again whenever ``Proofs`` says so."""

    def __init__(self) -> None:
        began = trio.current_time()
        self.realm = TestRealm(1)
        self.identity = self.realm.identity("shop")
        verifier = ProofVerifier(self.identity, lambda: WALL + trio.current_time() - began)
        self.proofs = Proofs(verifier)
        self.record = NodeRecord(
            node=self.identity.node_id,
            name="shop",
            proof=proof_of(self.identity.certificate, self.identity.delegation),
            clusters=(ClusterEntry(name="shop"),),
        )
        self.held = self.record
        self.looks: list[float] = []
        self.lost: list[tuple[NodeId, str, float]] = []
        self.proofs.on_lost(lambda node, cluster: self.lost.append((node, cluster, trio.current_time())))

    async def run(self) -> None:
        while True:
            await self.proofs.wait_end()
            self.look()

    def look(self) -> None:
        self.looks.append(trio.current_time())
        permitted = self.proofs.permitted(self.record)
        if permitted != self.held:
            self.proofs.compare(self.held, permitted)
        self.held = permitted

    def serves(self, **until: float) -> None:
        """Have the record name further clusters, each with a proof that ends in so many seconds."""
        entries = tuple(
            ClusterEntry(name=name, proof=self._prove(self.identity, name, end)) for name, end in until.items()
        )
        self.record = structs.replace(self.record, clusters=(ClusterEntry(name="shop"), *entries))
        self.held = self.proofs.permitted(self.record)

    def _prove(self, node: NodeIdentity, cluster: str, end: float) -> bytes:
        key = SigningKey(self.realm.entropy(32))
        certificate = issue_certificate(
            self.realm.root,
            name=cluster,
            public_key=key.public,
            generation=1,
            rights=Rights(),
            not_before=WALL - DAY,
            not_after=WALL + DAY,
        )
        delegation = issue_delegation(
            key,
            cluster=cluster,
            node=node.node_id,
            static_key=node.static.public,
            signing_key=node.signing.public,
            not_before=WALL - DAY,
            not_after=WALL + end,
        )
        return proof_of(certificate, delegation)


async def test_each_cluster_is_lost_at_the_moment_when_its_proof_ends(autojump_clock: MockClock) -> None:
    async with open_background() as nursery:
        watched = Watched()
        nursery.start_soon(watched.run)
        watched.serves(store=50.0, depot=20.0)
        await trio.sleep(100)
        assert [(cluster, round(at, 1)) for _, cluster, at in watched.lost] == [("depot", 20.0), ("store", 50.0)]
        assert [entry.name for entry in watched.held.clusters] == ["shop"]
        assert {node for node, _, _ in watched.lost} == {watched.identity.node_id}


async def test_a_proof_that_ends_sooner_than_those_known_is_not_overslept(autojump_clock: MockClock) -> None:
    async with open_background() as nursery:
        watched = Watched()
        nursery.start_soon(watched.run)
        watched.serves(store=50.0)
        await trio.sleep(5)
        watched.serves(store=50.0, depot=10.0)
        await trio.sleep(6)
        assert [cluster for _, cluster, _ in watched.lost] == ["depot"]


async def test_without_proofs_nobody_is_woken_up(autojump_clock: MockClock) -> None:
    async with open_background() as nursery:
        watched = Watched()
        nursery.start_soon(watched.run)
        watched.serves()
        await trio.sleep(DAY / 2)
        assert watched.looks == []


async def test_proofs_that_last_are_looked_at_once_a_minute(autojump_clock: MockClock) -> None:
    """For the date may be set, forward or back."""
    async with open_background() as nursery:
        watched = Watched()
        nursery.start_soon(watched.run)
        watched.serves(store=DAY / 2)
        await trio.sleep(601)
        assert len(watched.looks) == 10
        assert watched.lost == []
