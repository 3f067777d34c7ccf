"""The last values that a node keeps, against a list and the matcher of patterns."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iris.kernel.errors import NotSent
from iris.patterns.pubsub.interest.topics import Matcher
from iris.patterns.pubsub.publish.retained import RetainedEvent, RetainedEvents

topics = st.lists(st.sampled_from(["a", "b", "cd"]), min_size=1, max_size=4).map(".".join)
patterns = st.lists(st.sampled_from(["a", "b", "cd", "*"]), min_size=0, max_size=4).flatmap(
    lambda tokens: st.just(".".join(tokens)) if tokens else st.just(">")
) | topics.map(lambda topic: f"{topic}.>")


def value(topic: str, sequence: int = 1, size: int = 10) -> RetainedEvent:
    return RetainedEvent(topic, sequence, None, None, b"x", size)


def matches(pattern: str, topic: str) -> bool:
    matcher: Matcher[str] = Matcher()
    matcher.add(pattern, "it")
    return bool(matcher.match(topic))


@given(st.lists(st.tuples(st.booleans(), topics, st.integers(0, 50)), max_size=30), st.lists(patterns, max_size=6))
def test_a_pattern_finds_the_last_value_of_each_topic_that_it_matches(
    steps: list[tuple[bool, str, int]], asked: list[str]
) -> None:
    kept = RetainedEvents(1000, 1_000_000)
    model: dict[str, RetainedEvent] = {}
    for number, (keep, topic, size) in enumerate(steps, 1):
        if keep:
            model[topic] = value(topic, number, size)
            kept.keep(model[topic])
        else:
            assert kept.forget(topic) == (model.pop(topic, None) is not None)
        assert (len(kept), kept.bytes) == (len(model), sum(event.size for event in model.values()))
        assert kept.get(topic) == model.get(topic)
    for pattern in [*asked, ">"]:
        found = kept.match(pattern)
        expected = [event for topic, event in model.items() if matches(pattern, topic)]
        assert sorted(found, key=str) == sorted(expected, key=str)


def test_what_is_forgotten_leaves_nothing_in_the_tree() -> None:
    kept = RetainedEvents(10, 1000)
    for topic in ("a.b.c", "a.b", "a"):
        kept.keep(value(topic))
    for topic in ("a.b", "a.b.c", "a"):
        assert kept.forget(topic)
    assert not kept._root.children
    assert not kept.forget("a")


def test_a_value_is_kept_until_its_time_is_over_and_another_one_has_a_time_of_its_own() -> None:
    kept = RetainedEvents(3, 1000)
    kept.keep(value("a")._replace(deadline=5.0))
    kept.keep(value("b")._replace(deadline=3.0))
    kept.keep(value("c"))
    kept.expire(2.9)
    assert (len(kept), kept.due) == (3, 3.0)
    with pytest.raises(NotSent):
        kept.check("d", 10, 2.9)
    kept.check("d", 10, 3.0)
    assert ([event.topic for event in kept.match(">")], kept.due, kept.bytes) == (["a", "c"], 5.0, 20)
    kept.keep(value("a"))
    kept.expire(1e9)
    assert (len(kept), kept.due) == (2, math.inf)
    for number in range(1000):
        kept.keep(value("e")._replace(deadline=2e9 + number))
    assert len(kept._deadlines) == 1
    assert kept.forget("e")
    assert not kept._deadlines


def test_beyond_the_number_a_new_topic_is_refused_and_a_known_one_is_not() -> None:
    kept = RetainedEvents(2, 1000)
    for topic in ("a", "b"):
        kept.check(topic, 10)
        kept.keep(value(topic))
    kept.check("a", 10)
    with pytest.raises(NotSent, match=r"'c' cannot be retained: this node retains 2 values with 20 bytes"):
        kept.check("c", 10)
    kept.forget("b")
    kept.check("c", 10)


def test_beyond_the_bytes_a_value_is_refused_unless_it_replaces_enough() -> None:
    kept = RetainedEvents(10, 100)
    kept.keep(value("a", size=60))
    kept.check("b", 40)
    with pytest.raises(NotSent, match="limits are 10 and 100"):
        kept.check("b", 41)
    kept.check("a", 100)
    with pytest.raises(NotSent):
        kept.check("a", 101)
