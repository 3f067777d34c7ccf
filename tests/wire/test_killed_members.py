"""``kill -9`` of members under load, in processes of their own: the history keeps to the model."""

from __future__ import annotations

from benchmarks.requests import kill


def test_no_request_is_lost_or_doubled_when_three_of_ten_members_are_killed() -> None:
    shown = kill.run(10_000)
    assert shown.verdict.violations == ()
    assert shown.verdict.lost == shown.verdict.doubled == 0
    assert shown.verdict.outcomes["REPLY"] > 900
