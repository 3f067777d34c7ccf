"""The bytes between nodes: frame header, batches of messages, user payloads.

Rules of this file:

- It is the only one that knows msgpack, and msgpack touches nothing before a frame is authenticated.
- A frame is a 16-byte header and a body.  The header is parsed by hand.
- The body of a data frame, once opened, is a *batch*: messages one after the other, each a msgpack array that
  starts with its kind.  There are no maps on the wire, so nothing collides and empty maps cannot eat memory.
- A user's payload is opaque to everybody but its two ends: ``bytes`` travel as a binary, any other value as an
  extension of type 1 around its own msgpack form.
- What comes from a peer is read by functions called ``*_untrusted``; all they raise is RemoteProtocolError.

Why the limits: 4 MiB of empty maps decode to 299 MiB, and 64 KiB of nested array headers reserve 68 MiB before
they fail.  With arrays of at most 1,024 elements the most that nested headers reserve is 1,024 x 8 KiB = 8 MiB.  1 MiB
of short arrays decodes to 28 MiB in 0.1 s; the first 32,768 elements, after which it is refused, to 2 MiB in 4 ms.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, NoReturn, cast, final

import msgpack

from iris.kernel.config import KIB, MIB, Config
from iris.kernel.errors import LocalProtocolError, PayloadTooLarge, RemoteProtocolError

VERSION: Final = 1

HANDSHAKE_INIT: Final = 1
HANDSHAKE_RESPONSE: Final = 2
HANDSHAKE_FINISH: Final = 3
DATA: Final = 4
COPY: Final = 5
"""A frame under a sender key (``iris.security.sender_key``): it travels inside of messages only."""

HEADER: Final = struct.Struct(">BBHIQ")
HEADER_SIZE: Final = HEADER.size
_SEALED: Final = bytes((DATA, VERSION))
_ARRAY: Final = 0x90
_ARRAY_16: Final = b"\xdc"

MAX_ARRAY: Final = 1024
"""Elements of one array on the wire."""

MAX_MESSAGES: Final = 512
"""Messages of one batch: at 10 to 50 us for a message it is work for 5 to 25 ms.  A frame of 1 MiB could hold 350,000
of three bytes, each of them work for its receiver, and 60 bytes in memory."""

MAX_ELEMENTS: Final = 32 * KIB
"""Elements of all arrays of one batch together: a byte on the wire may be 64 in memory, and some are 10 us of work.
Links have fewer in a batch, for whoever posts a list counts ``ELEMENT`` at least for each of its elements."""

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

MAX_FRAME: Final = 16 * MIB + 64 * 1024
"""No transport accepts a larger frame, whatever the configured payload limit."""

FRAME_OVERHEAD: Final = 32 * 1024
"""Room for header, tag, headers and fields around one payload of the configured maximum."""


def largest_frame(config: Config) -> int:
    """Return the bytes of the largest frame that a node takes.  A larger one costs its sender the connection.

    It is no less than what a node with the default ``Config`` sends, however little this node takes of a message: a
    payload above ``max_payload`` is to be refused with an answer.
    """
    return max(config.max_payload, config.batch_bytes, MIB) + FRAME_OVERHEAD


_PAYLOAD: Final = 1
_NIL: Final = b"\xc0"
_CUT_OFF: Final = object()

MAX_NUMBER: Final = 2**62
"""Largest number that is taken from a peer.  What follows from some of them, a sum or the next one, then still has a
form on the wire, which ends at 2**64 - 1: what has none could not be told to anybody, not even as a counter."""

Message = tuple[Any, ...]
Payload = bytes | msgpack.ExtType
Headers = tuple[str, ...] | None


class FrameHeader(NamedTuple):
    """The clear start of every frame.  ``counter`` of a handshake frame is the sender's session index."""

    kind: int
    version: int
    epoch: int
    receiver: int
    counter: int


def parse_header_untrusted(frame: bytes) -> FrameHeader:
    """Read the header of a frame.

    Raises:
        RemoteProtocolError: too short, another protocol version, or an unknown kind of frame.
    """
    if len(frame) < HEADER_SIZE:
        raise RemoteProtocolError(f"a frame of {len(frame)} bytes has no room for its header")
    header = FrameHeader._make(HEADER.unpack_from(frame))
    if header.version != VERSION:
        raise RemoteProtocolError(f"protocol version {header.version}: this node speaks version {VERSION}")
    if not HANDSHAKE_INIT <= header.kind <= DATA:
        raise RemoteProtocolError(f"unknown kind of frame {header.kind}")
    return header


def receiver_untrusted(frame: bytes | memoryview) -> int | None:
    """Return the session that a DATA frame says it is for, None if it is something else: see its header then.

    On the way of every frame: it takes 0.4 us where the whole header takes 1.3.
    """
    return int.from_bytes(frame[4:8]) if frame[:2] == _SEALED and len(frame) >= HEADER_SIZE else None


def _refuse_map(_: list[tuple[object, object]]) -> NoReturn:
    raise ValueError("a map")


def _open_extension(code: int, data: bytes) -> msgpack.ExtType:
    if code != _PAYLOAD:
        raise ValueError(f"extension {code}")
    return msgpack.ExtType(code, data)


@final
class Elements:
    """Counts the elements of arrays as they are decoded.

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


def is_number(field: object, least: int = 0) -> bool:
    """Tell whether a field of a decoded message is an integer from ``least`` to 2**62."""
    return type(field) is int and least <= field <= MAX_NUMBER


def number_untrusted(field: object, what: str = "a number", least: int = 0) -> int:
    """Return a field of a decoded message that is an integer from ``least`` to 2**62.

    Raises:
        RemoteProtocolError: it is not.
    """
    if type(field) is not int or not least <= field <= MAX_NUMBER:
        raise RemoteProtocolError(f"{what} is an integer from {least} to 2**62")
    return field


def integers_untrusted(field: object) -> tuple[int, ...]:
    """Return a field of a decoded message that is an array of integers from 0 to 2**62.

    Raises:
        RemoteProtocolError: it is not.
    """
    if type(field) is not tuple:
        raise RemoteProtocolError("an array of integers is expected")
    items = cast("tuple[object, ...]", field)
    for item in items:
        if type(item) is not int or not 0 <= item <= MAX_NUMBER:
            raise RemoteProtocolError("an array of integers from 0 to 2**62 is expected")
    return cast("tuple[int, ...]", items)


def saturated(count: int) -> int:
    """Return a counter to which numbers of peers are added: it stays at 2**62, where it means nothing any more."""
    return min(count, MAX_NUMBER)


# -- user payloads -----------------------------------------------------------------------------------------


def encode_payload(value: object, limit: int) -> Payload:
    """Make a payload of a user's value: bytes-like as bytes; None, bool, int, float, str, list, dict packed.

    Raises:
        PayloadTooLarge: more than ``limit`` bytes.
        LocalProtocolError: a value of another type, an int of more than 64 bits, a dict key that is not a str,
            nesting beyond 500 levels, or more than 65,536 dicts or as many lists.
            Nothing that passes here is refused by ``decode_payload_untrusted``.
    """
    if type(value) is bytes:
        if len(value) > limit:
            raise PayloadTooLarge(_too_large(len(value), limit))
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return encode_payload(bytes(cast("bytes", value)), limit)
    try:
        packed = msgpack.packb(value, use_bin_type=True, strict_types=True, default=_encode_tuple)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise LocalProtocolError(
            f"cannot send a {type(value).__name__} ({error}): use bytes, or None, bool, int, float, str, list and "
            "dict with str keys"
        ) from None
    if len(packed) > limit:
        raise PayloadTooLarge(_too_large(len(packed), limit))
    _check_values(value)
    return msgpack.ExtType(_PAYLOAD, packed)


def _too_large(size: int, limit: int) -> str:
    return f"payload of {size} bytes: the limit is {limit} bytes; send larger things through a tunnel"


def _encode_tuple(value: object) -> list[object]:
    if isinstance(value, tuple):
        return list(cast("tuple[object, ...]", value))
    if isinstance(value, int):
        raise OverflowError("an int of more than 64 bits")
    raise TypeError(f"{type(value).__name__} has no wire form")


_LEAVES: Final = frozenset({bytes, bytearray, memoryview, str, int, float, bool, type(None)})
MAX_DEPTH: Final = 500
"""Levels of a payload."""

MAX_CONTAINERS: Final = 65536
"""Dicts of a payload, and lists.  An empty one is a byte on the way and some 64 in memory."""


def _check_values(value: object) -> None:
    """Refuse, where the mistake is made, what msgpack packs and the other side would not take."""
    level: list[object] = [value]
    depth = dicts = lists = 0
    while level:
        deeper: list[object] = []
        for item in level:
            kind = type(item)
            if kind in _LEAVES:
                continue
            if depth >= MAX_DEPTH:
                raise LocalProtocolError(f"cannot send a value nested more than {MAX_DEPTH} levels deep")
            if isinstance(item, dict):
                dicts += 1
                entries = cast("dict[object, object]", item)
                for key in entries:
                    if type(key) is not str:
                        raise LocalProtocolError(f"cannot send a dict with the key {key!r}: keys are str")
                deeper.extend(entries.values())
            elif isinstance(item, list | tuple) and kind is not msgpack.ExtType:
                lists += 1
                deeper.extend(cast("list[object]", item))
            else:
                raise LocalProtocolError(f"cannot send a value of type {kind.__name__}")
        level = deeper
        depth += 1
    for count, what in ((dicts, "dicts"), (lists, "lists")):
        if count > MAX_CONTAINERS:
            raise LocalProtocolError(f"cannot send a value of {count} {what}: {MAX_CONTAINERS} at most; use bytes")


def split_payload(payload: Payload) -> tuple[bytes, bool]:
    """Return the bytes of a payload and whether they are a packed value: for those who cut payloads into pieces."""
    if isinstance(payload, bytes):
        return payload, False
    data: bytes = payload.data
    return data, True


def join_payload(data: bytes, *, packed: bool) -> Payload:
    """Return the payload of which ``split_payload`` made ``data`` and ``packed``."""
    return msgpack.ExtType(_PAYLOAD, data) if packed else data


def payload_size(payload: Payload) -> int:
    """Return how many bytes of a batch the payload takes, but for its few bytes of framing."""
    return len(payload) if isinstance(payload, bytes) else len(payload.data)


def is_payload(field: object) -> bool:
    """Tell whether a field of a decoded message can be a payload."""
    return type(field) is bytes or type(field) is msgpack.ExtType


def decode_payload_untrusted(payload: Payload) -> Any:
    """Return the value that the sender gave.

    Raises:
        RemoteProtocolError: the packed form is malformed, has keys that are not str or stand twice, holds more than
            65,536 dicts or as many lists, or is nested beyond 1,024 levels.  ``repr`` and JSON may not follow it as far
            as that.
    """
    if isinstance(payload, bytes):
        return payload
    data: bytes = payload.data
    dicts = 0

    def build(pairs: list[tuple[object, object]]) -> dict[object, object]:
        nonlocal dicts
        dicts += 1
        if dicts > MAX_CONTAINERS:
            raise ValueError(f"more than {MAX_CONTAINERS} dicts")
        built = dict(pairs)
        if len(built) != len(pairs):
            raise ValueError("a key stands twice")
        for key in built:
            if type(key) is not str:  # msgpack's own strict_map_key lets bytes pass
                raise ValueError("a key is not a str")
        return built

    try:
        # skip() builds nothing, and proves that every element which a header promises is really there: nested
        # headers cannot reserve memory that the bytes do not back.
        scout = msgpack.Unpacker(max_buffer_size=len(data) or 1)
        scout.feed(data)
        scout.skip()
        if scout.tell() != len(data):
            raise ValueError("surplus bytes")
        value: Any = msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=True,
            object_pairs_hook=build,
            list_hook=_counted() if len(data) > MAX_CONTAINERS else None,  # of fewer bytes not so many are made
            ext_hook=_refuse_extension,
        )
        # Of timestamps msgpack makes values of its own, without asking the hook.
        if b"\xff" in data and any(map(data.__contains__, _TIMESTAMPS)):
            _check_values(value)
    except Exception as error:  # noqa: BLE001 -- as above
        raise RemoteProtocolError(f"malformed payload: {error}") from None
    return value


_TIMESTAMPS: Final = (b"\xd6\xff", b"\xd7\xff", b"\xc7\x0c\xff")
"""How each of the three forms of msgpack's own timestamps begins; what holds these bytes may also be something else."""


def _counted() -> Callable[[list[Any]], list[Any]]:
    """Return a hook that refuses lists beyond ``MAX_CONTAINERS``."""
    left = iter(range(MAX_CONTAINERS))

    def count(made: list[Any]) -> list[Any]:
        if next(left, None) is None:
            raise ValueError(f"more than {MAX_CONTAINERS} lists")
        return made

    return count


def _refuse_extension(code: int, _: bytes) -> NoReturn:
    raise ValueError(f"extension {code}")


# -- headers -----------------------------------------------------------------------------------------------


def encode_headers(headers: Mapping[str, str] | None, limit: int) -> Headers:
    """Flatten a user's headers.

    Raises:
        LocalProtocolError: a name or value that is not a str, or has no UTF-8 form.
        PayloadTooLarge: names and values together exceed ``limit`` bytes, or there are more than 512 of them.
    """
    if not headers:
        return None
    if not isinstance(headers, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] -- users may not run a checker
        raise LocalProtocolError(f"headers are of type {type(headers).__name__}: use a dict of texts")
    flat = tuple(text for pair in headers.items() for text in pair)
    size = 0
    for text in flat:
        if type(text) is not str:
            raise LocalProtocolError(f"headers are str to str; {text!r} is a {type(text).__name__}")
        try:
            size += len(text.encode())
        except UnicodeEncodeError:
            raise LocalProtocolError(f"the header text {text!r} has no UTF-8 form") from None
    if size > limit or len(flat) > MAX_ARRAY:
        raise PayloadTooLarge(f"{len(headers)} headers of {size} bytes: the limit is 512 headers and {limit} bytes")
    return flat


def headers_size(headers: Headers) -> int:
    """Return how many bytes of a batch headers take."""
    return 0 if headers is None else sum(len(text.encode()) + ELEMENT for text in headers)


def headers_bytes(field: object) -> int:
    """Return the bytes that ``encode_headers`` holds against its limit; 0 for what are no headers."""
    if type(field) is not tuple:
        return 0
    try:
        return len("".join(cast("tuple[str, ...]", field)).encode())
    except (TypeError, UnicodeEncodeError):
        return 0  # whoever decodes them says so


def decode_headers_untrusted(field: object) -> dict[str, str]:
    """Return headers as a dict.

    Raises:
        RemoteProtocolError: not None and not an even number of strings, or a name stands twice.
    """
    if field is None:
        return {}
    texts = cast("tuple[object, ...]", field)
    if type(field) is not tuple or len(texts) % 2:
        raise RemoteProtocolError("headers are a flat array of names and values")
    for text in texts:
        if type(text) is not str:
            raise RemoteProtocolError("headers are strings")
    strings = cast("tuple[str, ...]", texts)
    headers = dict(zip(strings[::2], strings[1::2], strict=True))
    if len(headers) * 2 != len(texts):
        raise RemoteProtocolError("a header stands twice")
    return headers
