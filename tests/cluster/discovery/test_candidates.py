"""Addresses that may lead to a node: whose turn it is, and who is left alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iris.cluster.discovery.candidates import CLAIMED, LAN_BURST, LAN_RATE, MAX_OFFERED, AddressSource, Candidates
from iris.kernel.names import NodeId

ONE, TWO = NodeId("1" * 32), NodeId("2" * 32)
NOBODY: frozenset[NodeId] = frozenset()
NOTHING: frozenset[str] = frozenset()


def offered(source: AddressSource, *urls: str) -> Candidates:
    candidates = Candidates()
    candidates.offer(source, urls, 0.0)
    return candidates


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
