"""msgpack as JSON, and back: others read the one, programs of Iris give and take the other.

The header ``iris-encoding`` says ``json`` where a value that has such a form stands as JSON: between Spark's source and
its sink, and in Kafka.  What is packed again is the value that was published.
"""

from __future__ import annotations

import json
import sys
from typing import Final

import msgspec

from iris.kernel.errors import LocalProtocolError, PayloadTooLarge, ProtocolError
from iris.kernel.wire import MAX_DEPTH, decode_payload_untrusted, encode_payload, join_payload, split_payload
from iris.spark_bridge.events.schema import MAX_VALUE, PACKED, TEXT

JSON: Final = "json"
"""Value of ``iris-encoding``; no embedded log has it."""

_write: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def unpack_value(value: bytes) -> tuple[bytes, str]:
    """Return the JSON of a packed value, and how it is encoded: packed still, if it has no such form."""
    try:
        payload = decode_payload_untrusted(join_payload(value, packed=True))
        if isinstance(payload, str):  # of an older log
            return payload.encode(), TEXT
        text = _write(payload).encode()
        if text.count(b"[") + text.count(b"{") > MAX_DEPTH:
            encode_payload(payload, sys.maxsize)  # what a stranger nests deeper would not come back
        return text, JSON
    except (ProtocolError, TypeError, ValueError, RecursionError):  # bytes in it, NaN, too deep, ...
        return value, PACKED


def pack_value(value: bytes, limit: int = MAX_VALUE) -> tuple[bytes, str]:
    """Return what ``unpack_value`` has made JSON of; the same bytes, and ``json``, if they are none or too many."""
    try:
        payload = encode_payload(msgspec.json.decode(value), limit)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LocalProtocolError, PayloadTooLarge):
        return value, JSON  # a header that nobody believes: it stays what it is
    return split_payload(payload)[0], PACKED
