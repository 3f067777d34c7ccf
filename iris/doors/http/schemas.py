"""JSON Schemas of what the door takes and sends, for its documents: AsyncAPI and OpenAPI."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from iris.doors.http import messages
from iris.doors.options import LONGEST, flag, number, whole
from iris.kernel.names import MAX_KEY
from iris.patterns.priority import Priority
from iris.patterns.pubsub.queues import MAX_DELAY, MAX_PRIORITY
from iris.patterns.pubsub.subscribe import MAX_EXPIRES

Schema = dict[str, Any]
"""Part of such a document, as a map that JSON can hold."""

NAME: Final = r"[A-Za-z0-9_.-]{1,128}"
"""Names of clusters, sites, realms and operations, as a regular expression of ECMA-262."""

ENVELOPE: Final[Schema] = {
    "payload": {"description": "Any value; a text if there is an encoding."},
    "encoding": {"enum": ["base64", "msgpack"], "description": "base64 of bytes, or of a value in MessagePack."},
}


def object_of(properties: Schema, *required: str) -> Schema:
    """Return the schema of a map."""
    return {"type": "object", "required": [*required], "properties": dict(properties)}


PROBLEM: Final = object_of(
    {
        "status": {"type": "integer"},
        "code": {"type": "string"},
        "detail": {"type": "string"},
        "retry_after": {"type": "number", "description": "Seconds."},
    },
    "status", "code", "detail",
)  # fmt: skip
ANSWER: Final = object_of({"member": messages.SCHEMAS["node"], **ENVELOPE}, "member", "payload")
END: Final = object_of(
    {
        "ended_by": {"enum": ["all", "count", "quiet", "deadline"]},
        "expected": {"type": "integer", "description": "Answers if all had answered."},
        "missing": {"type": "array", "items": {"type": "string"}},
        "errors": {"type": "object", "additionalProperties": PROBLEM},
    },
    "ended_by", "expected", "missing", "errors",
)  # fmt: skip
"""Lines of a survey: an answer, and the last one."""

EVENT: Final = object_of(
    {
        "topic": {"type": "string"},
        "missed": {"type": "integer", "minimum": 0, "description": "Events that were lost before this one."},
        "retained": {"const": True},
        "headers": messages.SCHEMAS["headers"],
        **ENVELOPE,
    },
    "topic", "payload", "missed",
)  # fmt: skip
GAP: Final = object_of({"missed": {"type": ["integer", "null"], "minimum": 0}}, "missed")
"""Data of server-sent events."""

_TYPES: Final[Mapping[Callable[[str], object], str]] = {
    str: "string", number: "number", whole: "integer", flag: "boolean",
}  # fmt: skip
_TIME: Final = {"exclusiveMinimum": 0, "maximum": LONGEST}
_RANGES: Final[Mapping[tuple[str, Callable[[str], object]], Schema]] = {
    ("operation", str): {"pattern": f"^{NAME}$"},
    ("prefer_site", str): {"pattern": f"^{NAME}$"},
    ("timeout", number): _TIME,
    ("wait", number): {"minimum": 0, "maximum": LONGEST},
    ("key", str): {"maxLength": MAX_KEY},
    ("hedge", number): {"exclusiveMinimum": 0},
    ("priority", str): {"enum": [one.name.lower() for one in Priority]},
    ("priority", whole): {"minimum": -MAX_PRIORITY, "maximum": MAX_PRIORITY},
    ("count", whole): {"minimum": 1},
    ("quiet", number): {"exclusiveMinimum": 0},
    ("delay", number): {"minimum": 0, "maximum": MAX_DELAY},
    ("expires", number): {"minimum": 0, "maximum": MAX_EXPIRES},
    ("capacity", whole): {"minimum": 1, "maximum": messages.MAX_CAPACITY},
}


def option_schema(name: str, read: Callable[[str], object]) -> Schema:
    """Return the schema of an option."""
    return {"type": _TYPES[read], **_RANGES.get((name, read), {})}
