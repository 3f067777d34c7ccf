"""A fork inside of a running trio run, which hangs the parent if the child goes on, is said in the parent."""

from __future__ import annotations

import pytest

from tests.support.forks import in_child


def fork() -> None:
    assert in_child(lambda: True)


async def test_a_fork_while_trio_runs_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    fork()
    (said,) = [record.getMessage() for record in caplog.records if record.name == "iris"]
    assert said.startswith("this process was forked while trio runs")


def test_a_fork_without_trio_is_not(caplog: pytest.LogCaptureFixture) -> None:
    fork()
    assert caplog.records == []
