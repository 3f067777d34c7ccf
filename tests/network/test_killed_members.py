"""``kill -9`` of members under load, in processes of their own: the history keeps to the model."""

from __future__ import annotations

import pytest

from benchmarks.requests import kill


@pytest.mark.parametrize("requests", [10_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_no_request_is_lost_or_doubled_when_three_of_ten_members_are_killed(requests: int) -> None:
    shown = kill.run(requests)
    verdict = shown.verdict
    assert verdict.violations == ()
    assert verdict.lost == verdict.doubled == 0
    assert sum(verdict.outcomes.values()) == requests // 10
    assert verdict.outcomes["REPLY"] > 0.95 * requests / 10
    # It was a test at all: members died, their requests went to others, and the load went on.
    assert shown.deaths == 3
    assert shown.answered_since > requests / 5
    assert shown.repeated >= shown.moved > 0
