"""Field validators: check the fields of a message from a peer.  All they raise is RemoteProtocolError."""

from __future__ import annotations

from typing import Final, cast

from iris.kernel.errors import RemoteProtocolError
from iris.kernel.names import NodeId
from iris.kernel.wire.kinds import MAX_NUMBER

MAX_COUNTER: Final = MAX_NUMBER
"""Incarnations and versions end here on the wire.  At one change per microsecond it lasts 146,000 years."""


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


def node_of(field: bytes) -> NodeId:
    """Return the node of which a message has the 16 bytes."""
    return NodeId(field.hex())


def node_untrusted(value: object) -> NodeId:
    """Read the 16 bytes of a node id.

    Raises:
        RemoteProtocolError: anything else.
    """
    if not isinstance(value, bytes) or len(value) != 16:
        raise RemoteProtocolError("a node id is 16 bytes")
    return NodeId(value.hex())


def counter_untrusted(value: object) -> int:
    """Read an incarnation, version or sequence number.

    Raises:
        RemoteProtocolError: anything but an int from 0 to 2**62.
    """
    return number_untrusted(value, "a counter")


def bytes_untrusted(value: object, limit: int, what: str) -> bytes:
    """Read at most ``limit`` bytes.

    Raises:
        RemoteProtocolError: anything else.
    """
    if not isinstance(value, bytes) or len(value) > limit:
        raise RemoteProtocolError(f"{what} is at most {limit} bytes")
    return value


def tuple_untrusted(value: object, limit: int, what: str) -> tuple[object, ...]:
    """Read an array of at most ``limit`` elements.

    Raises:
        RemoteProtocolError: anything else.
    """
    if not isinstance(value, tuple):
        raise RemoteProtocolError(f"{what} is an array")
    elements = cast("tuple[object, ...]", value)
    if len(elements) > limit:
        raise RemoteProtocolError(f"{what} has at most {limit} elements")
    return elements
