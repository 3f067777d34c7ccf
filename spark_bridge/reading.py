"""How a Spark task reads its range: chunks from the bridge, as they are stored, to record batches."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing

import pyarrow as pa

from iris.spark_bridge.client import BridgeClient
from iris.spark_bridge.errors import DataLost
from iris.spark_bridge.frame import Chunk
from iris.spark_bridge.options import SourceOptions
from iris.spark_bridge.portal import portal_to
from iris.spark_bridge.schema import COLUMNS_WITHOUT_HEADERS, decode_events
from iris.spark_bridge.topics import TopicFilter
from iris.spark_bridge.worker_process import settle_in

_SMALL = 1024
"""Rows below which batches are put together: each costs Spark about 0.1 ms."""

_ROWS = 8192
"""Rows of a batch that was put together, at most."""


def read_range(options: SourceOptions, *, address: str, shard: str, start: int, end: int) -> Iterator[pa.RecordBatch]:
    """Yield the wanted events of a range.

    Raises:
        DataLost: part of the range is gone, unless the options say that this is no error.
        LogDamaged: what is stored is not what was written.
        BridgeUnreachable: the bridge is down for too long.
    """
    settle_in()

    def source(client: BridgeClient) -> AsyncGenerator[Sequence[Chunk]]:
        if options.fail_on_data_loss:
            return client.read(address, shard, start, end)
        return _read_what_is_left(client, address, shard, start, end)

    chunks = portal_to(options.connection).stream(source)
    try:
        yield from to_batches((chunk for part in chunks for chunk in part), options, start=start, end=end)
    finally:
        chunks.close()


async def _read_what_is_left(
    client: BridgeClient, address: str, shard: str, start: int, end: int
) -> AsyncGenerator[Sequence[Chunk]]:
    at = start
    while at < end:
        try:
            async with aclosing(client.read(address, shard, at, end)) as parts:
                async for part in parts:
                    yield part
                    at = part[-1].end
        except DataLost:
            extents = await client.wait_offsets(address, {}, 0)
            earliest = extents.get(shard, (end, end))[0]
            if earliest <= at:
                raise
            at = earliest


def to_batches(chunks: Iterator[Chunk], options: SourceOptions, *, start: int, end: int) -> Iterator[pa.RecordBatch]:
    """Yield the events of chunks that are in the range and wanted, with the columns that are wanted.

    Raises:
        PayloadUnfit: see ``TypedColumns.parse``.
    """
    batches = _wanted_batches(chunks, options, start=start, end=end)
    return batches if options.typed is None else map(options.typed.parse, batches)


def _wanted_batches(
    chunks: Iterator[Chunk], options: SourceOptions, *, start: int, end: int
) -> Iterator[pa.RecordBatch]:
    wanted = TopicFilter(options.topics, options.topic_regex)
    small: list[pa.RecordBatch] = []
    rows = 0
    for chunk in chunks:
        batch = decode_events(chunk.data)
        first, last = max(start, chunk.first), min(end, chunk.end)
        if last - first < chunk.count:
            batch = batch.slice(first - chunk.first, last - first)
        batch = wanted.keep(batch)
        if not options.include_headers and options.typed is None:
            batch = batch.select(COLUMNS_WITHOUT_HEADERS)
        if small and (batch.num_rows >= _SMALL or rows + batch.num_rows > _ROWS):
            yield _together(small)
            small, rows = [], 0
        if batch.num_rows >= _SMALL:
            yield batch
        elif batch.num_rows:
            small.append(batch)
            rows += batch.num_rows
    if small:
        yield _together(small)


def _together(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
