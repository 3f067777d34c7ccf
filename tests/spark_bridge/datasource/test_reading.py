"""Reading a range: frames from a stream of bytes, batches from chunks."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iris.spark_bridge.client.client import FrameBuffer
from iris.spark_bridge.datasource.options import SourceOptions
from iris.spark_bridge.datasource.reader import to_batches
from iris.spark_bridge.errors import LogDamaged
from iris.spark_bridge.events.schema import SCHEMA, encode_events
from iris.spark_bridge.log.chunk import Chunk, decode_frames, frame_header
from tests.support.arrivals import fake_event

EPOCH = "00112233445566ff"


def frames_of(sizes: Sequence[int], payload: bytes = b"") -> list[bytes]:
    """Return frames of so many events each, numbered from 0; the payload is the number, and what is given."""
    frames: list[bytes] = []
    first = 0
    for count in sizes:
        events = [
            fake_event(b"%d" % number + payload, topic=f"t.{number % 2}") for number in range(first, first + count)
        ]
        data = encode_events(events, shard=0, first=first, timestamp=0).serialize().to_pybytes()
        frames.append(frame_header(data, shard=0, epoch=EPOCH, first=first, count=count, timestamp=0) + data)
        first += count
    return frames


def chunks_of(sizes: Sequence[int], payload: bytes = b"") -> list[Chunk]:
    return list(decode_frames(b"".join(frames_of(sizes, payload))))


def read(sizes: Sequence[int], options: SourceOptions, start: int, end: int) -> list[pa.RecordBatch]:
    return list(to_batches(iter(chunks_of(sizes)), options, start=start, end=end))


def offsets(batches: Sequence[pa.RecordBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


@settings(deadline=None)  # the first use of Arrow takes a while
@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.data())
def test_a_stream_cut_anywhere_gives_the_frames_that_went_in(sizes: list[int], data: st.DataObject) -> None:
    frames = frames_of(sizes)
    stream = b"".join(frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    buffer = FrameBuffer()
    found: list[bytes] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += [bytes(chunk.frame) for chunk in buffer.feed(stream[start:end])]
    assert found == frames


def test_a_damaged_frame_is_noticed_by_the_reader_too() -> None:
    frame = bytearray(frames_of([3])[0])
    frame[-1] ^= 1
    with pytest.raises(LogDamaged):
        FrameBuffer().feed(bytes(frame))


def test_only_the_range_is_read() -> None:
    assert offsets(read([10, 10, 10], SourceOptions(), 5, 25)) == list(range(5, 25))
    assert offsets(read([10], SourceOptions(), 4, 5)) == [4]


def test_small_chunks_come_together_and_large_ones_as_they_are() -> None:
    batches = read([1] * 100 + [2000, 3000, 5], SourceOptions(), 0, 5105)
    assert [batch.num_rows for batch in batches] == [100, 2000, 3000, 5]
    assert offsets(batches) == list(range(5105))


def test_batches_that_come_together_stay_below_sparks_own_size() -> None:
    assert max(batch.num_rows for batch in read([1000] * 30, SourceOptions(), 0, 30_000)) <= 10_000


def test_chunks_of_few_but_large_events_stay_as_they_are() -> None:
    batches = list(to_batches(iter(chunks_of([3, 3, 3], payload=b"x" * 100_000)), SourceOptions(), start=0, end=9))
    assert [batch.num_rows for batch in batches] == [3, 3, 3]
    small = list(to_batches(iter(chunks_of([1] * 20, payload=b"x" * 100_000)), SourceOptions(), start=0, end=20))
    assert [batch.num_rows for batch in small] == [10, 10], "1 MiB together"


def test_every_batch_has_exactly_the_schema_that_spark_expects() -> None:
    for options in (SourceOptions(), SourceOptions(topics=("t.1",))):
        for batch in read([3, 2000, 1, 1], options, 1, 2004):
            assert batch.schema.equals(SCHEMA, check_metadata=True)


def test_unwanted_topics_are_left_out() -> None:
    (batch,) = read([4, 4], SourceOptions(topics=("t.1",)), 0, 8)
    assert batch.column("offset").to_pylist() == [1, 3, 5, 7]
    assert read([4, 4], SourceOptions(topics=("nothing",)), 0, 8) == []
