"""What tests of the HTTP door start with."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.doors import Place, Run, open_place, run_in_realm


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return what runs a program of asyncio with a door; options are those of ``open_place``."""

    def run_with_place(work: Callable[[Place], Awaitable[None]], **options: Any) -> None:
        async def main() -> None:
            async with open_place(tmp_path, **options) as place:
                await work(place)

        run_in_realm(tmp_path, monkeypatch, main)

    return run_with_place


@pytest.fixture
def silent_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Check that nothing is logged as an error: what a client does wrong is told to that client, and counted."""
    with caplog.at_level(logging.DEBUG):
        yield
    records = caplog.get_records("call")
    assert [record.getMessage() for record in records if record.levelno >= logging.ERROR] == []
