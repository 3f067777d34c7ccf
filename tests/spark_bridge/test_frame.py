"""Frames: a chunk comes back whole or not at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iris.spark_bridge.errors import LogDamaged
from iris.spark_bridge.frame import HEADER_SIZE, Chunk, decode_frames, frame_header, frame_size

CHUNK = Chunk(shard=2, epoch="00112233445566ff", first=7, count=3, timestamp=99, data=b"some columns")


def encoded(chunk: Chunk) -> bytes:
    return frame_header(chunk) + bytes(chunk.data)


def test_frames_that_follow_each_other_are_read_in_order() -> None:
    second = Chunk(shard=2, epoch=CHUNK.epoch, first=10, count=1, timestamp=100, data=b"")
    found = list(decode_frames(encoded(CHUNK) + encoded(second)))
    assert found == [CHUNK, second]
    assert CHUNK.end == second.first


def test_a_header_tells_how_long_the_frame_is() -> None:
    assert frame_size(b"..." + encoded(CHUNK), 3) == HEADER_SIZE + len(CHUNK.data)


def test_what_is_no_header_is_refused() -> None:
    with pytest.raises(LogDamaged):
        frame_size(b"\0" * HEADER_SIZE)


@given(bit=st.integers(0, (HEADER_SIZE + len(CHUNK.data)) * 8 - 1))
def test_any_flipped_bit_is_noticed(bit: int) -> None:
    frame = bytearray(encoded(CHUNK))
    frame[bit // 8] ^= 1 << bit % 8
    with pytest.raises(LogDamaged):
        list(decode_frames(bytes(frame)))


@given(length=st.integers(1, HEADER_SIZE + len(CHUNK.data) - 1))
def test_a_frame_that_is_cut_off_is_noticed_and_those_before_it_are_good(length: int) -> None:
    found: list[Chunk] = []
    with pytest.raises(LogDamaged):
        found.extend(decode_frames(encoded(CHUNK)[:length]))
    frames = decode_frames(encoded(CHUNK) + encoded(CHUNK)[:length])
    assert next(frames) == CHUNK
    with pytest.raises(LogDamaged):
        next(frames)
