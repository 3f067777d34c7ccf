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

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from iris.kernel.config import KIB
from iris.kernel.numerals import MAX_WHOLE, read_float, read_whole
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
from iris.spark_bridge.log import Chunk, TopicFilter

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
        texts = sum(map(len, self.headers)) + sum(map(len, self.headers.values()))
        return len(self.value) + len(self.key or "") + texts + _PAIR * len(self.headers) + 512

    @property
    def delay(self) -> float:
        """Seconds after its timestamp until which it is not assigned."""
        seconds = read_float(self.headers.get(DELAY, ""))
        return seconds if seconds > 0 else 0.0

    @property
    def expires(self) -> float:
        """Seconds after its timestamp from which on it is not assigned any more."""
        return expires_after(self.headers)

    @property
    def priority(self) -> int:
        """Priority of the job: the header's number, cut to the range; 0 if there is none."""
        number = read_whole(self.headers.get(PRIORITY, ""), -MAX_WHOLE)
        return 0 if number is None else max(-MAX_PRIORITY, min(MAX_PRIORITY, number))


def rows_of(chunks: Sequence[Chunk], wanted: TopicFilter, start: int, end: int) -> list[JobRow]:
    """Return the wanted events from offset ``start`` up to but not including ``end`` in consecutive chunks.

    Raises:
        LogDamaged: a chunk is not what was written.
    """
    table = pa.Table.from_batches([decode_events(chunk.data) for chunk in chunks])
    if not table.num_rows:
        return []
    (events,) = table.combine_chunks().to_batches()
    if chunks[0].first < start or chunks[-1].end > end:
        at = events.column("offset").to_pylist()
        first = bisect_left(at, start)
        events = events.slice(first, bisect_left(at, end) - first)
    events = wanted.keep(events)
    columns = map(events.column, ("offset", "topic", "key", "value", "timestamp"))
    offsets, topics, keys, values, timestamps = columns
    headers: Any = events.column("headers")
    # A tenth of the time that ``to_pylist`` of nested columns takes.
    pairs = headers.flatten()
    names = pairs.field("key").to_pylist()
    texts = [(text or b"").decode("utf-8", "replace") for text in pairs.field("value").to_pylist()]
    lengths: Any = pc.list_value_length(headers)
    ends = [*accumulate(lengths.fill_null(0).to_pylist(), initial=0)]
    rows: list[JobRow] = []
    for offset, topic, key, value, timestamp, (begin, upto) in zip(
        offsets.to_pylist(),
        topics.to_pylist(),
        keys.to_pylist(),
        values.to_pylist(),
        timestamps.cast(pa.int64()).to_pylist(),
        pairwise(ends),
        strict=True,
    ):
        given = dict(zip(names[begin:upto], texts[begin:upto], strict=True))
        sender, encoding = given.pop(HEADER_SENDER, ""), given.pop(HEADER_ENCODING, "")
        rows.append(
            JobRow(
                offset=offset,
                topic=topic,
                key=key_text(key),
                value=NIL if value is None else value,
                encoding=PACKED if value is None else encoding,
                sender=sender,
                headers={name: text for name, text in given.items() if name and not name.startswith(RESERVED)},
                timestamp=timestamp,
            )
        )
    return rows


def pieces_of(value: bytes) -> Iterator[bytes]:
    """Yield a large value as it follows its event."""
    for at in range(0, len(value), _PIECE):
        yield value[at : at + _PIECE]
