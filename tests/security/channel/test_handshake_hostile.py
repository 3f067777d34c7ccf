"""Attacks on the handshake: every byte changed, replays, reflections, mixtures, keys of low order."""

from __future__ import annotations

import random
import struct

import pytest
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from hypothesis import given
from hypothesis import strategies as st

from iris.kernel.errors import AuthenticationError, LocalProtocolError
from iris.kernel.wire import VERSION
from iris.kernel.wire.header import HANDSHAKE_FINISH, HANDSHAKE_INIT, HANDSHAKE_RESPONSE, HEADER
from iris.security.channel.handshake import CIPHERTEXT_SIZE, Initiator, Responder, prologue
from iris.security.identity.identity import NodeIdentity
from iris.security.noise import handshake_state as noise
from iris.security.noise.handshake_state import HandshakeState, KnownKeys
from iris.security.noise.suites import Suite
from tests.support.damage import damaged
from tests.support.realms import WALL, TestRealm, seeded_entropy
from tests.support.sessions import INITIATOR_INDEX, RESPONDER_INDEX, start

REALM = TestRealm()
ORDERS, BILLING = REALM.identity("orders"), REALM.identity("billing")


def conversation(suite: Suite = Suite.AESGCM) -> tuple[Initiator, Responder, bytes, bytes, bytes]:
    """Return an unfinished pair and the three frames that this very pair would exchange."""
    frames: list[bytes] = []
    initiator, responder = start(ORDERS, BILLING, suite=suite)
    frames.append(initiator.frame)
    responder.receive_first_untrusted(initiator.frame)
    frames.append(responder.respond(b"", wall_now=WALL))
    last = initiator.receive_untrusted(frames[1], now=0.0, wall_now=WALL).frame
    assert last is not None
    return initiator, responder, frames[0], frames[1], last


@pytest.mark.parametrize("suite", list(Suite))
def test_no_changed_byte_of_any_handshake_frame_leads_to_a_session(suite: Suite) -> None:
    """Each byte of each of the three frames is changed in turn: the two ends never establish both, or at all."""
    sessions = 0
    _, responder, first, response, last = conversation(suite)
    for position in range(len(last)):
        frame = bytearray(last)
        frame[position] ^= 0x01
        with pytest.raises(AuthenticationError):
            responder.receive_last_untrusted(bytes(frame), now=0.0, wall_now=WALL)
        assert not responder.over
    responder.receive_last_untrusted(last, now=0.0, wall_now=WALL)

    initiator, responder = start(ORDERS, BILLING, suite=suite)
    responder.receive_first_untrusted(initiator.frame)
    response = responder.respond(b"", wall_now=WALL)
    for position in range(len(response)):
        frame = bytearray(response)
        frame[position] ^= 0x01
        try:
            initiator.receive_untrusted(bytes(frame), now=0.0, wall_now=WALL)
        except AuthenticationError:
            if initiator.over:  # the sender's index is verified by the sealed one: genuine, and final
                assert 8 <= position < 16
                initiator, responder = start(ORDERS, BILLING, suite=suite)
                responder.receive_first_untrusted(initiator.frame)
                response = responder.respond(b"", wall_now=WALL)
        else:
            sessions += 1
    initiator.receive_untrusted(response, now=0.0, wall_now=WALL)

    for position in range(len(first)):
        frame = bytearray(first)
        frame[position] ^= 0x01
        responder = Responder(BILLING, index=RESPONDER_INDEX, entropy=seeded_entropy(3))
        initiator, _ = start(ORDERS, BILLING, suite=suite)
        try:
            responder.receive_first_untrusted(bytes(frame))
        except AuthenticationError:
            continue
        # Only the sender's own index can be changed unnoticed; the response then goes nowhere.
        assert 12 <= position < 16
        response = responder.respond(b"", wall_now=WALL)
        with pytest.raises(AuthenticationError):
            initiator.receive_untrusted(response, now=0.0, wall_now=WALL)
    assert sessions == 0


def test_a_response_whose_receiver_is_put_right_by_an_attacker_ends_at_the_last_frame() -> None:
    """An attacker between them changes the index in the first frame and back in the response."""
    initiator, responder = start(ORDERS, BILLING)
    first = bytearray(initiator.frame)
    first[15] ^= 1
    responder.receive_first_untrusted(bytes(first))
    response = bytearray(responder.respond(b"", wall_now=WALL))
    response[7] ^= 1
    last = bytearray(initiator.receive_untrusted(bytes(response), now=0.0, wall_now=WALL).frame or b"")
    last[15] ^= 1
    with pytest.raises(AuthenticationError, match="session index in the header was changed"):
        responder.receive_last_untrusted(bytes(last), now=0.0, wall_now=WALL)
    assert responder.over


def test_damaged_frames_of_every_kind_are_refused_and_the_genuine_ones_still_work() -> None:
    rng = random.Random(1)
    initiator, responder = start(ORDERS, BILLING)
    for _ in range(300):
        frame = damaged(initiator.frame, rng)
        if frame[16:] != initiator.frame[16:] or frame[:12] != initiator.frame[:12]:
            with pytest.raises(AuthenticationError):
                responder.receive_first_untrusted(frame)
    responder.receive_first_untrusted(initiator.frame)
    response = responder.respond(b"", wall_now=WALL)
    for _ in range(300):
        frame = damaged(response, rng)
        if frame[16:] != response[16:]:
            with pytest.raises(AuthenticationError):
                initiator.receive_untrusted(frame, now=0.0, wall_now=WALL)
    established = initiator.receive_untrusted(response, now=0.0, wall_now=WALL)
    assert established.frame is not None
    for _ in range(300):
        frame = damaged(established.frame, rng)
        if frame != established.frame:
            with pytest.raises(AuthenticationError):
                responder.receive_last_untrusted(frame, now=0.0, wall_now=WALL)
    responder.receive_last_untrusted(established.frame, now=0.0, wall_now=WALL)


def test_frames_of_one_handshake_are_refused_in_every_other_place() -> None:
    """Replayed into a new handshake, reflected to their sender, or in the place of another frame."""
    _, _, first, response, last = conversation()
    frames = (first, response, last)
    for frame in frames:
        initiator, responder = start(ORDERS, BILLING, seed=5)
        with pytest.raises(AuthenticationError):
            initiator.receive_untrusted(frame, now=0.0, wall_now=WALL)
        if frame is not first:
            with pytest.raises(AuthenticationError):
                responder.receive_first_untrusted(frame)
        responder.receive_first_untrusted(initiator.frame)
        responder.respond(b"", wall_now=WALL)
        with pytest.raises(AuthenticationError):
            responder.receive_last_untrusted(frame, now=0.0, wall_now=WALL)


def test_a_replayed_first_frame_is_answered_but_leads_to_nothing() -> None:
    """It costs the listener one response; only who has the ephemeral key of the first frame can go on."""
    _, _, first, _, last = conversation()
    responder = Responder(BILLING, index=RESPONDER_INDEX, entropy=seeded_entropy(30))
    assert responder.receive_first_untrusted(first) == b"from the dialler"
    responder.respond(b"", wall_now=WALL)
    with pytest.raises(AuthenticationError):
        responder.receive_last_untrusted(last, now=0.0, wall_now=WALL)


RESPONDER_STATES = ("new", "begun", "responded", "over")
FRAMES = ("first", "response", "last", "other first", "other response", "other last", "empty", "zeros")


def frames_for_states() -> dict[str, bytes]:
    _, _, *own = conversation()
    initiator, responder = start(BILLING, ORDERS, seed=9)
    responder.receive_first_untrusted(initiator.frame)
    response = responder.respond(b"", wall_now=WALL)
    last = initiator.receive_untrusted(response, now=0.0, wall_now=WALL).frame
    assert last is not None
    return dict(zip(FRAMES, (*own, initiator.frame, response, last, b"", bytes(1500)), strict=True))


@given(st.sampled_from(RESPONDER_STATES), st.sampled_from(FRAMES), st.integers(0, 2**32) | st.none())
def test_in_every_state_of_the_answering_side_a_last_frame_is_taken_or_refused_by_one_error(
    state: str, name: str, damage: int | None
) -> None:
    frames = frames_for_states()
    _, responder = start(ORDERS, BILLING)
    initiator, _ = start(ORDERS, BILLING)
    genuine = frames["last"]
    if state != "new":
        responder.receive_first_untrusted(initiator.frame)
    if state in ("responded", "over"):
        answered = initiator.receive_untrusted(responder.respond(b"", wall_now=WALL), now=0.0, wall_now=WALL).frame
        assert answered is not None
        genuine = frames["last"] = answered
    if state == "over":
        responder.receive_last_untrusted(genuine, now=0.0, wall_now=WALL)
    frame = frames[name]
    if damage is not None and frame:
        frame = damaged(frame, random.Random(damage))
    if state == "over":  # its owner has dropped it by then, so this is no doing of the peer
        with pytest.raises(LocalProtocolError):
            responder.receive_last_untrusted(frame, now=0.0, wall_now=WALL)
    elif state == "responded" and frame == genuine:
        responder.receive_last_untrusted(frame, now=0.0, wall_now=WALL)
    else:
        with pytest.raises(AuthenticationError):
            responder.receive_last_untrusted(frame, now=0.0, wall_now=WALL)
        assert not responder.over


def test_two_initiators_reflected_to_each_other_make_no_session() -> None:
    first, _ = start(ORDERS, BILLING, seed=1)
    second, _ = start(BILLING, ORDERS, seed=2)
    for one, other in ((first, second), (second, first)):
        with pytest.raises(AuthenticationError):
            one.receive_untrusted(other.frame, now=0.0, wall_now=WALL)


def test_the_suite_cannot_be_changed_on_the_way() -> None:
    initiator, responder = start(ORDERS, BILLING, suite=Suite.AESGCM)
    frame = bytearray(initiator.frame)
    for suite in range(256):
        if suite != Suite.AESGCM:
            frame[16] = suite
            with pytest.raises(AuthenticationError):
                responder.receive_first_untrusted(bytes(frame))


def test_version_suite_and_realm_are_bound_by_the_prologue() -> None:
    values = {prologue(suite, realm) for suite in Suite for realm in (bytes(32), bytes(31) + b"\1")}
    assert len(values) == 4
    assert all(value.startswith(b"iris handshake\0") and value[-34] == VERSION for value in values)


DECAPSULATION = MLKEM768PrivateKey.from_seed_bytes(seeded_entropy(9)(64))
ENCAPSULATION_KEY = DECAPSULATION.public_key().public_bytes_raw()


def insider(*, initiator: bool) -> HandshakeState:
    """Noise of a peer that knows the gate secret, and does what it likes."""
    return HandshakeState(
        Suite.AESGCM.protocol,
        initiator=initiator,
        entropy=seeded_entropy(8),
        prologue=prologue(Suite.AESGCM, REALM.root.public),
        keys=KnownKeys(s=(ORDERS if initiator else BILLING).static, psks={0: REALM.gate}),
    )


def first_frame(message: bytes) -> bytes:
    return HEADER.pack(HANDSHAKE_INIT, VERSION, 0, 0, INITIATOR_INDEX) + bytes([Suite.AESGCM]) + message


def hostile_initiator(payload: bytes, *, ephemeral: bytes | None = None) -> bytes:
    """A first frame from an insider."""
    state = insider(initiator=True)
    if ephemeral is None:
        return first_frame(state.write_message(payload))
    ss = state.ss
    ss.mix_hash(ephemeral)
    ss.mix_key(ephemeral)
    return first_frame(ephemeral + ss.encrypt_and_hash(payload))


def answer_to_insider() -> tuple[HandshakeState, Responder, bytes, bytes]:
    """Begin a handshake as an insider; return both sides, and key encapsulation and message of the response."""
    state = insider(initiator=True)
    responder = Responder(BILLING, index=RESPONDER_INDEX, entropy=seeded_entropy(3))
    responder.receive_first_untrusted(first_frame(state.write_message(ENCAPSULATION_KEY)))
    response = responder.respond(b"from the listener", wall_now=WALL)
    return state, responder, response[16 : 16 + CIPHERTEXT_SIZE], response[16 + CIPHERTEXT_SIZE :]


def certificates_of(node: NodeIdentity, index: int) -> bytes:
    certificate, delegation = node.certificate.signed, node.delegation.signed
    start = struct.pack(">16sIHH", bytes.fromhex(node.node_id), index, len(certificate), len(delegation))
    return start + certificate + delegation


@pytest.mark.parametrize("payload", [b"", bytes(1183), b"\xff" * 1184, bytes(1184 + 4097)], ids=len)
def test_insiders_without_a_valid_encapsulation_key_are_refused(payload: bytes) -> None:
    responder = Responder(BILLING, index=1, entropy=seeded_entropy(3))
    with pytest.raises(AuthenticationError):
        responder.receive_first_untrusted(hostile_initiator(payload))


@pytest.mark.parametrize("point", [bytes(32), (1).to_bytes(32, "little")])
def test_an_ephemeral_key_of_low_order_ends_the_handshake(point: bytes) -> None:
    responder = Responder(BILLING, index=1, entropy=seeded_entropy(3))
    responder.receive_first_untrusted(hostile_initiator(ENCAPSULATION_KEY, ephemeral=point))
    with pytest.raises(AuthenticationError, match="not valid"):
        responder.respond(b"", wall_now=WALL)
    assert responder.over


def test_a_stranger_costs_no_diffie_hellman(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bytes:
        raise AssertionError("an operation on the curve for a stranger")

    frame = start(ORDERS, BILLING)[0].frame
    responder = Responder(BILLING, index=1, entropy=seeded_entropy(3))
    monkeypatch.setattr(noise.KeyPair, "dh", fail)
    monkeypatch.setattr(noise.KeyPair, "__init__", fail)
    rng = random.Random(2)
    for _ in range(200):
        with pytest.raises(AuthenticationError):
            responder.receive_first_untrusted(frame[:17] + rng.randbytes(len(frame) - 17))
    responder.receive_first_untrusted(frame)
    with pytest.raises(AssertionError):
        responder.respond(b"", wall_now=WALL)


def test_without_the_key_encapsulation_neither_certificates_nor_session_open() -> None:
    """psk2 enters all keys from the responder's payload on.

    An attacker who breaks X25519 alone reads neither who answers nor what is said, not even with the gate secret.
    """
    state, _, ciphertext, message = answer_to_insider()
    state.psks[2] = bytes(32)  # all of Noise is right, the shared secret of ML-KEM is not
    with pytest.raises(AuthenticationError):
        state.read_message(message)
    state.psks[2] = DECAPSULATION.decapsulate(ciphertext)
    assert state.read_message(message).endswith(b"from the listener")


def answered_by_insider(payload: bytes) -> tuple[Initiator, bytes]:
    """Begin a handshake, and answer as a node of the realm that puts into the payload what it likes."""
    initiator, _ = start(ORDERS, BILLING)
    state = insider(initiator=False)
    encapsulation_key = state.read_message(initiator.frame[17:])[: len(ENCAPSULATION_KEY)]
    shared, ciphertext = MLKEM768PublicKey.from_public_bytes(encapsulation_key).encapsulate()
    state.psks[2] = shared
    header = HEADER.pack(HANDSHAKE_RESPONSE, VERSION, 0, INITIATOR_INDEX, RESPONDER_INDEX)
    return initiator, header + ciphertext + state.write_message(payload)


def test_a_response_without_room_for_what_belongs_there_ends_the_handshake() -> None:
    whole = certificates_of(BILLING, RESPONDER_INDEX)
    lying = struct.pack(">16sIHH", bytes(16), RESPONDER_INDEX, 65535, 65535) + whole[24:]
    swapped = whole[:20] + whole[22:24] + whole[20:22] + whole[24:]
    initiator, response = answered_by_insider(whole)
    assert initiator.receive_untrusted(response, now=0.0, wall_now=WALL).peer.cluster == BILLING.cluster
    for payload in (bytes(23), whole[:-1], lying, swapped):
        initiator, response = answered_by_insider(payload)
        with pytest.raises(AuthenticationError):
            initiator.receive_untrusted(response, now=0.0, wall_now=WALL)
        assert initiator.over


@pytest.mark.parametrize("size", [0, 1, CIPHERTEXT_SIZE - 1, CIPHERTEXT_SIZE, CIPHERTEXT_SIZE + 31])
def test_a_response_without_room_for_a_key_encapsulation_changes_nothing(size: int) -> None:
    initiator, responder = start(ORDERS, BILLING)
    responder.receive_first_untrusted(initiator.frame)
    response = responder.respond(b"", wall_now=WALL)
    with pytest.raises(AuthenticationError):
        initiator.receive_untrusted(response[: 16 + size], now=0.0, wall_now=WALL)
    assert not initiator.over
    assert initiator.receive_untrusted(response, now=0.0, wall_now=WALL).peer.cluster == BILLING.cluster


@pytest.mark.parametrize("surplus", [b"", b"\0"])
def test_surplus_bytes_in_the_last_frame_end_the_handshake(surplus: bytes) -> None:
    state, responder, ciphertext, message = answer_to_insider()
    state.psks[2] = DECAPSULATION.decapsulate(ciphertext)
    state.read_message(message)
    header = HEADER.pack(HANDSHAKE_FINISH, VERSION, 0, RESPONDER_INDEX, INITIATOR_INDEX)
    last = header + state.write_message(certificates_of(ORDERS, INITIATOR_INDEX) + surplus)
    if surplus:
        with pytest.raises(AuthenticationError, match="surplus bytes"):
            responder.receive_last_untrusted(last, now=0.0, wall_now=WALL)
    else:
        assert responder.receive_last_untrusted(last, now=0.0, wall_now=WALL).peer.cluster == ORDERS.cluster
    assert responder.over
