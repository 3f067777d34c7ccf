"""Index of a log: which events exist and where their chunks lie.  An LMDB environment; the truth about the log.

Everything that one append changes is changed in one transaction: the events, their place, the publishers' windows, and
what became of jobs, requests and leases meanwhile.  The transaction is synchronous and happens after the chunk's bytes
are on the disk.  LMDB never overwrites a page that a committed state uses, so a crash leaves the state before or after.

Why LMDB for the index and plain files for the chunks, measured with 1,000 events of 1 KB per append: all in LMDB
285,000 events/s with a growing file, this 981,000.  Also, removing a file gives the room back to a full disk at once,
while deleting in LMDB first needs some.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from collections.abc import Generator
from pathlib import Path
from typing import Final, NoReturn, final

import lmdb

from iris.spark_bridge.errors import LogDamaged, StoreFull
from iris.spark_bridge.log.records import TABLES
from iris.spark_bridge.log.replication.journal import Journal
from iris.spark_bridge.log.segments import has_room, is_full
from iris.spark_bridge.log.transaction import Transaction
from iris.spark_bridge.log.witness import IndexWitness

MAP_BYTES: Final = 16 * 1024 * 1024 * 1024
"""Address space, not memory: room for the index of about 100 million chunks."""

_READERS: Final = 512
_LOCK_BYTES: Final = 64 * (_READERS + 4)
"""A line of cache for each reader, and the table's head."""

_ERRORS: Final = (struct.error, lmdb.Error, OSError)
"""Errors of LMDB and of records."""

_WRITTEN_BY: Final = b"iris log "
_FORMAT: Final = _WRITTEN_BY + b"9"


@final
class Index:
    """The open index.  Reading is safe in any thread; one thread at a time may write.

    Args:
        path: directory of the index.
        map_bytes: largest size of the index, in bytes.

    Raises:
        LogDamaged: what lies at ``path`` is not an index of this version.
        StoreFull: there is no room to make one.
    """

    def __init__(self, path: Path, *, map_bytes: int = MAP_BYTES) -> None:
        self._witness: IndexWitness | None = None
        self.journal: Journal | None = None
        """Gets what each transaction writes, for the copies of this log."""
        self._path = path
        self._map_bytes = map_bytes
        _allocate_locks(path / "lock.mdb")
        try:
            self._environment = lmdb.open(
                str(path),
                map_size=map_bytes,
                max_dbs=len(TABLES),
                max_readers=_READERS,
                mode=0o600,
            )
        except _ERRORS as error:
            self._translate(error)
        try:
            self._witness = IndexWitness(path, self._environment.stat()["psize"])
            self._databases = self._open_tables()
            self._witness.note()
        except BaseException as error:
            self.close()
            if isinstance(error, _ERRORS):
                self._translate(error)
            raise

    def _open_tables(self) -> dict[str, lmdb._Database]:
        """Open the tables; all are made together with the format, so one that is not there has been damaged.

        Made anew, a table whose name has a flipped bit would be empty, and a batch of Spark's be stored twice.
        """
        with self._environment.begin(write=True) as transaction:
            found, entries = transaction.get(b"format"), self._environment.stat()["entries"]
            is_new = found is None and entries == 0
            if not is_new and found != _FORMAT:
                if found is None or not found.startswith(_WRITTEN_BY):
                    raise LogDamaged(f"{self._path} is not the index of a log")
                raise LogDamaged(
                    f"{self._path} is the index of a log of another version of Iris ({found.decode(errors='replace')}; "
                    f"this one reads {_FORMAT.decode()}): start the bridge with that version, or with the copy of "
                    "--data that was made before it"
                )
            if not is_new and entries != 1 + len(TABLES):
                raise LogDamaged(f"the index is damaged: it has {entries} tables and not {1 + len(TABLES)}")
            if is_new:
                transaction.put(b"format", _FORMAT)
            try:
                databases = {
                    name: self._environment.open_db(name.encode(), txn=transaction, create=is_new) for name in TABLES
                }
            except lmdb.NotFoundError:
                raise LogDamaged("the index is damaged: one of its tables is not there") from None
        return databases

    @property
    def number(self) -> int:
        """Number of the last change."""
        number: int = self._environment.info()["last_txnid"]
        return number

    @contextlib.contextmanager
    def read(self) -> Generator[Transaction]:
        """See the index as it is now; later changes do not show."""
        try:
            with self._environment.begin() as transaction:
                yield Transaction(self, transaction, self._databases)
        except _ERRORS as error:
            self._translate(error)

    @contextlib.contextmanager
    def write(self) -> Generator[Transaction]:
        """Change the index; at the end of the block it is all on the disk, after an exception nothing is.

        Raises:
            StoreFull: there is no room; nothing was changed.
        """
        assert self._witness is not None
        journal = self.journal
        try:
            with self._environment.begin(write=True) as transaction:
                yield Transaction(self, transaction, self._databases, journal)
                number = transaction.id()
            with contextlib.suppress(OSError):  # committed is committed: an older note is what a power cut leaves
                self._witness.note()
        except BaseException as error:
            if journal is not None:
                journal.abandon()
            if isinstance(error, _ERRORS):
                self._translate(error)
            raise
        if journal is not None:
            journal.commit(number)

    def room(self, used: int) -> int:
        """Return how many bytes there are for what is kept, ``used`` of them already, if nothing else comes."""
        disk = os.statvfs(self._path)
        return min(self._map_bytes, used + disk.f_bavail * disk.f_frsize)

    @contextlib.contextmanager
    def part(self, parent: lmdb.Transaction[bytes], journal: Journal | None) -> Generator[Transaction]:
        """See ``Transaction.part``."""
        try:
            with (
                contextlib.nullcontext() if journal is None else journal.part(),
                self._environment.begin(write=True, parent=parent) as transaction,
            ):
                yield Transaction(self, transaction, self._databases, journal)
        except _ERRORS as error:
            self._translate(error)

    @contextlib.contextmanager
    def snapshot(self) -> Generator[Transaction]:
        """Do the same as ``read``, for a block that runs in several threads, in one at a time."""
        transaction = self._environment.begin()
        try:
            yield Transaction(self, transaction, self._databases)
        finally:
            transaction.abort()

    def _translate(self, error: Exception) -> NoReturn:
        """Raise the store's error for one of ``_ERRORS``."""
        if isinstance(error, struct.error):
            raise LogDamaged(f"the index is damaged: a record has the wrong length: {error}") from error
        if isinstance(error, lmdb.MapFullError):
            raise StoreFull(
                "the index has reached the size that was set for it: open the log with a larger one"
            ) from error
        number = getattr(error, "errno", None) or getattr(error, "code", 0)
        # Of a write that was cut short LMDB says EIO, whatever the reason.
        if is_full(OSError(number, "")) or (number == errno.EIO and not has_room(self._path)):
            raise StoreFull(f"no room for the index: {error}") from error
        if isinstance(error, OSError):
            raise error
        raise LogDamaged(f"the index cannot be used: {error}") from error

    def close(self) -> None:
        """Close the index.  No transaction may be open."""
        if self._witness is not None:
            self._witness.close()
        self._environment.close()


def _allocate_locks(path: Path) -> None:
    """Give LMDB's table of readers all its room at once.

    LMDB makes it a file with holes and writes to it through memory: on a full disk that ends the process (SIGBUS).
    """
    if not hasattr(os, "posix_fallocate"):
        return
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, _LOCK_BYTES)
    except OSError as error:
        if is_full(error):
            raise StoreFull(f"no room for the index: {error.strerror}") from None
        raise
    finally:
        os.close(descriptor)
