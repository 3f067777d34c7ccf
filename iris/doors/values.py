"""Payloads as JSON and back, for programs that have no better form for them.

JSON has no bytes, and no NaN.  A payload that holds such things is told in an *envelope*: ``{"payload": ...}`` for what
JSON can hold, ``{"payload": BASE64, "encoding": "base64"}`` for bytes, and ``"encoding": "msgpack"`` for all else.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from typing import Final

from iris.doors.problems import Problem
from iris.kernel import wire
from iris.kernel.errors import IrisError
from iris.kernel.shapes import is_map

_ANY_SIZE: Final = 1 << 31
"""Limit, in bytes, that bounds nothing: what came by the mesh has been bounded there."""

MAX_CONTAINERS: Final = wire.MAX_CONTAINERS
"""Lists in one payload, and as many maps."""

AS_VALUE: Final = 16
"""Memory that each byte of JSON or MessagePack may take as a value, in bytes: of short texts, or of numbers."""

_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*+"?+', re.DOTALL)
"""A text in JSON."""

_FIELDS: Final = {"payload", "encoding"}


def to_json(value: object) -> bytes | None:
    """Return a payload as JSON, or None if JSON cannot hold it."""
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError):
        return None


def to_line(value: dict[str, object]) -> bytes:
    """Return a map as JSON in one line, also for programs that take more characters than LF for its end.

    ``splitlines`` of Python does, and so do readers in JavaScript before 2019.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.translate(_LINE_ENDS).encode()


_LINE_ENDS: Final = {one: f"\\u{one:04x}" for one in (0x85, 0x2028, 0x2029)}
"""Ends of lines that JSON lets stand raw in a text, and their escapes."""


def from_json(text: bytes | str) -> object:
    """Return what a client says in JSON; raise Problem if it is none, or no payload can hold it."""
    if len(text) > MAX_CONTAINERS:
        _check_containers(text if isinstance(text, str) else text.decode("utf-8", "replace"))
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_real)
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]
        raise Problem(400, "malformed", f"this is no JSON that can be used: {why}") from None


def _check_containers(text: str) -> None:
    """See that a payload is not refused in the end for what takes most of its time until then."""
    outside = _STRING.sub("", text)
    for opener, what in (("[", "lists"), ("{", "maps")):
        if outside.count(opener) > MAX_CONTAINERS:
            raise Problem(400, "malformed", f"more than {MAX_CONTAINERS} {what} in one payload: send it as bytes")


def _real(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text:.60} is beyond what a double can hold")
    return value


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")


def enveloped(value: object) -> dict[str, object]:
    """Return a payload as a map that JSON can hold."""
    if isinstance(value, bytes):
        return {"payload": base64.b64encode(value).decode(), "encoding": "base64"}
    if to_json(value) is not None:
        return {"payload": value}
    return {"payload": base64.b64encode(packed(value)).decode(), "encoding": "msgpack"}


def packed(value: object) -> bytes:
    """Return a payload as MessagePack; bytes as they are."""
    data, _ = wire.split_payload(wire.encode_payload(value, _ANY_SIZE))
    return bytes(data)


def unpacked(data: bytes) -> object:
    """Return what a client says in MessagePack; raise Problem if it is malformed."""
    try:
        return wire.decode_payload_untrusted(wire.join_payload(data, packed=True))
    except IrisError as error:
        expected = f"one value, at most 1,024 levels deep, {MAX_CONTAINERS} lists and as many maps, keys that are texts"
        raise Problem(400, "malformed", f"this is no MessagePack that can be used ({expected}): {error}") from None


def opened(envelope: object) -> object:
    """Return the payload of an envelope; raise Problem if it is no envelope."""
    if not is_map(envelope) or "payload" not in envelope or envelope.keys() - _FIELDS:
        raise Problem(400, "malformed", 'expected a map of "payload" and, if it is not JSON, "encoding"')
    payload, encoding = envelope["payload"], envelope.get("encoding")
    if encoding is None:
        return payload
    if encoding not in ("base64", "msgpack") or not isinstance(payload, str):
        raise Problem(400, "malformed", '"encoding" is "base64" or "msgpack", and then the payload a str')
    try:
        data = base64.b64decode(payload, validate=True)
    except binascii.Error:
        raise Problem(400, "malformed", "the payload is no base64") from None
    return data if encoding == "base64" else unpacked(data)
