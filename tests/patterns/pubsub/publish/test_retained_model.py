"""The last values that a node keeps, beside a plain table."""

from __future__ import annotations

import math
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iris.kernel.errors import NotSent
from iris.patterns.pubsub.interest.topics import MAX_TOKENS, is_pattern
from iris.patterns.pubsub.publish.retained import RetainedEvent, RetainedEvents

TOKENS: Final = ["a", "b", "c"]
TOPICS: Final = st.lists(st.sampled_from(TOKENS), min_size=1, max_size=4).map(".".join)
PATTERNS: Final = st.lists(st.sampled_from([*TOKENS, "*"]), min_size=1, max_size=4).flatmap(
    lambda tokens: st.sampled_from([".".join(tokens), ".".join([*tokens[:-1], ">"])])
)
STEPS: Final = st.lists(
    st.tuples(st.sampled_from(["keep", "keep", "keep", "forget"]), TOPICS, st.integers(1, 60)), max_size=60
)


def event(topic: str, sequence: int, size: int) -> RetainedEvent:
    return RetainedEvent(topic, sequence, None, None, b"", size)


def matches(pattern: str, topic: str) -> bool:
    """Return whether a pattern matches a topic, token by token as the page says."""
    wanted, tokens = pattern.split("."), topic.split(".")
    if wanted[-1] == ">":
        wanted.pop()
        if len(tokens) <= len(wanted):
            return False
        tokens = tokens[: len(wanted)]
    return len(wanted) == len(tokens) and all(a in ("*", b) for a, b in zip(wanted, tokens, strict=True))


@given(STEPS, PATTERNS)
def test_a_node_keeps_and_finds_what_a_plain_table_does(steps: list[tuple[str, str, int]], pattern: str) -> None:
    assert is_pattern(pattern)
    kept = RetainedEvents(10, 200)
    table: dict[str, RetainedEvent] = {}
    for number, (what, topic, size) in enumerate(steps):
        if what == "forget":
            assert kept.forget(topic) == (table.pop(topic, None) is not None)
        else:
            others = {name: one for name, one in table.items() if name != topic}
            room = len(others) < 10 and sum(one.size for one in others.values()) + size <= 200
            if room:
                kept.check(topic, size)
                table[topic] = event(topic, number, size)
                kept.keep(table[topic])
            else:
                with pytest.raises(NotSent, match="cannot be retained"):
                    kept.check(topic, size)
        assert len(kept) == len(table) <= 10
        assert kept.bytes == sum(one.size for one in table.values()) <= 200
        assert kept.get(topic) == table.get(topic)
    found = kept.match(pattern)
    assert sorted(found) == sorted(one for topic, one in table.items() if matches(pattern, topic))
    for topic in list(table):
        assert kept.forget(topic)
    assert (len(kept), kept.bytes) == (0, 0)
    assert not kept._root.children, "the tree is empty again"


def test_the_deepest_topic_there_can_be_is_found_and_forgotten() -> None:
    deep = ".".join("x" for _ in range(MAX_TOKENS))
    kept = RetainedEvents(10, 100)
    kept.keep(event(deep, 1, 1))
    assert [one.topic for one in kept.match("x.>")] == [deep]
    assert kept.forget(deep)
    assert kept.match(">") == []


def test_a_refusal_says_what_is_held_and_what_the_limits_are() -> None:
    kept = RetainedEvents(1, 100)
    kept.keep(event("a", 1, 60))
    with pytest.raises(NotSent, match=r"'b' .* retains 1 values with 60 bytes, the limits are 1 and 100"):
        kept.check("b", 1)
    with pytest.raises(NotSent, match="'a'"):
        kept.check("a", 101)
    kept.check("a", 100)


def test_a_value_is_kept_until_its_time_is_over_and_another_one_has_a_time_of_its_own() -> None:
    kept = RetainedEvents(3, 1000)
    kept.keep(event("a", 1, 10)._replace(deadline=5.0))
    kept.keep(event("b", 2, 10)._replace(deadline=3.0))
    kept.keep(event("c", 3, 10))
    kept.expire(2.9)
    assert (len(kept), kept.due) == (3, 3.0)
    with pytest.raises(NotSent):
        kept.check("d", 10, 2.9)
    kept.check("d", 10, 3.0)
    assert ([event.topic for event in kept.match(">")], kept.due, kept.bytes) == (["a", "c"], 5.0, 20)
    kept.keep(event("a", 1, 10))
    kept.expire(1e9)
    assert (len(kept), kept.due) == (2, math.inf)
    for number in range(1000):
        kept.keep(event("e", 4, 10)._replace(deadline=2e9 + number))
    assert len(kept._deadlines) == 1
    assert kept.forget("e")
    assert not kept._deadlines
