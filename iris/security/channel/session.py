"""Sealed session: AEAD frames between two nodes after a handshake, with replay protection and rekey.

Use::

    frame = session.seal(batch)  # the whole DATA frame, header included, ready for the transport
    batch = session.open_untrusted(frame)  # raises AuthenticationError, and nothing else, for whatever is wrong

Rules of this file:

- A frame is the 16-byte header of ``iris.kernel.wire`` and the AEAD ciphertext of its body.  The header is the
  associated data; the counter in it is the nonce, so a nonce cannot repeat unless the counter does.
- The counter is taken before the cipher runs.  An error in between loses a number, which the other side counts as
  a lost frame; it never uses one twice.
- Received counters must grow.  A repeat, or what comes late, is refused and counted; a gap is counted as lost.
  The session does not care which connection its frames came by.
- Each 2^16 frames or 1 GiB the sender takes the next key (Noise REKEY) and says so in the header's epoch.  The
  receiver follows only when a frame of the new epoch has proved genuine.
- Nothing here looks at a clock: the mesh asks ``expired(now)``, and calls ``close`` on an expired session, after
  which no frame of it is accepted.

Plain calls and no effects: one call per frame on the path of every message, beyond the AEAD's own 7 us for 64 KiB.
One task at a time.
"""

from __future__ import annotations

import struct
from typing import Final, Never, final

from cryptography.exceptions import InvalidTag
from msgspec import Struct

from iris.kernel.buffer_pool import LARGE, borrow, give_back
from iris.kernel.config import Config
from iris.kernel.errors import AuthenticationError, LocalProtocolError
from iris.kernel.wire import DATA, HEADER, HEADER_SIZE, VERSION
from iris.security.channel.fork_guard import poison_after_fork
from iris.security.noise import Suite
from iris.security.noise import handshake_state as noise
from iris.security.secret import Secret

EPOCH_FRAMES: Final = 2**16
"""Frames sealed with one key."""

EPOCH_BYTES: Final = 2**30
"""Limit in bytes on what one key seals; far below where AES-GCM's bounds begin to matter (2^36 blocks), and cheap."""

MAX_EPOCH: Final = 2**16 - 1
"""The header has room for no more; 64 TiB in a session's 180 s are out of reach."""

MAX_EPOCH_SKIP: Final = 16
"""Epochs that may be lost as a whole.  Bounds what a forged header can make the receiver compute to 25 us."""

_MIN_FRAME: Final = HEADER_SIZE + noise.TAGLEN
NONCE: Final = {Suite.AESGCM: struct.Struct(">4xQ"), Suite.CHACHAPOLY: struct.Struct("<4xQ")}
"""Nonces of a counter, as in Noise."""


@final
class SessionStatistics(Struct, frozen=True, kw_only=True):
    """Counters of one session.

    Args:
        sent_frames: frames sealed.
        sent_bytes: bytes of their bodies.
        received_frames: frames opened.
        received_bytes: bytes of their bodies.
        lost_frames: frames that the other side sealed and that never came.
        replayed_frames: refused, because their counter was not above the last one.
        refused_frames: refused for any other reason: forged, damaged, cut off.
        sent_epoch: keys used up for sending.
        received_epoch: keys used up for receiving.
    """

    sent_frames: int
    sent_bytes: int
    received_frames: int
    received_bytes: int
    lost_frames: int
    replayed_frames: int
    refused_frames: int
    sent_epoch: int
    received_epoch: int


class _Unusable:
    """Stands where a cipher stood, so that a working session pays nothing for the check."""

    __slots__ = ("_reason",)

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def encrypt(self, *_: object) -> Never:
        raise LocalProtocolError(self._reason)

    def decrypt(self, *_: object) -> Never:
        raise LocalProtocolError(self._reason)

    encrypt_into = encrypt
    decrypt_into = decrypt


_FORKED: Final = _Unusable("this session belongs to the parent process: a forked child must open its own node")
_CLOSED: Final = _Unusable("this session is closed")


@final
class Session:
    """A sealed session: ordered frames between two nodes.  Made by a handshake, never directly.

    Attributes:
        local_index: the index that the other side writes into the header of frames for this session.
        remote_index: the index that this side writes.
        established: ``now`` of the handshake's end.
        lost_frames: frames that certainly never came, so far.
    """

    __slots__ = (
        "__weakref__",
        "_cipher",
        "_epoch_bytes",
        "_epoch_end",
        "_expected",
        "_nonce",
        "_open_aead",
        "_open_epoch",
        "_open_key",
        "_received_bytes",
        "_received_frames",
        "_refused",
        "_reject_after",
        "_replayed",
        "_seal_aead",
        "_seal_epoch",
        "_seal_key",
        "_sent_bytes",
        "_sequence",
        "established",
        "local_index",
        "lost_frames",
        "remote_index",
    )

    def __init__(
        self,
        *,
        suite: Suite,
        indices: tuple[int, int],
        seal_key: bytes,
        open_key: bytes,
        established: float,
        config: Config,
    ) -> None:
        self.local_index, self.remote_index = indices
        self.established = established
        self.lost_frames: int = 0
        self._reject_after = config.session_rejected
        self._cipher = noise.CIPHERS[suite.cipher]
        self._nonce = NONCE[suite].pack
        # sealing
        self._seal_key: Secret | None = Secret(seal_key)
        self._seal_aead: noise.Aead | _Unusable = self._cipher(seal_key)
        self._seal_epoch: int = 0
        self._sequence: int = 0
        self._epoch_end: int = EPOCH_FRAMES
        self._epoch_bytes: int = EPOCH_BYTES
        self._sent_bytes: int = 0
        # opening
        self._open_key: Secret | None = Secret(open_key)
        self._open_aead: noise.Aead | _Unusable = self._cipher(open_key)
        self._open_epoch: int = 0
        self._expected: int = 0
        self._received_frames = 0
        self._received_bytes = 0
        self._replayed = 0
        self._refused = 0
        poison_after_fork(self)

    def __repr__(self) -> str:
        state = "open" if self._seal_key is not None else "closed"
        return f"<Session {self.local_index} -> {self.remote_index}, {state}, established {self.established:.3f}>"

    def __reduce__(self) -> str:
        raise TypeError("a session is not copied or pickled")

    def seal(self, body: bytes | bytearray | memoryview) -> bytes | memoryview:
        """Return the DATA frame that carries ``body``; a large one in memory that may be given back to be used again.

        See ``iris.kernel.buffer_pool``.

        Raises:
            LocalProtocolError: the session is closed, used up (64 Ki epochs), or this process was forked.
        """
        sequence = self._sequence
        if sequence >= self._epoch_end or self._epoch_bytes <= 0:
            self._begin_epoch(sequence)
        # Before the cipher runs: an error from here on costs a number, and no number is ever used twice under a key.
        self._sequence = sequence + 1
        size = len(body)
        self._epoch_bytes -= size
        header = HEADER.pack(DATA, VERSION, self._seal_epoch, self.remote_index, sequence)
        frame: bytes | memoryview
        if size < LARGE:
            frame = header + self._seal_aead.encrypt(self._nonce(sequence), body, header)
        else:
            frame = borrow(_MIN_FRAME + size)
            frame[:HEADER_SIZE] = header
            try:
                self._seal_aead.encrypt_into(self._nonce(sequence), body, header, frame[HEADER_SIZE:])
            except BaseException:
                give_back(frame)
                raise
        self._sent_bytes += size
        return frame

    def open_untrusted(self, frame: bytes | memoryview) -> bytes | memoryview:
        """Return the body of a DATA frame, once; of a large one in memory that may be given back to be used again.

        See ``iris.kernel.buffer_pool``.  Updates ``lost_frames`` by what is missing before this frame.

        Raises:
            AuthenticationError: forged, damaged, cut off, of another session, or already seen.  Nothing changed but
                a counter.
            LocalProtocolError: the session is closed, or this process was forked.
        """
        if len(frame) < _MIN_FRAME:
            self._refused += 1
            raise AuthenticationError(f"a frame of {len(frame)} bytes cannot be a sealed one")
        header: tuple[int, int, int, int, int] = HEADER.unpack_from(frame)
        kind, version, epoch, receiver, sequence = header
        expected = self._expected
        if sequence < expected:
            self._replayed += 1
            raise AuthenticationError(f"frame {sequence} of session {self.local_index} repeats or comes late")
        try:
            if kind != DATA or version != VERSION or receiver != self.local_index:
                raise AuthenticationError(f"not a data frame for session {self.local_index}")
            if epoch == self._open_epoch:
                key = self._open_key
                aead = self._open_aead
            else:
                key, aead = self._later_key(epoch)
            body: bytes | memoryview
            if len(frame) < LARGE:
                body = aead.decrypt(self._nonce(sequence), memoryview(frame)[HEADER_SIZE:], frame[:HEADER_SIZE])
            else:
                body = borrow(len(frame) - _MIN_FRAME)
                try:
                    aead.decrypt_into(self._nonce(sequence), memoryview(frame)[HEADER_SIZE:], frame[:HEADER_SIZE], body)
                except BaseException:
                    give_back(body)
                    raise
        except InvalidTag:
            self._refused += 1
            raise AuthenticationError(f"frame {sequence} of session {self.local_index} is not genuine") from None
        except AuthenticationError:
            self._refused += 1
            raise
        # From here on the frame is genuine: only now may it change anything.  A forged header could otherwise move the
        # epoch or the counter ahead, and every honest frame after it would be refused.
        if epoch != self._open_epoch:
            self._open_epoch, self._open_key, self._open_aead = epoch, key, aead
        if sequence != expected:
            self.lost_frames += sequence - expected
        self._expected = sequence + 1
        self._received_frames += 1
        self._received_bytes += len(body)
        return body

    def expired(self, now: float) -> bool:
        """Return whether frames of this session must be refused by now; the owner then calls ``close``."""
        return now - self.established >= self._reject_after

    @property
    def has_received(self) -> bool:
        """True once a frame has come: the other side has the session, too."""
        return self._expected > 0

    @property
    def closed(self) -> bool:
        """True once ``close`` was called, or the process forked."""
        return self._seal_key is None

    def close(self) -> None:
        """Forget the keys.  Sealing and opening raise LocalProtocolError from now on.  May be called twice."""
        if self._seal_key is not None:
            self._forget(_CLOSED)

    def poison(self) -> None:
        """Forget the keys in the child of a fork."""
        self._forget(_FORKED)

    def statistics(self) -> SessionStatistics:
        """Return the counters."""
        return SessionStatistics(
            sent_frames=self._sequence,
            sent_bytes=self._sent_bytes,
            received_frames=self._received_frames,
            received_bytes=self._received_bytes,
            lost_frames=self.lost_frames,
            replayed_frames=self._replayed,
            refused_frames=self._refused,
            sent_epoch=self._seal_epoch,
            received_epoch=self._open_epoch,
        )

    def _begin_epoch(self, sequence: int) -> None:
        if self._seal_key is None:
            return  # seal() meets the stand-in for the cipher next
        if self._seal_epoch == MAX_EPOCH:
            raise LocalProtocolError("this session has used up its epochs")
        # One way: a thief of the new key cannot open what was sealed under the old one.  The counter
        # goes on, so frames of two epochs never share a number and stay in one order.
        key = noise.next_key(self._cipher, self._seal_key)
        self._seal_aead = self._cipher(key)
        self._seal_key = key
        self._seal_epoch += 1
        self._epoch_end = sequence + EPOCH_FRAMES
        self._epoch_bytes = EPOCH_BYTES

    def _later_key(self, epoch: int) -> tuple[Secret | None, noise.Aead | _Unusable]:
        key = self._open_key
        if key is None:
            return None, self._open_aead
        # The header is not verified yet, and each epoch costs a derivation: a bound on what one forged frame can cost.
        if not self._open_epoch < epoch <= self._open_epoch + MAX_EPOCH_SKIP:
            raise AuthenticationError(f"epoch {epoch} in session {self.local_index} at epoch {self._open_epoch}")
        for _ in range(epoch - self._open_epoch):
            key = noise.next_key(self._cipher, key)
        return key, self._cipher(key)

    def _forget(self, stand_in: _Unusable) -> None:
        self._seal_key = self._open_key = None
        self._seal_aead = self._open_aead = stand_in
