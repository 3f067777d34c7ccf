"""Ids of the tunnels that a peer has opened."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iris.kernel.errors import RemoteProtocolError
from iris.patterns.tunnel.table import OpenedIds


@given(numbers=st.lists(st.integers(1, 500)))
def test_every_number_is_new_exactly_once(numbers: list[int]) -> None:
    opened = OpenedIds()
    seen: set[int] = set()
    for number in numbers:
        assert opened.add(number) == (number not in seen)
        seen.add(number)


def test_numbers_missing_for_too_long_are_given_up_and_memory_stays() -> None:
    opened = OpenedIds()
    for number in range(2, 200_002, 2):
        assert opened.add(number)
    assert opened.missing == 1024
    assert not opened.add(1)
    assert opened.add(199_999)


def test_a_step_within_bounds_costs_bounded_memory() -> None:
    opened = OpenedIds()
    for number in range(60_000, 6_000_001, 60_000):
        assert opened.add(number)
    assert opened.missing == 1024


def test_an_invented_number_is_refused() -> None:
    opened = OpenedIds()
    assert opened.add(1)
    with pytest.raises(RemoteProtocolError, match="tunnel 65538 is opened after tunnel 1"):
        opened.add(65_538)
    assert opened.add(2)


def test_the_first_number_may_follow_any_that_were_forgotten() -> None:
    opened = OpenedIds()
    assert opened.add(10**9)
    assert opened.add(10**9 + 1)
    assert opened.add(10**9 - 1)
    assert not opened.add(1)
    assert opened.missing == 1023
