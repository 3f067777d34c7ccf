"""Source of ``format("iris")``: Spark reads a bridge's log, as a stream or as a table.

How Spark uses this file (read in PySpark 4.3):

- ``schema`` runs in a process of its own during ``load()``; wrong options are reported there.
- Offsets, partitions and commits run in one process for the life of a query, ``read`` in the executors' workers.  The
  reader is pickled to them, so it holds options only; connections are opened where they are used.
- An exception in the reader ends the query.  The reader therefore waits for a bridge that is down.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from functools import partial
from typing import Final, NoReturn, final

import pyarrow as pa
import trio
from msgspec import structs
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from iris.kernel.errors import ConfigError
from iris.kernel.wire import saturated
from iris.spark_bridge.client import (
    BlockingPortal,
    BridgeClient,
    BridgeWatch,
    Offsets,
    Range,
    TopicSelection,
    advance,
    check_order,
    cut_ranges,
    number_of,
    parse_offsets,
    place,
    portal_to,
    ranges_before,
    ranges_between,
    split_ranges,
    with_beginnings,
)
from iris.spark_bridge.datasource.inline_source import InlineStreamReader
from iris.spark_bridge.datasource.losses import count_damaged, count_missing
from iris.spark_bridge.datasource.options import (
    SinkOptions,
    SourceOptions,
    check_shards,
    parse_sink_options,
    parse_source_options,
)
from iris.spark_bridge.datasource.reader import read_range
from iris.spark_bridge.datasource.sink import IrisStreamWriter, IrisWriter, check_columns
from iris.spark_bridge.datasource.worker import errors_alone, settle_in
from iris.spark_bridge.errors import BridgeUnreachable, DataLost, StoreFull
from iris.spark_bridge.events.schema import columns, spark_schema
from iris.spark_bridge.log import TopicFilter
from iris.spark_bridge.protocol import Extent

_FIRST_POLL: Final = 0.25
_HELD_LOOK: Final = 0.25
_LONGEST_POLL: Final = 8.0
_SIGN_OF_LIFE: Final = 1800.0
"""Seconds after which a group that is where it was is sent again, so that it does not expire: half an hour."""
"""Seconds that Spark's question for new data waits for an event: twice as long each time that none came.  So an idle
query wakes up Spark, its Python and the bridge once in eight seconds; an event ends the wait at once, and so does
stopping the query.  ``processAllAvailable`` waits for one question without an answer: of 0.25 s, if events came."""


class IrisSource(DataSource):
    """The data source.  Registered by ``iris.spark_bridge.configure`` or ``register``."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = dict(options)

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "iris"

    @errors_alone()
    def schema(self) -> str:
        """Return the columns; see ``iris.spark_bridge.events.schema``.

        Raises:
            BridgeUnreachable: nobody serves the bridge, so that this is known at ``load()``.
            ConfigError: the options are wrong, or name a shard that is not there.
        """
        options = parse_source_options(self._given)
        shards = portal_to(options.connection).call(lambda client: client.shards())
        check_shards(options, {shard.number for shard in shards})
        return spark_schema(headers=options.include_headers, shard=options.include_shard)

    @errors_alone()
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a table."""
        return IrisReader(_checked(parse_source_options(self._given, streaming=False), schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream, or have Spark ask for a simple one.

        What is wrong is raised by the reader that is returned: where Spark gets none it stops the reader that it does
        not have, and shows the error of that in the place of this one.
        """
        reader, inline_rows = self._stream_reader(schema)
        return super().streamReader(schema) if inline_rows else reader

    def simpleStreamReader(self, schema: StructType) -> InlineStreamReader:
        """Return the reader of a stream whose batches need no worker; errors are raised by it."""
        return InlineStreamReader(*self._stream_reader(schema))

    def _stream_reader(self, schema: StructType) -> tuple[IrisStreamReader | FailingStreamReader, int]:
        try:
            options = _checked(parse_source_options(self._given, streaming=True), schema)
            rows = options.inline_rows
            if rows and options.max_offsets is not None:
                rows = min(rows, options.max_offsets)
            return IrisStreamReader(options), rows
        except Exception as error:  # noqa: BLE001 -- Spark would show another one instead, see streamReader
            return FailingStreamReader(error), 0

    @errors_alone()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a table; see ``iris.spark_bridge.datasource.sink``."""
        return IrisWriter(self._sink_options(schema, streaming=False, overwrite=overwrite))

    @errors_alone()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of a stream; see ``iris.spark_bridge.datasource.sink``."""
        return IrisStreamWriter(self._sink_options(schema, streaming=True, overwrite=overwrite))

    def _sink_options(self, schema: StructType, *, streaming: bool, overwrite: bool) -> SinkOptions:
        settle_in()  # Spark asks a process of its own for a writer, of a stream once for each micro-batch
        if overwrite:
            how = "outputMode append or update" if streaming else "mode('append')"
            raise ConfigError(f"events cannot be overwritten: use {how}")
        options = parse_sink_options(self._given, streaming=streaming)
        check_columns(schema, options)
        return options


def _checked(options: SourceOptions, schema: StructType) -> SourceOptions:
    """Return the options, if the schema is the log's own.

    Raises:
        ConfigError: it is another one, so the user has given it.
    """
    if not to_arrow_schema(schema, timezone="UTC").equals(
        columns(headers=options.include_headers, shard=options.include_shard)
    ):
        raise ConfigError(
            "format iris has no schema(...): its columns are those of the log. Leave it out, and have "
            "iris.spark_bridge.parse(df, schema) make columns of the payloads"
        )
    return options


@final
class BridgePartition(InputPartition):
    """A range of one shard, for one task."""

    def __init__(self, *, address: str, found: Range, position: Offsets | None = None) -> None:
        super().__init__(f"{found.shard}: {found.start} to {found.end}")
        self.address = address
        self.range = found
        self.position = position
        """End of the batch, which also holds its topics. None if it is no batch of a stream."""


def _options_of(options: SourceOptions, position: Offsets, found: Range | None = None) -> SourceOptions:
    """Return the options with the topics that a batch has: those of the time when it was planned."""
    topics, before = position.topics, position.before
    if before:
        topics = topics or TopicSelection()
        topics = topics.added_to([one for one, _ in before]) or topics
    if topics is None:
        return options
    passed = () if found is None else tuple(one for one, marks in before if marks.get(found.shard, 0) >= found.end)
    return dataclasses.replace(options, topics=topics.patterns, topic_regex=topics.regex, passed=passed)


def _read(options: SourceOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, BridgePartition):
        return  # Spark makes one without a range when there is none
    found = partition.range
    if partition.position is not None:
        options = _options_of(options, partition.position, found)
    with errors_alone():
        yield from read_range(options, address=partition.address, shard=found.shard, start=found.start, end=found.end)


def _partitions(
    options: SourceOptions, watch: BridgeWatch, ranges: Sequence[Range], position: Offsets | None = None
) -> list[InputPartition]:
    partitions: list[InputPartition] = []
    for found in split_ranges(ranges, options.min_partitions, options.max_rows_per_partition):
        address = watch.address(found.shard)
        if address is not None:
            partitions.append(BridgePartition(address=address, found=found, position=position))
        elif options.fail_on_data_loss:
            raise DataLost(
                f"shard {found.shard} is not there: the log was wiped, or the bridge was told to forget the shard. Set "
                "failOnDataLoss to false to go on without it"
            )
    return partitions


@final
class IrisReader(DataSourceReader):
    """Reads what a bridge holds when the query is planned."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    @errors_alone()
    def partitions(self) -> Sequence[InputPartition]:
        """Return the ranges to read."""
        options = self._options
        portal = portal_to(options.connection)
        watch = BridgeWatch(options.shards)
        portal.call(watch.look)
        start = _starting(options, portal, watch)
        if options.ending_timestamps is not None:
            end = {shard: extent.next for shard, extent in watch.extents.items()}
            end |= _at_times(portal, watch, options.ending_timestamps)
        elif options.ending_timestamp is None:
            end = place(options.ending, watch.extents, option="endingOffsets", end=True)
        else:
            end = _at_time(portal, watch, options.ending_timestamp)
        if options.ending != "latest":
            check_order(start, end, options="where to start and endingOffsets")
        ranges = ranges_between(Offsets(next=start), Offsets(next=end))
        count_missing(options, portal, watch, ranges)
        return _partitions(options, watch, ranges)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range."""
        return _read(self._options, partition)


def _starting(options: SourceOptions, portal: BlockingPortal, watch: BridgeWatch) -> dict[str, int]:
    extents = watch.extents
    if options.starting_timestamps is not None:
        named = _at_times(portal, watch, options.starting_timestamps)
        start = {shard: extent.earliest for shard, extent in extents.items()} | named
    elif options.starting_timestamp is not None:
        start = named = _at_time(portal, watch, options.starting_timestamp)
    else:
        return place(options.starting, extents, option="startingOffsets")
    late = [shard for shard, offset in named.items() if offset >= extents[shard].next]
    if late and options.timestamp_strategy == "error":
        raise ConfigError(
            f"shard {late[0]} holds no event that is as young as where reading is to begin: give an earlier time, or "
            "set startingOffsetsByTimestampStrategy to latest to wait for such events"
        )
    return start


def _at_times(portal: BlockingPortal, watch: BridgeWatch, times: Mapping[int, int]) -> dict[str, int]:
    """Return the offsets of shards by number, each at a time of its own."""
    found: dict[str, int] = {}
    for milliseconds in set(times.values()):
        at_time = _at_time(portal, watch, milliseconds)
        found |= {shard: offset for shard, offset in at_time.items() if times.get(number_of(shard)) == milliseconds}
    return found


def _at_time(portal: BlockingPortal, watch: BridgeWatch, milliseconds: int) -> dict[str, int]:
    addresses = watch.addresses
    found = portal.call(lambda client: client.offsets_at(addresses, milliseconds * 1000))
    return {shard: offset for shard, offset in found.items() if shard in watch.extents}


async def _pin(client: BridgeClient, *, address: str, group: str, start: dict[str, int]) -> dict[str, int]:
    return await client.pin(address, group, start)


async def _move(client: BridgeClient, *, address: str, group: str, offsets: dict[str, int]) -> None:
    await client.move(address, group, offsets)


def _behind(position: Mapping[str, int], extents: Mapping[str, Extent]) -> dict[str, int]:
    """Return how many events of each shard are behind a position: no fewer than are wanted, and none if none is."""
    return {
        shard: max(0, extent.next - max(position.get(shard, 0), extent.first or extent.earliest))
        for shard, extent in extents.items()
    }


@final
class FailingStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stands for a reader that could not be made: whatever Spark asks of it first raises why.

    Args:
        error: the reason.
    """

    def __init__(self, error: Exception) -> None:
        self._error = error

    @errors_alone()
    def _fail(self) -> NoReturn:
        raise self._error

    def initialOffset(self) -> dict[str, object]:
        """Raise the error."""
        self._fail()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Raise the error."""
        self._fail()

    def prepareForTriggerAvailableNow(self) -> None:
        """Raise the error."""
        self._fail()

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:
        """Raise the error."""
        self._fail()

    def reportLatestOffset(self) -> dict[str, object] | None:
        """Raise the error."""
        self._fail()

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> Sequence[InputPartition]:
        """Raise the error."""
        self._fail()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raise the error."""
        self._fail()

    def commit(self, end: dict[str, object]) -> None:
        """Raise the error."""
        self._fail()


@final
class IrisStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what arrives at a bridge."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._watch = BridgeWatch(options.shards, TopicFilter(options.topics, options.topic_regex))
        self._topics = TopicSelection(patterns=options.topics, regex=options.topic_regex)
        self._past: BridgeWatch | None = None
        """Watch on added topics, below the offsets reached when they were added. None: not in use."""
        self._moved: Mapping[str, int] = {}
        """Progress of the group that was last sent to the bridge: offsets by shard."""
        self._moved_at = -math.inf
        """Monotonic time of that, in seconds."""
        self._initial: Offsets | None = None
        self._target: dict[str, Extent] | None = None
        self._known = False
        self._poll = _FIRST_POLL
        self._planned = -math.inf
        """Monotonic time of the last plan of a micro-batch, in seconds."""
        self._read_to: Mapping[str, int] = {}
        self._lost = 0
        self._damage_counted: tuple[Offsets | None, int] = None, 0
        self._arrived: tuple[float, int] | None = None

    @property
    def _portal(self) -> BlockingPortal:
        return portal_to(self._options.connection)

    # -- in the process of the query's offsets --------------------------------------------------------------

    @errors_alone()
    def initialOffset(self) -> dict[str, object]:
        """Return where a new query begins; the same whenever Spark asks, for a group even after a restart."""
        if self._initial is None:
            self._look()
            start = _starting(self._options, self._portal, self._watch)
            if self._options.group is not None:
                start = self._pin(self._options.group, start)
            self._initial = Offsets(next=start, initial=True, topics=self._topics)
        return self._initial.to_json()

    def _look(self) -> None:
        self._portal.call(self._watch.look)
        self._known = True

    def _expect(self, position: Offsets) -> None:
        """Let the query fail if a shard that the checkpoint names is missing."""
        if self._options.fail_on_data_loss:
            self._watch.expect(position.next)

    def _pin(self, group: str, start: dict[str, int]) -> dict[str, int]:
        pinned: dict[str, int] = {}
        for address in self._watch.addresses:
            own = {shard: offset for shard, offset in start.items() if self._watch.address(shard) == address}
            pinned |= self._portal.call(partial(_pin, address=address, group=group, start=own))
        return {shard: pinned.get(shard, offset) for shard, offset in start.items()}

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that the options set for each batch."""
        return ReadAllAvailable() if self._options.max_offsets is None else ReadMaxRows(self._options.max_offsets)

    @errors_alone()
    def prepareForTriggerAvailableNow(self) -> None:
        """Note the present end; nothing beyond it is read."""
        self._look()
        self._target = self._watch.extents

    @errors_alone()
    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:
        """Return the end of the next batch; waits for up to 8 s if there is nothing to read."""
        begun = parse_offsets(start)
        self._expect(begun)
        if not self._known and (begun.before or begun.topics not in (None, self._topics)):
            self._look()
        position = begun.go_back(self._topics, self._watch.extents)
        if position.before:
            end = self._read_past(position, limit)
            if end is not None:
                return self._plan(begun, position, end)
            position = position.caught_up()
        poll = self._poll if self._target is None else 0.0
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        self._portal.call(lambda client: self._watch.wait(client, position.next, poll, rows))
        self._known = True
        if not self._portal.call(lambda client: self._wait_for_enough(client, position, poll)):
            self._poll = min(2 * self._poll, _LONGEST_POLL)
            self._read_to = position.next
            return start
        if self._options.min_offsets is not None:  # more may have come while it waited
            self._portal.call(lambda client: self._watch.wait(client, position.next, 0.0, rows))
        extents = self._watch.extents
        if self._target is not None:
            # A shard that only the checkpoint named has come since.
            self._target |= {shard: extents[shard] for shard in position.next.keys() & extents.keys() - self._target}
            extents = {
                shard: structs.replace(extents[shard], next=min(extents[shard].next, target.next))
                for shard, target in self._target.items()
                if shard in extents
            }
        end = advance(position, extents, fail_on_data_loss=self._options.fail_on_data_loss)
        idle = end is position
        if not idle:
            return self._plan(begun, position, end)
        # Nothing that the group wants is unread up to there, so nothing has to be kept for it.
        self._move({shard: max(at, self._watch.passed.get(shard, 0)) for shard, at in position.next.items()})
        self._read_to = end.next
        self._lost = saturated(begun.lost + self._damage_behind(begun))
        self._poll = min(2 * self._poll, _LONGEST_POLL)
        return start

    def _plan(self, begun: Offsets, position: Offsets, end: Offsets) -> dict[str, object]:
        """Return the end of a batch as Spark stores it: the batch before ended at ``begun``."""
        options = _options_of(self._options, end)
        lost = saturated(begun.lost + self._damage_behind(begun))
        lost = saturated(lost + count_missing(options, self._portal, self._watch, ranges_between(position, end)))
        end = dataclasses.replace(end, lost=lost)
        if not options.fail_on_data_loss:
            end = with_beginnings(position, end)
        self._planned = time.monotonic()
        self._read_to, self._lost, self._poll = end.next, lost, _FIRST_POLL
        return end.to_json()

    def _read_past(self, position: Offsets, limit: ReadLimit) -> Offsets | None:
        """Return the end of the next batch of what was stored on topics before they were added; None: it is read."""
        options, marks = _options_of(self._options, position), position.marks
        if self._past is None:
            self._past = BridgeWatch(options.shards, TopicFilter(options.topics, options.topic_regex))
        watch, rows = self._past, limit.max_rows if isinstance(limit, ReadMaxRows) else None
        self._portal.call(lambda client: watch.wait(client, position.next, 0.0, rows))
        extents = {
            shard: structs.replace(extent, next=min(extent.next, marks[shard]))
            for shard, extent in watch.extents.items()
            if shard in marks
        }
        end = advance(position, extents, fail_on_data_loss=options.fail_on_data_loss)
        return None if end is position else end

    def _damage_behind(self, position: Offsets) -> int:
        """Count the damaged events that the batch which ended here skipped: only its tasks met them."""
        if self._damage_counted[0] != position:
            self._damage_counted = (
                position,
                count_damaged(_options_of(self._options, position), self._portal, self._watch, ranges_before(position)),
            )
        return self._damage_counted[1]

    async def _wait_for_enough(self, client: BridgeClient, position: Offsets, timeout: float) -> bool:
        """Return True if a micro-batch may be planned; look four times a second, for ``timeout`` seconds.

        A bridge reports the next event, not the n-th.
        """
        least = self._options.min_offsets
        if least is None or self._target is not None:
            return True
        deadline = time.monotonic() + timeout
        while True:
            now, latest = time.monotonic(), self._planned + self._options.max_delay
            waiting = least if now >= latest else await self._watch.count(client, position.next, least)
            if waiting >= least:
                return True
            if not waiting or now >= deadline:
                return False
            await trio.sleep(min(_HELD_LOOK, latest - now))

    def reportLatestOffset(self) -> dict[str, object] | None:
        """Return what the bridge held when it was last looked at, and figures for the query's progress.

        They stand there as ``sources[0].latestOffset``: next to the next offset of each shard, ``lag`` is how many
        events the query has not planned yet, ``lost`` how many it went on without, and ``perSecond`` how many arrived
        each second since the micro-batch before.
        """
        extents = self._watch.extents
        if not extents:
            return None
        now, total = time.monotonic(), sum(extent.next for extent in extents.values())
        figures: dict[str, object] = {"lag": sum(_behind(self._read_to, extents).values()), "lost": self._lost}
        if self._arrived is not None and now > self._arrived[0]:
            figures["perSecond"] = round(max(0, total - self._arrived[1]) / (now - self._arrived[0]), 1)
        self._arrived = now, total
        return {shard: extent.next for shard, extent in extents.items()} | figures

    @errors_alone()
    def partitions(self, start: dict[str, object], end: dict[str, object]) -> Sequence[InputPartition]:
        """Return the ranges of a batch; the same for the same offsets."""
        begin, stop = parse_offsets(start), parse_offsets(end)
        self._expect(stop)
        if not self._known:
            self._look()  # after a restart the first batch is repeated, and nobody has looked yet
        ranges = cut_ranges(ranges_between(begin, stop), [marks for _, marks in stop.before])
        return _partitions(self._options, self._watch, ranges, stop)

    @errors_alone()
    def commit(self, end: dict[str, object]) -> None:
        """Write the group's progress down on the bridge, for ``iris bridge status`` and for retention."""
        self._move(parse_offsets(end).next)

    def _move(self, offsets: Mapping[str, int]) -> None:
        group = self._options.group
        now = time.monotonic()
        if group is None or (offsets == self._moved and now < self._moved_at + _SIGN_OF_LIFE):
            return
        self._moved, self._moved_at = offsets, now
        for address in self._watch.addresses:
            own = {shard: offset for shard, offset in offsets.items() if self._watch.address(shard) == address}
            try:
                self._portal.call(partial(_move, address=address, group=group, offsets=own))
            except (BridgeUnreachable, StoreFull):
                self._moved = {}
                continue  # Spark's checkpoint is what counts; the next commit moves the bridge's cursor

    # -- in the executors -----------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range."""
        return _read(self._options, partition)
