"""Checksummed tables of the index, and a guard of its meta pages: LMDB's state is verified before it is believed.

Tables.  LMDB keeps no checksums.  So each record ends with a checksum over key and value, and a scan compares the
number of records with the number that LMDB counts.  A record that is changed, swapped with another one or cut off by a
damaged page is noticed when it is used, and never taken for another or for none.

Meta pages.  LMDB chooses the newest of two *meta pages*, which name the roots of all tables, and trusts it.  A flipped
bit there can make an older state look like the newest, and events that were acknowledged would be gone without a trace.
So after every commit the number and the checksum of the meta page are written into a file beside the index, and
compared when the log is opened.

The file is not synchronized: that would cost as much as the commit.  After the death of the process it is exact.  After
that of the machine it may be older than the index, which is then believed as far as its two pages fit together.

Layout of a meta page (lmdb.h, mdb.c of LMDB 0.9): 16 bytes of page header; magic, version, address, map size; two
tables; the last page; the transaction's number.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, Protocol, final

import lmdb

from iris.kernel.config import MIB
from iris.kernel.names import account_of
from iris.spark_bridge.errors import LogDamaged
from iris.spark_bridge.log.chunk import crc32

_META_AT: Final = 16
_META: Final = struct.Struct("=IIQQ48s48sQQ")
_MAGIC: Final = 0xBEEFC0DE
_RECORD: Final = struct.Struct(">QIII")
"""Number of the last transaction, checksums of its meta page and of the other one, checksum of this record."""


@final
class IndexWitness:
    """Guard of the meta pages: keeps number and checksum of the last state of an index.

    Args:
        directory: directory of the LMDB environment.
        page_size: page size of the environment.

    Raises:
        LogDamaged: the index is not in the state that was written last.
    """

    def __init__(self, directory: Path, page_size: int) -> None:
        self._data = os.open(directory / "data.mdb", os.O_RDONLY | os.O_CLOEXEC)
        self._page_size = page_size
        try:
            self._file = os.open(directory / "witness", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except BaseException:
            os.close(self._data)
            raise
        try:
            self._check()
        except BaseException:
            self.close()
            raise

    def _read_pages(self) -> dict[int, int]:
        """Return the checksums of the meta pages, all but that number, by the number of their transaction."""
        pages: dict[int, int] = {}
        for number in (0, 1):
            page = os.pread(self._data, _META.size, number * self._page_size + _META_AT)
            if len(page) < _META.size:
                raise LogDamaged("the index is cut off")
            magic, *_, transaction = _META.unpack(page)
            if magic != _MAGIC or (transaction > 1 and transaction % 2 != number):
                raise LogDamaged("the index is damaged: one of its first two pages is not what was written")
            pages[transaction] = crc32(page[:-8])
        return pages

    def _check(self) -> None:
        pages = self._read_pages()
        newest = max(pages)
        if newest - min(pages) > 1:
            raise LogDamaged("the index is damaged: its first two pages do not fit together")
        record = os.pread(self._file, _RECORD.size, 0)
        if len(record) < _RECORD.size:
            return
        transaction, checksum, other, own = _RECORD.unpack(record)
        if crc32(record[:-4]) != own:
            return  # torn by the death of the machine
        if transaction > newest:
            raise LogDamaged("the index is older than it was: it is damaged, or was put back from a copy")
        # A state that is newer than the last one known is not the one before under another number.
        if pages.get(transaction, checksum) != checksum or (transaction < newest and pages[newest] == other):
            raise LogDamaged("the index is damaged: one of its first two pages is not what was written")

    def note(self) -> None:
        """Write down the state of the index as it is now."""
        pages = self._read_pages()
        newest = max(pages)
        record = _RECORD.pack(newest, pages[newest], pages[min(pages)], 0)[:-4]
        os.pwrite(self._file, record + crc32(record).to_bytes(4), 0)

    def close(self) -> None:
        """Close the files."""
        os.close(self._data)
        os.close(self._file)


_CHECKSUM: Final = 4

Record = tuple[bytes, bytes]

Journaled = tuple[str, bytes, bytes | None]
"""Table, key and value with its checksum; None: the record was deleted."""


def seal(key: bytes, value: bytes) -> bytes:
    """Return a value with the checksum of its record."""
    return value + crc32(value, crc32(key)).to_bytes(_CHECKSUM)


@final
class CheckedTable:
    """One checksummed table in one transaction.  Every call may raise LogDamaged.

    Args:
        transaction: the transaction.
        database: the table.
        name: name of the table.
        journal: records what is written. None: no copy repeats it.
    """

    def __init__(
        self,
        transaction: lmdb.Transaction[bytes],
        database: lmdb._Database,
        name: str,
        journal: list[Journaled] | None = None,
    ) -> None:
        self._transaction = transaction
        self._database = database
        self._name = name
        self._journal = journal

    def _open(self, key: bytes, sealed: bytes) -> bytes:
        value = sealed[:-_CHECKSUM]
        if len(sealed) < _CHECKSUM or crc32(value, crc32(key)) != int.from_bytes(sealed[-_CHECKSUM:]):
            raise LogDamaged(f"the index is damaged: a record of its table {self._name!r} is not what was written")
        return value

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key."""
        sealed = self._transaction.get(key, db=self._database)
        return None if sealed is None else self._open(key, sealed)

    def put(self, key: bytes, value: bytes) -> None:
        """Write a record."""
        self._put(key, seal(key, value))

    def put_sealed(self, key: bytes, sealed: bytes) -> None:
        """Write a record of another log; raise LogDamaged if its checksum does not fit."""
        self._open(key, sealed)
        self._put(key, sealed)

    def _put(self, key: bytes, sealed: bytes) -> None:
        self._transaction.put(key, sealed, db=self._database)
        if self._journal is not None:
            self._journal.append((self._name, key, sealed))

    def put_all(self, records: Iterable[Record]) -> None:
        """Write many records, in one call; it takes half of the time."""
        sealed = [(key, value + crc32(key + value).to_bytes(_CHECKSUM)) for key, value in sorted(records)]
        with self._transaction.cursor(self._database) as cursor:
            cursor.putmulti(sealed)

    def delete(self, key: bytes) -> bool:
        """Delete a record; return whether it was there."""
        deleted = self._transaction.delete(key, db=self._database)
        # A transaction that deletes nothing changes nothing, and LMDB gives its number to the next one.
        if deleted and self._journal is not None:
            self._journal.append((self._name, key, None))
        return deleted

    def clear(self, first: bytes, end: bytes) -> None:
        """Delete the records from the key ``first`` up to but not including ``end``."""
        with self._transaction.cursor(self._database) as cursor:
            found = cursor.set_range(first)
            while found and cursor.key() < end:
                found = cursor.delete()

    def sealed(self) -> Iterator[Journaled]:
        """Yield every record, verified, in the form that another log accepts."""
        for key, value in self.records():
            yield self._name, key, seal(key, value)

    def count(self) -> int:
        """Return how many records it has."""
        entries: int = self._transaction.stat(self._database)["entries"]
        return entries

    def records(self) -> Iterator[Record]:
        """Yield every record, by key."""
        count = 0
        for record in self.records_from(b"\0"):
            count += 1
            yield record
        if count != self.count():
            raise LogDamaged(f"the index is damaged: its table {self._name!r} has {count} of {self.count()} records")

    def records_of(self, prefix: bytes) -> Iterator[Record]:
        """Yield the records whose key begins with ``prefix``, each with the rest of its key."""
        for key, value in self.records_from(prefix):
            if not key.startswith(prefix):
                return
            yield key[len(prefix) :], value

    def records_from(self, key: bytes) -> Iterator[Record]:
        """Yield the records whose key is not below ``key``."""
        with self._transaction.cursor(self._database) as cursor:
            if cursor.set_range(key):
                for found, sealed in cursor.iternext():
                    yield found, self._open(found, sealed)

    def sound_from(self, key: bytes) -> Iterator[Record]:
        """Yield the records from the last one below ``key`` on, without those that are damaged."""
        with self._transaction.cursor(self._database) as cursor:
            if not cursor.set_range(key) and not cursor.last():
                return
            if cursor.key() > key and not cursor.prev():
                cursor.first()
            for found, sealed in cursor.iternext():
                with suppress(LogDamaged):
                    yield found, self._open(found, sealed)

    def last_to(self, key: bytes) -> Record | None:
        """Return the record with the greatest key that is not above ``key``."""
        with self._transaction.cursor(self._database) as cursor:
            found = cursor.set_range(key)
            if not (found and cursor.key() == key):
                found = cursor.prev() if found else cursor.last()
            return (cursor.key(), self._open(cursor.key(), cursor.value())) if found else None


# -- what is kept for each cluster ------------------------------------------------------------------------------

QuotaKind = Literal["keys", "publishers", "retries"]
"""Kinds of records with a quota: idempotency keys with their outcomes, the numbers seen of publishers, and failed
attempts of jobs."""

_ONE: Final = 16
_ALL: Final = 4
"""Divisors of the room: one cluster may have a sixteenth, all together a quarter."""

_VALUE_PAGE: Final = 4096
_BESIDE_VALUE: Final = 160
"""Size of a record in the index beside its value, in bytes: key, checksum, and free space of its page."""

_COUNT: Final = struct.Struct(">Q")


def record_size(value: int) -> int:
    """Return how many bytes a record with a value of so many takes: a large one has pages of its own."""
    return _BESIDE_VALUE + (value if value <= _VALUE_PAGE // 4 else -(-value // _VALUE_PAGE) * _VALUE_PAGE)


class Room(Protocol):
    """Port of quotas to what limits the log."""

    def room(self, used: int, /) -> int:
        """Return the bytes that the log may have, given those that one kind of record uses.  It asks the disk."""
        ...


@final
class Quota:
    """Use of one kind of record by each cluster, in bytes, counted in the transaction that changes it.

    A cluster may have a sixteenth of the room, and all clusters together a quarter; those of another realm count as
    one.  So what one of them fills up is refused, or forgotten, for that one: there is room for the others' things, and
    for events.

    Args:
        table: table of the counts.
        kind: kind of the records.
        log: knows the room.
    """

    def __init__(self, table: CheckedTable, kind: QuotaKind, log: Room) -> None:
        self._table = table
        # Names of clusters have none of these characters: no count is mistaken for another one.
        self._total = kind.encode() + b"\1"
        self._prefix = kind.encode() + b"\0"
        self._log = log

    def used(self, owner: str) -> int:
        """Return how many bytes are kept for a cluster."""
        return self._get(self._prefix + account_of(owner).encode())

    @property
    def total(self) -> int:
        """Use of all clusters together, in bytes."""
        return self._get(self._total)

    def excess(self, owner: str, more: int = 0) -> str | None:
        """Return who would be above its quota if a cluster used ``more`` bytes more; None: nobody."""
        used, total = self.used(owner), self.total
        room = self._log.room(total)
        if used + more > room // _ONE:
            return f"cluster {account_of(owner)!r} has {used / MIB:,.1f} of {room / _ONE / MIB:,.1f} MiB"
        if total + more > room // _ALL:
            return f"all clusters together have {total / MIB:,.1f} of {room / _ALL / MIB:,.1f} MiB"
        return None

    def surplus(self, owner: str) -> tuple[str, int] | None:
        """Return of which cluster how many bytes are to be forgotten, after some were added for one; None: of none.

        Where all together have too much it is the one that has most.  A quarter goes at a time.
        """
        used, total = self.used(owner), self.total
        room = self._log.room(total)
        if used > room // _ONE:
            return account_of(owner), used - room // _ONE * 3 // 4
        if total > room // _ALL:
            largest, most = max(self._owners(), key=lambda one: one[1])
            return largest, most // 4
        return None

    def add(self, owner: str, size: int) -> None:
        """Count so many bytes more for a cluster, or fewer."""
        for key in (self._prefix + account_of(owner).encode(), self._total):
            used = max(0, self._get(key) + size)
            if used:
                self._table.put(key, _COUNT.pack(used))
            else:
                self._table.delete(key)

    def _owners(self) -> Iterator[tuple[str, int]]:
        for owner, value in self._table.records_of(self._prefix):
            yield owner.decode(), _COUNT.unpack(value)[0]

    def _get(self, key: bytes) -> int:
        value = self._table.get(key)
        return 0 if value is None else _COUNT.unpack(value)[0]
