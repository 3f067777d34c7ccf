"""Addresses that may lead to a node: whose turn it is, and who is left alone."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iris.cluster.discovery.candidates import (
    AT_ONCE,
    CLAIMED,
    LAN_BURST,
    LAN_RATE,
    MAX_OFFERED,
    PAUSES,
    AddressSource,
    Candidates,
)
from iris.kernel.names import NodeId

ONE, TWO = NodeId("1" * 32), NodeId("2" * 32)
NOBODY: frozenset[NodeId] = frozenset()
NOTHING: frozenset[str] = frozenset()


def offered(source: AddressSource, *urls: str) -> Candidates:
    candidates = Candidates()
    candidates.offer(source, urls, 0.0)
    return candidates


def test_what_is_new_is_dialled_at_once_and_not_twice_at_a_time() -> None:
    candidates = offered(AddressSource.SEED, "a", "b")
    assert candidates.due(0.0, NOBODY, NOTHING) == ["a", "b"]
    assert candidates.due(100.0, NOBODY, NOTHING) == []
    assert candidates.next_due(NOBODY, NOTHING) == math.inf


@pytest.mark.parametrize("source", list(AddressSource))
def test_failures_lengthen_the_pause_up_to_a_limit_and_never_end_the_attempts(source: AddressSource) -> None:
    candidates = offered(source, "a")
    now = 0.0
    pauses: list[float] = []
    for _ in range(20):
        assert candidates.due(now, NOBODY, NOTHING) == ["a"]
        candidates.failed("a", now)
        soonest = candidates.next_due(NOBODY, NOTHING)
        assert candidates.due(math.nextafter(soonest, 0.0), NOBODY, NOTHING) == []
        pauses.append(round(soonest - now, 6))
        now = soonest
    expected = PAUSES[source]
    assert pauses == [*expected, *[expected[-1]] * (20 - len(expected))]


def test_an_address_is_left_alone_while_its_node_is_linked_and_tried_at_once_when_it_is_not() -> None:
    candidates = offered(AddressSource.SEED, "a")
    candidates.due(0.0, NOBODY, NOTHING)
    candidates.reached("a", ONE, 0.0)
    assert candidates.due(1000.0, {ONE}, NOTHING) == []
    assert candidates.next_due({ONE}, NOTHING) == math.inf
    assert candidates.due(1000.0, {TWO}, NOTHING) == ["a"]


def test_a_node_that_is_reached_and_lost_in_turn_is_not_dialled_without_pause() -> None:
    candidates = offered(AddressSource.SEED, "a")
    candidates.due(0.0, NOBODY, NOTHING)
    candidates.reached("a", ONE, 0.0)
    assert candidates.due(0.1, NOBODY, NOTHING) == []
    assert candidates.due(PAUSES[AddressSource.SEED][0], NOBODY, NOTHING) == ["a"]


def test_a_name_is_asked_again_although_one_of_its_nodes_is_linked() -> None:
    candidates = offered(AddressSource.SEED, "a")
    candidates.due(0.0, NOBODY, NOTHING)
    candidates.reached("a", ONE, 0.0, until=30.0)
    assert candidates.next_due({ONE}, NOTHING) == 30.0
    assert candidates.due(29.0, {ONE}, NOTHING) == []
    assert candidates.due(30.0, {ONE}, NOTHING) == ["a"]


def test_an_address_that_a_linked_node_tells_is_not_dialled() -> None:
    candidates = offered(AddressSource.BOOK, "a", "b")
    assert candidates.due(0.0, NOBODY, {"a"}) == ["b"]


def test_each_source_has_its_share_and_all_addresses_their_turn() -> None:
    candidates = offered(AddressSource.BOOK, *map(str, range(50)))
    tried: list[str] = []
    now = 0.0
    while len(tried) < 50:
        chosen = candidates.due(now, NOBODY, NOTHING)
        assert 0 < len(chosen) <= AT_ONCE[AddressSource.BOOK]
        tried.extend(chosen)
        for url in chosen:
            candidates.failed(url, now)
        now += 0.1
    assert sorted(tried, key=int) == [str(number) for number in range(50)]


def test_only_sources_that_are_asked_for_are_dialled() -> None:
    candidates = offered(AddressSource.BOOK, "book")
    candidates.offer(AddressSource.SEED, ["seed"], 0.0)
    assert candidates.due(0.0, NOBODY, NOTHING, [AddressSource.LAN]) == []
    assert candidates.due(0.0, NOBODY, NOTHING, [AddressSource.SEED]) == ["seed"]
    assert candidates.due(0.0, NOBODY, NOTHING) == ["book"]


def test_what_is_not_offered_any_more_is_forgotten_also_while_it_is_dialled() -> None:
    candidates = offered(AddressSource.LAN, "a")
    candidates.due(0.0, NOBODY, NOTHING)
    candidates.offer(AddressSource.LAN, [], 1.0)
    candidates.failed("a", 2.0)
    candidates.reached("a", ONE, 2.0)
    assert candidates.due(100.0, NOBODY, NOTHING) == []


def test_the_better_source_decides_how_often() -> None:
    candidates = offered(AddressSource.BOOK, "a")
    candidates.due(0.0, NOBODY, NOTHING)
    candidates.failed("a", 0.0)
    candidates.offer(AddressSource.SEED, ["a"], 0.0)
    candidates.offer(AddressSource.BOOK, ["a"], 0.0)
    candidates.due(PAUSES[AddressSource.BOOK][0], NOBODY, NOTHING)
    candidates.failed("a", 10.0)
    assert candidates.next_due(NOBODY, NOTHING) == 10.0 + PAUSES[AddressSource.SEED][0]


@given(st.lists(st.text(max_size=3), max_size=20), st.integers(0, 5))
def test_no_source_can_offer_without_bound(urls: list[str], times: int) -> None:
    candidates = Candidates()
    for number in range(times):
        candidates.offer(AddressSource.LAN, [*urls, *(f"{number}-{index}" for index in range(MAX_OFFERED))], 0.0)
    held = 0
    while chosen := candidates.due(0.0, NOBODY, NOTHING):
        for url in chosen:
            candidates.failed(url, 0.0)
        held += len(chosen)
    assert held <= MAX_OFFERED


def test_a_seed_that_a_linked_node_says_it_is_is_dialled_all_the_same() -> None:
    candidates = offered(AddressSource.SEED, "a")
    assert candidates.next_due(NOBODY, NOTHING, {"a"}) == 0.0
    assert candidates.due(0.0, NOBODY, NOTHING, claimed={"a"}) == ["a"]


@pytest.mark.parametrize("source", [AddressSource.LAN, AddressSource.BOOK])
def test_what_a_linked_node_says_it_has_is_dialled_now_and_then_if_it_was_not_found_there(
    source: AddressSource,
) -> None:
    candidates = offered(source, "a")
    assert candidates.due(CLAIMED - 1, NOBODY, NOTHING, claimed={"a"}) == []
    assert candidates.next_due(NOBODY, NOTHING, {"a"}) == CLAIMED
    assert candidates.due(CLAIMED, NOBODY, NOTHING, claimed={"a"}) == ["a"]
    candidates.failed("a", CLAIMED + 5)
    assert candidates.next_due(NOBODY, NOTHING, {"a"}) == 2 * CLAIMED
    assert candidates.due(2 * CLAIMED, NOBODY, NOTHING, claimed={"a"}) == ["a"]
    candidates.reached("a", ONE, 2 * CLAIMED)
    assert candidates.due(10 * CLAIMED, {ONE}, NOTHING, claimed={"a"}) == []


@pytest.mark.parametrize("source", [AddressSource.LAN, AddressSource.BOOK])
def test_when_nobody_claims_it_any_more_its_turn_comes_at_once(source: AddressSource) -> None:
    candidates = offered(source, "a")
    assert candidates.due(5.0, NOBODY, NOTHING, claimed={"a"}) == []
    assert candidates.due(5.0, NOBODY, NOTHING) == ["a"]


def test_addresses_that_change_all_the_time_are_dialled_a_few_in_a_second() -> None:
    candidates = Candidates()
    dialled = 0
    for tick in range(2000):
        now = tick / 20
        candidates.offer(AddressSource.LAN, [f"{tick}-{number}" for number in range(8)], now)
        for url in candidates.due(now, NOBODY, NOTHING):
            dialled += 1
            candidates.failed(url, now)
    assert dialled <= LAN_BURST + LAN_RATE * 100 + 1
    assert candidates.due(100.0, NOBODY, NOTHING, [AddressSource.SEED, AddressSource.BOOK]) == []
    candidates.offer(AddressSource.SEED, ["seed"], 100.0)
    assert candidates.due(100.0, NOBODY, NOTHING, [AddressSource.SEED]) == ["seed"], "no other source pays for it"
