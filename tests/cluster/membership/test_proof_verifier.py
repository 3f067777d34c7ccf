"""Trust in a record: the proofs that it carries."""

from __future__ import annotations

import math

import pytest
from msgspec import structs

from iris.cluster.membership.proofs import ProofVerifier, proof_of, serves_by_right
from iris.cluster.swim.records import ClusterEntry, NodeRecord
from iris.kernel.errors import AuthenticationError
from iris.kernel.wire.codec import pack
from iris.security.identity.certificate import issue_certificate, issue_delegation
from iris.security.identity.identity import NodeIdentity
from iris.security.identity.permissions import Rights
from iris.security.identity.revocation import NewestRevocations, issue_revocations
from iris.security.identity.signing import SigningKey
from tests.support.realms import DAY, WALL, TestRealm

STATEMENT = b"a statement"


class Subject:
    """A node that has a record to send, and a node of its realm that receives it."""

    def __init__(self, rights: Rights | None = None) -> None:
        self.now = WALL
        self.realm = TestRealm(1)
        self.identity = self.realm.identity("databases", rights)
        self.revocations = NewestRevocations(self.realm.root.public)
        self.verifier = ProofVerifier(self.realm.identity("listener"), lambda: self.now, self.revocations)
        self.signature = ProofVerifier(self.identity, lambda: self.now).sign(STATEMENT)

    def record(
        self, *clusters: ClusterEntry, name: str = "databases", identity: NodeIdentity | None = None
    ) -> NodeRecord:
        identity = identity or self.identity
        return NodeRecord(
            node=self.identity.node_id,
            name=name,
            proof=proof_of(identity.certificate, identity.delegation),
            clusters=clusters,
        )

    def is_believed(self, record: NodeRecord) -> bool:
        return self.verifier.verify(record, STATEMENT, self.signature)

    def second_proof(self, cluster: str, node: NodeIdentity | None = None) -> bytes:
        """Return the chain of another cluster for this node."""
        node = node or self.identity
        key = SigningKey(self.realm.entropy(32))
        validity = {"not_before": WALL - DAY, "not_after": WALL + DAY}
        certificate = issue_certificate(
            self.realm.root, name=cluster, public_key=key.public, generation=1, rights=Rights(), **validity
        )
        delegation = issue_delegation(
            key,
            cluster=cluster,
            node=node.node_id,
            static_key=node.static.public,
            signing_key=node.signing.public,
            **validity,
        )
        return proof_of(certificate, delegation)


def test_a_node_is_believed_what_it_signed() -> None:
    subject = Subject()
    assert subject.is_believed(subject.record())
    assert subject.is_believed(subject.record())  # from memory, as well


def test_another_statement_or_signature_is_not_believed() -> None:
    subject = Subject()
    record = subject.record()
    assert not subject.verifier.verify(record, b"another statement", subject.signature)
    assert not subject.verifier.verify(record, STATEMENT, bytes(64))
    assert not subject.verifier.verify(record, STATEMENT, b"")
    assert not subject.verifier.verify(record, STATEMENT, subject.signature + b"\0")


def test_the_proof_is_for_the_node_that_the_record_is_about() -> None:
    subject = Subject()
    other = subject.realm.identity("databases")
    assert not subject.is_believed(subject.record(identity=other))


def test_a_node_speaks_for_the_cluster_of_its_proof_only() -> None:
    subject = Subject()
    assert not subject.is_believed(subject.record(name="billing"))


def test_a_proof_of_another_realm_is_none() -> None:
    subject = Subject()
    stranger = TestRealm(2).identity("databases")
    record = structs.replace(subject.record(identity=stranger), node=stranger.node_id)
    assert not subject.verifier.verify(record, STATEMENT, ProofVerifier(stranger, lambda: WALL).sign(STATEMENT))


@pytest.mark.parametrize("proof", [b"", b"\xc0", pack(("a", "b")), pack((b"", b"")), pack((b"x",)), b"\x92" + bytes(9)])
def test_what_is_no_proof(proof: bytes) -> None:
    subject = Subject()
    assert not subject.is_believed(structs.replace(subject.record(), proof=proof))


def test_a_proof_holds_only_for_its_time() -> None:
    subject = Subject()
    record = subject.record()
    assert subject.is_believed(record)
    subject.now = WALL + 2 * DAY
    assert not subject.is_believed(record)
    subject.now = WALL - 2 * DAY
    assert not ProofVerifier(subject.identity, lambda: subject.now).verify(record, STATEMENT, subject.signature)


def test_a_further_cluster_needs_a_right_or_a_proof() -> None:
    subject = Subject()
    assert subject.is_believed(subject.record(ClusterEntry(name="databases")))
    assert not subject.is_believed(subject.record(ClusterEntry(name="billing")))
    assert subject.is_believed(subject.record(ClusterEntry(name="billing", proof=subject.second_proof("billing"))))
    assert not subject.is_believed(subject.record(ClusterEntry(name="billing", proof=subject.second_proof("shop"))))
    other = subject.realm.identity("databases")
    stolen = ClusterEntry(name="billing", proof=subject.second_proof("billing", other))
    assert not subject.is_believed(subject.record(stolen))


def test_one_unproven_cluster_spoils_the_record() -> None:
    subject = Subject()
    good = ClusterEntry(name="billing", proof=subject.second_proof("billing"))
    assert not subject.is_believed(subject.record(good, ClusterEntry(name="shop")))


def test_a_certificate_may_name_what_its_nodes_serve() -> None:
    subject = Subject(Rights(serves=("shop.*",)))
    assert subject.is_believed(subject.record(ClusterEntry(name="shop.orders")))
    assert not subject.is_believed(subject.record(ClusterEntry(name="shop")))
    assert serves_by_right(subject.identity.certificate, "databases")
    assert serves_by_right(subject.identity.certificate, "shop.orders")
    assert not serves_by_right(subject.identity.certificate, "billing")


def test_memory_of_proofs_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iris.cluster.membership.proofs._REMEMBERED", 3)
    subject = Subject()
    for _ in range(10):
        entry = ClusterEntry(name="billing", proof=subject.second_proof("billing"))
        assert subject.is_believed(subject.record(entry))
        assert len(subject.verifier._known) <= 3


@pytest.mark.parametrize("seen_before", [False, True])
@pytest.mark.parametrize("what", ["cluster", "node"])
def test_who_is_revoked_is_not_believed_although_it_was_verified_before(what: str, seen_before: bool) -> None:
    subject = Subject()
    record = subject.record()
    if seen_before:
        assert subject.is_believed(record)
    revoked = issue_revocations(
        subject.realm.root,
        number=1,
        issued=WALL,
        clusters={"databases": 2} if what == "cluster" else {},
        nodes={str(subject.identity.node_id): int(WALL + DAY)} if what == "node" else {},
    )
    assert subject.revocations.receive_untrusted(revoked.signed)
    assert not subject.is_believed(record)
    assert not subject.is_believed(record), "and it is not remembered either"


def test_a_further_cluster_that_is_revoked_or_has_ended_is_no_more_served_and_spoils_nothing_else() -> None:
    subject = Subject(Rights(serves=("by.right",)))
    archive = ClusterEntry(name="archive", proof=subject.second_proof("archive"))
    others = (ClusterEntry(name="databases"), ClusterEntry(name="by.right"))
    record = subject.record(*others, archive)
    assert subject.is_believed(record)
    assert subject.verifier.permitted(record) == (record, 60.0), "proofs are looked at once a minute at least"
    revoked = issue_revocations(subject.realm.root, number=1, issued=WALL, clusters={"archive": 2}, nodes={})
    assert subject.revocations.receive_untrusted(revoked.signed)
    assert subject.is_believed(record)
    assert subject.verifier.holds(record)
    assert subject.verifier.permitted(record) == (subject.record(*others), 60.0)
    assert subject.verifier.permitted(subject.record(*others)) == (subject.record(*others), math.inf)
    assert not subject.verifier.may_serve(subject.identity.public(), "archive", archive.proof)


def test_a_record_says_when_the_first_of_its_proofs_ends() -> None:
    subject = Subject()
    record = subject.record(ClusterEntry(name="archive", proof=subject.second_proof("archive")))
    subject.now = WALL + DAY - 20
    assert subject.verifier.permitted(record) == (record, 20.0)
    subject.now = WALL + DAY
    permitted, _ = subject.verifier.permitted(record)
    assert permitted.clusters == ()
    subject.now = WALL - DAY - 10  # a clock that was set back: it may be valid again
    assert subject.verifier.permitted(record) == (permitted, 60.0)


def test_a_record_holds_until_its_own_chain_ends() -> None:
    subject = Subject()
    record = subject.record()
    assert subject.verifier.holds(record)
    assert not subject.verifier.holds(structs.replace(record, proof=b"\xc0"))
    subject.now = WALL + DAY
    assert not subject.verifier.holds(record)


def test_a_node_is_the_same_with_other_certificates_and_not_with_other_keys_or_another_cluster() -> None:
    subject = Subject()
    held = subject.record()
    subject.now = WALL + DAY  # the verifier that are held may have ended meanwhile
    renewed = structs.replace(held, proof=subject.second_proof("databases"), incarnation=9)
    assert subject.verifier.continues(held, renewed)
    moved = structs.replace(held, proof=subject.second_proof("billing"), name="billing")
    assert not subject.verifier.continues(held, moved)
    other = subject.realm.identity("databases")
    impostor = structs.replace(subject.record(identity=other), node=other.node_id)
    assert not subject.verifier.continues(held, impostor)
    assert not subject.verifier.continues(held, structs.replace(held, proof=b"\xc0"))


def test_a_handshake_by_the_id_of_a_known_node_has_to_be_by_its_keys() -> None:
    subject = Subject()
    held = subject.record()
    me = subject.identity.public()
    subject.verifier.check_known(held, me)
    other = subject.realm.identity("databases").public()
    for impostor in (
        structs.replace(me, delegation=other.delegation),
        structs.replace(me, delegation=structs.replace(me.delegation, signing_key=bytes(32))),
        structs.replace(me, certificate=subject.realm.identity("billing").certificate),
    ):
        with pytest.raises(AuthenticationError, match="has the id of another node of 'databases'"):
            subject.verifier.check_known(held, impostor)
