"""Journal: what each transaction of a log changes, in the form in which a copy repeats it.

A copy is physical, as a standby of PostgreSQL is: the same records in the index, the same bytes at the same places of
the same segment files.  So everything that a transaction holds together stays together in the copy: events, what
repeats are known by, cursors of groups, batches of Spark's.  The contents of a record or of a chunk do not matter
here.

Chunks of a large transaction are forwarded before it is committed, so that a copy writes them at the same time as the
primary.  Like those in the primary's own files they count when a record names them, and are overwritten else.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Generator, Sequence
from typing import Final, final

import msgspec

from iris.kernel.config import KIB
from iris.spark_bridge.errors import LogDamaged

Journaled = tuple[str, bytes, bytes | None]
"""Table, key and value with its checksum; None: the record was deleted."""


@final
class Write(msgspec.Struct, frozen=True, array_like=True):
    """Place of whole chunks that were written into a segment."""

    shard: int
    epoch: str
    segment: int
    """First offset of the segment."""
    position: int
    size: int
    revision: int = 0
    """Revision of the segment's file."""


@final
class ChangeHead(msgspec.Struct, frozen=True, array_like=True):
    """A change without the bytes of its chunks, which follow in the order of ``writes``.

    Attributes:
        number: number of the transaction in the primary's log; numbers grow.  0: chunks of one not committed yet.
        whole: True if the copy then equals the primary at ``number``; False while it is catching up.
        cleared: ranges of records to delete first, each as table, first key, and the key after the last.
        records: records to write or delete, in this order.
        writes: chunks to write into segments before the records.
    """

    number: int
    whole: bool
    cleared: Sequence[tuple[str, bytes, bytes]]
    records: Sequence[Journaled]
    writes: Sequence[Write]


@final
@dataclasses.dataclass(frozen=True, slots=True)
class LogChange:
    """Change that a copy repeats in one transaction.

    Attributes:
        head: records and places of the change.
        data: bytes of its chunks, in parts that need not be contiguous.
    """

    head: ChangeHead
    data: Sequence[bytes | memoryview]

    @property
    def size(self) -> int:
        """Approximate size of the change, in bytes."""
        records = sum(64 + len(key) + len(value or b"") for _, key, value in self.head.records)
        return records + sum(map(len, self.data))


ABANDONED: Final = LogChange(ChangeHead(0, False, (), (), ()), ())
"""Marker: the transaction of which chunks were forwarded will not be committed."""


_EARLY: Final = 1536 * KIB
"""Size of chunks, in bytes, that are not held until the transaction is committed: two of a busy log.  With each chunk
alone an event of 1 KB took 0.4 us more of three processes, for what each change wakes."""

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
    """Collects what the present transaction changes, and hands it on when that is committed; large chunks before.

    Args:
        changed: called with each change, in the thread that makes it.
    """

    def __init__(self, changed: Callable[[LogChange], None]) -> None:
        self._changed = changed
        self.records: list[Journaled] = []
        self.own: list[Journaled] = []
        """Records that copies do not repeat; they learn that there was a change."""
        self.writes: list[Write] = []
        self.data: list[bytes | memoryview] = []
        self._size = 0
        self._is_begun = False
        """True once chunks of the present transaction were forwarded."""

    def write(
        self, shard: int, epoch: str, segment: int, position: int, parts: Sequence[bytes | memoryview], revision: int
    ) -> None:
        """Note what was written into a segment."""
        size = sum(map(len, parts))
        self.writes.append(Write(shard, epoch, segment, position, size, revision))
        self.data += parts
        self._size += size
        if self._size >= _EARLY:
            self._is_begun = True
            self._hand_on(0, ())

    def note(self, record: Journaled, *, is_own: bool) -> None:
        """Note a record that was written or deleted."""
        (self.own if is_own else self.records).append(record)

    @contextlib.contextmanager
    def part(self) -> Generator[None]:
        """Forget the records of a block that raises."""
        records, own = len(self.records), len(self.own)
        try:
            yield
        except BaseException:
            del self.records[records:], self.own[own:]
            raise

    def abandon(self) -> None:
        """The transaction was not committed."""
        self.records, self.own, self.writes, self.data, self._size = [], [], [], [], 0
        if self._is_begun:
            self._is_begun = False
            self._changed(ABANDONED)

    def commit(self, number: int) -> None:
        """The transaction was committed as this number."""
        records, own = self.records, self.own
        self.records, self.own, self._is_begun = [], [], False
        if records or own:
            self._hand_on(number, records)

    def _hand_on(self, number: int, records: Sequence[Journaled]) -> None:
        writes, data = self.writes, self.data
        self.writes, self.data, self._size = [], [], 0
        self._changed(LogChange(ChangeHead(number, number > 0, (), records, writes), data))
