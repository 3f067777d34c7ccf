"""Offsets: batches cover the log without gaps and without overlap, whatever happens between them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from iris.kernel.errors import ConfigError
from iris.spark_bridge.client.offsets import (
    Offsets,
    Range,
    advance,
    check_order,
    divide,
    parse_offsets,
    place,
    ranges_between,
    split_ranges,
)
from iris.spark_bridge.errors import DataLost
from iris.spark_bridge.protocol import Extent

A, B, C = "0@aaaaaaaaaaaaaaaa", "1@bbbbbbbbbbbbbbbb", "2@cccccccccccccccc"
WIPED = "0@0000000000000000"


def extents(**following: int) -> dict[str, Extent]:
    names = {"a": A, "b": B, "c": C, "wiped": WIPED}
    return {names[name]: Extent(earliest=0, next=end) for name, end in following.items()}


def through_spark(offsets: Offsets) -> Offsets:
    """Return the offsets as they come back from a checkpoint."""
    return parse_offsets(json.loads(json.dumps(offsets.to_json())))


def step(start: Offsets, held: Mapping[str, Extent], *, limit: int | None = None, strict: bool = True) -> Offsets:
    if limit is not None:
        waiting = {shard: extent.next - start.next.get(shard, 0) for shard, extent in held.items()}
        shares = divide(waiting, limit)
        held = {shard: replace(extent, upto=start.next.get(shard, 0) + shares[shard]) for shard, extent in held.items()}
    return advance(start, held, fail_on_data_loss=strict)


def test_offsets_survive_a_checkpoint() -> None:
    offsets = Offsets(next={A: 3}, initial=True, began={B: 1})
    assert through_spark(offsets) == offsets
    assert Offsets(next={A: 3}).to_json() == {A: 3}


@pytest.mark.parametrize("value", [{"topic": {"0": 1}}, {A: -1}, {A: "3"}, {A: True}, {"0": 1}, {A: 1, "from": 3}])
def test_offsets_of_something_else_are_refused(value: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="another query"):
        parse_offsets(value)


# -- where to begin ------------------------------------------------------------------------------------------

HELD = {A: Extent(earliest=5, next=10), B: Extent(earliest=0, next=7)}


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        ("earliest", {A: 5, B: 0}),
        ("latest", {A: 10, B: 7}),
        ({"0": 6}, {A: 6, B: 0}),
        ({"0": -1, B: 7}, {A: 10, B: 7}),
        ({A: -2, "1": -1}, {A: 5, B: 7}),
    ],
)
def test_a_position_becomes_offsets(position: Any, expected: dict[str, int]) -> None:
    assert place(position, HELD, option="startingOffsets") == expected


def test_a_shard_that_is_not_named_ends_behind_its_latest_event() -> None:
    assert place({"0": 6}, HELD, option="endingOffsets", end=True) == {A: 6, B: 7}


def test_a_read_that_ends_before_it_begins_is_refused() -> None:
    check_order({A: 5, B: 3}, {A: 5}, options="a and b")
    with pytest.raises(ConfigError, match=f"a and b contradict each other: shard {A} would end at 4, before 5"):
        check_order({A: 5}, {A: 4}, options="a and b")


@pytest.mark.parametrize("position", [{"0": 4}, {"0": 11}, {"9": 0}, {WIPED: 0}])
def test_a_position_outside_of_the_log_is_refused(position: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="startingOffsets"):
        place(position, HELD, option="startingOffsets")


# -- batches -------------------------------------------------------------------------------------------------


def test_a_batch_reads_all_that_is_there() -> None:
    start = Offsets(next={A: 2, B: 3})
    end = step(start, extents(a=10, b=3))
    assert end == Offsets(next={A: 10, B: 3})
    assert ranges_between(start, end) == [Range(shard=A, start=2, end=10)]


def test_without_news_the_offset_is_the_same_object() -> None:
    start = Offsets(next={A: 10}, began={A: 4})
    assert step(start, extents(a=10)) is start


def test_events_of_other_topics_make_no_batch_and_go_along_with_the_next() -> None:
    start = Offsets(next={A: 2, B: 3})
    silent = Extent(earliest=0, next=10, first=10, count=0, upto=10)
    assert step(start, {A: silent, B: silent}) is start
    end = step(start, {A: silent, B: Extent(earliest=0, next=9, first=7, count=1, upto=9)})
    assert end.next == {A: 10, B: 9}, "the silent one is not looked at from the beginning again"


def test_a_batch_ends_where_as_many_as_were_counted_have_been_read() -> None:
    start = Offsets(next={A: 2})
    assert step(start, {A: Extent(earliest=0, next=100, first=40, count=5, upto=60)}).next == {A: 60}


def test_a_batch_without_news_is_empty_and_does_not_repeat_the_one_before() -> None:
    end = through_spark(step(Offsets(next={A: 0}, initial=True), extents(a=5, b=5)))
    assert ranges_between(end, through_spark(step(end, extents(a=5, b=5)))) == []


def test_a_limit_is_divided_in_proportion() -> None:
    assert step(Offsets(next={A: 0, B: 0}), extents(a=900, b=100), limit=100).next == {A: 90, B: 10}


def test_a_new_shard_is_read_from_its_beginning_also_when_the_batch_is_repeated() -> None:
    start = Offsets(next={A: 10})
    end = through_spark(step(start, extents(a=10, b=5), limit=3))
    assert ranges_between(start, end) == [Range(shard=B, start=0, end=3)]
    following = step(end, extents(a=10, b=5))
    assert ranges_between(end, following) == [Range(shard=B, start=3, end=5)]


def test_the_first_batch_is_the_same_when_latest_has_moved_meanwhile() -> None:
    """Spark repeats it after a crash with a new initial offset and the end that it has written down."""
    end = through_spark(step(Offsets(next={A: 10}, initial=True), extents(a=15)))
    moved = Offsets(next={A: 15}, initial=True)
    assert ranges_between(moved, end) == [Range(shard=A, start=10, end=15)]


def test_the_first_batch_is_the_same_when_a_shard_has_come_meanwhile() -> None:
    end = through_spark(step(Offsets(next={A: 10}, initial=True), extents(a=15)))
    moved = Offsets(next={A: 15, B: 3}, initial=True)
    assert ranges_between(moved, end) == [Range(shard=A, start=10, end=15)]
    following = step(end, extents(a=15, b=3))
    assert ranges_between(end, following) == [Range(shard=B, start=0, end=3)]


def test_a_shard_whose_member_is_away_keeps_its_place() -> None:
    end = step(Offsets(next={A: 4, B: 4}), extents(b=9))
    assert end.next == {A: 4, B: 9}


def test_a_wiped_log_is_an_error() -> None:
    with pytest.raises(DataLost, match="wiped"):
        step(Offsets(next={WIPED: 4}), extents(a=3))


def test_a_wiped_log_is_begun_anew_if_that_is_allowed() -> None:
    start = Offsets(next={WIPED: 4, B: 1})
    end = through_spark(step(start, extents(a=3, b=2), strict=False))
    assert end.next == {A: 3, B: 2}
    assert ranges_between(start, end) == [Range(shard=A, start=0, end=3), Range(shard=B, start=1, end=2)]


def test_trimmed_events_are_an_error() -> None:
    with pytest.raises(DataLost, match="4 to 5"):
        step(Offsets(next={A: 4}), HELD)


def test_trimmed_events_are_passed_over_if_that_is_allowed() -> None:
    start = Offsets(next={A: 4, B: 7})
    end = through_spark(step(start, HELD, strict=False))
    assert ranges_between(start, end) == [Range(shard=A, start=5, end=10)]


def test_a_log_that_was_put_back_to_an_older_state_is_an_error() -> None:
    with pytest.raises(DataLost, match=r"ends at 8, and was read up to 10.*new checkpoint"):
        step(Offsets(next={A: 10, B: 1}), extents(a=8, b=5))


def test_a_log_that_was_put_back_is_gone_on_with_if_that_is_allowed() -> None:
    start = Offsets(next={A: 10})
    back = through_spark(step(start, extents(a=8), strict=False))
    assert ranges_between(start, back) == []
    assert ranges_between(back, step(back, extents(a=11))) == [Range(shard=A, start=8, end=11)]
    at_once = through_spark(step(start, extents(a=9), strict=False))
    assert ranges_between(at_once, step(at_once, extents(a=10))) == [Range(shard=A, start=9, end=10)]


# -- arithmetic ----------------------------------------------------------------------------------------------

sizes = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 10_000), min_size=1)


@given(sizes, st.integers(1, 20_000))
def test_shares_are_whole_fit_and_add_up(waiting: dict[str, int], limit: int) -> None:
    shares = divide(waiting, limit)
    assert sum(shares.values()) == min(limit, sum(waiting.values()))
    assert all(0 <= shares[shard] <= waiting[shard] for shard in waiting)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=5), st.integers(1, 30))
def test_split_ranges_are_the_same_events_in_pieces(lengths: list[int], wanted: int) -> None:
    ranges = [Range(shard=f"{n}@0", start=10, end=10 + length) for n, length in enumerate(lengths)]
    pieces = split_ranges(ranges, wanted)
    covered = [(piece.shard, at) for piece in pieces for at in range(piece.start, piece.end)]
    assert covered == [(found.shard, at) for found in ranges for at in range(found.start, found.end)]
    assert all(piece.start < piece.end for piece in pieces)
    assert len(pieces) <= max(len(ranges), wanted + len(ranges))


@given(st.lists(st.integers(1, 300), max_size=4), st.none() | st.integers(1, 9), st.integers(1, 50))
def test_no_piece_is_larger_than_it_may_be(lengths: list[int], wanted: int | None, most: int) -> None:
    ranges = [Range(shard=f"{n}@0", start=10, end=10 + length) for n, length in enumerate(lengths)]
    pieces = split_ranges(ranges, wanted, most)
    covered = [(piece.shard, at) for piece in pieces for at in range(piece.start, piece.end)]
    assert covered == [(found.shard, at) for found in ranges for at in range(found.start, found.end)]
    assert all(0 < piece.end - piece.start <= most for piece in pieces)
    assert len(pieces) >= len(split_ranges(ranges, wanted))


def test_a_range_is_split_into_as_many_pieces_as_wanted() -> None:
    assert len(split_ranges([Range(shard=A, start=0, end=1000)], 4)) == 4
    assert split_ranges([Range(shard=A, start=0, end=2)], 4) == [
        Range(shard=A, start=0, end=1),
        Range(shard=A, start=1, end=2),
    ]
    assert split_ranges([], 4) == []


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.none() | st.integers(1, 20)), max_size=12))
def test_batches_cover_every_event_once(growth: list[tuple[int, int, int | None]]) -> None:
    held = {"a": 0, "b": 0}
    position = Offsets(next={A: 0}, initial=True)
    read: list[tuple[str, int]] = []
    for more_a, more_b, limit in growth:
        held["a"] += more_a
        held["b"] += more_b
        end = through_spark(step(position, extents(**held), limit=limit))
        batch = [(r.shard, at) for r in ranges_between(position, end) for at in range(r.start, r.end)]
        assert limit is None or len(batch) <= limit
        read += batch
        position = end
    end = step(position, extents(**held))
    read += [(r.shard, at) for r in ranges_between(position, end) for at in range(r.start, r.end)]
    assert sorted(read) == [(A, at) for at in range(held["a"])] + [(B, at) for at in range(held["b"])]
