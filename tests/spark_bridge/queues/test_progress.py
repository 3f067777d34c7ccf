"""Offsets of a shard that are done."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from iris.spark_bridge.queues.progress import BLOCK, ShardProgress

RANGES = st.lists(st.tuples(st.integers(0, 3 * BLOCK), st.integers(0, BLOCK + 10)), max_size=12)


@given(RANGES)
def test_it_says_of_each_offset_what_a_set_says_and_its_floor_is_the_first_open_one(
    ranges: list[tuple[int, int]],
) -> None:
    progress, done = ShardProgress(0, {}), set[int]()
    for first, size in ranges:
        progress.mark(first, first + size)
        done.update(range(first, first + size))
        progress.advance()
        floor = next(offset for offset in range(5 * BLOCK) if offset not in done)
        assert progress.floor == floor
        for offset in {0, floor, first, first + size, max(0, first - 1), first + size // 2}:
            assert progress.is_done(offset) == (offset in done)
            assert progress.next_open(offset) == next(at for at in range(offset, 6 * BLOCK) if at not in done)


@given(RANGES)
def test_what_was_written_of_it_is_read_as_the_same(ranges: list[tuple[int, int]]) -> None:
    progress = ShardProgress(0, {})
    written: dict[int, bytes] = {}
    for first, size in ranges:
        progress.mark(first, first + size)
        progress.advance()
        for number in progress.changed:
            bits = progress.block(number)
            if bits is None:
                written.pop(number, None)
            else:
                written[number] = bits
        progress.changed.clear()
    again = ShardProgress(progress.floor, written)
    assert [again.is_done(at) for at in range(0, 5 * BLOCK, 7)] == [
        progress.is_done(at) for at in range(0, 5 * BLOCK, 7)
    ]


def test_blocks_that_are_done_in_full_take_nothing() -> None:
    progress = ShardProgress(0, {})
    progress.mark(1, 10 * BLOCK)
    assert [progress.block(number) for number in (1, 9)] == [b"", b""]
    progress.mark(0, 1)
    assert progress.advance()
    assert progress.floor == 10 * BLOCK
    assert progress.block(1) is None
