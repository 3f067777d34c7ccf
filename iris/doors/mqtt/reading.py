"""Decoder of packets: what clients send, of which nothing is believed.

``Parting`` is the only error that leaves a decoder, whatever it is given.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sized
from typing import Any, Final, final

from iris.doors.mqtt.packets import (
    V3,
    V5,
    Connect,
    Disconnect,
    Filter,
    Packet,
    Parting,
    PingRequest,
    Properties,
    Property,
    Publish,
    Reason,
    Subscribe,
    Unsubscribe,
)

CONNECT: Final = 0x10
"""The first byte of a CONNECT."""

OVERHEAD: Final = 65_536
"""Size limit of a packet beside its payload, in bytes; of other packets than CONNECT and PUBLISH in all."""

_MAX_CONNECT: Final = 2 * OVERHEAD
"""Size limit of a CONNECT, in bytes: its payload, that of the will, has 64 KiB at most."""

_PUBLISH: Final = 3

MAX_PAIRS: Final = 512
"""User properties of one packet: as many headers as an event may have."""

MAX_FILTERS: Final = 1024
"""Filters of one packet: sixteen times as many subscriptions as a client may have."""

_PACKET_WITHIN: Final = 30.0
"""Seconds that a packet may take from its first byte to its last."""


async def read_frame(
    reader: asyncio.StreamReader, max_payload: int, hold: Callable[[int], None] = lambda _: None
) -> tuple[int, bytes]:
    """Read one packet: its first byte, and what follows the length.  One that is too large is not read.

    Args:
        reader: reader of the connection.
        max_payload: bytes of a message.
        hold: called with the bytes that are about to be read; what it raises leaves them unread.

    Raises:
        Parting: it is too large, or says no length.
        TimeoutError: it has begun, and did not end in time.
        asyncio.IncompleteReadError, OSError: the connection has ended.
    """
    first = (await reader.readexactly(1))[0]
    async with asyncio.timeout(_PACKET_WITHIN):
        return first, await _rest_of(reader, first, max_payload, hold)


async def _rest_of(reader: asyncio.StreamReader, first: int, max_payload: int, hold: Callable[[int], None]) -> bytes:
    size = 0
    for shift in (0, 7, 14, 21):
        byte = (await reader.readexactly(1))[0]
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
    else:
        raise Parting(Reason.MALFORMED, "a length of more than four bytes")
    limit = max_payload + OVERHEAD if first >> 4 == _PUBLISH else _MAX_CONNECT if first == CONNECT else OVERHEAD
    if size > limit:
        raise Parting(Reason.TOO_LARGE, f"a packet of {size} bytes: {limit} are the limit for its kind")
    hold(size)
    return await reader.readexactly(size)


@final
class _Fields:
    """The fields of one packet, which are taken one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def read(self, count: int) -> bytes:
        if count > self.left:
            raise Parting(Reason.MALFORMED, "a packet that ends too early")
        self._at += count
        return self._data[self._at - count : self._at]

    def rest(self) -> bytes:
        return self.read(self.left)

    def end(self) -> None:
        if self.left:
            raise Parting(Reason.MALFORMED, "a packet that goes on behind its end")

    def byte(self) -> int:
        return self.read(1)[0]

    def flag(self) -> int:
        value = self.byte()
        if value > 1:
            raise Parting(Reason.PROTOCOL_ERROR, f"a flag of value {value}")
        return value

    def short(self) -> int:
        return int.from_bytes(self.read(2), "big")

    def long(self) -> int:
        return int.from_bytes(self.read(4), "big")

    def above_zero(self, value: int) -> int:
        if not value:
            raise Parting(Reason.PROTOCOL_ERROR, "a number that may not be zero")
        return value

    def number(self) -> int:
        if self._at < len(self._data) and self._data[self._at] < 0x80:  # nearly all are
            self._at += 1
            return self._data[self._at - 1]
        value = 0
        for shift in (0, 7, 14, 21):
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise Parting(Reason.MALFORMED, "a number of more than four bytes")

    def binary(self) -> bytes:
        return self.read(self.short())

    def text(self) -> str:
        data, at = self._data, self._at + 2
        end = at + int.from_bytes(data[at - 2 : at], "big")
        if max(at, end) > len(data):
            raise Parting(Reason.MALFORMED, "a packet that ends too early")
        self._at = end
        try:
            text = data[at:end].decode()
        except UnicodeDecodeError:
            raise Parting(Reason.MALFORMED, "a text that is no UTF-8") from None
        if "\0" in text:
            raise Parting(Reason.MALFORMED, "a text with the character 0")
        return text

    def properties(self, level: int, allowed: frozenset[Property]) -> Properties:
        """Take properties, of which 3.1.1 has none."""
        found: Properties = {}
        if level == V3:
            return found
        size = self.number()
        if size > OVERHEAD:
            raise Parting(Reason.TOO_LARGE, f"properties of {size} bytes: {OVERHEAD} are the limit")
        fields = _Fields(self.read(size))
        while fields.left:
            number = fields.number()
            if number not in allowed:
                raise Parting(Reason.PROTOCOL_ERROR, f"property {number:#04x}, which does not belong there")
            one = Property(number)
            if one is Property.USER:
                pairs = found.setdefault(one, [])
                if len(pairs) >= MAX_PAIRS:
                    raise Parting(Reason.TOO_LARGE, f"more than {MAX_PAIRS} user properties in one packet")
                pairs.append((fields.text(), fields.text()))
            elif one in found:
                raise Parting(Reason.PROTOCOL_ERROR, f"property {number:#04x} twice")
            else:
                found[one] = _FORMS[one](fields)
        return found


_FORMS: Final[dict[Property, Callable[[_Fields], Any]]] = {
    Property.PAYLOAD_FORMAT: _Fields.flag,
    Property.MESSAGE_EXPIRY: _Fields.long,
    Property.CONTENT_TYPE: _Fields.text,
    Property.RESPONSE_TOPIC: _Fields.text,
    Property.CORRELATION_DATA: _Fields.binary,
    Property.SUBSCRIPTION_ID: lambda fields: fields.above_zero(fields.number()),
    Property.SESSION_EXPIRY: _Fields.long,
    Property.AUTHENTICATION_METHOD: _Fields.text,
    Property.AUTHENTICATION_DATA: _Fields.binary,
    Property.PROBLEM_INFORMATION: _Fields.flag,
    Property.WILL_DELAY: _Fields.long,
    Property.RESPONSE_INFORMATION: _Fields.flag,
    Property.REASON_TEXT: _Fields.text,
    Property.RECEIVE_MAXIMUM: lambda fields: fields.above_zero(fields.short()),
    Property.ALIAS_MAXIMUM: _Fields.short,
    Property.ALIAS: _Fields.short,
    Property.MAXIMUM_SIZE: lambda fields: fields.above_zero(fields.long()),
}

_OF_MESSAGE: Final = frozenset(
    {Property.PAYLOAD_FORMAT, Property.MESSAGE_EXPIRY, Property.CONTENT_TYPE, Property.RESPONSE_TOPIC,
     Property.CORRELATION_DATA, Property.USER}
)  # fmt: skip
_OF_PUBLISH: Final = _OF_MESSAGE | {Property.ALIAS}
_OF_WILL: Final = _OF_MESSAGE | {Property.WILL_DELAY}
_OF_CONNECT: Final = frozenset(
    {Property.SESSION_EXPIRY, Property.AUTHENTICATION_METHOD, Property.AUTHENTICATION_DATA,
     Property.PROBLEM_INFORMATION, Property.RESPONSE_INFORMATION, Property.RECEIVE_MAXIMUM, Property.ALIAS_MAXIMUM,
     Property.USER, Property.MAXIMUM_SIZE}
)  # fmt: skip
_OF_SUBSCRIBE: Final = frozenset({Property.SUBSCRIPTION_ID, Property.USER})
_OF_UNSUBSCRIBE: Final = frozenset({Property.USER})
_OF_DISCONNECT: Final = frozenset({Property.SESSION_EXPIRY, Property.REASON_TEXT, Property.USER})


def level_of(body: bytes) -> int:
    """Return the protocol level that a CONNECT names; raise Parting for another protocol."""
    fields = _Fields(body)
    name, level = fields.text(), fields.byte()
    if name not in ("MQTT", "MQIsdp"):
        raise Parting(Reason.MALFORMED, f"the protocol {name!r:.60}")
    return level if name == "MQTT" else 3


def password_of(body: bytes) -> bytes:
    """Return the password in a CONNECT of a level that is ``V3`` or ``V5``; empty if there is none.

    All else of it is passed over unread, so that who has no token costs the same whatever it has put into its packet.

    Raises:
        Parting: the packet ends too early.
    """
    fields = _Fields(body)
    fields.binary()
    level, flags, _ = fields.byte(), fields.byte(), fields.short()

    def pass_properties() -> None:
        if level == V5:
            fields.read(fields.number())

    pass_properties()
    fields.binary()  # the client identifier
    if flags & 0x04:
        pass_properties()
        fields.binary()
        fields.binary()  # the topic and payload of the will
    if flags & 0x80:
        fields.binary()
    return fields.binary() if flags & 0x40 else b""


def decode_connect(body: bytes) -> Connect:
    """Return the CONNECT of a level that is ``V3`` or ``V5``; raise Parting if it is malformed."""
    fields = _Fields(body)
    fields.text()
    level, flags, keep_alive = fields.byte(), fields.byte(), fields.short()
    has_will, will_qos, will_retain = flags & 0x04, flags >> 3 & 3, bool(flags & 0x20)
    if flags & 1 or will_qos == 3 or (not has_will and (will_qos or will_retain)):
        raise Parting(Reason.MALFORMED, f"the flags {flags:#04x}")
    if level == V3 and flags & 0xC0 == 0x40:
        raise Parting(Reason.MALFORMED, "a password without a user name")
    properties = fields.properties(level, _OF_CONNECT)
    client_id, will = fields.text(), None
    if has_will:
        of_will = fields.properties(level, _OF_WILL)
        will = Publish(
            topic=fields.text(), payload=fields.binary(), qos=will_qos, retain=will_retain, properties=of_will
        )
    if flags & 0x80:
        fields.text()
    password = fields.binary() if flags & 0x40 else None
    fields.end()
    return Connect(
        level=level,
        client_id=client_id,
        password=password,
        is_clean=bool(flags & 2),
        keep_alive=keep_alive,
        will=will,
        properties=properties,
    )


def decode(first: int, body: bytes, level: int) -> Packet:
    """Return what a connected client has sent; raise Parting unless a client may send it here, well-formed."""
    fields = _Fields(body)
    if first >> 4 == _PUBLISH:
        return _publish(first, fields, level)
    packet: Packet
    match first:
        case 0x82:
            packet_id, properties = fields.above_zero(fields.short()), fields.properties(level, _OF_SUBSCRIBE)
            filters = [_filter(fields, level)]
            while fields.left:
                _check_room(filters)
                filters.append(_filter(fields, level))
            packet = Subscribe(packet_id, tuple(filters), properties)
        case 0xA2:
            packet_id = fields.above_zero(fields.short())
            fields.properties(level, _OF_UNSUBSCRIBE)
            texts = [fields.text()]
            while fields.left:
                _check_room(texts)
                texts.append(fields.text())
            packet = Unsubscribe(packet_id, tuple(texts))
        case 0xC0:
            packet = PingRequest()
        case 0xE0:
            reason = fields.byte() if level == V5 and fields.left else 0
            if fields.left and level == V5:
                fields.properties(level, _OF_DISCONNECT)
            packet = Disconnect(wants_will=reason != 0)
        case _:
            raise Parting(Reason.PROTOCOL_ERROR, f"a packet that begins with {first:#04x}, which may not come here")
    fields.end()
    return packet


def _check_room(filters: Sized) -> None:
    if len(filters) >= MAX_FILTERS:
        raise Parting(Reason.TOO_LARGE, f"more than {MAX_FILTERS} filters in one packet")


def _publish(first: int, fields: _Fields, level: int) -> Publish:
    qos = first >> 1 & 3
    if qos == 3 or (first & 0x08 and not qos):
        raise Parting(Reason.MALFORMED, f"a PUBLISH that begins with {first:#04x}")
    topic = fields.text()
    packet_id = fields.above_zero(fields.short()) if qos else 0
    properties = fields.properties(level, _OF_PUBLISH)
    if Property.ALIAS in properties:
        raise Parting(Reason.ALIAS_INVALID, "a topic alias, of which there are none here")
    return Publish(
        topic=topic,
        payload=fields.rest(),
        qos=qos,
        retain=bool(first & 1),
        packet_id=packet_id,
        properties=properties,
    )


def _filter(fields: _Fields, level: int) -> Filter:
    text, options = fields.text(), fields.byte()
    qos, handling = options & 3, options >> 4 & 3
    if qos == 3 or handling == 3 or options & (0xFC if level == V3 else 0xC0):
        raise Parting(Reason.MALFORMED, f"the options {options:#04x} of a filter")
    return Filter(text=text, qos=qos, no_local=bool(options & 4), retain_handling=handling)
