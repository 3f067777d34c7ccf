"""Frames: a chunk comes back whole or not at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iris.spark_bridge.errors import LogDamaged
from iris.spark_bridge.log.chunk import HEADER_SIZE, Chunk, decode_frames, frame_header, frame_size

DATA = b"some columns"
EPOCH = "00112233445566ff"


def encoded(data: bytes = DATA, *, first: int = 7) -> bytes:
    return frame_header(data, shard=2, epoch=EPOCH, first=first, count=3, timestamp=99) + data


def test_frames_that_follow_each_other_are_read_in_order() -> None:
    frames = encoded(), encoded(b"", first=10)
    one, two = decode_frames(b"".join(frames))
    assert one == Chunk(shard=2, epoch=EPOCH, first=7, count=3, timestamp=99, frame=frames[0])
    assert (bytes(one.data), one.end, two.first, bytes(two.data)) == (DATA, 10, 10, b"")


def test_a_header_tells_how_long_the_frame_is() -> None:
    assert frame_size(b"..." + encoded(), 3) == HEADER_SIZE + len(DATA)


def test_what_is_no_header_is_refused() -> None:
    with pytest.raises(LogDamaged):
        frame_size(b"\0" * HEADER_SIZE)


@given(bit=st.integers(0, (HEADER_SIZE + len(DATA)) * 8 - 1))
def test_any_flipped_bit_is_noticed(bit: int) -> None:
    frame = bytearray(encoded())
    frame[bit // 8] ^= 1 << bit % 8
    with pytest.raises(LogDamaged):
        list(decode_frames(bytes(frame)))


@given(length=st.integers(1, HEADER_SIZE + len(DATA) - 1))
def test_a_frame_that_is_cut_off_is_noticed_and_those_before_it_are_good(length: int) -> None:
    found: list[Chunk] = []
    with pytest.raises(LogDamaged):
        found.extend(decode_frames(encoded()[:length]))
    frames = decode_frames(encoded() + encoded()[:length])
    assert next(frames).data == DATA
    with pytest.raises(LogDamaged):
        next(frames)
