"""Topics that a bridge caches for readers that are at work: each has a filter of its own."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator
from typing import Any, cast

import pytest

from iris.patterns.pubsub.interest import Matcher
from iris.spark_bridge.log import TopicFilter, Transaction
from iris.spark_bridge.log.records import SegmentRecord
from iris.spark_bridge.log.topics.index import _wanted_ids

TOPICS = [f"plant.{number % 97}.machine.{number}.heat" for number in range(20_000)]


class View:
    """The topics of one segment, as the index has them."""

    def __init__(self, count: int = len(TOPICS)) -> None:
        self.count = count

    def items_from(self, _table: object, key: bytes) -> Iterator[tuple[bytes, list[str]]]:
        yield key, TOPICS[int.from_bytes(key[-4:]) : self.count]


def segment(topics: int) -> SegmentRecord:
    record: Any = type("Record", (), {"topics": topics, "first": 0, "revision": 1})()
    return cast("SegmentRecord", record)


@pytest.mark.long
def test_what_each_of_many_readers_wants_of_a_segment_with_many_topics_takes_little() -> None:
    view = cast("Transaction", View())
    filters = [TopicFilter(["plant.>", f"other.{number}"]) for number in range(3)]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for wanted in filters:
            found = _wanted_ids(view, 0, "e", segment(20_000), wanted)
            assert found is not None
            assert (len(found), all(found)) == (20_000, True)
            for first in range(0, 20_000, 1000):
                assert len(wanted.choose(TOPICS[first : first + 1000])) == 1000
                assert wanted.wants(TOPICS[first])
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert taken / len(filters) < 250_000  # it was 3.5 MB


@pytest.mark.parametrize(
    "patterns", [["plant.3.>"], ["plant.*.machine.*.heat"], ["nothing.>"], ["plant.3.machine.3.heat"]]
)
def test_what_is_wanted_is_right_however_a_segment_grows(patterns: list[str]) -> None:
    r = random.Random(7)
    wanted = TopicFilter(patterns)
    matcher: Matcher[bool] = Matcher()
    matcher.add(patterns[0], True)
    known = 0
    for _ in range(12):
        known += r.randint(1, 700)
        found = _wanted_ids(cast("Transaction", View(known)), 0, "e", segment(known), wanted)
        assert found is not None
        expected = {number for number, topic in enumerate(TOPICS[:known]) if matcher.match(topic)}
        assert {number for number, flag in enumerate(found) if flag} == expected
        assert bool(found) == bool(expected)


def test_a_matcher_that_remembers_nothing_says_the_same() -> None:
    matcher: Matcher[bool] = Matcher()
    for pattern in ("a.>", "b.*.c", "d", "*.e"):
        matcher.add(pattern, True)
    for topic in ("a", "a.b", "a.b.c", "b.x.c", "b.c", "d", "d.d", "x.e", "x.y.e", "e"):
        assert matcher.matches(topic) == bool(matcher.match(topic))
