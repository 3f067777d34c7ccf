"""Retention: what is chosen to go."""

from __future__ import annotations

import pytest

from iris.kernel.errors import ConfigError
from iris.spark_bridge.index import SegmentRecord
from iris.spark_bridge.retention import Retention, choose_expired

SECOND = 1_000_000


def segment(number: int, size: int = 100) -> SegmentRecord:
    """The segment of ten events that were stored during the second ``number``."""
    at = number * SECOND
    return SegmentRecord(first=number * 10, end=number * 10 + 10, size=size, first_timestamp=at, last_timestamp=at)


SEGMENTS = {0: [segment(0), segment(2), segment(4)], 1: [segment(1), segment(3)]}


@pytest.mark.parametrize(
    ("retention", "expected"),
    [
        (Retention(), {}),
        (Retention(max_age=100), {}),
        (Retention(max_age=2.5), {0: 30, 1: 20}),
        (Retention(max_age=1), {0: 30, 1: 40}),
        (Retention(max_bytes=500), {}),
        (Retention(max_bytes=499), {0: 10}),
        (Retention(max_bytes=250), {0: 30, 1: 20}),
        (Retention(max_age=3.5, max_bytes=250), {0: 30, 1: 20}),
    ],
)
def test_the_oldest_segments_go_first(retention: Retention, expected: dict[int, int]) -> None:
    assert choose_expired(SEGMENTS, retention, now=5 * SECOND, unread={}) == expected


def test_what_a_group_has_not_read_stays_if_that_is_wanted() -> None:
    unread = {0: 25, 1: 40}
    kept = Retention(max_bytes=1, keep_unread=True)
    assert choose_expired(SEGMENTS, kept, now=0, unread=unread) == {0: 10, 1: 40}
    assert choose_expired(SEGMENTS, Retention(max_bytes=1), now=0, unread=unread) == {0: 50, 1: 40}


def test_a_limit_that_keeps_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_age"):
        Retention(max_age=0)
    with pytest.raises(ConfigError, match="max_bytes"):
        Retention(max_bytes=-1)
