"""Retention: what is chosen to go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iris.kernel.errors import ConfigError
from iris.spark_bridge.log.records import SegmentRecord
from iris.spark_bridge.log.retention import Retention, choose_expired

SECOND = 1_000_000


def segment(number: int, size: int = 100) -> SegmentRecord:
    """The segment of ten events that were stored during the second ``number``."""
    at = number * SECOND
    return SegmentRecord(first=number * 10, end=number * 10 + 10, size=size, written=at, last_timestamp=at)


SEGMENTS = {0: [segment(0), segment(2), segment(4)], 1: [segment(1), segment(3)]}


@pytest.mark.parametrize(
    ("retention", "expected"),
    [
        (Retention(), {}),
        (Retention(max_age=100), {}),
        (Retention(max_age=2.5), {0: 30, 1: 20}),
        (Retention(max_age=1), {0: 30, 1: 40}),
        (Retention(max_bytes=500), {}),
        (Retention(max_bytes=401), {}),
        (Retention(max_bytes=400), {0: 10}),
        (Retention(max_bytes=250), {0: 10, 1: 20}),
        (Retention(max_bytes=1), {0: 30, 1: 40}),
        (Retention(max_age=2.5, max_bytes=250), {0: 30, 1: 20}),
    ],
)
def test_the_oldest_segments_go_first(retention: Retention, expected: dict[int, int]) -> None:
    assert choose_expired(SEGMENTS, retention, now=5 * SECOND, unread={}) == expected


def test_no_smaller_segment_goes_in_place_of_the_oldest() -> None:
    active = SegmentRecord(first=180, end=190, size=2, written=18 * SECOND, last_timestamp=18 * SECOND)
    closed = [segment(number) for number in range(18)]
    assert choose_expired({0: [*closed, active]}, Retention(max_bytes=1750), now=0, unread={}) == {}
    other = [segment(0, size=64), segment(1, size=64)]
    assert choose_expired({0: other, 1: [segment(2, size=2)]}, Retention(max_bytes=100), now=0, unread={}) == {}


@given(st.lists(st.lists(st.integers(1, 100), max_size=12), max_size=4), st.integers(1, 1500))
def test_as_much_stays_as_is_to_be_kept(sizes: list[list[int]], max_bytes: int) -> None:
    segments = {
        shard: [segment(10 * number + shard, size) for number, size in enumerate(of_shard)]
        for shard, of_shard in enumerate(sizes)
    }
    before = choose_expired(segments, Retention(max_bytes=max_bytes), now=0, unread={})
    stays = [one.size for shard, found in segments.items() for one in found if one.first >= before.get(shard, 0)]
    whole = sum(map(sum, sizes))
    assert sum(stays) >= min(whole, max_bytes)
    assert sum(stays) == whole or sum(stays) < max_bytes + 100


def test_what_a_group_has_not_read_stays_if_that_is_wanted() -> None:
    unread = {0: 25, 1: 40}
    kept = Retention(max_bytes=1, keep_unread=True)
    assert choose_expired(SEGMENTS, kept, now=0, unread=unread) == {0: 10, 1: 40}
    assert choose_expired(SEGMENTS, Retention(max_bytes=1), now=0, unread=unread) == {0: 30, 1: 40}


# -- clocks that are wrong -------------------------------------------------------------------------------------


def stamped(*clock: int) -> list[SegmentRecord]:
    """Return segments that were written when the clock said so, in seconds."""
    newest = 0
    found: list[SegmentRecord] = []
    for number, now in enumerate(clock):
        newest = max(newest, now)
        first = number * 10
        found.append(
            SegmentRecord(first=first, end=first + 10, size=100, written=now * SECOND, last_timestamp=newest * SECOND)
        )
    return found


@pytest.mark.parametrize(
    ("clock", "now", "expected"),
    [
        ((10, 9000, 30, 40), 100, {0: 40}),  # one was ahead: it goes with the next one, and all do in time
        ((10, 9000, 30, 90), 100, {0: 30}),
        ((10, 9000), 100, {0: 10}),  # the age of the other is unknown
        ((80, 1, 90), 100, {}),  # one was behind: it is not older than the one before
        ((40, 1, 90), 100, {0: 20}),
    ],
)
def test_events_go_when_they_are_old_whatever_a_clock_said_meanwhile(
    clock: tuple[int, ...], now: int, expected: dict[int, int]
) -> None:
    kept = Retention(max_age=50)
    assert choose_expired({0: stamped(*clock)}, kept, now=now * SECOND, unread={}) == expected


def test_the_oldest_go_first_also_behind_one_from_a_clock_that_was_ahead() -> None:
    kept = Retention(max_bytes=200)
    assert choose_expired({0: stamped(10, 9000, 30, 40)}, kept, now=100 * SECOND, unread={}) == {0: 20}


def test_a_limit_that_keeps_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_age"):
        Retention(max_age=0)
    with pytest.raises(ConfigError, match="max_bytes"):
        Retention(max_bytes=-1)
