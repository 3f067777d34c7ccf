"""Partition reader: a Spark task reads its range of a shard as chunks and turns them into record batches."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Iterable, Iterator, Sequence
from contextlib import aclosing, closing
from functools import partial

import pyarrow as pa

from iris.kernel.errors import RequestTimeout
from iris.spark_bridge.client import BlockingPortal, BridgeClient, check_chunk, portal_to, wanted_batches
from iris.spark_bridge.datasource.json_values import unpack
from iris.spark_bridge.datasource.options import SourceOptions
from iris.spark_bridge.datasource.worker import settle_in
from iris.spark_bridge.errors import DataLost, LogDamaged
from iris.spark_bridge.events.schema import columns
from iris.spark_bridge.log import Chunk, FileRange, TopicFilter, read_file_range


def read_range(
    options: SourceOptions,
    *,
    address: str,
    shard: str,
    start: int,
    end: int,
) -> Iterator[pa.RecordBatch]:
    """Yield the wanted events of a range, with the columns that are wanted and JSON in the place of msgpack.

    Raises:
        DataLost: part of the range is gone, unless the options say that this is no error.
        LogDamaged: what is stored is not what was written.
        BridgeUnreachable: the bridge is down for too long.
    """
    settle_in()
    portal = portal_to(options.connection)
    with closing(read_chunks(portal, options, address=address, shard=shard, start=start, end=end)) as chunks:
        kept = columns(headers=options.include_headers, shard=options.include_shard)
        for batch in map(unpack, to_batches(chunks, options, start=start, end=end)):
            given = {"shard": pa.repeat(shard, batch.num_rows)} | dict(
                zip(batch.schema.names, batch.columns, strict=True)
            )
            yield pa.RecordBatch.from_arrays([given[name] for name in kept.names], schema=kept)


def read_chunks(
    portal: BlockingPortal, options: SourceOptions, *, address: str, shard: str, start: int, end: int
) -> Generator[Chunk]:
    """Yield the chunks that hold a range: from files as far as that goes, the rest by session.

    Errors are those of ``read_range``.
    """
    at = start
    wanted = TopicFilter(options.topics, options.topic_regex)
    if options.local_files:
        at = yield from _chunks_of_files(portal, wanted, address=address, shard=shard, start=start, end=end)

    def source(client: BridgeClient) -> AsyncGenerator[Sequence[Chunk]]:
        if options.fail_on_data_loss:
            return client.read(address, shard, at, end, wanted)
        return _read_what_is_left(client, address, shard, at, end, wanted)

    if at < end:
        with closing(portal.stream(source)) as parts:
            try:
                for part in parts:
                    yield from part
            except LogDamaged as error:
                raise LogDamaged(
                    f"bridge {options.connection.bridge!r}: {error}. Put the log's file back if there is a copy, or "
                    "set failOnDataLoss to false to go on without these events"
                ) from None


def _chunks_of_files(
    portal: BlockingPortal, wanted: TopicFilter, *, address: str, shard: str, start: int, end: int
) -> Generator[Chunk, None, int]:
    """Yield the first chunks of a range, as far as files give them; see ``iris.spark_bridge.log.local_read``.

    Returns:
        Up to which offset that was.
    """
    at = start
    while at < end:
        try:
            found = portal.call(partial(_locate, address=address, shard=shard, start=at, end=end, wanted=wanted))
            if found is None or found.end <= at:
                return at
            begin = at
            for chunk in read_file_range(found):
                check_chunk(chunk, shard, max(at, chunk.first))
                at = chunk.end
                yield chunk
            if found.pieces and at == begin:
                return at
            at = max(at, found.end)
        except RequestTimeout:  # an OSError, too, but of the bridge and not of its files
            raise
        # A local read is only faster: the rest comes by session, where the member names what is wrong with its log.
        except (OSError, ValueError, OverflowError, DataLost, LogDamaged):
            return at
    return at


async def _locate(
    client: BridgeClient, *, address: str, shard: str, start: int, end: int, wanted: TopicFilter
) -> FileRange | None:
    return await client.locate(address, shard, start, end, wanted)


async def _read_what_is_left(
    client: BridgeClient, address: str, shard: str, start: int, end: int, wanted: TopicFilter
) -> AsyncGenerator[Sequence[Chunk]]:
    at = start
    while at < end:
        try:
            async with aclosing(client.read(address, shard, at, end, wanted, pass_damage=True)) as parts:
                async for part in parts:
                    yield part
                    at = part[-1].end
        except DataLost:
            extents = await client.wait_offsets(address, {}, 0, wanted)
            earliest = extents[shard].earliest if shard in extents else end
            if earliest <= at:
                raise
            at = earliest


def to_batches(chunks: Iterable[Chunk], options: SourceOptions, *, start: int, end: int) -> Iterator[pa.RecordBatch]:
    """Yield the events of chunks that are in the range and wanted, as the log has them."""
    wanted = TopicFilter(options.topics, options.topic_regex)
    passed = [TopicFilter(topics.patterns, topics.regex) for topics in options.passed]
    return wanted_batches(chunks, wanted, passed, start=start, end=end)
