"""User payloads and headers: opaque to everybody but the two ends of a message.

``bytes`` travel as a binary, any other value as an extension of type 1 around its own msgpack form.  What comes from a
peer is read by functions called ``*_untrusted``; all they raise is RemoteProtocolError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import msgpack
from msgspec.msgpack import Ext

from iris.kernel.errors import LocalProtocolError, PayloadTooLarge, RemoteProtocolError
from iris.kernel.wire.codec import ELEMENT, _refuse_extension
from iris.kernel.wire.kinds import MAX_ARRAY, Headers, Payload

_PACKED: Final = 1
"""The extension around a packed value."""


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
    return Ext(_PACKED, packed)


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
    assert isinstance(payload.data, bytes)
    return payload.data, True


def join_payload(data: bytes, *, packed: bool) -> Payload:
    """Return the payload of which ``split_payload`` made ``data`` and ``packed``."""
    return Ext(_PACKED, data) if packed else data


def payload_size(payload: Payload) -> int:
    """Return how many bytes of a batch the payload takes, but for its few bytes of framing."""
    data = payload if isinstance(payload, bytes) else payload.data
    assert isinstance(data, bytes)
    return len(data)


def decode_payload_untrusted(payload: Payload) -> Any:
    """Return the value that the sender gave.

    Raises:
        RemoteProtocolError: the packed form is malformed, has keys that are not str or stand twice, holds more than
            65,536 dicts or as many lists, or is nested beyond 1,024 levels.  ``repr`` and JSON may not follow it as far
            as that.
    """
    if isinstance(payload, bytes):
        return payload
    data = payload.data
    assert isinstance(data, bytes)
    if payload.code != _PACKED:
        raise RemoteProtocolError(f"malformed payload: extension {payload.code}")
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
"""First bytes of the three forms of msgpack's own timestamps; a payload with them may hold something else."""


def _counted() -> Callable[[list[Any]], list[Any]]:
    """Return a hook that refuses lists beyond ``MAX_CONTAINERS``."""
    left = iter(range(MAX_CONTAINERS))

    def count(made: list[Any]) -> list[Any]:
        if next(left, None) is None:
            raise ValueError(f"more than {MAX_CONTAINERS} lists")
        return made

    return count


def encode_headers(headers: Mapping[str, str] | None, limit: int) -> Headers:
    """Flatten a user's headers.

    Raises:
        LocalProtocolError: a name or value that is not a str, or has no UTF-8 form.
        PayloadTooLarge: names and values together exceed ``limit`` bytes, or there are more than 512 of them.
    """
    if not headers:
        return None
    if not _is_mapping(headers):
        raise LocalProtocolError(f"headers are of type {type(headers).__name__}: use a dict of texts")
    flat: list[str] = []
    for pair in headers.items():
        flat += pair
    try:
        size = len("".join(flat).encode())
    except TypeError:
        text = next(text for text in flat if type(text) is not str)
        raise LocalProtocolError(f"headers are str to str; {text!r} is a {type(text).__name__}") from None
    except UnicodeEncodeError as error:
        text = next(text for text in flat if error.object[error.start] in text)
        raise LocalProtocolError(f"the header text {text!r} has no UTF-8 form") from None
    if size > limit or len(flat) > MAX_ARRAY:
        raise PayloadTooLarge(f"{len(headers)} headers of {size} bytes: the limit is 512 headers and {limit} bytes")
    return tuple(flat)


def _is_mapping(value: object) -> bool:
    return type(value) is dict or isinstance(value, Mapping)  # of a dict the second look takes 0.4 us


def headers_size(headers: Headers) -> int:
    """Return how many bytes of a batch headers take."""
    return 0 if headers is None else len("".join(headers).encode()) + len(headers) * ELEMENT


def headers_bytes(headers: Headers) -> int:
    """Return the bytes that ``encode_headers`` holds against its limit."""
    return 0 if headers is None else len("".join(headers).encode())


def decode_headers_untrusted(texts: Headers) -> dict[str, str]:
    """Return headers as a dict; raise RemoteProtocolError if a name has no value, or stands twice."""
    if texts is None:
        return {}
    headers = dict(zip(texts[::2], texts[1::2], strict=False))
    if len(headers) * 2 != len(texts):
        raise RemoteProtocolError("headers are names and values by turns, and no name stands twice")
    return headers
