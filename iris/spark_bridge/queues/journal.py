"""Journal of queues: what became of jobs, in an LMDB environment beside the log.

One transaction writes what was reported since the last one: the blocks of done offsets that changed, and the failed
attempts of jobs that are to be tried again.  Its commit is synchronous.  Leases are not kept: who dies with a job in
hand, worker or bridge, has not done it.

====== ======================================= ==================================================================
prefix key behind it                           value
====== ======================================= ==================================================================
``f``  queue, shard, epoch                     the floor, and counts of done, dead-lettered and expired jobs
``b``  queue, shard, epoch, block              512 bytes of bits; none if the block is done in full
``a``  queue, shard, epoch, offset             failed attempts, not before (microseconds since 1970), last error
====== ======================================= ==================================================================

A queue is named by a digest of its name, a shard by number and epoch: of a log that was wiped nothing is known.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import struct
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, final

import lmdb

from iris.security.files import make_directories
from iris.spark_bridge.errors import LogDamaged, StoreFull
from iris.spark_bridge.log import crc32, is_full
from iris.spark_bridge.queues.progress import BLOCK, ShardProgress

_MAP_BYTES: Final = 4 * 1024 * 1024 * 1024
"""Address space, not memory: room for 20 million jobs that are to be tried again."""

_SUM: Final = struct.Struct(">I")
_FLOOR: Final = struct.Struct(">QQQQ")
_NUMBER: Final = struct.Struct(">Q")
_ATTEMPTS: Final = struct.Struct(">Hq")
_SHARD: Final = struct.Struct(">I")

MAX_ERROR: Final = 1024
"""Bytes of the error that a job failed with; the rest is cut off."""


class Retry(NamedTuple):
    """What is known of a job that has failed and is to be tried again."""

    attempts: int
    due: int
    """Microseconds since 1970."""
    error: str


@final
@dataclasses.dataclass(slots=True, kw_only=True)
class ShardJournal:
    """What the journal holds of a queue in one shard."""

    progress: ShardProgress
    done: int
    dead: int
    expired: int
    retries: dict[int, Retry]


@final
class QueueJournal:
    """The journal of all queues of one member.  Every call blocks and is safe in any thread.

    Raises:
        LogDamaged: what lies in the directory is no journal.
        StoreFull: there is no room to make one.
    """

    def __init__(self, directory: Path) -> None:
        make_directories(directory)
        with _translated():
            self._environment = lmdb.open(str(directory), map_size=_MAP_BYTES, mode=0o600, max_readers=64)

    def load(self, queue: str, shard: int, epoch: str) -> ShardJournal | None:
        """Return what is known of a queue in a shard; None if that is nothing.

        Raises:
            LogDamaged: a record is not what was written.
        """
        scope = _scope(queue, shard, epoch)
        with _translated(), self._environment.begin() as transaction:
            found = transaction.get(b"f" + scope)
            if found is None:
                return None
            floor, done, dead, expired = _FLOOR.unpack(_checked(b"f" + scope, found))
            blocks = dict(_records(transaction, b"b" + scope))
            retries = {offset: _read_retry(value) for offset, value in _records(transaction, b"a" + scope)}
        return ShardJournal(
            progress=ShardProgress(floor, blocks), done=done, dead=dead, expired=expired, retries=retries
        )

    def write(self, queue: str, shards: Mapping[tuple[int, str], ShardChange]) -> None:
        """Write what has changed; it is on the disk when this returns.

        Raises:
            StoreFull: there is no room; nothing was changed.
        """
        with _translated(), self._environment.begin(write=True) as transaction:
            for (shard, epoch), change in shards.items():
                scope = _scope(queue, shard, epoch)
                _put(transaction, b"f" + scope, _FLOOR.pack(change.floor, change.done, change.dead, change.expired))
                for number, bits in change.blocks.items():
                    key = b"b" + scope + _NUMBER.pack(number)
                    if bits is None:
                        transaction.delete(key)
                    else:
                        _put(transaction, key, bits)
                for offset, retry in change.retries.items():
                    key = b"a" + scope + _NUMBER.pack(offset)
                    if retry is None:
                        transaction.delete(key)
                    else:
                        error = retry.error.encode()[:MAX_ERROR]
                        _put(transaction, key, _ATTEMPTS.pack(retry.attempts, retry.due) + error)

    def close(self) -> None:
        """Close the journal."""
        self._environment.close()


@final
@dataclasses.dataclass(slots=True, kw_only=True)
class ShardChange:
    """What is to be written of a queue in one shard."""

    floor: int
    done: int
    dead: int
    expired: int
    blocks: Mapping[int, bytes | None]
    """By number; None deletes one."""
    retries: Mapping[int, Retry | None]
    """By offset; None deletes one."""


def change_of(journal: ShardJournal, retries: Mapping[int, Retry | None]) -> ShardChange:
    """Return what is to be written after jobs were marked as done, and take it for written."""
    progress = journal.progress
    progress.advance()
    change = ShardChange(
        floor=progress.floor,
        done=journal.done,
        dead=journal.dead,
        expired=journal.expired,
        blocks={number: progress.block(number) for number in progress.changed},
        retries=retries,
    )
    progress.changed.clear()
    return change


def _scope(queue: str, shard: int, epoch: str) -> bytes:
    return hashlib.blake2b(queue.encode(), digest_size=8).digest() + _SHARD.pack(shard) + bytes.fromhex(epoch)


def _put(transaction: lmdb.Transaction[bytes], key: bytes, value: bytes) -> None:
    transaction.put(key, value + _SUM.pack(crc32(value, crc32(key))))


def _checked(key: bytes, record: bytes) -> bytes:
    value, found = record[: -_SUM.size], record[-_SUM.size :]
    if found != _SUM.pack(crc32(value, crc32(key))):
        raise LogDamaged("the journal of queues is damaged: a record is not what was written")
    return value


def _records(transaction: lmdb.Transaction[bytes], prefix: bytes) -> Sequence[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    cursor = transaction.cursor()
    if cursor.set_range(prefix):
        for key, value in cursor:
            if not key.startswith(prefix):
                break
            found.append((_NUMBER.unpack(key[len(prefix) :])[0], _checked(key, value)))
    return found


def _read_retry(value: bytes) -> Retry:
    attempts, due = _ATTEMPTS.unpack_from(value)
    return Retry(attempts, due, value[_ATTEMPTS.size :].decode("utf-8", "replace"))


@contextlib.contextmanager
def _translated() -> Generator[None]:
    """Turn LMDB's errors into the log's."""
    try:
        yield
    except struct.error as error:
        raise LogDamaged(f"the journal of queues is damaged: {error}") from error
    except lmdb.MapFullError as error:
        raise StoreFull("the journal of queues is full: too many jobs wait to be tried again") from error
    except lmdb.Error as error:
        number = getattr(error, "code", 0)
        if is_full(OSError(number, "")) or number == errno.EIO:
            raise StoreFull(f"no room on the disk for the journal of queues: {error}") from error
        raise LogDamaged(f"the journal of queues cannot be used: {error}") from error


__all__ = ("BLOCK", "MAX_ERROR", "QueueJournal", "Retry", "ShardChange", "ShardJournal", "change_of")
