"""Topic filters: the rows that a query wants."""

from __future__ import annotations

import pytest

from iris.spark_bridge.events.schema import encode_events
from iris.spark_bridge.log.topics.filter import TopicFilter
from tests.support.arrivals import fake_event

TOPICS = ["a.b", "a.c", "x", "a.b", "a.b.c"]


def kept(wanted: TopicFilter) -> list[str]:
    batch = encode_events([fake_event(topic=topic) for topic in TOPICS], shard=0, first=0, timestamp=0)
    return wanted.keep(batch).column("topic").to_pylist()


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        ([], TOPICS),
        (["a.b"], ["a.b", "a.b"]),
        (["a.*"], ["a.b", "a.c", "a.b"]),
        (["a.>", "x"], TOPICS),
        (["nothing"], []),
    ],
)
def test_patterns(patterns: list[str], expected: list[str]) -> None:
    assert kept(TopicFilter(patterns)) == expected


@pytest.mark.parametrize(("regex", "expected"), [(r"a\..", ["a.b", "a.c", "a.b"]), ("x|a", ["x"]), (".*", TOPICS)])
def test_a_regular_expression_is_for_the_whole_topic(regex: str, expected: list[str]) -> None:
    assert kept(TopicFilter(regex=regex)) == expected


def test_a_batch_that_is_wanted_as_a_whole_is_not_copied() -> None:
    batch = encode_events([fake_event(topic="a")], shard=0, first=0, timestamp=0)
    assert TopicFilter(["a"]).keep(batch) is batch
