"""A fork inside of a running trio run, which hangs the parent if the child goes on, is said in the parent."""

from __future__ import annotations

import os
import warnings

import pytest

import iris.kernel.tasks.fork_warning as fork_warning


def fork() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 warns of threads
        child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)


async def test_a_fork_while_trio_runs_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    fork()
    (said,) = [record.getMessage() for record in caplog.records if record.name == fork_warning._log.name]
    assert said.startswith("this process was forked while trio runs")


def test_a_fork_without_trio_is_not(caplog: pytest.LogCaptureFixture) -> None:
    fork()
    assert caplog.records == []
