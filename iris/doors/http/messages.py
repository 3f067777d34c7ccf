"""Messages between the door and a program that serves: which there are, and what is in them.

The door takes none that is not here, its AsyncAPI document is made of these tables, and tests compare what it sends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

PROTOCOL: Final = "iris.serve.1"
"""The WebSocket protocol of a program that serves."""

MAX_CAPACITY: Final = 1024
"""Requests that a program may take at a time."""

MAX_CODE: Final = 64
MAX_DETAIL: Final = 1024
"""Characters of the code and the text of an error."""


class Kind(NamedTuple):
    """A type of message.

    Attributes:
        summary: what it says.
        fields: fields that it has, beside its type.
        optional: fields that it may have.
        has_payload: True if it has a payload.
    """

    summary: str
    fields: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    has_payload: bool = False


_ORIGIN: Final = ("sender", "node", "headers")

SENT: Final[Mapping[str, Kind]] = {
    "ready": Kind("Work comes from now on.", ("member", "cluster", "capacity", "max_message")),
    "request": Kind(
        "A request, or one of a survey.", ("id", "timeout", *_ORIGIN), ("operation", "key"), has_payload=True
    ),
    "cancel": Kind("Nobody waits for the answer.", ("id",)),
    "broadcast": Kind("What all members are told.", ("id", *_ORIGIN), has_payload=True),
    "tunnel": Kind("A tunnel is opened.", ("id", "credit", *_ORIGIN), ("operation",)),
    "data": Kind("A payload of a tunnel.", ("id",), has_payload=True),
    "credit": Kind("So many payloads more may be sent.", ("id", "credit")),
    "eof": Kind("No payload of the tunnel comes any more.", ("id",)),
    "close": Kind("The tunnel broke.", ("id", "code", "detail")),
    "drain": Kind("No new work comes."),
}
"""Messages of the door."""

TAKEN: Final[Mapping[str, Kind]] = {
    "reply": Kind("The reply to a request.", ("id",), has_payload=True),
    "error": Kind("The request has failed.", ("id", "code"), ("detail",)),
    "done": Kind("There is room for another broadcast.", ("id",)),
    "data": SENT["data"],
    "credit": SENT["credit"],
    "eof": SENT["eof"],
    "close": Kind("The tunnel ends; with a code it has failed.", ("id",), ("code", "detail")),
    "drain": Kind("The program takes no new work."),
}
"""Messages of programs."""

SCHEMAS: Final[Mapping[str, Mapping[str, Any]]] = {
    "id": {"type": "integer", "description": "The number that the door has given."},
    "member": {"type": "string", "description": "The id of the door's node, which is the member."},
    "cluster": {"type": "string"},
    "capacity": {"type": "integer", "minimum": 1, "maximum": MAX_CAPACITY},
    "max_message": {"type": "integer", "description": "Size limit of a message to the door, in bytes."},
    "timeout": {"type": "number", "minimum": 0, "description": "Seconds that are left."},
    "sender": {"type": "string", "description": "The cluster that asks, as its certificate proves it."},
    "node": {"type": "string", "description": "The id of the node that asks."},
    "headers": {"type": "object", "additionalProperties": {"type": "string"}},
    "operation": {"type": "string"},
    "key": {"type": "string", "description": "The idempotency key."},
    "credit": {"type": "integer", "minimum": 1},
    "code": {"type": "string", "maxLength": MAX_CODE, "pattern": "^[A-Za-z0-9_.-]+$"},
    "detail": {"type": "string"},
}
"""Schema of each field."""
