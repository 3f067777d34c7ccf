"""A table of the index whose records cannot change unnoticed.

LMDB keeps no checksums.  So each record ends with one over key and value, and a scan compares the number of records
with the number that LMDB counts: a record that is changed, swapped with another one or cut off by a damaged page is
noticed when it is used, and never taken for another or for none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, final

import lmdb

from iris.spark_bridge.checksum import crc32
from iris.spark_bridge.errors import LogDamaged

_CHECKSUM: Final = 4

Record = tuple[bytes, bytes]


@final
class Table:
    """One table in one transaction.  Every call may raise LogDamaged."""

    def __init__(self, transaction: lmdb.Transaction[bytes], database: lmdb._Database, name: str) -> None:
        self._transaction = transaction
        self._database = database
        self._name = name

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
        checksum = crc32(value, crc32(key)).to_bytes(_CHECKSUM)
        self._transaction.put(key, value + checksum, db=self._database)

    def delete(self, key: bytes) -> bool:
        """Delete a record; tell whether it was there."""
        return self._transaction.delete(key, db=self._database)

    def records(self) -> Iterator[Record]:
        """Yield every record, by key."""
        count = 0
        for record in self.records_from(b"\0"):
            count += 1
            yield record
        expected = self._transaction.stat(self._database)["entries"]
        if count != expected:
            raise LogDamaged(f"the index is damaged: its table {self._name!r} has {count} of {expected} records")

    def records_from(self, key: bytes) -> Iterator[Record]:
        """Yield the records whose key is not below ``key``."""
        with self._transaction.cursor(self._database) as cursor:
            if cursor.set_range(key):
                for found, sealed in cursor.iternext():
                    yield found, self._open(found, sealed)

    def last_to(self, key: bytes) -> Record | None:
        """Return the record with the greatest key that is not above ``key``."""
        with self._transaction.cursor(self._database) as cursor:
            found = cursor.set_range(key)
            if not (found and cursor.key() == key):
                found = cursor.prev() if found else cursor.last()
            return (cursor.key(), self._open(cursor.key(), cursor.value())) if found else None
