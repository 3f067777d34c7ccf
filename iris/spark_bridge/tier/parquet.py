"""Parquet: segments as files that anything reads, and row groups of them as events.

The columns are those of ``iris.spark_bridge.events.schema``.  A program that can write to the storage can put another
object in the place of one, whose pages have checksums that fit, and which takes a thousand times its size in memory.
So each part that is read has a hash in the log and in the manifest, and is looked into when its bytes have it.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from typing import Final, final

import pyarrow as pa
import pyarrow.parquet as pq

from iris.kernel.config import MIB
from iris.spark_bridge.errors import LogDamaged
from iris.spark_bridge.events.schema import NO_EVENTS, SCHEMA, decode_events
from iris.spark_bridge.log import Chunk, TierObject, TierPart
from iris.spark_bridge.tier.manifest import object_name, shard_folder
from iris.spark_bridge.tier.storage import Storage

GROUP_BYTES: Final = 8 * MIB
"""Size of a row group before compression, in bytes, up to one chunk more.  Readers of the log get one at a time."""

_FOOTER: Final = struct.Struct("<I4s")
_FOOTERS: Final = 128
"""Footers that are cached; some 10 KB each."""

_REPEATING: Final = ["topic", "key", "partition", "timestampType", "headers.list.element.key"]
"""Columns that are worth a dictionary."""


def encode_segment(chunks: Iterable[Chunk], *, term: int) -> tuple[TierObject, pa.Buffer]:
    """Make an object of all chunks of a segment.

    Raises:
        LogDamaged: a chunk does not hold events.
        ValueError: there is none.
    """
    sink = pa.BufferOutputStream()
    groups: list[int] = []
    batches: list[pa.RecordBatch] = []
    first = end = -1
    rows = size = since = until = 0
    with pq.ParquetWriter(
        sink, SCHEMA, compression="zstd", use_dictionary=_REPEATING, write_page_checksum=True
    ) as writer:
        for chunk in chunks:
            if first < 0:
                first, since = chunk.first, chunk.timestamp
            end, until = chunk.end, chunk.timestamp
            batches.append(decode_events(chunk.data))
            rows += batches[-1].num_rows
            size += len(chunk.data)
            if size >= GROUP_BYTES:
                _write_group(writer, batches)
                groups.append(end)
                batches, size = [], 0
        if batches:
            _write_group(writer, batches)
            groups.append(end)
    if first < 0:
        raise ValueError("there is no chunk")
    data = sink.getvalue()
    found = TierObject(
        name=object_name(first, end, term),
        first=first,
        end=end,
        rows=rows,
        size=data.size,
        groups=groups,
        since=since,
        until=until,
        parts=_parts(data),
    )
    return found, data


def _parts(data: pa.Buffer) -> tuple[TierPart, ...]:
    """Return the row groups of an object, and its footer."""
    footer = pq.read_metadata(pa.BufferReader(data))
    extents = [_extent(footer.row_group(group)) for group in range(footer.num_row_groups)]
    view = memoryview(data)
    length, _ = _FOOTER.unpack(view[-_FOOTER.size :])
    extents.append((data.size - length - _FOOTER.size, data.size))
    return tuple(TierPart(start, end - start, _digest(view[start:end])) for start, end in extents)


def _digest(data: bytes | memoryview) -> bytes:
    return hashlib.blake2b(data, digest_size=32).digest()


def _write_group(writer: pq.ParquetWriter, batches: list[pa.RecordBatch]) -> None:
    table = pa.Table.from_batches(batches, SCHEMA)
    writer.write_table(table, row_group_size=max(1, table.num_rows))


@final
class TierReader:
    """Reads row groups of a bridge's objects: each by one request, and one more for the footer of each object.

    Args:
        storage: storage of the objects.
        bridge: name of the bridge.
    """

    def __init__(self, storage: Storage, bridge: str) -> None:
        self._storage = storage
        self._bridge = bridge
        self._footers: dict[tuple[str, bytes], pq.FileMetaData] = {}

    def read_group(self, shard: str, found: TierObject, group: int) -> pa.RecordBatch:
        """Return the events of a row group, verified.

        Raises:
            TierUnreachable: the storage does not answer.
            LogDamaged: the object is not what was written.
        """
        path = f"{shard_folder(self._bridge, shard)}/{found.name}"
        try:
            footer = self._footer(path, found)
            if footer.num_row_groups != len(found.groups) or footer.num_rows != found.rows:
                raise LogDamaged(f"the object {path} in the tier {self._storage.url} holds other events")
            part = found.parts[group]
            window = pa.PythonFile(_RowGroupBytes(self._get(path, found, part), part.start, found.size), mode="r")
            file = pq.ParquetFile(window, metadata=footer, page_checksum_verification=True)
            table = file.read_row_group(group, use_threads=False).cast(SCHEMA)
        except (pa.ArrowException, OSError, ValueError) as error:
            # The bytes have come: what is wrong with them is their own.
            reason = " ".join(str(error).split())
            raise LogDamaged(f"the object {path} in the tier {self._storage.url} is damaged: {reason}") from None
        batches = table.combine_chunks().to_batches()
        return batches[0] if batches else NO_EVENTS

    def _get(self, path: str, found: TierObject, part: TierPart) -> bytes:
        data = self._storage.get(path, part.start, part.size, size=found.size)
        # From here on these bytes are parsed: each of them has to be the bridge's own.
        if _digest(data) != part.digest:
            raise LogDamaged(
                f"the object {path} in the tier {self._storage.url} is not what was written: its hash is another"
            )
        return data

    def _footer(self, path: str, found: TierObject) -> pq.FileMetaData:
        name = path, found.parts[-1].digest
        known = self._footers.get(name)
        if known is None:
            data = self._get(path, found, found.parts[-1])
            known = pq.read_metadata(pa.BufferReader(data))
            if len(self._footers) >= _FOOTERS:
                self._footers.clear()
            self._footers[name] = known
        return known


def _extent(group: pq.RowGroupMetaData) -> tuple[int, int]:
    """Return where the pages of a row group begin and end."""
    columns = [group.column(number) for number in range(group.num_columns)]
    starts = [
        min(column.data_page_offset, column.dictionary_page_offset or column.data_page_offset) for column in columns
    ]
    ends = [start + column.total_compressed_size for start, column in zip(starts, columns, strict=True)]
    return min(starts), max(ends)


@final
class _RowGroupBytes:
    """A file of which some bytes are there."""

    closed = False

    def __init__(self, data: bytes, start: int, size: int) -> None:
        self._data = memoryview(data)
        self._start = start
        self._size = size
        self._at = 0

    def read(self, count: int = -1) -> bytes:
        """Return the bytes that follow."""
        begin = self._at - self._start
        end = len(self._data) if count < 0 else begin + count
        if not 0 <= begin <= end <= len(self._data):
            raise ValueError(f"bytes {self._at} to {self._at + count} are not of the row group")
        self._at += end - begin
        return bytes(self._data[begin:end])

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a byte."""
        self._at = (0, self._at, self._size)[whence] + offset
        return self._at

    def tell(self) -> int:
        """Return where the next byte is."""
        return self._at

    def close(self) -> None:
        """Do nothing."""
