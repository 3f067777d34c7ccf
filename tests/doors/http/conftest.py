"""What tests of the HTTP door start with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
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
