"""The Noise core beyond the vectors: errors, turns, junk."""

from __future__ import annotations

import copy

import pytest

from iris.kernel.errors import AuthenticationError, LocalProtocolError
from iris.security.noise.handshake_state import MAX_MESSAGE, CipherState, HandshakeState, KeyPair, KnownKeys
from iris.security.noise.suites import Suite
from tests.support.noise_patterns import PATTERNS, read_protocol_name
from tests.support.realms import seeded_entropy

NAME = "Noise_XXpsk0+psk2_25519_AESGCM_SHA256"
LOW_ORDER_POINTS = [
    bytes(32),
    (1).to_bytes(32, "little"),
    (2**255 - 19 - 1).to_bytes(32, "little"),
    (2**255 - 19).to_bytes(32, "little"),
    (2**255 - 19 + 1).to_bytes(32, "little"),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
]


def pair(name: str = NAME) -> tuple[HandshakeState, HandshakeState]:
    entropy = seeded_entropy(4)
    psks = {0: bytes(32), 2: bytes(32)}
    first, second = (
        HandshakeState(
            read_protocol_name(name),
            initiator=initiator,
            entropy=entropy,
            keys=KnownKeys(s=KeyPair(entropy(32)), psks=psks),
        )
        for initiator in (True, False)
    )
    return first, second


def test_a_key_serves_no_more_messages_than_there_are_nonces() -> None:
    state = CipherState("AESGCM")
    state.initialize_key(bytes(32))
    state.n = 2**64 - 1
    with pytest.raises(LocalProtocolError, match="used up"):
        state.encrypt_with_ad(b"", b"x")
    with pytest.raises(AuthenticationError, match="used up"):
        state.decrypt_with_ad(b"", bytes(17))


def test_junk_changes_nothing_and_the_genuine_message_still_counts() -> None:
    initiator, responder = pair()
    for turn in range(3):
        reader, writer = (responder, initiator) if turn % 2 == 0 else (initiator, responder)
        message = writer.write_message(b"payload")
        for position in range(len(message)):
            damaged = bytearray(message)
            damaged[position] ^= 0x80 if position != 31 else 0x01  # X25519 ignores the top bit of a point
            with pytest.raises(AuthenticationError):
                reader.read_message(bytes(damaged))
        assert reader.read_message(message) == b"payload"
    assert initiator.finished
    assert responder.finished
    assert initiator.get_handshake_hash() == responder.get_handshake_hash()


def test_every_shorter_message_is_refused() -> None:
    initiator, responder = pair()
    message = initiator.write_message(b"payload")
    for size in range(len(message)):
        with pytest.raises(AuthenticationError):
            responder.read_message(message[:size])


def test_a_message_above_the_limit_of_noise_is_refused() -> None:
    _, responder = pair()
    with pytest.raises(AuthenticationError, match="too long"):
        responder.read_message(bytes(MAX_MESSAGE + 1))


@pytest.mark.parametrize("point", LOW_ORDER_POINTS, ids=[point.hex()[:8] for point in LOW_ORDER_POINTS])
def test_a_point_of_low_order_is_refused(point: bytes) -> None:
    with pytest.raises(AuthenticationError, match="not valid"):
        KeyPair(seeded_entropy(1)(32)).dh(point)


def test_speaking_out_of_turn_is_a_local_error() -> None:
    initiator, responder = pair()
    with pytest.raises(LocalProtocolError):
        responder.write_message(b"")
    with pytest.raises(LocalProtocolError):
        initiator.read_message(b"")
    with pytest.raises(LocalProtocolError):
        initiator.split()
    responder.read_message(initiator.write_message(b""))
    with pytest.raises(LocalProtocolError):
        initiator.write_message(b"")


def test_an_error_while_writing_ends_the_handshake() -> None:
    initiator, responder = pair()
    responder.read_message(initiator.write_message(b""))
    del responder.psks[2]
    with pytest.raises(KeyError):
        responder.write_message(b"")
    responder.psks[2] = bytes(32)
    with pytest.raises(LocalProtocolError):
        responder.write_message(b"")


def test_a_handshake_can_begin_like_another_that_has_not_begun() -> None:
    template, responder = pair()
    entropy = seeded_entropy(5)
    first, second = template.again(entropy), template.again(entropy)
    messages = [first.write_message(b"one"), second.write_message(b"two")]
    assert messages[0][:32] != messages[1][:32]
    assert [responder.again(entropy).read_message(message) for message in messages] == [b"one", b"two"]
    with pytest.raises(LocalProtocolError, match="cannot be copied"):
        first.again(entropy)


def test_a_finished_handshake_takes_no_more_messages() -> None:
    initiator, responder = pair()
    responder.read_message(initiator.write_message(b""))
    initiator.read_message(responder.write_message(b""))
    responder.read_message(initiator.write_message(b""))
    for side in (initiator, responder):
        with pytest.raises(LocalProtocolError):
            side.write_message(b"")
        with pytest.raises(LocalProtocolError):
            side.read_message(b"")


def test_a_nonce_is_never_used_twice_even_if_encryption_fails() -> None:
    state = CipherState("AESGCM")
    state.initialize_key(bytes(32))
    with pytest.raises(TypeError):
        state.encrypt_with_ad(b"", "not bytes")  # type: ignore[arg-type]
    assert state.n == 1


def test_the_last_nonce_is_never_used() -> None:
    state = CipherState("ChaChaPoly")
    state.initialize_key(bytes(32))
    state.n = 2**64 - 1
    with pytest.raises(LocalProtocolError):
        state.encrypt_with_ad(b"", b"x")
    with pytest.raises(AuthenticationError):
        state.decrypt_with_ad(b"", bytes(17))


def test_a_key_pair_shows_its_public_half_and_cannot_be_copied() -> None:
    secret = seeded_entropy(2)(32)
    keys = KeyPair(secret)
    assert secret.hex() not in repr(keys)
    assert keys.public.hex() in repr(keys)
    assert keys.private_bytes() == secret
    for duplicate in (copy.copy, copy.deepcopy):
        with pytest.raises(TypeError):
            duplicate(keys)


@pytest.mark.parametrize(
    "name", ["Noise_XX_448_AESGCM_SHA256", "Noise_ZZ_25519_AESGCM_SHA256", "NoisePSK_XX_25519_AESGCM_SHA256"]
)
def test_names_of_other_protocols_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not a Noise protocol"):
        read_protocol_name(name)


def test_the_pattern_that_iris_runs_has_its_keys_where_they_belong() -> None:
    assert [suite.protocol for suite in Suite] == [
        read_protocol_name(f"Noise_XXpsk0+psk2_25519_{cipher}_SHA256") for cipher in ("AESGCM", "ChaChaPoly")
    ]
    assert len(PATTERNS) == 38
