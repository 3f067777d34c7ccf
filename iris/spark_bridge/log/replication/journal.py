"""Journal: what each transaction of a log changes, in the form in which a copy repeats it.

A copy is physical, as a standby of PostgreSQL is: the same records in the index, the same bytes at the same places of
the same segment files.  So everything that a transaction holds together stays together in the copy: events, what
repeats are known by, cursors of groups, batches of Spark's.  What stands in a record or in a chunk is nobody's business
here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Final, final

import msgspec

from iris.spark_bridge.errors import LogDamaged
from iris.spark_bridge.log.checked_table import Journaled


@final
class Write(msgspec.Struct, frozen=True, array_like=True):
    """Bytes of whole chunks, and their place."""

    shard: int
    epoch: str
    segment: int
    """Offset of the first event of the segment."""
    position: int
    size: int
    revision: int = 0
    """Of the segment's file."""


@final
class ChangeHead(msgspec.Struct, frozen=True, array_like=True):
    """A change without the bytes of its chunks, which follow in the order of ``writes``.

    Attributes:
        number: of the transaction in the primary's log; they grow.
        whole: the copy is as the primary was at ``number``, and not somewhere on the way there.
        cleared: for each range of records that are deleted first: table, first key, and the key behind the last.
        records: written, or deleted, in this order.
        writes: what is written into segments before.
    """

    number: int
    whole: bool
    cleared: Sequence[tuple[str, bytes, bytes]]
    records: Sequence[Journaled]
    writes: Sequence[Write]


@final
@dataclasses.dataclass(frozen=True, slots=True)
class LogChange:
    """What a copy does in one transaction.

    Attributes:
        head: what it is.
        data: the bytes of its chunks, in parts that lie anywhere.
    """

    head: ChangeHead
    data: Sequence[bytes | memoryview]

    @property
    def size(self) -> int:
        """Bytes of it, about."""
        records = sum(64 + len(key) + len(value or b"") for _, key, value in self.head.records)
        return records + sum(map(len, self.data))


_HEAD: Final = msgspec.msgpack.Decoder(ChangeHead)


def encode_head(head: ChangeHead) -> bytes:
    """Return a head as it travels."""
    return msgspec.msgpack.encode(head)


def decode_change_untrusted(data: bytes, head_size: int) -> LogChange:
    """Read a change: its head and the bytes of its chunks, a part for each write.

    Raises:
        LogDamaged: it is something else.
    """
    view = memoryview(data)
    try:
        head = _HEAD.decode(view[:head_size])
    except msgspec.MsgspecError as error:
        raise LogDamaged(f"a change that the primary sent cannot be read: {error}") from None
    parts: list[bytes | memoryview] = []
    at = head_size
    for write in head.writes:
        parts.append(view[at : at + write.size])
        at += write.size
    if at != len(data) or any(write.size < 0 or write.position < 0 for write in head.writes):
        raise LogDamaged("a change that the primary sent is not as long as it says")
    return LogChange(head, parts)


@final
class Journal:
    """Collects what the present transaction changes, and hands it on when that is committed.

    Args:
        committed: called with each change, in the thread that has committed.
    """

    def __init__(self, committed: Callable[[LogChange], None]) -> None:
        self._committed = committed
        self.records: list[Journaled] = []
        self.own: list[Journaled] = []
        """What copies do not repeat; they learn that there was a change."""
        self.writes: list[Write] = []
        self.data: list[bytes | memoryview] = []

    def write(
        self, shard: int, epoch: str, segment: int, position: int, parts: Sequence[bytes | memoryview], revision: int
    ) -> None:
        """Note what was written into a segment."""
        self.writes.append(Write(shard, epoch, segment, position, sum(map(len, parts)), revision))
        self.data += parts

    def abandon(self) -> None:
        """The transaction was not committed."""
        self.records, self.own, self.writes, self.data = [], [], [], []

    def commit(self, number: int) -> None:
        """The transaction was committed as this number."""
        records, own, writes, data = self.records, self.own, self.writes, self.data
        self.abandon()
        if records or own:
            self._committed(LogChange(ChangeHead(number, True, (), records, writes), data))
