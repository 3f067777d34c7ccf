"""Envelope of a forwarded frame, as it stands in a batch: a node that passes it on or takes it out need not decode it.

A batch that is a single Carry begins with ``0x91``, ``0x97``, the kind and the hops.  Then come, each in its msgpack
form, the site and the node that the frame is for, those that it is from (together the *envelope*), and the frame, to
the end of the batch.  All frames of one flow have the same envelope: what was found out for one of them is found for
the next by one look-up.  Anything else, a longer name of a site for one, goes the ordinary way.

Plain calls: this is on the way of every frame between sites.  Of the 200 us of processor time that a gateway took for
a frame (one at a time, load 10), 25 us went into decoding it and encoding it again, 50 us into what is looked up here.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final, Generic, NamedTuple, TypeVar, cast, final

from iris.kernel import wire
from iris.kernel.errors import RemoteProtocolError

T = TypeVar("T")

HOPS_AT: Final = 3
"""Position of the hops, which are one byte."""

BEGIN: Final = HOPS_AT + 1
"""Position of the envelope: behind the headers of two arrays, the kind and the hops, of one byte each."""

_ALONE: Final = b"\x91\x97\x60"
"""First bytes of a batch that is a single Carry."""
_NODE: Final = b"\xc4\x10"
_SHORT_TEXT: Final = 0xA0
_SHORT_BINARY: Final = b"\xc4"
_WIDTHS: Final = MappingProxyType({0xC4: 1, 0xC5: 2, 0xC6: 4})
"""Width in bytes of the length of a binary, by its first byte."""

_MAX_KNOWN: Final = 4096
"""Flows that are remembered at one time; then all are forgotten, and found out again."""


class Envelope(NamedTuple):
    """Source and target of a forwarded frame, as decoded."""

    site: str
    target: bytes
    source_site: str
    source: bytes


def find_envelope(batch: bytes | memoryview) -> int | None:
    """Return where the envelope of a batch ends that is a single CARRY as this program makes it; None if it is not."""
    if batch[:3] != _ALONE:
        return None
    at = BEGIN
    for _ in range(2):
        length = batch[at] - _SHORT_TEXT if at < len(batch) else -1
        if not 0 <= length < 32:
            return None
        at += 1 + length
        if batch[at : at + 2] != _NODE:
            return None
        at += 18
    return at if find_frame(batch, at) else None


def find_frame(batch: bytes | memoryview, end: int) -> int:
    """Return where the frame begins behind an envelope that ends at ``end``; 0 if it does not fill the rest."""
    width = _WIDTHS.get(batch[end]) if end < len(batch) else None
    if width is None:
        return 0
    begin = end + 1 + width
    return begin if int.from_bytes(batch[end + 1 : begin]) == len(batch) - begin else 0


def open_envelope(envelope: bytes) -> Envelope | None:
    """Return what an envelope says, None if a site is no text."""
    try:
        fields = wire.unpack_untrusted(b"\x94" + envelope)
    except RemoteProtocolError:
        return None
    return Envelope(*cast("tuple[str, bytes, str, bytes]", fields))


def begin_batch(envelope: Envelope, hops: int) -> bytes:
    """Return how batches begin that are single frames in an envelope; see ``end_batch``."""
    return bytes((*_ALONE, hops)) + wire.pack(tuple(envelope))[1:]


def end_batch(beginning: bytes, frame: bytes | memoryview) -> bytes:
    """Return the batch of a single frame, as ``encode_batch`` would make it."""
    size = len(frame)
    if size < 256:
        head = bytes((0xC4, size))
    else:
        head = b"\xc5" + size.to_bytes(2) if size < 65536 else b"\xc6" + size.to_bytes(4)
    return b"".join((beginning, head, frame))


@final
class Flows(Generic[T]):
    """A cache of what was found out of frames with the same envelope."""

    __slots__ = ("_end", "_known")

    def __init__(self) -> None:
        self._known: dict[bytes, T] = {}
        self._end = BEGIN

    def __len__(self) -> int:
        return len(self._known)

    def clear(self) -> None:
        """Forget everything."""
        self._known.clear()

    def forget(self, envelope: bytes) -> None:
        """Forget what was found out of a flow."""
        self._known.pop(envelope, None)

    def remember(self, envelope: bytes, found: T) -> None:
        """Note what was found out of a flow."""
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        self._known[envelope] = found

    def look(self, batch: bytes | memoryview) -> tuple[bytes, T | None, int] | None:
        """Return the envelope of a batch, what is known of it, and where its frame begins.

        None if it is not a single carried frame.  Between the same two sites all envelopes are equally long: the end of
        the last one is tried first.
        """
        if batch[:3] != _ALONE:
            return None
        end = self._end
        envelope = bytes(batch[BEGIN:end])
        known = self._known.get(envelope)
        if known is not None:
            if batch[end : end + 1] == _SHORT_BINARY and len(batch) - end - 2 == batch[end + 1]:
                return envelope, known, end + 2  # what most frames are, without five calls
            begin = find_frame(batch, end)
            return (envelope, known, begin) if begin else None
        found = find_envelope(batch)
        if found is None:
            return None
        self._end = found
        envelope = bytes(batch[BEGIN:found])
        return envelope, self._known.get(envelope), find_frame(batch, found)
