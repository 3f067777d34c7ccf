"""Pauses before those are dialled again who do not let this node in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iris.cluster.mesh.refusal_backoff import ALL, FREE, FREE_OF_ALL, LONGEST, RefusalBackoff


def whole(size: int) -> bytes:
    """Return what leaves nothing out of a pause."""
    return bytes(size)


def refused(backoff: RefusalBackoff, key: str, times: int, now: float = 0.0) -> float:
    """Have this node refused so many times, as soon as it may dial; return when that was for the last time."""
    for _ in range(times):
        now += backoff.pause(key, now)
        backoff.refused(key, now)
    return now


@pytest.mark.parametrize(("key", "free"), [("mem://a", FREE), (ALL, FREE_OF_ALL)])
def test_the_first_refusals_cost_nothing_and_each_further_one_twice_as_much(key: str, free: int) -> None:
    backoff = RefusalBackoff(whole)
    assert not any(backoff.refused(key, 0.0) for _ in range(free))
    assert backoff.pause(key, 0.0) == 0
    assert backoff.refused(key, 0.0), "the first one that costs something"
    assert backoff.pause(key, 0.0) == 1.0
    assert not backoff.refused(key, 1.0)
    assert backoff.pause(key, 1.0) == 2.0
    assert backoff.pause("mem://b", 1.0) == 0
    now = refused(backoff, key, 1000)
    assert backoff.pause(key, now) == LONGEST


def test_dials_that_were_begun_before_a_pause_do_not_make_it_longer() -> None:
    backoff = RefusalBackoff(whole)
    now = refused(backoff, "a", FREE + 3)
    for _ in range(10):
        backoff.refused("a", now)
    assert backoff.pause("a", now) == 4.0


@pytest.mark.parametrize("how", ["let in", "another credential", "it was not dialled for a while"])
def test_then_the_first_ones_cost_nothing_again(how: str) -> None:
    backoff = RefusalBackoff(whole)
    now = refused(backoff, "a", FREE + 3)
    match how:
        case "let in":
            backoff.accepted("a")
        case "another credential":
            backoff.clear()
        case _:
            now += 3 * LONGEST
    assert backoff.pause("a", now) == 0
    backoff.refused("a", now)
    assert backoff.pause("a", now) == 0


def test_nodes_that_were_refused_together_do_not_come_back_together() -> None:
    shares = iter(range(256))
    pauses: set[float] = set()
    for _ in range(256):
        backoff = RefusalBackoff(lambda size: bytes([next(shares)] * size))
        pauses.add(backoff.pause("a", refused(backoff, "a", FREE + 1)))
    assert len(pauses) == 256
    assert min(pauses) > 0.5
    assert max(pauses) == 1.0


def test_however_many_refuse_it_few_are_remembered() -> None:
    backoff = RefusalBackoff(whole)
    for number in range(5000):
        backoff.refused(f"mem://{number}", 0.0)
    assert repr(backoff) == "<RefusalBackoff: 2048 nodes and addresses>"


@given(st.lists(st.tuples(st.sampled_from(["refused", "accepted"]), st.floats(-5, 500)), max_size=80))
def test_a_pause_is_never_longer_than_the_longest_while_time_goes_on(steps: list[tuple[str, float]]) -> None:
    backoff = RefusalBackoff(whole)
    now = 0.0
    for what, seconds in steps:
        now += max(0.0, seconds)
        if what == "refused":
            backoff.refused("a", now)
        else:
            backoff.accepted("a")
        assert 0 <= backoff.pause("a", now) <= LONGEST
