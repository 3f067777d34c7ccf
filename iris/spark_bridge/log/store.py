"""Store: the durable log on a local disk, with chunks in segment files and everything else in an LMDB index.

Every call blocks (the service makes them in threads) and is all or nothing.  A shard has an *epoch*, a random id made
when the shard is made.  Offsets mean something only together with the epoch, so a log that was wiped is noticed instead
of read from a position that no longer means the same.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final, final

from iris.kernel.tasks import close_locked
from iris.spark_bridge.log.appender import Appender, read_shards
from iris.spark_bridge.log.cursors import Cursors
from iris.spark_bridge.log.open_log import OpenLog
from iris.spark_bridge.log.owners import Owners
from iris.spark_bridge.log.reader import Reader
from iris.spark_bridge.log.records import MEMBERS, SUBSCRIBERS, ShardState
from iris.spark_bridge.log.replication.replication import Replication
from iris.spark_bridge.log.retention import Retainer
from iris.spark_bridge.log.tiering import TierCatalog, Tiering
from iris.spark_bridge.log.transaction import Transaction

QUERY: Final = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
"""Ids of the queries whose batches Spark writes; Spark's own are UUIDs."""


@final
class Store:
    """A durable log of events in shards, in one directory.  Safe in any thread.  Made by ``open_store``.

    Its parts are what changes together; they share the index, the segments and the lock of who writes.

    Args:
        log: the log.
        catalog: objects of its tier.
        lock: descriptor of the locked file.
    """

    def __init__(self, log: OpenLog, catalog: TierCatalog, lock: int) -> None:
        self._log = log
        self._lock = lock
        self.owners: Final = Owners(log)
        """Owners of the names of groups and queries."""
        self.cursors: Final = Cursors(log, self.owners)
        """Progress of groups of readers."""
        self.replication: Final = Replication(log)
        """Replication of this log to copies."""
        self.tiering: Final = Tiering(log, catalog)
        """Tiering of this log: its sealed segments go to a tier."""
        self.appender: Final = Appender(log)
        """Stores events."""
        self.reader: Final = Reader(log, self.tiering)
        """Reads them."""
        self.retainer: Final = Retainer(log, self.tiering, self.reader, self.owners)
        """Removes them."""

    def __repr__(self) -> str:
        return f"<Store {self._log.directory}>"

    def shards(self) -> list[ShardState]:
        """Return every shard by number."""
        return self.numbered_shards()[1]

    def numbered_shards(self) -> tuple[int, list[ShardState]]:
        """Return the number of the last change of this log, and every shard as it is after that."""
        with self._log.index.read() as view:
            return view.number, read_shards(view, self._log.gaps)

    def read_transaction(self) -> AbstractContextManager[Transaction]:
        """See the index as it is now, in a block of one thread."""
        return self._log.index.read()

    # -- members --------------------------------------------------------------------------------------------

    def members(self) -> dict[int, str]:
        """Return every shard that the bridge is known to have, with the cluster at which it was found last."""
        with self._log.index.read() as view:
            return dict(view.items(MEMBERS))

    def note_members(self, found: Mapping[int, str]) -> None:
        """Write down the bridge's shards, each with the cluster where it is; raise StoreFull if there is no room."""
        with self._log.writing:
            if found.items() <= self.members().items():
                return
            with self._log.index.write() as view:
                for shard, address in found.items():
                    view.put(MEMBERS, shard, address)

    def forget_member(self, shard: int) -> bool:
        """Forget that the bridge has a shard; return whether that was known."""
        with self._log.writing, self._log.index.write() as view:
            return view.delete(MEMBERS, shard)

    # -- durable subscribers --------------------------------------------------------------------------------

    def subscribers(self) -> list[bytes]:
        """Return the records of durable subscribers that were kept."""
        with self._log.index.read() as view:
            return [record for _, record in view.items(SUBSCRIBERS)]

    def keep_subscribers(self, records: Sequence[bytes]) -> None:
        """Replace the records of durable subscribers; raise StoreFull, and keep the former, if there is no room."""
        wanted = {hashlib.blake2b(record, digest_size=16).digest(): record for record in records}
        with self._log.writing, self._log.index.write() as view:
            known = dict(view.items(SUBSCRIBERS))
            for digest in known.keys() - wanted.keys():
                view.delete(SUBSCRIBERS, digest)
            for digest in wanted.keys() - known.keys():
                view.put(SUBSCRIBERS, digest, wanted[digest])

    def close(self) -> None:
        """Close the log.  Appended events are on the disk already."""
        with self._log.writing:
            self._log.files.close()
            self._log.index.close()
            close_locked(self._lock)
