"""Last values and deadlines beside plain models of them."""

from __future__ import annotations

import math
import random
from typing import Final

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from iris.kernel.errors import NotSent
from iris.patterns.pubsub.interest.topics import MAX_TOKENS, is_pattern
from iris.patterns.pubsub.publish.retained import RetainedEvent, RetainedEvents
from iris.patterns.request.deadlines import Deadlines

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


@given(st.lists(TOPICS, unique=True, max_size=20))
def test_a_pattern_for_everything_finds_everything_and_a_topic_finds_itself(topics: list[str]) -> None:
    kept = RetainedEvents(100, 10_000)
    for number, topic in enumerate(topics):
        kept.keep(event(topic, number + 1, 1))
    assert sorted(one.topic for one in kept.match(">")) == sorted(topics)
    for topic in topics:
        assert [one.topic for one in kept.match(topic)] == [topic]


def test_the_deepest_topic_there_can_be_is_found_and_forgotten() -> None:
    deep = ".".join("x" for _ in range(MAX_TOKENS))
    kept = RetainedEvents(10, 100)
    kept.keep(event(deep, 1, 1))
    assert [one.topic for one in kept.match("x.>")] == [deep]
    assert kept.forget(deep)
    assert kept.match(">") == []


def test_a_topic_above_or_below_another_is_another_one() -> None:
    kept = RetainedEvents(10, 100)
    kept.keep(event("a.b", 1, 1))
    assert kept.get("a") is None
    assert kept.get("a.b.c") is None
    assert not kept.forget("a")
    assert not kept.forget("a.b.c")
    assert len(kept) == 1


def test_a_refusal_says_what_is_held_and_what_the_limits_are() -> None:
    kept = RetainedEvents(1, 100)
    kept.keep(event("a", 1, 60))
    with pytest.raises(NotSent, match=r"'b' .* retains 1 values with 60 bytes, the limits are 1 and 100"):
        kept.check("b", 1)
    with pytest.raises(NotSent, match="'a'"):
        kept.check("a", 101)
    kept.check("a", 100)


# -- deadlines -----------------------------------------------------------------------------------------------


@settings(max_examples=20)
@given(st.integers(0, 2**32))
def test_every_wait_that_still_lasts_expires_once_at_its_deadline_and_no_other_does(seed: int) -> None:
    rng = random.Random(seed)

    async def main() -> None:
        waiting: dict[int, float] = {}
        expired: dict[int, float] = {}
        ended: set[int] = set()

        def expire(number: int) -> None:
            assert number not in ended | set(expired)
            expired[number] = trio.current_time() - waiting.pop(number)

        deadlines = Deadlines(waiting, expire)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(deadlines.run)
            for number in range(60):
                deadline = trio.current_time() + rng.choice([0.0, rng.random(), 10 * rng.random(), math.inf])
                waiting[number] = deadline
                deadlines.add(deadline, number)
                if rng.random() < 0.3 and waiting:
                    gone = rng.choice(list(waiting))
                    del waiting[gone]
                    ended.add(gone)
                if rng.random() < 0.5:
                    await trio.sleep(rng.random())
                    for late in (number for number, deadline in waiting.items() if deadline < trio.current_time()):
                        raise AssertionError(f"{late} should have expired")
            await trio.sleep(20)
            nursery.cancel_scope.cancel()
        assert all(abs(lateness) < 1e-6 for lateness in expired.values())
        assert all(deadline == math.inf for deadline in waiting.values())
        assert len(expired) + len(ended) + len(waiting) == 60
        assert len(deadlines) <= len(ended), "what has expired is forgotten"

    trio.run(main, clock=MockClock(autojump_threshold=0))


async def test_a_wait_without_a_deadline_costs_nothing(autojump_clock: MockClock) -> None:
    deadlines = Deadlines({1}, lambda _: None)
    deadlines.add(math.inf, 1)
    assert len(deadlines) == 0


async def test_a_deadline_that_has_passed_when_it_is_told_expires_at_once(autojump_clock: MockClock) -> None:
    waiting = {1}
    expired = trio.Event()

    def expire(number: int) -> None:
        waiting.discard(number)
        expired.set()

    deadlines = Deadlines(waiting, expire)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deadlines.run)
        await trio.sleep(5)
        deadlines.add(trio.current_time() - 1, 1)
        with trio.fail_after(0.001):
            await expired.wait()
        nursery.cancel_scope.cancel()


async def test_a_wait_begun_by_one_that_expires_is_kept_as_well(autojump_clock: MockClock) -> None:
    """What ``expire`` does may begin the next wait, as a repeat does."""
    waiting = {0}
    moments: list[float] = []
    began = trio.current_time()

    def expire(number: int) -> None:
        moments.append(round(trio.current_time() - began, 6))
        waiting.discard(number)
        if number < 4:
            waiting.add(number + 1)
            deadlines.add(trio.current_time() + 1, number + 1)

    deadlines = Deadlines(waiting, expire)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deadlines.run)
        deadlines.add(began + 1, 0)
        await trio.sleep(10)
        nursery.cancel_scope.cancel()
    assert moments == [1, 2, 3, 4, 5]


async def test_ten_thousand_waits_that_ended_early_are_thrown_out_on_the_way(autojump_clock: MockClock) -> None:
    waiting: set[int] = set()
    deadlines = Deadlines(waiting, waiting.discard)
    for number in range(10_000):
        waiting.add(number)
        deadlines.add(1e6 + number, number)
        if number >= 10:
            waiting.discard(number - 10)
        assert len(deadlines) <= 1100
