"""Records of queues in the log's index: what became of jobs.

One transaction of the log writes what was reported since the last one: the blocks of done offsets that changed, the
failed attempts of jobs that are to be tried again, and the dead letters of those that are not.  Leases are not kept:
who dies with a job in hand, worker or bridge, has not done it.

====== ======================================= ==================================================================
prefix key behind it                           value
====== ======================================= ==================================================================
``f``  queue, shard, epoch                     the floor, and counts of done, dead-lettered and expired jobs
``b``  queue, shard, epoch, block              512 bytes of bits; none if the block is done in full
``a``  queue, shard, epoch, offset             failed attempts, not before (microseconds since 1970), last error
``o``  queue                                   the cluster for which failed attempts are counted
``c``                                          the date of the last of these writes, microseconds since 1970
====== ======================================= ==================================================================

A queue is named by a digest of its name, a shard by number and epoch: of a log that was wiped nothing is known.

Failed attempts are counted in bytes for the cluster that first asked for the queue.  Of those beyond its quota nothing
is written: they are known until the bridge ends.
"""

from __future__ import annotations

import dataclasses
import hashlib
import struct
from collections.abc import Mapping
from typing import Final, NamedTuple, final

from iris.spark_bridge.log import QUEUES, Quota, Transaction, record_size
from iris.spark_bridge.queues.progress import ShardProgress

_FLOOR: Final = struct.Struct(">QQQQ")
_NUMBER: Final = struct.Struct(">Q")
_ATTEMPTS: Final = struct.Struct(">Hq")
_SHARD: Final = struct.Struct(">I")
_DATE: Final = b"c"

_MAX_ERROR: Final = 1024
"""Longest error of a failed job, in bytes; the rest is cut off."""

Crowded = dict[tuple[int, int], str]
"""Failed attempts that were not written in full: who is above its quota, by shard and offset."""


class Retry(NamedTuple):
    """Record of a job that has failed and is to be tried again."""

    attempts: int
    due: int
    """Time of the next attempt, in microseconds since 1970."""
    error: str


@final
@dataclasses.dataclass(slots=True, kw_only=True)
class QueueRecord:
    """The log's record of a queue in one shard."""

    progress: ShardProgress
    done: int = 0
    dead: int = 0
    expired: int = 0
    retries: dict[int, Retry] = dataclasses.field(default_factory=dict[int, Retry])


def read_record(view: Transaction, queue: str, shard: int, epoch: str) -> QueueRecord | None:
    """Return what is known of a queue in a shard, None if nothing; raise LogDamaged if the record is not as written."""
    scope = _scope(queue, shard, epoch)
    found = view.get(QUEUES, b"f" + scope)
    if found is None:
        return None
    floor, done, dead, expired = _FLOOR.unpack(found)
    blocks = {_NUMBER.unpack(key)[0]: bits for key, bits in view.under(QUEUES, b"b" + scope)}
    retries = {_NUMBER.unpack(key)[0]: _read_retry(value) for key, value in view.under(QUEUES, b"a" + scope)}
    return QueueRecord(progress=ShardProgress(floor, blocks), done=done, dead=dead, expired=expired, retries=retries)


@final
@dataclasses.dataclass(slots=True, kw_only=True)
class ShardChange:
    """Change to write to the record of a queue in one shard."""

    floor: int
    done: int
    dead: int
    expired: int
    blocks: Mapping[int, bytes | None]
    """Blocks by number; None deletes one."""
    retries: Mapping[int, Retry | None]
    """Retries by offset; None deletes one."""


def change_of(record: QueueRecord, retries: Mapping[int, Retry | None]) -> ShardChange:
    """Return the change to write after jobs were marked as done, and count it as written."""
    progress = record.progress
    progress.advance()
    change = ShardChange(
        floor=progress.floor,
        done=record.done,
        dead=record.dead,
        expired=record.expired,
        blocks={number: progress.block(number) for number in progress.changed},
        retries=retries,
    )
    progress.changed.clear()
    return change


def read_date(view: Transaction) -> int:
    """Return when queues were last written, in microseconds since 1970, 0 if never; raise LogDamaged if damaged."""
    found = view.get(QUEUES, _DATE)
    return 0 if found is None else int(_NUMBER.unpack(found)[0])


def write_changes(
    view: Transaction, queue: str, cluster: str, shards: Mapping[tuple[int, str], ShardChange], date: int
) -> Crowded:
    """Write what has changed, by number and epoch of the shard; return for which failed attempts there was no room.

    Retries say when they are due, and a clock may be behind at the next start: so it is noted which date it was.
    """
    view.put(QUEUES, _DATE, _NUMBER.pack(date))
    crowded: Crowded = {}
    for (shard, epoch), change in shards.items():
        scope = _scope(queue, shard, epoch)
        view.put(QUEUES, b"f" + scope, _FLOOR.pack(change.floor, change.done, change.dead, change.expired))
        for number, bits in change.blocks.items():
            key = b"b" + scope + _NUMBER.pack(number)
            if bits is None:
                view.delete(QUEUES, key)
            else:
                view.put(QUEUES, key, bits)
        if change.retries:
            refused = _write_retries(view, scope, _owner(view, queue, cluster), change.retries)
            crowded |= {(shard, offset): why for offset, why in refused.items()}
    return crowded


def _write_retries(view: Transaction, scope: bytes, owner: str, retries: Mapping[int, Retry | None]) -> dict[int, str]:
    """Write or delete retries; return those that an owner has no room for, and why."""
    quota = Quota(view, "retries")
    refused: dict[int, str] = {}
    added = 0
    for offset, retry in retries.items():
        key = b"a" + scope + _NUMBER.pack(offset)
        before = view.get(QUEUES, key)
        had = 0 if before is None else record_size(len(before))
        value = None if retry is None else _pack_retry(retry)
        more = (0 if value is None else record_size(len(value))) - had
        if retry is not None and more > 0 and (why := quota.excess(owner, added + more)) is not None:
            refused[offset] = why
            # One that stands there goes on counting, without its error.
            value = None if before is None else _pack_retry(retry._replace(error=""))
            more = (0 if value is None else record_size(len(value))) - had
        if value is not None:
            view.put(QUEUES, key, value)
        elif before is not None:
            view.delete(QUEUES, key)
        added += more
    quota.add(owner, added)
    return refused


def _owner(view: Transaction, queue: str, cluster: str) -> str:
    """Return for which cluster a queue's attempts are counted: the first one for which some are."""
    key = b"o" + _digest(queue)
    found = view.get(QUEUES, key)
    if found is None:
        view.put(QUEUES, key, cluster.encode())
        return cluster
    return found.decode()


def _digest(queue: str) -> bytes:
    return hashlib.blake2b(queue.encode(), digest_size=8).digest()


def _scope(queue: str, shard: int, epoch: str) -> bytes:
    return _digest(queue) + _SHARD.pack(shard) + bytes.fromhex(epoch)


def _pack_retry(retry: Retry) -> bytes:
    return _ATTEMPTS.pack(retry.attempts, retry.due) + retry.error.encode()[:_MAX_ERROR]


def _read_retry(value: bytes) -> Retry:
    attempts, due = _ATTEMPTS.unpack_from(value)
    return Retry(attempts, due, value[_ATTEMPTS.size :].decode("utf-8", "replace"))
