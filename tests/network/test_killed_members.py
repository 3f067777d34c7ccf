"""``kill -9`` of members under load, in processes of their own: the history keeps to the model."""

from __future__ import annotations

from benchmarks.requests import kill

REQUESTS = 100_000


def test_no_request_is_lost_or_doubled_when_three_of_ten_members_are_killed() -> None:
    shown = kill.run(REQUESTS)
    verdict = shown.verdict
    assert verdict.violations == ()
    assert verdict.lost == verdict.doubled == 0
    assert sum(verdict.outcomes.values()) == REQUESTS // 10
    assert verdict.outcomes["REPLY"] > 0.95 * REQUESTS / 10
    # It was a test at all: members died, their requests went to others, and the load went on.
    assert shown.deaths == 3
    assert shown.answered_since > REQUESTS / 5
    assert shown.repeated >= shown.moved > 0
