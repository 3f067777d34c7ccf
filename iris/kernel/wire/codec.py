"""Codec: batches of messages to bytes and back, in msgpack within limits.

Rules of this file:

- msgpack touches nothing before a frame is authenticated.
- The body of a data frame, once opened, is a *batch*: messages one after the other, each a msgpack array that
  starts with its kind.  There are no maps on the wire, so nothing collides and empty maps cannot eat memory.
- A user's payload is opaque to everybody but its two ends (``iris.kernel.wire.payload``).
- What comes from a peer is read by functions called ``*_untrusted``; all they raise is RemoteProtocolError.

Why the limits: 4 MiB of empty maps decode to 299 MiB, and 64 KiB of nested array headers reserve 68 MiB before
they fail.  With arrays of at most 1,024 elements the most that nested headers reserve is 1,024 x 8 KiB = 8 MiB.  1 MiB
of short arrays decodes to 28 MiB in 0.1 s; the first 32,768 elements, after which it is refused, to 2 MiB in 4 ms.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Final, NoReturn, cast, final

import msgpack

from iris.kernel.config import KIB, MIB
from iris.kernel.errors import RemoteProtocolError
from iris.kernel.wire.header import MAX_FRAME

_ARRAY: Final = 0x90
_ARRAY_16: Final = b"\xdc"

MAX_ARRAY: Final = 1024
"""Elements of one array on the wire."""

MAX_MESSAGES: Final = 512
"""Messages of one batch: at 10 to 50 us for a message it is work for 5 to 25 ms.  A frame of 1 MiB could hold 350,000
of three bytes, each of them work for its receiver, and 60 bytes in memory."""

MAX_ELEMENTS: Final = 32 * KIB
"""Elements of all arrays of one batch together: a byte on the wire may be 64 in memory, and some are 10 us of work.
Links have fewer in a batch, for the sender of a list counts ``ELEMENT`` at least for each of its elements."""

ELEMENT: Final = 16
"""Bytes that an element of a list of any length counts for the size of its message at least."""

CHECK: Final = 1 * KIB
"""Bytes that a signature which receivers check counts for the size of its message: a batch has room for 256."""

MAX_CARRIED: Final = 2 * MAX_MESSAGES
"""Messages that a frame brings in frames and messages which it carries: work for 10 to 50 ms."""

MAX_CHECKS: Final = 256
"""Signatures that are checked for a frame, with all that it carries: 35 ms, at 130 us for each."""

RELAYED_CHECK: Final = MAX_CARRIED // MAX_CHECKS
"""Messages that the signature of a message which carries others counts for."""


_PAYLOAD: Final = 1
_NIL: Final = b"\xc0"
_CUT_OFF: Final = object()


Message = tuple[Any, ...]


def _refuse_map(_: list[tuple[object, object]]) -> NoReturn:
    raise ValueError("a map")


def _open_extension(code: int, data: bytes) -> msgpack.ExtType:
    if code != _PAYLOAD:
        raise ValueError(f"extension {code}")
    return msgpack.ExtType(code, data)


@final
class Elements:
    """Limits the elements of arrays while they are decoded.

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


def _unpacker(max_bytes: int, elements: Elements | None = None) -> msgpack.Unpacker:
    return msgpack.Unpacker(
        use_list=False,
        raw=False,
        list_hook=None if elements is None else elements.count,
        object_pairs_hook=_refuse_map,
        ext_hook=_open_extension,
        read_size=min(max_bytes, 4 * KIB),  # what it allocates at once, and grows as frames ask for
        max_buffer_size=max_bytes,
        max_array_len=MAX_ARRAY,
        max_str_len=MIB,
        max_bin_len=max_bytes,
        max_ext_len=max_bytes,
        max_map_len=0,
    )


# What glibc has once taken back of the largest block, it keeps from then on, and twice that at the end of its heap.  It
# would else return the memory of each frame of 256 KiB to the system: 22 page faults for 64 KiB, 40 us.
bytes(4 * MIB)

_packers: Final[list[msgpack.Packer]] = []
"""Those that nobody is using; threads may take them at the same time."""

_KEPT: Final = 384 * KIB
"""Bytes that a packer has from the beginning.  One that has grown is not kept."""


def encode_batch(messages: list[Message], seal: Callable[[memoryview], bytes] = bytes) -> bytes:
    """Encode messages, one after the other, and return what ``seal`` makes of them.

    They are packed as one array, whose header is then cut off: one call into C for a whole batch.  ``seal`` reads them
    where they were packed, and the packer is used again: 22 us for 60 events of 1 KiB, where a new one, and a copy,
    take 39; 1.2 us instead of 2.7 for a request.

    Args:
        messages: what to encode.
        seal: called with the batch, which is there during this call only.
    """
    try:
        packer = _packers.pop()
    except IndexError:
        packer = msgpack.Packer(use_bin_type=True, autoreset=False, buf_size=_KEPT)
    packer.pack(messages)
    count = len(messages)
    with packer.getbuffer() as packed, packed[1 if count < 16 else 3 if count < 65536 else 5 :] as batch:
        sealed = seal(batch)
        keep = len(packed) <= _KEPT
    if keep:
        packer.reset()
        _packers.append(packer)
    return sealed


class BatchDecoder:
    """Decodes batches.  Kept between them, because making an unpacker costs as much as using it.

    One serves all peers: nothing of a batch remains in it, and it has 40 KiB besides a buffer for two of the largest.
    Elements are counted of batches only that have bytes for too many: it takes 0.1 us for each array.
    """

    __slots__ = ("_counting", "_elements", "_max_bytes", "_unpacker")

    def __init__(self, max_bytes: int = MAX_FRAME) -> None:
        self._max_bytes = max_bytes
        self._elements = Elements()
        self._begin()

    def _begin(self) -> None:
        self._counting = _unpacker(self._max_bytes, self._elements)
        self._unpacker = _unpacker(self._max_bytes)

    def decode_untrusted(self, batch: bytes | memoryview) -> list[Message]:
        """Return the messages of a batch: non-empty tuples that start with an int.

        Raises:
            RemoteProtocolError: anything else, or too many messages or elements.  No message of the batch is returned;
                the decoder remains usable.
        """
        if len(batch) <= MAX_ELEMENTS:
            unpacker = self._unpacker
        else:
            unpacker = self._counting
            self._elements.begin()
        try:
            unpacker.feed(batch)
            messages: list[Message] = list(itertools.islice(unpacker, MAX_MESSAGES + 1))
            if len(messages) > MAX_MESSAGES:
                raise ValueError(f"more than {MAX_MESSAGES} messages")
            # A message that is cut off waits in the unpacker for the rest, and would take this nil for it.
            unpacker.feed(_NIL)
            if next(unpacker, _CUT_OFF) is not None:
                raise ValueError("the last message is cut off")
            for message in messages:
                if type(message) is not tuple or not message or type(message[0]) is not int:
                    raise ValueError("a message is an array that starts with its kind")
        except Exception as error:  # noqa: BLE001 -- msgpack raises half a dozen types, MemoryError among them
            # A new one, for this one holds bytes of the bad batch: they must not become part of another peer's.
            self._begin()
            raise RemoteProtocolError(f"malformed batch: {error}") from None
        return messages


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
        data: its bytes.
        max_array: elements of one array.
        elements: counts those of all arrays; else there may be ``MAX_ELEMENTS``.

    Raises:
        RemoteProtocolError: maps, foreign extensions, arrays over ``max_array`` elements, or too many elements in all;
            missing or surplus bytes.
    """
    if elements is None and len(data) > MAX_ELEMENTS:
        elements = Elements()
    try:
        value = msgpack.unpackb(
            data,
            use_list=False,
            raw=False,
            list_hook=None if elements is None else elements.count,
            object_pairs_hook=_refuse_map,
            ext_hook=_open_extension,
            max_array_len=max_array,
            max_str_len=MIB,
            max_map_len=0,
        )
    except Exception as error:  # noqa: BLE001 -- as above
        raise RemoteProtocolError(f"malformed value: {error}") from None
    return cast("object", value)
