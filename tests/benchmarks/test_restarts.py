"""A rolling restart fails no request; ``python -m benchmarks.requests restarts`` does it more often."""

from __future__ import annotations

from benchmarks.requests import restarts


def test_no_request_fails_when_members_are_restarted_by_sigterm_one_after_the_other() -> None:
    shown = restarts.run(members=2, restarts=1)
    assert shown.failed == {}
    assert shown.kept, shown
    assert shown.statuses == {0: 2}
    assert shown.plain > 50
    assert shown.idempotent > 50
