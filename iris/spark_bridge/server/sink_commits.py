"""Commit coordinator of the sink: Spark's tasks stage parts, its driver commits each batch once.

A batch and the note that it was committed are stored in one transaction, so a repeated commit changes nothing.

Writer permissions: only clusters that may publish the same topics may write them into a bridge's log through Spark.
The bridge publishes what Spark commits, with its own rights.  A reader's credential, which may publish
nothing, must not reach through the bridge what it cannot reach itself.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Final, Protocol, final
from weakref import WeakValueDictionary

import pyarrow as pa
import trio

from iris.cluster.mesh import Peer
from iris.kernel.errors import IrisError, NotAllowed, RemoteError
from iris.kernel.tasks import run_in_thread
from iris.node.node import Node
from iris.patterns.messages import Sender
from iris.patterns.tunnel import Tunnel
from iris.spark_bridge.events.schema import HEADER_BRIDGE, HEADER_SINK, encoding_of, header_texts, key_text, payload_of
from iris.spark_bridge.log import Appended, Store
from iris.spark_bridge.server.sharding import Sharding
from iris.spark_bridge.staging import StagedPart, Staging


@final
class Writer:
    """Permission check of one writer: which topics it may write.

    Args:
        sender: the node.
        peer: what is known of it. None: it is not connected any more.

    Raises:
        NotAllowed: it may publish nothing here.
    """

    def __init__(self, sender: Sender, peer: Peer | None) -> None:
        self.cluster = sender.cluster
        if peer is None or peer.other_realm:
            raise NotAllowed(f"only nodes of the bridge's own realm may write to it, not those of {sender.cluster!r}")
        self._rights = peer.identity.certificate.rights
        self._border = peer.border
        self._known: set[str] = set()
        if self._rights.publishes == ():
            raise self._refused("publish, and what Spark writes is published: the sink needs a credential that may")

    def _refused(self, what: str) -> NotAllowed:
        return NotAllowed(f"the certificate of cluster {self.cluster!r} does not permit to {what}")

    def check(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass rows of SINK_SCHEMA on; raise NotAllowed if one is on a topic that the node may not publish on."""
        for batch in rows:
            # Checked while the rows stream into the transaction: a refusal in the last batch of rows rolls back all of
            # them.
            for topic in set(batch.column("topic").to_pylist()) - self._known:
                if not self._rights.may_publish(topic):
                    raise self._refused(f"publish on {topic!r}")
                if self._border is not None and not self._border.may_enter(topic):
                    raise NotAllowed(f"events on {topic!r} from other sites are not let in")
                self._known.add(topic)
            yield batch


_ABANDONED: Final = 24 * 3600.0
"""Seconds after which a batch that was staged and neither committed nor given up is forgotten."""

_LOOKED_FOR: Final = 3600.0

_TELLING: Final = 30.0
"""Seconds for publishing a batch; its writer gives an attempt to commit 60 s."""


class CommittedLog(Protocol):
    """Port to the member whose log grows by what Spark writes.  Nothing of it blocks."""

    def now(self) -> int:
        """Return the wall clock in microseconds since 1970."""
        ...

    def date(self) -> int:
        """Return the date for what is written now, in microseconds since 1970."""
        ...

    def is_clock_believed(self) -> bool:
        """Return whether anything may be forgotten for its age."""
        ...

    def note_appended(self, appended: Appended, /) -> None:
        """Let readers know of rows that were added to the log."""
        ...

    def note_unannounced(self, count: int, /) -> None:
        """Count rows that could not be published."""
        ...


@final
class BatchCommitter:
    """Commit coordinator: stages parts and commits batches, each once.

    Args:
        store: the log.
        staging: parts that are not committed yet.
        sharding: shards among which rows are divided.
        log: learns that the log has grown.
        node: publishes committed events to the mesh: present subscribers get them, at most once.
        bridge: name of the bridge.
    """

    def __init__(
        self, store: Store, staging: Staging, sharding: Sharding, log: CommittedLog, node: Node, bridge: str
    ) -> None:
        self._store = store
        self._staging = staging
        self._sharding = sharding
        self._log = log
        self._node = node
        self._bridge = bridge
        self._appending = trio.Lock()
        self._committing: WeakValueDictionary[str, trio.Lock] = WeakValueDictionary()
        """Locks of queries of which a batch is being committed: their subscribers may not delay other queries."""

    async def stage(self, part: StagedPart, tunnel: Tunnel) -> int:
        """Write the bytes that come through a tunnel, and return how many they were.

        Raises:
            QuotaExceeded: the cluster at the other end would have staged too much.
            StoreFull: there is no room for them.
        """
        size = 0
        with ExitStack() as stack:
            staging = self._staging.write(part, tunnel.sender.cluster)
            write = await run_in_thread(lambda: stack.enter_context(staging))
            async for payload in tunnel:
                if not isinstance(payload, bytes):
                    raise RemoteError("bad_request", "a staged part is bytes")
                await run_in_thread(write, payload)
                size += len(payload)
            # Leaving the block syncs and renames the file: before this line nothing is staged, and a broken tunnel
            # leaves none of it.
            await run_in_thread(stack.pop_all().close)
        return size

    async def commit(
        self,
        query: str,
        batch: int,
        parts: Sequence[StagedPart],
        carried: Mapping[StagedPart, bytes],
        *,
        writer: Writer,
        after: int | None = None,
    ) -> int | None:
        """Commit the parts to the log and publish them; None if they were committed before.

        Args:
            query: the batch's query.
            batch: number of the batch.
            parts: all of them.
            carried: the streams of those that are not staged.
            writer: sender that commits.
            after: the batch that has to be the last one. None: any earlier one.

        Raises:
            StoreFull: there is no room; nothing was committed.
            StaleBatch: a later batch of the query was committed before, or another one than ``after``; nothing was
                committed.
            LogDamaged: a part is missing or damaged; nothing was committed.
            NotAllowed: the writer may not publish on a topic; nothing was committed.
        """
        ordered = sorted(parts, key=lambda part: part.partition)
        # What came with the commit is in memory anyway: its rows are kept for the mesh, and not read a second time.
        kept: list[pa.RecordBatch] | None = [] if len(carried) == len(ordered) else None
        committing = self._committing.setdefault(query, trio.Lock())
        async with committing:
            rows = self._staging.rows(ordered, carried)
            append = partial(
                self._store.appender.append_batch,
                query,
                batch,
                writer.check(rows if kept is None else _keep(rows, kept)),
                sender=writer.cluster,
                split=partial(split_rows, self._sharding, query),
                now=self._log.now(),
                date=self._log.date(),
                after=after,
            )
            async with self._appending:
                appended = await run_in_thread(append)
            # From here the batch is in the log, once, whatever follows. A crash before the publication below loses
            # that: a repeat of the batch finds the note and publishes nothing.
            if appended is not None:
                self._log.note_appended(appended)
                published = self._staging.rows(ordered, carried) if kept is None else iter(kept)
                await self._publish_committed(query, published, appended.count, blocking=kept is None)
            # Only now, for until the commit the files were the only copy. Also after a repeat, whose first commit may
            # have died before this line.
            await run_in_thread(self._staging.discard, query, batch)
        return None if appended is None else appended.count

    async def _publish_committed(
        self, query: str, batches: Iterator[pa.RecordBatch], count: int, *, blocking: bool
    ) -> None:
        """Publish committed rows, as far as that goes within a time limit.

        Rows that could not be published are counted, and are no error of the writer: who needs all of them reads the
        log.  Subscribers that make their publishers wait may not hold up Spark's query.
        """
        own = {HEADER_SINK: query, HEADER_BRIDGE: self._bridge}
        published = 0
        try:
            with trio.move_on_after(_TELLING):
                while True:
                    rows = await run_in_thread(lambda: next(batches, None)) if blocking else next(batches, None)
                    if rows is None:
                        break
                    for row in rows.to_pylist():
                        headers = {**own, **header_texts(row["headers"])}
                        payload = payload_of(row["value"], encoding_of(row["headers"]))
                        with suppress(IrisError):
                            await self._node.publish(row["topic"], payload, key=key_text(row["key"]), headers=headers)
                            published += 1
        finally:
            self._log.note_unannounced(count - published)

    async def abort(self, query: str, batch: int) -> None:
        """Discard the staged parts of a batch."""
        await run_in_thread(self._staging.discard, query, batch)

    async def discard(self, query: str) -> None:
        """Discard all staged parts of a query."""
        await run_in_thread(self._staging.discard, query, sys.maxsize)

    async def discard_abandoned(self) -> None:
        """Discard abandoned batches, now and every hour, until cancelled."""
        while True:
            if self._log.is_clock_believed():
                await run_in_thread(self._staging.discard_older, self._log.now() / 1e6 - _ABANDONED)
            await trio.sleep(_LOOKED_FOR)


def _keep(batches: Iterator[pa.RecordBatch], kept: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass rows on, and keep them."""
    for rows in batches:
        kept.append(rows)
        yield rows


def split_rows(sharding: Sharding, publisher: str, rows: pa.RecordBatch) -> Mapping[int, pa.RecordBatch]:
    """Divide rows by number of shard."""
    if sharding.only is not None:
        return {sharding.only: rows}
    keys: list[bytes | None] = rows.column("key").to_pylist()
    topics: list[str] = rows.column("topic").to_pylist()
    places: dict[int, list[int]] = {}
    for at, (key, topic) in enumerate(zip(keys, topics, strict=True)):
        places.setdefault(sharding.shard_of(key_text(key), publisher, topic), []).append(at)
    return {shard: rows.take(pa.array(found, pa.int64())) for shard, found in places.items()}
