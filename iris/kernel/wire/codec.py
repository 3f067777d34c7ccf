"""Codec: batches of messages to bytes and back, in msgpack within limits.

Rules of this file:

- msgpack touches nothing before a frame is authenticated.
- The body of a data frame, once opened, is a *batch*: an array of messages, each an array that starts with its kind.
  The kinds and their fields are types (``iris.kernel.wire.kinds``): msgspec refuses whatever
  does not fit while it reads.
  There are no maps on the wire, so nothing collides and empty maps cannot eat memory.
- A user's payload is opaque to everybody but its two ends (``iris.kernel.wire.payload``).
- What comes from a peer is read by functions called ``*_untrusted``; all they raise is RemoteProtocolError.

Why the limits: 4 MiB of empty maps decode to 299 MiB, and 64 KiB of nested array headers reserve 68 MiB before
they fail.  With arrays of at most 1,024 elements the most that nested headers reserve is 1,024 x 8 KiB = 8 MiB.  1 MiB
of short arrays decodes to 28 MiB in 0.1 s; the first 32,768 elements, after which it is refused, to 2 MiB in 4 ms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, Generic, NoReturn, TypeVar, Union, cast, final, overload

import msgpack
import msgspec
from msgspec.structs import astuple

from iris.kernel.config import KIB, MIB
from iris.kernel.errors import RemoteProtocolError
from iris.kernel.wire.kinds import MAX_ARRAY, Message

_ARRAY: Final = 0x90
_ARRAY_16: Final = b"\xdc"
_LONGER: Final = {0xDC: 3, 0xDD: 5}
"""Position of the first element of a longer array, by its first byte."""
_NO_KIND: Final = 0x80
"""The first byte that is no kind by itself; see ``iris.kernel.wire.kinds``."""

MAX_MESSAGES: Final = 512
"""Messages of one batch: at 10 to 50 us for a message it is work for 5 to 25 ms.  A frame of 1 MiB could hold 350,000
of three bytes, each of them work for its receiver, and 60 bytes in memory."""

MAX_ELEMENTS: Final = 32 * KIB
"""Elements of all arrays of one batch together: a byte on the wire may be 64 in memory, and some are 10 us of work.
Links have fewer in a batch, for the sender of a list counts ``ELEMENT`` at least for each of its elements."""

ELEMENT: Final = 16
"""Least size in bytes that an element of a list of any length adds to its message."""

CHECK: Final = 1 * KIB
"""Size in bytes that a signature which receivers check adds to its message: a batch has room for 256."""

MAX_CARRIED: Final = 2 * MAX_MESSAGES
"""Messages that a frame brings in frames and messages which it carries: work for 10 to 50 ms."""

MAX_CHECKS: Final = 256
"""Signatures that are checked for a frame's own messages: 35 ms, at 130 us for each.  As many for what it carries, and
for copies of events in it."""

RELAYED_CHECK: Final = MAX_CARRIED // MAX_CHECKS
"""Messages that the signature of a message which carries others counts for."""


@final
class Elements:
    """Limits the elements of arrays in what is decoded.

    Args:
        most: elements that there may be.
    """

    __slots__ = ("_left", "_most")

    def __init__(self, most: int = MAX_ELEMENTS) -> None:
        self._most = self._left = most

    def begin(self) -> None:
        """Count from the beginning."""
        self._left = self._most

    def count(self, array: Any) -> Any:
        """Take an array that is decoded: a tuple, though msgpack's types speak of a list."""
        self._left -= len(array)
        if self._left < 0:
            raise ValueError(f"more than {self._most} elements")
        return array

    def count_in(self, message: Message) -> None:
        """Take the arrays in a message, and those in their elements, which are all alike."""
        arrays: list[Any] = [astuple(message)]
        while arrays:
            for field in arrays.pop():
                if type(field) is tuple and field:
                    elements = cast("Any", field)
                    self.count(elements)
                    if isinstance(elements[0], tuple):
                        arrays.extend(elements)
                    elif isinstance(elements[0], Message):
                        arrays.extend(map(astuple, elements))


def _refuse_map(_: list[tuple[object, object]]) -> NoReturn:
    raise ValueError("a map")


def _refuse_extension(code: int, _: bytes) -> NoReturn:
    raise ValueError(f"extension {code}")


# What glibc has once taken back of the largest block, it keeps from then on, and twice that at the end of its heap.  It
# would else return the memory of each frame of 256 KiB to the system: 22 page faults for 64 KiB, 40 us.
bytes(4 * MIB)

_encoder: Final = msgspec.msgpack.Encoder()
_buffers: Final[list[bytearray]] = []
"""Buffers that nobody uses; several threads may pop them at the same time."""

_KEPT: Final = 384 * KIB
"""Limit on a buffer that is kept, in bytes."""


Sealed = TypeVar("Sealed")


@overload
def encode_batch(messages: Sequence[Message]) -> bytes: ...
@overload
def encode_batch(messages: Sequence[Message], seal: Callable[[memoryview], Sealed]) -> Sealed: ...
def encode_batch(messages: Sequence[Message], seal: Callable[[memoryview], object] = bytes) -> object:
    """Encode messages as one array, and return what ``seal`` makes of it.

    Args:
        messages: the messages to encode.
        seal: called with the batch, which is there during this call only: it is read where it was encoded.
    """
    buffer = _buffers.pop() if _buffers else bytearray()
    _encoder.encode_into(messages, buffer)
    with memoryview(buffer) as batch:
        sealed = seal(batch)
    if len(buffer) <= _KEPT:
        _buffers.append(buffer)
    return sealed


Of = TypeVar("Of", bound=Message)


_pieces: Final = msgspec.msgpack.Decoder(Annotated[list[msgspec.Raw], msgspec.Meta(max_length=MAX_MESSAGES)])


@final
class BatchDecoder(Generic[Of]):
    """Decodes batches, and checks each message of them by its type; thread-safe, one serves all peers.

    Elements are counted of batches only that have bytes for too many, and messages then decoded one by one: it takes
    0.5 us for each.

    Args:
        kinds: the messages that a batch may hold.
    """

    __slots__ = ("_batch", "_kinds", "_message")

    def __init__(self, *kinds: type[Of]) -> None:
        self._kinds: Final = {cast("int", kind.__struct_config__.tag) for kind in kinds}
        one: Any = Union[kinds]  # noqa: UP007 -- of as many as are given
        batch: Any = Annotated[list[one], msgspec.Meta(max_length=MAX_MESSAGES)]
        self._message: msgspec.msgpack.Decoder[Of] = msgspec.msgpack.Decoder(one)
        self._batch: msgspec.msgpack.Decoder[list[Of]] = msgspec.msgpack.Decoder(batch)

    def decode_untrusted(
        self, batch: bytes | memoryview, elements: Elements | None = None, unknown: set[int] | None = None
    ) -> list[Of]:
        """Return the messages of a batch.

        Args:
            batch: the batch as received.
            elements: counts those of all arrays; else there may be ``MAX_ELEMENTS``.
            unknown: gets other kinds, which later versions may send: messages of these are left out.  None: they are
                refused.

        Raises:
            RemoteProtocolError: anything else, or too many messages or elements.  No message of the batch is returned.
        """
        try:
            if elements is None and len(batch) <= MAX_ELEMENTS:
                return self._batch.decode(batch)
            counted = elements or Elements()
            messages: list[Of] = []
            for piece in _pieces.decode(batch):
                messages.append(self._message.decode(piece))
                counted.count_in(messages[-1])
        except Exception as error:  # noqa: BLE001 -- msgspec raises half a dozen types, MemoryError among them
            known = None if unknown is None else self._without_unknown(batch, unknown)
            if known is not None:
                return self.decode_untrusted(known, elements)
            raise RemoteProtocolError(f"malformed batch: {error}") from None
        return messages

    def _without_unknown(self, batch: bytes | memoryview, unknown: set[int]) -> bytes | None:
        """Return a batch without messages of other kinds; None if it has none, or is no array."""
        try:
            pieces = _pieces.decode(batch)
        except Exception:  # noqa: BLE001 -- as above
            return None
        kinds = [_kind_of(bytes(memoryview(piece)[:6])) for piece in pieces]
        others = {kind for kind in kinds if kind is not None} - self._kinds
        unknown |= others
        if not others:
            return None
        return _encoder.encode([piece for piece, kind in zip(pieces, kinds, strict=True) if kind not in others])


def _kind_of(message: bytes) -> int | None:
    """Return the kind that a message begins with; None if it does not begin as one."""
    begin = 1 if message[0] & 0xF0 == _ARRAY else _LONGER.get(message[0], len(message))
    kind = message[begin] if begin < len(message) else _NO_KIND
    return kind if kind < _NO_KIND else None


def carried_by(size: int) -> int:
    """Return how many messages a frame of ``size`` bytes may hold, for ``Link.post_carrying``.

    It is sealed for somebody else, so its size is all that is known: four bytes for a message, and 64 for a signature.
    """
    return max(min(MAX_MESSAGES, size // 4), size // 64 * RELAYED_CHECK)


def array_length(packed: bytes) -> int:
    """Return how many elements the array has that ``pack`` has made these bytes of; 0 if it is none."""
    head = packed[:1]
    if head == _ARRAY_16:
        return int.from_bytes(packed[1:3])
    return head[0] & 0x0F if head and head[0] & 0xF0 == _ARRAY else 0


def pack(value: object) -> bytes:
    """Pack a value of our own making: None, bool, int, float, str, bytes and tuples of these.  No maps."""
    packed: bytes = msgpack.packb(value, use_bin_type=True)
    return packed


def unpack_untrusted(data: bytes, *, max_array: int = MAX_ARRAY, elements: Elements | None = None) -> object:
    """Read exactly one value written by ``pack``; arrays come back as tuples.

    Args:
        data: the bytes of the value.
        max_array: elements of one array.
        elements: counts those of all arrays; else there may be ``MAX_ELEMENTS``.

    Raises:
        RemoteProtocolError: maps, foreign extensions, arrays over ``max_array`` elements, or too many elements in all;
            missing or surplus bytes.
    """
    if elements is None and len(data) > MAX_ELEMENTS:
        elements = Elements()
    try:
        value: object = msgpack.unpackb(
            data,
            use_list=False,
            raw=False,
            list_hook=None if elements is None else elements.count,
            object_pairs_hook=_refuse_map,
            ext_hook=_refuse_extension,
            max_array_len=max_array,
            max_str_len=MIB,
            max_map_len=0,
        )
    except Exception as error:  # noqa: BLE001 -- as above
        raise RemoteProtocolError(f"malformed value: {error}") from None
    return value
