from __future__ import annotations

import functools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iris.kernel.errors import AuthenticationError, ConfigError
from iris.kernel.names import NodeId
from iris.kernel.wire.codec import pack
from iris.security.identity import signing
from iris.security.identity.certificate import (
    LONGEST_DELEGATION,
    LONGEST_SEALED,
    MAX_SIGNED,
    ClusterCertificate,
    NodeDelegation,
    check_validity,
    issue_certificate,
    issue_delegation,
    node_digits,
    read_certificate_untrusted,
    read_delegation_untrusted,
)
from iris.security.identity.identity import verify_peer_untrusted
from iris.security.identity.permissions import Rights
from iris.security.identity.signing import SigningKey
from tests.support.realms import DAY, WALL, TestRealm, seeded_entropy

ROOT = SigningKey(seeded_entropy(1)(32))
CLUSTER = SigningKey(seeded_entropy(2)(32))
RIGHTS = Rights(serves=("b",), publishes=("a.>",), subscribes=(), gateway=True)


def certificate(rights: Rights = RIGHTS, root: SigningKey = ROOT, name: str = "orders") -> ClusterCertificate:
    return issue_certificate(
        root,
        name=name,
        public_key=CLUSTER.public,
        generation=3,
        not_before=WALL,
        not_after=WALL + DAY,
        rights=rights,
    )


NODE = node_digits(b"s" * 32, b"c" * 32)


def delegation(key: SigningKey = CLUSTER, cluster: str = "orders", node: str = NODE) -> NodeDelegation:
    return issue_delegation(
        key,
        cluster=cluster,
        node=node,
        static_key=b"s" * 32,
        signing_key=b"c" * 32,
        not_before=WALL,
        not_after=WALL + DAY,
    )


def resigned(fields: object, key: SigningKey = ROOT, domain: bytes = signing.CERTIFICATE) -> bytes:
    return key.attach(domain, pack(fields))


def test_what_was_issued_is_read_back() -> None:
    issued = certificate()
    assert read_certificate_untrusted(issued.signed, ROOT.public) == issued
    delegated = delegation()
    assert read_delegation_untrusted(delegated.signed, issued) == delegated


def test_issuing_is_deterministic() -> None:
    assert certificate().signed == certificate().signed
    assert delegation().signed == delegation().signed


def test_a_certificate_of_another_realm_is_refused() -> None:
    foreign = certificate(root=SigningKey(seeded_entropy(9)(32)))
    with pytest.raises(AuthenticationError, match="signature"):
        read_certificate_untrusted(foreign.signed, ROOT.public)


def test_a_delegation_by_another_cluster_is_refused() -> None:
    with pytest.raises(AuthenticationError, match="signature"):
        read_delegation_untrusted(delegation(key=ROOT).signed, certificate())


def test_a_key_certified_for_two_clusters_cannot_move_a_delegation_between_them() -> None:
    with pytest.raises(AuthenticationError, match="or of another version or cluster"):
        read_delegation_untrusted(delegation(cluster="orders").signed, certificate(name="billing"))


def test_a_certificate_is_no_delegation_and_the_other_way_round() -> None:
    fields = (1, "orders", bytes(16), bytes(32), bytes(32), int(WALL), int(WALL + DAY))
    as_delegation = CLUSTER.attach(signing.CERTIFICATE, pack(fields))
    with pytest.raises(AuthenticationError, match="signature"):
        read_delegation_untrusted(as_delegation, certificate())
    with pytest.raises(AuthenticationError, match="signature"):
        read_certificate_untrusted(delegation(key=ROOT).signed, ROOT.public)


@pytest.mark.parametrize("field", ["not_before", "not_after"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_validity_has_two_finite_ends(field: str, value: float) -> None:
    ends = {"not_before": WALL, "not_after": WALL + DAY, field: value}
    with pytest.raises(ConfigError, match="certificate of cluster 'orders': it would be valid from"):
        issue_certificate(ROOT, name="orders", public_key=CLUSTER.public, generation=1, rights=RIGHTS, **ends)
    with pytest.raises(ConfigError, match="delegation of a node of cluster 'orders': it would be valid from"):
        issue_delegation(CLUSTER, cluster="orders", node="ab" * 16, static_key=b"s" * 32, signing_key=b"c" * 32, **ends)


@pytest.mark.parametrize(
    ("node", "seconds", "days"),
    [("ab" * 16, LONGEST_DELEGATION, 2), ("ab" * 8, LONGEST_SEALED, 400)],
    ids=["one boot", "sealed"],
)
def test_a_delegation_for_longer_is_neither_made_nor_accepted(node: str, seconds: int, days: int) -> None:
    def make(longer: int) -> NodeDelegation:
        return issue_delegation(
            CLUSTER,
            cluster="orders",
            node=node,
            static_key=b"s" * 32,
            signing_key=b"c" * 32,
            not_before=WALL,
            not_after=WALL + seconds + longer,
        )

    assert read_delegation_untrusted(make(0).signed, certificate()).not_after == WALL + seconds
    with pytest.raises(ConfigError, match=f"delegation of a node of cluster 'orders': .* {days} at most"):
        make(1)
    fields = (1, "orders", bytes.fromhex(node), b"s" * 32, b"c" * 32, int(WALL), int(WALL) + seconds + 1)
    signed = CLUSTER.attach(signing.DELEGATION, pack(fields))
    with pytest.raises(AuthenticationError, match=f"made for more than {days} days"):
        read_delegation_untrusted(signed, certificate())


def test_every_byte_counts() -> None:
    issued, delegated = certificate(), delegation()
    for position in range(len(issued.signed)):
        damaged = bytearray(issued.signed)
        damaged[position] ^= 1
        with pytest.raises(AuthenticationError):
            read_certificate_untrusted(bytes(damaged), ROOT.public)
    for position in range(len(delegated.signed)):
        damaged = bytearray(delegated.signed)
        damaged[position] ^= 1
        with pytest.raises(AuthenticationError):
            read_delegation_untrusted(bytes(damaged), issued)


GOOD = (1, "orders", bytes(32), 1, 0, 1, (), None, None, False)


@pytest.mark.parametrize(
    ("position", "value"),
    [
        (0, 2),
        (0, "1"),
        (1, ""),
        (1, "no/name"),
        (1, 5),
        (2, bytes(31)),
        (2, "x" * 32),
        (3, -1),
        (3, None),
        (4, "0"),
        (5, None),
        (6, None),
        (6, "orders"),
        (6, (1,)),
        (7, ("",)),
        (7, ("a",) * 257),
        (8, (b"a",)),
        (9, 1),
    ],
)
def test_a_signed_certificate_with_a_wrong_field_is_refused(position: int, value: object) -> None:
    """The root key is trusted, its holder's software perhaps not."""
    assert read_certificate_untrusted(resigned(GOOD), ROOT.public).name == "orders"
    fields = (*GOOD[:position], value, *GOOD[position + 1 :])
    with pytest.raises(AuthenticationError):
        read_certificate_untrusted(resigned(fields), ROOT.public)


@pytest.mark.parametrize("fields", [(), GOOD[:-1], (*GOOD, 1), 7, "text", None, (GOOD,)])
def test_a_signed_certificate_of_another_shape_is_refused(fields: object) -> None:
    with pytest.raises(AuthenticationError):
        read_certificate_untrusted(resigned(fields), ROOT.public)


@pytest.mark.parametrize(
    ("position", "value"),
    [(0, 2), (1, "billing"), (2, bytes(15)), (2, bytes(0)), (3, bytes(33)), (4, b""), (5, "0"), (6, None)],
)
def test_a_signed_delegation_with_a_wrong_field_is_refused(position: int, value: object) -> None:
    good: tuple[object, ...] = (1, "orders", bytes(16), bytes(32), bytes(32), 0, 1)
    assert read_delegation_untrusted(resigned(good, CLUSTER, signing.DELEGATION), certificate()).node == "00" * 16
    fields = (*good[:position], value, *good[position + 1 :])
    with pytest.raises(AuthenticationError):
        read_delegation_untrusted(resigned(fields, CLUSTER, signing.DELEGATION), certificate())


@given(st.binary(max_size=400))
def test_arbitrary_bytes_are_an_authentication_error_even_if_signed(data: bytes) -> None:
    for signed in (data, ROOT.attach(signing.CERTIFICATE, data)):
        with pytest.raises(AuthenticationError):
            read_certificate_untrusted(signed, ROOT.public)
    for signed in (data, CLUSTER.attach(signing.DELEGATION, data)):
        with pytest.raises(AuthenticationError):
            read_delegation_untrusted(signed, certificate())


def test_a_certificate_that_is_too_long_is_not_issued() -> None:
    with pytest.raises(ConfigError, match=f"the limit is {MAX_SIGNED}"):
        certificate(Rights(publishes=("x" * 200,) * 200))


def test_signed_documents_above_the_limit_are_refused_before_anything_else() -> None:
    with pytest.raises(AuthenticationError, match="the limit is"):
        read_certificate_untrusted(bytes(MAX_SIGNED + 1), ROOT.public)
    with pytest.raises(AuthenticationError, match="the limit is"):
        read_delegation_untrusted(bytes(MAX_SIGNED + 1), certificate())


@pytest.mark.parametrize(("start", "end"), [(10.0, 10.0), (20.0, 10.0), (-5.0, 10.0), (0.0, 2.0**41)])
def test_an_empty_validity_is_not_issued(start: float, end: float) -> None:
    with pytest.raises(ConfigError, match="would be valid from"):
        issue_certificate(
            ROOT,
            name="orders",
            public_key=bytes(32),
            generation=1,
            not_before=start,
            not_after=end,
            rights=Rights(),
        )


def test_validity_is_from_the_first_second_to_before_the_last() -> None:
    check_validity(certificate(), delegation(), WALL)
    check_validity(certificate(), delegation(), WALL + DAY - 1)
    with pytest.raises(AuthenticationError, match="check the clocks"):
        check_validity(certificate(), None, WALL - 1)
    with pytest.raises(AuthenticationError, match="expired 0 s ago"):
        check_validity(certificate(), None, WALL + DAY)


def test_a_delegation_does_not_outlive_its_certificate() -> None:
    realm = TestRealm()
    identity = realm.identity("orders")
    verify = functools.partial(
        verify_peer_untrusted,
        identity.realm,
        node_id=identity.node_id,
        certificate=identity.certificate.signed,
        delegation=identity.delegation.signed,
    )
    assert verify(wall_now=WALL) == identity.public()
    for late in (WALL + 2 * DAY, WALL - 2 * DAY):
        with pytest.raises(AuthenticationError):
            verify(wall_now=late)


def test_a_delegation_names_its_node_or_all_that_begin_like_it() -> None:
    whole, half = delegation(node=NODE), delegation(node=NODE[:16])
    assert whole.names(NodeId(NODE))
    assert not whole.names(NodeId(NODE[:30] + "xx"))
    assert half.names(NodeId(NODE[:16] + "01" * 8))
    assert not half.names(NodeId("01" * 16))
    assert not half.names(NodeId(NODE[:16]))
    assert not half.names(NodeId(NODE[:16] + "01" * 9))


@pytest.mark.parametrize("length", [16, 32])
def test_a_node_id_that_does_not_follow_from_the_keys_is_nobodys(length: int) -> None:
    """Else the holder of any cluster's key could delegate the id of a node of another cluster."""
    assert not delegation(node=("ab" * 16)[:length]).names(NodeId("ab" * 16))


@pytest.mark.parametrize("node_id", ["", "zz" * 16, "ab" * 16, "AB" * 16])
def test_a_node_id_that_the_delegation_does_not_name_is_refused(node_id: str) -> None:
    identity = TestRealm().identity("orders")
    with pytest.raises(AuthenticationError, match="the delegation is for"):
        verify_peer_untrusted(
            identity.realm,
            node_id=node_id,
            certificate=identity.certificate.signed,
            delegation=identity.delegation.signed,
            wall_now=WALL,
        )


def test_claims_are_verified_with_the_key_in_the_delegation() -> None:
    identity = TestRealm().identity("orders")
    other = TestRealm().identity("orders")
    assert identity.node_id == other.node_id
    signature = identity.sign(b"I am here")
    identity.public().verify_untrusted(b"I am here", signature)
    with pytest.raises(AuthenticationError, match="claim of node"):
        identity.public().verify_untrusted(b"I am there", signature)
    with pytest.raises(AuthenticationError):
        TestRealm(5).identity("orders").public().verify_untrusted(b"I am here", signature)


def test_may_serve_is_the_own_name_and_what_the_rights_add() -> None:
    issued = certificate()
    assert issued.may_serve("orders")
    assert issued.may_serve("b")
    assert not issued.may_serve("c")
