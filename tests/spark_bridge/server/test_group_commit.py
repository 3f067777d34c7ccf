"""Group commit: nobody waits longer than promised, and company is waited for only while it comes."""

from __future__ import annotations

import math

import pytest

from iris.kernel.errors import ConfigError
from iris.spark_bridge.server.group_commit import GroupCommit, GroupLimits

LIMITS = GroupLimits(delay=0.02, quiet=0.002, events=100, bytes=1000)


def test_an_empty_group_is_never_due() -> None:
    group: GroupCommit[str] = GroupCommit(LIMITS)
    assert not group.batches
    assert group.deadline == math.inf


def test_a_lone_event_waits_for_a_moment_of_quiet() -> None:
    group: GroupCommit[str] = GroupCommit(LIMITS)
    group.add("a", events=1, size=1, now=5.0)
    assert group.deadline == 5.002


def test_a_steady_stream_waits_for_the_delay_and_not_longer() -> None:
    group: GroupCommit[str] = GroupCommit(LIMITS)
    for tick in range(20):
        group.add("a", events=1, size=1, now=5.0 + tick / 1000)
    assert group.deadline == pytest.approx(5.02)


def test_what_comes_after_a_pause_is_due_at_once_and_what_follows_gathers() -> None:
    group: GroupCommit[str] = GroupCommit(LIMITS)
    group.add("a", events=1, size=1, now=5.0)
    group.pop()
    group.add("b", events=1, size=1, now=5.0 + LIMITS.delay)
    assert group.deadline < 5.0
    group.pop()
    group.add("c", events=1, size=1, now=5.03)
    assert group.deadline == 5.032


def test_a_stream_with_gaps_below_the_delay_is_no_pause() -> None:
    group: GroupCommit[str] = GroupCommit(LIMITS)
    for tick in range(5):
        now = 5.0 + tick * 0.019
        group.add("a", events=1, size=1, now=now)
        assert group.deadline == pytest.approx(now + LIMITS.quiet)
        group.pop()


def test_what_follows_a_group_that_was_alone_is_due_at_once() -> None:
    """A publisher that waits for each confirmation."""
    group: GroupCommit[str] = GroupCommit(LIMITS)
    group.add("a", events=1, size=1, now=5.0)
    for tick in range(1, 4):
        group.pop()
        group.written()
        group.add("b", events=1, size=1, now=5.0 + tick / 1000)
        assert group.deadline < 5.0
    group.pop()
    group.add("c", events=1, size=1, now=5.004)
    group.written()
    assert group.deadline == pytest.approx(5.006), "it came while the one before was written"
    group.add("d", events=1, size=1, now=5.005)
    group.pop()
    group.written()
    group.add("e", events=1, size=1, now=5.006)
    assert group.deadline == pytest.approx(5.008), "the group before had company"


@pytest.mark.parametrize(("events", "size"), [(100, 1), (1, 1000), (200, 5000)])
def test_a_full_group_is_due_at_once(events: int, size: int) -> None:
    group: GroupCommit[str] = GroupCommit(LIMITS)
    group.add("a", events=events - 1, size=size - 1, now=5.0)
    group.add("b", events=1, size=1, now=5.0)
    assert group.is_full
    assert group.deadline < 5.0


def test_taking_begins_a_new_group() -> None:
    group: GroupCommit[str] = GroupCommit(LIMITS)
    group.add("a", events=100, size=1, now=5.0)
    group.add("b", events=1, size=1, now=5.0)
    assert group.pop() == ["a", "b"]
    assert not group.batches
    assert not group.is_full
    group.add("c", events=1, size=1, now=5.01)
    assert group.deadline == 5.012


@pytest.mark.parametrize("limits", [{"delay": -1.0}, {"delay": math.nan}, {"quiet": math.inf}])
def test_times_that_make_no_sense_are_refused(limits: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="group commit"):
        GroupLimits(**limits)  # type: ignore[arg-type]


def test_a_group_that_holds_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="events"):
        GroupLimits(events=0)
    with pytest.raises(ConfigError, match="bytes"):
        GroupLimits(bytes=0)
