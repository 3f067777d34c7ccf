"""How Spark writes to a bridge: parts are staged by its tasks, and committed by its driver, each batch once."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final, final

import pyarrow as pa
import trio

from iris.kernel.errors import RemoteError
from iris.patterns.tunnel import Tunnel
from iris.spark_bridge.schema import HEADER_SINK, header_texts, key_text
from iris.spark_bridge.sharding import Sharding
from iris.spark_bridge.staging import StagedPart, Staging
from iris.spark_bridge.store import Store

_ABANDONED: Final = 24 * 3600.0
"""Seconds after which a batch that was staged and neither committed nor given up is forgotten."""

Publish = Callable[..., Awaitable[None]]
"""``node.publish``."""


@final
class Intake:
    """Takes what Spark writes.

    Args:
        publish: tells the mesh of what was committed: those who listen at that time get it, at most once.
        refresh: called when the log has grown.
    """

    def __init__(
        self,
        store: Store,
        staging: Staging,
        sharding: Sharding,
        *,
        publish: Publish,
        refresh: Callable[[], None],
        wall_clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._staging = staging
        self._sharding = sharding
        self._publish = publish
        self._refresh = refresh
        self._wall_clock = wall_clock
        self._committing = trio.Lock()

    async def stage(self, part: StagedPart, tunnel: Tunnel) -> int:
        """Write the bytes that come through a tunnel, and return how many they were.

        Raises:
            StoreFull: there is no room for them.
        """
        size = 0
        with ExitStack() as stack:
            write = await trio.to_thread.run_sync(stack.enter_context, self._staging.write(part))
            async for payload in tunnel:
                if not isinstance(payload, bytes):
                    raise RemoteError("bad_request", "a staged part is bytes")
                await trio.to_thread.run_sync(write, payload)
                size += len(payload)
            await trio.to_thread.run_sync(stack.pop_all().close)
        return size

    async def commit(self, query: str, batch: int, parts: Sequence[StagedPart], *, sender: str) -> int | None:
        """Let the parts become part of the log and tell the mesh; None if they are part of it already.

        Raises:
            StoreFull: there is no room; nothing was committed.
            LogDamaged: a part is missing or damaged; nothing was committed.
        """
        ordered = sorted(parts, key=lambda part: part.partition)
        async with self._committing:
            append = partial(
                self._store.append_batch,
                query,
                batch,
                self._staging.rows(ordered),
                sender=sender,
                split=partial(split_rows, self._sharding, query),
                now=int(self._wall_clock() * 1_000_000),
            )
            count = await trio.to_thread.run_sync(append)
            if count is not None:
                self._refresh()
                async for rows in self._rows(ordered):
                    for row in rows.to_pylist():
                        headers = {HEADER_SINK: query, **header_texts(row["headers"])}
                        await self._publish(row["topic"], row["value"], key=key_text(row["key"]), headers=headers)
            await trio.to_thread.run_sync(self._staging.discard, query, batch)
        return count

    async def _rows(self, parts: Sequence[StagedPart]) -> AsyncGenerator[pa.RecordBatch]:
        rows = self._staging.rows(parts)
        while (batch := await trio.to_thread.run_sync(next, rows, None)) is not None:
            yield batch

    async def abort(self, query: str, batch: int) -> None:
        """Forget what was staged of a batch."""
        await trio.to_thread.run_sync(self._staging.discard, query, batch)

    async def discard_abandoned(self) -> None:
        """Forget batches that nobody comes back to."""
        await trio.to_thread.run_sync(self._staging.discard_older, self._wall_clock() - _ABANDONED)


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
