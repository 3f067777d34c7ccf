"""Sender keys: one frame sealed once for several receivers, so that one copy of it crosses a link between sites.

A publisher makes a key for one set of receivers and hands it to each of them over their sessions.  When the set
changes there is another key, so a node that has gone opens nothing that came after.  Rules of this file:

- A frame is a header of 24 bytes, the sealed body and a signature.  The header is the associated data, and the number
  of the frame in it the nonce.  A publisher numbers the frames of all its keys together: a nonce never repeats, and a
  receiver can tell what comes late whatever key it is under.
- A frame names the one before it under the same key, so a receiver sees what was lost in flight.
- Every receiver has the key and could seal with it.  So the publisher signs each frame with its node's signing key:
  what receivers make up among themselves is refused.  It costs 0.03 ms to sign and 0.1 ms to verify a frame of up to
  64 KiB.

The idea is Signal's (Marlinspike and Perrin, "Sesame", 2017, and its sender keys).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from typing import Final, NamedTuple, final

from cryptography.exceptions import InvalidTag

from iris.kernel.errors import AuthenticationError, LocalProtocolError
from iris.kernel.wire import COPY, HEADER, HEADER_SIZE, VERSION
from iris.security.channel.fork_guard import poison_after_fork
from iris.security.channel.session import NONCE
from iris.security.noise import Suite, preferred_suite
from iris.security.noise import handshake_state as noise

KEY_SIZE: Final = 32
SIGNATURE_SIZE: Final = 64

_BEFORE: Final = struct.Struct(">Q")
_CLEAR: Final = HEADER_SIZE + _BEFORE.size
_SMALLEST: Final = _CLEAR + noise.TAGLEN + SIGNATURE_SIZE
_PURPOSE: Final = b"iris copy 1\0"


class CopyHeader(NamedTuple):
    """The unencrypted header: the number of its key, its own, and that of the frame before."""

    key: int
    number: int
    before: int


def read_copy_header_untrusted(frame: bytes) -> CopyHeader:
    """Read the header of a frame; raise AuthenticationError if it is none."""
    if len(frame) < _SMALLEST:
        raise AuthenticationError(f"a copy of {len(frame)} bytes cannot be a sealed one")
    kind, version, epoch, key, number = HEADER.unpack_from(frame)
    (before,) = _BEFORE.unpack_from(frame, HEADER_SIZE)
    if kind != COPY or version != VERSION or epoch or number <= before:
        raise AuthenticationError("not a copy of version 1")
    return CopyHeader(key, number, before)


@final
class SendingKey:
    """A sender key at its publisher.

    Args:
        number: the number of the key among those of this publisher, from 1.
        key: 32 random bytes.
        suite: the suite that seals; by default the faster one here.
    """

    __slots__ = ("__weakref__", "_aead", "_before", "_nonce", "frames", "number", "suite")

    def __init__(self, number: int, key: bytes, suite: Suite | None = None) -> None:
        suite = preferred_suite() if suite is None else suite
        self.number: Final = number
        self.suite: Final = suite
        self.frames = 0
        """Frames sealed."""
        self._aead: noise.Aead | None = noise.CIPHERS[suite.cipher](key)
        self._nonce = NONCE[suite].pack
        self._before = 0
        poison_after_fork(self)

    def __repr__(self) -> str:
        return f"<SendingKey {self.number}, {self.frames} frames>"

    def __reduce__(self) -> str:
        raise TypeError("a sender key is not copied or pickled")

    def seal(self, body: bytes | bytearray | memoryview, number: int, sign: Callable[[bytes], bytes]) -> bytes:
        """Return the frame that carries ``body``; ``number`` is above that of every frame before.

        Raises:
            LocalProtocolError: this process was forked.
        """
        if self._aead is None:
            raise LocalProtocolError("this key belongs to the parent process: a forked child must open its own node")
        clear = HEADER.pack(COPY, VERSION, 0, self.number, number) + _BEFORE.pack(self._before)
        self._before = number
        self.frames += 1
        sealed = clear + self._aead.encrypt(self._nonce(number), body, clear)
        return sealed + sign(_claim(sealed))

    def poison(self) -> None:
        """Forget the key in the child of a fork."""
        self._aead = None


@final
class ReceiverKey:
    """A sender key at one of its receivers.

    Args:
        suite: number of how it seals.
        key: 32 bytes.

    Raises:
        AuthenticationError: no such suite, or a key of another size.
    """

    __slots__ = ("_aead", "_last", "_nonce", "lost")

    def __init__(self, suite: int, key: bytes) -> None:
        if suite not in {*Suite}:
            raise AuthenticationError(f"there is no suite {suite}")
        if len(key) != KEY_SIZE:
            raise AuthenticationError(f"a sender key is {KEY_SIZE} bytes and not {len(key)}")
        self.lost = 0
        """Number of gaps in the sequence of frames that were opened."""
        self._aead = noise.CIPHERS[Suite(suite).cipher](key)
        self._nonce = NONCE[Suite(suite)].pack
        self._last = 0

    def __repr__(self) -> str:
        return f"<ReceiverKey, last frame {self._last}>"

    def __reduce__(self) -> str:
        raise TypeError("a sender key is not copied or pickled")

    @property
    def last(self) -> int:
        """The number of the last frame that was opened; 0 before the first."""
        return self._last

    def open_untrusted(self, frame: bytes, verify: Callable[[bytes, bytes], None]) -> bytes:
        """Return the body of a frame; ``verify`` takes a claim and its signature, and raises what this does.

        Raises:
            AuthenticationError: forged, damaged, repeated or late.  Nothing has changed.
        """
        _, number, before = read_copy_header_untrusted(frame)
        if number <= self._last:
            raise AuthenticationError(f"copy {number} repeats or comes late")
        sealed = frame[:-SIGNATURE_SIZE]
        try:
            body = self._aead.decrypt(self._nonce(number), memoryview(sealed)[_CLEAR:], sealed[:_CLEAR])
        except InvalidTag:
            raise AuthenticationError(f"copy {number} is not genuine") from None
        # The tag shows only that one of the receivers sealed it, for all of them have the key.  The signature shows
        # that it was the publisher.
        verify(_claim(sealed), frame[-SIGNATURE_SIZE:])
        # From here on the frame is genuine: only now may it change anything.
        self.lost += before != self._last
        self._last = number
        return body


def _claim(sealed: bytes) -> bytes:
    return _PURPOSE + hashlib.sha256(sealed).digest()
