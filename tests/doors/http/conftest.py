"""Fixtures of tests of the HTTP door."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.doors import Run, open_place, runner


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return what runs a program with a door, of which no task may be left when it is closed."""
    return runner(tmp_path, monkeypatch, open_place, within=100)
