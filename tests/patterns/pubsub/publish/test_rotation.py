"""Turns of a group: everybody one in each round, the busy and the unfit excepted."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iris.patterns.pubsub.publish.rotation import Rotation


def everybody(_: str) -> bool:
    return True


def nobody(_: str) -> bool:
    return False


def nothing(_: str) -> int:
    return 0


@given(st.integers(1, 12), st.integers(1, 40), st.integers(0, 2**32))
def test_everybody_has_one_turn_in_each_round(members: int, rounds: int, seed: int) -> None:
    names = [str(number) for number in range(members)]
    turns = Rotation(names, random.Random(seed))
    for _ in range(rounds):
        assert sorted(turns.next_receiver(everybody, nothing, nobody) for _ in names) == sorted(names)


@pytest.mark.parametrize("topics", [2, 3, 4])
def test_topics_that_take_turns_reach_every_member(topics: int) -> None:
    turns = Rotation("abc"[:topics], random.Random(1))
    reached = [Counter[str]() for _ in range(topics)]
    for number in range(600):
        reached[number % topics][turns.next_receiver(everybody, nothing, nobody)] += 1
    assert all(len(one) == min(3, topics) and min(one.values()) > 600 / topics / 6 for one in reached)


@given(st.sets(st.sampled_from("abcde"), max_size=5), st.integers(0, 2**32))
def test_who_is_not_fit_is_passed_over_if_anybody_is(unfit: set[str], seed: int) -> None:
    turns = Rotation("abcde", random.Random(seed))
    taken = Counter(turns.next_receiver(lambda one: one not in unfit, nothing, nobody) for _ in range(100))
    fit = set("abcde") - unfit
    if fit:
        assert set(taken) == fit
        assert max(taken.values()) - min(taken.values()) <= 1
    else:
        assert sum(taken.values()) == 100


def test_who_comes_back_has_its_turn_and_not_more() -> None:
    turns = Rotation("ab", random.Random(1))
    for _ in range(50):
        assert turns.next_receiver(lambda one: one == "a", nothing, nobody) == "a"
    taken = Counter(turns.next_receiver(everybody, nothing, nobody) for _ in range(100))
    assert taken["a"] == pytest.approx(50, abs=1)


def test_a_slow_member_gets_what_it_can_do() -> None:
    """Of three, two take ten events in a step and one takes one; twelve come."""
    outstanding: Counter[str] = Counter()
    turns = Rotation("abc", random.Random(1))
    given_to: Counter[str] = Counter()
    for _ in range(1000):
        for _ in range(12):
            one = turns.next_receiver(everybody, outstanding.__getitem__, nobody)
            outstanding[one] += 1
            given_to[one] += 1
        for one, takes in (("a", 10), ("b", 10), ("c", 1)):
            outstanding[one] = max(0, outstanding[one] - takes)
    assert outstanding["c"] < 250, "and not 3,000"
    assert given_to["c"] < 1400
    assert abs(given_to["a"] - given_to["b"]) < 600


def test_small_differences_change_nothing() -> None:
    turns = Rotation("ab", random.Random(1))
    taken = Counter(turns.next_receiver(everybody, {"a": 60, "b": 0}.__getitem__, nobody) for _ in range(100))
    assert taken == {"a": 50, "b": 50}


def test_who_drops_events_has_its_own_turns_and_none_of_others() -> None:
    turns = Rotation("ab", random.Random(1))
    busy = {"a": 1000, "b": 0}.__getitem__
    taken = Counter(turns.next_receiver(everybody, busy, lambda one: one == "b") for _ in range(100))
    assert taken == {"a": 50, "b": 50}
    taken = Counter(turns.next_receiver(everybody, busy, nobody) for _ in range(100))
    assert taken == {"b": 100}
