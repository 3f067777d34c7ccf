"""Handshake: authenticated key exchange between two nodes, of one realm or of two that trust each other.

It takes three frames and ends in a session.  Sans-IO.

Use, dialling side::

    initiator = Initiator(identity, index=index, hello=hello, entropy=entropy, wall_now=wall_now)
    send(initiator.frame)  # HANDSHAKE_INIT; the same frame may be sent again
    established = initiator.receive_untrusted(frame, now=now, wall_now=wall_now)  # of HANDSHAKE_RESPONSE
    send(established.frame)  # HANDSHAKE_FINISH; data frames may follow at once

answering side::

    responder = Responder(identity, index=index, entropy=entropy)
    hello = responder.receive_first_untrusted(frame)  # of HANDSHAKE_INIT; the hello says where to answer
    send(responder.respond(own_hello, wall_now=wall_now))  # HANDSHAKE_RESPONSE
    established = responder.receive_last_untrusted(frame, now=now, wall_now=wall_now)  # of HANDSHAKE_FINISH

``index`` is a number of 32 bits that this node gives to no other session or handshake at the same time; frames for
this handshake carry it as ``receiver`` in their header (first frame: receiver 0, the sender's index in ``counter``).
``hello`` is opaque, at most ``MAX_HELLO`` bytes: where a node can be dialled, for example.

What each frame proves, and to whom:

1. The hello of the first frame was sealed by somebody who knows the gate secret, perhaps long ago: it may be a replay.
   Treat it as a return address.  What does not know the gate secret costs no Diffie-Hellman.
2. The response is from the node in ``Established.peer``, to this very first frame.  Its hello is authentic.
3. The last frame is from the node in ``Established.peer``, to this very response; and with it the hello of the
   first frame, because Noise binds the whole transcript.

It is ``Noise_XXpsk0+psk2_25519_{AESGCM,ChaChaPoly}_SHA256``.  psk0 is the gate secret of the realm; between two realms
it is their pair secret, the prologue names both, and each end verifies the other by that one's root.  psk2 is an
ML-KEM-768 shared secret: its encapsulation key is in the first payload, its ciphertext stands before the second
message, for that message's payload is sealed with it.  So certificates and sessions that are recorded today stay closed
to a later quantum computer, also if its owner knows the gate secret; the responder's X25519 key, which comes before its
certificates, does not.  Authentication is classical: X25519 and Ed25519.

Errors: ``receive_*`` raise AuthenticationError and nothing else for what a peer sent.  Frames that are not genuine
change nothing (``over`` stays False): the genuine one may still come.  A genuine frame with a chain that does not
hold ends the handshake (``over`` is True); drop it.  A handshake has no clock: forget it after
``Config.handshake_timeout``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import ClassVar, Final, final

from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from msgspec import Struct

from iris.kernel.config import DEFAULTS, Config
from iris.kernel.errors import AuthenticationError, LocalProtocolError
from iris.kernel.names import Entropy, NodeId
from iris.kernel.wire import HANDSHAKE_FINISH, HANDSHAKE_INIT, HANDSHAKE_RESPONSE, HEADER, HEADER_SIZE, VERSION
from iris.security.channel.fork_guard import poison_after_fork
from iris.security.channel.session import Session
from iris.security.identity import (
    MAX_SIGNED,
    NodeIdentity,
    PeerIdentity,
    TrustedRealm,
    check_validity,
    verify_peer_untrusted,
)
from iris.security.noise import DHLEN, HandshakeState, KnownKeys, Suite, preferred_suite
from iris.security.secret import Redacted, Secret

EPHEMERAL: Final = slice(HEADER_SIZE + 1, HEADER_SIZE + 1 + DHLEN)
"""Position of the initiator's ephemeral key in a first frame."""

MAX_HELLO: Final = 4096
"""Limit on a hello in bytes: some dozens of addresses."""

ENCAPSULATION_KEY_SIZE: Final = 1184
CIPHERTEXT_SIZE: Final = 1088
_KEM_SEED_SIZE: Final = 64

_SUITES: Final = {suite.value: suite for suite in Suite}

_CERTIFICATES: Final = struct.Struct(">16sIHH")
"""Start of the part in which a node proves itself: node id, session index, sizes of certificate and delegation."""

MAX_HANDSHAKE_FRAME: Final = 24 * 1024
"""Limit on a handshake frame in bytes: two signed documents of 8 KiB, a hello, and the parts of Noise and ML-KEM."""

Admit = Callable[[PeerIdentity], None]
"""Called with a verified peer; raises AuthenticationError to refuse it (revoked, for example)."""


@final
class HandshakeRules(Struct, frozen=True, kw_only=True):
    """Rules for the other side of a handshake, and for the session that comes of it."""

    admit: Admit | None = None
    config: Config = DEFAULTS
    """For the lifetime of the session."""
    expected: NodeId | None = None
    """The handshake fails if another node answers its initiator; None: any node of the realm."""
    realm_id: str = ""
    """Fingerprint of the trusted realm that a responder is of; empty: this node's own."""
    suite: Suite | None = None
    """Cipher suite of an initiator; None: the one that suits this machine."""


_ANYBODY: Final = HandshakeRules()


@final
class Established(Redacted, frozen=True, kw_only=True):
    """The result of a finished handshake.

    Args:
        session: ready to seal and open.
        peer: the verified node at the other end.
        hello: the peer's hello, authentic.
        frame: the last frame to send, on the initiator's side; else None.
    """

    _unshown: ClassVar = frozenset({"hello", "frame"})

    session: Session
    peer: PeerIdentity
    hello: bytes
    frame: bytes | None


def prologue(suite: Suite, realm: bytes) -> bytes:
    """Return what both sides must agree on before they begin: protocol, version, suite, realm, and who plays what."""
    return b"".join(
        (
            b"iris handshake\0initiator dials, responder listens\0",
            bytes((VERSION, suite)),
            realm,
        )
    )


def prologue_between(suite: Suite, initiator: bytes, responder: bytes) -> bytes:
    """Return what both sides must agree on if their realms are not the same."""
    return b"".join(
        (
            b"iris handshake between realms\0initiator dials, responder listens\0",
            bytes((VERSION, suite)),
            initiator,
            responder,
        )
    )


@final
class NotAdmitted(AuthenticationError):
    """The certificates of the other side are in order, and ``admit`` refuses it all the same.

    Attributes:
        peer: the refused node.
        session: at the answering side, the one that would have come of it, in which the peer can be told why.  To be
            closed after that; nothing is to be opened in it.
    """

    def __init__(self, message: str, peer: PeerIdentity) -> None:
        super().__init__(message)
        self.peer: Final = peer
        self.session: Session | None = None


class _Side:
    """The common part of both sides of a handshake."""

    __slots__ = ("__weakref__", "_identity", "_index", "_noise", "_rules", "_trusted", "over")

    _noise: HandshakeState | None

    def __init__(self, identity: NodeIdentity, index: int, noise: HandshakeState | None, rules: HandshakeRules) -> None:
        if not 0 < index < 2**32:
            raise LocalProtocolError(f"session index {index} is not a number of 32 bits above 0")
        self._identity = identity
        self._index = index
        self._noise = noise
        self._rules = rules
        self._trusted: TrustedRealm | None = None
        self.over = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._index}{' over' if self.over else ''}>"

    @property
    def index(self) -> int:
        """The session index of this side."""
        return self._index

    @property
    def realm_id(self) -> str:
        """The fingerprint of the realm that the other side says it is of; empty: this node's own."""
        return "" if self._trusted is None else self._trusted.realm.id

    def poison(self) -> None:
        """Make this handshake unusable, in the child of a fork."""
        self._noise = None
        self.over = True

    def _open_noise(self) -> HandshakeState:
        if self._noise is None or self.over:
            raise LocalProtocolError("this handshake is over, has not begun, or belongs to a parent process")
        return self._noise

    def _certificates(self, wall_now: float) -> bytes:
        """Return the proof of who this node is, for inside an encrypted payload."""
        me = self._identity
        check_validity(me.certificate, me.delegation, wall_now)
        certificate, delegation = me.certificate.signed, me.delegation.signed
        start = _CERTIFICATES.pack(bytes.fromhex(me.node_id), self._index, len(certificate), len(delegation))
        return start + certificate + delegation

    def _read_certificates_untrusted(
        self, payload: bytes, static: bytes | None, index: int, wall_now: float
    ) -> tuple[PeerIdentity, bytes]:
        """Verify who the other side is; return it and what follows its certificates."""
        if len(payload) < _CERTIFICATES.size:
            raise AuthenticationError("handshake: no room for a certificate")
        node, stated_index, certificate_size, delegation_size = _CERTIFICATES.unpack_from(payload)
        middle = _CERTIFICATES.size + certificate_size
        end = middle + delegation_size
        if max(certificate_size, delegation_size) > MAX_SIGNED or len(payload) < end:
            raise AuthenticationError("handshake: a certificate is cut off or too long")
        other_realm = None if self._trusted is None else self._trusted.realm
        peer = verify_peer_untrusted(
            self._identity.realm if other_realm is None else other_realm.bundle.realm,
            node_id=node.hex(),
            certificate=payload[_CERTIFICATES.size : middle],
            delegation=payload[middle:end],
            wall_now=wall_now,
            other_realm=other_realm,
        )
        # The header is not encrypted.  The index inside the payload is, so nobody can lead the session's frames astray.
        if stated_index != index:
            raise AuthenticationError(f"node {peer.node_id}: the session index in the header was changed")
        # Certificates are public.  This comparison ties the chain to the key that has just done the Diffie-Hellman;
        # without it anybody could show the chain of another node.
        if static != peer.delegation.static_key:
            raise AuthenticationError(f"node {peer.node_id}: the delegation is for another static key")
        if peer.node_id == self._identity.node_id:
            raise AuthenticationError(f"node {peer.node_id} met itself")
        if self._rules.admit is not None:
            try:
                self._rules.admit(peer)
            except AuthenticationError as error:
                raise NotAdmitted(str(error), peer) from None
        return peer, payload[end:]

    def _establish(self, noise: HandshakeState, suite: Suite, remote_index: int, now: float) -> Session:
        seal, open_ = noise.split()
        assert seal.k is not None
        assert open_.k is not None
        self.poison()  # the keys live on in the session only
        return Session(
            suite=suite,
            indices=(self._index, remote_index),
            seal_key=seal.k,
            open_key=open_.k,
            established=now,
            config=self._rules.config,
        )


@final
class Initiator(_Side):
    """The dialling side of one handshake.

    Args:
        identity: the identity of this node.
        index: this side's session index.
        hello: the first message to the other side; anybody who knows the gate secret can read it.
        entropy: source of the ephemeral keys.
        wall_now: seconds since 1970.
        rules: rules for the other side.

    Raises:
        AuthenticationError: this node's own certificate or delegation is not valid at ``wall_now``; or the realm is
            not trusted, or not any more.
        LocalProtocolError: the hello is longer than ``MAX_HELLO``, or the index is not one.
    """

    __slots__ = ("_decapsulation_key", "_suite", "frame")

    def __init__(
        self,
        identity: NodeIdentity,
        *,
        index: int,
        hello: bytes,
        entropy: Entropy,
        wall_now: float,
        rules: HandshakeRules = _ANYBODY,
    ) -> None:
        suite = rules.suite or preferred_suite()
        trusted = _trusted(identity, rules.realm_id) if rules.realm_id else None
        if trusted is not None:
            trusted.realm.check_time(wall_now)
        noise = _begin(identity, 0, suite, entropy, trusted, initiator=True)
        super().__init__(identity, index, noise, rules)
        self._trusted = trusted
        poison_after_fork(self)
        check_validity(identity.certificate, identity.delegation, wall_now)
        _check_hello(hello)
        self._suite = suite
        self._decapsulation_key = MLKEM768PrivateKey.from_seed_bytes(Secret(entropy(_KEM_SEED_SIZE)))
        encapsulation_key = self._decapsulation_key.public_key().public_bytes_raw()
        header = HEADER.pack(HANDSHAKE_INIT, VERSION, 0, 0, index)
        self.frame = header + bytes((suite,)) + noise.write_message(encapsulation_key + hello)

    def receive_untrusted(self, frame: bytes, *, now: float, wall_now: float) -> Established:
        """Read the response and finish.

        Raises:
            AuthenticationError: not the response to this handshake, or from somebody who is not to be talked to.
            LocalProtocolError: the handshake is over.
        """
        noise = self._open_noise()
        remote_index, message = _read_frame_untrusted(frame, HANDSHAKE_RESPONSE, self._index)
        if len(message) < CIPHERTEXT_SIZE:
            raise AuthenticationError("handshake: no room for a key encapsulation")
        # ML-KEM rejects implicitly: any ciphertext of this size opens to some secret.  With another than the
        # responder's the payload below does not open, so nothing has to be compared here.
        noise.psks[2] = Secret(self._decapsulation_key.decapsulate(message[:CIPHERTEXT_SIZE]))
        payload = noise.read_message(message[CIPHERTEXT_SIZE:])
        # From here on the answer is genuine, and any error is final: its maker knows the gate secret and our
        # ephemeral key, so no better answer will come.  Until here junk has changed nothing.
        self.over = True
        # Genuine is not yet authenticated: only the chain says which node this is, and that the static key is its own.
        peer, hello = self._read_certificates_untrusted(payload, noise.rs, remote_index, wall_now)
        expected = self._rules.expected
        if expected is not None and peer.node_id != expected:
            raise AuthenticationError(f"node {peer.node_id} of cluster {peer.cluster!r} answered for {expected}")
        # From here on the peer is authenticated.  Only now does this node say who it is: a stranger that answers at an
        # address must not learn the cluster and the permissions of those that dial it.
        header = HEADER.pack(HANDSHAKE_FINISH, VERSION, 0, remote_index, self._index)
        last = header + noise.write_message(self._certificates(wall_now))
        session = self._establish(noise, self._suite, remote_index, now)
        return Established(session=session, peer=peer, hello=hello, frame=last)


@final
class Responder(_Side):
    """The answering side of one handshake.

    Args:
        identity: the identity of this node.
        index: this side's session index.
        entropy: source of the ephemeral keys.
        rules: rules for the other side.
    """

    __slots__ = ("_encapsulation_key", "_entropy", "_hello", "_remote_index", "_suite")

    def __init__(
        self,
        identity: NodeIdentity,
        *,
        index: int,
        entropy: Entropy,
        rules: HandshakeRules = _ANYBODY,
    ) -> None:
        super().__init__(identity, index, None, rules)
        self._entropy = entropy
        self._encapsulation_key: MLKEM768PublicKey | None = None

    def receive_first_untrusted(self, frame: bytes) -> bytes:
        """Return the initiator's hello.  No Diffie-Hellman happens unless the gate secret was known to the sender.

        Raises:
            AuthenticationError: not a first frame, or sealed with another gate secret.
            LocalProtocolError: called before with success.
        """
        if self._noise is not None or self.over:
            raise LocalProtocolError("this handshake has begun, or is over")
        remote_index, message = _read_frame_untrusted(frame, HANDSHAKE_INIT, 0)
        if not remote_index or not message:
            raise AuthenticationError("handshake: a first frame without session index or suite")
        suite = _SUITES.get(message[0])
        if suite is None:
            raise AuthenticationError(f"handshake: suite {message[0]} is not known")
        noise, payload = self._pass_gate_untrusted(suite, message[1:])
        # From here on the sender knows the gate secret, or has recorded somebody who does: the hello is a return
        # address and nothing more.  State is kept for it, so admission control has to bound how much.
        if not ENCAPSULATION_KEY_SIZE <= len(payload) <= ENCAPSULATION_KEY_SIZE + MAX_HELLO:
            raise AuthenticationError("handshake: the first payload is too short or too long")
        try:
            self._encapsulation_key = MLKEM768PublicKey.from_public_bytes(payload[:ENCAPSULATION_KEY_SIZE])
        except ValueError:
            raise AuthenticationError("handshake: the encapsulation key is not valid") from None
        self._remote_index = remote_index
        self._suite = suite
        self._noise = noise
        poison_after_fork(self)
        self._hello = payload[ENCAPSULATION_KEY_SIZE:]
        return self._hello

    def respond(self, hello: bytes, *, wall_now: float) -> bytes:
        """Return the response, which only the sender of the first frame can read.

        Raises:
            AuthenticationError: the ephemeral key of the first frame is not valid, or this node's own certificate or
                delegation is not valid at ``wall_now``.  The handshake is over.
            LocalProtocolError: nothing to respond to, responded before, or the hello is longer than ``MAX_HELLO``.
        """
        noise = self._open_noise()
        _check_hello(hello)
        if self._encapsulation_key is None:
            raise LocalProtocolError("this handshake has been responded to")
        encapsulation_key, self._encapsulation_key = self._encapsulation_key, None
        try:
            certificates = self._certificates(wall_now)
            shared, ciphertext = encapsulation_key.encapsulate()
            noise.psks[2] = Secret(shared)
            message = ciphertext + noise.write_message(certificates + hello)
        except AuthenticationError:
            self.over = True
            raise
        return HEADER.pack(HANDSHAKE_RESPONSE, VERSION, 0, self._remote_index, self._index) + message

    def receive_last_untrusted(self, frame: bytes, *, now: float, wall_now: float) -> Established:
        """Read the last frame and finish.  ``hello`` of the result is that of the first frame, now authentic.

        Raises:
            NotAdmitted, an AuthenticationError: from somebody who is not to be talked to.
            AuthenticationError: not the last frame of this handshake; or none can be genuine yet, because there was no
                response.
            LocalProtocolError: the handshake is over.
        """
        if not self.over and (self._noise is None or self._encapsulation_key is not None):
            raise AuthenticationError("handshake: a last frame before there was a response")
        noise = self._open_noise()
        remote_index, message = _read_frame_untrusted(frame, HANDSHAKE_FINISH, self._index)
        if remote_index != self._remote_index:
            raise AuthenticationError("handshake: this frame is not for this handshake")
        payload = noise.read_message(message)
        # From here on the frame is genuine and no replay, because it is bound to the ephemeral key of this response.
        # Any error is final.
        self.over = True
        try:
            peer, surplus = self._read_certificates_untrusted(payload, noise.rs, remote_index, wall_now)
        except NotAdmitted as error:
            # It has proved who it is and is refused all the same: one frame may tell it why, which nobody else reads.
            error.session = self._establish(noise, self._suite, remote_index, now)
            raise
        if surplus:
            raise AuthenticationError(f"node {peer.node_id}: surplus bytes in the last handshake frame")
        # From here on the peer is authenticated, and with it the hello of its first frame: the transcript binds both.
        session = self._establish(noise, self._suite, remote_index, now)
        return Established(session=session, peer=peer, hello=self._hello, frame=None)

    def _pass_gate_untrusted(self, suite: Suite, message: bytes) -> tuple[HandshakeState, bytes]:
        """Try the gate secrets, of which there are two only while the realm changes from one to the next.

        Then the secrets that this realm shares with others.
        """
        gates: list[tuple[int, TrustedRealm | None]] = [
            (gate, None) for gate in range(len(self._identity.gate_secrets))
        ]
        gates += [(0, trusted) for trusted in self._identity.trusted]
        for gate, trusted in gates:
            noise = _begin(self._identity, gate, suite, self._entropy, trusted, initiator=False)
            try:
                payload = noise.read_message(message)
            except AuthenticationError:
                continue
            self._trusted = trusted
            return noise, payload
        raise AuthenticationError("handshake: the sender does not know the gate secret of this realm")


def _trusted(identity: NodeIdentity, realm_id: str) -> TrustedRealm:
    for trusted in identity.trusted:
        if trusted.realm.id == realm_id:
            return trusted
    raise AuthenticationError(f"realm {realm_id} is not trusted here: see 'iris keys trust'")


def _begin(
    identity: NodeIdentity,
    gate: int,
    suite: Suite,
    entropy: Entropy,
    trusted: TrustedRealm | None,
    *,
    initiator: bool,
) -> HandshakeState:
    """Return the start of a handshake under a gate secret; what does not change between them is computed once."""
    key = (suite, gate, "" if trusted is None else trusted.realm.id, initiator)
    state = identity.beginnings.get(key)
    if state is None:
        if trusted is None:
            agreed, psk = prologue(suite, identity.realm), identity.gate_secrets[gate]
        else:
            realms = (identity.realm, trusted.realm.bundle.realm)
            agreed, psk = prologue_between(suite, *(realms if initiator else realms[::-1])), trusted.pair_secret
        state = identity.beginnings[key] = HandshakeState(
            suite.protocol,
            initiator=initiator,
            entropy=entropy,
            prologue=agreed,
            keys=KnownKeys(s=identity.static, psks={0: psk}),
        )
    return state.again(entropy)


def _check_hello(hello: bytes) -> None:
    if len(hello) > MAX_HELLO:
        raise LocalProtocolError(f"a hello of {len(hello)} bytes: the limit is {MAX_HELLO} bytes")


def _read_frame_untrusted(frame: bytes, kind: int, index: int) -> tuple[int, bytes]:
    """Return the sender's session index and the Noise message of a handshake frame."""
    if not HEADER_SIZE < len(frame) <= MAX_HANDSHAKE_FRAME:
        raise AuthenticationError(f"handshake: a frame of {len(frame)} bytes")
    header = HEADER.unpack_from(frame)
    remote_index: int = header[4]
    if header[:4] != (kind, VERSION, 0, index) or not remote_index < 2**32:
        raise AuthenticationError("handshake: this frame is not for this handshake")
    return remote_index, frame[HEADER_SIZE:]
