"""Handshakes between nodes of two realms: the pair secret lets them begin, and the other one's root says who it is."""

from __future__ import annotations

import dataclasses

import pytest
from msgspec import structs

from iris.kernel.errors import AuthenticationError
from iris.security.identity.identity import NodeIdentity
from iris.security.identity.realm_bundle import OtherRealm, RealmBundle, TrustedRealm, issue_bundle, pair_secret
from iris.security.noise.suites import Suite
from tests.support.realms import DAY, WALL, TestRealm
from tests.support.sessions import finish, start

OURS, ACME, THIRD = TestRealm(1), TestRealm(2), TestRealm(3)


def bundle_of(realm: TestRealm, *, until: float = WALL + DAY) -> RealmBundle:
    return issue_bundle(realm.root, name="x", exports=(">",), serial=1, not_before=WALL - DAY, not_after=until)


def trusting(realm: TestRealm, alias: str, other: RealmBundle, identity: NodeIdentity) -> NodeIdentity:
    trusted = TrustedRealm(
        realm=OtherRealm(alias=alias, bundle=other, exports=(">",)), pair_secret=pair_secret(realm.root, other)
    )
    return dataclasses.replace(identity, trusted=(*identity.trusted, trusted))


SHOP = trusting(OURS, "acme", bundle_of(ACME), OURS.identity("shop"))
STORE = trusting(ACME, "partner", bundle_of(OURS), ACME.identity("store"))


@pytest.mark.parametrize("suite", list(Suite))
def test_both_sides_learn_who_the_other_is_and_of_which_realm(suite: Suite) -> None:
    initiator, responder = start(SHOP, STORE, suite=suite, realm_id=STORE.realm_id)
    assert (initiator.realm_id, responder.realm_id) == (STORE.realm_id, "")
    dialled, answered = finish(initiator, responder)
    assert responder.realm_id == SHOP.realm_id
    assert (dialled.peer.node_id, dialled.peer.caller, dialled.peer.cluster) == (STORE.node_id, "acme/store", "store")
    assert (answered.peer.node_id, answered.peer.caller) == (SHOP.node_id, "partner/shop")
    assert (dialled.peer.other_realm_id, answered.peer.other_realm_id) == (STORE.realm_id, SHOP.realm_id)
    for number in range(3):
        text = b"message %d" % number
        assert answered.session.open_untrusted(dialled.session.seal(text)) == text
        assert dialled.session.open_untrusted(answered.session.seal(text)) == text


def test_nodes_of_one_realm_go_on_as_if_there_were_no_other() -> None:
    other = trusting(OURS, "acme", bundle_of(ACME), OURS.identity("other"))
    dialled, answered = finish(*start(SHOP, other))
    assert dialled.peer == other.public()
    assert answered.peer == SHOP.public()
    assert dialled.peer.other_realm is None
    assert dialled.peer.caller == "other"


def test_a_realm_that_is_not_trusted_is_not_dialled() -> None:
    with pytest.raises(AuthenticationError, match=f"realm {THIRD.identity('x').realm_id} is not trusted here"):
        start(SHOP, STORE, realm_id=THIRD.identity("x").realm_id)


def test_who_does_not_trust_the_other_does_not_answer() -> None:
    initiator, responder = start(SHOP, ACME.identity("store"), realm_id=STORE.realm_id)
    with pytest.raises(AuthenticationError, match="does not know the gate secret"):
        responder.receive_first_untrusted(initiator.frame)


def test_a_gate_secret_does_not_open_the_other_realm_and_the_pair_secret_not_ones_own() -> None:
    for initiator, responder in (
        start(SHOP, STORE),  # by our gate secret, to a node of theirs
        start(SHOP, OURS.identity("plain"), realm_id=STORE.realm_id),  # by the pair secret, to one of ours
    ):
        with pytest.raises(AuthenticationError, match="does not know the gate secret"):
            responder.receive_first_untrusted(initiator.frame)


def test_a_node_of_ones_own_realm_cannot_pass_for_one_of_the_other() -> None:
    """It knows the pair secret as all of its realm do; what it lacks is a certificate of the other root."""
    inside = trusting(OURS, "acme", bundle_of(ACME), OURS.identity("inside"))
    # It plays the answering side of the other realm as far as it can: with that realm's place in the prologue.
    posing = dataclasses.replace(
        inside,
        realm=ACME.root.public,
        trusted=(
            TrustedRealm(
                realm=OtherRealm(alias="x", bundle=bundle_of(OURS)), pair_secret=inside.trusted[0].pair_secret
            ),
        ),
    )
    initiator, responder = start(SHOP, posing, realm_id=STORE.realm_id)
    responder.receive_first_untrusted(initiator.frame)
    response = responder.respond(b"", wall_now=WALL)
    with pytest.raises(AuthenticationError, match="certificate: the signature is not valid"):
        initiator.receive_untrusted(response, now=0.0, wall_now=WALL)
    assert initiator.over


def test_a_node_of_a_third_realm_cannot_pass_for_one_of_a_trusted_one() -> None:
    third = trusting(THIRD, "ours", bundle_of(OURS), THIRD.identity("store"))
    forged = dataclasses.replace(third, realm=ACME.root.public)
    initiator, responder = start(SHOP, forged, realm_id=STORE.realm_id)
    with pytest.raises(AuthenticationError, match="does not know the gate secret"):
        responder.receive_first_untrusted(initiator.frame)


def test_each_side_ends_with_the_bundle_of_the_other() -> None:
    late = trusting(OURS, "acme", bundle_of(ACME, until=WALL), OURS.identity("shop"))
    with pytest.raises(AuthenticationError, match=r"bundle of realm 'acme' .* is not valid now"):
        start(late, STORE, realm_id=STORE.realm_id)
    old = trusting(ACME, "partner", bundle_of(OURS, until=WALL), ACME.identity("store"))
    initiator, responder = start(SHOP, old, realm_id=STORE.realm_id)
    responder.receive_first_untrusted(initiator.frame)
    dialled = initiator.receive_untrusted(responder.respond(b"", wall_now=WALL), now=0.0, wall_now=WALL)
    assert dialled.frame is not None
    with pytest.raises(AuthenticationError, match="bundle of realm 'partner'"):
        responder.receive_last_untrusted(dialled.frame, now=0.0, wall_now=WALL)
    assert dialled.peer.expires == min(STORE.expires, int(WALL + DAY))


def test_every_byte_of_the_frames_is_protected() -> None:
    initiator, _ = start(SHOP, STORE, realm_id=STORE.realm_id)
    for at in range(16, len(initiator.frame), 7):
        _, responder = start(SHOP, STORE, realm_id=STORE.realm_id)
        changed = bytearray(initiator.frame)
        changed[at] ^= 1
        with pytest.raises(AuthenticationError):
            responder.receive_first_untrusted(bytes(changed))


def test_nodes_with_the_same_keys_in_two_realms_are_not_the_same_node() -> None:
    dialled, _ = finish(*start(SHOP, STORE, realm_id=STORE.realm_id))
    assert dialled.peer.is_same_node(dialled.peer)
    assert not dialled.peer.is_same_node(structs.replace(dialled.peer, realm_id=SHOP.realm_id))
