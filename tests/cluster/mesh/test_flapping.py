"""Links that do not live: the first ones are made again at once, the others now and then."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iris.cluster.mesh.reconnect import EVERY, FREE, FlapDamping
from iris.kernel.names import NodeId

NODE, OTHER = NodeId("1" * 32), NodeId("2" * 32)


def broken(flapping: FlapDamping, times: int, *, every: float = 0.5, now: float = 0.0) -> float:
    """Have the links to a node break so many times; return when the last one did."""
    for _ in range(times):
        now += every
        flapping.broke(NODE, now)
    return now


@pytest.mark.parametrize("times", [0, 1, FREE])
def test_the_first_breaks_cost_nothing(times: int) -> None:
    flapping = FlapDamping()
    assert flapping.pause(NODE, broken(flapping, times, every=0.0)) == 0


@pytest.mark.parametrize("times", [FREE + 1, FREE + 2, 1000])
def test_further_ones_are_waited_for_and_never_longer_than_was_said(times: int) -> None:
    flapping = FlapDamping()
    now = broken(flapping, times, every=0.0)
    assert flapping.pause(NODE, now) == EVERY
    assert flapping.pause(NODE, now + EVERY / 4) == pytest.approx(EVERY * 3 / 4)
    assert flapping.pause(NODE, now + EVERY) == 0
    assert flapping.pause(OTHER, now) == 0


@pytest.mark.parametrize("every", [EVERY, 60.0])
def test_links_that_live_may_break_as_often_as_they_like(every: float) -> None:
    flapping = FlapDamping()
    assert flapping.pause(NODE, broken(flapping, 1000, every=every)) == 0


def test_in_the_long_run_a_node_that_breaks_its_links_is_dialled_once_in_a_while() -> None:
    flapping = FlapDamping()
    now = dials = 0.0
    while now < 600.0:
        now += flapping.pause(NODE, now)
        dials += 1
        now += 0.5
        flapping.broke(NODE, now)
    assert dials <= FREE + 600.0 / EVERY + 2


def test_after_a_quiet_while_the_first_ones_cost_nothing_again() -> None:
    flapping = FlapDamping()
    now = broken(flapping, 1000)
    now = broken(flapping, FREE, now=now + (FREE + 1) * EVERY)
    assert flapping.pause(NODE, now) == 0


def test_however_many_nodes_break_their_links_few_are_remembered() -> None:
    flapping = FlapDamping()
    for number in range(3000):
        flapping.broke(NodeId(f"{number:032x}"), 0.1)
    assert repr(flapping) == "<FlapDamping: 1024 nodes>"


@given(st.lists(st.tuples(st.booleans(), st.floats(-5, 20)), max_size=80))
def test_a_pause_is_never_longer_than_the_longest_whatever_the_clock_does(steps: list[tuple[bool, float]]) -> None:
    flapping = FlapDamping()
    now = 0.0
    for breaks, seconds in steps:
        now += seconds
        if breaks:
            flapping.broke(NODE, now)
        assert 0 <= flapping.pause(NODE, now) <= EVERY
