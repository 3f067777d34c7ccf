"""Handlers of asyncio that block the event loop."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

import iris
import iris.aio
import iris.sync
from tests.support.blocked import ask, check, stand


def test_a_handler_that_waits_is_named_at_both_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("IRIS_HOME", str(tmp_path / "home"))
    prices = iris.Service("prices")

    @prices.request("naps")
    async def naps() -> None:
        await asyncio.sleep(0)
        stand()

    async def main(caller: iris.sync.Node) -> iris.aio.Node:
        async with iris.aio.open_node("prices") as node, node.join("prices", prices):
            ended, loop = asyncio.Event(), asyncio.get_running_loop()
            ask(caller, "naps", lambda: loop.call_soon_threadsafe(ended.set))
            await ended.wait()
        return node

    with caplog.at_level(logging.INFO, logger="iris"), iris.sync.open_node("callers") as caller:
        node = asyncio.run(main(caller))
    (counted,) = node.statistics().blocked
    check(caplog, "naps", counted)
