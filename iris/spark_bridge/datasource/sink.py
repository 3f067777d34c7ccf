"""Sink of ``format("iris")``: Spark publishes rows as events, exactly once or at least once.

Exactly once, which is the default: each task stages its rows on a member of the bridge, under query, batch, partition
and attempt, or sends them to the driver if they are few.  The driver's commit makes them part of the log in one step,
together with a note that this batch of this query is in it.  A batch that Spark repeats after a crash finds the note
and changes nothing.  A committed batch is also published, once, to those who listen at that time.

At least once: each task publishes its rows itself, confirmed by every durable subscriber.  A batch that Spark repeats
is published again.
"""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import IO, Final, final

import pyarrow as pa
import trio
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import ArrayType, BinaryType, DataType, StringType, StructType

from iris.kernel.config import KIB
from iris.kernel.errors import ConfigError, RemoteError
from iris.kernel.tasks import run_in_thread
from iris.spark_bridge.client import BridgeClient, one_error, portal_to
from iris.spark_bridge.datasource.driver_rows import merge_carried
from iris.spark_bridge.datasource.json_values import pack
from iris.spark_bridge.datasource.options import SinkOptions
from iris.spark_bridge.datasource.worker import errors_alone, settle_in
from iris.spark_bridge.events.schema import SINK_SCHEMA, check_rows
from iris.spark_bridge.log import JOB_PREFIX
from iris.spark_bridge.staging import StagedPart, new_part, write_rows

_IN_MEMORY: Final = 16 * 1024 * 1024
"""Size up to which a task's rows stay in memory until sent, in bytes; more go through a temporary file."""

FEW_BYTES: Final = 64 * KIB
"""A task's rows that are not more go to the driver with its commit message, and with the commit to the bridge: without
a tunnel, and without a file that is synchronized, with its directories, to be read once and deleted."""

_MOST_BYTES: Final = 512 * KIB
"""Limit of all tasks' rows that go with one commit, in bytes: it is a request, which may have 1 MiB."""

_AT_ONCE: Final = 8
"""Parts that the driver stages at one time."""


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """Make sure that rows of this schema can be published.

    Raises:
        ConfigError: a column is missing, unknown, there twice or of another type; the message says which.
    """
    types = {field.name: field.dataType for field in schema.fields}
    wanted = ("value", "key", "topic", "headers")
    for name in types:
        if schema.names.count(name) > 1:
            raise ConfigError(f"column {name} is there more than once: select one of them")
    unknown = [name for name in types if name not in wanted]
    if unknown:
        raise ConfigError(f"format iris does not publish the column {unknown[0]}: select value, key, topic, headers")
    if "value" not in types:
        raise ConfigError("format iris publishes the column value: select one, binary or string")
    if ("topic" in types) == (options.topic is not None):
        raise ConfigError("the topic comes from the option topic or from a column topic: give one of them")
    for name in ("value", "key", "topic"):
        if name in types and not isinstance(types[name], BinaryType | StringType):
            raise ConfigError(f"column {name} is {types[name].simpleString()}: cast it to binary or string")
    if "headers" in types and not _are_headers(types["headers"]):
        raise ConfigError(
            f"column headers is {types['headers'].simpleString()}: use array<struct<key:string,value:binary>>"
        )


def _are_headers(kind: DataType) -> bool:
    return isinstance(kind, ArrayType) and kind.elementType.simpleString() == "struct<key:string,value:binary>"


def to_rows(batch: pa.RecordBatch, options: SinkOptions) -> pa.RecordBatch:
    """Return a batch of Spark's as rows of SINK_SCHEMA; raise ConfigError if they cannot be published."""
    columns: list[pa.Array[object]] = []
    for field in SINK_SCHEMA:
        if field.name in batch.schema.names:
            columns.append(batch.column(field.name).cast(field.type))
        elif field.name == "topic":
            columns.append(pa.repeat(options.topic, batch.num_rows).cast(field.type))
        else:
            columns.append(pa.nulls(batch.num_rows, field.type))
    rows = pack(pa.RecordBatch.from_arrays(columns, schema=SINK_SCHEMA))
    check_rows(rows)
    return rows


@final
class Staged(WriterCommitMessage):
    """Message of a task to the driver: where its rows are staged."""

    def __init__(self, address: str, part: StagedPart) -> None:
        self.address = address
        self.part = part


@final
class DriverRows(WriterCommitMessage):
    """Message of a task to the driver: the rows themselves, because they are few."""

    def __init__(self, part: StagedPart, rows: bytes) -> None:
        self.part = part
        self.rows = rows


def _write(iterator: Iterator[pa.RecordBatch], options: SinkOptions, query: str, batch: int) -> WriterCommitMessage:
    """Do a task's work."""
    settle_in()
    rows = (to_rows(found, options) for found in iterator if found.num_rows)
    portal = portal_to(options.connection)
    if options.delivery == "at-least-once":
        for found in rows:
            portal.call(partial(publish_rows, rows=found))
        return WriterCommitMessage()
    task = TaskContext.get()
    assert task is not None
    part = new_part(query=query, batch=batch, partition=task.partitionId())
    with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY) as file:
        write_rows(file, rows)
        if file.tell() <= FEW_BYTES:
            file.seek(0)
            return DriverRows(part, file.read())
        address = portal.call(partial(stage_part, part=part, file=file))
    return Staged(address, part)


async def publish_rows(client: BridgeClient, *, rows: pa.RecordBatch) -> None:
    """Publish rows of SINK_SCHEMA, confirmed by every durable subscriber."""
    await client.publish(rows.to_pylist())


async def stage_part(client: BridgeClient, *, part: StagedPart, file: IO[bytes]) -> str:
    """Stage a part at the member that commits its query, and return which that is."""
    address = await _address(client, part.query)
    await client.stage(address, part, file)
    return address


async def _address(client: BridgeClient, query: str, staged: Sequence[Staged] = ()) -> str:
    """Return the member that commits all batches of a query, wherever the shard is now that the query determines.

    A job's rows are committed where they are staged, if the members do not say how many they are: nobody repeats it.

    Raises:
        ConfigError: nobody knows how many members there are, so one that is away would not be missed, and a batch that
            it has in its log would be committed again, by another one.
    """
    address = await client.home_of(hash_of(query))
    if await client.is_counted():
        return address
    if not query.startswith(JOB_PREFIX):
        raise ConfigError(
            f"the members of bridge {client.bridge!r} do not say how many they are, so a batch that Spark repeats "
            "could be in the log twice: start them with --of, or a single one without --member, or write with option "
            "delivery at-least-once"
        )
    if len({message.address for message in staged}) > 1:
        # One member commits the whole batch in one transaction; over two members there is no such step.
        raise RemoteError("misconfigured", "the members of the bridge changed while a batch was staged: run it again")
    return staged[0].address if staged else address


def hash_of(query: str) -> int:
    """Return a number that is the same in every process."""
    return int.from_bytes(uuid.uuid5(uuid.NAMESPACE_OID, query).bytes[:8])


def _commit(messages: Sequence[WriterCommitMessage | None], options: SinkOptions) -> None:
    """Do the driver's work: what the tasks staged becomes part of the log."""
    staged = [message for message in messages if isinstance(message, Staged)]
    carried = [message for message in messages if isinstance(message, DriverRows)]
    if not staged and not carried:
        return
    portal_to(options.connection).call(partial(commit_parts, staged=staged, carried=carried))


async def commit_parts(client: BridgeClient, *, staged: Sequence[Staged], carried: Sequence[DriverRows]) -> int | None:
    """Commit a batch: the parts that its tasks staged, and those that they sent to the driver.

    Returns None if it was committed before.

    Errors are those of ``BridgeClient.commit``.
    """
    parts = [message.part for message in staged]
    query, batch = (staged or carried)[0].part.query, (staged or carried)[0].part.batch
    address = await _address(client, query, staged)
    with ExitStack() as stack:
        rows_of = {message.part: message.rows for message in carried}
        if len(carried) > 1:
            # Thousands of tasks may have given 64 KiB each: meanwhile this node answers others.
            merged = await run_in_thread(merge_carried, rows_of, parts)
        else:
            merged = merge_carried(rows_of, parts)
        for file in merged.values():
            stack.callback(file.close)
        rows: dict[StagedPart, bytes] = {}
        if sum(file.seek(0, os.SEEK_END) for file in merged.values()) > _MOST_BYTES:
            await _stage_all(client, address, merged)
        else:
            for part, file in merged.items():
                file.seek(0)
                rows[part] = file.read()
        return await client.commit(address, query, batch, [*parts, *merged], rows)


async def _stage_all(client: BridgeClient, address: str, files: Mapping[StagedPart, IO[bytes]]) -> None:
    """Stage some parts, a few at a time: each waits for the member's disk."""
    room = trio.Semaphore(_AT_ONCE)

    async def stage(part: StagedPart, file: IO[bytes]) -> None:
        async with room:
            await client.stage(address, part, file)

    with one_error():
        async with trio.open_nursery() as nursery:
            for part, file in files.items():
                nursery.start_soon(stage, part, file)


def _abort(messages: Sequence[WriterCommitMessage | None], options: SinkOptions) -> None:
    staged = [message for message in messages if isinstance(message, Staged)]
    carried = [message for message in messages if isinstance(message, DriverRows)]
    if staged or carried:
        portal_to(options.connection).call(partial(abort_parts, staged=staged, carried=carried))


async def abort_parts(client: BridgeClient, *, staged: Sequence[Staged], carried: Sequence[DriverRows]) -> None:
    """Give a batch up: nothing of what its tasks staged stays, nor of what ``commit_parts`` has staged for them.

    Errors are those of ``BridgeClient.abort``.
    """
    if not staged and sum(len(message.rows) for message in carried) <= _MOST_BYTES:
        return  # it is nowhere
    part = (staged or carried)[0].part
    address = await _address(client, part.query, staged)
    await client.abort(address, part.query, part.batch)


@final
class IrisStreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a stream."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    @errors_alone()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override] # Spark's own
        """Write the rows of one task."""
        task = TaskContext.get()
        assert task is not None
        query = task.getLocalProperty("sql.streaming.queryId")
        batch = task.getLocalProperty("streaming.sql.batchId")
        assert query is not None
        assert batch is not None
        return _write(iterator, self._options, query, int(batch))

    @errors_alone()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit a batch."""
        _commit(messages, self._options)

    @errors_alone()
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Give a batch up."""
        _abort(messages, self._options)


@final
class IrisWriter(DataSourceArrowWriter):
    """Writes a table."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._query = options.query or f"{JOB_PREFIX}{uuid.uuid4().hex}"
        self._batch = options.batch or 0

    @errors_alone()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override] # Spark's own
        """Write the rows of one task."""
        return _write(iterator, self._options, self._query, self._batch)

    @errors_alone()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit all rows."""
        settle_in()  # this is a worker, too, and is used again for the next batch
        _commit(messages, self._options)

    @errors_alone()
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Give all rows up."""
        _abort(messages, self._options)
