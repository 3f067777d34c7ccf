"""Handshake state of the Noise Protocol Framework, revision 34, over X25519.

Names are those of the specification (https://noiseprotocol.org/noise.html): ``CipherState``, ``SymmetricState``,
``HandshakeState``, ``ck``, ``h``, ``mix_key``.  A pattern is data.  Iris runs one (``iris.security.noise.suites``); the
tests run all that there are, as 1,104 public vectors have them.

Not part of the framework's text, and therefore decided here:

- A message that is not genuine leaves the state as it was, so junk thrown in by a third party cannot end a
  handshake; the genuine message may still come.  Any other error ends it: a half-advanced state is never used.
- Everything that a peer can get wrong raises AuthenticationError, whatever the primitive raised.
- Ephemeral keys are made of the entropy that is passed in.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Mapping
from typing import ClassVar, Final, Protocol, final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from msgspec import Struct

from iris.kernel.errors import AuthenticationError, LocalProtocolError
from iris.kernel.names import Entropy
from iris.security.secret import Redacted, Secret

DHLEN: Final = 32
TAGLEN: Final = 16
MAX_MESSAGE: Final = 65535
_MAX_NONCE: Final = 2**64 - 1
_FIRST_NONCE: Final = bytes(12)


class Hashed(Protocol):
    """A hash of hashlib."""

    def digest(self) -> bytes:
        """Return the hash."""
        ...


Aead = AESGCM | ChaCha20Poly1305
CIPHERS: Final[Mapping[str, type[Aead]]] = {"AESGCM": AESGCM, "ChaChaPoly": ChaCha20Poly1305}
HASHES: Final[Mapping[str, tuple[Callable[[bytes], Hashed], hashes.HashAlgorithm]]] = {
    "SHA256": (hashlib.sha256, hashes.SHA256()),
    "SHA512": (hashlib.sha512, hashes.SHA512()),
    "BLAKE2s": (hashlib.blake2s, hashes.BLAKE2s(32)),
    "BLAKE2b": (hashlib.blake2b, hashes.BLAKE2b(64)),
}


@final
class KeyPair:
    """An X25519 key pair (section 2.1, 12.1).  Its repr shows the public half only."""

    __slots__ = ("_private", "public")

    def __init__(self, private: bytes) -> None:
        self._private = X25519PrivateKey.from_private_bytes(private)
        self.public = self._private.public_key().public_bytes_raw()

    def __repr__(self) -> str:
        return f"KeyPair(public={self.public.hex()})"

    def __reduce__(self) -> str:
        raise TypeError("a key pair is not copied or pickled")

    def private_bytes(self) -> Secret:
        """Return the secret half, to store it."""
        return Secret(self._private.private_bytes_raw())

    def dh(self, public_key: bytes) -> Secret:
        """Return the shared secret; AuthenticationError for a point of low order (RFC 7748, section 6.1)."""
        try:
            return Secret(self._private.exchange(X25519PublicKey.from_public_bytes(public_key)))
        except ValueError:
            raise AuthenticationError("a Diffie-Hellman public key is not valid") from None


@final
class CipherState:
    """Section 5.1: a key and a nonce that only grows."""

    __slots__ = ("_aead", "_cipher", "k", "n")

    def __init__(self, cipher: str) -> None:
        self._cipher = cipher
        self._aead: Aead | None = None
        self.k: Secret | None = None
        self.n = 0

    def initialize_key(self, key: bytes) -> None:
        """Take ``key`` and start again at nonce 0."""
        self.k = key if type(key) is Secret else Secret(key)
        self.n = 0
        self._aead = None  # half of the keys of a handshake are replaced before they are used

    def copy(self) -> CipherState:
        """Return an independent copy, for reading what may turn out not to be genuine."""
        copied = object.__new__(CipherState)
        copied._cipher, copied._aead, copied.k, copied.n = self._cipher, self._aead, self.k, self.n
        return copied

    def has_key(self) -> bool:
        """Return whether what passes is encrypted."""
        return self.k is not None

    def nonce(self, n: int) -> bytes:
        """Return ``n`` as the cipher takes it (sections 12.3, 12.4)."""
        return bytes(4) + n.to_bytes(8, "big" if self._cipher == "AESGCM" else "little")

    def encrypt_with_ad(self, ad: bytes, plaintext: bytes) -> bytes:
        """Return the ciphertext with its tag, or ``plaintext`` itself if there is no key yet."""
        if self.k is None:
            return plaintext
        if self.n >= _MAX_NONCE:
            raise LocalProtocolError("the nonces of this key are used up")
        n = self.n
        self.n = n + 1  # before the cipher runs: an error may cost a nonce, never use one twice
        if self._aead is None:
            self._aead = CIPHERS[self._cipher](self.k)
        return self._aead.encrypt(self.nonce(n) if n else _FIRST_NONCE, plaintext, ad)

    def decrypt_with_ad(self, ad: bytes, ciphertext: bytes) -> bytes:
        """Return the plaintext; AuthenticationError, and no change, if ``ciphertext`` is not genuine."""
        if self.k is None:
            return ciphertext
        if self.n >= _MAX_NONCE:
            raise AuthenticationError("the nonces of this key are used up")
        if self._aead is None:
            self._aead = CIPHERS[self._cipher](self.k)
        try:
            plaintext = self._aead.decrypt(self.nonce(self.n) if self.n else _FIRST_NONCE, ciphertext, ad)
        except InvalidTag:
            raise AuthenticationError("a message does not decrypt") from None
        self.n += 1
        return plaintext


def next_key(cipher: type[Aead], key: bytes) -> Secret:
    """REKEY(k) of section 4.2: the first 32 bytes of ENCRYPT(k, 2^64-1, no data, 32 zeros)."""
    return Secret(cipher(key).encrypt(bytes(4) + b"\xff" * 8, bytes(32), b"")[:32])


@final
class SymmetricState:
    """Section 5.2: the chaining key and the transcript hash."""

    __slots__ = ("_algorithm", "_cipher", "_hash", "cipher_state", "ck", "h")

    def __init__(self, protocol_name: bytes, cipher: str, hash_name: str) -> None:
        self._cipher = cipher
        self._hash, self._algorithm = HASHES[hash_name]
        hashlen = self._algorithm.digest_size
        self.h = (
            protocol_name.ljust(hashlen, b"\0") if len(protocol_name) <= hashlen else self._hash(protocol_name).digest()
        )
        self.ck = Secret(self.h)
        self.cipher_state = CipherState(cipher)

    def copy(self) -> SymmetricState:
        """Return an independent copy, for reading what may turn out not to be genuine."""
        copied = object.__new__(SymmetricState)
        copied._cipher, copied._hash, copied._algorithm = self._cipher, self._hash, self._algorithm
        copied.ck, copied.h, copied.cipher_state = self.ck, self.h, self.cipher_state.copy()
        return copied

    def _hkdf(self, input_key_material: bytes, outputs: int) -> tuple[Secret, ...]:
        # Section 4.3: RFC 5869 with ck as the salt and nothing as the info
        size = len(self.ck)
        derived = HKDF(self._algorithm, outputs * size, self.ck, b"").derive(input_key_material)
        return tuple(map(Secret, struct.unpack(f"{size}s" * outputs, derived)))

    def mix_key(self, input_key_material: bytes) -> None:
        """Fold a secret into the chaining key and take a new encryption key from it."""
        self.ck, temp_k = self._hkdf(input_key_material, 2)
        self.cipher_state.initialize_key(temp_k if len(temp_k) == 32 else temp_k[:32])

    def mix_hash(self, data: bytes) -> None:
        """Fold what both sides have seen into the transcript."""
        self.h = self._hash(self.h + data).digest()

    def mix_key_and_hash(self, input_key_material: bytes) -> None:
        """Fold a pre-shared key into both."""
        self.ck, temp_h, temp_k = self._hkdf(input_key_material, 3)
        self.mix_hash(temp_h)
        self.cipher_state.initialize_key(temp_k if len(temp_k) == 32 else temp_k[:32])

    def encrypt_and_hash(self, plaintext: bytes) -> bytes:
        """Encrypt with the transcript as associated data, and make the result part of it."""
        ciphertext = self.cipher_state.encrypt_with_ad(self.h, plaintext)
        self.mix_hash(ciphertext)
        return ciphertext

    def decrypt_and_hash(self, ciphertext: bytes) -> bytes:
        """Undo ``encrypt_and_hash``; AuthenticationError if the transcripts differ."""
        plaintext = self.cipher_state.decrypt_with_ad(self.h, ciphertext)
        self.mix_hash(ciphertext)
        return plaintext

    def split(self) -> tuple[CipherState, CipherState]:
        """Return the ciphers of the two directions: initiator to responder, and back."""
        pair = (CipherState(self._cipher), CipherState(self._cipher))
        for state, key in zip(pair, self._hkdf(b"", 2), strict=True):
            state.initialize_key(key[:32])
        return pair


@final
class NoiseProtocol(Struct, frozen=True, kw_only=True):
    """A Noise protocol: a pattern with its modifiers, over X25519, a cipher and a hash.

    Args:
        initiator_pre_message: "s" if the responder knows the initiator's static key beforehand, else "".
        responder_pre_message: likewise, the other way round.
        messages: the tokens of each message; ``pskN`` stands where its key is mixed in.
        psk_mode: True if there is any pre-shared key, which changes the meaning of ``e`` (section 9.2).
    """

    name: bytes
    initiator_pre_message: str
    responder_pre_message: str
    messages: tuple[tuple[str, ...], ...]
    psk_mode: bool
    cipher: str
    hash_name: str


@final
class KnownKeys(Redacted, frozen=True, kw_only=True):
    """The keys that one side has before a handshake; names as in section 5.3."""

    _unshown: ClassVar = frozenset({"s", "psks"})

    s: KeyPair | None = None
    rs: bytes | None = None
    psks: Mapping[int, bytes] = {}


_NO_KEYS: Final = KnownKeys()


@final
class HandshakeState:
    """Section 5.3: one side of one handshake.

    ``psks`` maps the number of each ``pskN`` modifier to its 32 bytes.  A key that is only known later may be put
    in before the message that uses it.
    """

    __slots__ = ("_entropy", "_initiator", "_next", "_protocol", "e", "psks", "re", "rs", "s", "ss")

    def __init__(
        self,
        protocol: NoiseProtocol,
        *,
        initiator: bool,
        entropy: Entropy,
        prologue: bytes = b"",
        keys: KnownKeys = _NO_KEYS,
    ) -> None:
        self._protocol = protocol
        self._initiator = initiator
        self._entropy = entropy
        self._next = 0
        self.psks: dict[int, bytes] = {number: Secret(psk) for number, psk in keys.psks.items()}
        self.s = s = keys.s
        self.rs = rs = keys.rs
        self.e: KeyPair | None = None
        self.re: bytes | None = None
        self.ss = SymmetricState(protocol.name, protocol.cipher, protocol.hash_name)
        self.ss.mix_hash(prologue)
        for known, ours in (
            (protocol.initiator_pre_message, initiator),
            (protocol.responder_pre_message, not initiator),
        ):
            if known:
                public = (s.public if s else None) if ours else rs
                assert public is not None
                self.ss.mix_hash(public)
        if protocol.messages[0][0] == "psk0":
            # The first token of all, so it can be done before it is known what is said: see ``again``
            self._mix_token("psk0")

    def again(self, entropy: Entropy) -> HandshakeState:
        """Return a handshake that begins like this one: what was mixed in so far is not computed once more.

        Raises:
            LocalProtocolError: this one has begun; two that go on from one state would share keys and nonces.
        """
        if self._next:
            raise LocalProtocolError("a handshake that has begun cannot be copied")
        copied = object.__new__(HandshakeState)
        copied._protocol, copied._initiator, copied._entropy, copied._next = (
            self._protocol,
            self._initiator,
            entropy,
            0,
        )
        copied.psks = dict(self.psks)
        copied.s, copied.rs, copied.e, copied.re = self.s, self.rs, None, None
        copied.ss = self.ss  # a handshake that goes on from it makes a copy first
        return copied

    @property
    def finished(self) -> bool:
        """True once every message has passed."""
        return self._next == len(self._protocol.messages)

    def get_handshake_hash(self) -> bytes:
        """Return the hash of the whole transcript, the same on both sides and nowhere else."""
        return self.ss.h

    def write_message(self, payload: bytes) -> bytes:
        """Return the next message, which carries ``payload``.

        Raises:
            LocalProtocolError: out of turn, or after an error.
        """
        begins = self._next == 0
        tokens = self._check_turn(self._initiator)
        if begins:
            self.ss = self.ss.copy()  # others may begin with it, too: see ``again``
        ss = self.ss
        message = b""
        for token in tokens:
            match token:
                case "e":
                    self.e = KeyPair(self._entropy(DHLEN))
                    message += self.e.public
                    self._mix_ephemeral(self.e.public)
                case "psk0":
                    continue  # mixed in at the start
                case "s":
                    assert self.s is not None
                    message += ss.encrypt_and_hash(self.s.public)
                case _:
                    self._mix_token(token)
        message += ss.encrypt_and_hash(payload)
        return self._end_turn(message)

    def read_message(self, message: bytes) -> bytes:
        """Return the payload of the peer's next message.

        Raises:
            AuthenticationError: the message is not genuine.  Nothing has changed; the genuine one may still come.
            LocalProtocolError: out of turn, or after an error.
        """
        turn = self._next
        tokens = self._check_turn(not self._initiator)
        # Read on a copy: nothing in the message is verified before its last tag, and the genuine one may still come.
        before = self.ss, self.re, self.rs
        self.ss = self.ss.copy()
        try:
            return self._end_turn(self._read_tokens(tokens, message))
        except AuthenticationError:
            self.ss, self.re, self.rs = before
            self._next = turn
            raise

    def _read_tokens(self, tokens: tuple[str, ...], message: bytes) -> bytes:
        ss = self.ss
        if len(message) > MAX_MESSAGE:
            raise AuthenticationError(f"a handshake message of {len(message)} bytes is too long")
        for token in tokens:
            match token:
                case "e":
                    self.re, message = _cut(message, DHLEN)
                    self._mix_ephemeral(self.re)
                case "psk0":
                    continue  # mixed in at the start
                case "s":
                    public, message = _cut(message, DHLEN + (TAGLEN if ss.cipher_state.has_key() else 0))
                    self.rs = ss.decrypt_and_hash(public)
                case _:
                    self._mix_token(token)
        return ss.decrypt_and_hash(message)

    def split(self) -> tuple[CipherState, CipherState]:
        """Return the ciphers for sending and for receiving."""
        if not self.finished:
            raise LocalProtocolError("the handshake is not finished")
        first, second = self.ss.split()
        return (first, second) if self._initiator else (second, first)

    def _check_turn(self, writer_is_initiator: bool) -> tuple[str, ...]:
        turn = self._next
        if not 0 <= turn < len(self._protocol.messages) or (turn % 2 == 0) is not writer_is_initiator:
            raise LocalProtocolError("a handshake message out of turn, or after an error")
        self._next = -1 - turn  # until _end_turn: an error on the way leaves the handshake unusable
        return self._protocol.messages[turn]

    def _end_turn(self, result: bytes) -> bytes:
        self._next = -self._next
        return result

    def _mix_ephemeral(self, public: bytes) -> None:
        self.ss.mix_hash(public)
        if self._protocol.psk_mode:  # section 9.2
            self.ss.mix_key(public)

    def _mix_token(self, token: str) -> None:
        if token.startswith("psk"):
            self.ss.mix_key_and_hash(self.psks[int(token[3:])])
            return
        # the first letter is the initiator's key, the second the responder's
        ours, theirs = (token[0], token[1]) if self._initiator else (token[1], token[0])
        key = self.e if ours == "e" else self.s
        public = self.re if theirs == "e" else self.rs
        assert key is not None
        assert public is not None
        self.ss.mix_key(key.dh(public))


def _cut(message: bytes, size: int) -> tuple[bytes, bytes]:
    if len(message) < size:
        raise AuthenticationError("a handshake message is cut off")
    return message[:size], message[size:]
