"""Messages of programs at a door: a map in JSON with a ``type``, and a payload if it has one.

One with a payload is a text that has it in an envelope, or it is binary: the map, a line feed, and the payload as
bytes.  ``docs/reference/doors/serve.md`` has the protocol.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from iris.doors.problems import Problem
from iris.doors.values import AS_VALUE, enveloped, from_json, opened
from iris.kernel.shapes import is_map

NOTHING: Final = object()
"""Stands for no payload."""

Head = Mapping[str, Any]
"""A message without its payload."""


def encoded(head: Head, payload: object = NOTHING) -> str | bytes:
    """Return a message: as bytes if its payload is, else as text."""
    if isinstance(payload, bytes):
        return json.dumps(head, ensure_ascii=False, separators=(",", ":")).encode() + b"\n" + payload
    rest = {} if payload is NOTHING else enveloped(payload)
    return json.dumps({**head, **rest}, ensure_ascii=False, separators=(",", ":"))


def size_of(data: str | bytes) -> int:
    """Return the bytes that a message and the value that it was made of take until it is done with."""
    return len(data) * (AS_VALUE if isinstance(data, str) else 1)


def decoded(text: str | None, data: bytes | None) -> tuple[dict[str, Any], object, int]:
    """Return the map of a message, its payload, and the bytes that this takes; raise Problem if it is malformed."""
    payload: object = NOTHING
    if text is None:
        assert data is not None
        front, found, payload = data.partition(b"\n")
        if not found:
            raise Problem(400, "malformed", "a binary message is a map in JSON, a line feed, and the payload")
        head, size = from_json(front), len(data)
    else:
        head, size = from_json(text), len(text) * AS_VALUE
    if not is_map(head):
        raise Problem(400, "malformed", "a message is a map in JSON")
    if text is not None and "payload" in head:
        payload = opened({name: head[name] for name in ("payload", "encoding") if name in head})
    return head, payload, size


def payload_of(payload: object) -> object:
    """Return the payload of a message that has to have one; raise Problem if it has none."""
    if payload is NOTHING:
        raise Problem(400, "malformed", "this message has a payload: in an envelope, or behind a line feed")
    return payload


def number_of(head: Head) -> int:
    """Return the id in a message; raise Problem if it is none."""
    number = head.get("id")
    if not isinstance(number, int) or isinstance(number, bool):
        raise Problem(400, "malformed", "an id is the whole number that the door has given")
    return number
