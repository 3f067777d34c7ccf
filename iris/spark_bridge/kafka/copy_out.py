"""Connector from an embedded log into Kafka: each event once for who reads what is committed.

A shard has one writer, and its place is written in the transaction of its events (``transactions``).  Of connectors
that are started twice by mistake the later one ends the other, and nothing is written twice.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Final, final

import trio

from iris.kernel.tasks import run_in_thread
from iris.spark_bridge.client import BridgeClient, BridgeWatch, one_error, wanted_batches
from iris.spark_bridge.errors import BridgeUnreachable, DataLost, NotCopied
from iris.spark_bridge.kafka.log import KafkaLog, TopicState
from iris.spark_bridge.kafka.records import Copied, copy_rows
from iris.spark_bridge.kafka.transactions import PLACES, Places, ShardWriter
from iris.spark_bridge.log import Chunk, TopicFilter

_log: Final = logging.getLogger("iris")

_WAIT: Final = 5.0
"""Seconds of one wait for news."""

_ROUND: Final = 100_000
"""Offsets of each shard that are copied before others get their turn."""

_MOVED: Final = 5.0
"""Seconds between two notes of the group's progress in the bridge: it may lag, the place in Kafka counts."""

_AGAIN: Final = 1.0
"""Seconds after which bridge or brokers that are away are tried again."""


@final
class CopyOut:
    """Copies the log of a bridge into a topic of Kafka.

    Args:
        client: asks the bridge.
        kafka: addresses of brokers, with commas between them.
        topic: topic of Kafka.
        settings: further properties of Kafka's client.
        group: name of this connector: that of its place, and of a group of the bridge's readers.
        topics: patterns of the events; none for all.
    """

    def __init__(
        self,
        client: BridgeClient,
        *,
        kafka: str,
        topic: str,
        settings: Mapping[str, str],
        group: str,
        topics: Sequence[str] = (),
    ) -> None:
        self._client = client
        self._log = KafkaLog(kafka, topic, client.bridge, settings)
        self._places_log = KafkaLog(kafka, PLACES, client.bridge, settings)
        self._group = group
        self._wanted = TopicFilter(topics)
        self._watch = BridgeWatch(None, self._wanted)
        self._writers: dict[str, ShardWriter] = {}
        self._failed: dict[str, ShardWriter] = {}
        """Writers that are to be opened, also anew: these know whether another connector has begun since."""
        self._at: dict[str, int] = {}
        """Next offset of each shard: those before it are in Kafka."""
        self._moved = trio.current_time()
        self._noted: dict[str, int] = {}
        self._over = threading.Event()
        self.copied = 0
        """Events that this process has copied."""

    async def run(self) -> None:
        """Copy until it is cancelled.  While the bridge or the brokers are away it waits for them.

        Raises:
            ConfigError: Kafka has no such topic, or refuses an event.
            KafkaLost: another connector of this group has taken over.
            DataLost: the log is older than what it had given before.
            NotAllowed: this node may not read one of the topics, or the group is another cluster's.
            LogDamaged: an event is not what was written.
        """
        # run_in_thread waits for its thread also when it is cancelled; this lets the thread end.
        with one_error():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._end_waits)
                try:
                    await self._copy_all()
                finally:
                    for writer in self._writers.values():
                        writer.close()

    async def _end_waits(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            self._over.set()

    async def _copy_all(self) -> None:
        state: TopicState | None = None
        places: Places | None = None
        while True:
            try:
                if state is None or places is None:
                    state = await run_in_thread(self._log.describe)
                    places = await run_in_thread(Places, self._places_log, state, self._over)
                    await self._watch.look(self._client)
                for shard in self._watch.extents.keys() - self._writers.keys():
                    name = f"iris/{self._client.bridge}/{self._group}/{self._log.topic}/{shard}"
                    fresh = ShardWriter(self._log, state, places, name, self._over)
                    writer = self._failed.setdefault(shard, fresh)
                    place = await run_in_thread(writer.open)
                    begin = self._watch.extents[shard].earliest if place is None else place
                    await self._client.pin(self._address(shard), self._group, {shard: begin})
                    self._at[shard] = begin
                    self._writers[shard] = self._failed.pop(shard)
                await self._watch.wait(self._client, self._at, _WAIT)
                with one_error():
                    async with trio.open_nursery() as nursery:
                        for shard in self._watch.extents.keys() & self._writers.keys():
                            nursery.start_soon(self._copy, shard)
                await self._note_progress()
            except (BridgeUnreachable, NotCopied) as error:
                _log.warning(
                    "iris connect kafka waits: %s",
                    error,
                    extra={"bridge": self._client.bridge, "reason": type(error).__name__},
                )
                await trio.sleep(_AGAIN)

    def _address(self, shard: str) -> str:
        address = self._watch.address(shard)
        if address is None:
            raise BridgeUnreachable(f"no member of the bridge has shard {shard} now")
        return address

    async def _copy(self, shard: str) -> None:
        """Copy what a shard has, as far as a round goes."""
        extent, at = self._watch.extents[shard], self._at[shard]
        if at > extent.next:
            raise DataLost(
                f"shard {shard} of bridge {self._client.bridge!r} ends at {extent.next}, and Kafka has its events up "
                f"to {at}: the log was put back. Another --group begins anew, and writes all that is there again"
            )
        if at < extent.earliest:
            _log.warning(
                "%d events of shard %s were removed by the bridge's retention before they were copied",
                extent.earliest - at,
                shard,
                extra={"bridge": self._client.bridge, "shard": shard, "count": extent.earliest - at},
            )
            self._at[shard] = extent.earliest
        begin = max(at, extent.earliest, self._watch.passed.get(shard, 0))
        end = min(extent.next, begin + _ROUND)
        reading = self._client.read(self._address(shard), shard, begin, end, self._wanted)
        async with aclosing(reading) as parts:
            async for chunks in parts:
                place = min(end, chunks[-1].end)
                if not await self._write(shard, chunks, begin, place):
                    return
                begin = self._at[shard] = place

    async def _write(self, shard: str, chunks: Sequence[Chunk], begin: int, place: int) -> bool:
        """Write the events of chunks from an offset on; False if the shard goes on elsewhere."""
        writer = self._writers[shard]

        def write() -> int | None:
            batches = wanted_batches(chunks, self._wanted, start=begin, end=place)
            records: list[Copied] = [record for rows in batches for record in copy_rows(rows, shard)]
            return len(records) if not records or writer.write(records, place) else None

        written = await run_in_thread(write)
        if written is None:
            # Where it failed nobody knows; the place does, once nothing of this name is under way any more.
            self._failed[shard] = self._writers.pop(shard)
            writer.close()
            return False
        self.copied += written
        return True

    async def _note_progress(self) -> None:
        """Let the bridge know how far the group is, for its status and its retention."""
        if trio.current_time() < self._moved + _MOVED or self._noted == self._at:
            return
        self._moved, self._noted = trio.current_time(), dict(self._at)
        for address in self._watch.addresses:
            offsets = {shard: at for shard, at in self._at.items() if self._watch.address(shard) == address}
            if offsets:
                await self._client.move(address, self._group, offsets)
