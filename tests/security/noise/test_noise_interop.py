"""Live conversations with noiseprotocol, an independent implementation, in every suite and both roles."""

from __future__ import annotations

import itertools
import os
import struct
import warnings
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey

from iris.kernel.wire import VERSION
from iris.kernel.wire.header import HANDSHAKE_FINISH, HANDSHAKE_INIT, HANDSHAKE_RESPONSE, HEADER, HEADER_SIZE
from iris.security.channel.handshake import HandshakeRules, Initiator, Responder
from iris.security.identity.identity import NodeIdentity
from iris.security.noise.handshake_state import CIPHERS, HandshakeState, KeyPair, KnownKeys, next_key
from iris.security.noise.suites import Suite
from tests.support.noise_patterns import read_protocol_name
from tests.support.realms import WALL, TestRealm

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it asks for ciphers that OpenSSL has moved elsewhere
    from noise.connection import Keypair, NoiseConnection

SUITES = [f"25519_{c}_{h}" for c in ("AESGCM", "ChaChaPoly") for h in ("SHA256", "SHA512", "BLAKE2s", "BLAKE2b")]
PATTERNS = ["XX", "XXpsk0", "XXpsk3", "XXpsk0+psk2", "IK", "KKpsk0", "NNpsk2", "NX"]
PROLOGUE = b"both sides know this"


def remote(name: str, *, initiator: bool, static: bytes, remote_static: bytes, psks: list[bytes]) -> NoiseConnection:
    connection = NoiseConnection.from_name(name.encode())
    connection.set_as_initiator() if initiator else connection.set_as_responder()
    if psks:
        connection.set_psks(psks=psks)
    connection.set_prologue(PROLOGUE)
    connection.set_keypair_from_private_bytes(Keypair.STATIC, static)
    base = name.split("_")[1].partition("psk")[0]
    if base == "KK" or (base == "IK" and initiator):
        connection.set_keypair_from_public_bytes(Keypair.REMOTE_STATIC, remote_static)
    connection.start_handshake()
    return connection


def local(name: str, *, initiator: bool, static: KeyPair, remote_static: bytes, psks: list[bytes]) -> HandshakeState:
    base, _, modifiers = name.split("_")[1].partition("psk")
    positions = [int(m) for m in modifiers.split("+psk")] if modifiers else []
    known = base == "KK" or (base == "IK" and initiator)
    return HandshakeState(
        read_protocol_name(name),
        initiator=initiator,
        entropy=os.urandom,
        prologue=PROLOGUE,
        keys=KnownKeys(s=static, rs=remote_static if known else None, psks=dict(zip(positions, psks, strict=True))),
    )


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("dials", [True, False], ids=["we dial", "we answer"])
def test_a_handshake_with_noiseprotocol_succeeds(suite: str, pattern: str, dials: bool) -> None:
    name = f"Noise_{pattern}_{suite}"
    ours, theirs = KeyPair(os.urandom(32)), KeyPair(os.urandom(32))
    psks = [os.urandom(32) for _ in range(pattern.count("psk"))]
    us = local(name, initiator=dials, static=ours, remote_static=theirs.public, psks=psks)
    them = remote(name, initiator=not dials, static=theirs.private_bytes(), remote_static=ours.public, psks=list(psks))

    for turn in itertools.count():
        payload = os.urandom(turn * 20)
        if (turn % 2 == 0) == dials:
            assert them.read_message(us.write_message(payload)) == payload
        else:
            assert us.read_message(bytes(them.write_message(payload))) == payload
        if us.finished:
            break

    assert them.handshake_finished
    assert us.get_handshake_hash() == them.get_handshake_hash()
    send, receive = us.split()
    for size in (0, 1, 1000):
        text = os.urandom(size)
        assert them.decrypt(send.encrypt_with_ad(b"", text)) == text
        assert receive.decrypt_with_ad(b"", them.encrypt(text)) == text


class IndependentNode:
    """The other side of an Iris handshake, written from docs/reference/wire/handshake.md on noiseprotocol."""

    INDEX = 77

    def __init__(self, identity: NodeIdentity, suite: Suite, *, initiator: bool) -> None:
        self.identity = identity
        self.suite = suite
        self.connection = NoiseConnection.from_name(suite.protocol.name)
        self.connection.set_as_initiator() if initiator else self.connection.set_as_responder()
        self.connection.set_psks(psks=[identity.gate_secrets[0], bytes(32)])
        self.connection.set_prologue(
            b"iris handshake\0initiator dials, responder listens\0" + bytes([VERSION, suite]) + identity.realm
        )
        self.connection.set_keypair_from_private_bytes(Keypair.STATIC, identity.static.private_bytes())
        self.connection.start_handshake()

    @property
    def states(self) -> Any:
        """The inside of noiseprotocol, whose public methods take no associated data."""
        connection: Any = self.connection
        return connection.noise_protocol

    def papers(self) -> bytes:
        certificate, delegation = self.identity.certificate.signed, self.identity.delegation.signed
        sizes = struct.pack(">IHH", self.INDEX, len(certificate), len(delegation))
        return bytes.fromhex(self.identity.node_id) + sizes + certificate + delegation

    def check_data(self, frame: bytes, counter: int, body: bytes) -> None:
        """Read a first data frame: its body is a Noise transport message with the header as associated data."""
        header, ciphertext = frame[:HEADER_SIZE], frame[HEADER_SIZE:]
        assert struct.unpack(">BBHIQ", header) == (4, VERSION, 0, self.INDEX, counter)
        assert self.states.cipher_state_decrypt.decrypt_with_ad(header, ciphertext) == body

    def sent(self, counter: int, receiver: int, body: bytes) -> bytes:
        header = struct.pack(">BBHIQ", 4, VERSION, 0, receiver, counter)
        ciphertext: bytes = self.states.cipher_state_encrypt.encrypt_with_ad(header, body)
        return header + ciphertext


@pytest.mark.parametrize("suite", list(Suite))
def test_an_independent_responder_written_from_the_protocol_document_is_understood(suite: Suite) -> None:
    realm = TestRealm()
    us, them = realm.identity("orders"), realm.identity("billing")
    node = IndependentNode(them, suite, initiator=False)
    initiator = Initiator(
        us, index=5, hello=b"hello", entropy=os.urandom, wall_now=WALL, rules=HandshakeRules(suite=suite)
    )

    first = initiator.frame
    assert HEADER.unpack_from(first) == (HANDSHAKE_INIT, VERSION, 0, 0, 5)
    assert first[HEADER_SIZE] == suite
    payload = bytes(node.connection.read_message(first[HEADER_SIZE + 1 :]))
    assert payload[1184:] == b"hello"
    shared, ciphertext = MLKEM768PublicKey.from_public_bytes(payload[:1184]).encapsulate()
    node.connection.set_psks(psks=[shared])  # psk0 is used up
    response = node.connection.write_message(node.papers() + b"welcome")
    header = HEADER.pack(HANDSHAKE_RESPONSE, VERSION, 0, 5, node.INDEX)
    established = initiator.receive_untrusted(header + ciphertext + bytes(response), now=0.0, wall_now=WALL)
    assert established.peer.node_id == them.node_id
    assert established.hello == b"welcome"

    last = established.frame
    assert last is not None
    assert HEADER.unpack_from(last) == (HANDSHAKE_FINISH, VERSION, 0, node.INDEX, 5)
    papers = bytes(node.connection.read_message(last[HEADER_SIZE:]))
    assert papers[:16].hex() == us.node_id
    node.check_data(bytes(established.session.seal(b"to you")), 0, b"to you")
    assert established.session.open_untrusted(node.sent(0, 5, b"to us")) == b"to us"


@pytest.mark.parametrize("suite", list(Suite))
def test_an_independent_initiator_written_from_the_protocol_document_is_understood(suite: Suite) -> None:
    realm = TestRealm()
    us, them = realm.identity("orders"), realm.identity("billing")
    node = IndependentNode(them, suite, initiator=True)
    responder = Responder(us, index=5, entropy=os.urandom)

    decapsulation_key = MLKEM768PrivateKey.generate()
    first = node.connection.write_message(decapsulation_key.public_key().public_bytes_raw() + b"hello")
    header = HEADER.pack(HANDSHAKE_INIT, VERSION, 0, 0, node.INDEX)
    assert responder.receive_first_untrusted(header + bytes([suite]) + bytes(first)) == b"hello"
    response = responder.respond(b"welcome", wall_now=WALL)
    ciphertext, message = response[HEADER_SIZE : HEADER_SIZE + 1088], response[HEADER_SIZE + 1088 :]
    node.connection.set_psks(psks=[decapsulation_key.decapsulate(ciphertext)])
    assert bytes(node.connection.read_message(message)).endswith(b"welcome")
    last = node.connection.write_message(node.papers())
    header = HEADER.pack(HANDSHAKE_FINISH, VERSION, 0, 5, node.INDEX)
    established = responder.receive_last_untrusted(header + bytes(last), now=0.0, wall_now=WALL)

    assert established.peer.cluster == "billing"
    assert established.hello == b"hello"
    node.check_data(bytes(established.session.seal(b"to you")), 0, b"to you")
    assert established.session.open_untrusted(node.sent(0, 5, b"to us")) == b"to us"


@pytest.mark.parametrize("suite", list(Suite))
def test_both_sides_derive_the_same_next_key(suite: Suite) -> None:
    node = IndependentNode(TestRealm().identity("orders"), suite, initiator=True)
    state = node.states.handshake_state.symmetric_state.cipher_state
    key = os.urandom(32)
    state.initialize_key(key)
    state.rekey()
    assert bytes(state.k) == next_key(CIPHERS[suite.cipher], key)
