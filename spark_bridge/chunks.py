"""Stored chunks: from offsets to places in the index, from places to verified bytes."""

from __future__ import annotations

from collections.abc import Sequence

from iris.spark_bridge.errors import LogDamaged
from iris.spark_bridge.frame import Chunk, decode_frames
from iris.spark_bridge.index import ChunkPlace, IndexView, ShardRecord
from iris.spark_bridge.segment import SegmentFiles


def take_places(view: IndexView, shard: int, start: int, end: int, max_bytes: int) -> list[ChunkPlace]:
    """Return the places of the chunks from ``start``: at least one, more up to ``end`` or ``max_bytes``.

    Raises:
        LogDamaged: the index leaves something out.
    """
    places: list[ChunkPlace] = []
    expected = start
    size = 0
    for place in view.chunks(shard, start):
        if place.first > expected:
            break
        if places and (expected >= end or size + place.size > max_bytes):
            return places
        places.append(place)
        expected = place.end
        size += place.size
    if expected < end:
        raise LogDamaged(f"the index of shard {shard} names no chunk for offset {expected}")
    return places


def find_offset(view: IndexView, shard: ShardRecord, timestamp: int) -> int:
    """Return the first offset whose event is not older than ``timestamp``; that behind the last event if there is none.

    The events of a chunk share a time, and no chunk is older than the one before.
    """
    low, high = shard.earliest, shard.next
    first = next(view.chunks(shard.number, low), None)
    if first is None or first.timestamp >= timestamp:
        return low
    while low < high:
        middle = (low + high) // 2
        chunk = view.chunk_from(shard.number, middle)
        if chunk is None or chunk.timestamp >= timestamp:
            high = middle
        else:
            low = chunk.end
    chunk = view.chunk_from(shard.number, low)
    return shard.next if chunk is None else chunk.first


def take_pieces(places: Sequence[ChunkPlace], most: int) -> list[int]:
    """Return the sizes of pieces of about ``most`` bytes that hold the first chunks, as far as they follow each other.

    Args:
        places: at least one; those of another segment, or behind a gap, are left out.
        most: a piece is larger only if it is one chunk.
    """
    sizes: list[int] = []
    end = places[0].position
    for place in places:
        if place.segment != places[0].segment or place.position != end:
            break
        end += place.size
        if sizes and sizes[-1] + place.size <= most:
            sizes[-1] += place.size
        else:
            sizes.append(place.size)
    return sizes


def read_places(files: SegmentFiles, shard: int, epoch: str, places: Sequence[ChunkPlace]) -> list[Chunk]:
    """Read chunks and verify them; those that follow each other in a file are read with one call.

    Raises:
        LogDamaged: they are not what the index says.
    """
    chunks: list[Chunk] = []
    at = 0
    while at < len(places):
        last = at + 1
        while (
            last < len(places)
            and places[last].segment == places[at].segment
            and places[last].position == places[last - 1].position + places[last - 1].size
        ):
            last += 1
        start, size = places[at].position, places[last - 1].position + places[last - 1].size - places[at].position
        data = files.read(shard, epoch, places[at].segment, start, size)
        try:
            chunks += decode_frames(data)
        except LogDamaged as error:
            path = files.path(shard, epoch, places[at].segment)
            raise LogDamaged(f"{path}, bytes {start} to {start + size}: {error}") from None
        at = last
    for place, chunk in zip(places, chunks, strict=False):
        if (chunk.shard, chunk.epoch, chunk.first, chunk.count) != (shard, epoch, place.first, place.count):
            path = files.path(shard, epoch, place.segment)
            raise LogDamaged(f"{path}, byte {place.position}: the chunk there is not the one that the index names")
    if len(chunks) != len(places):
        raise LogDamaged(f"shard {shard}@{epoch} holds {len(chunks)} chunks where the index names {len(places)}")
    return chunks
