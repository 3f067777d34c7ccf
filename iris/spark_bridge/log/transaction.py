"""Transaction: the tables of the index, checksummed and typed, as one transaction of LMDB sees them.

LMDB keeps no checksums.  So each record ends with a checksum over key and value, and a scan compares the number of
records with the number that LMDB counts.  A record that is changed, swapped with another one or cut off by a damaged
page is noticed when it is used, and never taken for another or for none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from typing import Final, Generic, Protocol, TypeVar, final

import lmdb

from iris.spark_bridge.errors import LogDamaged
from iris.spark_bridge.log.chunk import crc32
from iris.spark_bridge.log.replication.journal import Journal, Journaled

K = TypeVar("K")
V = TypeVar("V")

_CHECKSUM: Final = 4

_VALUE_PAGE: Final = 4096
_BESIDE_VALUE: Final = 160
"""Size of a record in the index beside its value, in bytes: key, checksum, and free space of its page."""


def record_size(value: int) -> int:
    """Return how many bytes a record with a value of so many takes: a large one has pages of its own."""
    return _BESIDE_VALUE + (value if value <= _VALUE_PAGE // 4 else -(-value // _VALUE_PAGE) * _VALUE_PAGE)


def _same(_key: object, value: bytes) -> bytes:
    return value


@final
@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Table(Generic[K, V]):
    """A table of the index, and how its records look.  Made once; a ``Transaction`` reads and writes it."""

    name: str
    pack_key: Callable[[K], bytes]
    unpack_key: Callable[[bytes], K]
    pack: Callable[[V], bytes]
    unpack: Callable[[K, bytes], V]
    """Value of a record, given its key."""
    is_own: bool = False
    """True if it has this log's own state among its copies, which these do not repeat."""
    grows: bool = False
    """True if it grows with the events: a copy gets these in pieces."""

    def open(self, key: bytes, sealed: bytes) -> bytes:
        """Return the value of a record, verified."""
        value = sealed[:-_CHECKSUM]
        if len(sealed) < _CHECKSUM or crc32(value, crc32(key)) != int.from_bytes(sealed[-_CHECKSUM:]):
            raise LogDamaged(f"the index is damaged: a record of its table {self.name!r} is not what was written")
        return value

    def journaled(self, key: K, value: V) -> Journaled:
        """Return a record in the form that another log accepts."""
        packed, data = self.pack_key(key), self.pack(value)
        return self.name, packed, data + crc32(data, crc32(packed)).to_bytes(_CHECKSUM)


def raw_table(name: str, *, is_own: bool = False) -> Table[bytes, bytes]:
    """Return a table whose records are their owner's business."""
    return Table(name, bytes, bytes, bytes, _same, is_own=is_own)


class Limits(Protocol):
    """Port of a transaction to its index."""

    def room(self, used: int, /) -> int:
        """Return the bytes that the log may have, given those that one kind of record uses.  It asks the disk."""
        ...

    def part(self, parent: lmdb.Transaction[bytes], journal: Journal | None, /) -> AbstractContextManager[Transaction]:
        """See ``Transaction.part``."""
        ...


@final
class Transaction:
    """The index as one transaction sees it.  Every call may raise LogDamaged.

    Args:
        index: index of the transaction.
        transaction: transaction of LMDB.
        databases: handle of each table, by name.
        journal: gets what is written, for the copies of the log. None: there are none.
    """

    __slots__ = ("_databases", "_index", "_journal", "_transaction")

    def __init__(
        self,
        index: Limits,
        transaction: lmdb.Transaction[bytes],
        databases: Mapping[str, lmdb._Database],
        journal: Journal | None = None,
    ) -> None:
        self._index = index
        self._transaction = transaction
        self._databases = databases
        self._journal = journal

    @property
    def number(self) -> int:
        """Number of this transaction; of one that reads, that of the last change that it sees."""
        return self._transaction.id()

    def part(self) -> AbstractContextManager[Transaction]:
        """Change something within this transaction: if the block raises, of what it has changed nothing is kept.

        In the block only the transaction that it gets may be used.

        Raises:
            StoreFull: there is no room for that; the transaction goes on without it.
        """
        return self._index.part(self._transaction, self._journal)

    def room(self, used: int) -> int:
        """Return how many bytes there are for what is kept, ``used`` of them already, if nothing else comes."""
        return self._index.room(used)

    # -- one record -----------------------------------------------------------------------------------------

    def get(self, table: Table[K, V], key: K) -> V | None:
        """Return the value of a key."""
        packed = table.pack_key(key)
        sealed = self._transaction.get(packed, db=self._databases[table.name])
        return None if sealed is None else table.unpack(key, table.open(packed, sealed))

    def find(self, table: Table[K, V], key: K) -> V | None:
        """Do the same, but read the whole table before a key counts as absent: damage could hide its record."""
        found = self.get(table, key)
        if found is None:
            self.verify(table)
        return found

    def put(self, table: Table[K, V], key: K, value: V) -> None:
        """Write a record."""
        packed, data = table.pack_key(key), table.pack(value)
        sealed = data + crc32(data, crc32(packed)).to_bytes(_CHECKSUM)
        self._transaction.put(packed, sealed, db=self._databases[table.name])
        if self._journal is not None:
            self._journal.note((table.name, packed, sealed), is_own=table.is_own)

    def put_sealed(self, table: Table[K, V], key: bytes, sealed: bytes) -> None:
        """Write a record of another log, of which copies do not learn; raise LogDamaged if it is not whole."""
        table.open(key, sealed)
        self._transaction.put(key, sealed, db=self._databases[table.name])

    def put_all(self, table: Table[K, V], records: Iterable[tuple[K, V]]) -> None:
        """Write many records, in one call: it takes half of the time."""
        pairs = sorted([(table.pack_key(key), table.pack(value)) for key, value in records])
        sealed = [(key, data + crc32(data, crc32(key)).to_bytes(_CHECKSUM)) for key, data in pairs]
        with self._transaction.cursor(self._databases[table.name]) as cursor:
            cursor.putmulti(sealed)
        if self._journal is not None:
            for key, data in sealed:
                self._journal.note((table.name, key, data), is_own=table.is_own)

    def delete(self, table: Table[K, V], key: K) -> bool:
        """Delete a record; return whether it was there."""
        return self.delete_packed(table, table.pack_key(key))

    def delete_packed(self, table: Table[K, V], key: bytes) -> bool:
        """Do the same, by the bytes of its key."""
        deleted = self._transaction.delete(key, db=self._databases[table.name])
        # A transaction that deletes nothing changes nothing, and LMDB gives its number to the next one.
        if deleted and self._journal is not None:
            self._journal.note((table.name, key, None), is_own=table.is_own)
        return deleted

    # -- many of them ---------------------------------------------------------------------------------------

    def count(self, table: Table[K, V]) -> int:
        """Return how many records a table has."""
        entries: int = self._transaction.stat(self._databases[table.name])["entries"]
        return entries

    def items(self, table: Table[K, V]) -> Iterator[tuple[K, V]]:
        """Yield every record, by key."""
        for packed, sealed in self._every(table):
            key = table.unpack_key(packed)
            yield key, table.unpack(key, table.open(packed, sealed))

    def verify(self, table: Table[K, V]) -> None:
        """Read every record of a table: what no reader of events comes across is what repeats are known by."""
        for key, sealed in self._every(table):
            table.open(key, sealed)

    def sealed(self, table: Table[K, V]) -> Iterator[Journaled]:
        """Yield every record, verified, in the form that another log accepts."""
        for key, sealed in self._every(table):
            table.open(key, sealed)
            yield table.name, key, sealed

    def _every(self, table: Table[K, V]) -> Iterator[tuple[bytes, bytes]]:
        count, entries = 0, self._transaction.stat(self._databases[table.name])["entries"]
        with self._transaction.cursor(self._databases[table.name]) as cursor:
            for record in cursor.iternext():
                count += 1
                yield record
        if count != entries:
            raise LogDamaged(f"the index is damaged: its table {table.name!r} has {count} of {entries} records")

    def items_from(self, table: Table[K, V], key: K) -> Iterator[tuple[K, V]]:
        """Yield the records whose key is not below ``key``."""
        with self._transaction.cursor(self._databases[table.name]) as cursor:
            if cursor.set_range(table.pack_key(key)):
                for packed, sealed in cursor.iternext():
                    found = table.unpack_key(packed)
                    yield found, table.unpack(found, table.open(packed, sealed))

    def items_around(self, table: Table[K, V], key: K) -> Iterator[tuple[K, V]]:
        """Yield the records from the last one on whose key is not above ``key``, or from the first if there is none."""
        with self._transaction.cursor(self._databases[table.name]) as cursor:
            if _find_around(cursor, table.pack_key(key)):
                for packed, sealed in cursor.iternext():
                    found = table.unpack_key(packed)
                    yield found, table.unpack(found, table.open(packed, sealed))

    def under(self, table: Table[bytes, V], prefix: bytes) -> Iterator[tuple[bytes, V]]:
        """Yield the records whose key begins with ``prefix``, each with the rest of its key."""
        with self._transaction.cursor(self._databases[table.name]) as cursor:
            if cursor.set_range(prefix):
                for key, sealed in cursor.iternext():
                    if not key.startswith(prefix):
                        return
                    yield key[len(prefix) :], table.unpack(key, table.open(key, sealed))

    def sound_from(self, table: Table[K, V], key: K) -> Iterator[tuple[K, V]]:
        """Yield the records from the last one below ``key`` on, without those that are damaged."""
        with self._transaction.cursor(self._databases[table.name]) as cursor:
            if _find_around(cursor, table.pack_key(key)):
                for found, sealed in cursor.iternext():
                    with suppress(LogDamaged):
                        at = table.unpack_key(found)
                        yield at, table.unpack(at, table.open(found, sealed))

    def last_to(self, table: Table[K, V], key: K) -> tuple[K, V] | None:
        """Return the record with the greatest key that is not above ``key``."""
        packed = table.pack_key(key)
        with self._transaction.cursor(self._databases[table.name]) as cursor:
            if not _find_around(cursor, packed) or cursor.key() > packed:
                return None
            at = table.unpack_key(cursor.key())
            return at, table.unpack(at, table.open(cursor.key(), cursor.value()))

    def clear(self, table: Table[K, V], first: bytes, end: bytes) -> None:
        """Delete the records from the key ``first`` up to but not including ``end``; copies do not learn of it."""
        with self._transaction.cursor(self._databases[table.name]) as cursor:
            found = cursor.set_range(first)
            while found and cursor.key() < end:
                found = cursor.delete()


def _find_around(cursor: lmdb.Cursor[bytes], key: bytes) -> bool:
    """Go to the last record whose key is not above ``key``, or to the first one; return whether there is one."""
    if not cursor.set_range(key):
        return bool(cursor.last())
    return bool(cursor.key() == key or cursor.prev() or cursor.first())
