"""Packets of MQTT that a server reads, and the numbers that stand for reasons and properties.

Source: OASIS MQTT Version 3.1.1, and Version 5.0, which has properties and more reasons.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, Final, final

V3: Final = 4
"""The protocol level of MQTT 3.1.1."""

V5: Final = 5
"""The protocol level of MQTT 5."""


@final
class Reason(enum.IntEnum):
    """Reason codes of MQTT 5.  From 0x80 on they are failures."""

    SUCCESS = 0x00
    NO_SUBSCRIPTION = 0x11
    UNSPECIFIED = 0x80
    MALFORMED = 0x81
    PROTOCOL_ERROR = 0x82
    NOT_ACCEPTED = 0x83
    UNSUPPORTED_VERSION = 0x84
    CLIENT_ID_NOT_VALID = 0x85
    BAD_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_BUSY = 0x89
    SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    TAKEN_OVER = 0x8E
    FILTER_INVALID = 0x8F
    TOPIC_INVALID = 0x90
    ALIAS_INVALID = 0x94
    TOO_LARGE = 0x95
    QUOTA_EXCEEDED = 0x97
    PAYLOAD_INVALID = 0x99
    QOS_NOT_SUPPORTED = 0x9B


@final
class Property(enum.IntEnum):
    """Properties of MQTT 5 that this door reads or writes."""

    PAYLOAD_FORMAT = 0x01
    MESSAGE_EXPIRY = 0x02
    CONTENT_TYPE = 0x03
    RESPONSE_TOPIC = 0x08
    CORRELATION_DATA = 0x09
    SUBSCRIPTION_ID = 0x0B
    SESSION_EXPIRY = 0x11
    ASSIGNED_CLIENT_ID = 0x12
    SERVER_KEEP_ALIVE = 0x13
    AUTHENTICATION_METHOD = 0x15
    AUTHENTICATION_DATA = 0x16
    PROBLEM_INFORMATION = 0x17
    WILL_DELAY = 0x18
    RESPONSE_INFORMATION = 0x19
    REASON_TEXT = 0x1F
    RECEIVE_MAXIMUM = 0x21
    ALIAS_MAXIMUM = 0x22
    ALIAS = 0x23
    MAXIMUM_QOS = 0x24
    USER = 0x26
    MAXIMUM_SIZE = 0x27


Properties = dict[Property, Any]
"""Values by property, of the type that its number means; those of ``USER`` are a list of pairs of texts."""


@final
class Parting(Exception):
    """Reason for which the door ends a connection, or does not begin one."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason: Final = reason


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """A message: one that is published, or the last will of a client."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    packet_id: int = 0
    properties: Properties = field(default_factory=Properties)

    @property
    def size(self) -> int:
        """Bytes that reach others: those of the payload, and of the user properties, which are headers."""
        pairs = self.properties.get(Property.USER, ())
        return len(self.payload) + sum(len(name) + len(value) for name, value in pairs)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Connect:
    """A CONNECT: the client that comes, and its terms."""

    level: int
    client_id: str
    password: bytes | None
    is_clean: bool
    keep_alive: int
    will: Publish | None
    properties: Properties


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """One filter of a SUBSCRIBE, with its options."""

    text: str
    qos: int
    no_local: bool
    retain_handling: int


@final
@dataclass(frozen=True, slots=True)
class Subscribe:
    packet_id: int
    filters: tuple[Filter, ...]
    properties: Properties


@final
@dataclass(frozen=True, slots=True)
class Unsubscribe:
    packet_id: int
    filters: tuple[str, ...]


@final
@dataclass(frozen=True, slots=True)
class PingRequest:
    """A PINGREQ."""


@final
@dataclass(frozen=True, slots=True)
class Disconnect:
    wants_will: bool


Packet = Publish | Subscribe | Unsubscribe | PingRequest | Disconnect
"""Packet that a client may send once it is connected."""
