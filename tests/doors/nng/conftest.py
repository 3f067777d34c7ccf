"""Fixtures of tests of the door for nng."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doors.nng.place import left_in, open_place
from tests.support.doors import Run, runner


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Return what runs a program with a door, of which no task and no file may be left when it is closed."""
    yield runner(tmp_path, monkeypatch, open_place, within=60)
    assert not left_in(tmp_path)
