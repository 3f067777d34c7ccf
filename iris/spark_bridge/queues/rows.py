"""Rows of a queue: the jobs among the events of a chunk, and what their headers ask for.

Any event on the queue's topic is a job, whichever node has published it.  These of its headers mean something:

================ ==================================================================================
``job-delay``    seconds after which it may be assigned
``job-priority`` -9 to 9: a higher one is assigned first
``expires``      seconds after which it is not assigned any more
================ ==================================================================================

Seconds count from the event's timestamp, by the clock of the bridge.  A value that is no such number counts as none.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from iris.kernel.config import KIB
from iris.patterns.pubsub.queues import DELAY, MAX_PRIORITY, PRIORITY
from iris.patterns.pubsub.subscribe import expires_after
from iris.spark_bridge.events.schema import (
    HEADER_ENCODING,
    HEADER_SENDER,
    NIL,
    PACKED,
    RESERVED,
    decode_events,
    key_text,
)
from iris.spark_bridge.log import Chunk

LARGE: Final = 64 * KIB
"""Size up to which a value is sent with its event, in bytes; a larger one follows in pieces."""

_PIECE: Final = 256 * KIB

_PAIR: Final = 128
"""Memory of a header beside its texts, in bytes."""


class JobRow(NamedTuple):
    """One event of the log, which is a job for a queue of its topic."""

    offset: int
    topic: str
    key: str | None
    value: bytes
    encoding: str
    """Encoding of the value: empty for bytes, else as in ``iris.spark_bridge.events.schema``."""
    sender: str
    headers: dict[str, str]
    timestamp: int
    """Time of the event, in microseconds since 1970."""

    @property
    def size(self) -> int:
        """Approximate memory of the event, in bytes."""
        headers = sum(len(name) + len(text) + _PAIR for name, text in self.headers.items())
        return len(self.value) + len(self.key or "") + headers + 512

    @property
    def delay(self) -> float:
        """Seconds after its timestamp until which it is not assigned."""
        return max(0.0, _seconds(self.headers.get(DELAY), 0.0))

    @property
    def expires(self) -> float:
        """Seconds after its timestamp from which on it is not assigned any more."""
        return expires_after(self.headers)

    @property
    def priority(self) -> int:
        """Priority of the job: the header's number, cut to the range; 0 if there is none."""
        text = self.headers.get(PRIORITY, "0")
        try:
            return max(-MAX_PRIORITY, min(MAX_PRIORITY, int(text[:3])))
        except ValueError:
            return 0


def _seconds(text: str | None, otherwise: float) -> float:
    if text is None:
        return otherwise
    try:
        seconds = float(text)
    except ValueError:
        return otherwise
    return otherwise if math.isnan(seconds) else seconds


def rows_of(chunk: Chunk, wanted: Callable[[str], bool], start: int, end: int) -> list[JobRow]:
    """Return the events on wanted topics from offset ``start`` up to but not including ``end`` in a chunk.

    Raises:
        LogDamaged: the chunk is not what was written.
    """
    batch = decode_events(chunk.data)
    if chunk.first < start or chunk.end > end:
        at = batch.column("offset").to_pylist()
        first = bisect_left(at, start)
        batch = batch.slice(first, bisect_left(at, end) - first)
    there = pc.unique(batch.column("topic")).to_pylist()
    topics = [topic for topic in there if wanted(topic)]
    if not topics:
        return []
    if len(topics) < len(there):
        batch = batch.filter(pc.is_in(batch.column("topic"), value_set=pa.array(topics, pa.string())))
    times = batch.column("timestamp").cast(pa.int64()).to_pylist()
    keys = batch.column("key").to_pylist()
    offsets = batch.column("offset").to_pylist()
    names = batch.column("topic").to_pylist()
    values = batch.column("value").to_pylist()
    return [
        _row(offset, topic, key, value, pairs, timestamp)
        for offset, topic, key, value, pairs, timestamp in zip(
            offsets, names, keys, values, _pairs(batch.column("headers")), times, strict=True
        )
    ]


_OWN: Final = (HEADER_SENDER, HEADER_ENCODING)


def _row(
    offset: int, topic: str, key: bytes | None, value: bytes | None, pairs: dict[str, bytes | None], timestamp: int
) -> JobRow:
    fields = [(pairs.pop(name, None) or b"").decode("utf-8", "replace") for name in _OWN]
    headers = {
        name: (text or b"").decode("utf-8", "replace") for name, text in pairs.items() if not name.startswith(RESERVED)
    }
    return JobRow(
        offset=offset,
        topic=topic,
        key=key_text(key),
        value=NIL if value is None else value,
        encoding=PACKED if value is None else fields[1],
        sender=fields[0],
        headers=headers,
        timestamp=timestamp,
    )


def _pairs(column: Any) -> list[dict[str, bytes | None]]:
    """Return the headers of each row; a tenth of the time that ``to_pylist`` of nested columns takes."""
    entries = column.flatten()
    names, texts = entries.field("key").to_pylist(), entries.field("value").to_pylist()
    found: list[dict[str, bytes | None]] = []
    at = 0
    for length in pc.list_value_length(column).to_pylist():
        upto = at + (length or 0)
        found.append({name: text for name, text in zip(names[at:upto], texts[at:upto], strict=True) if name})
        at = upto
    return found


def pieces_of(value: bytes) -> Iterator[bytes]:
    """Yield a large value as it follows its event."""
    for at in range(0, len(value), _PIECE):
        yield value[at : at + _PIECE]
