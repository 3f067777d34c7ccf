"""What the modules of columns share: the names of columns, the words of reasons, and Confluent's frame."""

from __future__ import annotations

from typing import Final

CORRUPT: Final = "_corrupt_record"
"""Bytes of a payload that does not fit; null where it does."""
REASON: Final = "_corrupt_reason"
"""Why: one of the words below; null where it fits."""
UNFIT: Final = "unfit"
UNFRAMED: Final = "unframed"
UNKNOWN: Final = "unknown"

PARSED: Final = "__parsed"
MARK: Final = "__iris_mark"
"""A field of a Protobuf message that is never null."""
HEAD: Final = 5
"""Bytes of the frame: a zero, and the id of the schema."""


def frame_of(number: int) -> bytes:
    """Return the frame with the id of a schema."""
    return b"\0" + number.to_bytes(HEAD - 1)
