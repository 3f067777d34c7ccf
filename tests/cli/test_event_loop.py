"""The event loop of verbs that run in asyncio."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys

import pytest
import uvloop

from iris.cli.event_loop import Interrupted, run_in_asyncio


@pytest.mark.parametrize("is_installed", [True, False])
def test_it_is_uvloop_s_where_that_is_installed_and_the_log_says_which(
    is_installed: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    async def work(interrupted: Interrupted) -> None:
        loops.append(asyncio.get_running_loop())
        os.kill(os.getpid(), signal.SIGTERM)
        await interrupted()

    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    if not is_installed:
        monkeypatch.setitem(sys.modules, "uvloop", None)
    with caplog.at_level(logging.INFO, "iris"):
        assert run_in_asyncio(work) == 0
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before, (
        "Ctrl-C is the program's again"
    )
    assert isinstance(loops[0], uvloop.Loop) is is_installed
    expected = "event loop: uvloop" if is_installed else "event loop: asyncio's own; uvloop is not installed"
    assert caplog.messages == [expected]
