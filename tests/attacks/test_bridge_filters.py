"""Filters of topics at a bridge: each reader has its own, and what is remembered for all together is bounded."""

from __future__ import annotations

import gc
import random
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from iris.patterns.pubsub.interest import Matcher
from iris.spark_bridge.log import TopicFilter, Transaction
from iris.spark_bridge.log.records import SegmentRecord
from iris.spark_bridge.log.topics import filter as topic_filter
from iris.spark_bridge.log.topics.index import _wanted_ids
from iris.spark_bridge.server import operations
from iris.testing import Rights, open_network
from tests.support.bridge_members import open_member

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


async def test_what_readers_want_takes_a_bounded_place_however_many_topics_it_matches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "_MATCHED", 1000)
    async with open_network() as network:
        network.credential("evil", Rights(publishes=("public.>",), subscribes=("public.>",)))
        async with open_member(network, tmp_path, topics=["public.>"]) as bridge, network.open_node("evil") as evil:
            await evil.wait_for("bridge", timeout=60)
            for number in range(200):
                await (evil.publish_confirmed if number % 50 == 49 else evil.publish)(f"public.{number}", b"")
            (state,) = bridge.states.values()
            asked = {"known": {state.id: 0}, "timeout": 0, "limit": 1000}
            for number in range(40):
                wanted = ["public.>", f"public.x{number}"]
                found = await evil.request("bridge", {**asked, "topics": wanted}, operation="offsets")
                assert found[state.id][4] == 200
            kept = [thing for thing in gc.get_objects() if type(thing) is TopicFilter]
            assert sum(one.remembered for one in kept) <= 1000 + 400


def test_a_filter_remembers_so_many_topics_and_answers_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_filter, "_REMEMBERED", 10)
    wanted = TopicFilter(["a.*", "b.7"])
    many = [f"{first}.{number}" for first in "abc" for number in range(30)]
    for topics in (many[:5], many, many[25:35], many[::-1], many[:9], many):
        expected = [topic for topic in topics if topic.startswith("a.") or topic == "b.7"]
        assert wanted.choose(topics) == expected
        assert wanted.remembered <= 10
