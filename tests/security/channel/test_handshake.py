"""The handshake between honest nodes, and everything that makes one refuse the other."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iris.kernel.errors import AuthenticationError, LocalProtocolError
from iris.kernel.names import NodeId
from iris.kernel.wire.header import HANDSHAKE_FINISH, HANDSHAKE_INIT, HANDSHAKE_RESPONSE, parse_header_untrusted
from iris.security.channel.handshake import MAX_HANDSHAKE_FRAME, MAX_HELLO, HandshakeRules, Initiator, Responder
from iris.security.identity.certificate import issue_certificate, issue_delegation, node_digits
from iris.security.identity.identity import NodeIdentity, PeerIdentity
from iris.security.identity.permissions import Rights
from iris.security.identity.signing import SigningKey
from iris.security.noise.handshake_state import KeyPair
from iris.security.noise.suites import Suite
from tests.support.realms import DAY, WALL, TestRealm, seeded_entropy
from tests.support.sessions import INITIATOR_INDEX, RESPONDER_INDEX, finish, start

REALM = TestRealm()
ORDERS, BILLING = REALM.identity("orders"), REALM.identity("billing")
THIRD = REALM.identity("third")


@pytest.mark.parametrize("suite", list(Suite))
def test_both_sides_learn_who_the_other_is_and_what_it_says(suite: Suite) -> None:
    dialled, answered = finish(*start(ORDERS, BILLING, suite=suite), hello=b"at port 7000", now=5.0)
    assert dialled.peer == BILLING.public()
    assert dialled.hello == b"at port 7000"
    assert answered.peer == ORDERS.public()
    assert answered.hello == b"from the dialler"
    assert answered.frame is None
    assert dialled.session.established == answered.session.established == 5.0
    assert (dialled.session.local_index, dialled.session.remote_index) == (INITIATOR_INDEX, RESPONDER_INDEX)
    assert (answered.session.local_index, answered.session.remote_index) == (RESPONDER_INDEX, INITIATOR_INDEX)


@pytest.mark.parametrize("suite", list(Suite))
def test_the_sessions_understand_each_other(suite: Suite) -> None:
    dialled, answered = finish(*start(ORDERS, BILLING, suite=suite))
    for number in range(5):
        text = b"message %d" % number
        assert answered.session.open_untrusted(dialled.session.seal(text)) == text
        assert dialled.session.open_untrusted(answered.session.seal(text)) == text


def test_frames_carry_the_kind_and_the_index_of_both_ends() -> None:
    initiator, responder = start(ORDERS, BILLING)
    responder.receive_first_untrusted(initiator.frame)
    response = responder.respond(b"", wall_now=WALL)
    last = initiator.receive_untrusted(response, now=0.0, wall_now=WALL).frame
    assert last is not None
    headers = [parse_header_untrusted(frame) for frame in (initiator.frame, response, last)]
    assert [h.kind for h in headers] == [HANDSHAKE_INIT, HANDSHAKE_RESPONSE, HANDSHAKE_FINISH]
    assert [h.receiver for h in headers] == [0, INITIATOR_INDEX, RESPONDER_INDEX]
    assert [h.counter for h in headers] == [INITIATOR_INDEX, RESPONDER_INDEX, INITIATOR_INDEX]


def test_names_and_node_ids_never_travel_in_clear() -> None:
    initiator, responder = start(ORDERS, BILLING)
    responder.receive_first_untrusted(initiator.frame)
    response = responder.respond(b"from the listener", wall_now=WALL)
    last = initiator.receive_untrusted(response, now=0.0, wall_now=WALL).frame
    captured = initiator.frame + response + (last or b"")
    for identity in (ORDERS, BILLING):
        assert bytes.fromhex(identity.node_id) not in captured
        assert identity.static.public not in captured
        assert identity.certificate.public_key not in captured
    for text in (b"orders", b"billing", b"from the", REALM.root.public):
        assert text not in captured


def test_two_handshakes_have_no_byte_of_their_keys_in_common() -> None:
    first, _ = start(ORDERS, BILLING, seed=1)
    second, _ = start(ORDERS, BILLING, seed=2)
    assert first.frame[17:49] != second.frame[17:49]
    assert first.frame[49:] != second.frame[49:]


def test_the_same_first_frame_can_be_sent_to_be_answered_by_another_responder() -> None:
    """A frame may be lost; the one that answers first wins, and the other answer is not for this handshake any more."""
    initiator, responder = start(ORDERS, BILLING)
    again = Responder(BILLING, index=5, entropy=seeded_entropy(9))
    again.receive_first_untrusted(initiator.frame)
    late = again.respond(b"", wall_now=WALL)
    finish(initiator, responder)
    with pytest.raises(LocalProtocolError):
        initiator.receive_untrusted(late, now=0.0, wall_now=WALL)


def test_a_node_without_the_gate_secret_is_not_answered() -> None:
    stranger = dataclasses.replace(ORDERS, gate_secrets=(bytes(32),))
    initiator, responder = start(stranger, BILLING)
    with pytest.raises(AuthenticationError, match="does not know the gate secret"):
        responder.receive_first_untrusted(initiator.frame)


@pytest.mark.parametrize("accepted", [0, 1])
def test_during_a_rotation_either_gate_secret_opens(accepted: int) -> None:
    secrets = (b"1" * 32, b"2" * 32)
    listener = dataclasses.replace(BILLING, gate_secrets=secrets)
    dialler = dataclasses.replace(ORDERS, gate_secrets=(secrets[accepted],))
    dialled, answered = finish(*start(dialler, listener))
    assert answered.session.open_untrusted(dialled.session.seal(b"x")) == b"x"


def test_nodes_of_realms_with_the_same_gate_secret_do_not_meet() -> None:
    other = TestRealm(7)
    other.gate = REALM.gate
    initiator, responder = start(ORDERS, other.identity("billing"))
    with pytest.raises(AuthenticationError):
        responder.receive_first_untrusted(initiator.frame)


def impostor(
    *, realm: bytes = REALM.root.public, root: SigningKey = REALM.root, cluster: str = "orders", node: str = ""
) -> tuple[NodeIdentity, SigningKey]:
    """A node that knows the gate secret and has certificates signed by ``root``."""
    entropy = seeded_entropy(77)
    key, static, signing = SigningKey(entropy(32)), KeyPair(entropy(32)), SigningKey(entropy(32))
    node = node or node_digits(static.public, signing.public)
    certificate = issue_certificate(
        root,
        name=cluster,
        public_key=key.public,
        generation=1,
        not_before=WALL - DAY,
        not_after=WALL + DAY,
        rights=Rights(),
    )
    delegation = issue_delegation(
        key,
        cluster=cluster,
        node=node,
        static_key=static.public,
        signing_key=signing.public,
        not_before=WALL - DAY,
        not_after=WALL + DAY,
    )
    identity = NodeIdentity(
        node_id=NodeId(node),
        realm=realm,
        gate_secrets=(REALM.gate,),
        certificate=certificate,
        delegation=delegation,
        static=static,
        signing=signing,
    )
    return identity, key


def wrong_identities() -> dict[str, NodeIdentity]:
    good, key = impostor()
    foreign, _ = impostor(root=SigningKey(bytes(32)))
    late = issue_delegation(
        key,
        cluster="orders",
        node=good.node_id,
        static_key=good.static.public,
        signing_key=good.signing.public,
        not_before=WALL - 2,
        not_after=WALL - 1,
    )
    return {
        "certificate of another root": foreign,
        "certificate of one cluster, delegation of another": dataclasses.replace(good, certificate=BILLING.certificate),
        "another node's delegation": dataclasses.replace(good, delegation=ORDERS.delegation),
        "another node's certificates": dataclasses.replace(
            good, certificate=ORDERS.certificate, delegation=ORDERS.delegation, node_id=ORDERS.node_id
        ),
        "another node's id": dataclasses.replace(good, node_id=ORDERS.node_id),
        "another node's id, delegated by a cluster's own key": impostor(node=THIRD.node_id)[0],
        "half of another node's id, delegated by a cluster's own key": dataclasses.replace(
            impostor(node=THIRD.node_id[:16])[0], node_id=THIRD.node_id
        ),
        "expired delegation": dataclasses.replace(good, delegation=late),
    }


@pytest.mark.parametrize("case", wrong_identities())
def test_wrong_papers_are_refused_by_either_side(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def pass_any(*_: object) -> None:
        """The liar does not check itself."""

    monkeypatch.setattr("iris.security.channel.handshake.check_validity", pass_any)
    liar = wrong_identities()[case]
    initiator, responder = start(liar, BILLING)
    responder.receive_first_untrusted(initiator.frame)
    dialled = initiator.receive_untrusted(responder.respond(b"", wall_now=WALL), now=0.0, wall_now=WALL)
    assert dialled.frame is not None
    with pytest.raises(AuthenticationError):
        responder.receive_last_untrusted(dialled.frame, now=0.0, wall_now=WALL)
    assert responder.over

    initiator, responder = start(BILLING, liar)
    responder.receive_first_untrusted(initiator.frame)
    with pytest.raises(AuthenticationError):
        initiator.receive_untrusted(responder.respond(b"", wall_now=WALL), now=0.0, wall_now=WALL)
    assert initiator.over


def test_the_honest_impostor_of_these_tests_is_let_in() -> None:
    identity, _ = impostor()
    finish(*start(identity, BILLING))


def test_another_node_than_the_expected_one_is_refused() -> None:
    entropy = seeded_entropy(1)
    initiator = Initiator(
        ORDERS, index=1, hello=b"", entropy=entropy, wall_now=WALL, rules=HandshakeRules(expected=NodeId("ab" * 16))
    )
    responder = Responder(BILLING, index=2, entropy=entropy)
    with pytest.raises(AuthenticationError, match=f"node {BILLING.node_id} of cluster 'billing' answered for abab"):
        finish(initiator, responder)
    initiator = Initiator(
        ORDERS, index=1, hello=b"", entropy=entropy, wall_now=WALL, rules=HandshakeRules(expected=BILLING.node_id)
    )
    finish(initiator, Responder(BILLING, index=2, entropy=entropy))


def test_a_node_that_meets_itself_is_refused() -> None:
    with pytest.raises(AuthenticationError, match="met itself"):
        finish(*start(ORDERS, ORDERS))


def test_admit_can_refuse_a_verified_peer_on_either_side() -> None:
    def refuse(peer: PeerIdentity) -> None:
        if peer.cluster == "billing":
            raise AuthenticationError("billing is revoked")

    with pytest.raises(AuthenticationError, match="billing is revoked"):
        finish(*start(ORDERS, BILLING, admit=refuse))
    initiator, responder = start(BILLING, ORDERS, admit=refuse)
    responder.receive_first_untrusted(initiator.frame)
    dialled = initiator.receive_untrusted(responder.respond(b"", wall_now=WALL), now=0.0, wall_now=WALL)
    assert dialled.frame is not None
    with pytest.raises(AuthenticationError, match="billing is revoked"):
        responder.receive_last_untrusted(dialled.frame, now=0.0, wall_now=WALL)


def test_a_node_whose_own_papers_are_not_valid_does_not_begin() -> None:
    with pytest.raises(AuthenticationError, match="expired"):
        Initiator(ORDERS, index=1, hello=b"", entropy=seeded_entropy(1), wall_now=WALL + 2 * DAY)
    initiator, responder = start(BILLING, ORDERS)
    responder.receive_first_untrusted(initiator.frame)
    with pytest.raises(AuthenticationError, match="expired"):
        responder.respond(b"", wall_now=WALL + 2 * DAY)
    assert responder.over


@pytest.mark.parametrize("hello", [b"", bytes(MAX_HELLO)])
def test_a_hello_of_any_size_up_to_the_limit_arrives(hello: bytes) -> None:
    dialled, answered = finish(*start(ORDERS, BILLING, hello=hello), hello=hello)
    assert dialled.hello == answered.hello == hello


def test_a_longer_hello_is_a_local_error() -> None:
    with pytest.raises(LocalProtocolError, match="the limit is 4096"):
        start(ORDERS, BILLING, hello=bytes(MAX_HELLO + 1))
    initiator, responder = start(ORDERS, BILLING)
    responder.receive_first_untrusted(initiator.frame)
    with pytest.raises(LocalProtocolError, match="the limit is 4096"):
        responder.respond(bytes(MAX_HELLO + 1), wall_now=WALL)


def test_the_largest_papers_fit_into_the_frames() -> None:
    realm = TestRealm(3)
    rights = Rights(publishes=("p" * 30,) * 240)
    big, other = realm.identity("a" * 128, rights), realm.identity("b" * 128, rights)
    assert 7000 < len(big.certificate.signed) < 8192
    initiator, responder = start(big, other, hello=bytes(MAX_HELLO))
    responder.receive_first_untrusted(initiator.frame)
    response = responder.respond(bytes(MAX_HELLO), wall_now=WALL)
    assert len(response) < MAX_HANDSHAKE_FRAME
    initiator.receive_untrusted(response, now=0.0, wall_now=WALL)


@pytest.mark.parametrize("index", [0, -1, 2**32])
def test_an_index_is_a_number_of_32_bits_above_zero(index: int) -> None:
    with pytest.raises(LocalProtocolError, match="is not a number of 32 bits"):
        Responder(ORDERS, index=index, entropy=seeded_entropy(1))


STEPS = ("first", "respond", "response", "last")


@given(st.lists(st.sampled_from(STEPS), max_size=12))
def test_in_every_order_of_calls_each_step_works_once_and_in_its_turn(calls: list[str]) -> None:
    """Every state against every input: a step out of turn is a local error and changes nothing."""
    initiator, responder = start(ORDERS, BILLING)
    model = finish(*start(ORDERS, BILLING))  # gives frames of the right shape before the real ones exist
    assert model[0].frame is not None
    frames: dict[str, bytes] = {"first": initiator.frame}
    done: list[str] = []
    for call in calls:
        in_turn = len(done) < len(STEPS) and STEPS[len(done)] == call
        try:
            if call == "first":
                responder.receive_first_untrusted(frames["first"])
            elif call == "respond":
                frames["response"] = responder.respond(b"", wall_now=WALL)
            elif call == "response":
                established = initiator.receive_untrusted(
                    frames.get("response", model[0].frame), now=0.0, wall_now=WALL
                )
                assert established.frame is not None
                frames["last"] = established.frame
            else:
                responder.receive_last_untrusted(frames.get("last", model[0].frame), now=0.0, wall_now=WALL)
        except (LocalProtocolError, AuthenticationError):
            assert not in_turn, call
        else:
            assert in_turn, call
            done.append(call)
