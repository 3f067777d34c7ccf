"""What tests of the door for nng start with."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.doors.nng.place import Place, Run, left_in, open_place
from tests.support.doors import run_in_realm


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return what runs a program with a door; no task and no file of the door may be left when that is closed."""

    def run_with_place(work: Callable[[Place], Awaitable[None]], **options: Any) -> None:
        async def main() -> None:
            before = asyncio.all_tasks()
            async with open_place(tmp_path, **options) as place:
                async with asyncio.timeout(60):
                    await work(place)
            assert asyncio.all_tasks() == before
            assert not left_in(tmp_path)

        run_in_realm(tmp_path, monkeypatch, main)

    return run_with_place
