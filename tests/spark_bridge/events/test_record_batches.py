"""Arrow IPC from peers: what is taken costs no more than it weighs, and nothing else is taken."""

from __future__ import annotations

import ast
import io
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iris.kernel.config import KIB, MIB
from iris.kernel.errors import RemoteError, RemoteProtocolError
from iris.spark_bridge.errors import LogDamaged
from iris.spark_bridge.events.record_batches import (
    MAX_BODY,
    MAX_METADATA,
    read_batch_untrusted,
    read_rows_untrusted,
)
from iris.spark_bridge.events.schema import MAX_VALUE, SINK_SCHEMA, decode_events, encode_events
from iris.spark_bridge.log.chunk_io import CHUNK_EVENTS
from iris.spark_bridge.staging.staging import cut_rows, write_rows
from iris.testing import open_network
from tests.project.test_source import named, source_files
from tests.support.arrivals import fake_event, stored
from tests.support.staged import open_pair, part

PREFIX = 8
"""Size of what is before the metadata of a message, in bytes."""


def batch_of(*rows: Mapping[str, object]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=SINK_SCHEMA)


def stream_of(*batches: pa.RecordBatch, compression: str | None = None) -> bytes:
    """Return a stream as somebody else writes it: each batch as it is."""
    file = io.BytesIO()
    with pa.ipc.new_stream(file, SINK_SCHEMA, options=pa.ipc.IpcWriteOptions(compression=compression)) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return file.getvalue()


def read(stream: bytes) -> list[bytes]:
    batches = read_rows_untrusted(io.BytesIO(stream), SINK_SCHEMA)
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def message_of(*rows: Mapping[str, object]) -> bytes:
    return batch_of(*rows).serialize().to_pybytes()


def bomb(compression: str) -> bytes:
    """Return a stream of some KiB that becomes 64 MiB."""
    return stream_of(*[batch_of(*[{"value": bytes(MIB), "topic": "out.x"}] * 64)], compression=compression)


_POOLS: list[pa.MemoryPool] = []
"""Memory pools of earlier tests: what was allocated in one may live on."""


@contextmanager
def growing_less_than(limit: int) -> Iterator[None]:
    """See that Arrow does not take more memory, not even for a moment."""
    usual = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(usual)
    _POOLS.append(pool)
    pa.set_memory_pool(pool)
    try:
        yield
    finally:
        pa.set_memory_pool(usual)
    assert (pool.max_memory() or 0) <= limit


# -- bombs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
async def test_a_compressed_batch_is_refused_before_it_is_decoded(tmp_path: Path, compression: str) -> None:
    stream = bomb(compression)
    assert len(stream) < 512 * KIB
    async with open_network() as network, open_pair(network, tmp_path) as (bridge, client):
        with growing_less_than(MIB):
            await client.stage("bridge", part(0), io.BytesIO(stream))
            with pytest.raises(LogDamaged, match="it is compressed: write it without compression"):
                await client.commit("bridge", "q", 0, [part(0)])
            with pytest.raises(RemoteError, match="rows of partition 0: it is compressed"):
                await client.commit("bridge", "q", 0, [part(0)], {part(0): stream})
        assert stored(bridge.store) == []


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_a_bridge_cannot_make_its_reader_decode_a_compressed_batch(compression: str) -> None:
    events = [fake_event(bytes(MIB)) for _ in range(64)]
    options = pa.ipc.IpcWriteOptions(compression=compression)
    file = io.BytesIO()
    whole = encode_events(events, shard=0, first=0, timestamp=0)
    with pa.ipc.new_stream(file, whole.schema, options=options) as stream:
        stream.write_batch(whole)
    data = file.getvalue()[whole.schema.serialize().size : -PREFIX]
    with growing_less_than(MIB), pytest.raises(LogDamaged, match="it is compressed"):
        decode_events(data)


def test_a_version_of_arrow_that_compresses_in_another_way_is_refused() -> None:
    """Before 1.0 it stood in the custom metadata of the message, which V5 does not look at."""
    message = message_of({"value": b"x", "topic": "t"})
    found = 0
    for at in range(PREFIX, PREFIX + 64):
        changed = bytearray(message)
        if struct.unpack_from("<h", message, at) != (4,):
            continue
        struct.pack_into("<h", changed, at, 3)
        try:
            read_batch_untrusted(bytes(changed), SINK_SCHEMA)
        except RemoteProtocolError as error:
            found += "before 1.0" in str(error)
    assert found == 1


@pytest.mark.parametrize("claimed", [MAX_BODY + 1, 2**40, 2**62, -1])
def test_a_message_that_claims_a_large_body_is_refused(claimed: int) -> None:
    row = batch_of({"value": b"x" * 1000, "topic": "t"})
    message = row.serialize().to_pybytes()
    metadata = message[PREFIX : PREFIX + struct.unpack_from("<i", message, 4)[0]]
    length = struct.pack("<q", len(message) - PREFIX - len(metadata))
    assert length in metadata
    changed = stream_of(row).replace(length, struct.pack("<q", claimed), 1)
    with growing_less_than(MIB), pytest.raises(RemoteProtocolError, match=r"claims to have -?\d+ bytes: the limit is"):
        read(changed)


def test_metadata_is_bounded() -> None:
    with pytest.raises(RemoteProtocolError, match="no message of Arrow IPC begins"):
        read(struct.pack("<Ii", 0xFFFFFFFF, MAX_METADATA + 8) + bytes(MAX_METADATA + 8))


async def test_a_row_with_very_many_headers_is_refused_before_they_become_objects(tmp_path: Path) -> None:
    """Each takes 4 bytes here, and 300 as an object."""
    row = {"value": b"x", "topic": "out.x", "headers": [{"key": "", "value": None}] * 100_000}
    async with open_network() as network, open_pair(network, tmp_path) as (bridge, client):
        with pytest.raises(
            RemoteError, match="column headers has 100000 headers in a row: the limit of an event is 500"
        ):
            await client.commit("bridge", "q", 0, [part(0)], {part(0): stream_of(batch_of(row))})
        assert stored(bridge.store) == []


def test_rows_with_many_headers_are_looked_at_a_few_at_a_time() -> None:
    row = {"value": b"x", "topic": "t", "headers": [{"key": "h", "value": b""}] * 100}
    cut = list(cut_rows(batch_of(*[row] * 1000)))
    assert sum(batch.num_rows for batch in cut) == 1000
    assert max(batch.num_rows for batch in cut) * 100 <= 2 * CHUNK_EVENTS


# -- what is written is read -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sizes",
    [[], [0], [MAX_VALUE], [MAX_VALUE] * 9, [0] * 30_000, [1000] * 5000, [0] * 9000 + [MAX_VALUE] * 3 + [7] * 9000],
)
def test_rows_of_any_size_are_written_in_batches_that_are_taken(sizes: Sequence[int]) -> None:
    headers = [{"key": "h" * 10, "value": b"v" * 7000}]
    rows = [{"value": bytes(size), "topic": "t", "key": b"k", "headers": headers if size else None} for size in sizes]
    file = io.BytesIO()
    write_rows(file, [batch_of(*rows)])
    assert [len(value) for value in read(file.getvalue())] == list(sizes)


def test_a_stream_that_arrow_writes_is_read_with_an_end_or_without() -> None:
    stream = stream_of(batch_of({"value": b"a", "topic": "t"}), batch_of({"value": b"b", "topic": "t"}))
    assert read(stream) == read(stream[:-PREFIX]) == [b"a", b"b"]


# -- nonsense --------------------------------------------------------------------------------------------------


def outcome(parse: Callable[[], object]) -> str:
    try:
        parse()
    except RemoteProtocolError:
        return "refused"
    return "taken"


def test_a_stream_that_is_cut_off_anywhere_is_refused() -> None:
    stream = stream_of(batch_of({"value": b"a" * 100, "topic": "t"}))
    ends = {len(stream), len(stream) - PREFIX}
    for end in range(len(stream)):
        prefix = stream[:end]
        taken = outcome(lambda prefix=prefix: read(prefix)) == "taken"  # type: ignore[misc]  # mypy infers no default
        assert not taken or end in ends or read(prefix) == [], end


def test_a_batch_with_one_byte_changed_is_refused_or_another_batch() -> None:
    message = message_of(*[{"value": b"abc", "topic": "t", "headers": [{"key": "h", "value": b"v"}]}] * 3)
    refused = 0
    with growing_less_than(MIB):
        for at in range(len(message)):
            for bit in (1, 0x10, 0x80, 0xFF):
                changed = bytearray(message)
                changed[at] ^= bit
                refused += outcome(lambda changed=changed: use(changed)) == "refused"  # type: ignore[misc]
    assert refused > len(message) / 4


def use(message: bytes | bytearray) -> None:
    """Read a batch, and everything in it: what leads out of it would be noticed."""
    for batch in cut_rows(read_batch_untrusted(bytes(message), SINK_SCHEMA)):
        batch.to_pylist()


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=400), st.booleans())
def test_nonsense_is_refused(data: bytes, framed: bool) -> None:
    if framed:
        data = struct.pack("<Ii", 0xFFFFFFFF, len(data)) + data
    assert outcome(lambda: read_batch_untrusted(data, SINK_SCHEMA)) == "refused"
    with pytest.raises(RemoteProtocolError):
        read(data)


@settings(deadline=None, max_examples=300)
@given(st.lists(st.tuples(st.integers(0, 900), st.integers(0, 255)), min_size=1, max_size=6))
def test_a_batch_with_bytes_changed_is_refused_or_another_batch(changes: list[tuple[int, int]]) -> None:
    message = bytearray(message_of(*[{"value": b"abc", "topic": "t", "key": b"k"}] * 3))
    for at, value in changes:
        message[at % len(message)] = value
    outcome(lambda: use(message))


def test_nothing_else_reads_arrow_ipc() -> None:
    readers = ("open_stream", "open_file", "read_record_batch", "read_message", "read_schema", "MessageReader")
    found = {
        (named(file), node.attr)
        for file in source_files()
        if "pyarrow" in file.read_text()
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in readers
    }
    assert {file for file, _ in found} == {"iris/spark_bridge/events/record_batches.py"}
