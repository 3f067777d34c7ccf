"""Encoder of packets: what the door sends.  3.1.1 gets it without properties, and with the few reasons it has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from iris.doors.mqtt.packets import V3, Parting, Properties, Property, Reason

PINGRESP: Final = b"\xd0\x00"

_IN_V3: Final = {
    Reason.SUCCESS: 0, Reason.UNSUPPORTED_VERSION: 1, Reason.CLIENT_ID_NOT_VALID: 2, Reason.SERVER_BUSY: 3,
    Reason.QUOTA_EXCEEDED: 3,
}  # fmt: skip
"""Codes in a CONNACK of 3.1.1, by reason; all else is 5, not authorized."""

_WIDTHS: Final = {
    Property.SESSION_EXPIRY: 4,
    Property.SERVER_KEEP_ALIVE: 2,
    Property.RECEIVE_MAXIMUM: 2,
    Property.ALIAS_MAXIMUM: 2,
    Property.MAXIMUM_QOS: 1,
    Property.MAXIMUM_SIZE: 4,
    Property.MESSAGE_EXPIRY: 4,
    Property.PAYLOAD_FORMAT: 1,
}
"""Sizes of properties that are numbers, in bytes; a subscription identifier has as many as it needs."""


def connack(level: int, reason: Reason, properties: Properties) -> bytes:
    """Return the answer to a CONNECT.  No session is ever present."""
    if level == V3:
        return bytes((0x20, 2, 0, _IN_V3.get(reason, 5)))
    return _framed(0x20, bytes((0, reason)), _properties(properties))


def refusal(level: int, reason: Reason, text: str) -> bytes:
    """Return the answer to a CONNECT that is not taken."""
    return connack(level, reason, _reason_text(text))


def within(size: int, make: Callable[[int, Reason, str], bytes], level: int, parting: Parting) -> bytes:
    """Return a packet that tells why a connection ends: with a text, without it, or none if that is too large too."""
    packets = (make(level, parting.reason, text) for text in (str(parting), ""))
    return next((one for one in packets if len(one) <= size), b"")


def publish(level: int, topic: str, payload: bytes, *, retain: bool, properties: Properties) -> bytes:
    """Return a message of QoS 0."""
    encoded = b"" if level == V3 else _properties(properties)
    return _framed(0x31 if retain else 0x30, _text(topic), encoded, payload)


def puback(level: int, packet_id: int, reason: Reason, text: str) -> bytes:
    """Return the acknowledgement of a PUBLISH; for 3.1.1 there is none but success."""
    head = packet_id.to_bytes(2, "big")
    if level == V3 or (not reason and not text):
        return _framed(0x40, head)
    return _framed(0x40, head, bytes((reason,)), _properties(_reason_text(text)))


def suback(level: int, packet_id: int, reasons: Sequence[Reason], text: str) -> bytes:
    """Return the answer to a SUBSCRIBE: a reason for each filter."""
    head = packet_id.to_bytes(2, "big")
    if level == V3:
        return _framed(0x90, head, bytes(min(reason, 0x80) for reason in reasons))
    return _framed(0x90, head, _properties(_reason_text(text)), bytes(reasons))


def unsuback(level: int, packet_id: int, reasons: Sequence[Reason]) -> bytes:
    """Return the answer to an UNSUBSCRIBE."""
    head = packet_id.to_bytes(2, "big")
    return _framed(0xB0, head) if level == V3 else _framed(0xB0, head, b"\x00", bytes(reasons))


def disconnect(level: int, reason: Reason, text: str) -> bytes:
    """Return the door's goodbye; in 3.1.1 a server has none."""
    return b"" if level == V3 else _framed(0xE0, bytes((reason,)), _properties(_reason_text(text)))


def _reason_text(text: str) -> Properties:
    return {Property.REASON_TEXT: text} if text else {}


def _framed(first: int, *parts: bytes) -> bytes:
    return b"".join((bytes((first,)), _number(sum(map(len, parts))), *parts))


def _number(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _text(text: str) -> bytes:
    """Return a text; what cannot be sent of it is replaced, and what is too long cut off."""
    data = text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace")
    if len(data) > 0xFFFF:
        data = data[:0xFFFF].decode("utf-8", "ignore").encode()
    return len(data).to_bytes(2, "big") + data


def _properties(properties: Properties) -> bytes:
    body = b"".join(bytes((one,)) + piece for one, value in properties.items() for piece in _pieces(one, value))
    return _number(len(body)) + body


def _pieces(one: Property, value: Any) -> Iterable[bytes]:
    if one is Property.USER:
        return [_text(name) + _text(said) for name, said in value]
    if one is Property.SUBSCRIPTION_ID:
        return [_number(value)]
    if one is Property.CORRELATION_DATA:
        return [len(value).to_bytes(2, "big") + value]
    width = _WIDTHS.get(one)
    return [_text(value) if width is None else value.to_bytes(width, "big")]
